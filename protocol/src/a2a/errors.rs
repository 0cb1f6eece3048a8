//! Errors of A2A 1.0.1 (section 5.4) and how JSON-RPC writes them (section 9.5).

use std::fmt::Write;

use super::raw::{push_key, push_text};

/// Domain of every `ErrorInfo`.
pub const DOMAIN: &str = "a2a-protocol.org";

/// Which error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The body is no JSON.
    Parse,
    /// JSON, but no JSON-RPC request.
    InvalidRequest,
    /// No such method.
    MethodNotFound,
    /// Parameters of the wrong shape.
    InvalidParams,
    /// A fault of the server.
    Internal,
    /// No such task, or not the caller's.
    TaskNotFound,
    /// The task has ended.
    TaskNotCancelable,
    /// The card says that there are no push notifications.
    PushNotificationNotSupported,
    /// The card says that this is not offered, or the task's state forbids it.
    UnsupportedOperation,
    /// A media type that is not taken.
    ContentTypeNotSupported,
    /// Another version of A2A.
    VersionNotSupported,
    /// More work than the agent takes; come again.
    Busy,
    /// The agent is going away; come again.
    Unavailable,
    /// The body is larger than allowed.
    TooLarge,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Parse,
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::InvalidParams,
        Self::Internal,
        Self::TaskNotFound,
        Self::TaskNotCancelable,
        Self::PushNotificationNotSupported,
        Self::UnsupportedOperation,
        Self::ContentTypeNotSupported,
        Self::VersionNotSupported,
        Self::Busy,
        Self::Unavailable,
        Self::TooLarge,
    ];

    /// Code of the JSON-RPC error. `-32000` is ours: A2A has no code for a server that takes no more.
    pub fn code(self) -> i32 {
        match self {
            Self::Parse => -32700,
            Self::InvalidRequest | Self::TooLarge => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Internal => -32603,
            Self::TaskNotFound => -32001,
            Self::TaskNotCancelable => -32002,
            Self::PushNotificationNotSupported => -32003,
            Self::UnsupportedOperation => -32004,
            Self::ContentTypeNotSupported => -32005,
            Self::VersionNotSupported => -32009,
            Self::Busy | Self::Unavailable => -32000,
        }
    }

    /// `reason` of the `ErrorInfo`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Parse => "PARSE_ERROR",
            Self::InvalidRequest => "INVALID_REQUEST",
            Self::MethodNotFound => "METHOD_NOT_FOUND",
            Self::InvalidParams => "INVALID_PARAMS",
            Self::Internal => "INTERNAL_ERROR",
            Self::TaskNotFound => "TASK_NOT_FOUND",
            Self::TaskNotCancelable => "TASK_NOT_CANCELABLE",
            Self::PushNotificationNotSupported => "PUSH_NOTIFICATION_NOT_SUPPORTED",
            Self::UnsupportedOperation => "UNSUPPORTED_OPERATION",
            Self::ContentTypeNotSupported => "CONTENT_TYPE_NOT_SUPPORTED",
            Self::VersionNotSupported => "VERSION_NOT_SUPPORTED",
            Self::Busy => "RESOURCE_EXHAUSTED",
            Self::Unavailable => "UNAVAILABLE",
            Self::TooLarge => "REQUEST_TOO_LARGE",
        }
    }

    /// Status of the HTTP answer under JSON-RPC: 200 but for what proxies and clients act on by status.
    pub fn jsonrpc_status(self) -> u16 {
        match self {
            Self::Busy => 429,
            Self::Unavailable => 503,
            Self::TooLarge => 413,
            _ => 200,
        }
    }

    /// Label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Parse => "parse_error",
            Self::InvalidRequest => "invalid_request",
            Self::MethodNotFound => "method_not_found",
            Self::InvalidParams => "invalid_params",
            Self::Internal => "internal_error",
            Self::TaskNotFound => "task_not_found",
            Self::TaskNotCancelable => "task_not_cancelable",
            Self::PushNotificationNotSupported => "push_notification_not_supported",
            Self::UnsupportedOperation => "unsupported_operation",
            Self::ContentTypeNotSupported => "content_type_not_supported",
            Self::VersionNotSupported => "version_not_supported",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::TooLarge => "too_large",
        }
    }
}

/// One thing that is wrong with the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Dotted path from the parameters, such as `message.parts[0].raw`.
    pub field: String,
    /// What is wrong.
    pub description: String,
}

/// An error as the caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Which one.
    pub kind: Kind,
    /// A sentence for people.
    pub message: String,
    /// `metadata` of the `ErrorInfo`.
    pub metadata: Vec<(&'static str, String)>,
    /// Details of invalid parameters.
    pub violations: Vec<Violation>,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
}

impl Error {
    /// An error without details.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), metadata: Vec::new(), violations: Vec::new(), retry_after: None }
    }

    /// Adds to the `ErrorInfo`.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((key, value.into()));
        self
    }

    /// Says when to come again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Invalid parameters; the first violation is the message.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        let message = violations
            .first()
            .map_or_else(|| "invalid parameters".to_owned(), |v| format!("{} {}", v.field, v.description));
        Self { violations, ..Self::new(Kind::InvalidParams, message) }
    }

    /// Invalid parameters: one violation.
    pub fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation { field: field.into(), description: description.into() }])
    }

    /// No such task.
    pub fn task_not_found(id: &str) -> Self {
        let id: String = id.chars().take(128).collect();
        Self::new(Kind::TaskNotFound, format!("there is no task {id:?}")).with("taskId", id)
    }

    /// Appends the error object of JSON-RPC: code, message, and as data a list that `ErrorInfo` leads.
    pub fn write(&self, out: &mut String) {
        let _ = write!(out, "{{\"code\":{},\"message\":", self.kind.code());
        push_text(out, &self.message);
        let _ = write!(
            out,
            ",\"data\":[{{\"@type\":\"type.googleapis.com/google.rpc.ErrorInfo\",\"reason\":\"{}\",\"domain\":\"{DOMAIN}\"",
            self.kind.reason()
        );
        if !self.metadata.is_empty() {
            out.push_str(",\"metadata\":{");
            for (key, value) in &self.metadata {
                push_key(out, key);
                push_text(out, value);
            }
            out.push('}');
        }
        out.push('}');
        if !self.violations.is_empty() {
            out.push_str(",{\"@type\":\"type.googleapis.com/google.rpc.BadRequest\",\"fieldViolations\":[");
            for (i, v) in self.violations.iter().enumerate() {
                out.push_str(if i > 0 { ",{" } else { "{" });
                push_key(out, "field");
                push_text(out, &v.field);
                push_key(out, "description");
                push_text(out, &v.description);
                out.push('}');
            }
            out.push_str("]}");
        }
        out.push_str("]}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let table = Kind::ALL
            .into_iter()
            .map(|k| format!("{} {} {} {}\n", k.code(), k.reason(), k.jsonrpc_status(), k.label()))
            .collect::<Vec<_>>()
            .concat();
        insta::assert_snapshot!(table);
    }

    #[test]
    fn details_are_listed() {
        let mut out = String::new();
        Error::invalid(vec![
            Violation { field: "message.role".into(), description: "must be \"ROLE_USER\"".into() },
            Violation { field: "message.parts".into(), description: "is missing".into() },
        ])
        .with("k", "v")
        .write(&mut out);
        insta::assert_json_snapshot!(serde_json::from_str::<serde_json::Value>(&out).unwrap());
    }
}
