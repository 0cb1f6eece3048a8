//! The sidecar of an agent pod: A2A to the outside, MCP over stdio to the tools, skills as files, health and metrics.
//!
//! An A2A request walks binding → service → executor → store and back; an MCP call walks endpoint → session → pool →
//! pipe. [`context::Context`] is what every part gets: configuration, drain, metrics registry, shutdown.

pub mod a2a;
pub mod admin;
pub mod bucket;
pub mod config;
pub mod context;
pub mod drain;
pub mod folder;
pub mod health;
pub mod local_api;
pub mod logging;
pub mod mcp;
pub mod mesh;
pub mod metrics;
pub mod outbound;
pub mod percent;
pub mod run;
pub mod serve;
pub mod skills;
pub mod tools;
