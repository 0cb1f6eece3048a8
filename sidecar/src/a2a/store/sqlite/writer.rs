//! The thread that writes: what waits is one transaction, and is told after it is committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::Task;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::super::hub::{Hub, head_of};
use super::super::{Event, StoreError};
use super::rows::Fail;
use crate::a2a::metrics::Metrics;

/// Writes that may wait for the thread; more wait at their callers.
pub(super) const MAX_WAITING: usize = 1_024;
/// Most writes of one transaction.
const MAX_BATCH: usize = 256;
/// Transactions that are written and not told yet.
const MAX_UNTOLD: usize = 16;
/// After a transaction of several writes, the next one waits so long for as many of them: callers come together then,
/// and what a transaction costs is the same for few writes and for many. A caller who is alone does not wait.
const GATHER: Duration = Duration::from_micros(100);

/// What the rest of the process may know without a read.
pub(super) struct Shared {
    pub hub: Hub,
    /// Tasks that this process works on, by id: each is in a turn's hands anyway.
    pub cache: Mutex<HashMap<Arc<str>, Arc<Task>>>,
    /// Tasks that have not ended, by caller.
    pub open: Mutex<HashMap<Arc<str>, u64>>,
    pub hint: watch::Sender<u64>,
    pub metrics: Metrics,
    /// Why the last write failed.
    pub failure: Mutex<Option<String>>,
    pub owner: Arc<str>,
}

/// Numbers that bound the database. They follow a transaction that is rolled back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub tasks: u64,
    /// Contexts without a task.
    pub idle: u64,
    pub keys: u64,
    /// Bytes of events.
    pub bytes: u64,
    pub claims: u64,
}

/// What the thread has.
pub(super) struct Db {
    pub sql: Connection,
    pub counts: Counts,
    pub shared: Arc<Shared>,
}

/// A task that went from one state to another; `None` is outside of the store.
pub(super) struct Moved {
    pub task: Arc<str>,
    pub caller: Arc<str>,
    pub from: Option<State>,
    pub to: Option<State>,
}

/// What is told when a write is committed.
#[derive(Default)]
pub(super) struct Told {
    pub moved: Vec<Moved>,
    pub event: Option<(Arc<Task>, Event)>,
    pub hint: bool,
}

/// What was written together, or why it was not.
struct Done {
    finish: Vec<Finish>,
    failure: Option<StoreError>,
}

impl Done {
    /// Tells everybody.
    fn tell(self) {
        for told in self.finish {
            told(self.failure.as_ref().map_or(Ok(()), |e| Err(copy(e))));
        }
    }
}

type Finish = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
type Job = Box<dyn FnOnce(&mut Db) -> Result<Finish, Fail> + Send>;

/// The way to the thread.
pub(super) struct Writer(mpsc::Sender<Job>);

impl Writer {
    /// Starts the thread; it ends when the way to it is gone and all that waited is written. What was written is told
    /// by a task of the runtime, if there is one: the thread wakes it once, not once for each caller.
    pub(super) fn start(db: Db, keep: impl Send + 'static) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let (done, mut untold) = mpsc::channel::<Done>(MAX_UNTOLD);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                while let Some(done) = untold.recv().await {
                    done.tell();
                }
            });
        }
        std::thread::Builder::new().name("task-store".into()).spawn(move || {
            work(db, waiting, &done);
            drop(keep);
        })?;
        Ok(Self(jobs))
    }

    /// Has a write done. Once it waits it is done, whether its caller waits or not.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut Db) -> Result<(T, Told), Fail> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            let before = db.sql.total_changes();
            let (result, news) = match write(db) {
                Ok((result, news)) => (Ok(result), Some(news)),
                Err(Fail::Store(e)) if db.sql.total_changes() == before => (Err(e), None),
                // Half of it is written, or nobody knows: the whole transaction must go.
                Err(e) => {
                    let why = e.for_others();
                    let _ = tell.send(Err(e.into()));
                    return Err(Fail::Store(why));
                }
            };
            let shared = Arc::clone(&db.shared);
            Ok(Box::new(move |fate: Result<(), StoreError>| {
                if let (Ok(()), Some(news)) = (&fate, news) {
                    shared.tell(news);
                }
                // The caller may be gone.
                let _ = tell.send(fate.and(result));
            }))
        });
        let ended = || StoreError::Unavailable("its thread has ended".into());
        self.0.send(job).await.map_err(|_| ended())?;
        told.await.map_err(|_| ended())?
    }
}

fn work(mut db: Db, mut waiting: mpsc::Receiver<Job>, tell: &mpsc::Sender<Done>) {
    let mut last = 1;
    while let Some(first) = waiting.blocking_recv() {
        let mut batch = Vec::with_capacity(last.max(8));
        batch.push(first);
        // Who was told of the last transaction may have something to write by now: one transaction for all is cheaper.
        if last == 1 {
            std::thread::yield_now();
        } else if batch.len() + waiting.len() < last {
            // Nobody wakes this thread: it sleeps for so long.
            std::thread::park_timeout(GATHER);
        }
        while batch.len() < MAX_BATCH
            && let Ok(next) = waiting.try_recv()
        {
            batch.push(next);
        }
        last = batch.len();
        let done = commit(&mut db, batch);
        if let Err(mpsc::error::SendError(done)) = tell.blocking_send(done) {
            // There is no runtime, or it ends.
            done.tell();
        }
    }
}

/// Does writes in one transaction: all of them or none.
fn commit(db: &mut Db, batch: Vec<Job>) -> Done {
    let before = db.counts;
    let mut finish = Vec::with_capacity(batch.len());
    let mut done = run(db, "BEGIN IMMEDIATE");
    for job in batch {
        // After an error the rest is not tried: it goes down with the transaction, and its callers hear of it.
        if done.is_err() {
            break;
        }
        match job(db) {
            Ok(told) => finish.push(told),
            Err(e) => done = Err(e),
        }
    }
    if done.is_ok() {
        done = run(db, "COMMIT");
    }
    let failure = done.err().map(|e| e.for_others());
    if let Some(error) = &failure {
        tracing::error!(target: "business", %error, "the task database failed");
        if !db.sql.is_autocommit()
            && let Err(error) = db.sql.execute_batch("ROLLBACK")
        {
            tracing::error!(target: "business", %error, "the task database did not roll back");
        }
        db.counts = before;
    }
    *db.shared.failure.lock() = failure.as_ref().map(ToString::to_string);
    Done { finish, failure }
}

fn run(db: &Db, statement: &str) -> Result<(), Fail> {
    db.sql.prepare_cached(statement)?.execute([])?;
    Ok(())
}

/// One of the errors that [`Fail::for_others`] gives, once more.
fn copy(error: &StoreError) -> StoreError {
    match error {
        StoreError::Full(why) => StoreError::Full(why.clone()),
        StoreError::Unavailable(why) => StoreError::Unavailable(why.clone()),
        other => StoreError::Unavailable(other.to_string()),
    }
}

impl Shared {
    fn tell(&self, news: Told) {
        for Moved { task, caller, from, to } in news.moved {
            let (was, is) = [from, to].map(|s| s.is_some_and(|s| !s.is_terminal())).into();
            if was != is {
                let mut open = self.open.lock();
                let count = open.entry(Arc::clone(&caller)).or_default();
                *count = if is { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    open.remove(&caller);
                }
            }
            if to.is_none() {
                self.cache.lock().remove(&task);
                self.hub.forget(&task);
            }
            self.metrics.moved(from, to);
        }
        if let Some((task, event)) = news.event {
            if task.owner.as_ref() == Some(&self.owner) {
                self.cache.lock().insert(Arc::clone(&task.id), Arc::clone(&task));
            } else {
                self.cache.lock().remove(&task.id);
            }
            self.hub.publish(&task.id, head_of(&task), event);
        }
        if news.hint {
            self.hint.send_modify(|n| *n += 1);
        }
    }
}
