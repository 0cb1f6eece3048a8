//! Agents behind us that speak A2A themselves: a client for every binding and version, and the executor that uses it.
//!
//! A turn walks executor → turn → client → connection, and what the agent says of its task comes back as events.

pub mod agent;
pub mod client;
pub mod error;
pub mod executor;
mod grpc;
pub mod interface;
pub mod stream;
mod turn;
mod wire;
