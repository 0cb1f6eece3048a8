//! The operator: dereference → validate → plan → apply → status for each kind.

pub mod apply;
pub mod caches;
pub mod check;
pub mod client;
pub mod control_api;
pub mod controller;
pub mod election;
pub mod facts;
pub mod hash;
pub mod http;
pub mod issuer;
pub mod metrics;
pub mod names;
pub mod plan;
pub mod report;
pub mod run;
pub mod scopes;
pub mod settings;
pub mod status;
pub mod triggers;
pub mod watch;
