//! The Service under which other agents and clients reach the Agent.

use outrigger_protocol::config::A2A_PORT;
use serde_json::json;

use super::identity::Identity;
use super::{ChildKind, Planned};
use crate::names::{AGENT_LABEL, SERVICE_PORT};

/// Tasks live in one pod, so a client stays with the pod it came to.
pub(super) fn service(identity: &Identity) -> Planned {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(&identity.name),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": {AGENT_LABEL: identity.name},
            "sessionAffinity": "ClientIP",
            "ports": [{"name": "a2a", "port": SERVICE_PORT, "targetPort": A2A_PORT, "protocol": "TCP", "appProtocol": "http"}],
        },
    });
    Planned::new(ChildKind::Service, &identity.name, body)
}
