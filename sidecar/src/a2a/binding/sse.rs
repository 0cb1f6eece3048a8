//! A stream as server-sent events (A2A 1.0, sections 9.4.2 and 11.7).

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response};
use http_body::{Frame, SizeHint};
use memchr::memchr2;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::v03;
use tokio::time::{Instant, Sleep, sleep};

use super::events::{Events, Next};
use super::meter::Ended;
use super::render;

/// A client that lost its connection comes back after so many milliseconds.
const RETRY: &str = "retry: 2000\n";
/// Events that are ready together go out together, up to about so many bytes.
const CHUNK: usize = 32 << 10;
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The last words of a stream that is cut by a shutdown.
const LEAVING: &str = ": the agent's instance goes away; subscribe again with Last-Event-ID\n\n";
const HEARTBEAT: &str = ": hb\n\n";

/// What stands around an event.
#[derive(Clone, Debug)]
pub(super) enum Frames {
    /// A response of JSON-RPC with this id.
    JsonRpc(Box<str>),
    /// Nothing.
    HttpJson,
}

/// An answer by server-sent events, without the headers that every answer has.
pub(super) fn respond(events: Events, frames: Frames, dialect: Dialect, heartbeat: Duration) -> Response<Body> {
    let body = SseBody {
        events,
        frames,
        dialect,
        every: heartbeat,
        sent: Instant::now(),
        heartbeat: Box::pin(sleep(heartbeat)),
        begun: false,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// The body. A reader that is slow is waited for: events are pulled only when there is room for them.
struct SseBody {
    events: Events,
    frames: Frames,
    dialect: Dialect,
    every: Duration,
    sent: Instant,
    heartbeat: Pin<Box<Sleep>>,
    begun: bool,
}

impl SseBody {
    fn write(&mut self, next: Next, out: &mut String) {
        match next {
            Next::Item(item) => {
                let translated = match self.dialect {
                    Dialect::V10 => Ok(item.json),
                    dialect => v03::event_out(dialect, &item.json, item.last),
                };
                match translated {
                    Ok(json) => self.event(item.id.as_deref(), &json, out),
                    Err(error) => {
                        self.events.end(Ended::Error);
                        self.error(&error, out);
                    }
                }
            }
            Next::Error(error) => self.error(&error, out),
            Next::Leaving => out.push_str(LEAVING),
            Next::End => {}
        }
    }

    fn event(&self, id: Option<&str>, json: &str, out: &mut String) {
        out.reserve(json.len() + id.map_or(0, str::len) + 128);
        if let Some(id) = id.filter(|id| !id.contains(['\n', '\r', '\0'])) {
            out.push_str("id: ");
            out.push_str(id);
            out.push('\n');
        }
        out.push_str("data: ");
        match &self.frames {
            Frames::JsonRpc(id) => {
                out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
                out.push_str(id);
                out.push_str(",\"result\":");
                push_line(json, out);
                out.push('}');
            }
            Frames::HttpJson => push_line(json, out),
        }
        out.push_str("\n\n");
    }

    fn error(&self, error: &Error, out: &mut String) {
        if error.kind == Kind::Internal {
            tracing::warn!(target: "protocol", message = error.message, "a stream broke off");
        }
        out.push_str("event: error\ndata: ");
        let json = match &self.frames {
            Frames::JsonRpc(id) => render::jsonrpc_error(Some(id), self.dialect, error),
            Frames::HttpJson => render::http_error(self.dialect, error),
        };
        push_line(&json, out);
        out.push_str("\n\n");
    }
}

/// Appends JSON as one line: a line break in it can only be white space.
fn push_line(json: &str, out: &mut String) {
    let mut rest = json;
    while let Some(at) = memchr2(b'\n', b'\r', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        out.push(' ');
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

impl http_body::Body for SseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let mut out = String::new();
        if !this.begun {
            this.begun = true;
            out.push_str(RETRY);
        }
        while !this.events.is_over() && out.len() < CHUNK {
            match this.events.poll_next(cx) {
                Poll::Ready(next) => this.write(next, &mut out),
                Poll::Pending => break,
            }
        }
        if out.is_empty() {
            if this.events.is_over() {
                return Poll::Ready(None);
            }
            // The timer is not moved with every event: when it fires, it finds out how long it was quiet.
            loop {
                if this.heartbeat.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let due = this.sent + this.every;
                if due <= Instant::now() {
                    break;
                }
                this.heartbeat.as_mut().reset(due);
            }
            out.push_str(HEARTBEAT);
        }
        this.sent = Instant::now();
        if this.heartbeat.is_elapsed() {
            let due = this.sent + this.every;
            this.heartbeat.as_mut().reset(due);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }

    fn is_end_stream(&self) -> bool {
        self.begun && self.events.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_one_line() {
        let mut out = String::new();
        push_line("{\r\n  \"a\": \"\\n\",\n\"b\":\r1}", &mut out);
        assert_eq!(out, "{    \"a\": \"\\n\", \"b\": 1}");
    }
}
