//! Everything that is kept in memory, behind one lock: tasks, contexts, keys, and the orders that find them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::Task;

use super::super::clock::later;
use super::super::{KEY_RETENTION, Key, KeyRecord, Page, Query, StoreError};
use super::entry::{Due, Entry};
use crate::a2a::metrics::Metrics;

/// What a context takes beside its JSON.
const CONTEXT_OVERHEAD: usize = 500;
/// What a key takes beside the message that may be under it.
const KEY_OVERHEAD: usize = 400;
/// Most keys that are kept; the oldest go first.
pub const MAX_KEYS: usize = 32_768;

/// Place in a list.
type Place = (Reverse<Timestamp>, Arc<str>);
/// Caller and context.
pub(super) type ContextId = (Arc<str>, Arc<str>);

#[derive(Default)]
pub(super) struct Context {
    pub conversation: Conversation,
    /// Its tasks, in no order.
    pub tasks: Vec<Arc<str>>,
    /// Position among contexts without a task.
    idle: Option<u64>,
    touched: Timestamp,
    bytes: usize,
}

#[derive(Default)]
struct Caller {
    tasks: usize,
    open: u64,
    /// Tasks that it knows of, in the order of lists.
    listed: BTreeMap<Place, State>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub seq: u64,
    pub bytes: usize,
    pub tasks: HashMap<Arc<str>, Entry>,
    /// Ended tasks by the position of their end: the oldest comes first.
    ended: BTreeMap<u64, Arc<str>>,
    pub contexts: HashMap<ContextId, Context>,
    /// Contexts whose tasks are all gone, the longest untouched first.
    idle: BTreeMap<u64, ContextId>,
    callers: HashMap<Arc<str>, Caller>,
    keys: HashMap<Arc<str>, (Timestamp, KeyRecord)>,
    key_order: VecDeque<(Timestamp, Arc<str>)>,
    pub due: Due,
    /// Until when each process has its tasks.
    pub leases: HashMap<Arc<str>, Timestamp>,
}

/// Bounds in force.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub tasks: usize,
    pub retention: Duration,
    pub bytes: usize,
}

fn place(task: &Task) -> Place {
    (Reverse(task.since), Arc::clone(&task.id))
}

pub(super) fn context_of(task: &Task) -> ContextId {
    (Arc::clone(&task.caller), Arc::clone(&task.context_id))
}

impl Inner {
    /// The task, if it is as the writer saw it.
    pub(super) fn seen(&self, seen: &Task) -> Result<Arc<Task>, StoreError> {
        let current = &self.tasks.get(&seen.id).ok_or(StoreError::NotFound)?.task;
        let same = (current.version, current.epoch, &current.owner) == (seen.version, seen.epoch, &seen.owner);
        if same {
            Ok(Arc::clone(current))
        } else {
            Err(StoreError::Conflict { expected: seen.version, current: Arc::clone(current) })
        }
    }

    /// Puts a new task in.
    pub(super) fn insert(&mut self, entry: Entry) {
        let task = &entry.task;
        self.bytes += entry.bytes();
        self.moved(None, Some(task));
        let id = context_of(task);
        if let Some(context) = self.contexts.get_mut(&id) {
            context.tasks.push(Arc::clone(&task.id));
            if let Some(position) = context.idle.take() {
                self.idle.remove(&position);
            }
        }
        self.tasks.insert(Arc::clone(&task.id), entry);
    }

    /// Brings the orders up to date.
    pub(super) fn moved(&mut self, from: Option<&Task>, to: Option<&Task>) {
        let Some(task) = to.or(from) else { return };
        if !self.callers.contains_key(&task.caller) {
            self.callers.insert(Arc::clone(&task.caller), Caller::default());
        }
        let Some(caller) = self.callers.get_mut(&task.caller) else { return };
        if let Some(from) = from {
            caller.open -= u64::from(!from.state.is_terminal());
            let stays = to.is_some_and(|to| to.revealed && to.since == from.since && to.state == from.state);
            if from.revealed && !stays {
                caller.listed.remove(&place(from));
            }
        } else {
            caller.tasks += 1;
        }
        if let Some(to) = to {
            caller.open += u64::from(!to.state.is_terminal());
            if to.revealed {
                caller.listed.insert(place(to), to.state);
            }
            if to.state.is_terminal() {
                self.seq += 1;
                self.ended.insert(self.seq, Arc::clone(&to.id));
            }
        } else {
            caller.tasks -= 1;
            if caller.tasks == 0 {
                self.callers.remove(&task.caller);
            }
        }
    }

    pub(super) fn remember(&mut self, id: &ContextId, message: Option<&Raw>, memo: Option<&Raw>, now: Timestamp) {
        if message.is_none() && memo.is_none() {
            return;
        }
        let context = self.contexts.entry(id.clone()).or_default();
        if let Some(message) = message {
            context.conversation.push(message);
        }
        if let Some(memo) = memo {
            context.conversation.set_memo(memo);
        }
        context.touched = now;
        let bytes = context.conversation.size() + CONTEXT_OVERHEAD;
        self.bytes = self.bytes + bytes - context.bytes;
        context.bytes = bytes;
    }

    /// Forgets a task.
    pub(super) fn remove(&mut self, id: &str, metrics: &Metrics) {
        let Some(mut entry) = self.tasks.remove(id) else { return };
        self.bytes -= entry.bytes();
        for receiver in entry.push.values_mut() {
            receiver.unschedule(&mut self.due);
        }
        metrics.moved(Some(entry.task.state), None);
        self.moved(Some(&entry.task), None);
        let key = context_of(&entry.task);
        let Some(context) = self.contexts.get_mut(&key) else { return };
        if let Some(at) = context.tasks.iter().position(|t| Arc::ptr_eq(t, &entry.task.id) || **t == *id) {
            context.tasks.swap_remove(at);
        }
        if context.tasks.is_empty() {
            self.seq += 1;
            context.idle = Some(self.seq);
            self.idle.insert(self.seq, key);
        }
    }

    pub(super) fn remove_oldest_context(&mut self) -> bool {
        let Some((_, id)) = self.idle.pop_first() else { return false };
        if let Some(context) = self.contexts.remove(&id) {
            self.bytes -= context.bytes;
        }
        true
    }

    /// Makes room for `new` tasks and `more` bytes: at most as many tasks as the bounds say are left, and as many
    /// contexts without one.
    pub(super) fn make_room(
        &mut self,
        new: usize,
        more: usize,
        bounds: Bounds,
        now: Timestamp,
        metrics: &Metrics,
    ) -> Result<(), StoreError> {
        let tasks = if new == 0 { usize::MAX } else { bounds.tasks.saturating_sub(new) };
        while self.idle.len() > tasks {
            self.remove_oldest_context();
        }
        while self.tasks.len() > tasks || self.bytes + more > bounds.bytes {
            // Bytes may come from a context nobody holds on to; a number of tasks only from a task.
            if self.tasks.len() <= tasks && self.remove_oldest_context() {
                continue;
            }
            let Some((_, id)) = self.ended.pop_first() else {
                return Err(StoreError::Full(if self.tasks.len() > tasks {
                    format!("all of its {} tasks are still alive", self.tasks.len())
                } else {
                    format!("its {} bytes are taken by tasks that are still alive", bounds.bytes)
                }));
            };
            if self.tasks.get(&id).is_some_and(|e| later(e.task.since, bounds.retention) >= now) {
                metrics.evicted.inc();
            }
            self.remove(&id, metrics);
        }
        Ok(())
    }

    /// Forgets what is past its retention.
    pub(super) fn expire(&mut self, now: Timestamp, retention: Duration, metrics: &Metrics) {
        let old = |since: Timestamp| later(since, retention) < now;
        while let Some((&position, id)) = self.ended.first_key_value() {
            let id = Arc::clone(id);
            if self.tasks.get(&id).is_some_and(|e| !old(e.task.since)) {
                break;
            }
            self.ended.remove(&position);
            self.remove(&id, metrics);
        }
        while let Some((_, id)) = self.idle.first_key_value() {
            if self.contexts.get(id).is_some_and(|c| !old(c.touched)) {
                break;
            }
            self.remove_oldest_context();
        }
        while self.key_order.front().is_some_and(|(at, _)| later(*at, KEY_RETENTION) < now) {
            self.remove_oldest_key();
        }
        self.leases.retain(|_, until| later(*until, retention) >= now);
    }

    /// What is known of a key, unless it is too old.
    pub(super) fn key(&self, id: &str, now: Timestamp) -> Option<&KeyRecord> {
        self.keys.get(id).filter(|(at, _)| later(*at, KEY_RETENTION) >= now).map(|(_, record)| record)
    }

    pub(super) fn unused(&self, key: Option<&Key>, now: Timestamp) -> Result<(), StoreError> {
        match key.and_then(|k| self.key(&k.id, now)) {
            Some(record) => Err(StoreError::Duplicate(Box::new(record.clone()))),
            None => Ok(()),
        }
    }

    pub(super) fn use_key(&mut self, key: Key, task: &Arc<str>, now: Timestamp) {
        while self.keys.len() >= MAX_KEYS {
            self.remove_oldest_key();
        }
        let id = Arc::clone(&key.id);
        self.key_order.push_back((now, Arc::clone(&id)));
        self.bytes += KEY_OVERHEAD;
        let record = KeyRecord { key, task: Arc::clone(task), message: None };
        if let Some((_, old)) = self.keys.insert(id, (now, record)) {
            self.bytes -= KEY_OVERHEAD + old.message.map_or(0, |m| m.size());
        }
    }

    /// Puts a direct message under the key of its task.
    pub(super) fn answer_key(&mut self, id: &str, task: &str, message: &Raw) {
        if let Some((_, record)) = self.keys.get_mut(id).filter(|(_, r)| &*r.task == task) {
            self.bytes += message.size();
            record.message = Some(message.clone());
        }
    }

    fn remove_oldest_key(&mut self) {
        let Some((at, id)) = self.key_order.pop_front() else { return };
        // One that was too old and used again stands further back once more.
        if self.keys.get(&id).is_some_and(|(used, _)| *used == at)
            && let Some((_, record)) = self.keys.remove(&id)
        {
            self.bytes -= KEY_OVERHEAD + record.message.map_or(0, |m| m.size());
        }
    }

    pub(super) fn open_tasks(&self, caller: &str) -> u64 {
        self.callers.get(caller).map_or(0, |c| c.open)
    }

    pub(super) fn list(&self, query: &Query) -> Page {
        let fits = |place: &Place, state: State| {
            query.state.is_none_or(|s| s == state) && query.since.is_none_or(|since| place.0.0 >= since)
        };
        let after = query.after.as_ref().map(|c| (Reverse(c.since), Arc::clone(&c.id)));
        let (ids, total): (Vec<Arc<str>>, usize) = if let Some(context) = &query.context {
            let context = self.contexts.get(&(Arc::clone(&query.caller), Arc::clone(context)));
            let tasks = context.into_iter().flat_map(|c| &c.tasks).filter_map(|t| self.tasks.get(t)).map(|e| &e.task);
            let mut places: Vec<_> =
                tasks.filter(|t| t.revealed && fits(&place(t), t.state)).map(|t| place(t)).collect();
            let total = places.len();
            places.sort_unstable();
            let page = places.into_iter().filter(|p| after.as_ref().is_none_or(|a| p > a));
            (page.take(query.limit + 1).map(|p| p.1).collect(), total)
        } else if let Some(caller) = self.callers.get(&query.caller) {
            let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
            let page = caller.listed.range((begin, Bound::Unbounded)).filter(|(p, s)| fits(p, **s));
            let page = page.take(query.limit + 1).map(|(p, _)| Arc::clone(&p.1)).collect();
            let all = query.state.is_none() && query.since.is_none();
            let total = if all {
                caller.listed.len()
            } else {
                let new = caller.listed.iter().take_while(|(p, _)| query.since.is_none_or(|s| p.0.0 >= s));
                new.filter(|(p, s)| fits(p, **s)).count()
            };
            (page, total)
        } else {
            (Vec::new(), 0)
        };
        let found = ids.iter().filter_map(|id| self.tasks.get(id)).map(|e| Arc::clone(&e.task));
        let tasks = found.take(query.limit).collect();
        Page { tasks, more: ids.len() > query.limit, total: total as u64 }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let orders = self.ended.is_empty() && self.idle.is_empty() && self.callers.is_empty() && self.due.is_empty();
        orders && self.tasks.is_empty() && self.contexts.is_empty() && self.keys.is_empty()
    }
}
