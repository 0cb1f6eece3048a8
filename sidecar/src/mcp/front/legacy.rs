//! Clients of the handshake revisions (2024-11-05 to 2025-11-25, transports): sessions, their streams, their calls.

use std::sync::Arc;

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use outrigger_protocol::jsonrpc::{Envelope, Kind, string};
use outrigger_protocol::mcp::{
    HANDSHAKE_REVISIONS, REVISION_HEADER, SESSION_HEADER, edit, is_handshake_revision, meta,
};
use tokio::time::Instant;

use super::refuse::{Refusal, refuse};
use super::reply::{self, Accept, Shape};
use super::{Caller, Inbound};
use crate::drain::Work;
use crate::mcp::child::table::Log;
use crate::mcp::child::{Child, Request};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Outlet, outlet};
use crate::mcp::policy;
use crate::mcp::pool::Server;
use crate::mcp::pool::slot::Slot;
use crate::mcp::session::{Seat, Session};

/// Names the last event that a client has seen of a stream that was cut.
const LAST_EVENT_ID: &str = "last-event-id";

/// The session that a request names.
pub fn session(
    server: &Server,
    caller: &Caller,
    headers: &HeaderMap,
    id: Option<&str>,
) -> Result<Arc<Session>, Refusal> {
    revision(headers, id)?;
    let Some(name) = headers.get(SESSION_HEADER) else {
        let message = "Mcp-Session-Id is missing: send initialize first, then its answer's Mcp-Session-Id";
        return Err(refuse("no_session", StatusCode::BAD_REQUEST, id, message));
    };
    name.to_str().ok().and_then(|n| server.sessions.find(caller.name(), n)).ok_or_else(|| {
        refuse(
            "unknown_session",
            StatusCode::NOT_FOUND,
            id,
            "this session is not known or has ended: send initialize again",
        )
    })
}

/// Clients that know revisions without a handshake fall back to `initialize` on this answer.
pub fn revision(headers: &HeaderMap, id: Option<&str>) -> Result<(), Refusal> {
    let Some(revision) = headers.get(REVISION_HEADER) else { return Ok(()) };
    if revision.to_str().is_ok_and(is_handshake_revision) {
        return Ok(());
    }
    let message = format!("unsupported MCP-Protocol-Version; supported: {}", HANDSHAKE_REVISIONS.join(", "));
    Err(refuse("revision", StatusCode::BAD_REQUEST, id, message))
}

fn ended(id: Option<&str>, error: &Error) -> Refusal {
    let message = format!("this session has ended ({error}): send initialize again");
    refuse("unknown_session", StatusCode::NOT_FOUND, id, message)
}

/// The stream of a session, or one that was cut.
pub fn get(server: &Server, caller: &Caller, headers: &HeaderMap) -> Result<Response, Refusal> {
    let session = session(server, caller, headers, None)?;
    if !Accept::of(headers).stream {
        return Err(refuse("accept", StatusCode::NOT_ACCEPTABLE, None, "the stream is text/event-stream: accept it"));
    }
    session.touch();
    let after = headers.get(LAST_EVENT_ID).and_then(|v| v.to_str().ok());
    let (number, inlet) = session.listen(after);
    if number != 0 {
        server.shared.metrics.resumed.with_label_values(&[server.name()]).inc();
    }
    let shape =
        if session.resumable() { Shape::Numbered { stream: number, primed: session.primed() } } else { Shape::Plain };
    Ok(reply::stream(inlet, shape, None, None, server.shared.timing.keep_alive))
}

/// Ends a session.
pub fn delete(server: &Server, caller: &Caller, headers: &HeaderMap) -> Result<Response, Refusal> {
    let session = session(server, caller, headers, None)?;
    server.sessions.end(&session.key, "deleted");
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// One message of a session, or the first one of a new session.
pub async fn post(inbound: &Inbound<'_>, envelope: &Envelope<'_>) -> Result<Response, Refusal> {
    let Inbound { server, caller, headers, accept, .. } = *inbound;
    if envelope.kind == Kind::Request && envelope.method == "initialize" {
        return super::open::initialize(inbound, envelope).await;
    }
    let id = envelope.id.map(|i| i.raw);
    let session = session(server, caller, headers, id)?;
    session.touch();
    let sent = match envelope.kind {
        Kind::Request => {
            let (tx, rx) = outlet();
            call(inbound, &session, envelope, tx, accept.stream).await.map_err(|error| ended(id, &error))?;
            let shape = Shape::Session(&session);
            return Ok(reply::reply(rx, accept, shape, None, None, &server.shared.timing).await);
        }
        _ => other(server, &session, envelope).await,
    };
    match sent {
        Ok(()) => Ok(reply::empty(StatusCode::ACCEPTED)),
        Err(error @ Error::SessionEnded) => Err(ended(id, &error)),
        Err(error) => Ok(reply::failure(&error, server.name(), id)),
    }
}

/// A notification, or the answer to a question.
pub async fn other(server: &Server, session: &Session, envelope: &Envelope<'_>) -> Result<(), Error> {
    match envelope.kind {
        Kind::Response => session.answer(envelope).map(|known| {
            if !known {
                server.shared.dropped("unknown_answer");
            }
        }),
        _ => session.notify(envelope).await,
    }
}

/// One call: its response, or the failure, goes to the outlet. `Err` only when the session is over.
pub async fn call(
    inbound: &Inbound<'_>,
    session: &Arc<Session>,
    envelope: &Envelope<'_>,
    outlet: Outlet,
    streams: bool,
) -> Result<(), Error> {
    let server = inbound.server;
    let started = Instant::now();
    if !policy::admitted(inbound, envelope, &outlet).await {
        return Ok(());
    }
    match begin(server, session, envelope, &outlet, streams).await {
        Ok(()) => Ok(()),
        // A child of its own took the session with it.
        Err(error) if session.own_child().is_some_and(|c| !c.living()) => Err(error),
        Err(error) => {
            server.shared.count(outrigger_protocol::mcp::method_label(&envelope.method), error.outcome(), started);
            outlet.finish(Answer::failure(&error, server.name(), envelope.id.map(|i| i.raw)));
            Ok(())
        }
    }
}

async fn begin(
    server: &Server,
    session: &Arc<Session>,
    envelope: &Envelope<'_>,
    outlet: &Outlet,
    streams: bool,
) -> Result<(), Error> {
    // New work only: answers and cancellations are what the work in flight waits for.
    server.opened().await?;
    let shared = &server.shared;
    let work = shared.drain.work(shared.container());
    let child = session.child().await?;
    if streams {
        session.offer(outlet);
    }
    if let Some(Seat::Bridged(bridged)) = session.seat() {
        return bridged.call(session, &child, envelope, outlet, streams, work).await;
    }
    if let Some(Seat::Shared(slot)) = session.seat() {
        match &*envelope.method {
            "logging/setLevel" => return set_level(session, slot, &child, envelope, outlet, work),
            "resources/subscribe" => return watch(session, slot, &child, envelope, outlet, work),
            "resources/unsubscribe" => return unwatch(session, slot, &child, envelope, outlet, work),
            _ => {}
        }
    }
    child.request(request(session, envelope, outlet.clone(), streams, work)).map(|_| ())
}

fn request<'a>(
    session: &Session,
    envelope: &'a Envelope<'a>,
    outlet: Outlet,
    streams: bool,
    work: Work,
) -> Request<'a> {
    Request {
        envelope,
        outlet,
        client: session.serial,
        streams,
        log: Log::Session,
        limit: Some(session.shared.request_limit()),
        work: Some(work),
        counted: true,
        translate: None,
    }
}

/// The child is told the most verbose level of all its clients.
fn set_level(
    session: &Session,
    slot: &Slot,
    child: &Arc<Child>,
    envelope: &Envelope<'_>,
    outlet: &Outlet,
    work: Work,
) -> Result<(), Error> {
    let level = meta::level_asked(envelope);
    // What is no level is the server's to refuse.
    let Some(level) = level else {
        return child.request(request(session, envelope, outlet.clone(), false, work)).map(|_| ());
    };
    let most = slot.audience.set_level(session.serial, level);
    let raw = format!("\"{}\"", meta::LOG_LEVELS[most]);
    let text = String::from_utf8(edit::with_param(envelope, "level", &raw)).unwrap_or_default();
    let edited = Envelope::parse(&text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
    child.request(request(session, &edited, outlet.clone(), false, work)).map(|_| ())
}

fn watch(
    session: &Session,
    slot: &Arc<Slot>,
    child: &Arc<Child>,
    envelope: &Envelope<'_>,
    outlet: &Outlet,
    work: Work,
) -> Result<(), Error> {
    let uri = edit::param(envelope, "uri").and_then(string);
    let mut request = request(session, envelope, outlet.clone(), false, work);
    if let Some(uri) = uri {
        let serial = session.serial;
        match slot.audience.watch(serial, &uri) {
            None => return Err(Error::TooManyWatched(crate::mcp::client::MAX_WATCHED)),
            Some(true) => {}
            Some(false) => {
                done(envelope, outlet);
                return Ok(());
            }
        }
        let (slot, uri) = (Arc::clone(slot), uri.into_owned());
        request.translate = Some(Box::new(move |response, pending| {
            if response.error.is_some() {
                slot.audience.unwatch(serial, &uri);
            } else {
                slot.audience.agreed(&uri);
            }
            Some(crate::mcp::child::dispatch::answer(response, &pending.client_id))
        }));
    }
    child.request(request).map(|_| ())
}

fn unwatch(
    session: &Session,
    slot: &Slot,
    child: &Arc<Child>,
    envelope: &Envelope<'_>,
    outlet: &Outlet,
    work: Work,
) -> Result<(), Error> {
    let uri = edit::param(envelope, "uri").and_then(string);
    if uri.is_some_and(|uri| !slot.audience.unwatch(session.serial, &uri)) {
        // Others watch on.
        done(envelope, outlet);
        return Ok(());
    }
    child.request(request(session, envelope, outlet.clone(), false, work)).map(|_| ())
}

/// An empty result.
fn done(envelope: &Envelope<'_>, outlet: &Outlet) {
    outlet.finish(Answer::to(envelope.id.map_or("null", |i| i.raw), "{}"));
}
