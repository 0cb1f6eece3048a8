//! From a child's start to its end: what it is waited for, what it is asked, and what its end means.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_protocol::mcp::shim::Exit;
use tokio::time::Instant;

use super::wire::Driver;
use super::{Child, cancelled, millis};
use crate::mcp::client::{Behind, OURSELVES};
use crate::mcp::error::Error;

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

impl Child {
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

    /// Notes that it did its handshake: it may be pinged, and its end is not a failed start.
    pub fn greet(&self) {
        self.initialized.store(true, Ordering::Relaxed);
        self.used.store(millis(self.since.elapsed()), Ordering::Relaxed);
    }

    /// Whether it did its handshake.
    pub fn greeted(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    /// Since when no client has used it.
    pub fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.used.load(Ordering::Relaxed)))
    }

    /// Whether it takes requests.
    pub fn living(&self) -> bool {
        !self.stopping() && self.table.lock().closed.is_none()
    }

    /// Grace time of its stop ladder.
    pub fn grace(&self) -> Duration {
        self.shared.timing.grace
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
    pub(super) async fn supervise(self: Arc<Self>, driver: Driver, on_end: impl FnOnce(&Arc<Self>, &Ending) + Send) {
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
            Ending::Asked(_) if self.shared.built_in.is_some() => {}
            Ending::Asked(why) => {
                tracing::info!(target: "transport", server = name, pid = self.pid, why, "child stopped");
            }
            Ending::Own(error) => {
                tracing::warn!(target: "transport", server = name, pid = self.pid, %error, "child lost");
            }
        }
    }

    /// Fails what is overdue.
    fn time_out(&self) {
        let asking = matches!(&self.behind, Behind::One(client) if client.upgrade().is_some_and(|c| c.asking()));
        let late = self.table.lock().overdue(Instant::now(), asking, self.shared.request_limit());
        for (id, pending) in late {
            let waited = millis(pending.started.elapsed());
            let error = match (pending.cancelled, pending.method) {
                (true, _) => Error::Cancelled,
                (_, "initialize") if self.wire.unread() => Error::StdinUnread(waited),
                (_, "initialize") => Error::InitializeTimeout(waited),
                _ => Error::RequestTimeout(waited),
            };
            if matches!(error, Error::RequestTimeout(_)) && pending.client != OURSELVES {
                let _ = self.write(cancelled(id, "timeout"));
            }
            self.fail(&pending, &error);
        }
    }
}
