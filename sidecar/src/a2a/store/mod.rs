//! The task store, shaped like a log.
//!
//! Every change of a task is one [`Event`] under (task, version). One append writes task, version, event and what the
//! context remembers at once, and only if the task is still at the version that the writer saw: so a cancel and a
//! completion cannot both win. Subscribers see a change after it is written, never before.

pub mod memory;

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use tokio::sync::watch;

pub use memory::Memory;

/// One change of a task as it was written.
#[derive(Clone, Debug)]
pub struct Event {
    /// Position in the whole store: rises with every write, with gaps.
    pub seq: u64,
    /// Version of the task after the change.
    pub version: u64,
    /// When it was written.
    pub at: Timestamp,
    /// What changed.
    pub change: Arc<Change>,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such task.
    #[error("there is no such task")]
    NotFound,
    /// The task is at another version: read it again.
    #[error("the task is at version {}, not {expected}", .current.version)]
    Conflict {
        /// Version that the writer saw.
        expected: u64,
        /// The task as it is.
        current: Arc<Task>,
    },
    /// The rules of a task forbid the change.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No room, and nothing that has ended to make some.
    #[error("the task store is full: {0}")]
    Full(String),
}

/// Where tasks live.
pub trait Store: Send + Sync + 'static {
    /// Writes a new task at version 1, its first event, and its message into the context.
    fn create(&self, task: Task) -> BoxFuture<'_, Result<Arc<Task>, StoreError>>;

    /// Makes a change if the task is at `version`, and writes its event, message and memo with it.
    fn append<'a>(
        &'a self,
        task: &'a str,
        version: u64,
        change: Change,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>>;

    /// The newest version of a task.
    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>>;

    /// Events of a task after a version, in order.
    fn events<'a>(&'a self, task: &'a str, after: u64) -> BoxFuture<'a, Result<Vec<Event>, StoreError>>;

    /// Follows a task: the newest version now, then every newer one that the reader is quick enough for. What lies
    /// between two is in [`Store::events`].
    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Arc<Task>>, StoreError>>;

    /// Forgets a task at `version` that no caller has seen: a direct message took its place. The memo is kept.
    fn withdraw<'a>(&'a self, task: &'a str, version: u64, memo: Option<Raw>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What a context remembers; nothing for an unknown one.
    fn conversation<'a>(&'a self, context: &'a str) -> BoxFuture<'a, Result<Conversation, StoreError>>;

    /// Forgets what is past its retention.
    fn sweep(&self) -> BoxFuture<'_, ()>;
}
