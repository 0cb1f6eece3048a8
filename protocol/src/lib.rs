//! Wire models and pure rules of Outrigger. No I/O, no async runtime, no Kubernetes client.
//!
//! - [`config`], [`control`] and [`status`]: what the operator tells a pod, and what the pod says of itself.
//! - [`jsonrpc`]: envelopes shared by A2A and MCP.
//! - [`address`]: where requests may go that somebody else asked for. [`canonical`] and [`digest`]: one form and one name
//!   for content.
//! - [`a2a`]: the Agent2Agent model. [`mcp`]: Model Context Protocol envelopes. [`skill`]: Agent Skills folders.

pub mod a2a;
pub mod address;
pub mod canonical;
pub mod config;
pub mod control;
pub mod digest;
pub mod jsonrpc;
pub mod mcp;
pub mod skill;
pub mod status;
