//! What is in flight on one child, and whom each message of it belongs to.

use std::collections::HashMap;
use std::time::Duration;

use outrigger_protocol::jsonrpc::Envelope;
use tokio::time::Instant;

use crate::drain::Work;
use crate::mcp::client::{OURSELVES, Streams};
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Outlet};

/// Requests of clients in flight on one child.
pub const MAX_IN_FLIGHT: usize = 1024;
/// Progress restarts a request's time, up to this many times the limit in all.
pub const HARD_FACTOR: u32 = 10;

/// Makes the client's answer of a response; without one, the translator has taken over the client's stream.
pub type Translate = Box<dyn FnOnce(&Envelope<'_>, &Pending) -> Option<Answer> + Send>;

/// A request on its way through the child.
pub struct Pending {
    /// The client's raw id.
    pub client_id: Box<str>,
    /// The client's raw progress token.
    pub token: Option<Box<str>>,
    /// Metric label.
    pub method: &'static str,
    /// Where the response goes.
    pub outlet: Outlet,
    /// Number of the client, or [`OURSELVES`]: then it is not counted and carries nothing else.
    pub client: u64,
    /// Whether anything but the response may go to the outlet.
    pub streams: bool,
    /// The least severe log messages that may go there; a request of the stateless revision says so itself.
    pub log: Log,
    /// Since when.
    pub started: Instant,
    /// Fails by then; progress moves it.
    pub deadline: Instant,
    /// Fails by then in any case.
    pub hard_deadline: Instant,
    /// The client does not want the response any more.
    pub cancelled: bool,
    /// Keeps a drain waiting.
    pub work: Option<Work>,
    /// Whether it is counted.
    pub counted: bool,
    /// For a response that is not simply given back under the client's id.
    pub translate: Option<Translate>,
}

/// Which log messages a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// None.
    No,
    /// What the level of its session lets through.
    Session,
    /// At least this severe, as a place in the list of levels.
    From(usize),
}

impl Pending {
    fn listens(&self) -> bool {
        self.streams && self.client != OURSELVES && !self.cancelled && self.outlet.open()
    }
}

/// See the module.
#[derive(Default)]
pub struct Table {
    /// By our id, which is also the progress token.
    pub pending: HashMap<u64, Pending>,
    /// Set when the child is gone: what new requests get.
    pub closed: Option<Error>,
}

impl Table {
    /// Requests of clients in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.values().filter(|p| p.client != OURSELVES).count()
    }

    /// Whether a client has a request in flight.
    pub fn busy(&self, client: u64) -> bool {
        self.pending.values().any(|p| p.client == client)
    }

    /// Responses of the clients' requests that somebody reads.
    pub fn streams(&self) -> Streams {
        let mut open: Vec<(&u64, &Pending)> = self.pending.iter().filter(|(_, p)| p.listens()).collect();
        let newest = open.iter().max_by_key(|(id, _)| **id).map(|(_, p)| p.outlet.clone());
        let current = if open.len() == 1 { open.pop().map(|(_, p)| p.outlet.clone()) } else { None };
        Streams { current, newest }
    }

    /// The only request of a client in flight.
    pub fn only(&self) -> Option<&Pending> {
        let mut all = self.pending.values().filter(|p| p.client != OURSELVES);
        let first = all.next()?;
        all.next().is_none().then_some(first)
    }

    /// The only request in flight that asked for log messages by itself.
    pub fn only_logged(&self) -> Option<&Pending> {
        let mut all = self.pending.values().filter(|p| matches!(p.log, Log::From(_)));
        let first = all.next()?;
        all.next().is_none().then_some(first)
    }

    /// The newest request in flight that a client knows under a raw id.
    pub fn find(&self, client: u64, raw_id: &str) -> Option<u64> {
        let found = self.pending.iter().filter(|(_, p)| p.client == client && &*p.client_id == raw_id);
        found.map(|(id, _)| *id).max()
    }

    /// Takes the requests out whose time is over. While a question waits for somebody, the call that waits for its
    /// answer is not overdue, and gets `more`.
    pub fn overdue(&mut self, now: Instant, asking: bool, more: Duration) -> Vec<(u64, Pending)> {
        let overdue: Vec<u64> = self
            .pending
            .iter_mut()
            .filter_map(|(id, p)| {
                if asking && p.client != OURSELVES && !p.cancelled && p.deadline <= now {
                    p.deadline = now + more;
                }
                (p.deadline <= now || p.hard_deadline <= now).then_some(*id)
            })
            .collect();
        overdue.into_iter().filter_map(|id| Some((id, self.pending.remove(&id)?))).collect()
    }

    /// The next moment at which something times out.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pending.values().map(|p| p.deadline.min(p.hard_deadline)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::outlet::{Inlet, outlet};

    fn pending(client: u64) -> (Pending, Inlet) {
        let now = Instant::now();
        let (outlet, inlet) = outlet();
        let pending = Pending {
            client_id: "1".into(),
            token: None,
            method: "tools/call",
            outlet,
            client,
            streams: true,
            log: Log::Session,
            started: now,
            deadline: now,
            hard_deadline: now + Duration::from_secs(9),
            cancelled: false,
            work: None,
            counted: true,
            translate: None,
        };
        (pending, inlet)
    }

    #[tokio::test]
    async fn one_request_in_flight_is_the_current_one_of_two_none_is() {
        let mut t = Table::default();
        let ((ours, _o), (a, _a), (b, b_in)) = (pending(OURSELVES), pending(1), pending(2));
        let (a_out, b_out) = (a.outlet.clone(), b.outlet.clone());
        t.pending.insert(1, ours);
        assert!(t.streams().newest.is_none() && t.only().is_none());
        t.pending.insert(2, a);
        assert!(t.streams().current.unwrap().same(&a_out) && t.only().is_some_and(|p| p.client == 1));
        t.pending.insert(3, b);
        let streams = t.streams();
        assert!(streams.current.is_none() && streams.newest.unwrap().same(&b_out) && t.only().is_none());
        assert_eq!((t.find(1, "1"), t.find(2, "1"), t.find(3, "1"), t.in_flight()), (Some(2), Some(3), None, 2));
        // Who does not read has no stream.
        drop(b_in);
        assert!(t.streams().current.unwrap().same(&a_out) && t.only().is_none());
    }

    #[tokio::test]
    async fn a_question_gives_time_but_not_for_ever() {
        let mut t = Table::default();
        t.pending.insert(1, pending(1).0);
        let now = Instant::now();
        assert!(t.overdue(now, true, Duration::from_secs(2)).is_empty());
        assert_eq!(t.next_deadline(), Some(now + Duration::from_secs(2)));
        assert_eq!(t.overdue(now + Duration::from_secs(10), true, Duration::from_secs(2)).len(), 1);
        t.pending.insert(2, pending(1).0);
        assert_eq!(t.overdue(now + Duration::from_secs(1), false, Duration::from_secs(2)).len(), 1);
        assert_eq!(t.next_deadline(), None);
    }
}
