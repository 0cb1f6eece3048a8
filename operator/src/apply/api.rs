//! The kinds we write as dynamic objects: a field newer than our libraries is not lost on the way.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use super::Live;
use crate::names::PLAN_ANNOTATION;
use crate::plan::ChildKind;

/// Client of one kind in one namespace.
pub fn api(client: &Client, kind: ChildKind, namespace: &str) -> Api<DynamicObject> {
    let (group, plural) = match kind {
        ChildKind::ServiceAccount => ("", "serviceaccounts"),
        ChildKind::ConfigMap => ("", "configmaps"),
        ChildKind::Service => ("", "services"),
        ChildKind::Deployment => ("apps", "deployments"),
    };
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind.as_str()), plural);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// What is known of an object by its metadata.
pub fn live_of(metadata: &ObjectMeta) -> Live {
    let controller = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true))
        .map(|o| (o.kind.clone(), o.name.clone(), o.uid.clone()));
    Live {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        labels: metadata.labels.clone().unwrap_or_default(),
        plan: metadata.annotations.as_ref().and_then(|a| a.get(PLAN_ANNOTATION)).cloned(),
        controller,
    }
}
