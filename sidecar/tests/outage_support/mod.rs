//! A store that can be away.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::status::PartStatus;
use outrigger_sidecar::a2a::store::{
    Event, Head, Key, KeyRecord, Page, PushConfig, PushWork, Query, Store, StoreError,
};
use tokio::sync::watch;

/// Another store behind a door.
pub struct Outage {
    pub store: Arc<dyn Store>,
    /// Whether it is away.
    pub away: AtomicBool,
    /// Whether writes are done all the same while it is away: only their answers are lost.
    pub writes: AtomicBool,
}

impl Outage {
    pub fn of(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, away: AtomicBool::new(false), writes: AtomicBool::new(false) })
    }

    pub fn set(&self, away: bool, writes: bool) {
        self.writes.store(writes, Ordering::SeqCst);
        self.away.store(away, Ordering::SeqCst);
    }

    fn away<T>(&self) -> Option<Result<T, StoreError>> {
        self.away.load(Ordering::SeqCst).then(|| Err(StoreError::Unavailable("the test took it away".into())))
    }

    fn read<'a, T: Send + 'a>(
        &self,
        call: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.away().map_or(call, |away| ready(away).boxed())
    }

    fn write<'a, T: Send + 'a>(
        &self,
        call: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let Some(away) = self.away() else { return call };
        if self.writes.load(Ordering::SeqCst) { call.map(|_| away).boxed() } else { ready(away).boxed() }
    }
}

/// What the service is given: it owns its store, the test keeps another handle.
pub struct Handle(pub Arc<Outage>);

impl Store for Handle {
    fn owner(&self) -> Arc<str> {
        self.0.store.owner()
    }
    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        self.0.write(self.0.store.create(task, key, push))
    }
    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.0.write(self.0.store.append(seen, change, key))
    }
    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.0.read(self.0.store.get(task))
    }
    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.0.read(self.0.store.at(task, version))
    }
    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        self.0.read(self.0.store.events(task, after, limit))
    }
    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        self.0.read(self.0.store.subscribe(task))
    }
    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.write(self.0.store.withdraw(seen, memo, message))
    }
    fn conversation<'a>(
        &'a self,
        caller: &'a str,
        context: &'a str,
    ) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        self.0.read(self.0.store.conversation(caller, context))
    }
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.0.read(self.0.store.list(query))
    }
    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.0.read(self.0.store.open_tasks(caller))
    }
    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        self.0.read(self.0.store.key(id))
    }
    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.write(self.0.store.put_push(config))
    }
    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        self.0.read(self.0.store.push_configs(task))
    }
    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.0.write(self.0.store.delete_push(task, id))
    }
    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        self.0.write(self.0.store.push_due(limit, hold))
    }
    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.write(self.0.store.push_done(work))
    }
    fn push_hint(&self) -> watch::Receiver<u64> {
        self.0.store.push_hint()
    }
    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.read(self.0.store.renew())
    }
    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        self.0.read(self.0.store.orphans(limit))
    }
    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.write(self.0.store.release())
    }
    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.write(self.0.store.sweep())
    }
    fn status(&self) -> PartStatus {
        self.0.store.status()
    }
}
