//! Who the Agent is to the cluster: metadata of its objects, its ServiceAccount, the token of its drain hooks.

use kube::{Resource, ResourceExt};
use outrigger_crds::{Agent, AgentSpec};
use serde_json::{Value, json};

use super::{ChildKind, PlanError, Planned};
use crate::{hash, names};

/// Name, namespace and uid of an Agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

impl Identity {
    pub(super) fn of(agent: &Agent) -> Result<Self, PlanError> {
        let missing = |path: &str| PlanError::InvalidSpec { path: path.into(), message: "is not set".into() };
        Ok(Self {
            name: agent.name_any(),
            namespace: agent.namespace().ok_or_else(|| missing("metadata.namespace"))?,
            uid: agent.uid().ok_or_else(|| missing("metadata.uid"))?,
        })
    }

    /// Metadata of a child with this name.
    pub(super) fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": names::agent_labels(&self.name),
            "ownerReferences": [owner::<Agent>(&self.name, &self.uid)],
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

/// The ServiceAccount of the Agent's pods.
pub(super) fn service_account(identity: &Identity, spec: &AgentSpec) -> Planned {
    let mut metadata = identity.metadata(&identity.name);
    let annotations = spec.service_account.as_ref().map(|s| &s.annotations).filter(|a| !a.is_empty());
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
