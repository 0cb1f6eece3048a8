//! Who follows which task, for stores that keep tasks elsewhere: heads are told after they are written, and the newest
//! events of followed tasks are at hand, so that many followers cost one read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use outrigger_protocol::a2a::task::Task;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Event, Head};

/// Most events at hand of one task.
const RING_EVENTS: usize = 128;
/// Most bytes of events at hand of one task; a newest one that is larger is at hand all the same.
const RING_BYTES: usize = 1 << 20;

struct Followed {
    heads: watch::Sender<Head>,
    ring: VecDeque<Event>,
    bytes: usize,
}

/// Followers of tasks in this process.
#[derive(Default)]
pub(super) struct Hub {
    tasks: Mutex<HashMap<Arc<str>, Followed>>,
}

/// Head of a task.
pub(super) fn head_of(task: &Task) -> Head {
    Head { version: task.version, epoch: task.epoch, state: task.state }
}

/// Raises a head; older news are none.
fn raise(heads: &watch::Sender<Head>, head: Head) {
    heads.send_if_modified(|now| {
        let newer = head.version > now.version;
        if newer {
            *now = head;
        }
        newer
    });
}

impl Hub {
    /// Begins to follow, before the head is read: what is written between the two is not missed.
    pub(super) fn enter(&self, task: &str) -> watch::Receiver<Head> {
        let mut tasks = self.tasks.lock();
        if let Some(followed) = tasks.get(task) {
            return followed.heads.subscribe();
        }
        let unread = Head { version: 0, epoch: 0, state: outrigger_protocol::a2a::state::State::Submitted };
        let (heads, follower) = watch::channel(unread);
        tasks.insert(task.into(), Followed { heads, ring: VecDeque::new(), bytes: 0 });
        follower
    }

    /// Tells a head that was read.
    pub(super) fn read(&self, task: &str, head: Head) {
        let mut tasks = self.tasks.lock();
        let Some(followed) = tasks.get(task) else { return };
        raise(&followed.heads, head);
        if head.state.is_terminal() {
            tasks.remove(task);
        }
    }

    /// Tells what was written.
    pub(super) fn publish(&self, task: &str, head: Head, event: Event) {
        self.extend(task, head, [event]);
    }

    /// Tells several events and the head after them, or after more of them.
    pub(super) fn extend(&self, task: &str, head: Head, events: impl IntoIterator<Item = Event>) {
        let mut tasks = self.tasks.lock();
        let Some(followed) = tasks.get_mut(task) else { return };
        if followed.heads.receiver_count() == 0 {
            tasks.remove(task);
            return;
        }
        for event in events {
            match followed.ring.back() {
                // Two of us heard of it.
                Some(last) if event.version <= last.version => continue,
                Some(last) if event.version > last.version + 1 => {
                    followed.ring.clear();
                    followed.bytes = 0;
                }
                _ => {}
            }
            followed.bytes += event.change.size();
            followed.ring.push_back(event);
            while followed.ring.len() > RING_EVENTS || (followed.bytes > RING_BYTES && followed.ring.len() > 1) {
                followed.bytes -= followed.ring.pop_front().map_or(0, |e| e.change.size());
            }
        }
        raise(&followed.heads, head);
        if head.state.is_terminal() {
            // Followers keep the head; the log has the rest.
            tasks.remove(task);
        }
    }

    /// Ends the following of a task that is no more.
    pub(super) fn forget(&self, task: &str) {
        self.tasks.lock().remove(task);
    }

    /// Events after a version that are at hand: at least one, or nothing is known.
    pub(super) fn events(&self, task: &str, after: u64, limit: usize) -> Option<Vec<Event>> {
        let tasks = self.tasks.lock();
        let ring = &tasks.get(task)?.ring;
        let first = ring.front()?.version;
        if after + 1 < first {
            return None;
        }
        let skip = usize::try_from(after + 1 - first).ok().filter(|skip| *skip < ring.len())?;
        Some(ring.range(skip..).take(limit).cloned().collect())
    }

    /// Lets go of tasks that nobody follows any more; gives the others with the version that is known.
    pub(super) fn followed(&self) -> Vec<(Arc<str>, u64)> {
        let mut tasks = self.tasks.lock();
        tasks.retain(|_, f| f.heads.receiver_count() > 0);
        tasks.iter().map(|(id, f)| (Arc::clone(id), f.heads.borrow().version)).collect()
    }

    /// The version that is known of a followed task.
    pub(super) fn known(&self, task: &str) -> Option<u64> {
        self.tasks.lock().get(task).map(|f| f.heads.borrow().version)
    }
}

#[cfg(test)]
mod tests {
    use outrigger_protocol::a2a::raw::Raw;
    use outrigger_protocol::a2a::state::State;
    use outrigger_protocol::a2a::task::Change;

    use super::*;

    fn event(version: u64, bytes: usize) -> Event {
        let said = Some(Raw::parse(&format!("\"{}\"", "x".repeat(bytes))).unwrap());
        let change = Change { said, ..Change::default() };
        Event { version, at: jiff::Timestamp::UNIX_EPOCH, change: Arc::new(change) }
    }

    fn head(version: u64, state: State) -> Head {
        Head { version, epoch: 1, state }
    }

    #[test]
    fn what_is_written_while_the_head_is_read_is_not_missed() {
        let hub = Hub::default();
        let mut follower = hub.enter("a");
        hub.publish("a", head(4, State::Working), event(4, 1));
        hub.read("a", head(3, State::Working));
        assert_eq!(follower.borrow_and_update().version, 4);
        hub.publish("a", head(5, State::Completed), event(5, 1));
        assert_eq!(*follower.borrow_and_update(), head(5, State::Completed));
        assert!(follower.has_changed().is_err() && hub.followed().is_empty(), "nothing more will come");
    }

    #[test]
    fn the_ring_is_bounded_and_has_no_gap() {
        let hub = Hub::default();
        let _follower = hub.enter("a");
        assert!(hub.events("a", 0, 10).is_none());
        for version in 1..=1_000 {
            hub.publish("a", head(version, State::Working), event(version, 1));
        }
        let first = 1_001 - RING_EVENTS as u64;
        assert!(hub.events("a", first - 2, 10).is_none() && hub.events("a", 1_000, 10).is_none());
        assert_eq!(hub.events("a", first - 1, 1_000).unwrap().len(), RING_EVENTS);
        assert_eq!(hub.events("a", 998, 1).unwrap()[0].version, 999);
        for version in 1_001..=1_003 {
            hub.publish("a", head(version, State::Working), event(version, RING_BYTES));
        }
        assert_eq!(hub.events("a", 1_002, 10).unwrap().len(), 1);
        assert!(hub.events("a", 1_001, 10).is_none());
        hub.publish("a", head(1_009, State::Working), event(1_009, 1));
        assert!(hub.events("a", 1_003, 10).is_none(), "what lies between is in the log");
        assert_eq!(hub.events("a", 1_008, 10).unwrap().len(), 1);
    }

    #[test]
    fn a_task_that_nobody_follows_is_let_go() {
        let hub = Hub::default();
        drop(hub.enter("a"));
        let _follower = hub.enter("b");
        hub.publish("a", head(1, State::Working), event(1, 1));
        assert_eq!((hub.known("a"), hub.known("b")), (None, Some(0)));
        drop(hub.enter("c"));
        assert_eq!(hub.followed(), [(Arc::from("b"), 0)]);
        hub.forget("b");
        assert!(hub.followed().is_empty());
    }
}
