//! `/mcp/{server}`: streamable HTTP in front of one server, for clients of both eras.

pub mod batch;
pub mod body;
pub mod legacy;
pub mod modern;
pub mod open;
pub mod refuse;
pub mod reply;
pub mod trace;

use std::sync::Arc;

use axum::extract::{Path, Request as HttpRequest, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Extensions, HeaderMap, Method, StatusCode};
use outrigger_protocol::config::Filter;
use outrigger_protocol::jsonrpc::scan::Malformed;
use outrigger_protocol::jsonrpc::{Envelope, PARSE_ERROR};
use outrigger_protocol::mcp::era::{Class, Headers, classify};
use outrigger_protocol::mcp::header::Header;
use outrigger_protocol::mcp::{
    METHOD_HEADER, NAME_HEADER, REVISION_HEADER, SESSION_HEADER, is_handshake_revision, is_modern_revision,
};
use serde::Deserialize;

use super::Servers;
use super::pool::Server;
use crate::tools::Caller as Proven;
use body::MAX_DEPTH;
use refuse::{Refusal, faulty, local_only, refuse};
use reply::Accept;

/// Path parameters; the part in front of this router may have others.
#[derive(Deserialize)]
pub struct Params {
    server: String,
}

/// Who calls, as far as it is known: one agent's container, or a sidecar that has proven itself.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Arc<str>,
    filter: Option<Arc<Filter>>,
}

impl Caller {
    fn of(extensions: &Extensions) -> Self {
        match extensions.get::<Proven>() {
            Some(proven) => Self { name: Arc::clone(&proven.subject), filter: Some(Arc::clone(&proven.filter)) },
            None => Self { name: Arc::from("pod"), filter: None },
        }
    }

    /// The name that what is sealed for it is sealed with.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What it may use beside what the server's policy says.
    pub fn filter(&self) -> Option<Arc<Filter>> {
        self.filter.clone()
    }
}

/// A request that has been read and is acceptable as HTTP.
pub struct Inbound<'a> {
    /// The server that it is for.
    pub server: &'a Arc<Server>,
    /// Who sent it.
    pub caller: &'a Caller,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What the client can read.
    pub accept: Accept,
    /// Its body.
    pub body: &'a Bytes,
}

/// Answers every request to the endpoint.
pub async fn handle(State(servers): State<Arc<Servers>>, Path(params): Path<Params>, request: HttpRequest) -> Response {
    match route(&servers, &params.server, request).await {
        Ok(response) => response,
        Err(refusal) => {
            servers.metrics.http_refusals.with_label_values(&[refusal.label]).inc();
            tracing::debug!(target: "protocol", server = params.server, reason = refusal.label, "request refused");
            refusal.response()
        }
    }
}

async fn route(servers: &Servers, name: &str, request: HttpRequest) -> Result<Response, Refusal> {
    local_only(request.headers())?;
    let Some(server) = servers.get(name) else {
        let known: Vec<&str> = servers.names().collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        let message = format!("this agent has no MCP server {name:?}; it has: {known}");
        return Err(refuse("unknown_server", StatusCode::NOT_FOUND, None, message));
    };
    let caller = Caller::of(request.extensions());
    let headers = request.headers();
    match *request.method() {
        Method::POST => post(server, &caller, request).await,
        // There are no streams and sessions without a handshake.
        Method::GET | Method::DELETE if modern_headers(headers) => {
            Err(refuse("method", StatusCode::METHOD_NOT_ALLOWED, None, "this revision uses POST alone"))
        }
        Method::GET => legacy::get(server, &caller, headers),
        Method::DELETE => legacy::delete(server, &caller, headers),
        _ => Err(refuse("method", StatusCode::METHOD_NOT_ALLOWED, None, "use POST, GET or DELETE")),
    }
}

/// Whether a request names a stateless revision.
pub fn modern_headers(headers: &HeaderMap) -> bool {
    headers.get(REVISION_HEADER).and_then(|r| r.to_str().ok()).is_some_and(is_modern_revision)
}

async fn post(server: &Arc<Server>, caller: &Caller, request: HttpRequest) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let content = headers.get(CONTENT_TYPE).and_then(|c| c.to_str().ok()).unwrap_or_default();
    if !content.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let message = "the body must have the Content-Type application/json";
        return Err(refuse("content_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    let limit = usize::try_from(server.shared.conf.process.max_line_bytes).unwrap_or(usize::MAX);
    let body = body::read(body, limit).await?;
    let text = std::str::from_utf8(&body)
        .map_err(|_| refuse("not_json", StatusCode::BAD_REQUEST, None, "the body is not UTF-8"))?;
    let accept = Accept::of(headers);
    let inbound = Inbound { server, caller, headers, accept, body: &body };
    let envelope = match Envelope::parse(text, MAX_DEPTH) {
        Ok(envelope) => envelope,
        Err(Malformed::Batch) if batch::allowed(&inbound) => return batch::post(&inbound, text).await,
        Err(why) => {
            let label = if why.code() == PARSE_ERROR { "not_json" } else { "not_a_message" };
            return Err(refuse(label, StatusCode::BAD_REQUEST, None, format!("the body {why}")));
        }
    };
    let id = envelope.id.map(|i| i.raw);
    if !accept.json && !accept.stream {
        let message = "accept application/json, text/event-stream, or both";
        return Err(refuse("accept", StatusCode::NOT_ACCEPTABLE, id, message));
    }
    let traced = trace::traced(headers, &envelope);
    let envelope = match &traced {
        Some(text) => Envelope::parse(text, usize::MAX).unwrap_or(envelope),
        None => envelope,
    };
    match era(headers, &envelope).map_err(|fault| faulty(&fault, id))? {
        Class::Legacy => legacy::post(&inbound, &envelope).await,
        Class::Modern(call) => modern::post(&inbound, &envelope, &call).await,
    }
}

/// The era of a message. One that names its session and a revision of sessions needs no look into its params.
fn era<'a>(headers: &HeaderMap, envelope: &Envelope<'a>) -> Result<Class<'a>, outrigger_protocol::mcp::era::Fault> {
    let session = headers.contains_key(SESSION_HEADER);
    let value = |name: &str| Header::of(headers.get_all(name).iter().map(http::HeaderValue::as_bytes));
    let revision = value(REVISION_HEADER);
    if session && matches!(revision, Header::Value(v) if is_handshake_revision(v)) {
        return Ok(Class::Legacy);
    }
    classify(&Headers { revision, method: value(METHOD_HEADER), name: value(NAME_HEADER), session }, envelope)
}
