//! HTTP responses: JSON or an event stream, decided as late as can be.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use outrigger_protocol::jsonrpc::{INTERNAL_ERROR, plain_error};
use outrigger_protocol::mcp::SESSION_HEADER;
use tokio::time::{Instant, Sleep};

use super::modern::Abandon;
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Event, First, Inlet};
use crate::mcp::session::Session;
use crate::mcp::timing::Timing;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Seconds after which a request that met a bound may be tried again.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// What a client can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// A JSON body.
    pub json: bool,
    /// An event stream.
    pub stream: bool,
}

impl Accept {
    /// From the header; without one anything goes.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut accept = Self { json: false, stream: false };
        let mut any = false;
        for value in headers.get_all(ACCEPT) {
            for kind in value.to_str().unwrap_or_default().split(',') {
                any = true;
                match kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
                    "*/*" => accept = Self { json: true, stream: true },
                    "application/json" | "application/*" => accept.json = true,
                    "text/event-stream" | "text/*" => accept.stream = true,
                    _ => {}
                }
            }
        }
        if any { accept } else { Self { json: true, stream: true } }
    }
}

/// How the response to a request looks when it becomes a stream, and what becomes of it when the client leaves.
#[derive(Clone, Copy)]
pub enum Shape<'a> {
    /// Messages without ids.
    Plain,
    /// One of a session: if its client can take a stream up again, messages have ids, and what the client has not read
    /// stays.
    Session(&'a Arc<Session>),
    /// One that has ids already.
    Numbered {
        /// Number of the stream in its session.
        stream: u64,
        /// Whether it begins with an event without data, so that there is an id from the beginning.
        primed: bool,
    },
    /// One of the stateless revision: an error has a status of its own.
    Modern,
}

/// Waits for what comes first and answers with JSON if that is the response, else with a stream. `session` is the id
/// of a session that this response begins.
pub async fn reply(
    mut inlet: Inlet,
    accept: Accept,
    shape: Shape<'_>,
    session: Option<String>,
    abandon: Option<Abandon>,
    timing: &Timing,
) -> Response {
    let first = match accept {
        Accept { json: false, .. } => None,
        Accept { json: true, stream: false } => {
            // Nothing but the response was put there.
            Some(inlet.first().await)
        }
        Accept { json: true, stream: true } => tokio::time::timeout(timing.stream_after, inlet.first()).await.ok(),
    };
    match first {
        Some(First::Answer(answer)) => json(answer, matches!(shape, Shape::Modern), session),
        Some(First::Nothing) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, None, Error::ShimLost.to_string().as_str(), INTERNAL_ERROR)
        }
        Some(First::Message) | None => {
            let shape = match shape {
                Shape::Session(s) if s.resumable() => {
                    Shape::Numbered { stream: s.keep(&inlet.outlet()), primed: s.primed() }
                }
                other => other,
            };
            stream(inlet, shape, session, abandon, timing.keep_alive)
        }
    }
}

fn json(answer: Answer, modern: bool, session: Option<String>) -> Response {
    let status = match &answer.failure {
        Some(failure) if failure.busy() => StatusCode::SERVICE_UNAVAILABLE,
        _ if modern => answer.code.map_or(StatusCode::OK, modern_status),
        _ => StatusCode::OK,
    };
    let ok = answer.ok();
    let mut response = whole(status, answer.body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
    } else if ok {
        name_session(&mut response, session);
    }
    response
}

fn modern_status(code: i64) -> StatusCode {
    let status = i32::try_from(code).map_or(200, outrigger_protocol::mcp::era::status);
    StatusCode::from_u16(status).unwrap_or(StatusCode::OK)
}

fn name_session(response: &mut Response, session: Option<String>) {
    if let Some(value) = session.and_then(|s| HeaderValue::from_str(&s).ok()) {
        response.headers_mut().insert(SESSION_HEADER, value);
    }
}

/// An event stream.
pub fn stream(
    inlet: Inlet,
    shape: Shape<'_>,
    session: Option<String>,
    abandon: Option<Abandon>,
    keep_alive: Duration,
) -> Response {
    let (numbered, primed) = match shape {
        Shape::Numbered { stream, primed } => (Some(stream), primed),
        _ => (None, false),
    };
    let silence = Box::pin(tokio::time::sleep(keep_alive));
    let body = Stream { inlet, numbered, primed, keep_alive, silence, over: false, abandon };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    name_session(&mut response, session);
    response
}

/// A failure of the proxy's as the response to one request.
pub fn failure(error: &Error, server: &str, id: Option<&str>) -> Response {
    json(Answer::failure(error, server, id), false, None)
}

/// An HTTP error with a JSON-RPC error as its body.
pub fn error(status: StatusCode, id: Option<&str>, message: &str, code: i32) -> Response {
    let mut response = whole(status, plain_error(id, code, message));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
    response
}

/// A status with a JSON body.
pub fn whole(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A status without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Body of an event stream, with comments to keep it alive.
struct Stream {
    inlet: Inlet,
    /// Number of the stream, when its messages have ids.
    numbered: Option<u64>,
    primed: bool,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    over: bool,
    abandon: Option<Abandon>,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut this.primed) {
            let primed = this.numbered.map(|stream| format!("id: {stream}-0\ndata: \n\n"));
            return Poll::Ready(Some(Ok(Frame::data(primed.unwrap_or_default().into()))));
        }
        let data = match this.inlet.poll_next(cx) {
            Poll::Ready(None) => {
                this.over = true;
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Event::Message(body, place))) => event_bytes(&body, this.numbered, place),
            Poll::Ready(Some(Event::Final(answer, place))) => {
                this.over = true;
                this.abandon = None;
                event_bytes(&answer.body, this.numbered, place)
            }
            Poll::Pending => {
                std::task::ready!(this.silence.as_mut().poll(cx));
                Bytes::from_static(b": keep-alive\n\n")
            }
        };
        this.silence.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

/// One event. The message is a single line, as all messages are that pass the proxy.
fn event_bytes(message: &[u8], stream: Option<u64>, place: u64) -> Bytes {
    const BEFORE: &[u8] = b"event: message\ndata: ";
    /// Of two numbers and what stands around them.
    const ID: usize = 48;
    let mut out = BytesMut::with_capacity(ID + BEFORE.len() + message.len() + 2);
    if let Some(stream) = stream {
        let _ = writeln!(out, "id: {stream}-{place}");
    }
    out.put_slice(BEFORE);
    out.put_slice(message);
    out.put_slice(b"\n\n");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for v in values {
                headers.append(ACCEPT, v.parse().unwrap());
            }
            let a = Accept::of(&headers);
            (a.json, a.stream)
        };
        assert_eq!(of(&[]), (true, true));
        assert_eq!(of(&["application/json, text/event-stream"]), (true, true));
        assert_eq!(of(&["application/json;q=0.9", "Text/Event-Stream"]), (true, true));
        assert_eq!(of(&["application/json"]), (true, false));
        assert_eq!(of(&["text/event-stream"]), (false, true));
        assert_eq!(of(&["*/*"]), (true, true));
        assert_eq!(of(&["text/html"]), (false, false));
    }
}
