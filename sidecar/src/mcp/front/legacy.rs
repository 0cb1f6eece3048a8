//! Clients of the handshake revisions (2024-11-05 to 2025-11-25, transports): sessions, their streams, their calls.

use std::sync::Arc;

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use outrigger_protocol::config::Sharing;
use outrigger_protocol::jsonrpc::{Envelope, INVALID_PARAMS, Kind, Slice, member, string};
use outrigger_protocol::mcp::{
    HANDSHAKE_REVISIONS, REVISION_HEADER, SESSION_HEADER, edit, is_handshake_revision, meta,
};
use tokio::time::Instant;

use super::refuse::{Refusal, refuse};
use super::reply::{self, Accept, Shape};
use super::{Caller, Inbound};
use crate::drain::Work;
use crate::mcp::bridge::{self, capabilities};
use crate::mcp::child::table::Log;
use crate::mcp::child::{Child, Era, Request};
use crate::mcp::client::{Behind, Client, OURSELVES};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Event, Outlet, outlet};
use crate::mcp::pool::slot::{Kind as SlotKind, Slot};
use crate::mcp::pool::{Owner, Server};
use crate::mcp::session::{Seat, Session, agreed};

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
fn revision(headers: &HeaderMap, id: Option<&str>) -> Result<(), Refusal> {
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
        return initialize(inbound, envelope).await;
    }
    let id = envelope.id.map(|i| i.raw);
    let session = session(server, caller, headers, id)?;
    session.touch();
    let sent = match envelope.kind {
        Kind::Request => {
            let (tx, rx) = outlet();
            call(server, &session, envelope, tx, accept.stream).await.map_err(|error| ended(id, &error))?;
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
    server: &Server,
    session: &Arc<Session>,
    envelope: &Envelope<'_>,
    outlet: Outlet,
    streams: bool,
) -> Result<(), Error> {
    let started = Instant::now();
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

/// Begins a session. Start and handshake go on by themselves, as the response may have to become a stream meanwhile.
async fn initialize(inbound: &Inbound<'_>, envelope: &Envelope<'_>) -> Result<Response, Refusal> {
    let id = envelope.id.map(|i| i.raw);
    let Inbound { server, caller, headers, accept, body } = *inbound;
    // Absent on a first request as a rule; a revision that begins otherwise has no business here.
    revision(headers, id)?;
    let params = envelope.params.unwrap_or(Slice { raw: "{}", at: 0 });
    let capabilities = member(params, "capabilities").map_or("{}", |c| c.raw);
    if !capabilities.starts_with('{') {
        let message = "params.capabilities must be an object";
        return Ok(reply::error(StatusCode::OK, id, message, INVALID_PARAMS));
    }
    let client_info = member(params, "clientInfo").map_or("", |c| c.raw);
    let session = Session::new(&server.shared, caller.name(), capabilities, client_info);
    let name = session.id.to_string();
    let (tx, rx) = outlet();
    let (opening, body, raw_id) = (Arc::clone(server), body.clone(), id.map(str::to_owned));
    tokio::spawn(async move {
        let started = Instant::now();
        let answer = match std::str::from_utf8(&body).ok().and_then(|text| Envelope::parse(text, usize::MAX).ok()) {
            Some(envelope) => open(&opening, &session, &envelope).await,
            None => Err(Error::SessionEnded),
        };
        let (answer, outcome) = match answer {
            Ok(answer) => {
                let outcome = if answer.ok() { "ok" } else { "error" };
                (answer, outcome)
            }
            Err(error) => (Answer::failure(&error, opening.name(), raw_id.as_deref()), error.outcome()),
        };
        opening.shared.count("initialize", outcome, started);
        let ok = answer.ok();
        let read = tx.finish(answer);
        if ok && !read {
            opening.sessions.end(&session.key, "abandoned");
        }
        if !ok {
            session.end("refused");
        }
    });
    Ok(reply::reply(rx, accept, Shape::Plain, Some(name), None, &server.shared.timing).await)
}

/// Waits until the server is ready, gives the session its child, and has the handshake answered.
async fn open(server: &Arc<Server>, session: &Arc<Session>, envelope: &Envelope<'_>) -> Result<Answer, Error> {
    let shared = &server.shared;
    if !shared.drain.accepting() {
        return Err(Error::Draining);
    }
    server.opened().await?;
    let _work = shared.drain.work(shared.container());
    server.ready().await?;
    if !server.sessions.room() {
        return Err(Error::TooManySessions(crate::mcp::session::store::MAX_SESSIONS));
    }
    let id = envelope.id.map_or("null", |i| i.raw);
    if !server.legacy() {
        let (answer, bridged) = bridge::legacy::open(server, session, envelope).await?;
        server.sessions.add(session);
        session.sit(Seat::Bridged(bridged));
        return Ok(answer);
    }
    let answer = match shared_slot(server, session, envelope).await? {
        Some((slot, result)) => {
            session.agree(&agreed(&result));
            session.sit(Seat::Shared(slot));
            Answer::to(id, &result)
        }
        None => own(server, session, envelope).await?,
    };
    if answer.ok() {
        server.sessions.add(session);
        // A child of its own may have ended before the session was in the list.
        if session.own_child().is_some_and(|c| c.ending().is_some()) {
            server.sessions.end(&session.key, "child_ended");
        }
    }
    Ok(answer)
}

/// The child that the session may share, and what it said of itself.
async fn shared_slot(
    server: &Arc<Server>,
    session: &Session,
    envelope: &Envelope<'_>,
) -> Result<Option<(Arc<Slot>, Box<str>)>, Error> {
    let sharing = server.shared.conf.process.sharing;
    let declared = capabilities::Declared::read(&session.capabilities);
    match sharing {
        Sharing::PerSession => return Ok(None),
        Sharing::Auto if declared.answers_questions() => return Ok(None),
        Sharing::Auto | Sharing::Shared => {}
    }
    let revision = edit::param(envelope, "protocolVersion").and_then(string);
    let known =
        HANDSHAKE_REVISIONS.iter().find(|r| revision.as_deref() == Some(**r)).unwrap_or(&HANDSHAKE_REVISIONS[0]);
    let slot = server.slot(&SlotKind::legacy(known, &declared.without_questions()));
    slot.child().await?;
    let hello = slot.hello().ok_or(Error::ShimLost)?;
    // Tasks of one client could be listed by all.
    if sharing == Sharing::Auto && hello.can("tasks") {
        return Ok(None);
    }
    Ok(Some((slot, hello.result.clone())))
}

/// Starts a child for this session alone, and passes the client's handshake on to it.
async fn own(server: &Arc<Server>, session: &Arc<Session>, envelope: &Envelope<'_>) -> Result<Answer, Error> {
    let behind = || {
        let client: std::sync::Weak<dyn Client> = Arc::downgrade(session) as _;
        Behind::One(client)
    };
    let child = server.start(Era::Legacy, behind, Owner::Session(session.key)).await?;
    session.sit(Seat::Own(Arc::clone(&child)));
    let (tx, mut rx) = outlet();
    child.request(Request {
        envelope,
        outlet: tx,
        client: OURSELVES,
        streams: false,
        log: Log::No,
        limit: Some(server.shared.start_limit()),
        work: None,
        counted: false,
        translate: None,
    })?;
    match rx.next().await {
        Some(Event::Final(Answer { failure: Some(error), .. }, _)) => Err(error),
        Some(Event::Final(answer, _)) => {
            if answer.ok() {
                child.greet();
                let text = std::str::from_utf8(&answer.body).unwrap_or_default();
                let result = Envelope::parse(text, usize::MAX).ok().and_then(|e| e.result.map(|r| r.raw));
                session.agree(&agreed(result.unwrap_or_default()));
            }
            Ok(answer)
        }
        _ => Err(Error::ShimLost),
    }
}
