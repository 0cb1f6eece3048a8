//! The operator: dereference → validate → plan → apply → status for each kind.

pub mod hash;
pub mod names;
pub mod plan;
pub mod settings;
