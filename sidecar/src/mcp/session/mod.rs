//! One client of the handshake revisions: what it said of itself, the child that it uses, its streams and questions.
//!
//! A session is the proxy's own. One with a child of its own ends with it; one on a shared child outlives it, as the
//! next one is told what this one was told.

pub mod ask;
pub mod mail;
pub mod store;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, string};
use outrigger_protocol::mcp::input::Question;
use outrigger_protocol::mcp::{HANDSHAKE_REVISIONS, edit};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::bridge::legacy::Bridged;
use super::child::Child;
use super::client::{Client, Streams, serial};
use super::error::Error;
use super::outlet::{Inlet, Outlet};
use super::pool::Shared;
use super::pool::slot::Slot;
use super::seal::Key;
use ask::Asked;
use mail::Mail;

/// The child that a session uses.
pub enum Seat {
    /// One of its own.
    Own(Arc<Child>),
    /// One that it shares.
    Shared(Arc<Slot>),
    /// One that speaks the other way.
    Bridged(Arc<Bridged>),
}

impl Seat {
    /// Where its child is, for one that does not belong to one session.
    fn slot(&self) -> Option<&Arc<Slot>> {
        match self {
            Self::Own(_) => None,
            Self::Shared(slot) => Some(slot),
            Self::Bridged(bridged) => Some(&bridged.slot),
        }
    }
}

/// See the module.
pub struct Session {
    /// What its id stands for.
    pub key: Key,
    /// Its id as the client knows it: the client's secret.
    pub id: Box<str>,
    /// Its number as a client of children.
    pub serial: u64,
    /// What its client declared.
    pub capabilities: Box<str>,
    /// Name and version of its client.
    pub client_info: Box<str>,
    pub(super) shared: Arc<Shared>,
    seat: OnceLock<Seat>,
    revision: OnceLock<&'static str>,
    mail: Mutex<Mail>,
    last_used: Mutex<Instant>,
    /// Requests that wait for a child to be started.
    waiting: AtomicUsize,
    me: Weak<Self>,
}

impl Session {
    /// A session that has no child yet.
    pub fn new(shared: &Arc<Shared>, caller: &str, capabilities: &str, client_info: &str) -> Arc<Self> {
        let (key, id) = shared.seal.mint(&["session", caller, &shared.conf.name]);
        Arc::new_cyclic(|me| Self {
            key,
            id: id.into(),
            serial: serial(),
            capabilities: capabilities.into(),
            client_info: client_info.into(),
            shared: Arc::clone(shared),
            seat: OnceLock::new(),
            revision: OnceLock::new(),
            mail: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            waiting: AtomicUsize::new(0),
            me: me.clone(),
        })
    }

    /// Gives it its child, once.
    pub fn sit(&self, seat: Seat) {
        if let Some(slot) = seat.slot() {
            let me: Weak<Self> = self.me.clone();
            slot.audience.join(self.serial, me);
        }
        if let Seat::Bridged(bridged) = &seat
            && let Some(me) = self.me.upgrade()
        {
            bridged.begin(&me);
        }
        let _ = self.seat.set(seat);
    }

    /// Its child's place.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.get()
    }

    /// A child of its own.
    pub fn own_child(&self) -> Option<&Arc<Child>> {
        match self.seat.get() {
            Some(Seat::Own(child)) => Some(child),
            _ => None,
        }
    }

    /// Its child; a shared one that is gone is started again.
    pub async fn child(&self) -> Result<Arc<Child>, Error> {
        let seat = self.seat.get().ok_or(Error::SessionEnded)?;
        let slot = match seat {
            Seat::Own(child) => return Ok(Arc::clone(child)),
            Seat::Shared(slot) => slot,
            Seat::Bridged(bridged) => &bridged.slot,
        };
        if let Some(child) = slot.living() {
            return Ok(child);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let child = slot.child().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        child
    }

    /// Notes the revision that was agreed on; one that is none of the handshake revisions is not noted.
    pub fn agree(&self, revision: &str) {
        if let Some(known) = HANDSHAKE_REVISIONS.iter().find(|r| **r == revision) {
            let _ = self.revision.set(known);
        }
    }

    /// The revision that was agreed on; empty if the server named one of its own.
    pub fn revision(&self) -> &'static str {
        self.revision.get().copied().unwrap_or_default()
    }

    /// Whether messages on its streams have ids, so that they can be taken up again.
    pub fn resumable(&self) -> bool {
        self.revision() >= "2025-03-26"
    }

    /// Whether its client knows an event without data, which streams begin with.
    pub fn primed(&self) -> bool {
        self.revision() >= "2025-11-25"
    }

    /// Restarts the idle time.
    pub fn touch(&self) {
        *self.last_used.lock() = Instant::now();
    }

    /// How long nothing was open; zero while something is.
    pub fn idle(&self) -> Duration {
        if self.in_use() {
            self.touch();
            return Duration::ZERO;
        }
        self.last_used.lock().elapsed()
    }

    /// Whether anything of the client's is open: a request, its stream, or a question.
    fn in_use(&self) -> bool {
        let child = match self.seat.get() {
            Some(Seat::Own(child)) => Some(Arc::clone(child)),
            Some(seat) => seat.slot().and_then(|slot| slot.living()),
            None => None,
        };
        self.waiting.load(Ordering::Relaxed) > 0
            || self.mail.lock().in_use()
            || child.is_some_and(|c| c.table.lock().busy(self.serial))
    }

    /// Makes a new reader of the session's stream; the one before sees the end. `after` is the last event that the client
    /// has seen, of this stream or of a response that was cut. The number of the stream, and its reader.
    pub fn listen(&self, after: Option<&str>) -> (u64, Inlet) {
        let answer_limit = self.answer_limit();
        self.mail.lock().listen(after, answer_limit)
    }

    /// Keeps a response that has become a stream, so that it can be taken up again: its number.
    pub fn keep(&self, outlet: &Outlet) -> u64 {
        self.mail.lock().keep(outlet)
    }

    /// Brings a message to the client. `question` is its number if it is one.
    fn deliver(&self, line: &Bytes, streams: &Streams, to_session: bool, question: u64) -> Result<(), &'static str> {
        let answer_limit = self.answer_limit();
        self.mail.lock().deliver(line, streams, to_session, question, answer_limit)
    }

    /// How long a client may take to answer a question.
    fn answer_limit(&self) -> Duration {
        self.shared.request_limit() * super::child::table::HARD_FACTOR
    }

    /// Gives the questions that wait for a stream to the response of a new request.
    pub fn offer(&self, outlet: &Outlet) {
        let answer_limit = self.answer_limit();
        self.mail.lock().offer(outlet, answer_limit);
    }

    /// Ends it: what waits for the client is told, what the client waits for fails.
    pub fn end(&self, why: &'static str) {
        let asked = self.mail.lock().end();
        for (_, asked) in asked {
            asked.refuse("the session has ended");
        }
        match self.seat.get() {
            Some(Seat::Own(child)) => child.stop(why, self.shared.timing.grace),
            Some(Seat::Shared(slot)) => slot.left(self.serial),
            Some(Seat::Bridged(bridged)) => bridged.end(self.serial),
            None => {}
        }
    }

    /// A notification of the client.
    pub async fn notify(&self, envelope: &Envelope<'_>) -> Result<(), Error> {
        match self.seat.get() {
            Some(Seat::Own(child)) => child.notify(self.serial, envelope),
            Some(Seat::Shared(slot)) => match &*envelope.method {
                // What a shared child has to know of its client is the proxy's to say.
                "notifications/initialized" | "notifications/roots/list_changed" => Ok(()),
                // A child that is gone has nothing to cancel.
                "notifications/cancelled" => slot.living().map_or(Ok(()), |child| child.notify(self.serial, envelope)),
                _ => self.child().await?.notify(self.serial, envelope),
            },
            Some(Seat::Bridged(bridged)) => bridged.notify(self.serial, envelope),
            None => Err(Error::SessionEnded),
        }
    }

    /// The client's answer to a question. `false`: nobody asked, or asked too long ago.
    pub fn answer(&self, envelope: &Envelope<'_>) -> Result<bool, Error> {
        let number = envelope.id.and_then(|i| i.raw.parse::<u64>().ok());
        let asked = number.and_then(|n| self.mail.lock().answered(n));
        match asked {
            Some(asked) => asked.answer(envelope).map(|()| true),
            None => Ok(false),
        }
    }

    /// Asks the client and waits for its answer: the whole response, under another id.
    pub async fn question(&self, question: &Question, streams: &Streams) -> Result<Bytes, Error> {
        let (asked, answer) = ask::Asked::waiting();
        self.put(asked, streams, |n| question.request(&n.to_string(), &format!("{}-{n}", self.serial)).into())?;
        answer.await.unwrap_or(Err(Error::SessionEnded))
    }

    /// Puts a question to the client, and watches over its time.
    fn put(&self, asked: Asked, streams: &Streams, line: impl FnOnce(u64) -> Bytes) -> Result<(), Error> {
        let limit = self.shared.timing.undelivered;
        let number = match self.mail.lock().ask(asked, limit) {
            Ok(number) => number,
            Err(asked) => {
                asked.refuse("too many questions await an answer");
                return Err(Error::Overloaded);
            }
        };
        let _ = self.deliver(&line(number), streams, false, number);
        tokio::spawn(ask::watch(self.me.clone(), number, limit));
        Ok(())
    }
}

impl Client for Session {
    fn tell(&self, method: &str, line: Bytes, streams: Streams) -> Result<(), &'static str> {
        let to_session = method.ends_with("/list_changed") || method == "notifications/resources/updated";
        self.deliver(&line, &streams, to_session, 0)
    }

    fn ask(&self, child: &Arc<Child>, question: &Envelope<'_>, streams: Streams) {
        let child_id = question.id.map_or("null", |i| i.raw);
        let asked = Asked::of_child(child, child_id);
        // A refusal has been told to the child.
        let _ = self.put(asked, &streams, |n| edit::with_id(question, &n.to_string()).into());
    }

    fn retract(&self, child: &Arc<Child>, child_id: &str, notice: &Envelope<'_>, streams: Streams) {
        let found = self.mail.lock().retract(child, child_id);
        // What no client has seen is simply not delivered.
        if let Some(number) = found {
            let line = edit::with_param(notice, "requestId", &number.to_string()).into();
            if let Err(why) = self.deliver(&line, &streams, false, 0) {
                self.shared.dropped(why);
            }
        }
    }

    fn asking(&self) -> bool {
        self.mail.lock().asking()
    }
}

/// The revision in the result of `initialize`.
pub fn agreed(result: &str) -> String {
    let result = outrigger_protocol::jsonrpc::Slice { raw: result, at: 0 };
    let revision = outrigger_protocol::jsonrpc::member(result, "protocolVersion");
    revision.and_then(|r| string(r.raw)).unwrap_or_default().into_owned()
}
