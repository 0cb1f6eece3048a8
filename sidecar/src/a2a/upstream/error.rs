//! Why a call to an agent gave no result.

use std::time::Duration;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::raw::{Members, elements, text_of};
use outrigger_protocol::a2a::response::Unreadable;

/// Longest text of an agent's error that is kept, in characters.
const MAX_TEXT: usize = 2_000;

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent: it may be tried again.
    #[error("the agent cannot be reached: {0}")]
    NotSent(String),
    /// The connection ended after the request was sent and before the answer was whole.
    #[error("the connection to the agent broke off: {0}")]
    Broken(String),
    /// No answer, or nothing more of it, in time; milliseconds.
    #[error("the agent did not answer within {0} ms")]
    Timeout(u64),
    /// 429 or 503: not taken, come again.
    #[error("the agent is busy (HTTP status {status})")]
    Busy {
        /// HTTP status.
        status: u16,
        /// How long to wait.
        after: Duration,
    },
    /// An error of A2A.
    #[error("{0}")]
    Agent(AgentError),
    /// An HTTP status that is no success, without an error of A2A.
    #[error("the agent answered with HTTP status {0}")]
    Status(u16),
    /// An answer that is none.
    #[error("the agent's answer is no A2A: {0}")]
    Unreadable(String),
    /// More bytes than allowed.
    #[error("the agent's answer is larger than {0} bytes")]
    TooLarge(u64),
    /// The agent does not offer it, by its card or its version; nothing was sent.
    #[error("the agent does not offer {0}")]
    NotOffered(&'static str),
}

/// An error of A2A as an agent gave it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    /// Code of JSON-RPC; in the other bindings that of the same error.
    pub code: i32,
    /// Which error, if it is a known one.
    pub kind: Option<Kind>,
    /// Its text.
    pub message: String,
    /// `reason` of its `ErrorInfo`.
    pub reason: Option<String>,
}

impl From<Unreadable> for CallError {
    fn from(e: Unreadable) -> Self {
        Self::Unreadable(e.to_string())
    }
}

impl From<Error> for CallError {
    /// A fault of the translation between versions.
    fn from(e: Error) -> Self {
        Self::Unreadable(e.message)
    }
}

impl CallError {
    /// Whether it is an error of A2A, of this kind.
    pub fn is(&self, kind: Kind) -> bool {
        matches!(self, Self::Agent(error) if error.kind == Some(kind))
    }
}

impl AgentError {
    /// From what was found of it.
    pub fn new(code: Option<i32>, reason: Option<String>, message: &str) -> Self {
        let by_reason = reason.as_deref().and_then(|r| Kind::ALL.into_iter().find(|k| k.reason() == r));
        let by_code = code.and_then(|c| Kind::ALL.into_iter().find(|k| k.code() == c));
        let kind = by_reason.or(by_code);
        Self {
            code: code.filter(|c| *c < 0).or(kind.map(Kind::code)).unwrap_or(Kind::Internal.code()),
            kind,
            message: message.chars().take(MAX_TEXT).collect(),
            reason,
        }
    }

    /// From the error object of JSON-RPC, or the `error` of an HTTP+JSON answer: `code`, `message`, and details in
    /// `data` or `details`. `None` if it is neither.
    pub fn read(json: &str) -> Option<Self> {
        let members = Members::split(json).ok()?;
        let code = members.set("code").and_then(|c| c.get().parse().ok());
        let message = members.set("message").and_then(text_of);
        if code.is_none() && message.is_none() {
            return None;
        }
        let details = members.set("data").or_else(|| members.set("details"));
        let details = details.and_then(|d| elements(d.get()).ok()).unwrap_or_default();
        let reason = details.iter().find_map(|detail| {
            Members::split(detail.get()).ok()?.set("reason").and_then(text_of).map(std::borrow::Cow::into_owned)
        });
        Some(Self::new(code, reason, message.as_deref().unwrap_or("the agent gave no reason")))
    }

    /// From the body of an HTTP+JSON answer that is no success (A2A 1.0, section 11.6): the error of `google.rpc`, that
    /// of JSON-RPC as agents of 0.3 give it, or a problem of RFC 9457. `None` if it is none of them.
    pub fn of_body(body: &str) -> Option<Self> {
        let members = Members::split(body).ok()?;
        if let Some(error) = members.set("error") {
            return Self::read(error.get());
        }
        if let Some(error) = Self::read(body) {
            return Some(error);
        }
        let kind = members.set("type").and_then(text_of)?;
        // The last part of a type such as `https://a2a-protocol.org/errors/task-not-found`.
        let reason = kind.rsplit('/').next().unwrap_or_default().to_ascii_uppercase().replace('-', "_");
        let text = members.set("detail").or_else(|| members.set("title")).and_then(text_of)?;
        Some(Self::new(None, Some(reason), &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_form() {
        let of =
            |body: &str| AgentError::of_body(body).map_or((0, None, String::new()), |e| (e.code, e.kind, e.message));
        for body in [
            r#"{"error":{"code":404,"status":"NOT_FOUND","message":"gone","details":[{"@type":"x"},{"reason":"TASK_NOT_FOUND"}]}}"#,
            r#"{"error":{"code":-32001,"message":"gone","data":{"taskId":"t"}}}"#,
            r#"{"code":-32001,"message":"gone"}"#,
            r#"{"type":"https://a2a-protocol.org/errors/task-not-found","title":"gone","status":404}"#,
        ] {
            assert_eq!(of(body), (-32001, Some(Kind::TaskNotFound), "gone".into()), "{body}");
        }
        assert_eq!(of(r#"{"code":-31999,"message":"odd"}"#), (-31999, None, "odd".into()));
        for none in [r#"{"detail":"Not Found"}"#, "<html>", "", "[]", r#"{"error":"no"}"#] {
            assert_eq!(AgentError::of_body(none), None, "{none}");
        }
    }
}
