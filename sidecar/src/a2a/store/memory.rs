//! Tasks in memory: gone with the process, bounded in number and bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use outrigger_protocol::config::Live;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Event, Store, StoreError};
use crate::a2a::metrics::Metrics;

/// Most bytes of JSON in all tasks and contexts together.
pub const MAX_BYTES: usize = 64 << 20;
/// What a task or context takes beside its JSON, roughly.
const OVERHEAD: usize = 1_024;
/// Most events that are kept of one task; the oldest go first.
const MAX_EVENTS: usize = 256;

struct Entry {
    task: Arc<Task>,
    events: Vec<Event>,
    followers: Option<watch::Sender<Arc<Task>>>,
    /// Bytes of JSON in the events that are kept.
    logged: usize,
    /// Whether events were dropped, so that the task has text that they lack.
    cut: bool,
    bytes: usize,
}

impl Entry {
    /// Text is shared between the task and its events; what only one of them still has counts as well.
    fn measure(&self) -> usize {
        OVERHEAD + self.logged + if self.cut { self.task.size() } else { 0 }
    }

    fn log(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.logged -= self.events.remove(0).change.size();
            self.cut = true;
        }
        self.logged += event.change.size();
        self.events.push(event);
    }
}

#[derive(Default)]
struct Context {
    conversation: Conversation,
    tasks: usize,
    /// Position among contexts without a task.
    idle: Option<u64>,
    touched: Timestamp,
    bytes: usize,
}

#[derive(Default)]
struct Inner {
    seq: u64,
    bytes: usize,
    tasks: HashMap<Arc<str>, Entry>,
    /// Ended tasks by the position of their last event: the oldest end comes first.
    ended: BTreeMap<u64, Arc<str>>,
    contexts: HashMap<Arc<str>, Context>,
    /// Contexts whose tasks are all gone, the longest untouched first.
    idle: BTreeMap<u64, Arc<str>>,
}

/// The store in memory.
pub struct Memory {
    inner: Mutex<Inner>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
    max_bytes: usize,
}

impl Memory {
    /// Bounded by `limits.maxTasks`, `limits.taskRetentionMs` and [`MAX_BYTES`].
    pub fn new(live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Self {
        Self::bounded(live, metrics, MAX_BYTES)
    }

    /// With another bound on bytes.
    pub fn bounded(live: watch::Receiver<Arc<Live>>, metrics: Metrics, max_bytes: usize) -> Self {
        Self { inner: Mutex::default(), live, metrics, max_bytes }
    }

    fn bounds(&self) -> (usize, Duration) {
        let live = self.live.borrow();
        (live.limits.max_tasks as usize, Duration::from_millis(live.limits.task_retention_ms))
    }

    fn insert(&self, task: Task) -> Result<Arc<Task>, StoreError> {
        let (max_tasks, retention) = self.bounds();
        let now = task.since;
        let mut inner = self.inner.lock();
        inner.expire(now, retention, &self.metrics);
        let bytes = task.size() + OVERHEAD;
        inner.make_room(max_tasks.saturating_sub(1), bytes, self.max_bytes, &self.metrics)?;
        let message = task.history.first().cloned();
        let task = Arc::new(task);
        inner.remember(&task.context_id, message.as_ref(), None, now);
        if let Some(context) = inner.contexts.get_mut(&task.context_id) {
            context.tasks += 1;
            if let Some(position) = context.idle.take() {
                inner.idle.remove(&position);
            }
        }
        let first = Change { state: Some(task.state), message, reveal: task.revealed, ..Change::default() };
        inner.seq += 1;
        let event = Event { seq: inner.seq, version: 1, at: now, change: Arc::new(first) };
        inner.bytes += bytes;
        // Most tasks have three events: created, working, ended.
        let events = Vec::with_capacity(3);
        let mut entry = Entry { task: Arc::clone(&task), events, followers: None, logged: 0, cut: false, bytes };
        entry.log(event);
        inner.tasks.insert(Arc::clone(&task.id), entry);
        drop(inner);
        self.metrics.moved(None, Some(task.state));
        Ok(task)
    }

    fn change(&self, id: &str, expected: u64, mut change: Change) -> Result<Arc<Task>, StoreError> {
        let now = Timestamp::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let current = inner.at(id, expected)?;
        let next = Arc::new(current.apply(&change, now)?);
        inner.make_room(usize::MAX, change.size(), self.max_bytes, &self.metrics)?;
        // The memo is the context's; the log need not hold on to old ones.
        let memo = change.memo.take();
        inner.remember(&next.context_id, change.message.as_ref(), memo.as_ref(), now);
        inner.seq += 1;
        let entry = inner.tasks.get_mut(id).ok_or(StoreError::NotFound)?;
        entry.task = Arc::clone(&next);
        entry.log(Event { seq: inner.seq, version: next.version, at: now, change: Arc::new(change) });
        let bytes = entry.measure();
        inner.bytes = inner.bytes + bytes - entry.bytes;
        entry.bytes = bytes;
        if next.state.is_terminal() {
            inner.ended.insert(inner.seq, Arc::clone(&next.id));
        }
        match &entry.followers {
            Some(followers) if followers.receiver_count() > 0 => {
                followers.send_replace(Arc::clone(&next));
            }
            _ => entry.followers = None,
        }
        if next.state.is_terminal() {
            // Followers keep what they have; nothing more will come, and thousands of ended tasks are kept.
            entry.followers = None;
        }
        drop(guard);
        self.metrics.moved(Some(current.state), Some(next.state));
        Ok(next)
    }

    fn forget(&self, id: &str, expected: u64, memo: Option<&Raw>) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let current = inner.at(id, expected)?;
        if current.state.is_terminal() {
            return Err(Refused::Ended(current.state).into());
        }
        inner.remember(&current.context_id, None, memo, Timestamp::now());
        inner.remove(id, &self.metrics);
        Ok(())
    }
}

impl Inner {
    fn at(&self, id: &str, expected: u64) -> Result<Arc<Task>, StoreError> {
        let current = Arc::clone(&self.tasks.get(id).ok_or(StoreError::NotFound)?.task);
        if current.version == expected { Ok(current) } else { Err(StoreError::Conflict { expected, current }) }
    }

    fn remember(&mut self, id: &Arc<str>, message: Option<&Raw>, memo: Option<&Raw>, now: Timestamp) {
        let context = self.contexts.entry(Arc::clone(id)).or_default();
        if let Some(message) = message {
            context.conversation.push(message);
        }
        if let Some(memo) = memo {
            context.conversation.set_memo(memo);
        }
        context.touched = now;
        let bytes = context.conversation.size() + OVERHEAD / 4;
        self.bytes = self.bytes + bytes - context.bytes;
        context.bytes = bytes;
    }

    fn remove(&mut self, id: &str, metrics: &Metrics) {
        let Some(entry) = self.tasks.remove(id) else { return };
        self.bytes -= entry.bytes;
        metrics.moved(Some(entry.task.state), None);
        let Some(context) = self.contexts.get_mut(&entry.task.context_id) else { return };
        context.tasks = context.tasks.saturating_sub(1);
        if context.tasks == 0 {
            self.seq += 1;
            context.idle = Some(self.seq);
            self.idle.insert(self.seq, Arc::clone(&entry.task.context_id));
        }
    }

    fn remove_oldest_context(&mut self) -> bool {
        let Some((_, id)) = self.idle.pop_first() else { return false };
        if let Some(context) = self.contexts.remove(&id) {
            self.bytes -= context.bytes;
        }
        true
    }

    /// Leaves at most `tasks` tasks and as many contexts without one, and `more` bytes free.
    fn make_room(&mut self, tasks: usize, more: usize, max_bytes: usize, metrics: &Metrics) -> Result<(), StoreError> {
        while self.idle.len() > tasks {
            self.remove_oldest_context();
        }
        while self.tasks.len() > tasks || self.bytes + more > max_bytes {
            // Bytes may come from a context nobody holds on to; a number of tasks only from a task.
            if self.tasks.len() <= tasks && self.remove_oldest_context() {
                continue;
            }
            let Some((_, id)) = self.ended.pop_first() else {
                return Err(StoreError::Full(if self.tasks.len() > tasks {
                    format!("all of its {} tasks are still alive", self.tasks.len())
                } else {
                    format!("its {max_bytes} bytes are taken by tasks that are still alive")
                }));
            };
            self.remove(&id, metrics);
            metrics.evicted.inc();
        }
        Ok(())
    }

    fn expire(&mut self, now: Timestamp, retention: Duration, metrics: &Metrics) {
        let old = |since: Timestamp| now.duration_since(since).unsigned_abs() > retention && now > since;
        while let Some((&position, id)) = self.ended.first_key_value() {
            let id = Arc::clone(id);
            if self.tasks.get(&id).is_some_and(|e| !old(e.task.since)) {
                break;
            }
            self.ended.remove(&position);
            self.remove(&id, metrics);
        }
        while let Some((_, id)) = self.idle.first_key_value() {
            if self.contexts.get(id).is_some_and(|c| !old(c.touched)) {
                break;
            }
            self.remove_oldest_context();
        }
    }
}

impl Store for Memory {
    fn create(&self, task: Task) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        ready(self.insert(task)).boxed()
    }

    fn append<'a>(
        &'a self,
        task: &'a str,
        version: u64,
        change: Change,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        ready(self.change(task, version, change)).boxed()
    }

    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        let got = self.inner.lock().tasks.get(task).map(|e| Arc::clone(&e.task));
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn events<'a>(&'a self, task: &'a str, after: u64) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        let inner = self.inner.lock();
        let got = inner.tasks.get(task).map(|e| e.events.iter().filter(|e| e.version > after).cloned().collect());
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Arc<Task>>, StoreError>> {
        let mut inner = self.inner.lock();
        let got = inner.tasks.get_mut(task).map(|entry| {
            let followers = entry.followers.get_or_insert_with(|| watch::Sender::new(Arc::clone(&entry.task)));
            followers.subscribe()
        });
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn withdraw<'a>(&'a self, task: &'a str, version: u64, memo: Option<Raw>) -> BoxFuture<'a, Result<(), StoreError>> {
        ready(self.forget(task, version, memo.as_ref())).boxed()
    }

    fn conversation<'a>(&'a self, context: &'a str) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        let got = self.inner.lock().contexts.get(context).map(|c| c.conversation.clone());
        ready(Ok(got.unwrap_or_default())).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        let (_, retention) = self.bounds();
        self.inner.lock().expire(Timestamp::now(), retention, &self.metrics);
        ready(()).boxed()
    }
}

#[cfg(test)]
mod tests;
