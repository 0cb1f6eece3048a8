//! Errors of A2A 1.0.1 (section 5.4) and how the bindings write them (sections 9.5, 10.6, 11.6).

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
    /// No such method, no such path.
    MethodNotFound,
    /// The path is there, its verb is another one.
    MethodNotAllowed,
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
    /// The agent's answer is none.
    InvalidAgentResponse,
    /// The card promises an extended card and there is none.
    ExtendedAgentCardNotConfigured,
    /// The caller does not ask for an extension that the card requires.
    ExtensionSupportRequired,
    /// Another version of A2A.
    VersionNotSupported,
    /// Nobody knows who calls.
    Unauthenticated,
    /// The caller is known and may not.
    Forbidden,
    /// The same idempotency key with other parameters.
    Conflict,
    /// More work than the agent takes; come again.
    Busy,
    /// More requests than one caller may send; come again.
    RateLimited,
    /// The agent is going away; come again.
    Unavailable,
    /// The body is larger than allowed.
    TooLarge,
}

/// What the bindings write for an error (A2A 1.0.1, section 5.4).
struct Row {
    /// Code of the JSON-RPC error.
    code: i32,
    /// `reason` of the `ErrorInfo`.
    reason: &'static str,
    /// Status of the HTTP answer under JSON-RPC.
    jsonrpc_status: u16,
    /// Status of the HTTP answer under HTTP+JSON.
    http_status: u16,
    /// gRPC status.
    grpc: Grpc,
    /// Label in metrics.
    label: &'static str,
}

/// A gRPC status: number and name.
type Grpc = (i32, &'static str);

const INVALID_ARGUMENT: Grpc = (3, "INVALID_ARGUMENT");
const NOT_FOUND: Grpc = (5, "NOT_FOUND");
const ALREADY_EXISTS: Grpc = (6, "ALREADY_EXISTS");
const PERMISSION_DENIED: Grpc = (7, "PERMISSION_DENIED");
const RESOURCE_EXHAUSTED: Grpc = (8, "RESOURCE_EXHAUSTED");
const FAILED_PRECONDITION: Grpc = (9, "FAILED_PRECONDITION");
const UNIMPLEMENTED: Grpc = (12, "UNIMPLEMENTED");
const INTERNAL: Grpc = (13, "INTERNAL");
const UNAVAILABLE: Grpc = (14, "UNAVAILABLE");
const UNAUTHENTICATED: Grpc = (16, "UNAUTHENTICATED");

impl Kind {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Parse,
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::MethodNotAllowed,
        Self::InvalidParams,
        Self::Internal,
        Self::TaskNotFound,
        Self::TaskNotCancelable,
        Self::PushNotificationNotSupported,
        Self::UnsupportedOperation,
        Self::ContentTypeNotSupported,
        Self::InvalidAgentResponse,
        Self::ExtendedAgentCardNotConfigured,
        Self::ExtensionSupportRequired,
        Self::VersionNotSupported,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Conflict,
        Self::Busy,
        Self::RateLimited,
        Self::Unavailable,
        Self::TooLarge,
    ];

    /// The table. `-32000` is ours: A2A has no code for what only the HTTP status says there.
    fn row(self) -> Row {
        let (code, reason, jsonrpc_status, http_status, grpc, label) = match self {
            Self::Parse => (-32700, "PARSE_ERROR", 200, 400, INVALID_ARGUMENT, "parse_error"),
            Self::InvalidRequest => (-32600, "INVALID_REQUEST", 200, 400, INVALID_ARGUMENT, "invalid_request"),
            Self::MethodNotFound => (-32601, "METHOD_NOT_FOUND", 200, 404, NOT_FOUND, "method_not_found"),
            Self::MethodNotAllowed => (-32601, "METHOD_NOT_ALLOWED", 200, 405, UNIMPLEMENTED, "method_not_allowed"),
            Self::InvalidParams => (-32602, "INVALID_PARAMS", 200, 400, INVALID_ARGUMENT, "invalid_params"),
            Self::Internal => (-32603, "INTERNAL_ERROR", 200, 500, INTERNAL, "internal_error"),
            Self::TaskNotFound => (-32001, "TASK_NOT_FOUND", 200, 404, NOT_FOUND, "task_not_found"),
            Self::TaskNotCancelable => {
                (-32002, "TASK_NOT_CANCELABLE", 200, 400, FAILED_PRECONDITION, "task_not_cancelable")
            }
            Self::PushNotificationNotSupported => (
                -32003,
                "PUSH_NOTIFICATION_NOT_SUPPORTED",
                200,
                400,
                FAILED_PRECONDITION,
                "push_notification_not_supported",
            ),
            Self::UnsupportedOperation => {
                (-32004, "UNSUPPORTED_OPERATION", 200, 400, FAILED_PRECONDITION, "unsupported_operation")
            }
            Self::ContentTypeNotSupported => {
                (-32005, "CONTENT_TYPE_NOT_SUPPORTED", 200, 400, INVALID_ARGUMENT, "content_type_not_supported")
            }
            Self::InvalidAgentResponse => {
                (-32006, "INVALID_AGENT_RESPONSE", 200, 500, INTERNAL, "invalid_agent_response")
            }
            Self::ExtendedAgentCardNotConfigured => (
                -32007,
                "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                200,
                400,
                FAILED_PRECONDITION,
                "extended_agent_card_not_configured",
            ),
            Self::ExtensionSupportRequired => {
                (-32008, "EXTENSION_SUPPORT_REQUIRED", 200, 400, FAILED_PRECONDITION, "extension_support_required")
            }
            Self::VersionNotSupported => {
                (-32009, "VERSION_NOT_SUPPORTED", 200, 400, FAILED_PRECONDITION, "version_not_supported")
            }
            Self::Unauthenticated => (-32000, "UNAUTHENTICATED", 401, 401, UNAUTHENTICATED, "unauthenticated"),
            Self::Forbidden => (-32000, "PERMISSION_DENIED", 403, 403, PERMISSION_DENIED, "forbidden"),
            Self::Conflict => (-32000, "IDEMPOTENCY_KEY_REUSED", 409, 409, ALREADY_EXISTS, "conflict"),
            Self::Busy => (-32000, "RESOURCE_EXHAUSTED", 429, 429, RESOURCE_EXHAUSTED, "busy"),
            Self::RateLimited => (-32000, "RATE_LIMITED", 429, 429, RESOURCE_EXHAUSTED, "rate_limited"),
            Self::Unavailable => (-32000, "UNAVAILABLE", 503, 503, UNAVAILABLE, "unavailable"),
            Self::TooLarge => (-32600, "REQUEST_TOO_LARGE", 413, 413, RESOURCE_EXHAUSTED, "too_large"),
        };
        Row { code, reason, jsonrpc_status, http_status, grpc, label }
    }

    /// Code of the JSON-RPC error. `-32000` is ours: A2A has no code for a server that takes no more.
    pub fn code(self) -> i32 {
        self.row().code
    }

    /// `reason` of the `ErrorInfo`.
    pub fn reason(self) -> &'static str {
        self.row().reason
    }

    /// Status of the HTTP answer under JSON-RPC: 200 but for what proxies and clients act on by status.
    pub fn jsonrpc_status(self) -> u16 {
        self.row().jsonrpc_status
    }

    /// Status of the HTTP answer under HTTP+JSON.
    pub fn http_status(self) -> u16 {
        self.row().http_status
    }

    /// Number of the gRPC status.
    pub fn grpc_code(self) -> i32 {
        self.row().grpc.0
    }

    /// Name of the gRPC status, as `google.rpc.Code` has it.
    pub fn grpc_name(self) -> &'static str {
        self.row().grpc.1
    }

    /// Label in metrics.
    pub fn label(self) -> &'static str {
        self.row().label
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
    /// Further headers of the answer, names in lower case, such as `www-authenticate`.
    pub headers: Box<[(&'static str, String)]>,
}

impl Error {
    /// An error without details.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            retry_after: None,
            headers: Box::default(),
        }
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

    /// Adds a header to the answer; the name is in lower case.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers = self.headers.into_iter().chain([(name, value.into())]).collect();
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

    /// Appends the error object of JSON-RPC: code, message, and as data a list that `ErrorInfo` leads (section 9.5).
    pub fn write(&self, out: &mut String) {
        self.write_head(self.kind.code(), out);
        self.write_details(out);
        out.push('}');
    }

    /// The same for 0.3, under one of its codes: the list is the member `details` of an object.
    pub(crate) fn write_v03(&self, code: i32, out: &mut String) {
        self.write_head(code, out);
        out.push_str("{\"details\":");
        self.write_details(out);
        out.push_str("}}");
    }

    /// All before the value of `data`.
    fn write_head(&self, code: i32, out: &mut String) {
        let _ = write!(out, "{{\"code\":{code},\"message\":");
        push_text(out, &self.message);
        push_key(out, "data");
    }

    /// Appends the body of an HTTP+JSON answer: `google.rpc.Status` under `error` (section 11.6).
    pub fn write_http(&self, out: &mut String) {
        let (status, name) = (self.kind.http_status(), self.kind.grpc_name());
        let _ = write!(out, "{{\"error\":{{\"code\":{status},\"status\":\"{name}\",\"message\":");
        push_text(out, &self.message);
        push_key(out, "details");
        self.write_details(out);
        out.push_str("}}");
    }

    /// Appends the details as a list of `ProtoJSON` `Any`: `ErrorInfo`, and `BadRequest` for invalid parameters.
    pub fn write_details(&self, out: &mut String) {
        let _ = write!(
            out,
            "[{{\"@type\":\"type.googleapis.com/google.rpc.ErrorInfo\",\"reason\":\"{}\",\"domain\":\"{DOMAIN}\"",
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
        out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let table = Kind::ALL
            .into_iter()
            .map(|k| {
                let (jsonrpc, http) = (k.jsonrpc_status(), k.http_status());
                let grpc = format!("{} {}", k.grpc_code(), k.grpc_name());
                format!("{} {} | {jsonrpc} {http} | {grpc} | {}\n", k.code(), k.reason(), k.label())
            })
            .collect::<Vec<_>>()
            .concat();
        insta::assert_snapshot!(table);
    }

    #[test]
    fn details_are_listed() {
        let error = Error::invalid(vec![
            Violation { field: "message.role".into(), description: "must be \"ROLE_USER\"".into() },
            Violation { field: "message.parts".into(), description: "is missing".into() },
        ])
        .with("k", "v");
        let (mut jsonrpc, mut http) = (String::new(), String::new());
        error.write(&mut jsonrpc);
        error.write_http(&mut http);
        let parsed: Vec<serde_json::Value> =
            [jsonrpc, http].iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        insta::assert_json_snapshot!(parsed);
    }
}
