//! The control channel between the sidecar and the shim of a tool container: JSON objects, one a line, over a Unix
//! socket. One connection stands for at most one child.
//!
//! Both sides say [`Hello`] first. After [`ToShim::Spawn`] the shim answers [`FromShim::Spawned`], and with the bytes of
//! that line come two file descriptors: the write end of the child's stdin and the read end of its stdout. No byte of
//! MCP passes through the shim. Closing the connection, or [`ToShim::Stop`], ends the child: the sidecar closes stdin,
//! then the shim waits, sends SIGTERM to the process group, waits again, and kills the group.

use serde::{Deserialize, Serialize};

/// Major version of this protocol; a peer with another one is refused.
pub const PROTOCOL: u32 = 1;
/// Longest line either side takes, in bytes. A stderr tail of control characters grows sixfold as JSON.
pub const MAX_LINE: usize = 128 << 10;
/// How much of a child's stderr the shim remembers, in bytes.
pub const STDERR_TAIL: usize = 16 << 10;
/// Time between the steps of the stop ladder, in milliseconds, unless [`ToShim::Stop`] names another.
pub const GRACE_MS: u64 = 2_000;
/// File descriptors that come with [`FromShim::Spawned`]: stdin's write end, stdout's read end.
pub const SPAWNED_FDS: usize = 2;

/// First message of either side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the speaker.
    pub protocol: u32,
    /// Version of the speaker's program.
    pub version: String,
    /// Process id of the speaker, in its own process namespace.
    pub pid: u32,
    /// Random per start of the shim; empty from the sidecar.
    #[serde(default)]
    pub generation: String,
}

/// What the sidecar says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToShim {
    /// First message.
    Hello(Hello),
    /// Start the child of this connection.
    Spawn {},
    /// End the child, with this long between the steps.
    #[serde(rename_all = "camelCase")]
    Stop {
        /// Milliseconds between the steps of the ladder.
        grace_ms: u64,
    },
    /// Ask for the tail of stderr while the child runs.
    Stderr {},
}

/// What the shim says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FromShim {
    /// First message.
    Hello(Hello),
    /// The child runs; [`SPAWNED_FDS`] file descriptors come with this line.
    Spawned {
        /// Its process id in the tool container.
        pid: u32,
    },
    /// The request can't be met; the connection ends.
    Error {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// The shim was told to end: children will be stopped.
    Stopping {},
    /// The child ended. Nothing follows.
    Exit(Exit),
    /// Answer to [`ToShim::Stderr`].
    Stderr {
        /// Last bytes of stderr, invalid UTF-8 replaced.
        tail: String,
    },
}

/// How a child ended: one of `code` and `signal` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Number of the signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Last bytes of stderr, invalid UTF-8 replaced.
    #[serde(default)]
    pub tail: String,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("unknown end"),
        }
    }
}

/// Why the shim refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The command does not exist or can't be executed.
    SpawnFailed,
    /// As many children as allowed are alive.
    TooManyProcesses,
    /// The other side speaks another [`PROTOCOL`].
    ShimVersionMismatch,
    /// The kernel or the container runtime refused to pass the pipes.
    FdPassingRefused,
    /// Not a message of this protocol, or one that may not come now.
    BadMessage,
    /// The shim was told to end.
    Stopping,
}

/// One message as a line, newline included.
pub fn line<M: Serialize>(message: &M) -> Vec<u8> {
    // These types always serialise; an empty line is ignored by both sides.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_on_the_wire() {
        let text = |m: &FromShim| String::from_utf8(line(m)).unwrap();
        assert_eq!(text(&FromShim::Spawned { pid: 7 }), "{\"spawned\":{\"pid\":7}}\n");
        assert_eq!(
            text(&FromShim::Exit(Exit { code: None, signal: Some(9), tail: "x".into() })),
            "{\"exit\":{\"signal\":9,\"tail\":\"x\"}}\n"
        );
        assert_eq!(
            text(&FromShim::Error { reason: Reason::SpawnFailed, message: "m".into() }),
            "{\"error\":{\"reason\":\"SpawnFailed\",\"message\":\"m\"}}\n"
        );
        assert_eq!(line(&ToShim::Stop { grace_ms: 5 }), b"{\"stop\":{\"graceMs\":5}}\n");
        // A later shim may say more of itself.
        let hello = r#"{"hello":{"protocol":1,"version":"9","pid":1,"generation":"g","new":true}}"#;
        assert!(matches!(serde_json::from_str(hello), Ok(FromShim::Hello(h)) if h.generation == "g"));
    }
}
