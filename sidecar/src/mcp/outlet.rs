//! Where messages for a client go: one HTTP response, or the stream of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Messages that may wait for a slow reader.
const MAX_QUEUED: usize = 64;
/// Bytes that may wait for a slow reader, but for one final response.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// One message on its way to a client.
#[derive(Debug)]
pub enum Event {
    /// Something before the response, or on a stream that has none.
    Message(Bytes),
    /// The response; nothing follows.
    Final(Answer),
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// The JSON-RPC response.
    pub body: Bytes,
    /// The failure that it tells of, when it is the proxy's own.
    pub failure: Option<super::error::Error>,
    /// Whether it carries a result.
    pub ok: bool,
}

impl Answer {
    /// A failure of the proxy's own.
    pub fn failure(error: &super::error::Error, server: &str, id: Option<&str>) -> Self {
        Self { body: error.response(server, id).into(), failure: Some(error.clone()), ok: false }
    }
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct Outlet {
    events: mpsc::Sender<Event>,
    queued: Arc<AtomicUsize>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Inlet {
    events: mpsc::Receiver<Event>,
    queued: Arc<AtomicUsize>,
}

/// Both halves of a new outlet.
pub fn outlet() -> (Outlet, Inlet) {
    let (tx, rx) = mpsc::channel(MAX_QUEUED);
    let queued = Arc::new(AtomicUsize::new(0));
    (Outlet { events: tx, queued: Arc::clone(&queued) }, Inlet { events: rx, queued })
}

impl Outlet {
    /// Whether somebody still reads.
    pub fn open(&self) -> bool {
        !self.events.is_closed()
    }

    /// Queues a message. `false` when nobody reads, or too slowly. One place stays free for the response.
    pub fn message(&self, body: &Bytes) -> bool {
        let room = self.events.capacity() > 1 && self.queued.load(Ordering::Relaxed) + body.len() <= MAX_QUEUED_BYTES;
        let sent = room && self.events.try_send(Event::Message(body.clone())).is_ok();
        if sent {
            self.queued.fetch_add(body.len(), Ordering::Relaxed);
        }
        sent
    }

    /// Queues the response. `false` when nobody reads.
    pub fn finish(&self, answer: Answer) -> bool {
        self.events.try_send(Event::Final(answer)).is_ok()
    }
}

impl Inlet {
    /// The next message; `None` when none will come.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.taken(event.as_ref());
        event
    }

    /// The next message, for streams.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = std::task::ready!(self.events.poll_recv(cx));
        self.taken(event.as_ref());
        Poll::Ready(event)
    }

    fn taken(&self, event: Option<&Event>) {
        if let Some(Event::Message(body)) = event {
            self.queued.fetch_sub(body.len().min(self.queued.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_loses_messages_but_never_the_response() {
        let (tx, mut rx) = outlet();
        let taken = (0..200).filter(|_| tx.message(&Bytes::from_static(b"m"))).count();
        assert_eq!(taken, MAX_QUEUED - 1);
        assert!(tx.finish(Answer { body: Bytes::from_static(b"f"), failure: None, ok: true }));
        let mut seen = 0;
        while let Some(Event::Message(_)) = rx.next().await {
            seen += 1;
        }
        assert_eq!(seen, taken);
        let big = Bytes::from(vec![0; MAX_QUEUED_BYTES]);
        let (tx, rx) = outlet();
        assert!(tx.message(&big) && !tx.message(&Bytes::from_static(b"m")));
        drop(rx);
        assert!(!tx.open() && !tx.finish(Answer { body: Bytes::new(), failure: None, ok: true }));
    }
}
