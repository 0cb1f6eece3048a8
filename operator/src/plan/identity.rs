//! Who a resource is to the cluster: metadata of its objects, its ServiceAccount, the token of its drain hooks.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt};
use outrigger_crds::{Agent, AgentSpec, MCPServer};
use serde_json::{Value, json};

use super::{ChildKind, PlanError, Planned};
use crate::{hash, names};

/// What kind of resource the objects belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Agent,
    Server,
}

/// Names, namespace and uid of a resource whose pods are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    kind: Kind,
    /// Name of the resource.
    pub resource: String,
    /// Name of its objects.
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

impl Identity {
    pub(super) fn of(agent: &Agent) -> Result<Self, PlanError> {
        Self::new(Kind::Agent, agent, agent.name_any())
    }

    /// Of a Standalone server.
    pub(super) fn of_server(server: &MCPServer) -> Result<Self, PlanError> {
        Self::new(Kind::Server, server, names::server_objects(&server.name_any()))
    }

    fn new<K: Resource<DynamicType = ()>>(kind: Kind, resource: &K, name: String) -> Result<Self, PlanError> {
        let missing = |path: &str| PlanError::InvalidSpec { path: path.into(), message: "is not set".into() };
        Ok(Self {
            kind,
            resource: resource.name_any(),
            name,
            namespace: resource.namespace().ok_or_else(|| missing("metadata.namespace"))?,
            uid: resource.uid().ok_or_else(|| missing("metadata.uid"))?,
        })
    }

    /// An Agent of this name.
    #[cfg(test)]
    pub(super) fn for_tests(name: &str, namespace: &str) -> Self {
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        Self { kind: Kind::Agent, resource: name.clone(), name, namespace, uid: String::new() }
    }

    /// Labels of its objects, its pods included.
    pub(super) fn labels(&self) -> BTreeMap<&'static str, String> {
        match self.kind {
            Kind::Agent => names::agent_labels(&self.resource),
            Kind::Server => names::server_labels(&self.resource),
        }
    }

    /// The one label of its selectors.
    pub(super) fn selector_label(&self) -> &'static str {
        match self.kind {
            Kind::Agent => names::AGENT_LABEL,
            Kind::Server => names::SERVER_LABEL,
        }
    }

    /// The selector of its pods.
    pub(super) fn selector(&self) -> Value {
        json!({self.selector_label(): self.resource})
    }

    /// Metadata of a child with this name.
    pub(super) fn metadata(&self, name: &str) -> Value {
        let owner = match self.kind {
            Kind::Agent => owner::<Agent>(&self.resource, &self.uid),
            Kind::Server => owner::<MCPServer>(&self.resource, &self.uid),
        };
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": [owner],
        })
    }

    /// Value of the header that a drain hook carries. It keeps other pods from draining this one by accident; who can
    /// read the pod's manifest can read it.
    pub(super) fn drain_token(&self) -> String {
        hash::hex(format!("outrigger drain token v1\0{}", self.uid).as_bytes())
    }
}

/// Our controller reference.
pub(super) fn owner<K: Resource<DynamicType = ()>>(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "name": name,
        "uid": uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// The ServiceAccount of the pods; `spec` is the Agent's.
pub(super) fn service_account(identity: &Identity, spec: Option<&AgentSpec>) -> Planned {
    let mut metadata = identity.metadata(&identity.name);
    let annotations = spec.and_then(|s| s.service_account.as_ref()).map(|s| &s.annotations).filter(|a| !a.is_empty());
    if let Some(annotations) = annotations {
        metadata["annotations"] = json!(annotations);
    }
    let body = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": false,
    });
    Planned::new(ChildKind::ServiceAccount, &identity.name, body)
}
