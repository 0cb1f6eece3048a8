//! The one subscription of a session: made again when the set of what it watches changes, or when the server's process is
//! another one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::Envelope;
use outrigger_protocol::mcp::capability::Server as Can;
use outrigger_protocol::mcp::edit::Outbound;
use outrigger_protocol::mcp::listen::{Listen, unstamped};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Bridged;
use crate::mcp::child::table::Log;
use crate::mcp::child::{Child, Request};
use crate::mcp::client::{Client, MAX_WATCHED, OURSELVES, Streams};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Event, Inlet, outlet};
use crate::mcp::pool::slot::Slot;
use crate::mcp::session::Session;

/// Between attempts to listen while the server is away.
const PAUSE: Duration = Duration::from_secs(1);

/// What a session listens to.
pub struct Listening {
    /// What the server tells of.
    pub can: Can,
    wanted: Mutex<Listen>,
    /// How often the set was changed.
    changed: watch::Sender<u64>,
    /// Up to which change the server knows the set.
    known: watch::Sender<u64>,
    slot: Arc<Slot>,
    over: CancellationToken,
}

impl Listening {
    /// Changes of all lists that the server tells of.
    pub fn new(slot: &Arc<Slot>, can: Can) -> Self {
        let wanted = Listen { tools: true, prompts: true, resources: true, uris: Vec::new() }.granted(can);
        Self {
            can,
            wanted: Mutex::new(wanted),
            changed: watch::Sender::new(0),
            known: watch::Sender::new(0),
            slot: Arc::clone(slot),
            over: CancellationToken::new(),
        }
    }

    /// Watches a resource. `false` when there are too many.
    pub fn watch(&self, uri: String) -> bool {
        let mut wanted = self.wanted.lock();
        if wanted.uris.contains(&uri) {
            return true;
        }
        if wanted.uris.len() >= MAX_WATCHED {
            return false;
        }
        wanted.uris.push(uri);
        self.changed.send_modify(|n| *n += 1);
        true
    }

    /// Watches a resource no more.
    pub fn unwatch(&self, uri: &str) {
        let mut wanted = self.wanted.lock();
        let before = wanted.uris.len();
        wanted.uris.retain(|u| u != uri);
        if wanted.uris.len() != before {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// Waits until the server knows the set as it is now, or has had time enough.
    pub async fn settled(&self, limit: Duration) {
        let now = *self.changed.borrow();
        let mut known = self.known.subscribe();
        let _ = tokio::time::timeout(limit, known.wait_for(|n| *n >= now)).await;
    }

    /// Begins to listen, until the session is over.
    pub fn begin(&self, bridged: Weak<Bridged>, session: Weak<Session>) {
        let over = self.over.clone();
        tokio::spawn(over.run_until_cancelled_owned(run(bridged, session)));
    }

    /// The session is over.
    pub fn end(&self) {
        self.over.cancel();
    }
}

/// One subscription at the server; given up when dropped.
struct Subscription {
    child: Arc<Child>,
    id: u64,
    inlet: Inlet,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.child.cancel(self.id, "replaced");
    }
}

async fn run(bridged: Weak<Bridged>, session: Weak<Session>) {
    let mut current: Option<Subscription> = None;
    let Some(mut changed) = bridged.upgrade().map(|b| b.listening.changed.subscribe()) else { return };
    loop {
        let stale = current.is_none() || changed.has_changed().unwrap_or(false);
        if stale {
            let Some(bridged) = bridged.upgrade() else { return };
            let number = *changed.borrow_and_update();
            let wanted = bridged.listening.wanted.lock().clone();
            // The one before goes on until the next one is known, so that nothing is missed between them.
            match subscribe(&bridged, &session, wanted).await {
                Ok(next) => {
                    current = next;
                    bridged.listening.known.send_replace(number);
                }
                Err(error) => {
                    tracing::debug!(target: "protocol", %error, "a session can't listen to its server");
                    drop(bridged);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
        }
        let Some(subscription) = &mut current else {
            // There is nothing to hear until the set changes.
            if changed.changed().await.is_err() {
                return;
            }
            changed.mark_changed();
            continue;
        };
        tokio::select! {
            event = subscription.inlet.next() => match event {
                Some(Event::Message(body, _)) => pass(&session, &body),
                // The process is gone, or the server has ended it.
                Some(Event::Final(..)) | None => {
                    current = None;
                    tokio::time::sleep(PAUSE / 10).await;
                }
            },
            more = changed.changed() => match more {
                Ok(()) => changed.mark_changed(),
                Err(_) => return,
            },
        }
    }
}

/// Asks the server and waits until it has agreed. `None`: there is nothing to hear.
async fn subscribe(
    bridged: &Arc<Bridged>,
    session: &Weak<Session>,
    wanted: Listen,
) -> Result<Option<Subscription>, Error> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let child = bridged.listening.slot.child().await?;
    let stamp = bridged.stamp();
    let text = String::from_utf8(wanted.request(0, &stamp)).unwrap_or_default();
    let envelope = Envelope::parse(&text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
    let (tx, inlet) = outlet();
    let request = Request {
        envelope: &envelope,
        outlet: tx,
        client: OURSELVES,
        streams: true,
        log: Log::No,
        limit: None,
        work: None,
        counted: false,
        translate: None,
    };
    let id = child.send(request, |id| Outbound { line: wanted.request(id, &stamp), token: None })?;
    let mut subscription = Subscription { child, id, inlet };
    let limit = subscription.child.shared.request_limit();
    match tokio::time::timeout(limit, subscription.inlet.next()).await {
        Ok(Some(Event::Message(body, _))) => {
            // What comes first says what was granted. A careless server may not say so.
            if !acknowledges(&body) {
                pass(session, &body);
            }
            Ok(Some(subscription))
        }
        Ok(Some(Event::Final(answer, _))) => match answer.failure {
            Some(error) => Err(error),
            None => Err(Error::SubscriptionEnded),
        },
        Ok(None) => Err(Error::ShimLost),
        Err(_) => Err(Error::RequestTimeout(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))),
    }
}

fn acknowledges(body: &Bytes) -> bool {
    let text = std::str::from_utf8(body).unwrap_or_default();
    Envelope::parse(text, usize::MAX).is_ok_and(|e| e.method == "notifications/subscriptions/acknowledged")
}

/// Gives a change to the session.
fn pass(session: &Weak<Session>, body: &Bytes) {
    let Some(session) = session.upgrade() else { return };
    let text = std::str::from_utf8(body).unwrap_or_default();
    let Ok(envelope) = Envelope::parse(text, usize::MAX) else { return };
    if envelope.method == "notifications/subscriptions/acknowledged" {
        return;
    }
    if let Err(why) = session.tell(&envelope.method, unstamped(&envelope).into(), Streams::default()) {
        session.shared.dropped(why);
    }
}
