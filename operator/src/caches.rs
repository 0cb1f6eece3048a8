//! What the watches have seen, in memory: the resources whole, their objects as far as somebody reads them.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodSpec, Service, ServiceAccount};
use kube::Resource;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use outrigger_crds::{Agent, MCPServer, Skill};

use crate::apply::{Cache, Live, live_of};
use crate::facts::Facts;
use crate::names::{AGENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use crate::plan::ChildKind;
use crate::status::pods::PodView;

/// A resource that may not parse: one malformed object does not stop the watch of all others.
pub type Guarded<K> = DeserializeGuard<K>;

/// All stores of one scope.
#[derive(Clone)]
pub struct Caches {
    /// Agents.
    pub agents: Store<Guarded<Agent>>,
    /// `MCPServer`s.
    pub servers: Store<Guarded<MCPServer>>,
    /// Skills.
    pub skills: Store<Guarded<Skill>>,
    /// Deployments of ours.
    pub deployments: Store<Deployment>,
    /// Pods of Agents and of Standalone `MCPServer`s.
    pub pods: Store<Pod>,
    /// `ConfigMap`s of ours, metadata only.
    pub config_maps: Store<PartialObjectMeta<ConfigMap>>,
    /// Services of ours, metadata only.
    pub services: Store<PartialObjectMeta<Service>>,
    /// `ServiceAccount`s of ours, metadata only.
    pub service_accounts: Store<PartialObjectMeta<ServiceAccount>>,
}

fn key<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> ObjectRef<K> {
    ObjectRef::new(name).within(namespace)
}

impl Caches {
    /// The `MCPServer`; `Err` has what does not parse.
    pub fn server(&self, namespace: &str, name: &str) -> Option<Arc<Guarded<MCPServer>>> {
        self.servers.get(&key(namespace, name))
    }

    /// The Skill.
    pub fn skill(&self, namespace: &str, name: &str) -> Option<Arc<Guarded<Skill>>> {
        self.skills.get(&key(namespace, name))
    }

    /// The Deployment, if it is of the owner with this uid.
    pub fn deployment(&self, namespace: &str, name: &str, owner: &str) -> Option<Arc<Deployment>> {
        let found = self.deployments.get(&key(namespace, name))?;
        let ours = live_of(&found.metadata).controller.is_some_and(|(_, _, uid)| uid == owner);
        ours.then_some(found)
    }

    /// Agents of a namespace for which `test` holds.
    pub fn agents_where(&self, namespace: &str, test: impl Fn(&Agent) -> bool) -> Vec<Arc<Guarded<Agent>>> {
        self.agents.state_filter(|a| a.meta().namespace.as_deref() == Some(namespace) && a.0.as_ref().is_ok_and(&test))
    }

    /// Pods of an Agent with what they say of themselves.
    pub fn pods_of(&self, namespace: &str, agent: &str, facts: &Facts) -> Vec<PodView> {
        self.pods_with(namespace, (AGENT_LABEL, agent), facts)
    }

    /// Pods with a label and what they say of themselves.
    pub fn pods_with(&self, namespace: &str, (key, value): (&str, &str), facts: &Facts) -> Vec<PodView> {
        self.pods
            .state_filter(|p| {
                p.metadata.namespace.as_deref() == Some(namespace)
                    && p.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str) == Some(value)
            })
            .into_iter()
            .map(|pod| PodView { fact: pod.metadata.uid.as_deref().and_then(|uid| facts.get(uid)), pod })
            .collect()
    }

    /// Metadata of the `ConfigMap`s of an owner, and of those with its label that a deletion orphaned.
    pub fn config_maps_of(&self, namespace: &str, (key, value): (&str, &str), owner: &str) -> Vec<(String, Live)> {
        self.config_maps
            .state_filter(|c| c.metadata.namespace.as_deref() == Some(namespace))
            .into_iter()
            .map(|c| (c.metadata.name.clone().unwrap_or_default(), live_of(&c.metadata)))
            .filter(|(_, live)| match &live.controller {
                Some((_, _, uid)) => uid == owner,
                None => live.labels.get(key).map(String::as_str) == Some(value),
            })
            .collect()
    }
}

impl Cache for Caches {
    fn live(&self, kind: ChildKind, namespace: &str, name: &str) -> Option<Live> {
        match kind {
            ChildKind::Deployment => self.deployments.get(&key(namespace, name)).map(|o| live_of(&o.metadata)),
            ChildKind::ConfigMap => self.config_maps.get(&key(namespace, name)).map(|o| live_of(&o.metadata)),
            ChildKind::Service => self.services.get(&key(namespace, name)).map(|o| live_of(&o.metadata)),
            ChildKind::ServiceAccount => self.service_accounts.get(&key(namespace, name)).map(|o| live_of(&o.metadata)),
        }
    }
}

/// Label selector of our objects.
pub fn our_objects() -> &'static str {
    debug_assert!(MANAGED_BY_LABEL == "app.kubernetes.io/managed-by" && MANAGED_BY == "outrigger");
    "app.kubernetes.io/managed-by=outrigger"
}

/// Annotation of client-side apply: a second copy of the whole manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Drops the copy that client-side apply keeps.
pub fn strip_meta<K: Resource>(object: &mut K) {
    if let Some(annotations) = object.meta_mut().annotations.as_mut() {
        annotations.remove(LAST_APPLIED);
    }
}

/// Keeps of a pod what is read: metadata, status, and which `ConfigMap`s it mounts.
pub fn strip_pod(pod: &mut Pod) {
    strip_meta(pod);
    let volumes = pod
        .spec
        .take()
        .and_then(|s| s.volumes)
        .map(|v| v.into_iter().filter(|v| v.config_map.is_some()).collect::<Vec<_>>());
    pod.spec = Some(PodSpec { volumes, ..PodSpec::default() });
}

/// Keeps of a Deployment what is read: metadata, status, replicas, and which `ConfigMap`s its pods mount.
pub fn strip_deployment(deployment: &mut Deployment) {
    strip_meta(deployment);
    if let Some(spec) = deployment.spec.as_mut().and_then(|s| s.template.spec.as_mut()) {
        let volumes = spec.volumes.take().map(|v| v.into_iter().filter(|v| v.config_map.is_some()).collect::<Vec<_>>());
        *spec = PodSpec { volumes, ..PodSpec::default() };
    }
}

/// Names of the `ConfigMap`s that a pod specification mounts.
pub fn mounted_config_maps(spec: Option<&PodSpec>) -> impl Iterator<Item = &str> {
    spec.and_then(|s| s.volumes.as_deref())
        .unwrap_or_default()
        .iter()
        .filter_map(|v| v.config_map.as_ref().map(|c| c.name.as_str()))
}
