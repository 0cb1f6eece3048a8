//! One turn per task at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Most messages that wait for the turn of one task to end.
pub const MAX_WAITING: usize = 8;

/// The lanes of all tasks with a turn.
#[derive(Default)]
pub struct Lanes(Mutex<HashMap<Arc<str>, VecDeque<oneshot::Sender<Lane>>>>);

/// The right to a turn of a task; passes to the next one when dropped.
pub struct Lane {
    lanes: Arc<Lanes>,
    task: Arc<str>,
}

/// A lane, or the wait for it.
pub enum Entry {
    /// It was free.
    Free(Lane),
    /// A turn is at work.
    Wait(oneshot::Receiver<Lane>),
}

impl Lanes {
    /// Asks for the lane of a task, or `None` when as many wait as may.
    pub fn enter(self: &Arc<Self>, task: &Arc<str>) -> Option<Entry> {
        let mut lanes = self.0.lock();
        if let Some(waiting) = lanes.get_mut(task) {
            waiting.retain(|w| !w.is_closed());
            if waiting.len() >= MAX_WAITING {
                return None;
            }
            let (tx, rx) = oneshot::channel();
            waiting.push_back(tx);
            return Some(Entry::Wait(rx));
        }
        lanes.insert(Arc::clone(task), VecDeque::new());
        Some(Entry::Free(Lane { lanes: Arc::clone(self), task: Arc::clone(task) }))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let next = {
            let mut lanes = self.lanes.0.lock();
            let next = lanes.get_mut(&self.task).and_then(VecDeque::pop_front);
            if next.is_none() {
                lanes.remove(&self.task);
            }
            next
        };
        if let Some(next) = next {
            // One that gave up drops it, and so passes it on: outside of the lock.
            drop(next.send(Self { lanes: Arc::clone(&self.lanes), task: Arc::clone(&self.task) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_passes_on_and_is_bounded() {
        let lanes = Arc::new(Lanes::default());
        let task: Arc<str> = "t".into();
        let Some(Entry::Free(first)) = lanes.enter(&task) else { panic!("the lane is free") };
        let mut waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| match lanes.enter(&task) {
                Some(Entry::Wait(rx)) => rx,
                _ => panic!("the lane is taken"),
            })
            .collect();
        assert!(lanes.enter(&task).is_none());
        let mut last = waiting.pop().unwrap();
        drop(waiting);
        assert!(last.try_recv().is_err());
        drop(first);
        drop(last.try_recv().unwrap());
        assert!(lanes.0.lock().is_empty(), "nothing is left behind");
    }
}
