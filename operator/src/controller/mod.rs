//! The controllers: each takes up an object, looks, plans, writes, and says what it saw.

pub mod agent;
pub mod mcp_server;
mod prune;
pub mod skill;

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::apply::{Applier, ApplyError};
use crate::caches::{Caches, Guarded};
use crate::control_api::keeper::Plane;
use crate::facts::{Facts, Touch};
use crate::issuer::Issuers;
use crate::metrics::Metrics;
use crate::plan::ChildKind;
use crate::report::{Note, Outcome, Reporter};
use crate::scopes::Scopes;
use crate::settings::Settings;
use crate::status::find;
use crate::status::write::StatusWriter;

/// Longest time for one reconciliation, all requests and their retries included.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Every object has a look this often even if nothing seems to have changed.
const REGULARLY: Duration = Duration::from_mins(10);
/// An object that waits for something that is not watched has a look this often.
pub(crate) const WAITING: Duration = Duration::from_secs(30);
/// Wait after the first failure; doubles with each.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest wait after failures.
const LONGEST_RETRY: Duration = Duration::from_mins(5);
/// Changes within this time are one.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Failures in a row after which people are told.
const TELL_AFTER: u32 = 3;

/// What every controller works with.
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// All scopes of the operator, for Agents of other namespaces.
    pub scopes: Scopes,
    /// Who signs the tokens of the cluster.
    pub issuers: Issuers,
    /// What sidecars are told of the control API.
    pub control: Plane,
    /// What the installation says.
    pub settings: Arc<Settings>,
    /// What the watches have seen.
    pub caches: Caches,
    /// What pods say of themselves.
    pub facts: Facts,
    /// Where a pod can be asked to speak again.
    pub touches: mpsc::Sender<Touch>,
    /// Writes objects.
    pub applier: Applier,
    /// Writes statuses.
    pub statuses: StatusWriter,
    /// Tells of outcomes.
    pub reporter: Reporter,
    /// Failures in a row.
    pub failures: Failures,
    /// Counts.
    pub metrics: Metrics,
}

impl Context {
    /// Forgets a resource that is gone.
    pub fn forget(&self, meta: &ObjectMeta) {
        if let Some(uid) = &meta.uid {
            self.statuses.forget(uid);
            self.failures.reset(uid);
        }
        if let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) {
            self.applier.forget(ChildKind::Deployment, namespace, name);
        }
    }
}

/// A reconciliation that came to its end.
#[derive(Debug)]
pub struct Done {
    /// What came of it.
    pub outcome: Outcome,
    /// What people who look at the object are told.
    pub notes: Vec<Note>,
    /// When to look again; without it, regularly.
    pub again: Option<Duration>,
}

impl Done {
    pub(crate) fn quiet() -> Self {
        Self { outcome: Outcome::Unchanged, notes: Vec::new(), again: None }
    }

    pub(crate) fn again_within(&mut self, wait: Duration) {
        self.again = Some(self.again.map_or(wait, |w| w.min(wait)));
    }
}

/// A reconciliation that has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A request failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// It took longer than one may.
    #[error("took longer than {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// The clock of conditions.
pub(crate) fn now() -> Time {
    // Conditions have whole seconds on the wire.
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}

/// A note of a condition that changed its status or reason.
pub(crate) fn transition(before: &[Condition], after: &[Condition], kind: &str) -> Option<Note> {
    let new = find(after, kind)?;
    let old = find(before, kind);
    if old.is_some_and(|o| o.status == new.status && o.reason == new.reason) {
        return None;
    }
    let quiet = ["PodsStarting", "InstancesStarting", "NoInstances", "SkillPending"].contains(&new.reason.as_str());
    Some(Note { warning: new.status == "False" && !quiet, reason: new.reason.clone(), text: new.message.clone() })
}

/// Outcome of a resource with these conditions, after these writes.
pub(crate) fn outcome(conditions: &[Condition], written: &str) -> Outcome {
    for (kind, refused) in [("Accepted", true), ("Ready", false)] {
        if let Some(c) = find(conditions, kind).filter(|c| c.status == "False") {
            let (reason, message) = (c.reason.clone(), c.message.clone());
            return if refused { Outcome::Refused(reason, message) } else { Outcome::Waiting(reason, message) };
        }
    }
    if written.is_empty() { Outcome::Unchanged } else { Outcome::Changed(written.into()) }
}

type Reconciling<'a> = Pin<Box<dyn Future<Output = Result<Done, ReconcileError>> + Send + 'a>>;

/// Failures in a row, by uid.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    fn count(&self, uid: &str) -> u32 {
        let mut failures = self.0.lock();
        let count = failures.entry(uid.into()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Starts over, as after a success or when the object is gone.
    pub fn reset(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

fn retry_after(failures: u32) -> Duration {
    let wait = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_RETRY);
    jittered(wait)
}

fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(0.8..1.2))
}

/// Runs one controller until `shutdown`.
pub async fn run<K>(
    store: Store<Guarded<K>>,
    queue: mpsc::Receiver<ObjectRef<Guarded<K>>>,
    context: Arc<Context>,
    concurrency: u16,
    shutdown: CancellationToken,
    reconcile: for<'a> fn(&'a K, &'a Context) -> Reconciling<'a>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let kind = K::kind(&()).into_owned();
    let stream = futures::stream::unfold((queue, shutdown, context.metrics.clone(), kind.clone()), |mut state| async {
        let next = tokio::select! {
            () = state.1.cancelled() => None,
            next = state.0.recv() => next,
        };
        let waiting = i64::try_from(state.0.len()).unwrap_or(i64::MAX);
        state.2.queue.with_label_values(&[&state.3]).set(waiting);
        next.map(|next| (Ok::<_, std::convert::Infallible>(next), state))
    });
    let config = Config::default().concurrency(concurrency).debounce(DEBOUNCE);
    let one = move |object: Arc<Guarded<K>>, context: Arc<Context>| {
        let kind = kind.clone();
        Box::pin(async move { Ok::<_, std::convert::Infallible>(take_up(&object, &context, &kind, reconcile).await) })
    };
    let policy = |_: Arc<Guarded<K>>, error: &std::convert::Infallible, _: Arc<Context>| match *error {};
    applier(one, policy, context, store, Box::pin(stream), config).for_each(|_| async {}).await;
}

async fn take_up<K>(
    object: &Guarded<K>,
    context: &Context,
    kind: &str,
    reconcile: for<'a> fn(&'a K, &'a Context) -> Reconciling<'a>,
) -> Action
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let uid = object.meta().uid.clone().unwrap_or_default();
    let good = match &object.0 {
        Ok(good) => good,
        Err(invalid) => {
            let note =
                Note { warning: true, reason: "Malformed".into(), text: format!("cannot be read: {}", invalid.error) };
            context.reporter.report(object, &Outcome::Refused("Malformed".into(), invalid.error.clone()), vec![note]);
            return Action::requeue(jittered(REGULARLY));
        }
    };
    let running = context.metrics.running.with_label_values(&[kind]);
    running.inc();
    let start = Instant::now();
    let result = tokio::time::timeout(TIMEOUT, reconcile(good, context)).await.unwrap_or(Err(ReconcileError::Timeout));
    context.metrics.reconcile_seconds.with_label_values(&[kind]).observe(start.elapsed().as_secs_f64());
    running.dec();
    match result {
        Ok(done) => {
            context.failures.reset(&uid);
            context.reporter.report(object, &done.outcome, done.notes);
            Action::requeue(done.again.unwrap_or_else(|| jittered(REGULARLY)))
        }
        // What is left is the namespace's own business.
        Err(ReconcileError::Apply(ApplyError::NamespaceTerminating)) => {
            context.failures.reset(&uid);
            context.reporter.report(object, &Outcome::Unchanged, Vec::new());
            Action::requeue(jittered(REGULARLY))
        }
        Err(error) => {
            let count = context.failures.count(&uid);
            let outcome = match &error {
                ReconcileError::Apply(e) => Outcome::Error(e.reason().into(), e.to_string()),
                ReconcileError::Timeout => Outcome::Timeout,
            };
            let reason = if let ReconcileError::Apply(e) = &error { e.reason() } else { "Timeout" };
            let note = Note { warning: true, reason: reason.into(), text: error.to_string() };
            context.reporter.report(object, &outcome, if count == TELL_AFTER { vec![note] } else { Vec::new() });
            Action::requeue(retry_after(count))
        }
    }
}

/// A resource without its guard, for tests and for the store's readers.
pub fn guarded<K: Resource>(object: K) -> Guarded<K> {
    DeserializeGuard(Ok(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_grow_to_a_bound() {
        for (failures, low, high) in
            [(1, 0.8, 1.2), (2, 1.6, 2.4), (4, 6.4, 9.6), (20, 240.0, 360.0), (u32::MAX, 240.0, 360.0)]
        {
            let wait = retry_after(failures).as_secs_f64();
            assert!((low..=high).contains(&wait), "{failures}: {wait}");
        }
    }
}
