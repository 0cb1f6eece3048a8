//! Pieces of answers that several bindings write alike.

use axum::body::Body;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use outrigger_protocol::a2a::{extensions, v03, version};

use super::About;
use crate::a2a::call::Answer;

const A2A_VERSION: HeaderName = HeaderName::from_static(version::HEADER);
const A2A_EXTENSIONS: HeaderName = HeaderName::from_static(extensions::HEADER);
const X_A2A_EXTENSIONS: HeaderName = HeaderName::from_static(extensions::HEADER_V03);
const A2A_TASK_ID: HeaderName = HeaderName::from_static("a2a-task-id");

/// A JSON-RPC response with an error; without an id it is `null`.
pub(super) fn jsonrpc_error(id: Option<&str>, dialect: Dialect, error: &Error) -> String {
    let mut out = String::with_capacity(256);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id.unwrap_or("null"));
    out.push_str(",\"error\":");
    match dialect {
        Dialect::V10 => error.write(&mut out),
        Dialect::V03 | Dialect::V03Proto => v03::error_out(error, &mut out),
    }
    out.push('}');
    out
}

/// The body of an HTTP answer with an error.
pub(super) fn http_error(dialect: Dialect, error: &Error) -> String {
    let mut out = String::with_capacity(256);
    match dialect {
        Dialect::V10 => error.write_http(&mut out),
        Dialect::V03 | Dialect::V03Proto => v03::http_error_out(error, &mut out),
    }
    out
}

/// Appends a result in the dialect of its reader.
pub(super) fn result(operation: Operation, dialect: Dialect, answer: &Answer, out: &mut String) -> Result<(), Error> {
    if dialect == Dialect::V10 {
        answer.write(out);
        return Ok(());
    }
    let mut text = String::with_capacity(answer.capacity());
    answer.write(&mut text);
    out.push_str(&v03::result_out(operation, dialect, &text)?);
    Ok(())
}

/// A response with a text and its type.
pub(super) fn response(status: u16, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Adds the headers that an error brings.
pub(super) fn error_headers(error: &Error, headers: &mut HeaderMap) {
    if let Some(seconds) = error.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    for (name, value) in &error.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.append(*name, value);
        }
    }
}

/// Says which version is spoken.
pub(super) fn speaks(dialect: Dialect, headers: &mut HeaderMap) {
    headers.insert(A2A_VERSION, HeaderValue::from_static(dialect.version()));
}

/// Says which version is spoken, which extensions are in use, and which task the request led to.
pub(super) fn about(about: &About, dialect: Dialect, headers: &mut HeaderMap) {
    speaks(dialect, headers);
    if let Some(id) = about.task.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(A2A_TASK_ID, id);
    }
    if !about.extensions.is_empty()
        && let Ok(list) = HeaderValue::from_str(&about.extensions.join(", "))
    {
        if dialect != Dialect::V10 {
            headers.insert(X_A2A_EXTENSIONS, list.clone());
        }
        headers.insert(A2A_EXTENSIONS, list);
    }
}

/// Notes a request that is refused.
pub(super) fn log(error: &Error, operation: Option<Operation>) {
    let method = operation.map_or("other", Operation::name);
    tracing::debug!(target: "protocol", method, outcome = error.kind.label(), message = error.message, "A2A request refused");
}
