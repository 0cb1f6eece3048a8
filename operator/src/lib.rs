//! The operator: dereference → validate → plan → apply → status for each kind.
