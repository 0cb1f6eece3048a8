//! Watches: each with its own back-off, errors logged and dropped, so that one that fails never stops another.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::Metrics;

/// A watch is opened anew after this long; load balancers drop idle connections at 240 s.
const WATCH_SECONDS: u32 = 200;
/// First wait after an error.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait after errors: a CRD that comes back is seen within this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What happened to an object.
#[derive(Debug)]
pub enum Change<K> {
    /// It is new, or different, or was listed again.
    Seen(Arc<K>),
    /// It is gone.
    Gone(Arc<K>),
}

/// Doubles from [`FIRST_WAIT`] to [`LONGEST_WAIT`] with jitter; any success starts it over.
#[derive(Debug, Default)]
pub(crate) struct WatchBackoff {
    failures: u32,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(8)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        Some(wait.mul_f64(rand::random_range(0.75..1.0)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Runs one watch until `shutdown`: fills the store and tells `on` of each change. `strip` drops what nobody reads
/// before an object is kept.
pub async fn run<K, F, Fut>(
    api: Api<K>,
    labels: Option<&'static str>,
    mut writer: Writer<K>,
    strip: fn(&mut K),
    metrics: Metrics,
    shutdown: CancellationToken,
    mut on: F,
) where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    <K as Resource>::DynamicType: Default + Eq + Hash + Clone,
    <K as Lookup>::DynamicType: Default + Eq + Hash + Clone,
    F: FnMut(Change<K>) -> Fut + Send,
    Fut: Future<Output = ()> + Send,
{
    let resource = <K as Resource>::plural(&Default::default()).into_owned();
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(labels) = labels {
        config = config.labels(labels);
    }
    metrics.watch_errors.with_label_values(&[&resource]);
    let reader = writer.as_reader();
    let mut stream = Box::pin(watcher(api, config).backoff(WatchBackoff::default()));
    let mut failing = false;
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = stream.next() => event,
        };
        let event = match event {
            None => return,
            Some(Err(error)) => {
                metrics.watch_errors.with_label_values(&[&resource]).inc();
                // The first of a row is worth a line, the rest is the same.
                if !failing {
                    warn!(resource, %error, "watch failed; trying again");
                }
                failing = true;
                continue;
            }
            Some(Ok(event)) => event.modify(|object| {
                object.meta_mut().managed_fields = None;
                strip(object);
            }),
        };
        if std::mem::take(&mut failing) {
            info!(resource, "watch works again");
        }
        let before = if matches!(event, watcher::Event::InitDone) { reader.state() } else { Vec::new() };
        writer.apply_watcher_event(&event);
        match event {
            watcher::Event::Apply(object) => on(Change::Seen(Arc::new(object))).await,
            watcher::Event::Delete(object) => on(Change::Gone(Arc::new(object))).await,
            watcher::Event::InitDone => {
                // A list tells of what is there; what went while the watch was down has to be worked out.
                let now = reader.state();
                let names: HashSet<ObjectRef<K>> = now.iter().map(|o| o.to_object_ref(Default::default())).collect();
                for object in before {
                    if !names.contains(&object.to_object_ref(Default::default())) {
                        on(Change::Gone(object)).await;
                    }
                }
                for object in now {
                    on(Change::Seen(object)).await;
                }
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        }
        metrics.objects.with_label_values(&[&resource]).set(i64::try_from(reader.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_over() {
        let mut backoff = WatchBackoff::default();
        let first = backoff.next().unwrap();
        assert!(first <= FIRST_WAIT);
        for _ in 0..100 {
            assert!(backoff.next().unwrap() <= LONGEST_WAIT);
        }
        assert!(backoff.next().unwrap() >= LONGEST_WAIT.mul_f64(0.75));
        backoff.reset();
        assert!(backoff.next().unwrap() <= FIRST_WAIT);
    }
}
