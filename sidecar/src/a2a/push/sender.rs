//! The worker that delivers.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::vec::IntoIter;

use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use outrigger_protocol::a2a::artifact::ArtifactUpdate;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::push;
use outrigger_protocol::a2a::task::Task;
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::notify::{Note, Receiver};
use super::{Metrics, Outlet};
use crate::a2a::store::{Event, PushWork, Store, StoreError};
use crate::outbound::{self, Outgoing};

/// Receivers served at once.
pub const MAX_PARALLEL: usize = 32;
/// Receivers of one server that are served at once: a slow one holds up only its own.
pub const MAX_PER_SERVER: usize = 8;
/// Events that are read at once.
const BATCH: usize = 64;
/// A receiver is claimed for so long.
const HOLD: Duration = Duration::from_secs(90);
/// And served for so long before others have their turn: the last attempt ends within the claim.
const SERVE: Duration = Duration::from_secs(30);
/// The store has so long to write down how far a receiver is.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Most of an answer that is read.
const MAX_ANSWER: usize = 16 << 10;
/// Chunks of an artifact that are behind go together up to so many bytes.
const MAX_JOINED: usize = 256 << 10;
/// A receiver may put off its next notification by so much at most.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// When failed deliveries come again.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// After the first failure; doubled with each further one.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
    /// After so many failures in a row the receiver is given up: a day of the above.
    pub attempts: u32,
    /// Between two looks at what is due.
    pub poll: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            attempts: 296,
            poll: Duration::from_secs(1),
        }
    }
}

/// Delivers what the store has for receivers.
pub struct Sender {
    outlet: Arc<Outlet>,
    store: Arc<dyn Store>,
    metrics: Metrics,
    timing: Timing,
    places: Arc<Semaphore>,
    servers: Mutex<HashMap<String, usize>>,
    dead: AtomicU64,
}

/// How an attempt went.
enum Outcome {
    Delivered,
    /// Again later; perhaps the receiver says when.
    Failed(String, Option<Duration>),
    /// Never again.
    Gone(String),
}

/// A place among the receivers of one server.
struct Place<'a> {
    servers: &'a Mutex<HashMap<String, usize>>,
    origin: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut servers = self.servers.lock();
        if let Some(count) = servers.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                servers.remove(&self.origin);
            }
        }
    }
}

impl Sender {
    /// Delivers until shutdown.
    pub fn start(
        outlet: Arc<Outlet>,
        store: Arc<dyn Store>,
        metrics: Metrics,
        timing: Timing,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let sender = Arc::new(Self {
            outlet,
            store,
            metrics,
            timing,
            places: Arc::new(Semaphore::new(MAX_PARALLEL)),
            servers: Mutex::default(),
            dead: AtomicU64::new(0),
        });
        let run = Arc::clone(&sender).run(shutdown.clone());
        tokio::spawn(async move {
            tokio::select! { biased; () = shutdown.cancelled() => {}, () = run => {} }
        });
        sender
    }

    /// Receivers that were given up since the start.
    pub fn dead_letters(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut hint = self.store.push_hint();
        let mut live = true;
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            if self.outlet.live().push.enabled && self.claim(place, &shutdown).await {
                continue;
            }
            tokio::select! {
                changed = hint.changed(), if live => live = changed.is_ok(),
                () = tokio::time::sleep(self.timing.poll) => {}
            }
        }
    }

    /// Serves what is due; says whether there may be more.
    async fn claim(self: &Arc<Self>, first: OwnedSemaphorePermit, shutdown: &CancellationToken) -> bool {
        let mut places = vec![first];
        while let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            places.push(place);
        }
        let due = match self.store.push_due(places.len(), HOLD).await {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(target: "business", %error, "due push notifications cannot be read");
                return false;
            }
        };
        let more = due.len() == places.len();
        for (work, place) in due.into_iter().zip(places) {
            let (sender, shutdown) = (Arc::clone(self), shutdown.clone());
            tokio::spawn(async move {
                let _place = place;
                sender.metrics.in_flight.inc();
                sender.serve(work, &shutdown).await;
                sender.metrics.in_flight.dec();
            });
        }
        more
    }

    /// Delivers to one receiver what there is, for [`SERVE`] at most, and writes down how far it came; at shutdown too, so
    /// that whoever is next need not wait until the claim runs out.
    async fn serve(&self, mut work: PushWork, shutdown: &CancellationToken) {
        let wait = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            wait = self.deliver(&mut work) => wait,
        };
        work.config.next = later(wait.unwrap_or_default());
        match tokio::time::timeout(WRITE_LIMIT, self.store.push_done(work)).await {
            Ok(Ok(())) => {}
            // The claim runs out, and the same events come again.
            Ok(Err(error)) => {
                tracing::debug!(target: "business", %error, "a delivery could not be written down");
            }
            Err(_) => tracing::debug!(target: "business", "a delivery could not be written down in time"),
        }
    }

    /// Says how long the receiver is to be left alone, if it is.
    async fn deliver(&self, work: &mut PushWork) -> Option<Duration> {
        let receiver = match Receiver::of(&work.config) {
            Ok(receiver) => receiver,
            Err(error) => {
                self.give_up(work, &format!("the URL {error}"));
                return None;
            }
        };
        let Some(_place) = self.enter(&receiver) else {
            return Some(self.timing.first.min(Duration::from_millis(250)));
        };
        let until = Instant::now() + SERVE;
        loop {
            let task = match self.store.get(&work.config.task).await {
                Ok(task) if task.revealed => task,
                // Nobody knows of it yet: it may become a direct message.
                Ok(_) => return Some(self.timing.first.min(Duration::from_millis(250))),
                // With the task its receivers are forgotten.
                Err(StoreError::NotFound) => return None,
                Err(_) => return Some(self.timing.first),
            };
            let notes = match self.notes(work, &task).await {
                Ok(notes) if notes.is_empty() => return None,
                Ok(notes) => notes,
                Err(wait) => return Some(wait),
            };
            for (notes, version, at) in notes {
                for note in notes {
                    match self.send(&receiver, &note, work.config.dialect).await {
                        Outcome::Delivered => work.config.attempts = 0,
                        Outcome::Failed(why, wait) => return self.failed(work, &why, wait),
                        Outcome::Gone(why) => {
                            self.give_up(work, &why);
                            return None;
                        }
                    }
                }
                work.config.delivered = version;
                self.metrics.delay.observe(Timestamp::now().duration_since(at).as_secs_f64().max(0.0));
                if task.state.is_terminal() && version >= task.version {
                    // Nothing more comes: what only deliveries needed is not kept.
                    work.config.json = push::without_secrets(&work.config.json);
                    return None;
                }
                if Instant::now() >= until {
                    return None;
                }
            }
        }
    }

    /// The next notifications, each group with the version that is delivered after it.
    async fn notes(&self, work: &PushWork, task: &Task) -> Result<Vec<(Vec<Note>, u64, Timestamp)>, Duration> {
        let config = &work.config;
        let events = match self.store.events(&task.id, config.delivered, BATCH).await {
            Ok(events) => events,
            Err(StoreError::Trimmed(_)) => {
                let note = Note::whole(task, config.dialect).map_err(|_| self.timing.longest)?;
                return Ok(vec![(vec![note], task.version, task.since)]);
            }
            Err(_) => return Err(self.timing.first),
        };
        let last = events.last().map(|e| e.version);
        let mut groups = Vec::with_capacity(events.len());
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            if config.dialect == Dialect::V10
                && let Some((joined, end)) = joined(&event, &mut events)
            {
                let unsure = work.again || (groups.is_empty() && config.attempts > 0);
                let note = if unsure { self.unsure(task, &joined, end.version).await? } else { None };
                let note = note.unwrap_or_else(|| Note::chunk(task, end.version, &joined));
                groups.push((vec![note], end.version, end.at));
                continue;
            }
            let notes = self.of_event(work, task, &event, last == Some(event.version)).await?;
            groups.push((notes, event.version, event.at));
        }
        Ok(groups)
    }

    /// Chunks for a receiver that may have got some of them before, of which only this side does not know: the artifact
    /// as a whole is right whatever it has.
    async fn unsure(&self, task: &Task, chunk: &ArtifactUpdate, version: u64) -> Result<Option<Note>, Duration> {
        if !chunk.append {
            return Ok(None);
        }
        let then = match self.store.at(&task.id, version).await {
            Ok(then) => then,
            Err(StoreError::Trimmed(_)) => {
                return Note::whole(task, Dialect::V10).map(Some).map_err(|_| self.timing.longest);
            }
            Err(_) => return Err(self.timing.first),
        };
        let whole = then.artifacts.iter().find(|a| a.id == chunk.artifact.id);
        let update = whole.map(|a| ArtifactUpdate { artifact: a.clone(), append: false, last: chunk.last });
        Ok(update.map(|update| Note::chunk(task, version, &update)))
    }

    async fn of_event(&self, work: &PushWork, task: &Task, event: &Event, last: bool) -> Result<Vec<Note>, Duration> {
        let old = work.config.dialect != Dialect::V10;
        if event.version > 1 && !old {
            return Ok(Note::events(task, event));
        }
        // 0.3 sends whole tasks: not one for each of many chunks when it is behind.
        let seen = event.change.state.is_some() || (last && !event.change.artifacts.is_empty());
        if old && !seen {
            return Ok(Vec::new());
        }
        let task = match self.store.at(&task.id, event.version).await {
            Ok(task) => task,
            Err(StoreError::Trimmed(_)) => Arc::new(task.clone()),
            Err(_) => return Err(self.timing.first),
        };
        Note::whole(&task, work.config.dialect).map(|note| vec![note]).map_err(|error| {
            tracing::error!(target: "protocol", %error, "a task cannot be written as a push notification");
            self.timing.longest
        })
    }

    async fn send(&self, receiver: &Receiver, note: &Note, dialect: Dialect) -> Outcome {
        let client = match self.outlet.client() {
            Ok(client) => client,
            Err(why) => return Outcome::Failed(why, None),
        };
        let (keys, live) = (self.outlet.keys(), self.outlet.live());
        let issuer = live.offer.public_url.as_deref().unwrap_or(&live.offer.url);
        let request = Outgoing {
            method: Method::POST,
            target: receiver.target.clone(),
            headers: receiver.headers(note, dialect, keys.as_deref(), issuer),
            body: note.body.clone().into(),
            max_answer: MAX_ANSWER,
        };
        let (outcome, label) = match client.send(request).await {
            Ok(answer) if answer.status.is_success() => (Outcome::Delivered, "delivered"),
            Ok(answer) => {
                let why = format!("the receiver answers {}", answer.status.as_u16());
                let wait = answer.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
                let wait = wait.and_then(|v| retry_after(v, Timestamp::now()));
                let gone = answer.status == StatusCode::GONE;
                (if gone { Outcome::Gone(why) } else { Outcome::Failed(why, wait) }, "rejected")
            }
            Err(error) => {
                let label = if matches!(error, outbound::Error::Refused(_)) { "refused" } else { "unreachable" };
                (Outcome::Failed(error.to_string(), None), label)
            }
        };
        self.metrics.deliveries.with_label_values(&[label]).inc();
        outcome
    }

    fn failed(&self, work: &mut PushWork, why: &str, asked: Option<Duration>) -> Option<Duration> {
        let config = &mut work.config;
        config.attempts = config.attempts.saturating_add(1);
        tracing::debug!(target: "transport", task = &*config.task, config = &*config.id, why, attempts = config.attempts, "a push notification failed");
        if config.attempts >= self.timing.attempts {
            self.give_up(work, why);
            return None;
        }
        let doubled = self.timing.first.saturating_mul(1 << config.attempts.saturating_sub(1).min(20));
        let wait = doubled.min(self.timing.longest).mul_f64(rand::rng().random_range(0.8..1.2));
        Some(wait.max(asked.unwrap_or_default()))
    }

    fn give_up(&self, work: &mut PushWork, why: &str) {
        let config = &mut work.config;
        config.dead = Some(why.into());
        config.json = push::without_secrets(&config.json);
        self.dead.fetch_add(1, Ordering::Relaxed);
        self.metrics.dead.inc();
        tracing::warn!(target: "business", task = &*config.task, config = &*config.id, why, delivered = config.delivered, "a receiver of push notifications is given up");
    }

    fn enter(&self, receiver: &Receiver) -> Option<Place<'_>> {
        let origin = receiver.target.origin();
        let mut servers = self.servers.lock();
        let count = servers.entry(origin.clone()).or_insert(0);
        if *count >= MAX_PER_SERVER {
            return None;
        }
        *count += 1;
        Some(Place { servers: &self.servers, origin })
    }
}

fn later(wait: Duration) -> Timestamp {
    let now = Timestamp::now();
    SignedDuration::try_from(wait).ok().and_then(|wait| now.checked_add(wait).ok()).unwrap_or(now)
}

/// The one update that an event and those behind it make, and the last of them: chunks of one artifact in a row, more than
/// one. Those are taken. What is behind later only makes the row longer, so that a row that was sent is the beginning of
/// the one that is sent in its place.
fn joined(first: &Event, rest: &mut Peekable<IntoIter<Event>>) -> Option<(ArtifactUpdate, Event)> {
    let only = |event: &Event| match event.change.artifacts.as_slice() {
        [one] if event.change.state.is_none() && event.version > 1 => Some(one.clone()),
        _ => None,
    };
    let mut update = only(first)?;
    let mut end = None;
    while let Some(next) = rest.peek().and_then(only)
        && update.size() + next.size() <= MAX_JOINED
        && update.join(&next)
    {
        end = rest.next();
    }
    end.map(|end| (update, end))
}

/// `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3); at most [`MAX_RETRY_AFTER`].
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let wait = if let Ok(seconds) = value.parse() {
        Duration::from_secs(seconds)
    } else {
        let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = "1994-11-06T08:49:30Z".parse().unwrap();
        let of = |value| retry_after(value, now).map(|d| d.as_secs());
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0), "it is over");
        assert_eq!(of("Sat, 06 Nov 2094 08:49:37 GMT"), Some(3600));
        assert_eq!((of(" 12 "), of("999999"), of("soon"), of("-1")), (Some(12), Some(3600), None, None));
    }
}
