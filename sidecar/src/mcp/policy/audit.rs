//! One line in the log and one count for each call of a tool: who, what, how it ended; never what was said.

use std::sync::Arc;

use outrigger_protocol::digest::sha256;
use tokio::time::Instant;

use crate::mcp::outlet::Answer;
use crate::mcp::pool::Server;

/// The `tool` label of what the server does not list among its first tools, as callers choose the names in calls.
const OTHER: &str = "other";
/// Bytes of a tool's name that are logged.
const MAX_NAME: usize = 128;

/// A call on its way. When it is dropped it has ended.
pub struct Ticket {
    server: Arc<Server>,
    tool: Arc<str>,
    caller: Arc<str>,
    /// SHA-256 of the raw arguments, hex.
    arguments: String,
    trace: String,
    started: Instant,
    outcome: &'static str,
}

impl Ticket {
    /// A call that begins now.
    pub fn new(server: &Arc<Server>, tool: &str, caller: &Arc<str>, arguments: &str, trace: &str) -> Self {
        Self {
            server: Arc::clone(server),
            tool: tool.into(),
            caller: Arc::clone(caller),
            arguments: sha256(arguments.as_bytes()),
            trace: trace.into(),
            started: Instant::now(),
            outcome: "abandoned",
        }
    }

    /// The call ended with an answer.
    pub fn answered(&mut self, answer: &Answer) {
        self.outcome = match &answer.failure {
            Some(failure) => failure.outcome(),
            None if answer.ok() => "ok",
            None => "error",
        };
    }

    /// The call was not let through.
    pub fn refused(mut self, reason: &'static str) {
        self.outcome = reason;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let policy = &self.server.shared.policy;
        let known =
            self.server.health.borrow().info.as_ref().is_some_and(|i| i.tools.iter().any(|t| **t == *self.tool));
        let label = if known { &*self.tool } else { OTHER };
        let name = self.server.name();
        policy.metrics.tool_calls.with_label_values(&[name, label, self.outcome]).inc();
        let end = self.tool.floor_char_boundary(MAX_NAME);
        tracing::info!(
            target: "business", server = name, tool = &self.tool[..end], caller = &*self.caller,
            arguments_sha256 = self.arguments, outcome = self.outcome,
            milliseconds = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            trace = self.trace, "tool call"
        );
    }
}
