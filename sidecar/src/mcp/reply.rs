//! HTTP responses: JSON or an event stream, decided as late as can be.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use outrigger_protocol::jsonrpc::plain_error;
use outrigger_protocol::mcp::SESSION_HEADER;
use tokio::time::{Instant, Sleep};

use super::error::Error;
use super::outlet::{Answer, Event, Inlet};
use super::timing::Timing;

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

/// Waits for what comes first and answers with JSON if that is the response, else with a stream. `session` is the id
/// of a session that this response begins.
pub async fn reply(mut inlet: Inlet, accept: Accept, session: Option<String>, timing: &Timing) -> Response {
    let first = match accept {
        Accept { json: false, .. } => None,
        Accept { json: true, stream: false } => Some(inlet.next().await),
        Accept { json: true, stream: true } => tokio::time::timeout(timing.stream_after, inlet.next()).await.ok(),
    };
    match first {
        Some(Some(Event::Final(answer))) => json(answer, session),
        Some(Some(event)) => stream(inlet, Some(event), session, timing.keep_alive),
        Some(None) => error(StatusCode::INTERNAL_SERVER_ERROR, None, Error::ShimLost.to_string().as_str(), -32603),
        None => stream(inlet, None, session, timing.keep_alive),
    }
}

fn json(answer: Answer, session: Option<String>) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    match answer.failure {
        Some(failure) if failure.busy() => {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
        }
        None if answer.ok => name_session(&mut response, session),
        _ => {}
    }
    response
}

fn name_session(response: &mut Response, session: Option<String>) {
    if let Some(value) = session.and_then(|s| HeaderValue::from_str(&s).ok()) {
        response.headers_mut().insert(SESSION_HEADER, value);
    }
}

/// An event stream that begins with `first`, if there is one.
pub fn stream(inlet: Inlet, first: Option<Event>, session: Option<String>, keep_alive: Duration) -> Response {
    let body = Stream { inlet, first, keep_alive, silence: Box::pin(tokio::time::sleep(keep_alive)), over: false };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    name_session(&mut response, session);
    response
}

/// A failure of the proxy's as the response to one request.
pub fn failure(error: &Error, server: &str, id: Option<&str>) -> Response {
    json(Answer::failure(error, server, id), None)
}

/// An HTTP error with a JSON-RPC error as its body.
pub fn error(status: StatusCode, id: Option<&str>, message: &str, code: i32) -> Response {
    let mut response = Response::new(Body::from(plain_error(id, code, message)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
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
    first: Option<Event>,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    over: bool,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        let event = match this.first.take() {
            Some(event) => Poll::Ready(Some(event)),
            None => this.inlet.poll_next(cx),
        };
        let data = match event {
            Poll::Ready(None) => {
                this.over = true;
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Event::Message(body))) => event_bytes(&body),
            Poll::Ready(Some(Event::Final(answer))) => {
                this.over = true;
                event_bytes(&answer.body)
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
fn event_bytes(message: &[u8]) -> Bytes {
    const BEFORE: &[u8] = b"event: message\ndata: ";
    let mut out = BytesMut::with_capacity(BEFORE.len() + message.len() + 2);
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
