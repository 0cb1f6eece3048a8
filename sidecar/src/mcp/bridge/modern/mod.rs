//! A client of the stateless revision in front of a server that has a handshake: here the proxy is the server's client.
//!
//! Clients that can't be asked anything share a process; the response is edited as it passes. Others have a process for
//! the time of the [`call`], as its questions belong to that call alone.

pub mod call;
pub mod lease;
pub mod listen;
pub mod parked;

use std::sync::Arc;

use outrigger_protocol::config::Sharing;
use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND};
use outrigger_protocol::mcp::bridge::to_legacy::{self, Response};
use outrigger_protocol::mcp::capability::{Client, Need};
use outrigger_protocol::mcp::era::Modern;
use outrigger_protocol::mcp::handshake::Initialized;
use outrigger_protocol::mcp::{HANDSHAKE_REVISIONS, revisions};

use super::capabilities::Declared;
use crate::drain::Work;
use crate::mcp::child::dispatch;
use crate::mcp::child::table::{Log, Pending};
use crate::mcp::child::{Child, Request};
use crate::mcp::client::serial;
use crate::mcp::error::Error;
use crate::mcp::front::modern::Abandon;
use crate::mcp::outlet::{Answer, Outlet};
use crate::mcp::pool::Server;
use crate::mcp::pool::hello::Hello;
use crate::mcp::pool::slot::{Kind, Slot};

/// How long what a server says of itself may be kept, in milliseconds: until its process is another one, which happens.
const DISCOVER_TTL_MS: u64 = 30_000;

/// A request on its way.
pub struct Asked<'a> {
    /// The server that it is for.
    pub server: &'a Arc<Server>,
    /// Who sent it.
    pub caller: &'a str,
    /// The message.
    pub envelope: &'a Envelope<'a>,
    /// What it says of itself.
    pub modern: &'a Modern<'a>,
    /// Where the response goes.
    pub outlet: &'a Outlet,
    /// Whether anything but the response may go there.
    pub streams: bool,
}

impl Asked<'_> {
    fn id(&self) -> &str {
        self.envelope.id.map_or("null", |i| i.raw)
    }

    fn refuse(&self, code: i32, message: &str) -> Abandon {
        self.outlet.finish(Answer::error(Some(self.id()), code, message));
        Abandon::Nothing
    }

    fn log(&self) -> Log {
        self.modern.meta.log_level().map_or(Log::No, Log::From)
    }
}

/// Serves one request.
pub async fn serve(asked: Asked<'_>, work: Option<Work>) -> Result<Abandon, Error> {
    let method = &*asked.envelope.method;
    asked.server.shared.metrics.bridged.with_label_values(&[asked.server.name(), "modern"]).inc();
    if to_legacy::is_removed(method) {
        return Ok(asked.refuse(METHOD_NOT_FOUND, "this revision has no such method"));
    }
    match method {
        "server/discover" => discover(&asked).await,
        "subscriptions/listen" => listen::begin(&asked).await,
        _ if asked.modern.request_state.is_some() => Ok(call::resume(&asked)),
        _ if shares(&asked) => shared(&asked, work).await,
        _ => call::begin(&asked, work).await,
    }
}

/// Whether the request can be served by a process that others use at the same time.
fn shares(asked: &Asked<'_>) -> bool {
    match asked.server.shared.conf.process.sharing {
        Sharing::Auto => Client::read(asked.modern.meta.capabilities()).asks_nothing(),
        Sharing::Shared => true,
        Sharing::PerSession => false,
    }
}

/// The slot of clients that have declared as much as this one, but for questions.
fn slot(asked: &Asked<'_>) -> Arc<Slot> {
    let capabilities = Declared::read(asked.modern.meta.capabilities()).without_questions();
    asked.server.slot(&Kind::legacy(HANDSHAKE_REVISIONS[0], &capabilities))
}

/// What the server said of itself, whichever process it was.
async fn hello(server: &Arc<Server>) -> Result<Arc<Hello>, Error> {
    if let Some(hello) = server.legacy_hello() {
        return Ok(hello);
    }
    let slot = server.slot(&Kind::plain());
    slot.child().await?;
    slot.hello().ok_or(Error::ShimLost)
}

async fn discover(asked: &Asked<'_>) -> Result<Abandon, Error> {
    let hello = hello(asked.server).await?;
    let server = Initialized::read(&hello.result).map_err(|e| Error::InitializeFailed(e.to_string()))?;
    let body = to_legacy::discover(asked.id(), &server, &revisions(), DISCOVER_TTL_MS);
    asked.outlet.finish(Answer::result(body));
    Ok(Abandon::Nothing)
}

async fn shared(asked: &Asked<'_>, work: Option<Work>) -> Result<Abandon, Error> {
    let slot = slot(asked);
    let child = slot.child().await?;
    let hello = slot.hello().ok_or(Error::ShimLost)?;
    if let Log::From(level) = asked.log() {
        slot.raise_level(&child, level);
    }
    let request = Request {
        envelope: asked.envelope,
        outlet: asked.outlet.clone(),
        client: serial(),
        streams: asked.streams,
        log: asked.log(),
        limit: Some(asked.server.shared.request_limit()),
        work,
        counted: true,
        translate: Some(Box::new(move |response, pending| {
            Some(match to_legacy::response(response, pending.method, &pending.client_id, info(&hello)) {
                Response::Message(line) => edited(response, line),
                // This client can't be shown anything.
                Response::Urls(_) => missing(Need::Url, pending),
            })
        })),
    };
    let id = child.send(request, |id| to_legacy::request(asked.envelope, asked.modern, id))?;
    Ok(Abandon::of(&child, id))
}

/// Raw name and version of a server.
fn info(hello: &Hello) -> Option<&str> {
    (!hello.server_info.is_empty()).then_some(&*hello.server_info)
}

/// A response with another text.
fn edited(response: &Envelope<'_>, line: Vec<u8>) -> Answer {
    Answer { code: dispatch::code(response), ..Answer::result(line) }
}

fn missing(need: Need, pending: &Pending) -> Answer {
    let code = Some(outrigger_protocol::mcp::MISSING_CAPABILITY.into());
    Answer { code, ..Answer::result(need.missing(&pending.client_id)) }
}

/// Refuses a question of a child's to a client that has not said that it can be asked this.
fn not_declared(child: &Child, child_id: &str) {
    child.refuse(child_id, METHOD_NOT_FOUND, "the client has not declared the capability for this");
}

/// Input of a client that can't be used.
fn bad_input(asked: &Asked<'_>, why: &dyn std::fmt::Display) -> Abandon {
    asked.refuse(INVALID_PARAMS, &why.to_string())
}

/// A call that can't go on.
fn broken(id: &str, why: &str) -> Answer {
    Answer::error(Some(id), INTERNAL_ERROR, why)
}
