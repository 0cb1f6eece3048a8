//! A store whose operations are timed and whose errors are counted.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::status::PartStatus;
use prometheus::{Histogram, HistogramVec, IntCounterVec};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Event, Head, Key, KeyRecord, Page, PushConfig, PushWork, Query, Store, StoreError};
use crate::a2a::metrics::Metrics;

/// One operation's time.
struct Timed {
    name: &'static str,
    seconds: Histogram,
}

macro_rules! operations {
    ($($name:ident),*) => {
        /// Times by operation, found once.
        struct Operations { $($name: Timed),* }

        impl Operations {
            fn new(seconds: &HistogramVec) -> Self {
                Self { $($name: Timed {
                    name: stringify!($name),
                    seconds: seconds.with_label_values(&[stringify!($name)]),
                }),* }
            }
        }
    };
}

operations!(
    create,
    append,
    get,
    at,
    events,
    subscribe,
    withdraw,
    conversation,
    list,
    open_tasks,
    key,
    put_push,
    push_configs,
    delete_push,
    push_due,
    push_done,
    renew,
    orphans,
    release,
    sweep
);

/// Another store, measured.
pub(super) struct Measured<S> {
    inner: S,
    operations: Operations,
    errors: IntCounterVec,
}

/// The label of an error.
fn label(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound => "not_found",
        StoreError::Conflict { .. } => "conflict",
        StoreError::Refused(_) => "refused",
        StoreError::Full(_) => "full",
        StoreError::Duplicate(_) => "duplicate",
        StoreError::Trimmed(_) => "trimmed",
        StoreError::Unavailable(_) => "unavailable",
        StoreError::Damaged(_) => "damaged",
    }
}

impl<S: Store> Measured<S> {
    pub(super) fn new(inner: S, metrics: &Metrics) -> Self {
        Self { inner, operations: Operations::new(&metrics.store_seconds), errors: metrics.store_errors.clone() }
    }

    fn timed<'a, T: Send + 'a>(
        &'a self,
        operation: &'a Timed,
        what: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        async move {
            let began = Instant::now();
            let done = what.await;
            operation.seconds.observe(began.elapsed().as_secs_f64());
            if let Err(error) = &done {
                self.errors.with_label_values(&[operation.name, label(error)]).inc();
            }
            done
        }
        .boxed()
    }
}

impl<S: Store> Store for Measured<S> {
    fn owner(&self) -> Arc<str> {
        self.inner.owner()
    }

    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        self.timed(&self.operations.create, self.inner.create(task, key, push))
    }

    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.timed(&self.operations.append, self.inner.append(seen, change, key))
    }

    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.timed(&self.operations.get, self.inner.get(task))
    }

    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.timed(&self.operations.at, self.inner.at(task, version))
    }

    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        self.timed(&self.operations.events, self.inner.events(task, after, limit))
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        self.timed(&self.operations.subscribe, self.inner.subscribe(task))
    }

    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.timed(&self.operations.withdraw, self.inner.withdraw(seen, memo, message))
    }

    fn conversation<'a>(
        &'a self,
        caller: &'a str,
        context: &'a str,
    ) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        self.timed(&self.operations.conversation, self.inner.conversation(caller, context))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.timed(&self.operations.list, self.inner.list(query))
    }

    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.timed(&self.operations.open_tasks, self.inner.open_tasks(caller))
    }

    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        self.timed(&self.operations.key, self.inner.key(id))
    }

    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed(&self.operations.put_push, self.inner.put_push(config))
    }

    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        self.timed(&self.operations.push_configs, self.inner.push_configs(task))
    }

    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.timed(&self.operations.delete_push, self.inner.delete_push(task, id))
    }

    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        self.timed(&self.operations.push_due, self.inner.push_due(limit, hold))
    }

    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed(&self.operations.push_done, self.inner.push_done(work))
    }

    fn push_hint(&self) -> watch::Receiver<u64> {
        self.inner.push_hint()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed(&self.operations.renew, self.inner.renew())
    }

    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        self.timed(&self.operations.orphans, self.inner.orphans(limit))
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed(&self.operations.release, self.inner.release())
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.timed(&self.operations.sweep, self.inner.sweep())
    }

    fn status(&self) -> PartStatus {
        self.inner.status()
    }
}
