//! The task store, shaped like a log.
//!
//! Every change of a task is one [`Event`] under (task, version). One append writes task, version, event and what the
//! context remembers at once, and only if the task is still as the writer saw it: so a cancel and a completion cannot
//! both win, nor two owners. Subscribers see a change after it is written, never before.
//!
//! A task with a turn under way, or with one that waits, is owned by the process that runs it; the process holds one
//! lease for all of its tasks. When the lease runs out they are orphans, and any process may take one over: by an
//! append like any other, so that exactly one of them does.

pub mod clock;
mod hub;
mod measured;
pub mod memory;
mod open;
pub mod postgres;
pub mod sqlite;
mod unsure;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use outrigger_protocol::status::PartStatus;
use tokio::sync::watch;

pub use clock::Clock;
pub use memory::Memory;
pub use open::{OpenError, open};
pub use postgres::Postgres;
pub use sqlite::Sqlite;

/// How long a process has its tasks after it renewed its lease.
pub const LEASE: Duration = Duration::from_secs(15);

/// One change of a task as it was written.
#[derive(Clone, Debug)]
pub struct Event {
    /// Version of the task after the change.
    pub version: u64,
    /// When it was written.
    pub at: Timestamp,
    /// What changed. That of version 1 has the first message and the state `SUBMITTED`.
    pub change: Arc<Change>,
}

/// What followers of a task see at once; the rest is in [`Store::events`] and [`Store::get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its version.
    pub version: u64,
    /// Its epoch: another one means that a turn of an earlier epoch has lost its task.
    pub epoch: u64,
    /// Its state.
    pub state: State,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such task.
    #[error("there is no such task")]
    NotFound,
    /// The task is not as the writer saw it: another version, epoch or owner.
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
    /// The idempotency key was used before.
    #[error("the idempotency key was used before")]
    Duplicate(Box<KeyRecord>),
    /// Events that old are not kept any more.
    #[error("events before version {0} are not kept any more")]
    Trimmed(u64),
    /// The store cannot be reached or does not answer; nothing, or all of the write, was done.
    #[error("the task store is not available: {0}")]
    Unavailable(String),
    /// What was read is not what was written.
    #[error("the task store holds a damaged record: {0}")]
    Damaged(String),
}

/// A caller's key for one message, so that a repetition is answered and not done again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Caller and key in one.
    pub id: Arc<str>,
    /// SHA-256 of the parameters, hex: another body under the same key is a mistake.
    pub hash: Arc<str>,
    /// The turn that the message led to.
    pub turn: Arc<str>,
}

/// What is known of a used key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// As it was used.
    pub key: Key,
    /// The task of the message.
    pub task: Arc<str>,
    /// The direct message, if one took the task's place.
    pub message: Option<Raw>,
}

/// How long a used key is remembered.
pub const KEY_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Which tasks to list. Order: time of the status, newest first; then id, ascending.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Whose; revealed ones only.
    pub caller: Arc<str>,
    /// Of one context.
    pub context: Option<Arc<str>>,
    /// In one state.
    pub state: Option<State>,
    /// Status not older than this.
    pub since: Option<Timestamp>,
    /// What follows this place.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

/// A place in a list: the last task that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Time of its status.
    pub since: Timestamp,
    /// Its id.
    pub id: Arc<str>,
}

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The tasks.
    pub tasks: Vec<Arc<Task>>,
    /// Whether more follow the last one.
    pub more: bool,
    /// All that match, wherever the page begins.
    pub total: u64,
}

/// One receiver of a task's events. Its queue is the log: what lies after `delivered`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushConfig {
    /// The task.
    pub task: Arc<str>,
    /// Unique in the task.
    pub id: Arc<str>,
    /// The configuration in 1.0 form, secrets included, without `taskId` and `id`. Never logged.
    pub json: Raw,
    /// Dialect of the request that made it, in which events are delivered.
    pub dialect: Dialect,
    /// Version of the last event that was delivered.
    pub delivered: u64,
    /// Failures since the last delivery.
    pub attempts: u32,
    /// No delivery before this time.
    pub next: Timestamp,
    /// Why deliveries were given up.
    pub dead: Option<Arc<str>>,
}

/// A receiver with events to deliver, claimed by this process for some time.
#[derive(Clone, Debug)]
pub struct PushWork {
    /// The receiver as claimed.
    pub config: PushConfig,
    /// Names the claim: [`Store::push_done`] of an older one is not taken.
    pub claim: u64,
    /// Whether the claim before it ran out: what was delivered under it is not known.
    pub again: bool,
}

/// Where tasks live.
pub trait Store: Send + Sync + 'static {
    /// Name of this process as an owner of tasks: new with each start.
    fn owner(&self) -> Arc<str>;

    /// Writes a new task at version 1, its first event, and its message into the context. It is owned by this process,
    /// and its status has the store's time. With a receiver of events, if there is one. [`StoreError::Duplicate`] when
    /// the key was used before. The same task again, as after an error, is written once.
    fn create(
        &self,
        task: Task,
        key: Option<Key>,
        push: Option<PushConfig>,
    ) -> BoxFuture<'_, Result<Arc<Task>, StoreError>>;

    /// Makes a change if the task is as `seen`: version, epoch and owner; writes its event, message and memo with it.
    /// `seen` is what a store gave: of one version there is only one content.
    fn append<'a>(
        &'a self,
        seen: &'a Task,
        change: Change,
        key: Option<Key>,
    ) -> BoxFuture<'a, Result<Arc<Task>, StoreError>>;

    /// The newest version of a task.
    fn get<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Arc<Task>, StoreError>>;

    /// The task as it was at a version; [`StoreError::Trimmed`] if its events are not kept any more.
    fn at<'a>(&'a self, task: &'a str, version: u64) -> BoxFuture<'a, Result<Arc<Task>, StoreError>>;

    /// Events of a task after a version, in order, without a gap, at most `limit`; [`StoreError::Trimmed`] if the next
    /// one is not kept any more.
    fn events<'a>(&'a self, task: &'a str, after: u64, limit: usize) -> BoxFuture<'a, Result<Vec<Event>, StoreError>>;

    /// Follows a task: its head now, then every newer one that the reader is quick enough for. The sender goes when the
    /// task has ended or is forgotten; the last head stays readable.
    fn subscribe<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<watch::Receiver<Head>, StoreError>>;

    /// Forgets a task as `seen` that no caller knows of: a direct message took its place. The memo is kept, and the
    /// message under the task's key if it has one.
    fn withdraw<'a>(
        &'a self,
        seen: &'a Task,
        memo: Option<Raw>,
        message: &'a Raw,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What a caller's context remembers; nothing for an unknown one.
    fn conversation<'a>(&'a self, caller: &'a str, context: &'a str)
    -> BoxFuture<'a, Result<Conversation, StoreError>>;

    /// A part of a list.
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>>;

    /// Tasks of a caller that have not ended.
    fn open_tasks<'a>(&'a self, caller: &'a str) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// What is known of a used key.
    fn key<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeyRecord>, StoreError>>;

    /// Writes a receiver, in place of its namesake, whose claim ends.
    fn put_push(&self, config: PushConfig) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Receivers of a task, by id.
    fn push_configs<'a>(&'a self, task: &'a str) -> BoxFuture<'a, Result<Vec<PushConfig>, StoreError>>;

    /// Forgets a receiver; says whether it was there.
    fn delete_push<'a>(&'a self, task: &'a str, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Claims receivers that have events to deliver and are due, for `hold`; after that anybody gets them. They are
    /// given as they were before the claim.
    fn push_due(&self, limit: usize, hold: Duration) -> BoxFuture<'_, Result<Vec<PushWork>, StoreError>>;

    /// Ends a claim: writes `json`, `delivered`, `attempts`, `next` and `dead` of the receiver, if the claim still holds.
    fn push_done(&self, work: PushWork) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Rises when an event may have become due for a receiver; a hint, also look now and then.
    fn push_hint(&self) -> watch::Receiver<u64>;

    /// Renews the lease of this process. An error means that others may take its tasks when the lease has run out.
    fn renew(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Tasks, at most `limit`, that another process works on, or would, whose lease has run out; and new ones of this
    /// process whose [`Store::create`] was dropped, or failed without saying what became of it. To take one over,
    /// append to it with a turn.
    fn orphans(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<Task>>, StoreError>>;

    /// Gives up the lease at the end of the process, so that others need not wait for it to run out.
    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Forgets what is past its retention.
    fn sweep(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Whether the store can be used now.
    fn status(&self) -> PartStatus;
}
