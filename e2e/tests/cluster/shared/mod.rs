//! Tests that keep to a namespace of their own.

mod bad_input;
mod concierge;
pub mod deletions;
mod local_api;
mod order;
mod restricted;
mod scale;
mod skills;
mod tools;
