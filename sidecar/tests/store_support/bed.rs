//! What the schedules need of a real store.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use outrigger_protocol::config::{Limits, Live};
use outrigger_sidecar::a2a::metrics::Metrics;
use outrigger_sidecar::a2a::store::Store;
use tokio::sync::watch;

/// When a process has lost its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// When its lease has run out.
    Lease,
    /// Then, and when another process of its pod has started.
    LeaseOrPod,
    /// When another process has started at all.
    Successor,
}

/// One real store that several processes work on, with a clock that the test sets.
pub trait Bed: Send {
    /// When a process is dead.
    fn death(&self) -> Death;

    /// Starts a process in a pod; the former one of the pod has ended.
    fn start(&mut self, pod: usize) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Sets the store's clock.
    fn set(&mut self, now: Timestamp) -> BoxFuture<'_, ()>;

    /// Waits until what a process began and dropped is done or not done.
    fn settle<'a>(&'a mut self, process: &'a dyn Store) -> BoxFuture<'a, ()>;
}

/// Configuration and metrics of a process.
pub fn process(limits: Limits) -> (watch::Receiver<Arc<Live>>, Metrics) {
    let live = watch::channel(Arc::new(Live { limits, ..Live::new(serde_json::Value::Null) })).1;
    (live, Metrics::register(&prometheus::Registry::new()).unwrap())
}
