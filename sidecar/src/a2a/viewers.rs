//! Who looks at a task: its streams and the requests that wait for it, counted per task and per caller.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::config::Limits;
use parking_lot::Mutex;

/// Seconds that a caller with too many streams is told to wait.
const RETRY: u32 = 5;

/// All of them.
#[derive(Default)]
pub struct Viewers(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// Streams of a task, and requests that wait for it.
    tasks: HashMap<Arc<str>, (u32, u32)>,
    /// Streams of a caller.
    callers: HashMap<Arc<str>, u32>,
}

/// What is run when the last viewer of a task goes before the task rests.
pub type Abandon = Box<dyn FnOnce() + Send + Sync>;

/// One viewer, until it is dropped.
pub struct Viewer {
    viewers: Arc<Viewers>,
    task: Arc<str>,
    caller: Arc<str>,
    stream: bool,
    abandon: Option<Abandon>,
}

impl Viewers {
    /// A stream; an error when there are too many.
    pub fn stream(self: &Arc<Self>, task: &Arc<str>, caller: &Arc<str>, limits: &Limits) -> Result<Viewer, Error> {
        let full = |whose: &str, max: u32| {
            let text = format!("{whose} has as many streams as it may: {max}");
            Err(Error::new(Kind::RateLimited, text).retry_after(RETRY))
        };
        let mut counts = self.0.lock();
        let (of_task, _) = counts.tasks.get(task).copied().unwrap_or_default();
        if of_task >= limits.max_streams_per_task {
            return full("the task", limits.max_streams_per_task);
        }
        let of_caller = counts.callers.get(caller).copied().unwrap_or_default();
        if limits.max_streams_per_caller > 0 && of_caller >= limits.max_streams_per_caller {
            return full("the caller", limits.max_streams_per_caller);
        }
        counts.tasks.entry(Arc::clone(task)).or_default().0 += 1;
        *counts.callers.entry(Arc::clone(caller)).or_default() += 1;
        drop(counts);
        Ok(self.viewer(task, caller, true))
    }

    /// A request that waits.
    pub fn waiting(self: &Arc<Self>, task: &Arc<str>, caller: &Arc<str>) -> Viewer {
        self.0.lock().tasks.entry(Arc::clone(task)).or_default().1 += 1;
        self.viewer(task, caller, false)
    }

    fn viewer(self: &Arc<Self>, task: &Arc<str>, caller: &Arc<str>, stream: bool) -> Viewer {
        let (task, caller) = (Arc::clone(task), Arc::clone(caller));
        Viewer { viewers: Arc::clone(self), task, caller, stream, abandon: None }
    }
}

impl Viewer {
    /// What to do when this one goes as the last one, unless it is done by then.
    pub fn or_else(&mut self, abandon: Abandon) {
        self.abandon = Some(abandon);
    }

    /// It has seen what it waited for.
    pub fn done(&mut self) {
        self.abandon = None;
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut counts = self.viewers.0.lock();
        let mut last = false;
        if let Some(count) = counts.tasks.get_mut(&self.task) {
            let of = if self.stream { &mut count.0 } else { &mut count.1 };
            *of = of.saturating_sub(1);
            last = *count == (0, 0);
        }
        if last {
            counts.tasks.remove(&self.task);
        }
        if self.stream
            && let Some(count) = counts.callers.get_mut(&self.caller)
        {
            *count -= 1;
            if *count == 0 {
                counts.callers.remove(&self.caller);
            }
        }
        drop(counts);
        if let Some(abandon) = self.abandon.take().filter(|_| last) {
            abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_bounded_and_forgotten() {
        let viewers = Arc::<Viewers>::default();
        let limits = Limits { max_streams_per_task: 2, max_streams_per_caller: 3, ..Limits::default() };
        let open = |task: &str, caller: &str| viewers.stream(&task.into(), &caller.into(), &limits);
        let mut held = vec![open("t", "a").unwrap(), open("t", "b").unwrap()];
        assert!(open("t", "c").is_err_and(|e| e.kind == Kind::RateLimited && e.retry_after.is_some()));
        held.extend([open("u", "a").unwrap(), open("v", "a").unwrap()]);
        assert!(open("w", "a").is_err());
        held.remove(0);
        held.push(open("w", "a").unwrap());
        held.clear();
        let counts = viewers.0.lock();
        assert!(counts.tasks.is_empty() && counts.callers.is_empty());
    }

    #[test]
    fn only_the_last_one_that_is_not_done_abandons() {
        let viewers = Arc::<Viewers>::default();
        let count = Arc::new(Mutex::new(0));
        let view = || {
            let mut viewer = viewers.waiting(&"t".into(), &"a".into());
            let count = Arc::clone(&count);
            viewer.or_else(Box::new(move || *count.lock() += 1));
            viewer
        };
        let (first, second) = (view(), view());
        drop(first);
        assert_eq!(*count.lock(), 0);
        drop(second);
        assert_eq!(*count.lock(), 1);
        let mut done = view();
        done.done();
        drop(done);
        assert_eq!(*count.lock(), 1);
    }
}
