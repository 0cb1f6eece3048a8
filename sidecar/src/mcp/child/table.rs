//! What is in flight between one child and its client, and where each message belongs.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::drain::Work;
use crate::mcp::error::Error;
use crate::mcp::outlet::Outlet;

/// Requests of a client in flight on one child.
pub const MAX_IN_FLIGHT: usize = 256;
/// Requests of a child that await the client's answer.
pub const MAX_ASKED: usize = 64;
/// Messages kept for a client that has no stream open.
const MAX_PARKED: usize = 64;
/// Their bytes.
const MAX_PARKED_BYTES: usize = 1 << 20;
/// Progress restarts a request's time, up to this many times the limit in all.
pub const HARD_FACTOR: u32 = 10;

/// A request of the client on its way through the child.
#[derive(Debug)]
pub struct Pending {
    /// The client's raw id.
    pub client_id: Box<str>,
    /// The client's raw progress token.
    pub token: Option<Box<str>>,
    /// Metric label.
    pub method: &'static str,
    /// Where the response goes.
    pub outlet: Outlet,
    /// Whether anything but the response may go there.
    pub streams: bool,
    /// Whether it is the proxy's own: it is not counted and carries nothing else.
    pub internal: bool,
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
}

/// A request of the child that awaits the client's answer.
#[derive(Debug)]
pub struct Asked {
    /// The child's raw id.
    pub child_id: Box<str>,
    /// Answered with an error by then.
    pub deadline: Instant,
    /// Whether a client got it.
    pub delivered: bool,
}

impl Asked {
    fn deliver(&mut self, limit: Duration) {
        self.delivered = true;
        self.deadline = Instant::now() + limit;
    }
}

/// A message that no stream could take yet.
#[derive(Debug)]
pub struct Parked {
    body: Bytes,
    /// Our id, for a request.
    ask: Option<u64>,
}

/// What kind of message a child sent, as far as its way is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Belongs to no request: for the session's stream.
    Session,
    /// Probably belongs to the request in flight.
    Current,
}

/// What happened to a message for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A stream took it.
    Sent,
    /// It waits for a stream.
    Parked,
    /// Nobody reads, or too slowly.
    Dropped(&'static str),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    /// By our id, which is also the progress token.
    pub pending: HashMap<u64, Pending>,
    /// By our id towards the client.
    pub asked: HashMap<u64, Asked>,
    /// The session's stream.
    pub listener: Option<Outlet>,
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    last_ask: u64,
    /// How long a client may take to answer a request of the child.
    answer_limit: Duration,
    /// Set when the child is gone: what new requests get.
    pub closed: Option<Error>,
}

impl Table {
    /// An empty one, for a client that may take this long to answer a request of the child.
    pub fn new(answer_limit: Duration) -> Self {
        Self { answer_limit, ..Self::default() }
    }

    /// Requests of the client in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.values().filter(|p| !p.internal).count()
    }

    /// Whether anything of the client's is open: a request, or the session's stream.
    pub fn in_use(&self) -> bool {
        self.in_flight() > 0 || self.listener.as_ref().is_some_and(Outlet::open)
    }

    /// A new id for a request towards the client.
    pub fn next_ask(&mut self) -> u64 {
        self.last_ask += 1;
        self.last_ask
    }

    /// The one request in flight whose response is a stream that somebody reads.
    fn current(&self) -> Option<&Outlet> {
        let mut open = self.pending.values().filter(|p| p.streams && !p.internal && !p.cancelled && p.outlet.open());
        let first = open.next()?;
        open.next().is_none().then_some(&first.outlet)
    }

    /// Any request in flight whose response is a stream that somebody reads, the newest first.
    fn any(&self) -> Option<&Outlet> {
        let open = self.pending.iter().filter(|(_, p)| p.streams && !p.internal && !p.cancelled && p.outlet.open());
        open.max_by_key(|(id, _)| **id).map(|(_, p)| &p.outlet)
    }

    /// Brings a message to the client. `ask` is our id if it is a request.
    pub fn deliver(&mut self, body: Bytes, route: Route, ask: Option<u64>) -> Delivery {
        let listener = self.listener.as_ref().filter(|l| l.open());
        let way = match route {
            Route::Session => listener,
            Route::Current => self.current().or(listener),
        };
        // The child waits for an answer to a request: any stream is better than none.
        let way = way.or_else(|| ask.and_then(|_| self.any()));
        let Some(way) = way else { return self.park(body, ask) };
        if way.message(&body) {
            if let Some(asked) = ask.and_then(|a| self.asked.get_mut(&a)) {
                asked.deliver(self.answer_limit);
            }
            return Delivery::Sent;
        }
        if ask.is_some() { self.park(body, ask) } else { Delivery::Dropped("slow_reader") }
    }

    /// Keeps a message for the next stream. The oldest notification makes room; requests time out by themselves.
    fn park(&mut self, body: Bytes, ask: Option<u64>) -> Delivery {
        if body.len() > MAX_PARKED_BYTES {
            return Delivery::Dropped("no_reader");
        }
        let mut lost = false;
        while self.parked.len() >= MAX_PARKED || self.parked_bytes + body.len() > MAX_PARKED_BYTES {
            let oldest = self.parked.iter().position(|p| p.ask.is_none()).unwrap_or(0);
            if let Some(old) = self.parked.remove(oldest) {
                self.parked_bytes -= old.body.len();
                lost = true;
            }
        }
        self.parked_bytes += body.len();
        self.parked.push_back(Parked { body, ask });
        if lost { Delivery::Dropped("no_reader") } else { Delivery::Parked }
    }

    /// Gives what waits to a stream: all of it to the session's, only requests to that of a request.
    pub fn flush(&mut self, to: &Outlet, all: bool) {
        let mut kept = VecDeque::new();
        for parked in std::mem::take(&mut self.parked) {
            // A request that was answered or timed out meanwhile is of no use.
            let asked = parked.ask.map(|a| self.asked.get_mut(&a));
            let wanted = match &asked {
                None => all,
                Some(asked) => asked.is_some(),
            };
            if matches!(asked, Some(None)) || (wanted && to.message(&parked.body)) {
                self.parked_bytes -= parked.body.len();
                if let Some(Some(asked)) = asked {
                    asked.deliver(self.answer_limit);
                }
            } else {
                kept.push_back(parked);
            }
        }
        self.parked = kept;
    }

    /// The next moment at which something times out.
    pub fn next_deadline(&self) -> Option<Instant> {
        let pending = self.pending.values().map(|p| p.deadline.min(p.hard_deadline));
        pending.chain(self.asked.values().map(|a| a.deadline)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::outlet::{Event, Inlet, outlet};

    fn pending(outlet: &Outlet) -> Pending {
        let now = Instant::now();
        Pending {
            client_id: "1".into(),
            token: None,
            method: "tools/call",
            outlet: outlet.clone(),
            streams: true,
            internal: false,
            started: now,
            deadline: now,
            hard_deadline: now,
            cancelled: false,
            work: None,
        }
    }

    fn ask(table: &mut Table) -> u64 {
        let id = table.next_ask();
        let deadline = Instant::now() + Duration::from_secs(9);
        table.asked.insert(id, Asked { child_id: "7".into(), deadline, delivered: false });
        id
    }

    async fn got(inlet: &mut Inlet) -> Bytes {
        match inlet.next().await {
            Some(Event::Message(body)) => body,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_request_in_flight_gets_the_log_two_do_not() {
        let mut t = Table::default();
        let (a, mut a_in) = outlet();
        let (l, mut l_in) = outlet();
        t.pending.insert(1, pending(&a));
        t.listener = Some(l);
        assert_eq!(t.deliver("log".into(), Route::Current, None), Delivery::Sent);
        assert_eq!(got(&mut a_in).await, "log");
        t.pending.insert(2, pending(&a));
        assert_eq!(t.deliver("log2".into(), Route::Current, None), Delivery::Sent);
        assert_eq!(got(&mut l_in).await, "log2");
        assert_eq!(t.deliver("changed".into(), Route::Session, None), Delivery::Sent);
        assert_eq!(got(&mut l_in).await, "changed");
    }

    #[tokio::test]
    async fn without_a_stream_messages_wait_and_requests_take_any_response() {
        let mut t = Table::default();
        let id = ask(&mut t);
        assert_eq!(t.deliver("n".into(), Route::Session, None), Delivery::Parked);
        assert_eq!(t.deliver("r".into(), Route::Current, Some(id)), Delivery::Parked);
        let (a, mut a_in) = outlet();
        t.flush(&a, false);
        assert_eq!(got(&mut a_in).await, "r");
        assert!(t.asked[&id].delivered);
        let (l, mut l_in) = outlet();
        t.flush(&l, true);
        assert_eq!(got(&mut l_in).await, "n");
        assert_eq!(t.parked_bytes, 0);
        for _ in 0..MAX_PARKED {
            assert_eq!(t.deliver("x".into(), Route::Session, None), Delivery::Parked);
        }
        assert_eq!(t.deliver("y".into(), Route::Session, None), Delivery::Dropped("no_reader"));
        assert_eq!(t.parked.len(), MAX_PARKED);
    }
}
