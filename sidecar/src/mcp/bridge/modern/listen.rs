//! `subscriptions/listen` in front of a server that has a handshake: served from what its processes say.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use outrigger_protocol::jsonrpc::Envelope;
use outrigger_protocol::mcp::capability::Server as Can;
use outrigger_protocol::mcp::handshake::Initialized;
use outrigger_protocol::mcp::listen::{Change, Listen, stamped};
use tokio_util::sync::CancellationToken;

use super::{Asked, bad_input, hello};
use crate::mcp::child::Child;
use crate::mcp::client::{Client, Streams, serial};
use crate::mcp::error::Error;
use crate::mcp::front::modern::Abandon;
use crate::mcp::outlet::Outlet;
use crate::mcp::pool::Server;
use crate::mcp::pool::slot::Kind;

/// A client that listens.
struct Subscription {
    /// Its raw id, which all messages carry.
    id: Box<str>,
    wanted: Listen,
    outlet: Outlet,
}

impl Client for Subscription {
    fn tell(&self, _: &str, line: Bytes, _: Streams) -> Result<(), &'static str> {
        let text = std::str::from_utf8(&line).unwrap_or_default();
        let Ok(envelope) = Envelope::parse(text, usize::MAX) else { return Ok(()) };
        match Change::of(&envelope) {
            Some(change) if self.wanted.wants(&change) => {
                let sent = self.outlet.message(&stamped(&envelope, &self.id).into());
                if sent { Ok(()) } else { Err("slow_reader") }
            }
            _ => Ok(()),
        }
    }

    fn ask(&self, _: &Arc<Child>, _: &Envelope<'_>, _: Streams) {}

    fn retract(&self, _: &Arc<Child>, _: &str, _: &Envelope<'_>, _: Streams) {}

    fn asking(&self) -> bool {
        false
    }
}

/// The same client where single resources are watched: changes of lists reach it another way.
struct Watcher(Arc<Subscription>);

impl Client for Watcher {
    fn tell(&self, method: &str, line: Bytes, streams: Streams) -> Result<(), &'static str> {
        if method.ends_with("/list_changed") { Ok(()) } else { self.0.tell(method, line, streams) }
    }

    fn ask(&self, _: &Arc<Child>, _: &Envelope<'_>, _: Streams) {}

    fn retract(&self, _: &Arc<Child>, _: &str, _: &Envelope<'_>, _: Streams) {}

    fn asking(&self) -> bool {
        false
    }
}

/// Begins a subscription, which lasts until its client leaves.
pub async fn begin(asked: &Asked<'_>) -> Result<Abandon, Error> {
    let wanted = match Listen::read(asked.envelope.params) {
        Ok(wanted) => wanted,
        Err(why) => return Ok(bad_input(asked, &why)),
    };
    if !asked.streams {
        return Ok(bad_input(asked, &"a subscription is an event stream: accept text/event-stream"));
    }
    let hello = hello(asked.server).await?;
    let server = Initialized::read(&hello.result).map_err(|e| Error::InitializeFailed(e.to_string()))?;
    let wanted = wanted.granted(Can::read(server.capabilities));
    asked.outlet.message(&wanted.acknowledged(asked.id()).into());
    let subscription = Arc::new(Subscription { id: asked.id().into(), wanted, outlet: asked.outlet.clone() });
    let left = CancellationToken::new();
    tokio::spawn(run(Arc::clone(asked.server), subscription, left.clone()));
    Ok(Abandon::Task(left.drop_guard()))
}

async fn run(server: Arc<Server>, subscription: Arc<Subscription>, left: CancellationToken) {
    let serial = serial();
    let uris = &subscription.wanted.uris;
    let listener: Weak<Subscription> = Arc::downgrade(&subscription);
    server.shared.listeners.join(serial, listener);
    let slot = server.slot(&Kind::plain());
    let watcher = Arc::new(Watcher(Arc::clone(&subscription)));
    if !uris.is_empty() {
        let weak: Weak<Watcher> = Arc::downgrade(&watcher);
        slot.audience.join(serial, weak);
    }
    for uri in uris {
        if slot.audience.watch(serial, uri) != Some(true) {
            continue;
        }
        let params = serde_json::json!({ "uri": uri }).to_string();
        let subscribing =
            async { slot.child().await?.call("resources/subscribe", &params, server.shared.request_limit()).await };
        let answer = tokio::select! {
            answer = subscribing => answer,
            () = left.cancelled() => break,
        };
        match answer {
            Ok(answer) if answer.ok() => slot.audience.agreed(uri),
            _ => {
                slot.audience.unwatch(serial, uri);
                tracing::debug!(target: "protocol", server = server.name(), uri, "a resource can't be watched");
            }
        }
    }
    left.cancelled().await;
    server.shared.listeners.leave(serial);
    slot.left(serial);
}
