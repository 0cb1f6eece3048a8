//! The store in a file: one process at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::{Clock, OpenError, Sqlite, Store};
use tokio::time::{Instant, sleep};

use super::bed::{Bed, Death, process};
use super::memory::clock;

pub struct SqliteBed {
    folder: tempfile::TempDir,
    clock: Clock,
    hand: Arc<AtomicI64>,
}

impl SqliteBed {
    pub fn new() -> Self {
        let (clock, hand) = clock();
        Self { folder: tempfile::tempdir().unwrap(), clock, hand }
    }

    /// Where the file is: `tasks.db`.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Opens the database, as soon as the process that had it has let go of it.
    pub async fn open(&self, limits: Limits) -> Arc<Sqlite> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let (live, metrics) = process(limits.clone());
            let path = self.folder.path().join("tasks.db");
            match Sqlite::open(&path, live, metrics, self.clock.clone()) {
                Ok(store) => return Arc::new(store),
                Err(OpenError::InUse(_)) if Instant::now() < deadline => sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Bed for SqliteBed {
    fn death(&self) -> Death {
        Death::Successor
    }

    fn start(&mut self, _pod: usize) -> BoxFuture<'_, Arc<dyn Store>> {
        async { self.open(Limits::default()).await as Arc<dyn Store> }.boxed()
    }

    fn set(&mut self, now: Timestamp) -> BoxFuture<'_, ()> {
        self.hand.store(now.as_microsecond(), Ordering::SeqCst);
        ready(()).boxed()
    }

    fn settle<'a>(&'a mut self, process: &'a dyn Store) -> BoxFuture<'a, ()> {
        // Writes are done in their order: this one comes after whatever waits.
        process.sweep().map(Result::unwrap).boxed()
    }
}
