//! Tasks in memory: gone with the process, bounded in number and bytes.

mod entry;
mod inner;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use outrigger_protocol::config::Live;
use outrigger_protocol::status::PartStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::{Clock, later};
use super::{Event, Head, Key, KeyRecord, LEASE, Page, PushConfig, PushWork, Query, Store, StoreError};
use crate::a2a::metrics::Metrics;
use entry::{Entry, Receiver, SMALL, TASK_OVERHEAD, cost};
pub use entry::{MAX_EVENT_BYTES, MAX_EVENTS};
pub use inner::MAX_KEYS;
use inner::{Bounds, Inner, context_of};

/// Most bytes of all tasks, contexts and keys together.
pub const MAX_BYTES: usize = 64 << 20;

struct Core {
    inner: Mutex<Inner>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
    max_bytes: usize,
    clock: Clock,
    hint: watch::Sender<u64>,
    /// Owners that there ever were.
    owners: AtomicUsize,
}

/// The store in memory.
pub struct Memory {
    core: Arc<Core>,
    owner: Arc<str>,
}

impl Memory {
    /// Bounded by `limits.maxTasks`, `limits.taskRetentionMs` and [`MAX_BYTES`].
    pub fn new(live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Self {
        Self::bounded(live, metrics, MAX_BYTES, Clock::system())
    }

    /// With another bound on bytes and another clock.
    pub fn bounded(live: watch::Receiver<Arc<Live>>, metrics: Metrics, max_bytes: usize, clock: Clock) -> Self {
        let (inner, hint) = (Mutex::default(), watch::Sender::new(0));
        Self::over(Arc::new(Core { inner, live, metrics, max_bytes, clock, hint, owners: AtomicUsize::new(0) }))
    }

    /// Another owner of tasks in the same memory, with a lease of its own: as another process has one over a database.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::over(Arc::clone(&self.core))
    }

    fn over(core: Arc<Core>) -> Self {
        let owner: Arc<str> = crate::a2a::ids::owner().into();
        let until = later(core.clock.now(), LEASE);
        core.inner.lock().leases.insert(Arc::clone(&owner), until);
        core.owners.fetch_add(1, Ordering::Relaxed);
        Self { core, owner }
    }

    fn bounds(&self) -> Bounds {
        let live = self.core.live.borrow();
        let retention = Duration::from_millis(live.limits.task_retention_ms);
        Bounds { tasks: live.limits.max_tasks as usize, retention, bytes: self.core.max_bytes }
    }

    fn insert(&self, mut task: Task, key: Option<Key>, push: Option<PushConfig>) -> Result<Arc<Task>, StoreError> {
        let (bounds, now) = (self.bounds(), self.core.clock.now());
        task.since = now;
        task.owner = Some(Arc::clone(&self.owner));
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        if let Some(there) = inner.tasks.get(&task.id) {
            let current = Arc::clone(&there.task);
            let mine = current.version == 1 && current.owner == task.owner;
            return if mine { Ok(current) } else { Err(StoreError::Conflict { expected: 0, current }) };
        }
        inner.unused(key.as_ref(), now)?;
        inner.make_room(1, TASK_OVERHEAD + cost(&Change::default()) + task.size(), bounds, now, &self.core.metrics)?;
        let task = Arc::new(task);
        inner.remember(&context_of(&task), task.history.first(), None, now);
        let mut entry = Entry::new(Arc::clone(&task), key.as_ref().map(|k| Arc::clone(&k.id)));
        if let Some(key) = key {
            inner.use_key(key, &task.id, now);
        }
        let hinted = push.is_some();
        if let Some(push) = push {
            let mut receiver = Receiver::new(push);
            receiver.schedule(1, &mut inner.due);
            entry.push.insert(Arc::clone(&receiver.config.id), receiver);
        }
        inner.insert(entry);
        drop(guard);
        self.hint(hinted);
        self.core.metrics.moved(None, Some(task.state));
        Ok(task)
    }

    fn change(&self, seen: &Task, mut change: Change, key: Option<Key>) -> Result<Arc<Task>, StoreError> {
        let (bounds, now) = (self.bounds(), self.core.clock.now());
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        let current = inner.seen(seen)?;
        inner.unused(key.as_ref(), now)?;
        let next = Arc::new(current.apply(&change, &self.owner, now)?);
        let room = inner.make_room(0, cost(&change), bounds, now, &self.core.metrics);
        if !next.state.is_terminal() || cost(&change) > SMALL {
            room?;
        }
        if let Some(key) = key {
            inner.use_key(key, &next.id, now);
        }
        // The memo is the context's; the log need not hold on to old ones.
        let memo = change.memo.take();
        inner.remember(&context_of(&next), change.message.as_ref(), memo.as_ref(), now);
        inner.moved(Some(&current), Some(&next));
        let entry = inner.tasks.get_mut(&next.id).ok_or(StoreError::NotFound)?;
        let before = entry.bytes();
        entry.push(Arc::clone(&next), change, &self.owner, now);
        inner.bytes = inner.bytes + entry.bytes() - before;
        for receiver in entry.push.values_mut() {
            receiver.schedule(next.version, &mut inner.due);
        }
        let hinted = !entry.push.is_empty();
        entry.publish();
        drop(guard);
        self.hint(hinted);
        self.core.metrics.moved(Some(current.state), Some(next.state));
        Ok(next)
    }

    fn forget(&self, seen: &Task, memo: Option<&Raw>, message: &Raw) -> Result<(), StoreError> {
        let mut inner = self.core.inner.lock();
        let current = inner.seen(seen)?;
        if current.state.is_terminal() {
            return Err(Refused::Ended(current.state).into());
        }
        inner.remember(&context_of(&current), None, memo, self.core.clock.now());
        if let Some(key) = inner.tasks.get(&seen.id).and_then(|e| e.key.clone()) {
            inner.answer_key(&key, &seen.id, message);
        }
        inner.remove(&seen.id, &self.core.metrics);
        Ok(())
    }

    fn claim(&self, limit: usize, hold: Duration) -> Vec<PushWork> {
        let now = self.core.clock.now();
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        let due: Vec<_> = inner.due.iter().take_while(|(at, ..)| *at <= now).take(limit).cloned().collect();
        let mut work = Vec::with_capacity(due.len());
        for (_, task, id) in due {
            let Some(entry) = inner.tasks.get_mut(&task) else { continue };
            let Some(receiver) = entry.push.get_mut(&id) else { continue };
            inner.seq += 1;
            let again = receiver.claim != 0;
            receiver.claim = inner.seq;
            work.push(PushWork { config: receiver.config.clone(), claim: receiver.claim, again });
            receiver.config.next = later(now, hold);
            receiver.schedule(entry.task.version, &mut inner.due);
        }
        work
    }

    fn done(&self, work: PushWork) {
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        let Some(entry) = inner.tasks.get_mut(&work.config.task) else { return };
        let Some(receiver) = entry.push.get_mut(&work.config.id) else { return };
        if receiver.claim != work.claim {
            return;
        }
        receiver.claim = 0;
        let PushConfig { json, delivered, attempts, next, dead, .. } = work.config;
        receiver.config = PushConfig { json, delivered, attempts, next, dead, ..receiver.config.clone() };
        receiver.schedule(entry.task.version, &mut inner.due);
    }

    fn put(&self, config: PushConfig) -> Result<(), StoreError> {
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        let entry = inner.tasks.get_mut(&config.task).ok_or(StoreError::NotFound)?;
        let mut receiver = Receiver::new(config);
        if let Some(old) = entry.push.get_mut(&receiver.config.id) {
            old.unschedule(&mut inner.due);
        }
        receiver.schedule(entry.task.version, &mut inner.due);
        entry.push.insert(Arc::clone(&receiver.config.id), receiver);
        drop(guard);
        self.hint(true);
        Ok(())
    }

    fn delete(&self, task: &str, id: &str) -> Result<bool, StoreError> {
        let mut guard = self.core.inner.lock();
        let inner = &mut *guard;
        let entry = inner.tasks.get_mut(task).ok_or(StoreError::NotFound)?;
        let gone = entry.push.remove(id);
        let there = gone.is_some();
        if let Some(mut gone) = gone {
            gone.unschedule(&mut inner.due);
        }
        Ok(there)
    }

    fn left_behind(&self, limit: usize) -> Vec<Arc<Task>> {
        if self.core.owners.load(Ordering::Relaxed) == 1 {
            return Vec::new();
        }
        let now = self.core.clock.now();
        let inner = self.core.inner.lock();
        let dead = |owner: &Arc<str>| *owner != self.owner && inner.leases.get(owner).is_none_or(|until| *until <= now);
        let orphans = inner.tasks.values().map(|e| &e.task).filter(|t| t.owner.as_ref().is_some_and(dead));
        orphans.take(limit).map(Arc::clone).collect()
    }

    fn hint(&self, due: bool) {
        if due {
            self.core.hint.send_modify(|n| *n += 1);
        }
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
        let got = self.core.inner.lock().tasks.get(task).map(|e| Arc::clone(&e.task));
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        let got = self.core.inner.lock().tasks.get(task).map_or(Err(StoreError::NotFound), |e| e.at(version));
        ready(got).boxed()
    }

    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        let got = self.core.inner.lock().tasks.get(task).map_or(Err(StoreError::NotFound), |e| e.events(after, limit));
        ready(got).boxed()
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        let got = self.core.inner.lock().tasks.get_mut(task).map(Entry::subscribe);
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
        let id = (caller.into(), context.into());
        let got = self.core.inner.lock().contexts.get(&id).map(|c| c.conversation.clone());
        ready(Ok(got.unwrap_or_default())).boxed()
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        ready(Ok(self.core.inner.lock().list(&query))).boxed()
    }

    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        ready(Ok(self.core.inner.lock().open_tasks(caller))).boxed()
    }

    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        let now = self.core.clock.now();
        ready(Ok(self.core.inner.lock().key(id, now).cloned())).boxed()
    }

    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.put(config)).boxed()
    }

    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        let inner = self.core.inner.lock();
        let got = inner.tasks.get(task).map(|e| e.push.values().map(|r| r.config.clone()).collect());
        ready(got.ok_or(StoreError::NotFound)).boxed()
    }

    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(self.delete(task, id)).boxed()
    }

    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        ready(Ok(self.claim(limit, hold))).boxed()
    }

    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        self.done(work);
        ready(Ok(())).boxed()
    }

    fn push_hint(&self) -> watch::Receiver<u64> {
        self.core.hint.subscribe()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let until = later(self.core.clock.now(), LEASE);
        self.core.inner.lock().leases.insert(Arc::clone(&self.owner), until);
        ready(Ok(())).boxed()
    }

    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        ready(Ok(self.left_behind(limit))).boxed()
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.core.inner.lock().leases.remove(&self.owner);
        ready(Ok(())).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let (bounds, now) = (self.bounds(), self.core.clock.now());
        self.core.inner.lock().expire(now, bounds.retention, &self.core.metrics);
        ready(Ok(())).boxed()
    }

    fn status(&self) -> PartStatus {
        PartStatus { ready: true, ..PartStatus::default() }
    }
}
