//! How a call ends: status, message, and details as `google.rpc.Status` (A2A 1.0, section 10.6).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use outrigger_protocol::a2a::errors::{DOMAIN, Error, Kind};
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::v03;
use prost::Message;

use crate::a2a::binding::render;
use crate::percent;

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Number of the status of a call that took longer than its caller allows.
const DEADLINE_EXCEEDED: i32 = 4;
/// Number of the status of a method that is not there.
const UNIMPLEMENTED: i32 = 12;
/// Number of the status of a stream that goes on elsewhere.
const UNAVAILABLE: i32 = 14;
/// Most bytes of a message in a header, and of the details: some clients take 8 KiB of headers in all.
const MAX_MESSAGE: usize = 1 << 10;
const MAX_DETAILS: usize = 4 << 10;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub(crate) reason: String,
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) metadata: std::collections::HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    field_violations: Vec<FieldViolation>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldViolation {
    #[prost(string, tag = "1")]
    field: String,
    #[prost(string, tag = "2")]
    description: String,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/google.rpc.{name}"), value: message.encode_to_vec() }
}

/// Trailers of a call that went well.
pub(super) fn ok() -> HeaderMap {
    let mut out = HeaderMap::with_capacity(1);
    out.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    out
}

/// Trailers of a call that took longer than its caller allows.
pub(super) fn deadline() -> HeaderMap {
    plain(DEADLINE_EXCEEDED, "the call took longer than grpc-timeout allows")
}

/// Trailers of a stream that can be resumed at another instance.
pub(super) fn leaving() -> HeaderMap {
    plain(UNAVAILABLE, "the agent's instance goes away: subscribe again")
}

/// Trailers with a status and its message.
pub(super) fn plain(code: i32, message: &str) -> HeaderMap {
    let mut out = HeaderMap::new();
    out.insert(GRPC_STATUS, HeaderValue::from(code));
    out.insert(GRPC_MESSAGE, encoded(message));
    out
}

/// Trailers of a call in a dialect that failed: clients of 0.3 look for the error's name in the message.
pub(super) fn failed_in(error: &Error, dialect: Option<Dialect>) -> HeaderMap {
    if dialect != Some(Dialect::V03Proto) {
        return failed(error);
    }
    let message = format!("{}: {}", v03::error_name(error.kind), error.message);
    failed(&Error { message, ..error.clone() })
}

/// Trailers of a call that failed.
pub(super) fn failed(error: &Error) -> HeaderMap {
    let code = match error.kind {
        // The table has what HTTP says of a path; a method that is not there has a status of its own.
        Kind::MethodNotFound => UNIMPLEMENTED,
        kind => kind.grpc_code(),
    };
    let mut out = plain(code, &error.message);
    let info = ErrorInfo {
        reason: error.kind.reason().to_owned(),
        domain: DOMAIN.to_owned(),
        metadata: error.metadata.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
    };
    let mut details = vec![any("ErrorInfo", &info)];
    if !error.violations.is_empty() {
        let violations = error.violations.iter();
        let field_violations =
            violations.map(|v| FieldViolation { field: v.field.clone(), description: v.description.clone() }).collect();
        details.push(any("BadRequest", &BadRequest { field_violations }));
    }
    if let Some(seconds) = error.retry_after {
        details.push(any("RetryInfo", &RetryInfo { retry_delay: Some(Delay { seconds: seconds.into() }) }));
    }
    let mut status = Status { code, message: error.message.clone(), details };
    while status.encoded_len() > MAX_DETAILS && status.details.len() > 1 {
        status.details.pop();
    }
    if status.encoded_len() <= MAX_DETAILS
        && let Ok(value) = HeaderValue::from_str(&STANDARD_NO_PAD.encode(status.encode_to_vec()))
    {
        out.insert(GRPC_DETAILS, value);
    }
    render::error_headers(error, &mut out);
    out
}

/// A message as a header has it: percent-encoded.
fn encoded(message: &str) -> HeaderValue {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        if out.len() >= MAX_MESSAGE {
            break;
        }
        percent::push(&mut out, byte, matches!(byte, b' '..=b'~') && byte != b'%');
    }
    HeaderValue::from_str(&out).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_say_what_is_wrong() {
        let error = Error::invalid_field("message.rôle", "is 100% wrong").with("k", "v").retry_after(3);
        let got = failed(&error);
        assert_eq!((&got["grpc-status"], &got["retry-after"]), (&HeaderValue::from(3), &HeaderValue::from(3)));
        assert_eq!(got["grpc-message"], "message.r%C3%B4le is 100%25 wrong");
        let bytes = STANDARD_NO_PAD.decode(&got["grpc-status-details-bin"]).unwrap();
        let status = Status::decode(&*bytes).unwrap();
        assert_eq!((status.code, status.message.as_str()), (3, "message.rôle is 100% wrong"));
        let types: Vec<_> = status.details.iter().map(|d| d.type_url.rsplit('.').next().unwrap()).collect();
        assert_eq!(types, ["ErrorInfo", "BadRequest", "RetryInfo"]);
        let info = ErrorInfo::decode(&*status.details[0].value).unwrap();
        assert_eq!((info.reason.as_str(), info.metadata["k"].as_str()), ("INVALID_PARAMS", "v"));
    }

    #[test]
    fn clients_of_03_find_the_name_in_the_message() {
        let error = Error::task_not_found("t");
        let of = |dialect| failed_in(&error, dialect)["grpc-message"].to_str().unwrap().to_owned();
        assert_eq!(of(Some(Dialect::V03Proto)), "TaskNotFoundError: there is no task \"t\"");
        assert_eq!((of(Some(Dialect::V10)), of(None)), (of(None), "there is no task \"t\"".into()));
    }

    #[test]
    fn headers_stay_small() {
        let error = Error::new(Kind::Internal, "é".repeat(10_000));
        assert!(failed(&error)["grpc-message"].len() < MAX_MESSAGE + 3);
    }
}
