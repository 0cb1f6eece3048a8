//! Writing objects: server-side apply with one field manager, only where something changed.
//!
//! Before anything is written, every name is checked: one that something else has taken is a [`ApplyError::NameConflict`]
//! and nothing is written at all, as a forced apply would take the object over in silence.

mod api;
mod decide;
mod error;
mod subset;

use std::collections::HashMap;
use std::time::Duration;

use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

pub use api::{api, live_of};
pub use decide::{Applied, Decision, Live, decide, older};
pub(crate) use error::cut;
pub use error::{ApplyError, is_gone, reason_of};
pub use subset::contains;

use crate::metrics::Metrics;
use crate::names::{AGENT_LABEL, FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, PLAN_ANNOTATION, SKILL_LABEL};
use crate::plan::{ChildKind, Planned};

/// A refusal of the same plan is asked for again after this long: what refused it may be gone.
const REFUSAL_LASTS: Duration = Duration::from_mins(5);

/// What the caches know of our objects.
pub trait Cache: Send + Sync {
    /// The object, if it carries our label and the cache has seen it.
    fn live(&self, kind: ChildKind, namespace: &str, name: &str) -> Option<Live>;
}

/// Whose objects they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind, such as `Agent`.
    pub kind: &'static str,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Uid.
    pub uid: String,
}

/// Why an object was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was not there.
    Created,
    /// Its plan changed.
    Changed,
    /// Somebody else had changed it.
    ForeignChange,
}

impl Cause {
    /// As a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::ForeignChange => "foreign_change",
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Objects written, and why.
    pub written: Vec<(ChildKind, String, Cause)>,
    /// A change of somebody else's is undone after this long, not at once.
    pub retry_after: Option<Duration>,
}

type Key = (ChildKind, String, String);

/// Writes objects and remembers what it wrote.
pub struct Applier {
    client: Client,
    metrics: Metrics,
    applied: Mutex<HashMap<Key, Applied>>,
    refused: Mutex<HashMap<Key, (String, ApplyError, Instant)>>,
}

impl Applier {
    /// An applier that remembers nothing yet.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics, applied: Mutex::default(), refused: Mutex::default() }
    }

    /// Brings the objects of one owner to their plans.
    pub async fn apply(&self, owner: &Owner, planned: &[Planned], cache: &dyn Cache) -> Result<Outcome, ApplyError> {
        let mut todo = Vec::with_capacity(planned.len());
        for object in planned {
            let live = self.find(owner, object, cache).await?;
            let decision = {
                let key = key(owner, object);
                decide(object, live.as_ref(), self.applied.lock().get(&key))
            };
            todo.push((object, live, decision));
        }
        for (object, live, decision) in &todo {
            let unknown_plan = live.as_ref().is_none_or(|l| l.plan.as_deref() != Some(&object.hash));
            if object.kind == ChildKind::Deployment && *decision == Decision::Write && unknown_plan {
                self.dry_run(owner, object).await?;
            }
        }
        let mut outcome = Outcome::default();
        for (object, live, decision) in todo {
            match decision {
                Decision::Keep => {}
                Decision::Write => {
                    let cause = if live.is_some() { Cause::Changed } else { Cause::Created };
                    self.write(owner, object, cause, &mut outcome).await?;
                }
                Decision::Compare => self.compare(owner, object, &mut outcome).await?,
            }
        }
        Ok(outcome)
    }

    /// The object if it is ours, nothing if it is not there, a conflict if it is somebody else's.
    async fn find(&self, owner: &Owner, object: &Planned, cache: &dyn Cache) -> Result<Option<Live>, ApplyError> {
        let is_ours = |live: &Live| live.controller.as_ref().is_some_and(|(_, _, uid)| *uid == owner.uid);
        if let Some(live) = cache.live(object.kind, &owner.namespace, &object.name).filter(is_ours) {
            return Ok(Some(live));
        }
        let api = api(&self.client, object.kind, &owner.namespace);
        let found = api.get_metadata_opt(&object.name).await.map_err(|e| self.failed("get", object, e))?;
        let Some(found) = found else { return Ok(None) };
        let live = live_of(&found.metadata);
        if is_ours(&live) {
            return Ok(Some(live));
        }
        let adoptable = live.controller.is_none()
            && live.labels.get(MANAGED_BY_LABEL).map(String::as_str) == Some(MANAGED_BY)
            && [AGENT_LABEL, SKILL_LABEL].iter().any(|l| {
                live.labels.get(*l).map(String::as_str)
                    == object.body.pointer("/metadata/labels").and_then(|o| o.get(*l)).and_then(|v| v.as_str())
                    && live.labels.contains_key(*l)
            });
        if adoptable {
            // Left behind by a deletion that orphaned it: an owner of the same name takes it back.
            return Ok(Some(Live { plan: None, ..live }));
        }
        let holder = live.controller.map(|(kind, name, _)| format!("{kind} {name}"));
        Err(ApplyError::NameConflict { kind: object.kind, name: object.name.clone(), holder })
    }

    /// Lets the API server check the Deployment without writing it.
    async fn dry_run(&self, owner: &Owner, object: &Planned) -> Result<(), ApplyError> {
        let key = key(owner, object);
        if let Some((hash, error, at)) = self.refused.lock().get(&key)
            && *hash == object.hash
            && at.elapsed() < REFUSAL_LASTS
        {
            return Err(error.clone());
        }
        self.metrics.writes.with_label_values(&[object.kind.as_str(), "dry_run"]).inc();
        let params = PatchParams::apply(FIELD_MANAGER).force().dry_run();
        let api = api(&self.client, object.kind, &owner.namespace);
        match api.patch(&object.name, &params, &Patch::Apply(&object.body)).await {
            Ok(_) => {
                self.refused.lock().remove(&key);
                Ok(())
            }
            Err(error) => {
                let error = self.failed("patch", object, error);
                if matches!(error, ApplyError::Refused { .. }) {
                    self.refused.lock().insert(key, (object.hash.clone(), error.clone(), Instant::now()));
                }
                Err(error)
            }
        }
    }

    async fn write(
        &self,
        owner: &Owner,
        object: &Planned,
        cause: Cause,
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        let mut body = object.body.clone();
        body["metadata"]["annotations"][PLAN_ANNOTATION] = json!(object.hash);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api = api(&self.client, object.kind, &owner.namespace);
        let written = api
            .patch(&object.name, &params, &Patch::Apply(&body))
            .await
            .map_err(|e| self.failed("patch", object, e))?;
        self.metrics.writes.with_label_values(&[object.kind.as_str(), cause.as_str()]).inc();
        self.remember(owner, object, &written, cause == Cause::ForeignChange);
        outcome.written.push((object.kind, object.name.clone(), cause));
        Ok(())
    }

    /// Reads the object; writes it only where it is not what the plan says.
    async fn compare(&self, owner: &Owner, object: &Planned, outcome: &mut Outcome) -> Result<(), ApplyError> {
        let api = api(&self.client, object.kind, &owner.namespace);
        let live = api.get_opt(&object.name).await.map_err(|e| self.failed("get", object, e))?;
        let Some(live) = live else { return self.write(owner, object, Cause::Created, outcome).await };
        let value = serde_json::to_value(&live).unwrap_or_default();
        if contains(&value, &object.body) {
            self.remember(owner, object, &live, false);
            return Ok(());
        }
        let wait = self.applied.lock().get(&key(owner, object)).and_then(|a| a.wait(Instant::now()));
        if let Some(wait) = wait {
            outcome.retry_after = Some(outcome.retry_after.map_or(wait, |w| w.min(wait)));
            return Ok(());
        }
        self.write(owner, object, Cause::ForeignChange, outcome).await
    }

    fn remember(&self, owner: &Owner, object: &Planned, live: &DynamicObject, undone: bool) {
        let mut applied = self.applied.lock();
        let uid = live.metadata.uid.clone().unwrap_or_default();
        let before = applied.remove(&key(owner, object)).filter(|a| a.uid == uid);
        let mut now = Applied {
            uid,
            hash: object.hash.clone(),
            resource_version: live.metadata.resource_version.clone().unwrap_or_default(),
            generation: live.metadata.generation.unwrap_or_default(),
            undone: before.as_ref().map_or(0, |b| b.undone),
            undone_at: before.and_then(|b| b.undone_at),
        };
        if undone {
            now.count_undone(Instant::now());
        }
        applied.insert(key(owner, object), now);
    }

    /// Deletes an object of ours that is in no plan any more.
    pub async fn delete(&self, owner: &Owner, kind: ChildKind, name: &str, uid: &str) -> Result<(), ApplyError> {
        let params = kube::api::DeleteParams {
            preconditions: Some(kube::api::Preconditions { uid: Some(uid.into()), resource_version: None }),
            propagation_policy: Some(kube::api::PropagationPolicy::Background),
            ..Default::default()
        };
        match api(&self.client, kind, &owner.namespace).delete(name, &params).await {
            Ok(_) => {
                self.metrics.writes.with_label_values(&[kind.as_str(), "deleted"]).inc();
                self.forget(kind, &owner.namespace, name);
                Ok(())
            }
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(ApplyError::of("delete", kind, name, error)),
        }
    }

    /// Makes an object that nobody owns one of the owner's.
    pub async fn adopt(
        &self,
        owner: &Owner,
        kind: ChildKind,
        name: &str,
        reference: serde_json::Value,
    ) -> Result<(), ApplyError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let body = json!({"metadata": {"ownerReferences": [reference]}});
        match api(&self.client, kind, &owner.namespace).patch(name, &params, &Patch::Merge(&body)).await {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(ApplyError::of("patch", kind, name, error)),
        }
    }

    /// Sets `spec.replicas` of a Deployment that is otherwise left as it was last rendered.
    pub async fn scale(&self, owner: &Owner, name: &str, replicas: i32) -> Result<(), ApplyError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let body = json!({"spec": {"replicas": replicas}});
        let api = api(&self.client, ChildKind::Deployment, &owner.namespace);
        api.patch(name, &params, &Patch::Merge(&body))
            .await
            .map_err(|e| ApplyError::of("patch", ChildKind::Deployment, name, e))?;
        self.metrics.writes.with_label_values(&["Deployment", "changed"]).inc();
        // What stands there now is no longer what was applied last; the next plan is compared afresh.
        self.forget(ChildKind::Deployment, &owner.namespace, name);
        Ok(())
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, kind: ChildKind, namespace: &str, name: &str) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.applied.lock().remove(&key);
        self.refused.lock().remove(&key);
    }

    fn failed(&self, verb: &'static str, object: &Planned, error: kube::Error) -> ApplyError {
        self.metrics.api_errors.with_label_values(&[verb, reason_of(&error)]).inc();
        ApplyError::of(verb, object.kind, &object.name, error)
    }
}

fn key(owner: &Owner, object: &Planned) -> Key {
    (object.kind, owner.namespace.clone(), object.name.clone())
}
