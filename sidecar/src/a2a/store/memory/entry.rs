//! One task in memory: its newest version, its log, and who wants to hear of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use outrigger_protocol::a2a::task::{Artifact, ArtifactUpdate, Change, Task};
use tokio::sync::watch;

use super::super::{Event, Head, PushConfig, StoreError};

/// What a task takes beside its JSON and its events, about: measured.
pub(super) const TASK_OVERHEAD: usize = 1_100;
/// What an event takes beside its JSON.
pub(super) const EVENT_OVERHEAD: usize = 350;
/// What an artifact or a chunk of one takes beside its JSON.
pub(super) const ARTIFACT_OVERHEAD: usize = 150;
/// Most events that are kept of one task; the oldest go first.
pub const MAX_EVENTS: usize = 16_384;
/// Most bytes of events that are kept of one task, what they take beside their JSON included.
pub const MAX_EVENT_BYTES: usize = 16 << 20;
/// What a task has for itself is estimated upwards, and counted when the estimate grew by this and by a quarter.
const RECOUNT_BYTES: usize = 1 << 20;
/// An end of this size is taken in even when there is no room: what has ended makes room.
pub(super) const SMALL: usize = 8 << 10;

/// When which receiver of which task is due.
pub(super) type Due = BTreeSet<(Timestamp, Arc<str>, Arc<str>)>;

struct Logged {
    event: Event,
    writer: Arc<str>,
}

pub(super) struct Receiver {
    pub config: PushConfig,
    /// The claim that holds; 0 is none.
    pub claim: u64,
    /// Its place in [`Due`].
    due: Option<Timestamp>,
}

impl Receiver {
    pub(super) fn new(config: PushConfig) -> Self {
        Self { config, claim: 0, due: None }
    }

    /// Takes the place in `due` that is right for a task at `version`.
    pub(super) fn schedule(&mut self, version: u64, due: &mut Due) {
        let wanted = (self.config.dead.is_none() && version > self.config.delivered).then_some(self.config.next);
        if wanted != self.due {
            self.unschedule(due);
            due.extend(wanted.map(|at| self.place(at)));
            self.due = wanted;
        }
    }

    pub(super) fn unschedule(&mut self, due: &mut Due) {
        if let Some(at) = self.due.take() {
            due.remove(&self.place(at));
        }
    }

    fn place(&self, at: Timestamp) -> (Timestamp, Arc<str>, Arc<str>) {
        (at, Arc::clone(&self.config.task), Arc::clone(&self.config.id))
    }
}

pub(super) struct Entry {
    pub task: Arc<Task>,
    log: VecDeque<Logged>,
    /// The task before the first event that is kept; nothing while that is the first of all.
    base: Option<Arc<Task>>,
    pub followers: Option<watch::Sender<Head>>,
    /// The idempotency key that the task was created with.
    pub key: Option<Arc<str>>,
    /// Its receivers, by id.
    pub push: BTreeMap<Arc<str>, Receiver>,
    /// Bytes of the log.
    logged: usize,
    /// Bytes of text that the log does not share with the task: chunks that were put together, dropped events.
    own: usize,
    /// From here on `own` is counted and not estimated.
    recount: usize,
}

/// Bytes that a change takes as an event.
pub(super) fn cost(change: &Change) -> usize {
    EVENT_OVERHEAD + change.artifacts.len() * ARTIFACT_OVERHEAD + change.size()
}

impl Entry {
    /// A task at version 1.
    pub(super) fn new(task: Arc<Task>, key: Option<Arc<str>>) -> Self {
        let change = task.first_change();
        let logged = cost(&change);
        let event = Event { version: 1, at: task.since, change: Arc::new(change) };
        // Most tasks have three events: created, working, ended.
        let mut log = VecDeque::with_capacity(3);
        log.push_back(Logged { event, writer: task.owner.clone().unwrap_or_default() });
        Self {
            task,
            log,
            base: None,
            followers: None,
            key,
            push: BTreeMap::new(),
            logged,
            own: 0,
            recount: RECOUNT_BYTES,
        }
    }

    /// Bytes of everything.
    pub(super) fn bytes(&self) -> usize {
        TASK_OVERHEAD + self.logged + self.own
    }

    /// Takes the next version and the change that led to it.
    pub(super) fn push(&mut self, task: Arc<Task>, change: Change, writer: &Arc<str>, now: Timestamp) {
        self.own += change.artifacts.iter().filter(|u| u.append).map(ArtifactUpdate::size).sum::<usize>();
        self.logged += cost(&change);
        let event = Event { version: task.version, at: now, change: Arc::new(change) };
        self.log.push_back(Logged { event, writer: Arc::clone(writer) });
        self.task = task;
        while self.log.len() > MAX_EVENTS || (self.logged > MAX_EVENT_BYTES && self.log.len() > 1) {
            self.drop_first();
        }
        if self.own > self.recount {
            let chunked = self.task.artifacts.iter().filter(|a| a.is_chunked()).map(Artifact::size).sum();
            self.own = self.base.as_ref().map_or(chunked, |base| self.task.size() + base.size());
            self.recount = self.own + (self.own / 4).max(RECOUNT_BYTES);
        }
    }

    fn drop_first(&mut self) {
        let Some(Logged { event, writer }) = self.log.pop_front() else { return };
        self.logged -= cost(&event.change);
        match &mut self.base {
            // It is shared only while somebody reads it.
            Some(base) => {
                let same = Arc::make_mut(base).change(&event.change, &writer, event.at);
                debug_assert_eq!(same, Ok(()), "what was allowed once is allowed again");
            }
            None => self.base = self.first(&event, writer).map(Arc::new),
        }
        // Task and base hold on to the text, each to chunks that it put together itself.
        self.own += 2 * event.change.size();
    }

    fn first(&self, event: &Event, owner: Arc<str>) -> Option<Task> {
        let task = &self.task;
        let ids = (Arc::clone(&task.id), Arc::clone(&task.context_id), Arc::clone(&task.caller));
        Task::first(ids.0, ids.1, ids.2, &event.change, owner, event.at)
    }

    /// Version of the oldest state that can be told.
    fn oldest(&self) -> u64 {
        self.base.as_ref().map_or(1, |b| b.version)
    }

    pub(super) fn at(&self, version: u64) -> Result<Arc<Task>, StoreError> {
        if version == self.task.version {
            return Ok(Arc::clone(&self.task));
        }
        if version < self.oldest() || version > self.task.version {
            return Err(StoreError::Trimmed(self.oldest()));
        }
        let mut log = self.log.iter();
        let mut task = match &self.base {
            Some(base) => Task::clone(base),
            None => log
                .next()
                .and_then(|l| self.first(&l.event, Arc::clone(&l.writer)))
                .ok_or_else(|| StoreError::Damaged("the first event makes no task".into()))?,
        };
        for Logged { event, writer } in log.take_while(|l| l.event.version <= version) {
            task.change(&event.change, writer, event.at)?;
        }
        Ok(Arc::new(task))
    }

    pub(super) fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let first = self.log.front().map_or(self.task.version + 1, |l| l.event.version);
        if after + 1 < first {
            return Err(StoreError::Trimmed(first));
        }
        let skip = usize::try_from(after + 1 - first).unwrap_or(usize::MAX).min(self.log.len());
        Ok(self.log.range(skip..).take(limit).map(|l| l.event.clone()).collect())
    }

    pub(super) fn head(&self) -> Head {
        Head { version: self.task.version, epoch: self.task.epoch, state: self.task.state }
    }

    pub(super) fn subscribe(&mut self) -> watch::Receiver<Head> {
        let head = self.head();
        if self.task.state.is_terminal() {
            // Nothing more will come, and thousands of ended tasks are kept.
            return watch::channel(head).1;
        }
        self.followers.get_or_insert_with(|| watch::Sender::new(head)).subscribe()
    }

    /// Tells the followers.
    pub(super) fn publish(&mut self) {
        let head = self.head();
        if let Some(followers) = self.followers.take()
            && followers.receiver_count() > 0
        {
            followers.send_replace(head);
            if !head.state.is_terminal() {
                self.followers = Some(followers);
            }
        }
    }
}
