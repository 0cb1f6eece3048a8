//! Streams of documents: each holds its place in what it follows and nothing else, so that a thousand quiet ones are
//! cheap, and a slow reader misses what was overtaken and nothing more.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use outrigger_protocol::control::{HEARTBEAT, LIVE_EVENT};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::documents::{Document, Following};
use super::refused::Refused;
use super::review::Account;
use crate::metrics::Metrics;

/// Streams of one replica.
pub const MAX_STREAMS: usize = 8192;
/// Streams of one Agent: one for each of its pods, and some that have not noticed their end.
pub const MAX_STREAMS_PER_ACCOUNT: usize = 512;
/// A stream ends after this long at most: connections spread anew over the replicas.
const LONGEST: Duration = Duration::from_secs(3600);
/// Sign of life.
const COMMENT: &[u8] = b": alive\n\n";

#[derive(Default)]
struct Counts {
    all: usize,
    by_account: HashMap<Arc<Account>, usize>,
}

/// How many streams are open; clones share it.
#[derive(Clone)]
pub struct Streams {
    counts: Arc<Mutex<Counts>>,
    metrics: Metrics,
}

/// A place among the open streams.
pub struct Open {
    streams: Streams,
    account: Arc<Account>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut counts = self.streams.counts.lock();
        counts.all -= 1;
        if let Some(count) = counts.by_account.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                counts.by_account.remove(&self.account);
            }
        }
        self.streams.metrics.control.streams.dec();
    }
}

impl Streams {
    /// None is open.
    pub fn new(metrics: Metrics) -> Self {
        Self { counts: Arc::default(), metrics }
    }

    /// Takes a place.
    pub fn open(&self, account: &Arc<Account>) -> Result<Open, Refused> {
        let mut counts = self.counts.lock();
        if counts.all >= MAX_STREAMS {
            return Err(Refused::TooManyStreams(format!("{MAX_STREAMS} streams are open at this replica")));
        }
        let own = counts.by_account.entry(Arc::clone(account)).or_default();
        if *own >= MAX_STREAMS_PER_ACCOUNT {
            return Err(Refused::TooManyStreams(format!("{MAX_STREAMS_PER_ACCOUNT} streams of this caller are open")));
        }
        *own += 1;
        counts.all += 1;
        self.metrics.control.streams.inc();
        Ok(Open { streams: self.clone(), account: Arc::clone(account) })
    }
}

struct Stream {
    following: Following,
    /// `id` of what the reader has.
    last: String,
    pending: VecDeque<Bytes>,
    heartbeat: Pin<Box<Sleep>>,
    end: Instant,
    shutdown: CancellationToken,
    first: bool,
    open: Open,
}

/// The body of a stream. It ends when the token does, which is after `token_left`, when the document is gone, and at
/// `shutdown`.
pub fn body(
    following: Following,
    last_event_id: Option<&str>,
    token_left: Duration,
    open: Open,
    shutdown: CancellationToken,
) -> Body {
    let longest = LONGEST.mul_f64(rand::random_range(0.75..1.0));
    let state = Stream {
        following,
        last: last_event_id.unwrap_or_default().to_owned(),
        // Something at once, so that the reader knows that it is connected.
        pending: VecDeque::from([Bytes::from_static(COMMENT)]),
        heartbeat: Box::pin(sleep_until(Instant::now() + HEARTBEAT)),
        end: Instant::now() + longest.min(token_left),
        shutdown,
        first: true,
        open,
    };
    Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), state))
    }))
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.pending.pop_front() {
                return Some(bytes);
            }
            if !std::mem::take(&mut self.first) {
                let end = self.end.min(self.heartbeat.deadline());
                if end < self.heartbeat.deadline() {
                    self.heartbeat.as_mut().reset(end);
                }
                tokio::select! {
                    biased;
                    () = self.shutdown.cancelled() => return None,
                    changed = self.following.changed() => if changed.is_err() { return None },
                    () = self.heartbeat.as_mut() => {
                        if Instant::now() >= self.end {
                            return None;
                        }
                        self.pending.push_back(Bytes::from_static(COMMENT));
                    }
                }
            }
            self.heartbeat.as_mut().reset(Instant::now() + HEARTBEAT);
            let document = self.following.borrow_and_update().clone()?;
            if document.etag != self.last {
                self.last.clone_from(&document.etag);
                event(&document, &mut self.pending);
                self.open.streams.metrics.control.events.inc();
            }
        }
    }
}

/// The event in pieces; those of the document are its own bytes.
fn event(document: &Document, pieces: &mut VecDeque<Bytes>) {
    pieces.push_back(format!("id: {}\nevent: {LIVE_EVENT}\n", document.etag).into());
    let text = &document.text;
    let mut from = 0;
    for line in text.split(|b| *b == b'\n') {
        pieces.push_back(Bytes::from_static(b"data: "));
        pieces.push_back(text.slice(from..from + line.len()));
        pieces.push_back(Bytes::from_static(b"\n"));
        from += line.len() + 1;
    }
    pieces.push_back(Bytes::from_static(b"\n"));
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use outrigger_protocol::a2a::sse;

    use super::*;
    use crate::control_api::documents::Documents;

    fn account() -> Arc<Account> {
        Arc::new(Account { namespace: "shop".into(), name: "seller".into() })
    }

    struct Reader {
        body: Body,
        parser: sse::Parser,
        events: VecDeque<sse::Event>,
    }

    impl Reader {
        async fn next(&mut self) -> Option<sse::Event> {
            loop {
                if let Some(event) = self.events.pop_front() {
                    return Some(event);
                }
                let frame = self.body.frame().await?.unwrap().into_data().unwrap();
                let mut events = Vec::new();
                self.parser.push(&frame, &mut events).unwrap();
                self.events.extend(events);
            }
        }
    }

    fn read(documents: &Documents, last: Option<&str>, left: Duration, shutdown: &CancellationToken) -> Reader {
        let streams = Streams::new(Metrics::new().unwrap());
        let open = streams.open(&account()).unwrap();
        let following = documents.follow(&account()).unwrap();
        let body = body(following, last, left, open, shutdown.clone());
        Reader { body, parser: sse::Parser::new(1 << 20), events: VecDeque::new() }
    }

    const LONG: Duration = Duration::from_secs(100_000);

    #[tokio::test(start_paused = true)]
    async fn the_document_at_once_then_each_change() {
        let (documents, shutdown) = (Documents::default(), CancellationToken::new());
        documents.put((*account()).clone(), "{\n\"a\": 1}".into());
        let mut reader = read(&documents, None, LONG, &shutdown);
        let first = reader.next().await.unwrap();
        assert_eq!((first.event.as_deref(), first.data.as_str()), (Some("live"), "{\n\"a\": 1}"));
        assert_eq!(first.id, Some(crate::hash::hex(b"{\n\"a\": 1}")));
        documents.put((*account()).clone(), "{}".into());
        assert_eq!(reader.next().await.unwrap().data, "{}");
        // One that has it already is told of the next change.
        let mut knowing = read(&documents, Some(&crate::hash::hex(b"{}")), LONG, &shutdown);
        documents.put((*account()).clone(), "[]".into());
        assert_eq!(knowing.next().await.unwrap().data, "[]");
        documents.remove(&account());
        assert_eq!(knowing.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_shows_signs_of_life_and_ends_with_its_token() {
        let (documents, shutdown) = (Documents::default(), CancellationToken::new());
        documents.put((*account()).clone(), "{}".into());
        let mut reader = read(&documents, None, Duration::from_secs(45), &shutdown);
        let (start, mut comments) = (Instant::now(), 0);
        while let Some(frame) = reader.body.frame().await {
            comments += usize::from(frame.unwrap().into_data().unwrap() == COMMENT);
        }
        assert_eq!((comments, start.elapsed()), (5, Duration::from_secs(45)), "one at once, then every ten seconds");
        let mut reader = read(&documents, None, LONG, &shutdown);
        shutdown.cancel();
        while reader.next().await.is_some() {}
    }

    #[test]
    fn open_streams_are_counted_and_bounded() {
        let streams = Streams::new(Metrics::new().unwrap());
        let mut held: Vec<Open> = (0..MAX_STREAMS_PER_ACCOUNT).map(|_| streams.open(&account()).unwrap()).collect();
        assert!(matches!(streams.open(&account()), Err(Refused::TooManyStreams(_))));
        held.pop();
        held.push(streams.open(&account()).unwrap());
        drop(held);
        let counts = streams.counts.lock();
        assert_eq!((counts.all, counts.by_account.len()), (0, 0));
        assert_eq!(streams.metrics.control.streams.get(), 0);
    }
}
