//! One child, a process or a connection to a server elsewhere: its wire, what is in flight on it, and its end.

pub mod dispatch;
pub mod lines;
pub mod table;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR, plain_error};
use outrigger_protocol::mcp::shim::Exit;
use outrigger_protocol::mcp::{edit, method_label};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::error::Error;
use super::outlet::{Answer, Outlet};
use super::server::Shared;
use crate::drain::Work;
use table::{HARD_FACTOR, MAX_IN_FLIGHT, Pending, Table};
use wire::stdin::Refused;
use wire::{Driver, Wire};

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was asked to; why.
    Asked(&'static str),
    /// By itself.
    Own(Error),
}

impl Ending {
    fn label(&self) -> &'static str {
        match self {
            Self::Asked(_) => "stopped",
            Self::Own(Error::ChildExited(Exit { code: Some(_), .. })) => "exit_code",
            Self::Own(Error::ChildExited(_)) => "signal",
            Self::Own(Error::StdoutClosed) => "stdout_closed",
            Self::Own(_) => "shim_lost",
        }
    }

    fn error(&self) -> Error {
        match self {
            Self::Asked(_) => Error::SessionEnded,
            Self::Own(error) => error.clone(),
        }
    }
}

/// One request on its way in.
pub struct Request<'a> {
    /// The message.
    pub envelope: &'a Envelope<'a>,
    /// Where the response goes.
    pub outlet: Outlet,
    /// Whether anything but the response may go there.
    pub streams: bool,
    /// Whether it is the proxy's own.
    pub internal: bool,
    /// Time until the response; progress restarts it.
    pub limit: Duration,
    /// Keeps a drain waiting.
    pub work: Option<Work>,
}

/// One child.
pub struct Child {
    /// Process id in the tool container; 0 when it is no process of this pod.
    pub pid: u32,
    pub(super) shared: Arc<Shared>,
    /// Whether a client is behind it: its questions have somebody to answer them.
    pub(super) attended: bool,
    wire: Wire,
    pub(super) table: Mutex<Table>,
    next_id: AtomicU64,
    /// The first reason to stop, and the grace time of the ladder.
    stop: watch::Sender<Option<(&'static str, Duration)>>,
    wake: Notify,
    ended: watch::Sender<Option<Ending>>,
    /// Answered `initialize`: may be pinged.
    pub initialized: AtomicBool,
    /// Pings in a row without an answer.
    pub missed_pings: AtomicU64,
}

impl Child {
    /// Starts a child on a wire of its own. `on_end` runs once when it is gone.
    pub async fn start(
        shared: &Arc<Shared>,
        attended: bool,
        on_end: impl FnOnce(&Arc<Self>, &Ending) + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let (wire, driver) = Wire::open(shared).await?;
        let child = Arc::new(Self {
            pid: driver.pid(),
            shared: Arc::clone(shared),
            attended,
            wire,
            table: Mutex::new(Table::new(shared.request_limit() * HARD_FACTOR)),
            next_id: AtomicU64::new(0),
            stop: watch::Sender::new(None),
            wake: Notify::new(),
            ended: watch::Sender::new(None),
            initialized: AtomicBool::new(false),
            missed_pings: AtomicU64::new(0),
        });
        let name = &[shared.conf.name.as_str()];
        shared.metrics.child_starts.with_label_values(name).inc();
        shared.metrics.children.with_label_values(name).inc();
        tracing::info!(target: "transport", server = shared.conf.name, pid = child.pid, "child started");
        tokio::spawn(Arc::clone(&child).supervise(driver, on_end));
        Ok(child)
    }

    /// Sends a request. The response, or the failure, goes to its outlet.
    pub fn request(&self, request: Request<'_>) -> Result<(), Error> {
        let envelope = request.envelope;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let out = edit::request(envelope, id);
        let now = Instant::now();
        {
            let mut table = self.table.lock();
            if let Some(closed) = &table.closed {
                return Err(closed.clone());
            }
            if !request.internal && table.pending.len() >= MAX_IN_FLIGHT {
                return Err(Error::Overloaded);
            }
            if request.streams && table.listener.is_none() {
                table.flush(&request.outlet, false);
            }
            table.pending.insert(
                id,
                Pending {
                    client_id: envelope.id.map_or("null", |i| i.raw).into(),
                    token: out.token.map(Into::into),
                    method: method_label(&envelope.method),
                    outlet: request.outlet,
                    streams: request.streams,
                    internal: request.internal,
                    started: now,
                    deadline: now + request.limit,
                    hard_deadline: now + request.limit * HARD_FACTOR,
                    cancelled: false,
                    work: request.work,
                },
            );
        }
        if request.limit < self.shared.request_limit() {
            self.recheck();
        }
        match self.wire.send(out.line) {
            Err(Refused::Full) => {
                self.table.lock().pending.remove(&id);
                Err(Error::Overloaded)
            }
            // The end of the child is about to be noticed, and will fail this request with the exit code.
            Ok(()) | Err(Refused::Closed) => Ok(()),
        }
    }

    /// Makes the watching task look at the deadlines again: it sleeps until the earliest one it knows.
    pub(super) fn recheck(&self) {
        self.wake.notify_one();
    }

    /// Sends a notification, with the id of a cancelled request translated.
    pub fn notify(&self, envelope: &Envelope<'_>) -> Result<(), Error> {
        let line = if envelope.method == "notifications/cancelled" {
            let Some(client_id) = edit::param(envelope, "requestId") else { return Ok(()) };
            let mut table = self.table.lock();
            // The newest, should a client have used an id twice.
            let found = table.pending.iter_mut().filter(|(_, p)| !p.internal && &*p.client_id == client_id);
            let Some((id, pending)) = found.max_by_key(|(id, _)| **id) else { return Ok(()) };
            if pending.method == "initialize" {
                return Ok(());
            }
            pending.cancelled = true;
            pending.deadline = pending.deadline.min(Instant::now() + self.shared.timing.cancelled);
            let line = edit::with_param(envelope, "requestId", &id.to_string());
            self.recheck();
            line
        } else {
            outrigger_protocol::jsonrpc::splice(envelope.text, &[])
        };
        self.write(line)
    }

    /// Brings the client's answer to the child's request. `false`: nobody asked, or asked too long ago.
    pub fn answer(&self, envelope: &Envelope<'_>) -> Result<bool, Error> {
        let id = envelope.id.and_then(|i| i.raw.parse::<u64>().ok());
        let asked = id.and_then(|id| self.table.lock().asked.remove(&id));
        let Some(asked) = asked else { return Ok(false) };
        self.write(edit::with_id(envelope, &asked.child_id))?;
        Ok(true)
    }

    pub(super) fn write(&self, line: Vec<u8>) -> Result<(), Error> {
        self.wire.send(line).map_err(|r| match r {
            Refused::Full => Error::Overloaded,
            Refused::Closed => self.table.lock().closed.clone().unwrap_or(Error::StdoutClosed),
        })
    }

    /// Makes `outlet` the session's stream; the one before ends.
    pub fn listen(&self, outlet: Outlet) -> Result<(), Error> {
        let mut table = self.table.lock();
        if let Some(closed) = &table.closed {
            return Err(closed.clone());
        }
        table.flush(&outlet, true);
        table.listener = Some(outlet);
        Ok(())
    }

    /// Asks the child to end. Returns at once.
    pub fn stop(&self, why: &'static str, grace: Duration) {
        let first = self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            if first {
                *stop = Some((why, grace));
            }
            first
        });
        if first {
            self.wake.notify_one();
        }
    }

    /// Whether it was asked to end.
    pub fn stopping(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Waits until it is asked to end: the grace time of the stop ladder. For its wire.
    pub async fn stop_asked(&self) -> Duration {
        let mut stop = self.stop.subscribe();
        match stop.wait_for(Option::is_some).await {
            Ok(asked) => asked.map_or(self.shared.timing.grace, |(_, grace)| grace),
            Err(_) => self.shared.timing.grace,
        }
    }

    /// Waits until it is gone.
    pub async fn ended(&self) -> Ending {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().unwrap_or(Ending::Asked("gone")),
            Err(_) => Ending::Asked("gone"),
        }
    }

    /// How it ended, if it did.
    pub fn ending(&self) -> Option<Ending> {
        self.ended.borrow().clone()
    }

    /// Runs the wire and watches the deadlines until the child is gone.
    async fn supervise(self: Arc<Self>, driver: Driver, on_end: impl FnOnce(&Arc<Self>, &Ending) + Send) {
        let run = driver.run(&self);
        tokio::pin!(run);
        let reason = loop {
            if self.stopping() {
                self.close(&Error::SessionEnded);
            }
            // Requests that are yet to come have at least as long, or ask for another look.
            let latest = Instant::now() + self.shared.request_limit();
            let wake = self.table.lock().next_deadline().map_or(latest, |deadline| deadline.min(latest));
            tokio::select! {
                reason = &mut run => break reason,
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(wake) => self.time_out(),
            }
        };
        let asked = self.stop.borrow().map(|(why, _)| why);
        let ending = asked.map_or(Ending::Own(reason), Ending::Asked);
        self.finish(&ending);
        self.ended.send_replace(Some(ending.clone()));
        on_end(&self, &ending);
    }

    /// Takes no more requests and fails those in flight.
    pub(super) fn close(&self, error: &Error) {
        let pending = {
            let mut table = self.table.lock();
            if table.closed.is_none() {
                table.closed = Some(error.clone());
            }
            table.listener = None;
            table.asked.clear();
            std::mem::take(&mut table.pending)
        };
        for (_, pending) in pending {
            self.fail(&pending, error);
        }
    }

    /// What is to be said and counted at the end.
    fn finish(&self, ending: &Ending) {
        let name = self.shared.conf.name.as_str();
        self.wire.close();
        self.close(&ending.error());
        self.shared.metrics.child_exits.with_label_values(&[name, ending.label()]).inc();
        self.shared.metrics.children.with_label_values(&[name]).dec();
        match ending {
            Ending::Asked(why) => {
                tracing::info!(target: "transport", server = name, pid = self.pid, why, "child stopped");
            }
            Ending::Own(error) => {
                tracing::warn!(target: "transport", server = name, pid = self.pid, %error, "child lost");
            }
        }
    }

    /// Gives a request its failure.
    pub(super) fn fail(&self, pending: &Pending, error: &Error) {
        let answer = Answer::failure(error, &self.shared.conf.name, Some(&pending.client_id));
        self.complete(pending, answer, error.outcome());
    }

    /// Fails one request by the id that the child knows it under; for a wire that lost it.
    pub fn fail_request(&self, id: u64, error: &Error) {
        let pending = self.table.lock().pending.remove(&id);
        if let Some(pending) = pending {
            self.fail(&pending, error);
        }
    }

    /// Gives a request its response.
    pub(super) fn complete(&self, pending: &Pending, answer: Answer, outcome: &'static str) {
        if !pending.internal {
            self.shared.count(pending.method, outcome, pending.started);
        }
        let ok = answer.ok;
        let read = pending.outlet.finish(answer);
        if pending.internal {
            return;
        }
        if !read {
            self.shared.dropped("unread_response");
        }
        if pending.method == "initialize" && !(ok && read) {
            // Nobody has, or can use, this session.
            self.stop(if read { "refused" } else { "abandoned" }, self.shared.timing.grace);
        }
    }

    /// Fails what is overdue.
    fn time_out(&self) {
        let now = Instant::now();
        let (mut late, mut unanswered) = (Vec::new(), Vec::new());
        {
            let mut table = self.table.lock();
            // While the client thinks about a question of the child's, the call that waits for it is not overdue.
            let asking = table.asked.values().any(|a| a.delivered);
            let overdue: Vec<u64> = table
                .pending
                .iter_mut()
                .filter_map(|(id, p)| {
                    if asking && !p.cancelled && p.deadline <= now {
                        p.deadline = now + self.shared.request_limit();
                    }
                    (p.deadline <= now || p.hard_deadline <= now).then_some(*id)
                })
                .collect();
            for id in overdue {
                late.extend(table.pending.remove(&id).map(|p| (id, p)));
            }
            let over: Vec<u64> = table.asked.iter().filter(|(_, a)| a.deadline <= now).map(|(id, _)| *id).collect();
            for id in over {
                unanswered.extend(table.asked.remove(&id));
            }
        }
        for (id, pending) in late {
            let error = match (pending.cancelled, pending.method) {
                (true, _) => Error::Cancelled,
                (_, "initialize") => Error::InitializeTimeout(self.shared.conf.process.start_timeout_ms),
                _ => Error::RequestTimeout(u64::try_from(pending.started.elapsed().as_millis()).unwrap_or(u64::MAX)),
            };
            if matches!(error, Error::RequestTimeout(_)) && !pending.internal {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"timeout"}}}}"#
                );
                let _ = self.write(text.into_bytes());
            }
            self.fail(&pending, &error);
        }
        for asked in unanswered {
            let why = if asked.delivered { "the client did not answer in time" } else { "no client could be asked" };
            let _ = self.write(plain_error(Some(&asked.child_id), INTERNAL_ERROR, why));
        }
    }

    /// The proxy's own request, such as `ping`: its result as raw JSON.
    pub async fn call(&self, method: &str, params: &str, limit: Duration) -> Result<Answer, Error> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#);
        let envelope = Envelope::parse(&text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let (outlet, mut inlet) = super::outlet::outlet();
        self.request(Request { envelope: &envelope, outlet, streams: false, internal: true, limit, work: None })?;
        // The table's own deadline is the one that counts; this one only covers a loop that is about to end.
        match tokio::time::timeout(limit + self.shared.timing.shim, inlet.next()).await {
            Ok(Some(super::outlet::Event::Final(Answer { failure: Some(error), .. }))) => Err(error),
            Ok(Some(super::outlet::Event::Final(answer))) => Ok(answer),
            Ok(_) => Err(Error::ShimLost),
            Err(_) => Err(Error::RequestTimeout(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))),
        }
    }

    /// The proxy's own notification.
    pub fn tell(&self, method: &str) -> Result<(), Error> {
        self.write(format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into_bytes())
    }
}
