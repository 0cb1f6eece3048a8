//! One child, a process or a connection to a server elsewhere: its wire, what is in flight on it, and its end.

pub mod dispatch;
pub mod life;
pub mod lines;
pub mod table;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_protocol::jsonrpc::{Envelope, splice};
use outrigger_protocol::mcp::edit::{self, Outbound};
use outrigger_protocol::mcp::method_label;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::client::{Behind, OURSELVES};
use super::error::Error;
use super::outlet::{Answer, Event, Inlet, Outlet, outlet};
use super::pool::Shared;
use crate::drain::Work;
pub use life::Ending;
use table::{HARD_FACTOR, Log, MAX_IN_FLIGHT, Pending, Table, Translate};
use wire::Wire;
use wire::stdin::Refused;

/// A request without a time limit of its own fails after this long all the same.
const FOREVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Which of the two ways of the protocol a child is spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Era {
    /// Begins with `initialize`.
    #[default]
    Legacy,
    /// Each request carries all it needs.
    Modern,
}

impl Era {
    /// The era as it stands in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// One request on its way in.
pub struct Request<'a> {
    /// The message.
    pub envelope: &'a Envelope<'a>,
    /// Where the response goes.
    pub outlet: Outlet,
    /// Who asks.
    pub client: u64,
    /// Whether anything but the response may go to the outlet.
    pub streams: bool,
    /// Which log messages may.
    pub log: Log,
    /// Time until the response; progress restarts it. Without one, the response may come at any time.
    pub limit: Option<Duration>,
    /// Keeps a drain waiting.
    pub work: Option<Work>,
    /// Whether it is a request of a client's to be counted; not so for one that is part of another.
    pub counted: bool,
    /// For a response that is not simply given back under the client's id.
    pub translate: Option<Translate>,
}

/// One child.
pub struct Child {
    /// Process id in the tool container; 0 when it is no process of this pod.
    pub pid: u32,
    /// Which way it is spoken to.
    pub era: Era,
    pub(super) shared: Arc<Shared>,
    pub(super) behind: Behind,
    pub(super) table: Mutex<Table>,
    wire: Wire,
    last_id: AtomicU64,
    /// The first reason to stop, and the grace time of the ladder.
    stop: watch::Sender<Option<(&'static str, Duration)>>,
    wake: Notify,
    ended: watch::Sender<Option<Ending>>,
    /// Did its handshake.
    initialized: AtomicBool,
    /// Pings in a row without an answer.
    pub missed_pings: AtomicU64,
    /// Whether it has said anything at all.
    pub heard: AtomicBool,
    /// When it was started.
    pub since: Instant,
    /// When a client last used it, in milliseconds after the start.
    used: AtomicU64,
}

impl Child {
    /// Starts a child on a wire of its own. `on_end` runs once when it is gone.
    pub async fn start(
        shared: &Arc<Shared>,
        era: Era,
        behind: Behind,
        on_end: impl FnOnce(&Arc<Self>, &Ending) + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let (wire, driver) = Wire::open(shared).await?;
        let child = Arc::new(Self {
            pid: driver.pid(),
            era,
            shared: Arc::clone(shared),
            behind,
            table: Mutex::default(),
            wire,
            last_id: AtomicU64::new(0),
            stop: watch::Sender::new(None),
            wake: Notify::new(),
            ended: watch::Sender::new(None),
            initialized: AtomicBool::new(false),
            missed_pings: AtomicU64::new(0),
            heard: AtomicBool::new(false),
            since: Instant::now(),
            used: AtomicU64::new(0),
        });
        let name = &[shared.conf.name.as_str()];
        shared.metrics.child_starts.with_label_values(name).inc();
        shared.metrics.children.with_label_values(name).inc();
        // Conversations with a part of the sidecar come and go with calls.
        if shared.built_in.is_none() {
            tracing::info!(
                target: "transport", server = shared.conf.name, pid = child.pid, era = era.as_str(), "child started"
            );
        }
        tokio::spawn(Arc::clone(&child).supervise(driver, on_end));
        Ok(child)
    }

    /// Sends a request under an id of its own, which it tells. The response, or the failure, goes to its outlet.
    pub fn request(&self, request: Request<'_>) -> Result<u64, Error> {
        let envelope = request.envelope;
        self.send(request, |id| edit::request(envelope, id))
    }

    /// As [`Child::request`], with another line than the client's.
    pub fn send<'a>(&self, request: Request<'_>, line: impl FnOnce(u64) -> Outbound<'a>) -> Result<u64, Error> {
        let envelope = request.envelope;
        let now = Instant::now();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let out = line(id);
        let limit = request.limit.unwrap_or(FOREVER);
        let client = request.client;
        let pending = Pending {
            client_id: envelope.id.map_or("null", |i| i.raw).into(),
            token: out.token.map(Into::into),
            method: method_label(&envelope.method),
            outlet: request.outlet,
            client: request.client,
            streams: request.streams,
            log: request.log,
            started: now,
            deadline: now + limit,
            hard_deadline: now + request.limit.map_or(FOREVER, |l| l * HARD_FACTOR),
            cancelled: false,
            work: request.work,
            counted: request.counted,
            translate: request.translate,
        };
        {
            let mut table = self.table.lock();
            if let Some(closed) = &table.closed {
                return Err(closed.clone());
            }
            if pending.client != OURSELVES && table.pending.len() >= MAX_IN_FLIGHT {
                return Err(Error::Overloaded);
            }
            table.pending.insert(id, pending);
        }
        if client != OURSELVES {
            self.used.store(millis(now - self.since), Ordering::Relaxed);
        }
        if limit < self.shared.request_limit() {
            self.recheck();
        }
        match self.wire.send(out.line) {
            Err(Refused::Full) => {
                self.table.lock().pending.remove(&id);
                Err(Error::Overloaded)
            }
            // The end of the child is about to be noticed, and will fail this request with the exit code.
            Ok(()) | Err(Refused::Closed) => Ok(id),
        }
    }

    /// Makes the watching task look at the deadlines again: it sleeps until the earliest one it knows.
    fn recheck(&self) {
        self.wake.notify_one();
    }

    /// Sends a notification of a client, with the id of a cancelled request translated.
    pub fn notify(&self, client: u64, envelope: &Envelope<'_>) -> Result<(), Error> {
        if envelope.method != "notifications/cancelled" {
            return self.write(splice(envelope.text, &[]));
        }
        let Some(raw_id) = edit::param(envelope, "requestId") else { return Ok(()) };
        match self.cancelling(|table| table.find(client, raw_id)) {
            Some(id) => self.write(edit::with_param(envelope, "requestId", &id.to_string())),
            None => Ok(()),
        }
    }

    /// Tells the child that nobody waits for a response any more, if it is still to come.
    pub fn cancel(&self, id: u64, reason: &str) {
        if self.cancelling(|_| Some(id)).is_some() {
            let _ = self.write(cancelled(id, reason));
        }
    }

    /// Marks a request as cancelled: it ends soon, with or without its response. A handshake can't be cancelled.
    fn cancelling(&self, find: impl FnOnce(&Table) -> Option<u64>) -> Option<u64> {
        let mut table = self.table.lock();
        let id = find(&table)?;
        let pending = table.pending.get_mut(&id).filter(|p| p.method != "initialize" && !p.cancelled)?;
        pending.cancelled = true;
        pending.deadline = pending.deadline.min(Instant::now() + self.shared.timing.cancelled);
        drop(table);
        self.recheck();
        Some(id)
    }

    /// Gives a request in flight another raw id and progress token: its client has come back with another request.
    pub fn readdress(&self, id: u64, client_id: &str, token: Option<&str>) {
        if let Some(pending) = self.table.lock().pending.get_mut(&id) {
            pending.client_id = client_id.into();
            pending.token = token.map(Into::into);
        }
    }

    /// Ends all that a client has in flight.
    pub fn drop_client(&self, client: u64, error: &Error) {
        let gone: Vec<(u64, Pending)> = {
            let mut table = self.table.lock();
            let ids: Vec<u64> = table.pending.iter().filter(|(_, p)| p.client == client).map(|(id, _)| *id).collect();
            ids.into_iter().filter_map(|id| Some((id, table.pending.remove(&id)?))).collect()
        };
        for (id, pending) in gone {
            if !pending.cancelled {
                let _ = self.write(cancelled(id, "the client has left"));
            }
            self.fail(&pending, error);
        }
    }

    /// Brings the answer to a question of the child's, under the id that the child gave it.
    pub fn reply(&self, child_id: &str, envelope: &Envelope<'_>) -> Result<(), Error> {
        self.write(edit::with_id(envelope, child_id))
    }

    /// Sends a line as it is.
    pub fn write(&self, line: Vec<u8>) -> Result<(), Error> {
        self.wire.send(line).map_err(|r| match r {
            Refused::Full => Error::Overloaded,
            Refused::Closed => self.table.lock().closed.clone().unwrap_or(Error::StdoutClosed),
        })
    }

    /// Fails one request by the id that the child knows it under; for a wire that lost it.
    pub fn fail_request(&self, id: u64, error: &Error) {
        let pending = self.table.lock().pending.remove(&id);
        if let Some(pending) = pending {
            self.fail(&pending, error);
        }
    }

    /// Gives a request its failure.
    fn fail(&self, pending: &Pending, error: &Error) {
        let answer = Answer::failure(error, &self.shared.conf.name, Some(&pending.client_id));
        self.complete(pending, Some(answer), error.outcome());
    }

    /// Gives a request its response; without one, somebody else gives it.
    fn complete(&self, pending: &Pending, answer: Option<Answer>, outcome: &'static str) {
        if pending.counted {
            self.shared.count(pending.method, outcome, pending.started);
        }
        if let Some(answer) = answer
            && !pending.outlet.finish(answer)
            && pending.client != OURSELVES
        {
            self.shared.dropped("unread_response");
        }
    }

    /// The proxy's own request, such as `ping`: the whole response.
    pub async fn call(&self, method: &str, params: &str, limit: Duration) -> Result<Answer, Error> {
        self.call_text(&own_request(method, params), limit).await
    }

    /// A request in the proxy's own name, whole, under any id.
    pub async fn call_text(&self, text: &str, limit: Duration) -> Result<Answer, Error> {
        let mut inlet = self.ask(text, limit)?;
        // The table's own deadline is the one that counts; this one only covers a loop that is about to end.
        match tokio::time::timeout(limit + self.shared.timing.shim, inlet.next()).await {
            Ok(Some(Event::Final(Answer { failure: Some(error), .. }, _))) => Err(error),
            Ok(Some(Event::Final(answer, _))) => Ok(answer),
            Ok(_) => Err(Error::ShimLost),
            Err(_) => Err(Error::RequestTimeout(millis(limit))),
        }
    }

    /// The proxy's own request whose response matters to nobody. It is on its way before what comes after it.
    pub fn demand(&self, method: &str, params: &str) -> Result<(), Error> {
        self.ask(&own_request(method, params), self.shared.request_limit()).map(|_| ())
    }

    /// Sends a request in the proxy's own name; what comes of it can be read where it says.
    fn ask(&self, text: &str, limit: Duration) -> Result<Inlet, Error> {
        let envelope = Envelope::parse(text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let (outlet, inlet) = outlet();
        self.request(Request {
            envelope: &envelope,
            outlet,
            client: OURSELVES,
            streams: false,
            log: Log::No,
            limit: Some(limit),
            work: None,
            counted: false,
            translate: None,
        })?;
        Ok(inlet)
    }

    /// Its server has forgotten what it was told: it is told again what clients have in common. Their calls go on.
    pub fn renewed(&self) {
        self.shared.dropped("session_renewed");
        let Behind::Many(audience) = &self.behind else { return };
        for (method, params) in audience.told() {
            let _ = self.demand(method, &params);
        }
    }

    /// The proxy's own notification.
    pub fn say(&self, method: &str) -> Result<(), Error> {
        self.write(format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes())
    }
}

/// A request under any id: each gets its own on its way.
fn own_request(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#)
}

fn cancelled(id: u64, reason: &str) -> Vec<u8> {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"{reason}"}}}}"#
    )
    .into_bytes()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
