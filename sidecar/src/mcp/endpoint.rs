//! `/mcp/{server}`: streamable HTTP of the handshake revisions (2025-11-25, transports), in front of one server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use outrigger_protocol::jsonrpc::{Envelope, INVALID_REQUEST, Kind, PARSE_ERROR};
use outrigger_protocol::mcp::{HANDSHAKE_REVISIONS, REVISION_HEADER, SESSION_HEADER, is_handshake_revision};
use serde::Deserialize;

use super::Servers;
use super::child::Request;
use super::error::Error;
use super::outlet::{Answer, outlet};
use super::reply::{self, Accept};
use super::server::{Server, Session};

/// Deepest nesting of a client's message. Servers' own parsers give up between 128 and about 1,000 levels, some
/// without an answer.
const MAX_DEPTH: usize = 512;
/// A body that is too large is read on and thrown away up to this size, so that the client reads the answer.
const MAX_DISCARDED: usize = 64 << 20;
/// From the first byte of a body to its last.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Path parameters; the part in front of this router may have others.
#[derive(Deserialize)]
pub struct Params {
    server: String,
}

/// A request that reaches no server, with the label that counts it.
struct Refusal {
    label: &'static str,
    status: StatusCode,
    /// The request's raw id, if it could be told.
    id: Option<Box<str>>,
    message: String,
}

fn refuse(label: &'static str, status: StatusCode, id: Option<&str>, message: impl Into<String>) -> Refusal {
    Refusal { label, status, id: id.map(Into::into), message: message.into() }
}

impl Refusal {
    fn response(&self) -> Response {
        let code = if self.label == "not_json" { PARSE_ERROR } else { INVALID_REQUEST };
        reply::error(self.status, self.id.as_deref(), &self.message, code)
    }
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
    match *request.method() {
        Method::POST => post(server, request).await,
        Method::GET => get(server, request.headers()),
        Method::DELETE => {
            let session = session(server, request.headers(), None)?;
            server.end_session(&session.id, "deleted");
            Ok(reply::empty(StatusCode::NO_CONTENT))
        }
        _ => Err(refuse("method", StatusCode::METHOD_NOT_ALLOWED, None, "use POST, GET or DELETE")),
    }
}

/// A web page must not reach the tools through a browser that can reach this port (DNS rebinding).
fn local_only(headers: &HeaderMap) -> Result<(), Refusal> {
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

/// The session that a request names.
fn session(server: &Server, headers: &HeaderMap, id: Option<&str>) -> Result<Arc<Session>, Refusal> {
    revision(headers, id)?;
    let Some(name) = headers.get(SESSION_HEADER) else {
        let message = "Mcp-Session-Id is missing: send initialize first, then its answer's Mcp-Session-Id";
        return Err(refuse("no_session", StatusCode::BAD_REQUEST, id, message));
    };
    name.to_str().ok().and_then(|n| server.session(n)).ok_or_else(|| {
        refuse(
            "unknown_session",
            StatusCode::NOT_FOUND,
            id,
            "this session is not known or has ended: send initialize again",
        )
    })
}

/// Clients that know revisions without a handshake fall back to `initialize` on this answer.
fn revision(headers: &HeaderMap, id: Option<&str>) -> Result<(), Refusal> {
    let Some(revision) = headers.get(REVISION_HEADER) else { return Ok(()) };
    if revision.to_str().is_ok_and(is_handshake_revision) {
        return Ok(());
    }
    let message = format!("unsupported MCP-Protocol-Version; supported: {}", HANDSHAKE_REVISIONS.join(", "));
    Err(refuse("revision", StatusCode::BAD_REQUEST, id, message))
}

fn get(server: &Server, headers: &HeaderMap) -> Result<Response, Refusal> {
    let session = session(server, headers, None)?;
    if !Accept::of(headers).stream {
        return Err(refuse("accept", StatusCode::NOT_ACCEPTABLE, None, "the stream is text/event-stream: accept it"));
    }
    session.touch();
    let (tx, rx) = outlet();
    match session.child.listen(tx) {
        Ok(()) => Ok(reply::stream(rx, None, None, server.shared.timing.keep_alive)),
        Err(error) => Err(ended(None, &error)),
    }
}

fn ended(id: Option<&str>, error: &Error) -> Refusal {
    let message = format!("this session has ended ({error}): send initialize again");
    refuse("unknown_session", StatusCode::NOT_FOUND, id, message)
}

async fn post(server: &Arc<Server>, request: HttpRequest) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let content = headers.get(CONTENT_TYPE).and_then(|c| c.to_str().ok()).unwrap_or_default();
    if !content.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let message = "the body must have the Content-Type application/json";
        return Err(refuse("content_type", StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    let limit = usize::try_from(server.shared.conf.process.max_line_bytes).unwrap_or(usize::MAX);
    let body = match tokio::time::timeout(BODY_TIMEOUT, read(body, limit)).await {
        Ok(body) => body?,
        Err(_) => return Err(refuse("slow_body", StatusCode::REQUEST_TIMEOUT, None, "the body took too long")),
    };
    let text = std::str::from_utf8(&body)
        .map_err(|_| refuse("not_json", StatusCode::BAD_REQUEST, None, "the body is not UTF-8"))?;
    let envelope = Envelope::parse(text, MAX_DEPTH).map_err(|why| {
        let label = if why.code() == PARSE_ERROR { "not_json" } else { "not_a_message" };
        refuse(label, StatusCode::BAD_REQUEST, None, format!("the body {why}"))
    })?;
    let id = envelope.id.map(|i| i.raw);
    let accept = Accept::of(headers);
    if !accept.json && !accept.stream {
        let message = "accept application/json, text/event-stream, or both";
        return Err(refuse("accept", StatusCode::NOT_ACCEPTABLE, id, message));
    }
    if envelope.kind == Kind::Request && envelope.method == "initialize" {
        return initialize(server, headers, &envelope, body.clone(), accept).await;
    }
    let session = session(server, headers, id)?;
    session.touch();
    let sent = match envelope.kind {
        Kind::Request => return call(server, &session, &envelope, accept).await,
        Kind::Notification => session.child.notify(&envelope),
        Kind::Response => session.child.answer(&envelope).map(|known| {
            if !known {
                server.shared.dropped("unknown_answer");
            }
        }),
    };
    match sent {
        Ok(()) => Ok(reply::empty(StatusCode::ACCEPTED)),
        Err(error @ Error::Overloaded) => Ok(reply::failure(&error, server.name(), id)),
        Err(error) => Err(ended(id, &error)),
    }
}

async fn call(
    server: &Server,
    session: &Session,
    envelope: &Envelope<'_>,
    accept: Accept,
) -> Result<Response, Refusal> {
    // New work only: answers and cancellations are what the work in flight waits for.
    if let Err(error) = server.opened().await {
        return Ok(reply::failure(&error, server.name(), envelope.id.map(|i| i.raw)));
    }
    let shared = &server.shared;
    let (tx, rx) = outlet();
    let request = Request {
        envelope,
        outlet: tx,
        streams: accept.stream,
        internal: false,
        limit: shared.request_limit(),
        work: Some(shared.drain.work(shared.container())),
    };
    let started = tokio::time::Instant::now();
    match session.child.request(request) {
        Ok(()) => Ok(reply::reply(rx, accept, None, &shared.timing).await),
        Err(error @ Error::Overloaded) => {
            shared.count(outrigger_protocol::mcp::method_label(&envelope.method), error.outcome(), started);
            Ok(reply::failure(&error, server.name(), envelope.id.map(|i| i.raw)))
        }
        Err(error) => Err(ended(envelope.id.map(|i| i.raw), &error)),
    }
}

/// Begins a session. Start and handshake go on by themselves, as the response may have to become a stream meanwhile.
async fn initialize(
    server: &Arc<Server>,
    headers: &HeaderMap,
    envelope: &Envelope<'_>,
    body: Bytes,
    accept: Accept,
) -> Result<Response, Refusal> {
    // Absent on a first request as a rule; a revision that begins otherwise has no business here.
    let id = envelope.id.map(|i| i.raw);
    revision(headers, id)?;
    let session = uuid::Uuid::new_v4().to_string();
    let (tx, rx) = outlet();
    let (name, raw_id) = (session.clone(), id.map(str::to_owned));
    let opening = Arc::clone(server);
    let started = tokio::time::Instant::now();
    tokio::spawn(async move {
        if let Err(error) = opening.open_session(name.clone(), body, tx.clone(), accept.stream).await {
            opening.end_session(&name, "abandoned");
            opening.shared.count("initialize", error.outcome(), started);
            tx.finish(Answer::failure(&error, opening.name(), raw_id.as_deref()));
        }
    });
    Ok(reply::reply(rx, accept, Some(session), &server.shared.timing).await)
}

/// Reads a body of at most `limit` bytes, without a copy when it comes in one piece.
async fn read(mut body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| refuse("broken_body", StatusCode::BAD_REQUEST, None, "the body ended too early"))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size > limit {
            (first, rest) = (None, BytesMut::new());
            if size > MAX_DISCARDED {
                break;
            }
        } else if first.is_none() && rest.is_empty() {
            first = Some(data);
        } else {
            if let Some(first) = first.take() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if size > limit {
        let message = format!("the body is larger than {limit} bytes (spec.process.maxLineBytes of the MCPServer)");
        return Err(refuse("too_large", StatusCode::PAYLOAD_TOO_LARGE, None, message));
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}
