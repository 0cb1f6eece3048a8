//! Agent2Agent (A2A) 1.0 on raw JSON, and the executor contract.
//!
//! `parts`, `metadata` and `artifacts` are never re-typed: they stay the JSON text that came in ([`raw::Raw`]), so that
//! integers, unknown members and the order of members survive. Only what the sidecar must understand is read.
//!
//! - [`envelope`], [`method`]: a JSON-RPC request and its answer. [`http_json`]: paths and queries.
//! - [`version`], [`extensions`], [`errors`]: what all bindings share.
//! - [`send`], [`params`], [`part`], [`push`]: parameters and their rules.
//! - [`state`], [`task`], [`conversation`]: what a task is and how it may change.
//! - [`stored`]: how a task and its changes are written down in a database.
//! - [`turn`], [`answer`]: the executor contract, `outrigger/v1`.
//! - [`v03`]: A2A 0.3, each way. [`card`]: the Agent Card. [`sse`]: server-sent events, read and written.

pub mod answer;
pub mod artifact;
pub mod card;
pub mod conversation;
pub mod envelope;
pub mod errors;
pub mod extensions;
pub mod fault;
pub mod http_json;
pub mod message;
pub mod method;
pub mod mirror;
pub mod operation;
pub mod params;
pub mod part;
pub mod push;
pub mod raw;
pub mod response;
pub mod rewrite;
pub mod send;
pub mod sse;
pub mod state;
pub mod stored;
pub mod task;
pub mod turn;
pub mod update;
pub mod v03;
pub mod version;
