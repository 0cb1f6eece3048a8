//! Clients of the stateless revision (2026-07-28, transports): each request stands alone, and its response is its
//! stream.

use std::sync::{Arc, Weak};

use axum::response::Response;
use http::StatusCode;
use outrigger_protocol::jsonrpc::{Envelope, Kind, METHOD_NOT_FOUND, member, splice};
use outrigger_protocol::mcp::bridge::to_legacy;
use outrigger_protocol::mcp::era::Modern;
use outrigger_protocol::mcp::meta::SUBSCRIPTION_ID;
use outrigger_protocol::mcp::{method_label, revisions};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::Inbound;
use super::refuse::Refusal;
use super::reply::{self, Shape};
use crate::mcp::bridge::{self, modern::Asked};
use crate::mcp::child::dispatch;
use crate::mcp::child::table::{Log, Pending, Translate};
use crate::mcp::child::{Child, Era, Request};
use crate::mcp::client::{Behind, serial};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Outlet, outlet};
use crate::mcp::policy;
use crate::mcp::pool::Owner;
use crate::mcp::pool::slot::Kind as SlotKind;

/// What happens when the client of a request leaves, or its response has been sent.
pub enum Abandon {
    /// Nothing.
    Nothing,
    /// A child is told that nobody waits any more, unless it has answered.
    Child(Weak<Child>, u64),
    /// A task is told.
    Task(DropGuard),
}

impl Abandon {
    /// Of a request that a child knows under an id.
    pub fn of(child: &Arc<Child>, id: u64) -> Self {
        Self::Child(Arc::downgrade(child), id)
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if let Self::Child(child, id) = self
            && let Some(child) = child.upgrade()
        {
            // One that was answered is not there any more.
            child.cancel(*id, "the client closed the stream");
        }
    }
}

/// One message.
pub async fn post(inbound: &Inbound<'_>, envelope: &Envelope<'_>, call: &Modern<'_>) -> Result<Response, Refusal> {
    let Inbound { server, accept, .. } = *inbound;
    if envelope.kind != Kind::Request {
        // A request is cancelled by closing its stream, and nothing else that a client may say here concerns a server.
        return Ok(reply::empty(StatusCode::ACCEPTED));
    }
    let id = envelope.id.map(|i| i.raw);
    let (tx, rx) = outlet();
    let started = Instant::now();
    if !policy::admitted(inbound, envelope, &tx).await {
        return Ok(reply::reply(rx, accept, Shape::Modern, None, None, &server.shared.timing).await);
    }
    match begin(inbound, envelope, call, &tx).await {
        Ok(abandon) => Ok(reply::reply(rx, accept, Shape::Modern, None, Some(abandon), &server.shared.timing).await),
        Err(error) => {
            server.shared.count(method_label(&envelope.method), error.outcome(), started);
            Ok(reply::failure(&error, server.name(), id))
        }
    }
}

async fn begin(
    inbound: &Inbound<'_>,
    envelope: &Envelope<'_>,
    call: &Modern<'_>,
    outlet: &Outlet,
) -> Result<Abandon, Error> {
    let Inbound { server, caller, accept, .. } = *inbound;
    let shared = &server.shared;
    if !shared.drain.accepting() {
        return Err(Error::Draining);
    }
    server.opened().await?;
    let listens = envelope.method == "subscriptions/listen";
    // A subscription ends when its client wants it to, which no drain can wait for.
    let work = (!listens).then(|| shared.drain.work(shared.container()));
    server.ready().await?;
    if !server.modern().await? {
        let (caller, streams) = (caller.name(), accept.stream);
        return bridge::modern::serve(Asked { server, caller, envelope, modern: call, outlet, streams }, work).await;
    }
    if to_legacy::is_removed(&envelope.method) && !envelope.method.starts_with("tasks/") {
        // Servers of both eras may take it for the beginning of the other one.
        let id = envelope.id.map(|i| i.raw);
        outlet.finish(Answer::error(id, METHOD_NOT_FOUND, "this revision has no such method"));
        return Ok(Abandon::Nothing);
    }
    let (child, lease) = if server.shares() {
        (server.slot(&SlotKind::modern()).child().await?, None)
    } else {
        let child = server.start(Era::Modern, || Behind::Nobody, Owner::Lease).await?;
        child.greet();
        (Arc::clone(&child), Some(Lease(child)))
    };
    let request = Request {
        envelope,
        outlet: outlet.clone(),
        client: serial(),
        streams: accept.stream,
        log: call.meta.log_level().map_or(Log::No, Log::From),
        limit: (!listens).then(|| shared.request_limit()),
        work,
        counted: true,
        translate: translator(&envelope.method, lease),
    };
    let id = child.request(request)?;
    Ok(Abandon::of(&child, id))
}

/// What else than the id changes in a response.
fn translator(method: &str, lease: Option<Lease>) -> Option<Translate> {
    let edit = match method {
        "subscriptions/listen" => closing,
        "server/discover" => discovered,
        _ if lease.is_none() => return None,
        _ => |response: &Envelope<'_>, pending: &Pending| dispatch::answer(response, &pending.client_id),
    };
    Some(Box::new(move |response, pending| {
        drop(lease);
        Some(edit(response, pending))
    }))
}

/// What the server says of itself; the revisions are those of this endpoint.
fn discovered(response: &Envelope<'_>, pending: &Pending) -> Answer {
    let supported = response.result.and_then(|r| member(r, "supportedVersions"));
    let Some(supported) = supported else { return dispatch::answer(response, &pending.client_id) };
    let all = format!("[\"{}\"]", revisions().join("\",\""));
    let mut edits = vec![(supported.range(), all.as_str())];
    edits.extend(response.id.map(|id| (id.range(), &*pending.client_id)));
    edits.sort_by_key(|(range, _)| range.start);
    Answer::result(splice(response.text, &edits))
}

/// A child of one call, which ends with it.
struct Lease(Arc<Child>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.stop("done", self.0.grace());
    }
}

/// The graceful end of a subscription: it names the client's own id.
fn closing(response: &Envelope<'_>, pending: &Pending) -> Answer {
    let tag = response.result.and_then(|r| member(r, "_meta")).and_then(|m| member(m, SUBSCRIPTION_ID));
    let Some(tag) = tag else { return dispatch::answer(response, &pending.client_id) };
    let mut edits = vec![(tag.range(), &*pending.client_id)];
    edits.extend(response.id.map(|id| (id.range(), &*pending.client_id)));
    edits.sort_by_key(|(range, _)| range.start);
    Answer::result(splice(response.text, &edits))
}
