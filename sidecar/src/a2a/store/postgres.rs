//! Tasks in a PostgreSQL database that all replicas share.
//!
//! Each write is one statement: a function of the schema that compares version, epoch and owner, and stamps the time of
//! the database. A process has one lease row for all of its tasks. An error that tells nothing of what became of a
//! write is followed by one more try, which finds out. Sessions keep prepared statements, a search path and a channel:
//! the connection must not go through a pooler that shares sessions between transactions.

mod connect;
mod follow;
mod rows;
mod tls;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use futures::FutureExt;
use futures::future::BoxFuture;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::Live;
use outrigger_protocol::status::PartStatus;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::hub::{Hub, head_of};
use super::unsure::Unsure;
use super::{Event, Head, Key, KeyRecord, OpenError, Page, PushConfig, PushWork, Query, Store, StoreError};
use crate::a2a::metrics::Metrics;
pub use connect::MAX_CONNECTIONS;
use connect::{Fail, Link};
use write::Append;

/// For one operation, its second try included.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(8);
/// Before a second try.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Ended tasks and the like that one statement forgets.
const SWEEP: usize = 256;

/// Does something that may be done twice; a second time, on another connection, if the first one broke.
macro_rules! twice {
    ($core:expr, $client:ident => $what:expr) => {{
        let first = {
            let $client = &$core.client().await?;
            $what.await
        };
        let done = match first {
            Err(Fail::Unknown(_)) => {
                sleep(RETRY_AFTER).await;
                let $client = &$core.client().await?;
                $what.await
            }
            other => other,
        };
        done.map_err(StoreError::from)
    }};
}

struct Core {
    link: Link,
    hub: Hub,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
    hint: watch::Sender<u64>,
    owner: Arc<str>,
    /// New tasks since they were counted last.
    created: AtomicU64,
    unsure: Unsure,
}

/// The store in a database.
pub struct Postgres {
    core: Arc<Core>,
    _stop: DropGuard,
}

/// Where the database is.
#[derive(Clone)]
pub struct Place {
    /// Connection URL.
    pub url: String,
    /// Schema of our tables.
    pub schema: String,
    /// PEM file with the authorities to trust.
    pub ca_file: Option<PathBuf>,
    /// What tells pods apart: a process of the same pod takes the tasks of its predecessor over at once.
    pub pod: String,
}

impl Postgres {
    /// Begins to connect, in the background: a database that is down is no reason not to start. Needs a runtime.
    pub fn open(place: Place, live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Result<Self, OpenError> {
        let owner: Arc<str> = crate::a2a::ids::owner_in(&place.pod).into();
        let link = Link::new(&place.url, &place.schema, place.ca_file, Arc::clone(&owner))?;
        let core = Arc::new(Core {
            link,
            hub: Hub::default(),
            live,
            metrics,
            hint: watch::Sender::new(0),
            owner,
            created: AtomicU64::new(0),
            unsure: Unsure::default(),
        });
        let stop = CancellationToken::new();
        tokio::spawn(follow::listen(Arc::downgrade(&core), stop.clone()));
        tokio::spawn(follow::look(Arc::downgrade(&core), stop.clone()));
        Ok(Self { core, _stop: stop.drop_guard() })
    }
}

impl Core {
    /// A connection.
    async fn client(&self) -> Result<Object, StoreError> {
        let got = self.link.client().await.map_err(StoreError::from);
        self.note(got.as_ref().err());
        got
    }

    fn note(&self, error: Option<&StoreError>) {
        match error {
            Some(StoreError::Unavailable(why) | StoreError::Full(why)) => self.link.note(Some(why.clone())),
            Some(_) => {}
            None => self.link.note(None),
        }
    }

    /// Does something within the time for an operation.
    async fn timely<T>(&self, what: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        let late = || StoreError::Unavailable(format!("no answer within {} s", OPERATION_TIMEOUT.as_secs()));
        let done = timeout(OPERATION_TIMEOUT, what).await.unwrap_or_else(|_| Err(late()));
        self.note(done.as_ref().err());
        done
    }

    async fn create(
        &self,
        mut task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> Result<Arc<Task>, StoreError> {
        self.room().await?;
        task.owner = Some(Arc::clone(&self.owner));
        let id = Arc::clone(&task.id);
        let writing = self.unsure.writing(Arc::clone(&id));
        // The same task again is written once.
        let done = twice!(self, client => write::create(client, task.clone(), key.as_ref(), push.as_ref()));
        if !matches!(done, Err(StoreError::Unavailable(_))) {
            writing.known();
        }
        let (task, event) = done?;
        self.metrics.moved(None, Some(task.state));
        self.hub.publish(&id, head_of(&task), event);
        self.hint(push.is_some());
        Ok(task)
    }

    /// Looks now and then whether there are more tasks than there may be.
    async fn room(&self) -> Result<(), StoreError> {
        let (most, retention) = {
            let limits = &self.live.borrow().limits;
            (u64::from(limits.max_tasks), Duration::from_millis(limits.task_retention_ms))
        };
        let created = self.created.fetch_add(1, Ordering::Relaxed);
        if !created.is_multiple_of((most / 64).clamp(1, 64)) {
            return Ok(());
        }
        let over = (twice!(self, client => write::count(client))? + 1).saturating_sub(most);
        let mut left = over;
        if over > 0 {
            let limit = usize::try_from(over).unwrap_or(usize::MAX).min(SWEEP);
            let (gone, early) = twice!(self, client => write::forget_ended(client, None, retention, limit))?;
            self.metrics.evicted.inc_by(early);
            left -= gone.min(over);
        }
        // With others at work the number is not exact; it counts only when nothing ended is left.
        if left > 0 {
            self.created.store(0, Ordering::Relaxed);
            return Err(StoreError::Full(format!("all of its {most} tasks are still alive")));
        }
        Ok(())
    }

    async fn append(&self, seen: &Task, change: Change, key: Option<Key>) -> Result<Arc<Task>, StoreError> {
        let append = Append::new(seen, change, key, &self.owner, self.link.channel());
        let first = {
            let client = self.client().await?;
            append.write(&client).await
        };
        let done = match first {
            Err(Fail::Unknown(_)) => {
                sleep(RETRY_AFTER).await;
                let client = self.client().await?;
                match append.written(&client).await? {
                    Some(written) => Ok(written),
                    None => append.write(&client).await,
                }
            }
            other => other,
        };
        let (task, event, receivers) = done?;
        self.metrics.moved(Some(seen.state), Some(task.state));
        self.hub.publish(&task.id, head_of(&task), event);
        self.hint(receivers);
        Ok(task)
    }

    fn hint(&self, due: bool) {
        if due {
            self.hint.send_modify(|n| *n += 1);
        }
    }

    async fn newest(&self, task: &str) -> Result<Arc<Task>, StoreError> {
        twice!(self, client => rows::load(client, task, None))
    }

    async fn subscribe(&self, task: &str) -> Result<watch::Receiver<Head>, StoreError> {
        let follower = self.hub.enter(task);
        match self.newest(task).await {
            Ok(newest) => {
                self.hub.read(task, head_of(&newest));
                Ok(follower)
            }
            Err(error) => {
                drop(follower);
                self.hub.followed();
                Err(error)
            }
        }
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        let mut tasks = Vec::new();
        for id in twice!(self, client => rows::orphans(client, &self.owner, limit))? {
            match self.newest(&id).await {
                // It may have ended, or been taken over, since it was found.
                Ok(task) if task.owner.as_ref().is_some_and(|o| *o != self.owner) => tasks.push(task),
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        for id in self.unsure.tasks().iter().take(limit.saturating_sub(tasks.len())) {
            match self.newest(id).await {
                Ok(task) if task.version == 1 && task.owner.as_ref() == Some(&self.owner) => tasks.push(task),
                Ok(_) => self.unsure.known(id),
                Err(StoreError::NotFound) => self.unsure.missing(id),
                Err(e) => return Err(e),
            }
        }
        Ok(tasks)
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let (most, retention) = {
            let limits = &self.live.borrow().limits;
            (u64::from(limits.max_tasks), Duration::from_millis(limits.task_retention_ms))
        };
        self.hub.followed();
        loop {
            let (gone, _) = twice!(self, client => write::forget_ended(client, Some(retention), retention, SWEEP))?;
            if gone < SWEEP as u64 {
                break;
            }
        }
        twice!(self, client => write::forget_rest(client, retention, most))?;
        for (state, tasks) in self.states().await? {
            self.metrics.present(state, tasks);
        }
        Ok(())
    }

    async fn states(&self) -> Result<Vec<(outrigger_protocol::a2a::state::State, i64)>, StoreError> {
        use outrigger_protocol::a2a::state::State;
        let found = twice!(self, client => rows::states(client))?;
        let of = |state| found.iter().find(|(s, _)| *s == state).map_or(0, |(_, n)| *n);
        Ok(State::ALL.into_iter().map(|s| (s, of(s))).collect())
    }
}

impl Store for Postgres {
    fn owner(&self) -> Arc<str> {
        Arc::clone(&self.core.owner)
    }

    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>> {
        self.core.timely(self.core.create(task, key, push)).boxed()
    }

    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.core.timely(self.core.append(seen, change, key)).boxed()
    }

    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.core.timely(self.core.newest(task)).boxed()
    }

    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>> {
        self.core.timely(async move { twice!(self.core, client => rows::load(client, task, Some(version))) }).boxed()
    }

    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>> {
        if let Some(events) = self.core.hub.events(task, after, limit) {
            return futures::future::ready(Ok(events)).boxed();
        }
        let read = async move { Ok(twice!(self.core, client => rows::events(client, task, after, limit))?.1) };
        self.core.timely(read).boxed()
    }

    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>> {
        self.core.timely(self.core.subscribe(task)).boxed()
    }

    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let channel = self.core.link.channel();
        let withdraw = async move {
            let client = self.core.client().await?;
            write::withdraw(&client, seen, memo.as_ref(), message, channel).await?;
            self.core.hub.forget(&seen.id);
            self.core.metrics.moved(Some(seen.state), None);
            Ok(())
        };
        self.core.timely(withdraw).boxed()
    }

    fn conversation<'a>(
        &'a self,
        caller: &'a str,
        context: &'a str,
    ) -> BoxFuture<'a, Result<Conversation, StoreError>> {
        let read = async move { twice!(self.core, client => rows::conversation(client, caller, context)) };
        self.core.timely(read).boxed()
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        let read = async move { twice!(self.core, client => rows::list(client, &query)) };
        self.core.timely(read).boxed()
    }

    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.core.timely(async move { twice!(self.core, client => rows::open_tasks(client, caller)) }).boxed()
    }

    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>> {
        self.core.timely(async move { twice!(self.core, client => rows::key(client, id)) }).boxed()
    }

    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>> {
        let put = async move {
            twice!(self.core, client => write::put_push(client, &config))?;
            self.core.hint(true);
            Ok(())
        };
        self.core.timely(put).boxed()
    }

    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>> {
        self.core.timely(async move { twice!(self.core, client => rows::push_configs(client, task)) }).boxed()
    }

    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.core.timely(async move { twice!(self.core, client => write::delete_push(client, task, id)) }).boxed()
    }

    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>> {
        let claim = async move {
            let client = self.core.client().await?;
            Ok(write::claim(&client, limit, hold).await?)
        };
        self.core.timely(claim).boxed()
    }

    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>> {
        // Once done, the claim does not hold any more: a second try does nothing.
        let done = async move { twice!(self.core, client => write::done(client, &work)) };
        self.core.timely(done).boxed()
    }

    fn push_hint(&self) -> watch::Receiver<u64> {
        self.core.hint.subscribe()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.core.timely(async move { twice!(self.core, client => self.core.link.renew(client)) }).boxed()
    }

    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>> {
        self.core.timely(self.core.orphans(limit)).boxed()
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let release = async move { twice!(self.core, client => write::release(client, &self.core.owner)) };
        self.core.timely(release).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        // It takes as long as there is something to forget; each statement has its own bound.
        self.core.sweep().boxed()
    }

    fn status(&self) -> PartStatus {
        match self.core.link.failure() {
            None => PartStatus { ready: true, ..PartStatus::default() },
            Some(why) => PartStatus {
                ready: false,
                reason: "TaskStoreUnavailable".into(),
                message: format!("the task database cannot be used: {why}"),
            },
        }
    }
}
