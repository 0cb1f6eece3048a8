//! New tasks of which this process does not know whether they were written: an error told nothing, or their writer
//! went before it was told. Nobody would work on them, so they count as orphans if they are there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Most of them; more are not remembered, and end when the process does.
const MAX: usize = 1_024;
/// A task that is not there after so long was not written.
const DECIDED: Duration = Duration::from_secs(60);

/// Them.
#[derive(Default)]
pub(super) struct Unsure(Mutex<Vec<(Instant, Arc<str>)>>);

impl Unsure {
    /// Remembers a task when this is dropped, unless it is told what became of it.
    pub(super) fn writing(&self, task: Arc<str>) -> Writing<'_> {
        Writing { unsure: self, task: Some(task) }
    }

    pub(super) fn tasks(&self) -> Vec<Arc<str>> {
        self.0.lock().iter().map(|(_, task)| Arc::clone(task)).collect()
    }

    /// What became of a task is known.
    pub(super) fn known(&self, task: &str) {
        self.0.lock().retain(|(_, t)| **t != *task);
    }

    /// A task is not there, which may still change for a while.
    pub(super) fn missing(&self, task: &str) {
        self.0.lock().retain(|(since, t)| **t != *task || since.elapsed() < DECIDED);
    }
}

/// A new task that is being written.
pub(super) struct Writing<'a> {
    unsure: &'a Unsure,
    task: Option<Arc<str>>,
}

impl Writing<'_> {
    /// What became of it is known.
    pub(super) fn known(mut self) {
        if let Some(task) = self.task.take() {
            self.unsure.known(&task);
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let mut tasks = self.unsure.0.lock();
        if tasks.len() < MAX && tasks.iter().all(|(_, t)| *t != task) {
            tasks.push((Instant::now(), task));
        }
    }
}
