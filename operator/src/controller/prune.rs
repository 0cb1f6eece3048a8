//! Boot `ConfigMap`s that are no longer used: each pod template has one of its own.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::{Context, ReconcileError};
use crate::apply::{ApplyError, Owner, reason_of};
use crate::caches::mounted_config_maps;
use crate::plan::{ChildKind, Planned};

/// Whose they are.
pub(super) struct Family<'a> {
    /// The resource.
    pub owner: &'a Owner,
    /// Name of its Deployment, with which the names of the others begin.
    pub objects: &'a str,
    /// Label of its objects and pods.
    pub label: (&'a str, &'a str),
    /// Reference by which an object belongs to it.
    pub reference: Value,
}

/// Deletes boot `ConfigMap`s that no pod has, or will have.
pub(super) async fn prune(family: &Family<'_>, planned: &[Planned], context: &Context) -> Result<(), ReconcileError> {
    let Family { owner, objects, label, reference } = family;
    let prefix = format!("{objects}-boot-");
    let planned: BTreeSet<&str> = planned.iter().map(|o| o.name.as_str()).collect();
    let mut old = context.caches.config_maps_of(&owner.namespace, *label, &owner.uid);
    old.retain(|(name, _)| name.starts_with(&prefix) && !planned.contains(name.as_str()));
    if old.is_empty() {
        return Ok(());
    }
    for (name, _) in old.iter().filter(|(_, live)| live.controller.is_none()) {
        // Left behind by a deletion that orphaned it: it goes with this owner at the latest.
        context.applier.adopt(owner, ChildKind::ConfigMap, name, reference.clone()).await?;
    }
    // Not seen yet, or not written while a part is missing: there is no hurry.
    let deployment = context.caches.deployment(&owner.namespace, objects, &owner.uid);
    let Some(deployment) = deployment else { return Ok(()) };
    // Until its controller has seen the newest template it may still make pods of an older one.
    let observed = deployment.status.as_ref().and_then(|s| s.observed_generation);
    if observed < deployment.metadata.generation {
        return Ok(());
    }
    let pods = context.caches.pods_with(&owner.namespace, *label, &context.facts);
    let sets: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &owner.namespace);
    let selector = format!("{}={}", label.0, label.1);
    let sets = sets.list(&ListParams::default().labels(&selector)).await.map_err(|e| {
        context.metrics.api_errors.with_label_values(&["list", reason_of(&e)]).inc();
        ApplyError::of("list", ChildKind::Deployment, objects, e)
    })?;
    let active = sets.items.iter().filter(|s| {
        let wanted = s.spec.as_ref().and_then(|s| s.replicas).unwrap_or_default();
        wanted > 0 || s.status.as_ref().is_some_and(|s| s.replicas > 0)
    });
    let in_sets = active.filter_map(|s| s.spec.as_ref()?.template.as_ref()?.spec.as_ref());
    let in_pods = pods.iter().filter_map(|p| p.pod.spec.as_ref());
    let in_deployment = deployment.spec.iter().filter_map(|s| s.template.spec.as_ref());
    let used: BTreeSet<String> = in_sets
        .chain(in_pods)
        .chain(in_deployment)
        .flat_map(|s| mounted_config_maps(Some(s)).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for (name, live) in old {
        if !used.contains(&name) {
            context.applier.delete(owner, ChildKind::ConfigMap, &name, &live.uid).await?;
        }
    }
    Ok(())
}
