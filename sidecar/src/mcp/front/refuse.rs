//! Requests that reach no server.

use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, StatusCode};
use outrigger_protocol::jsonrpc::{INVALID_REQUEST, PARSE_ERROR};
use outrigger_protocol::mcp::era::Fault;

use super::reply;

/// A request that reaches no server, with the label that counts it.
pub struct Refusal {
    /// Metric label.
    pub label: &'static str,
    status: StatusCode,
    /// The request's raw id, if it could be told.
    id: Option<Box<str>>,
    message: String,
    /// The whole error, when it is more than a message.
    body: Option<Vec<u8>>,
}

/// A refusal with a message for people.
pub fn refuse(label: &'static str, status: StatusCode, id: Option<&str>, message: impl Into<String>) -> Refusal {
    Refusal { label, status, id: id.map(Into::into), message: message.into(), body: None }
}

/// A refusal for a fault in what is said of the revision.
pub fn faulty(fault: &Fault, id: Option<&str>) -> Refusal {
    let status = StatusCode::from_u16(fault.status()).unwrap_or(StatusCode::BAD_REQUEST);
    Refusal { body: Some(fault.response(id)), ..refuse(fault.label(), status, id, String::new()) }
}

impl Refusal {
    /// As the client gets it.
    pub fn response(self) -> Response {
        if let Some(body) = self.body {
            return reply::whole(self.status, body);
        }
        let code = if self.label == "not_json" { PARSE_ERROR } else { INVALID_REQUEST };
        reply::error(self.status, self.id.as_deref(), &self.message, code)
    }
}

/// A web page must not reach the tools through a browser that can reach this port (DNS rebinding).
pub fn local_only(headers: &HeaderMap) -> Result<(), Refusal> {
    let local = |authority: &str| {
        let host = authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        let host = host.map_or(authority, |(host, _)| host);
        ["localhost", "127.0.0.1", "[::1]"].iter().any(|l| host.eq_ignore_ascii_case(l))
    };
    if let Some(origin) = headers.get(ORIGIN) {
        let authority = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, authority)| authority);
        if !authority.is_some_and(local) {
            return Err(refuse("origin", StatusCode::FORBIDDEN, None, "this Origin may not use this endpoint"));
        }
    }
    if let Some(host) = headers.get(HOST)
        && !host.to_str().is_ok_and(local)
    {
        return Err(refuse("host", StatusCode::FORBIDDEN, None, "this endpoint is called by a loopback address"));
    }
    Ok(())
}
