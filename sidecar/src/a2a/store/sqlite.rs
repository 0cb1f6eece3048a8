//! Tasks in one SQLite file, for one process at a time.
//!
//! One thread writes; all writes that wait become one transaction. Reads have connections of their own. A write that
//! was handed to the thread is done, whether its caller waits for it or not. Tasks of an earlier process are orphans
//! from the start: a lock beside the file says that it is dead.

mod house;
mod read;
mod rows;
mod schema;
mod write;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::stored::write_change;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::Live;
use outrigger_protocol::status::PartStatus;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::Clock;
use super::hub::{Hub, head_of};
use super::unsure::Unsure;
use super::{Event, Head, Key, KeyRecord, OpenError, Page, PushConfig, PushWork, Query, Store, StoreError};
use crate::a2a::metrics::Metrics;
use house::Bounds;
pub use house::MAX_BYTES;
use read::Readers;
use write::{Append, Row, Seen};
use writer::{Db, Shared, Writer};

/// The store in a file.
pub struct Sqlite {
    writer: Writer,
    readers: Readers,
    shared: Arc<Shared>,
    live: watch::Receiver<Arc<Live>>,
    clock: Clock,
    /// Tasks that an earlier process worked on, by id.
    left: Mutex<Vec<Arc<str>>>,
    unsure: Unsure,
}

impl Sqlite {
    /// Opens the database at a path, or makes one. Reads and checks it; call it where that may take a while.
    pub fn open(
        path: &Path,
        live: watch::Receiver<Arc<Live>>,
        metrics: Metrics,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        let unusable = |why: String| OpenError::File { path: path.to_owned(), why };
        let (hold, sql) = schema::open(path)?;
        let owner: Arc<str> = crate::a2a::ids::owner().into();
        let shared = Shared {
            hub: Hub::default(),
            cache: Mutex::default(),
            open: Mutex::default(),
            hint: watch::Sender::new(0),
            metrics,
            failure: Mutex::default(),
            owner,
        };
        let counts = house::count(&sql).map_err(|e| unusable(e.to_string()))?;
        let left = take_stock(&sql, &shared).map_err(|e| unusable(e.to_string()))?;
        let shared = Arc::new(shared);
        let db = Db { sql, counts, shared: Arc::clone(&shared) };
        let writer = Writer::start(db, hold).map_err(|e| unusable(e.to_string()))?;
        Ok(Self {
            writer,
            readers: Readers::new(path.to_owned()),
            shared,
            live,
            clock,
            left: Mutex::new(left),
            unsure: Unsure::default(),
        })
    }

    fn bounds(&self) -> Bounds {
        let limits = &self.live.borrow().limits;
        Bounds { tasks: limits.max_tasks.into(), retention: Duration::from_millis(limits.task_retention_ms) }
    }

    async fn insert(
        &self,
        mut task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> Result<Arc<Task>, StoreError> {
        let bounds = self.bounds();
        task.since = self.clock.now();
        task.owner = Some(Arc::clone(&self.shared.owner));
        let row = row(1, task.since, task.first_change());
        let task = Arc::new(task);
        let writing = self.unsure.writing(Arc::clone(&task.id));
        let done = self.writer.run(move |db| write::create(db, &task, row, key.as_ref(), push.as_ref(), bounds)).await;
        writing.known();
        done
    }

    async fn change(&self, seen: &Task, mut change: Change, key: Option<Key>) -> Result<Arc<Task>, StoreError> {
        let now = self.clock.now();
        let owner = &self.shared.owner;
        let next = seen.apply(&change, owner, now).map(Arc::new);
        let writer = (seen.owner.as_ref() != Some(owner)).then(|| Arc::clone(owner));
        let (memo, seen) = (change.memo.take(), Seen::of(seen));
        let row = row(seen.version + 1, now, change);
        let append = Append { seen, next, row, memo, key, writer, now };
        self.writer.run(move |db| write::append(db, append)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&rusqlite::Connection) -> Result<T, rows::Fail> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.readers.run(read).await
    }

    async fn newest(&self, task: &str) -> Result<Arc<Task>, StoreError> {
        let known = self.shared.cache.lock().get(task).map(Arc::clone);
        if let Some(known) = known {
            return Ok(known);
        }
        let id = task.to_owned();
        self.read(move |db| rows::newest(db, &id)).await
    }

    async fn follow(&self, task: &str) -> Result<watch::Receiver<Head>, StoreError> {
        let follower = self.shared.hub.enter(task);
        // A write that is not told yet when this is read is told later, and then to the follower too.
        match self.newest(task).await {
            Ok(newest) => self.shared.hub.read(task, head_of(&newest)),
            Err(error) => {
                drop(follower);
                self.shared.hub.followed();
                return Err(error);
            }
        }
        Ok(follower)
    }

    async fn left_behind(&self, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        let mut orphans = Vec::new();
        let left = self.left.lock().clone();
        for id in left {
            if orphans.len() >= limit {
                break;
            }
            match self.newest(&id).await {
                Ok(task) if task.owner.as_ref().is_some_and(|o| *o != self.shared.owner) => orphans.push(task),
                Ok(_) | Err(StoreError::NotFound) => self.left.lock().retain(|l| *l != id),
                Err(error) => return Err(error),
            }
        }
        for id in self.unsure.tasks().iter().take(limit.saturating_sub(orphans.len())) {
            match self.newest(id).await {
                Ok(task) if task.version == 1 && task.owner.as_ref() == Some(&self.shared.owner) => orphans.push(task),
                Ok(_) => self.unsure.known(id),
                Err(StoreError::NotFound) => self.unsure.missing(id),
                Err(error) => return Err(error),
            }
        }
        Ok(orphans)
    }
}

/// An event and its text.
fn row(version: u64, at: jiff::Timestamp, change: Change) -> Row {
    let mut json = String::with_capacity(change.size() + 256);
    write_change(&change, &mut json);
    Row { event: Event { version, at, change: Arc::new(change) }, json }
}

/// Counts tasks by state and caller; gives those that are in the hands of an earlier process.
fn take_stock(sql: &rusqlite::Connection, shared: &Shared) -> rusqlite::Result<Vec<Arc<str>>> {
    let mut statement = sql.prepare("SELECT state, count(*) FROM tasks GROUP BY state")?;
    let counts = statement.query_map([], |r| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?)))?;
    for count in counts {
        let (state, n) = count?;
        if let Some(state) = usize::try_from(state).ok().and_then(|s| State::ALL.get(s)) {
            shared.metrics.present(*state, n);
        }
    }
    let mut statement = sql.prepare("SELECT caller, count(*) FROM tasks WHERE state < 4 GROUP BY caller")?;
    let open = statement.query_map([], |r| Ok((r.get(0)?, rows::uint(r.get(1)?))))?;
    *shared.open.lock() = open.collect::<Result<_, _>>()?;
    let mut statement = sql.prepare("SELECT id FROM tasks WHERE owner IS NOT NULL")?;
    statement.query_map([], |r| r.get(0))?.collect()
}

impl Store for Sqlite {
    fn owner(&self) -> Arc<str> {
        Arc::clone(&self.shared.owner)
    }

    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        self.insert(task, key, push).boxed()
    }

    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.change(seen, change, key).boxed()
    }

    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.newest(task).boxed()
    }

    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        let id = task.to_owned();
        self.read(move |db| rows::Head::by_id(db, &id)?.ok_or(StoreError::NotFound)?.load(db, version)).boxed()
    }

    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        if let Some(events) = self.shared.hub.events(task, after, limit) {
            return futures::future::ready(Ok(events)).boxed();
        }
        let id = task.to_owned();
        self.read(move |db| rows::Head::by_id(db, &id)?.ok_or(StoreError::NotFound)?.events(db, after, limit)).boxed()
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        self.follow(task).boxed()
    }

    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (seen, message, now) = (Seen::of(seen), message.clone(), self.clock.now());
        self.writer.run(move |db| write::withdraw(db, &seen, memo.as_ref(), &message, now)).boxed()
    }

    fn conversation<'a>(
        &'a self,
        caller: &'a str,
        context: &'a str,
    ) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        let (caller, context) = (caller.to_owned(), context.to_owned());
        self.read(move |db| Ok(write::context(db, &caller, &context)?.map(|c| c.1).unwrap_or_default())).boxed()
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.read(move |db| read::list(db, &query)).boxed()
    }

    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        let open = self.shared.open.lock().get(caller).copied().unwrap_or_default();
        futures::future::ready(Ok(open)).boxed()
    }

    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        let (id, limit) = (id.to_owned(), write::key_limit(self.clock.now()));
        self.read(move |db| rows::key(db, &id, limit)).boxed()
    }

    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        self.writer.run(move |db| write::put_push(db, &config)).boxed()
    }

    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        let id = task.to_owned();
        self.read(move |db| read::push_configs(db, &id)).boxed()
    }

    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        let (task, id) = (task.to_owned(), id.to_owned());
        self.writer.run(move |db| write::delete_push(db, &task, &id)).boxed()
    }

    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        let now = self.clock.now();
        self.writer.run(move |db| write::claim(db, limit, hold, now)).boxed()
    }

    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        self.writer.run(move |db| write::done(db, &work)).boxed()
    }

    fn push_hint(&self) -> watch::Receiver<u64> {
        self.shared.hint.subscribe()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        // The lock on the file is the lease.
        futures::future::ready(Ok(())).boxed()
    }

    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        self.left_behind(limit).boxed()
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let (bounds, now) = (self.bounds(), self.clock.now());
        async move {
            self.shared.hub.followed();
            // Others write between two parts of it.
            while self.writer.run(move |db| house::sweep(db, bounds, now)).await? {}
            Ok(())
        }
        .boxed()
    }

    fn status(&self) -> PartStatus {
        match &*self.shared.failure.lock() {
            None => PartStatus { ready: true, ..PartStatus::default() },
            Some(why) => PartStatus {
                ready: false,
                reason: "TaskStoreFailed".into(),
                message: format!("the task database did not take the last write: {why}"),
            },
        }
    }
}
