//! Streams of messages towards a client: the response to one request, or the stream of a session.
//!
//! The state of a stream is with its writers, not with the HTTP response that reads it: a reader may go away and another
//! one take its place. A stream that is [kept](Outlet::keep) remembers what was read, within bounds, so that a client
//! can take it up again where it was cut (2025-11-25, transports, "Resumability and redelivery").

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::error::Error;

/// Messages that may wait for a slow reader.
pub const MAX_QUEUED: usize = 64;
/// Bytes that may wait for a slow reader, but for one final response.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Bytes that may wait while nobody reads.
const MAX_PARKED_BYTES: usize = 1 << 20;
/// Messages of a kept stream that were read and can be read again.
const MAX_KEPT: usize = 256;
/// Their bytes, and the size of a response that can be read again.
const MAX_KEPT_BYTES: usize = 256 << 10;

/// One message on its way to a client, with its place on the stream, counted from 1.
#[derive(Debug)]
pub enum Event {
    /// Something before the response, or on a stream that has none.
    Message(Bytes, u64),
    /// The response; nothing follows.
    Final(Answer, u64),
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The JSON-RPC response.
    pub body: Bytes,
    /// The failure that it tells of, when it is the proxy's own.
    pub failure: Option<Error>,
    /// Code of the JSON-RPC error; `None` for a result.
    pub code: Option<i64>,
}

impl Answer {
    /// A result.
    pub fn result(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), failure: None, code: None }
    }

    /// A result for the request with a raw id.
    pub fn to(id: &str, result: &str) -> Self {
        Self::result(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    }

    /// A failure of the proxy's own.
    pub fn failure(error: &Error, server: &str, id: Option<&str>) -> Self {
        let code = Some(i64::from(outrigger_protocol::jsonrpc::INTERNAL_ERROR));
        Self { body: error.response(server, id).into(), failure: Some(error.clone()), code }
    }

    /// An error that is nobody's failure.
    pub fn error(id: Option<&str>, code: i32, message: &str) -> Self {
        let body = outrigger_protocol::jsonrpc::plain_error(id, code, message).into();
        Self { body, failure: None, code: Some(code.into()) }
    }

    /// Whether it carries a result.
    pub fn ok(&self) -> bool {
        self.code.is_none()
    }
}

/// What is done with a response before anybody reads it.
pub struct Edit(Box<dyn FnOnce(Answer) -> Answer + Send>);

impl Edit {
    /// It must not use the outlet that it is for.
    pub fn new(edit: impl FnOnce(Answer) -> Answer + Send + 'static) -> Self {
        Self(Box::new(edit))
    }
}

impl std::fmt::Debug for Edit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Edit")
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It waits for its reader, or for one to come.
    Taken,
    /// It took the place of an older one that nobody came to read.
    InPlaceOfAnother,
    /// There is no room, or the stream is over.
    Refused,
}

/// What comes first on a stream.
#[derive(Debug)]
pub enum First {
    /// The response, and nothing before it.
    Answer(Answer),
    /// Something before the response.
    Message,
    /// Nothing will come.
    Nothing,
}

#[derive(Debug)]
struct Item {
    body: Bytes,
    /// Number of the question that it is; 0 for others.
    question: u64,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Place of the first item.
    first: u64,
    /// Place of the item that the reader gets next.
    next: u64,
    unread_bytes: usize,
    read_bytes: usize,
    answer: Option<Answer>,
    edit: Option<Edit>,
    /// The response was given, whether or not it was read.
    answered: bool,
    over: bool,
    kept: bool,
    writers: usize,
    /// Number of the reader; 0 is none.
    reader: u64,
    readers: u64,
    waker: Option<Waker>,
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn unread(&self) -> usize {
        usize::try_from(self.end() - self.next).unwrap_or(usize::MAX)
    }

    fn take(&mut self) -> Option<(Bytes, u64)> {
        let place = self.next;
        let at = usize::try_from(place - self.first).ok()?;
        let body = self.items.get(at)?.body.clone();
        self.next += 1;
        self.unread_bytes -= body.len();
        if self.kept {
            self.read_bytes += body.len();
            while self.next - self.first > MAX_KEPT as u64 || self.read_bytes > MAX_KEPT_BYTES {
                self.drop_first();
            }
        } else {
            self.items.pop_front();
            self.first += 1;
        }
        Some((body, place))
    }

    fn drop_first(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        if self.first < self.next {
            self.read_bytes -= item.body.len();
        } else {
            self.unread_bytes -= item.body.len();
            self.next += 1;
        }
        self.first += 1;
    }

    /// Takes out one unread item.
    fn remove(&mut self, at: usize) -> Option<Item> {
        let item = self.items.remove(at)?;
        self.unread_bytes -= item.body.len();
        Some(item)
    }

    fn unread_at(&self) -> usize {
        usize::try_from(self.next - self.first).unwrap_or(usize::MAX)
    }
}

/// A writing end.
#[derive(Debug)]
pub struct Outlet {
    state: Arc<Mutex<State>>,
}

impl Clone for Outlet {
    fn clone(&self) -> Self {
        self.state.lock().writers += 1;
        Self { state: Arc::clone(&self.state) }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let mut s = self.state.lock();
        s.writers -= 1;
        if s.writers == 0 {
            s.wake();
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Inlet {
    state: Arc<Mutex<State>>,
    number: u64,
    done: bool,
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut s = self.state.lock();
        if s.reader == self.number {
            s.reader = 0;
            s.waker = None;
        }
    }
}

/// A new stream with a reader.
pub fn outlet() -> (Outlet, Inlet) {
    let state = State { first: 1, next: 1, writers: 1, reader: 1, readers: 1, ..State::default() };
    let state = Arc::new(Mutex::new(state));
    (Outlet { state: Arc::clone(&state) }, Inlet { state, number: 1, done: false })
}

impl Outlet {
    /// A new stream that nobody reads yet.
    pub fn standing() -> Self {
        outlet().0
    }

    /// Whether somebody reads.
    pub fn open(&self) -> bool {
        let s = self.state.lock();
        s.reader != 0 && !s.answered && !s.over
    }

    /// Whether two ends are of one stream.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Queues a message for the reader. Refused when nobody reads, or too slowly. One place stays free for the
    /// response.
    pub fn message(&self, body: &Bytes) -> bool {
        self.push(body, 0, false) == Sent::Taken
    }

    /// Queues question number `question` for the reader.
    pub fn question(&self, body: &Bytes, question: u64) -> bool {
        self.push(body, question, false) == Sent::Taken
    }

    /// Queues a message, or question number `question`, although nobody reads: the oldest message makes room.
    pub fn park(&self, body: &Bytes, question: u64) -> Sent {
        self.push(body, question, true)
    }

    fn push(&self, body: &Bytes, question: u64, park: bool) -> Sent {
        let mut s = self.state.lock();
        let s = &mut *s;
        if s.answered || s.over {
            return Sent::Refused;
        }
        let mut sent = Sent::Taken;
        if s.reader != 0 {
            if s.unread() + 1 >= MAX_QUEUED || (s.unread() > 0 && s.unread_bytes + body.len() > MAX_QUEUED_BYTES) {
                return Sent::Refused;
            }
        } else if !park && !s.kept {
            return Sent::Refused;
        } else {
            if body.len() > MAX_PARKED_BYTES {
                return Sent::Refused;
            }
            while s.unread() >= MAX_QUEUED || s.unread_bytes + body.len() > MAX_PARKED_BYTES {
                let from = s.unread_at();
                let oldest = s.items.iter().skip(from).position(|i| i.question == 0).unwrap_or(0);
                if s.remove(from + oldest).is_none() {
                    break;
                }
                sent = Sent::InPlaceOfAnother;
            }
        }
        s.unread_bytes += body.len();
        s.items.push_back(Item { body: body.clone(), question });
        s.wake();
        sent
    }

    /// Has the response go through this.
    pub fn edit(&self, edit: Edit) {
        self.state.lock().edit = Some(edit);
    }

    /// Gives the response. `false` when nobody reads it and nobody can come to.
    pub fn finish(&self, answer: Answer) -> bool {
        let mut s = self.state.lock();
        if s.answered || s.over {
            return false;
        }
        s.answered = true;
        // Under the lock: no reader may take what was not edited for the end.
        let answer = match s.edit.take() {
            Some(edit) => (edit.0)(answer),
            None => answer,
        };
        let read = s.reader != 0 || s.kept;
        if read {
            s.answer = Some(answer);
            s.wake();
        }
        read
    }

    /// Ends the stream: nothing more will come.
    pub fn end(&self) {
        let mut s = self.state.lock();
        s.over = true;
        s.wake();
    }

    /// Whether the response was given or the stream ended.
    pub fn over(&self) -> bool {
        let s = self.state.lock();
        s.answered || s.over
    }

    /// Remembers what is read from now on, so that [`Outlet::attach`] can go back.
    pub fn keep(&self) {
        self.state.lock().kept = true;
    }

    /// Makes a new reader, which gets what comes after a place, or what nobody has read; the one before sees the end.
    pub fn attach(&self, after: Option<u64>) -> Inlet {
        let mut s = self.state.lock();
        if let Some(after) = after {
            s.next = after.saturating_add(1).clamp(s.first, s.end());
            let from = s.unread_at();
            s.unread_bytes = s.items.iter().skip(from).map(|i| i.body.len()).sum();
            s.read_bytes = s.items.iter().take(from).map(|i| i.body.len()).sum();
        }
        s.readers += 1;
        s.reader = s.readers;
        s.wake();
        Inlet { state: Arc::clone(&self.state), number: s.reader, done: false }
    }

    /// Numbers of the questions that nobody has read.
    pub fn unread_questions(&self) -> Vec<u64> {
        let s = self.state.lock();
        s.items.iter().skip(s.unread_at()).map(|i| i.question).filter(|q| *q != 0).collect()
    }

    /// Takes the questions out that nobody has read.
    pub fn take_questions(&self) -> Vec<(u64, Bytes)> {
        let mut s = self.state.lock();
        let mut out = Vec::new();
        let mut at = s.unread_at();
        while let Some(item) = s.items.get(at) {
            if item.question == 0 {
                at += 1;
            } else {
                out.extend(s.remove(at).map(|i| (i.question, i.body)));
            }
        }
        out
    }

    /// Takes a question out. `false` when it is not there or was read.
    pub fn retract(&self, question: u64) -> bool {
        let mut s = self.state.lock();
        let from = s.unread_at();
        let at = s.items.iter().skip(from).position(|i| i.question == question);
        at.is_some_and(|at| s.remove(from + at).is_some())
    }
}

impl Inlet {
    /// Waits for what comes first. The response is taken, a message stays.
    pub async fn first(&mut self) -> First {
        std::future::poll_fn(|cx| {
            let mut s = self.state.lock();
            if s.reader != self.number {
                return Poll::Ready(First::Nothing);
            }
            if s.unread() > 0 {
                return Poll::Ready(First::Message);
            }
            if let Some(answer) = s.answer.take() {
                self.done = true;
                return Poll::Ready(First::Answer(answer));
            }
            if s.over || s.answered || s.writers == 0 {
                return Poll::Ready(First::Nothing);
            }
            s.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The next message; `None` when none will come.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message, for streams.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut s = self.state.lock();
        if self.done || s.reader != self.number {
            return Poll::Ready(None);
        }
        if let Some((body, place)) = s.take() {
            return Poll::Ready(Some(Event::Message(body, place)));
        }
        let place = s.next;
        let again = s.kept && s.answer.as_ref().is_some_and(|a| a.body.len() <= MAX_KEPT_BYTES);
        let answer = if again { s.answer.clone() } else { s.answer.take() };
        if let Some(answer) = answer {
            self.done = true;
            return Poll::Ready(Some(Event::Final(answer, place)));
        }
        if s.over || s.answered || s.writers == 0 {
            self.done = true;
            return Poll::Ready(None);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A writing end of the same stream.
    pub fn outlet(&self) -> Outlet {
        self.state.lock().writers += 1;
        Outlet { state: Arc::clone(&self.state) }
    }
}

#[cfg(test)]
mod tests;
