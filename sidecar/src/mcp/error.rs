//! What can go wrong between a request and its answer, in one enum: the variant is the reason in status, log, metric
//! label and error data.

use outrigger_protocol::jsonrpc::{INTERNAL_ERROR, error_response};
use outrigger_protocol::mcp::shim::{Exit, Reason};
use serde::Serialize;

use super::wire_http::Error as HttpError;

/// How much of a child's stderr a client gets to see.
const CLIENT_TAIL: usize = 4096;

/// A failure that is not the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The shim's socket is not there or refuses.
    #[error("the tool container can't be reached: {0}")]
    ShimUnreachable(String),
    /// A server outside of this pod, or one that speaks HTTP, can't be reached.
    #[error("the server can't be reached: {0}")]
    Unreachable(String),
    /// A server over HTTP did not take or answer a message.
    #[error("{0}")]
    Http(#[from] HttpError),
    /// The shim went away, with all children.
    #[error("the tool container was lost")]
    ShimLost,
    /// Shim and sidecar speak different protocols.
    #[error("shim and sidecar are of versions that don't fit: {0}")]
    ShimVersionMismatch(String),
    /// The pipes of a child did not arrive.
    #[error("pipes can't be passed between containers, which this container runtime seems to forbid: {0}")]
    FdPassingRefused(String),
    /// The command can't be executed.
    #[error("{0}")]
    SpawnFailed(String),
    /// As many children as allowed are alive.
    #[error("{0}")]
    TooManyProcesses(String),
    /// As many sessions as allowed are open.
    #[error("all {0} sessions are in use: end one with DELETE, or raise spec.process.maxProcesses of the MCPServer")]
    TooManySessions(usize),
    /// A child ended without being asked to.
    #[error("the server's process ended: {0}")]
    ChildExited(Exit),
    /// A child closed its stdout and did not end.
    #[error("the server closed its stdout")]
    StdoutClosed,
    /// A child did not answer `initialize` in time.
    #[error("the server did not answer initialize within {} s", .0 / 1000)]
    InitializeTimeout(u64),
    /// A child did not even read `initialize`.
    #[error("the server has not read its standard input within {} s: a script must not start it in the background", .0 / 1000)]
    StdinUnread(u64),
    /// A child answered `initialize` with an error or nonsense.
    #[error("the server refused initialize: {0}")]
    InitializeFailed(String),
    /// Children end again and again.
    #[error("the server's process ends again and again: {0}")]
    CrashLoop(String),
    /// Not ready in time.
    #[error("the server is not ready: {0}")]
    NotReady(String),
    /// No response in time.
    #[error("the server did not respond within {} s", .0 / 1000)]
    RequestTimeout(u64),
    /// Cancelled, and the child did not answer any more.
    #[error("the request was cancelled")]
    Cancelled,
    /// The session ended under the request.
    #[error("the session was ended")]
    SessionEnded,
    /// The server ended a subscription.
    #[error("the server ended the subscription")]
    SubscriptionEnded,
    /// A question got no answer.
    #[error("{0}")]
    Unanswered(String),
    /// A resource more than a client may watch.
    #[error("this session watches {0} resources already")]
    TooManyWatched(usize),
    /// A line longer than the limit.
    #[error("the server's response is longer than {0} bytes (spec.process.maxLineBytes of the MCPServer)")]
    LineTooLong(u64),
    /// A line that would have been the response is no JSON.
    #[error("the server's response is not valid JSON")]
    MalformedLine,
    /// Too much waits for the child already.
    #[error("the server takes no more input for now")]
    Overloaded,
    /// The pod is on its way out.
    #[error("the pod is being stopped")]
    Draining,
}

impl Error {
    /// One word in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ShimUnreachable(_) => "ShimUnreachable",
            Self::Unreachable(_) => "Unreachable",
            Self::Http(error) => error.reason(),
            Self::ShimLost => "ShimLost",
            Self::ShimVersionMismatch(_) => "ShimVersionMismatch",
            Self::FdPassingRefused(_) => "FdPassingRefused",
            Self::SpawnFailed(_) => "SpawnFailed",
            Self::TooManyProcesses(_) => "TooManyProcesses",
            Self::TooManySessions(_) => "TooManySessions",
            Self::ChildExited(_) => "ChildExited",
            Self::StdoutClosed => "StdoutClosed",
            Self::InitializeTimeout(_) => "InitializeTimeout",
            Self::StdinUnread(_) => "StdinUnread",
            Self::InitializeFailed(_) => "InitializeFailed",
            Self::CrashLoop(_) => "CrashLoop",
            Self::NotReady(_) => "NotReady",
            Self::RequestTimeout(_) => "RequestTimeout",
            Self::Cancelled => "Cancelled",
            Self::SessionEnded => "SessionEnded",
            Self::SubscriptionEnded => "SubscriptionEnded",
            Self::Unanswered(_) => "Unanswered",
            Self::TooManyWatched(_) => "TooManyWatched",
            Self::LineTooLong(_) => "LineTooLong",
            Self::MalformedLine => "MalformedLine",
            Self::Overloaded => "Overloaded",
            Self::Draining => "Draining",
        }
    }

    /// The `outcome` label of a request that ended this way.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::RequestTimeout(_)
            | Self::InitializeTimeout(_)
            | Self::StdinUnread(_)
            | Self::Http(HttpError::Timeout(_)) => "timeout",
            Self::ChildExited(_) | Self::StdoutClosed | Self::ShimLost => "child_exited",
            Self::Cancelled | Self::SessionEnded => "cancelled",
            Self::LineTooLong(_)
            | Self::MalformedLine
            | Self::Http(HttpError::NotMcp(_) | HttpError::TooLarge(_) | HttpError::Status(..)) => "bad_response",
            _ => "refused",
        }
    }

    /// Whether a child hung in its handshake.
    pub fn hung(&self) -> bool {
        matches!(self, Self::InitializeTimeout(_) | Self::StdinUnread(_))
    }

    /// Whether the same request can succeed a little later: answered with 503 and `Retry-After`.
    pub fn busy(&self) -> bool {
        matches!(self, Self::TooManySessions(_) | Self::TooManyProcesses(_) | Self::Overloaded | Self::Draining)
    }

    /// The JSON-RPC error that the client gets for its request.
    pub fn response(&self, server: &str, id: Option<&str>) -> Vec<u8> {
        let exit = if let Self::ChildExited(exit) = self { Some(exit) } else { None };
        let data = Data {
            reason: snake(self.reason()),
            server,
            exit_code: exit.and_then(|e| e.code),
            signal: exit.and_then(|e| e.signal),
            stderr_tail: exit.map(|e| tail(&e.tail, CLIENT_TAIL)),
        };
        error_response(id, INTERNAL_ERROR, &format!("MCP server {server}: {self}"), Some(&data))
    }
}

impl From<(Reason, String)> for Error {
    fn from((reason, message): (Reason, String)) -> Self {
        match reason {
            Reason::SpawnFailed => Self::SpawnFailed(message),
            Reason::TooManyProcesses => Self::TooManyProcesses(message),
            Reason::ShimVersionMismatch => Self::ShimVersionMismatch(message),
            Reason::FdPassingRefused => Self::FdPassingRefused(message),
            Reason::BadMessage | Reason::Stopping => Self::ShimUnreachable(message),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    reason: String,
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_tail: Option<&'a str>,
}

/// The last bytes of a text, cut at a character.
pub fn tail(text: &str, bytes: usize) -> &str {
    let mut from = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// `ChildExited` as `child_exited`.
fn snake(reason: &str) -> String {
    let mut out = String::with_capacity(reason.len() + 4);
    for c in reason.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_told_in_full() {
        let error = Error::ChildExited(Exit { code: Some(3), signal: None, tail: "no key".into() });
        assert_eq!(
            String::from_utf8(error.response("time", Some("\"a\""))).unwrap(),
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"MCP server time: the server's process ended: exit code 3","data":{"reason":"child_exited","server":"time","exitCode":3,"stderrTail":"no key"}}}"#
        );
        assert_eq!(tail("aé", 1), "");
        assert_eq!(tail("aé", 2), "é");
    }

    /// Every reason in a `reason()` of a file.
    fn reasons(source: &str) -> Vec<String> {
        let arms = source.lines().skip_while(|l| !l.contains("pub fn reason(")).take_while(|l| *l != "    }");
        arms.filter_map(|arm| arm.trim().strip_suffix("\",")?.split_once("=> \"")).map(|(_, r)| snake(r)).collect()
    }

    #[test]
    fn every_reason_is_documented() {
        let document = include_str!("../../../docs/mcp.md");
        let table = document.lines().filter(|l| l.starts_with("| `"));
        let told: Vec<&str> = table.filter_map(|l| l.split(" | ").next()).flat_map(|cell| cell.split('`')).collect();
        let ours = [reasons(include_str!("error.rs")), reasons(include_str!("wire_http/error.rs"))].concat();
        assert!(ours.len() > 30, "{ours:?}");
        for reason in ours {
            assert!(told.contains(&&*reason), "{reason} is not in docs/mcp.md");
        }
        let error = Error::ChildExited(Exit { code: Some(3), signal: None, tail: "no key".into() });
        let shown = String::from_utf8(error.response("time", Some("\"a\""))).unwrap();
        assert!(document.contains(&shown), "the error that docs/mcp.md shows is another one");
    }
}
