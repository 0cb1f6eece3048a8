//! Tests that keep to a namespace of their own.

mod access;
mod bad_input;
mod concierge;
mod control;
pub mod deletions;
mod local_api;
mod mcp_placement;
mod order;
mod push;
mod replicas;
mod restricted;
mod scale;
mod skills;
mod speakers;
mod tools;
