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
use outrigger_protocol::status::PartStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Cursor, Event, Head, Key, KeyRecord, Page, PushConfig, PushWork, Query, Store, StoreError};
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
    /// The task as it was created, or before the first event that is kept.
    base: Arc<Task>,
    followers: Option<watch::Sender<Head>>,
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
            let gone = self.events.remove(0);
            self.logged -= gone.change.size();
            if gone.version > 1
                && let Ok(base) = self.base.apply(&gone.change, &"".into(), gone.at)
            {
                self.base = Arc::new(base);
            }
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
    contexts: HashMap<(Arc<str>, Arc<str>), Context>,
    /// Contexts whose tasks are all gone, the longest untouched first.
    idle: BTreeMap<u64, (Arc<str>, Arc<str>)>,
    keys: HashMap<Arc<str>, KeyRecord>,
    push: BTreeMap<(Arc<str>, Arc<str>), (PushConfig, u64)>,
}

/// The store in memory.
pub struct Memory {
    inner: Mutex<Inner>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
    max_bytes: usize,
    owner: Arc<str>,
    hint: watch::Sender<u64>,
}

impl Memory {
    /// Bounded by `limits.maxTasks`, `limits.taskRetentionMs` and [`MAX_BYTES`].
    pub fn new(live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Self {
        Self::bounded(live, metrics, MAX_BYTES)
    }

    /// With another bound on bytes.
    pub fn bounded(live: watch::Receiver<Arc<Live>>, metrics: Metrics, max_bytes: usize) -> Self {
        Self {
            inner: Mutex::default(),
            live,
            metrics,
            max_bytes,
            owner: crate::a2a::ids::uuid().into(),
            hint: watch::Sender::new(0),
        }
    }

    fn bounds(&self) -> (usize, Duration) {
        let live = self.live.borrow();
        (live.limits.max_tasks as usize, Duration::from_millis(live.limits.task_retention_ms))
    }

    fn insert(&self, mut task: Task, key: Option<Key>, push: Option<PushConfig>) -> Result<Arc<Task>, StoreError> {
        let (max_tasks, retention) = self.bounds();
        let now = task.since;
        let mut inner = self.inner.lock();
        inner.expire(now, retention, &self.metrics);
        if let Some(key) = &key {
            inner.used(key)?;
        }
        task.owner = Some(Arc::clone(&self.owner));
        let bytes = task.size() + OVERHEAD;
        inner.make_room(max_tasks.saturating_sub(1), bytes, self.max_bytes, &self.metrics)?;
        let message = task.history.first().cloned();
        let task = Arc::new(task);
        let context = context_of(&task);
        inner.remember(&context, message.as_ref(), None, now);
        if let Some(key) = key {
            let record = KeyRecord { key, task: Arc::clone(&task.id), message: None };
            inner.keys.insert(Arc::clone(&record.key.id), record);
        }
        if let Some(push) = push {
            inner.push.insert((Arc::clone(&push.task), Arc::clone(&push.id)), (push, 0));
        }
        if let Some(context) = inner.contexts.get_mut(&context) {
            context.tasks += 1;
            if let Some(position) = context.idle.take() {
                inner.idle.remove(&position);
            }
        }
        let first = Change { state: Some(task.state), message, reveal: task.revealed, ..Change::default() };
        inner.seq += 1;
        let event = Event { version: 1, at: now, change: Arc::new(first) };
        inner.bytes += bytes;
        // Most tasks have three events: created, working, ended.
        let events = Vec::with_capacity(3);
        let mut entry = Entry {
            task: Arc::clone(&task),
            base: Arc::clone(&task),
            events,
            followers: None,
            logged: 0,
            cut: false,
            bytes,
        };
        entry.log(event);
        inner.tasks.insert(Arc::clone(&task.id), entry);
        drop(inner);
        self.metrics.moved(None, Some(task.state));
        Ok(task)
    }

    fn change(&self, seen: &Task, mut change: Change, key: Option<Key>) -> Result<Arc<Task>, StoreError> {
        let id = &*seen.id;
        let now = Timestamp::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let current = inner.seen(seen)?;
        if let Some(key) = key {
            inner.used(&key)?;
            let record = KeyRecord { key, task: Arc::clone(&seen.id), message: None };
            inner.keys.insert(Arc::clone(&record.key.id), record);
        }
        let next = Arc::new(current.apply(&change, &self.owner, now)?);
        inner.make_room(usize::MAX, change.size(), self.max_bytes, &self.metrics)?;
        // The memo is the context's; the log need not hold on to old ones.
        let memo = change.memo.take();
        inner.remember(&context_of(&next), change.message.as_ref(), memo.as_ref(), now);
        inner.seq += 1;
        let entry = inner.tasks.get_mut(id).ok_or(StoreError::NotFound)?;
        entry.task = Arc::clone(&next);
        entry.log(Event { version: next.version, at: now, change: Arc::new(change) });
        let bytes = entry.measure();
        inner.bytes = inner.bytes + bytes - entry.bytes;
        entry.bytes = bytes;
        if next.state.is_terminal() {
            inner.ended.insert(inner.seq, Arc::clone(&next.id));
        }
        match &entry.followers {
            Some(followers) if followers.receiver_count() > 0 => {
                followers.send_replace(head(&next));
            }
            _ => entry.followers = None,
        }
        if next.state.is_terminal() {
            // Followers keep what they have; nothing more will come, and thousands of ended tasks are kept.
            entry.followers = None;
        }
        drop(guard);
        self.hint.send_modify(|n| *n += 1);
        self.metrics.moved(Some(current.state), Some(next.state));
        Ok(next)
    }

    fn forget(&self, seen: &Task, memo: Option<&Raw>, message: &Raw) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let current = inner.seen(seen)?;
        if current.state.is_terminal() {
            return Err(Refused::Ended(current.state).into());
        }
        inner.remember(&context_of(&current), None, memo, Timestamp::now());
        for record in inner.keys.values_mut().filter(|r| r.task == seen.id) {
            record.message = Some(message.clone());
        }
        inner.remove(&seen.id, &self.metrics);
        Ok(())
    }
}

impl Inner {
    fn seen(&self, seen: &Task) -> Result<Arc<Task>, StoreError> {
        let current = Arc::clone(&self.tasks.get(&seen.id).ok_or(StoreError::NotFound)?.task);
        let same = (current.version, current.epoch, &current.owner) == (seen.version, seen.epoch, &seen.owner);
        if same { Ok(current) } else { Err(StoreError::Conflict { expected: seen.version, current }) }
    }

    fn used(&self, key: &Key) -> Result<(), StoreError> {
        self.keys.get(&key.id).map_or(Ok(()), |r| Err(StoreError::Duplicate(Box::new(r.clone()))))
    }

    fn remember(&mut self, id: &(Arc<str>, Arc<str>), message: Option<&Raw>, memo: Option<&Raw>, now: Timestamp) {
        let context = self.contexts.entry(id.clone()).or_default();
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
        self.push.retain(|(task, _), _| &**task != id);
        let key = context_of(&entry.task);
        let Some(context) = self.contexts.get_mut(&key) else { return };
        context.tasks = context.tasks.saturating_sub(1);
        if context.tasks == 0 {
            self.seq += 1;
            context.idle = Some(self.seq);
            self.idle.insert(self.seq, key);
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

fn context_of(task: &Task) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&task.caller), Arc::clone(&task.context_id))
}

fn head(task: &Task) -> Head {
    Head { version: task.version, epoch: task.epoch, state: task.state }
}

impl Entry {
    fn at(&self, version: u64) -> Result<Arc<Task>, StoreError> {
        if version == self.task.version {
            return Ok(Arc::clone(&self.task));
        }
        if version < self.base.version || version > self.task.version {
            return Err(StoreError::Trimmed(self.base.version));
        }
        let mut task = Arc::clone(&self.base);
        for event in self.events.iter().filter(|e| e.version <= version) {
            if event.version > task.version {
                task = Arc::new(task.apply(&event.change, &"".into(), event.at)?);
            }
        }
        Ok(task)
    }
}

impl Store for Memory {
    fn owner(&self) -> Arc<str> {
        Arc::clone(&self.owner)
    }

    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        ready(self.insert(task, key, push)).boxed()
    }

    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        ready(self.change(seen, change, key)).boxed()
    }

    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        let got = self.inner.lock().tasks.get(task).map(|e| Arc::clone(&e.task));
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        let got = self.inner.lock().tasks.get(task).map_or(Err(StoreError::NotFound), |e| e.at(version));
        ready(got).boxed()
    }

    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        let inner = self.inner.lock();
        let got = inner.tasks.get(task).map_or(Err(StoreError::NotFound), |e| {
            match e.events.first() {
                Some(first) if first.version > after + 1 => return Err(StoreError::Trimmed(first.version)),
                _ => {}
            }
            Ok(e.events.iter().filter(|e| e.version > after).take(limit).cloned().collect())
        });
        ready(got).boxed()
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        let mut inner = self.inner.lock();
        let got = inner.tasks.get_mut(task).map(|entry| {
            let followers = entry.followers.get_or_insert_with(|| watch::Sender::new(head(&entry.task)));
            followers.subscribe()
        });
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        ready(self.forget(seen, memo.as_ref(), message)).boxed()
    }

    fn conversation<'a>(
        &'a self,
        caller: &'a str,
        context: &'a str,
    ) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        let got = self.inner.lock().contexts.get(&(caller.into(), context.into())).map(|c| c.conversation.clone());
        ready(Ok(got.unwrap_or_default())).boxed()
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        let place = |t: &Task| Cursor { since: t.since, id: Arc::clone(&t.id) };
        let inner = self.inner.lock();
        let mut found: Vec<_> = inner
            .tasks
            .values()
            .map(|e| &e.task)
            .filter(|t| t.revealed && t.caller == query.caller)
            .filter(|t| query.context.as_ref().is_none_or(|c| *c == t.context_id))
            .filter(|t| query.state.is_none_or(|s| s == t.state) && query.since.is_none_or(|s| t.since >= s))
            .map(Arc::clone)
            .collect();
        drop(inner);
        found.sort_by(|a, b| b.since.cmp(&a.since).then_with(|| a.id.cmp(&b.id)));
        let total = found.len() as u64;
        if let Some(after) = &query.after {
            found.retain(|t| {
                let here = place(t);
                here.since < after.since || (here.since == after.since && here.id > after.id)
            });
        }
        let more = found.len() > query.limit;
        found.truncate(query.limit);
        ready(Ok(Page { tasks: found, more, total })).boxed()
    }

    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        let inner = self.inner.lock();
        let open = inner.tasks.values().filter(|e| &*e.task.caller == caller && !e.task.state.is_terminal()).count();
        ready(Ok(open as u64)).boxed()
    }

    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        ready(Ok(self.inner.lock().keys.get(id).cloned())).boxed()
    }

    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.lock().push.insert((Arc::clone(&config.task), Arc::clone(&config.id)), (config, 0));
        ready(Ok(())).boxed()
    }

    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        let inner = self.inner.lock();
        let got = inner.push.values().filter(|(c, _)| &*c.task == task).map(|(c, _)| c.clone()).collect();
        ready(Ok(got)).boxed()
    }

    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(Ok(self.inner.lock().push.remove(&(task.into(), id.into())).is_some())).boxed()
    }

    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        let now = Timestamp::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut due = Vec::new();
        for (config, claim) in inner.push.values_mut() {
            let behind = inner.tasks.get(&config.task).is_some_and(|e| e.task.version > config.delivered);
            if due.len() < limit && behind && config.dead.is_none() && config.next <= now {
                *claim += 1;
                config.next =
                    now.saturating_add(jiff::SignedDuration::try_from(hold).unwrap_or_default()).unwrap_or(now);
                due.push(PushWork { config: config.clone(), claim: *claim });
            }
        }
        ready(Ok(due)).boxed()
    }

    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        let key = (Arc::clone(&work.config.task), Arc::clone(&work.config.id));
        if let Some((config, claim)) = self.inner.lock().push.get_mut(&key)
            && *claim == work.claim
        {
            *config = work.config;
        }
        ready(Ok(())).boxed()
    }

    fn push_hint(&self) -> watch::Receiver<u64> {
        self.hint.subscribe()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }

    fn orphans(&self, _limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let (_, retention) = self.bounds();
        self.inner.lock().expire(Timestamp::now(), retention, &self.metrics);
        ready(Ok(())).boxed()
    }

    fn status(&self) -> PartStatus {
        PartStatus { ready: true, ..PartStatus::default() }
    }
}
