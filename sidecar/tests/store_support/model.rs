//! What a store should do, as simply as it can be said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use outrigger_sidecar::a2a::store::{Key, KeyRecord, LEASE, PushConfig, StoreError};

use super::bed::Death;

/// Something that a process asks for.
#[derive(Clone, Debug)]
pub enum Op {
    Create(Box<Task>, Option<Key>, Option<PushConfig>),
    Append(Box<Task>, Box<Change>, Option<Key>),
    Withdraw(Box<Task>, Option<Raw>, Raw),
    PutPush(PushConfig),
    DeletePush(Arc<str>, Arc<str>),
    Claim(usize, Duration),
    /// The receiver as it should be, under the model's claim.
    Done(PushConfig, u64),
    Renew,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Task(Task),
    Unit,
    Was(bool),
    Claimed(Vec<PushConfig>),
    Conflict(u64, Task),
    Refused(Refused),
    NotFound,
    Duplicate(KeyRecord),
    Failed(String),
}

impl Got {
    pub fn of(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::NotFound,
            StoreError::Conflict { expected, current } => Self::Conflict(expected, Task::clone(&current)),
            StoreError::Refused(refused) => Self::Refused(refused),
            StoreError::Duplicate(record) => Self::Duplicate(*record),
            other => Self::Failed(other.to_string()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Life {
    /// The task at each version.
    pub versions: Vec<Task>,
    /// Events: when and what.
    pub events: Vec<(Timestamp, Change)>,
    key: Option<Arc<str>>,
}

impl Life {
    pub fn newest(&self) -> &Task {
        self.versions.last().expect("a task has a version")
    }
}

#[derive(Clone, Debug)]
pub struct Receiver {
    pub config: PushConfig,
    claim: u64,
}

#[derive(Clone, Debug)]
struct Process {
    pod: usize,
    until: Timestamp,
    started: u64,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub death: Death,
    pub now: Timestamp,
    pub tasks: BTreeMap<Arc<str>, Life>,
    pub contexts: BTreeMap<(Arc<str>, Arc<str>), Conversation>,
    pub keys: BTreeMap<Arc<str>, KeyRecord>,
    pub push: BTreeMap<(Arc<str>, Arc<str>), Receiver>,
    processes: BTreeMap<Arc<str>, Process>,
    /// Claims that were made.
    pub claims: Vec<(PushConfig, u64)>,
    counter: u64,
    /// Processes, and tasks whose creation they dropped.
    unsure: BTreeSet<(Arc<str>, Arc<str>)>,
}

impl Model {
    pub fn new(death: Death, now: Timestamp) -> Self {
        Self {
            death,
            now,
            tasks: BTreeMap::new(),
            contexts: BTreeMap::new(),
            keys: BTreeMap::new(),
            push: BTreeMap::new(),
            processes: BTreeMap::new(),
            claims: Vec::new(),
            counter: 0,
            unsure: BTreeSet::new(),
        }
    }

    pub fn start(&mut self, owner: Arc<str>, pod: usize) {
        self.counter += 1;
        let until = self.now + LEASE;
        self.processes.insert(owner, Process { pod, until, started: self.counter });
    }

    fn dead(&self, owner: &Arc<str>, reader: &Arc<str>) -> bool {
        let (process, reader) = (&self.processes[owner], &self.processes[reader]);
        let out = process.until <= self.now;
        match self.death {
            Death::Lease => out,
            Death::LeaseOrPod => out || (process.pod == reader.pod && process.started < reader.started),
            Death::Successor => process.started < reader.started,
        }
    }

    pub fn orphans(&self, reader: &Arc<str>) -> Vec<&Task> {
        let left = |t: &&Task| match &t.owner {
            None => false,
            Some(o) if o == reader => t.version == 1 && self.unsure.contains(&(Arc::clone(o), Arc::clone(&t.id))),
            Some(o) => self.dead(o, reader),
        };
        self.tasks.values().map(Life::newest).filter(left).collect()
    }

    /// A process dropped an operation.
    pub fn dropped(&mut self, owner: &Arc<str>, op: &Op) {
        if let Op::Create(task, ..) = op {
            self.unsure.insert((Arc::clone(owner), Arc::clone(&task.id)));
        }
    }

    /// A process knows what became of an operation.
    pub fn known(&mut self, owner: &Arc<str>, op: &Op) {
        if let Op::Create(task, ..) = op {
            self.unsure.remove(&(Arc::clone(owner), Arc::clone(&task.id)));
        }
    }

    pub fn run(&mut self, owner: &Arc<str>, op: &Op) -> Got {
        match self.attempt(owner, op) {
            Ok(got) | Err(got) => got,
        }
    }

    fn attempt(&mut self, owner: &Arc<str>, op: &Op) -> Result<Got, Got> {
        match op {
            Op::Create(task, key, push) => {
                if let Some(there) = self.tasks.get(&task.id) {
                    let there = there.newest().clone();
                    let mine = there.version == 1 && there.owner.as_ref() == Some(owner);
                    return Err(if mine { Got::Task(there) } else { Got::Conflict(0, there) });
                }
                self.take_key(key.as_ref(), &task.id)?;
                let task = Task { since: self.now, owner: Some(Arc::clone(owner)), ..Task::clone(task) };
                self.context(&task).push(&task.history[0]);
                if let Some(push) = push {
                    self.put(push.clone());
                }
                let life = Life {
                    events: vec![(self.now, task.first_change())],
                    versions: vec![task.clone()],
                    key: key.as_ref().map(|k| Arc::clone(&k.id)),
                };
                self.tasks.insert(Arc::clone(&task.id), life);
                Ok(Got::Task(task))
            }
            Op::Append(seen, change, key) => {
                let current = self.seen(seen)?.clone();
                if let Some(record) = key.as_ref().and_then(|k| self.keys.get(&k.id)) {
                    return Err(Got::Duplicate(record.clone()));
                }
                let next = current.apply(change, owner, self.now).map_err(Got::Refused)?;
                self.take_key(key.as_ref(), &next.id)?;
                let context = self.context(&next);
                if let Some(message) = &change.message {
                    context.push(message);
                }
                if let Some(memo) = &change.memo {
                    context.set_memo(memo);
                }
                let event = Change { memo: None, ..Change::clone(change) };
                let now = self.now;
                let life = self.tasks.get_mut(&next.id).expect("it was seen");
                life.events.push((now, event));
                life.versions.push(next.clone());
                Ok(Got::Task(next))
            }
            Op::Withdraw(seen, memo, message) => {
                let current = self.seen(seen)?.clone();
                if current.state.is_terminal() {
                    return Err(Got::Refused(Refused::Ended(current.state)));
                }
                if let Some(memo) = memo {
                    self.context(&current).set_memo(memo);
                }
                let life = self.tasks.remove(&current.id).expect("it was seen");
                if let Some(key) = life.key {
                    self.keys.get_mut(&key).expect("it was used").message = Some(message.clone());
                }
                self.push.retain(|(task, _), _| *task != current.id);
                Ok(Got::Unit)
            }
            Op::PutPush(config) => {
                self.tasks.get(&config.task).ok_or(Got::NotFound)?;
                self.put(config.clone());
                Ok(Got::Unit)
            }
            Op::DeletePush(task, id) => {
                self.tasks.get(task).ok_or(Got::NotFound)?;
                Ok(Got::Was(self.push.remove(&(Arc::clone(task), Arc::clone(id))).is_some()))
            }
            Op::Claim(limit, hold) => Ok(Got::Claimed(self.claim(*limit, *hold))),
            Op::Done(config, claim) => {
                if let Some(receiver) = self.push.get_mut(&(Arc::clone(&config.task), Arc::clone(&config.id)))
                    && receiver.claim == *claim
                {
                    receiver.claim = 0;
                    let PushConfig { json, dialect, .. } = receiver.config.clone();
                    receiver.config = PushConfig { json, dialect, ..config.clone() };
                }
                Ok(Got::Unit)
            }
            Op::Renew => {
                let until = self.now + LEASE;
                self.processes.get_mut(owner).expect("it was started").until = until;
                Ok(Got::Unit)
            }
        }
    }

    fn claim(&mut self, limit: usize, hold: Duration) -> Vec<PushConfig> {
        let now = self.now;
        let behind = |r: &&mut Receiver| {
            let newest = self.tasks[&r.config.task].newest().version;
            r.config.dead.is_none() && r.config.next <= now && newest > r.config.delivered
        };
        let mut due: Vec<_> = self.push.values_mut().filter(behind).collect();
        due.sort_by_key(|r| (r.config.next, Arc::clone(&r.config.task), Arc::clone(&r.config.id)));
        let mut claimed = Vec::new();
        for receiver in due.into_iter().take(limit) {
            self.counter += 1;
            receiver.claim = self.counter;
            self.claims.push((receiver.config.clone(), self.counter));
            claimed.push(receiver.config.clone());
            receiver.config.next = now + hold;
        }
        claimed
    }

    fn put(&mut self, config: PushConfig) {
        let key = (Arc::clone(&config.task), Arc::clone(&config.id));
        self.push.insert(key, Receiver { config, claim: 0 });
    }

    fn seen(&self, seen: &Task) -> Result<&Task, Got> {
        let current = self.tasks.get(&seen.id).ok_or(Got::NotFound)?.newest();
        let same = current.version == seen.version && current.epoch == seen.epoch && current.owner == seen.owner;
        if same { Ok(current) } else { Err(Got::Conflict(seen.version, current.clone())) }
    }

    fn take_key(&mut self, key: Option<&Key>, task: &Arc<str>) -> Result<(), Got> {
        let Some(key) = key else { return Ok(()) };
        if let Some(record) = self.keys.get(&key.id) {
            return Err(Got::Duplicate(record.clone()));
        }
        let record = KeyRecord { key: key.clone(), task: Arc::clone(task), message: None };
        self.keys.insert(Arc::clone(&key.id), record);
        Ok(())
    }

    fn context(&mut self, task: &Task) -> &mut Conversation {
        self.contexts.entry((Arc::clone(&task.caller), Arc::clone(&task.context_id))).or_default()
    }
}
