//! A client of the handshake revisions in front of a server that has none: here the proxy is the client's server.
//!
//! What the session is, the server is told with each request. What only this era has is answered here; what the server
//! asks for goes to the client as [questions](round), and what changes reaches it through one [subscription](listen).

pub mod listen;
pub mod round;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use outrigger_protocol::jsonrpc::{Envelope, INVALID_PARAMS, METHOD_NOT_FOUND, string};
use outrigger_protocol::mcp::bridge::to_modern::{self, Local};
use outrigger_protocol::mcp::capability::{Client, Server as Can};
use outrigger_protocol::mcp::handshake::Discovered;
use outrigger_protocol::mcp::meta::{self, Stamp};
use outrigger_protocol::mcp::{MODERN_REVISIONS, edit, negotiated};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::drain::Work;
use crate::mcp::child::Child;
use crate::mcp::child::table::Log;
use crate::mcp::client::MAX_WATCHED;
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Outlet};
use crate::mcp::pool::Server;
use crate::mcp::pool::slot::{Kind, Slot};
use crate::mcp::session::Session;
use listen::Listening;

/// What a session is in front of such a server.
pub struct Bridged {
    /// Where its server is.
    pub slot: Arc<Slot>,
    /// Whether the slot is the session's alone.
    own: bool,
    declared: Client,
    capabilities: String,
    client_info: Option<Box<str>>,
    level: Mutex<Option<usize>>,
    listening: Listening,
    /// Calls that wait for their client's answers, by raw id.
    rounds: Mutex<HashMap<Box<str>, CancellationToken>>,
}

/// Opens a session: the answer to its `initialize`, and what it is.
pub async fn open(
    server: &Arc<Server>,
    session: &Arc<Session>,
    envelope: &Envelope<'_>,
) -> Result<(Answer, Arc<Bridged>), Error> {
    let own = !server.shares();
    let slot = if own { Slot::new(Kind::modern(), Arc::downgrade(server)) } else { server.slot(&Kind::modern()) };
    slot.child().await?;
    let hello = slot.hello().ok_or(Error::ShimLost)?;
    let told = Discovered::read(&hello.result).map_err(|e| Error::InitializeFailed(e.to_string()))?;
    let requested = edit::param(envelope, "protocolVersion").and_then(string);
    let revision = negotiated(requested.as_deref());
    let id = envelope.id.map_or("null", |i| i.raw);
    let answer = Answer::result(to_modern::initialize_result(id, revision, &told, server.name()));
    session.agree(revision);
    let bridged = Arc::new(Bridged {
        own,
        declared: Client::read(&session.capabilities),
        capabilities: to_modern::client_capabilities(&session.capabilities),
        client_info: session.client_info.starts_with('{').then(|| session.client_info.clone()),
        level: Mutex::default(),
        listening: Listening::new(&slot, Can::read(told.capabilities)),
        rounds: Mutex::default(),
        slot,
    });
    Ok((answer, bridged))
}

impl Bridged {
    /// What each request says of its client.
    fn stamp(&self) -> Stamp {
        let level = self.level.lock().map(|l| meta::LOG_LEVELS[l]);
        Stamp::new(MODERN_REVISIONS[0], &self.capabilities, self.client_info.as_deref(), level)
    }

    fn log(&self) -> Log {
        self.level.lock().map_or(Log::No, Log::From)
    }

    /// The session begins to listen for changes.
    pub fn begin(self: &Arc<Self>, session: &Arc<Session>) {
        let (bridged, session): (Weak<Self>, Weak<Session>) = (Arc::downgrade(self), Arc::downgrade(session));
        self.listening.begin(bridged, session);
    }

    /// The session is over.
    pub fn end(&self, serial: u64) {
        self.listening.end();
        for (_, token) in self.rounds.lock().drain() {
            token.cancel();
        }
        self.slot.left(serial);
        if self.own
            && let Some(child) = self.slot.living()
        {
            child.stop("session", child.grace());
        }
    }

    /// A notification of the client.
    pub fn notify(&self, serial: u64, envelope: &Envelope<'_>) -> Result<(), Error> {
        if to_modern::local(&envelope.method).is_some() {
            return Ok(());
        }
        if envelope.method == "notifications/cancelled"
            && let Some(token) = edit::param(envelope, "requestId").and_then(|id| self.rounds.lock().remove(id))
        {
            token.cancel();
            return Ok(());
        }
        self.slot.living().map_or(Ok(()), |child| child.notify(serial, envelope))
    }

    /// One call.
    pub async fn call(
        self: &Arc<Self>,
        session: &Arc<Session>,
        child: &Arc<Child>,
        envelope: &Envelope<'_>,
        outlet: &Outlet,
        streams: bool,
        work: Work,
    ) -> Result<(), Error> {
        let shared = &session.shared;
        shared.metrics.bridged.with_label_values(&[shared.conf.name.as_str(), "legacy"]).inc();
        let id = envelope.id.map_or("null", |i| i.raw);
        let Some(local) = to_modern::local(&envelope.method) else {
            return round::first(self, session, child, envelope, outlet, streams, work);
        };
        let uri = || edit::param(envelope, "uri").and_then(string).map(std::borrow::Cow::into_owned);
        let answer = match local {
            Local::Ping | Local::Swallow => Answer::to(id, "{}"),
            Local::Initialize | Local::Unknown => {
                Answer::error(Some(id), METHOD_NOT_FOUND, "this server has no such method")
            }
            Local::SetLevel => match meta::level_asked(envelope) {
                Some(level) => {
                    *self.level.lock() = Some(level);
                    Answer::to(id, "{}")
                }
                None => Answer::error(Some(id), INVALID_PARAMS, "params.level must be one of the levels of syslog"),
            },
            Local::Subscribe | Local::Unsubscribe if !self.listening.can.subscribe => {
                Answer::error(Some(id), METHOD_NOT_FOUND, "this server does not tell of single resources")
            }
            Local::Subscribe => match uri() {
                None => Answer::error(Some(id), INVALID_PARAMS, "params.uri must be a string"),
                Some(uri) => {
                    if !self.listening.watch(uri) {
                        return Err(Error::TooManyWatched(MAX_WATCHED));
                    }
                    self.listening.settled(shared.request_limit()).await;
                    Answer::to(id, "{}")
                }
            },
            Local::Unsubscribe => {
                if let Some(uri) = uri() {
                    self.listening.unwatch(&uri);
                    self.listening.settled(shared.request_limit()).await;
                }
                Answer::to(id, "{}")
            }
        };
        outlet.finish(answer);
        Ok(())
    }
}
