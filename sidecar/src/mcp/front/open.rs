//! The beginning of a session (2025-11-25, lifecycle): which child it gets, and who answers its handshake.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use outrigger_protocol::config::Sharing;
use outrigger_protocol::jsonrpc::{Envelope, INVALID_PARAMS, Slice, member, string};
use outrigger_protocol::mcp::{edit, negotiated};
use tokio::time::Instant;

use super::Inbound;
use super::legacy::revision;
use super::refuse::Refusal;
use super::reply::{self, Shape};
use crate::mcp::bridge::{self, capabilities};
use crate::mcp::child::table::Log;
use crate::mcp::child::{Era, Request};
use crate::mcp::client::{Behind, Client, OURSELVES};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Event, outlet};
use crate::mcp::pool::slot::{Kind as SlotKind, Slot};
use crate::mcp::pool::{Owner, Server};
use crate::mcp::session::{Seat, Session, agreed};

/// Begins a session. Start and handshake go on by themselves, as the response may have to become a stream meanwhile.
pub async fn initialize(inbound: &Inbound<'_>, envelope: &Envelope<'_>) -> Result<Response, Refusal> {
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
    let known = negotiated(revision.as_deref());
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
