//! Several messages in one body, which revision 2025-03-26 has and no other one (basic, "Batching").

use axum::response::Response;
use bytes::{BufMut as _, BytesMut};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{HeaderMap, StatusCode};
use outrigger_protocol::jsonrpc::{Envelope, Kind, Slice};
use outrigger_protocol::mcp::object::elements;
use outrigger_protocol::mcp::{REVISION_HEADER, SESSION_HEADER};

use super::body::MAX_DEPTH;
use super::refuse::{Refusal, refuse};
use super::reply::{self, Shape};
use super::{Inbound, legacy, trace};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Event, outlet};

/// The one revision that has batches.
const REVISION: &str = "2025-03-26";
/// Messages of one batch.
const MAX_MESSAGES: usize = 64;

/// Whether this request may be a batch: its session agreed on the revision that has them.
pub fn allowed(inbound: &Inbound<'_>) -> bool {
    let text = |headers: &HeaderMap, name: &str| headers.get(name).and_then(|v| v.to_str().ok().map(str::to_owned));
    let named = text(inbound.headers, REVISION_HEADER);
    let session = text(inbound.headers, SESSION_HEADER);
    named.is_none_or(|r| r == REVISION)
        && session
            .and_then(|s| inbound.server.sessions.find(inbound.caller.name(), &s))
            .is_some_and(|s| s.revision() == REVISION)
}

/// Serves each message by itself; the responses come together.
pub async fn post(inbound: &Inbound<'_>, text: &str) -> Result<Response, Refusal> {
    let bad = |why: String| refuse("batch", StatusCode::BAD_REQUEST, None, why);
    let parts = elements(Slice { raw: text.trim(), at: 0 }).ok_or_else(|| bad("the body is no JSON".into()))?;
    if parts.is_empty() || parts.len() > MAX_MESSAGES {
        return Err(bad(format!("a batch has between 1 and {MAX_MESSAGES} messages")));
    }
    let mut messages = Vec::with_capacity(parts.len());
    for part in parts {
        let envelope =
            Envelope::parse(part.raw, MAX_DEPTH).map_err(|why| bad(format!("a message of the batch {why}")))?;
        if envelope.method == "initialize" {
            return Err(bad("initialize stands alone".into()));
        }
        messages.push(envelope);
    }
    let server = inbound.server;
    let session = legacy::session(server, inbound.caller, inbound.headers, None)?;
    session.touch();
    let mut waiting = FuturesUnordered::new();
    for envelope in &messages {
        if envelope.kind != Kind::Request {
            match legacy::other(server, &session, envelope).await {
                Ok(()) => continue,
                Err(error) => return Ok(reply::failure(&error, server.name(), None)),
            }
        }
        let (tx, mut rx) = outlet();
        let id: Box<str> = envelope.id.map_or("null", |i| i.raw).into();
        let traced = trace::traced(inbound.headers, envelope);
        let traced = traced.as_ref().and_then(|text| Envelope::parse(text, usize::MAX).ok());
        let envelope = traced.as_ref().unwrap_or(envelope);
        // Whatever else a call has to say goes to the session's stream.
        if let Err(error) = legacy::call(inbound, &session, envelope, tx, false).await {
            return Ok(reply::failure(&error, server.name(), Some(&id)));
        }
        waiting.push(async move {
            match rx.next().await {
                Some(Event::Final(answer, _)) => (id, Some(answer.body)),
                _ => (id, None),
            }
        });
    }
    if waiting.is_empty() {
        return Ok(reply::empty(StatusCode::ACCEPTED));
    }
    let (tx, rx) = outlet();
    let name = server.name().to_owned();
    // A task of its own: a client that leaves has not cancelled anything.
    tokio::spawn(async move {
        let mut body = BytesMut::new();
        while let Some((id, answer)) = waiting.next().await {
            body.put_slice(if body.is_empty() { b"[" } else { b"," });
            match answer {
                Some(answer) => body.put_slice(&answer),
                None => body.put_slice(&Error::ShimLost.response(&name, Some(&id))),
            }
        }
        body.put_slice(b"]");
        tx.finish(Answer::result(body.freeze()));
    });
    Ok(reply::reply(rx, inbound.accept, Shape::Session(&session), None, None, &server.shared.timing).await)
}
