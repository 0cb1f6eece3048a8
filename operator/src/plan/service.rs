//! The Services under which clients and other agents reach the Agent.

use outrigger_crds::AgentSpec;
use outrigger_protocol::config::A2A_PORT;
use serde_json::json;

use super::identity::Identity;
use super::store::{Lifetime, lifetime};
use super::{ChildKind, Planned};
use crate::names::{self, AGENT_LABEL, GRPC_PORT, SERVICE_PORT};

/// The one that clients use. Two ports, one listener: a gateway that is told `h2c` speaks HTTP/2 to it, as gRPC asks.
/// Where tasks live in one pod, a client stays with the pod it came to.
pub(super) fn service(identity: &Identity, spec: &AgentSpec) -> Planned {
    let affinity = if lifetime(spec) == Lifetime::Database { "None" } else { "ClientIP" };
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "targetPort": A2A_PORT, "protocol": "TCP", "appProtocol": protocol});
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(&identity.name),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": {AGENT_LABEL: identity.name},
            "sessionAffinity": affinity,
            "ports": [port("http", SERVICE_PORT, "http"), port("grpc", GRPC_PORT, "kubernetes.io/h2c")],
        },
    });
    Planned::new(ChildKind::Service, &identity.name, body)
}

/// The one that other agents' sidecars resolve: without an address of its own its name has the address of each ready
/// pod, so that long connections do not all end at one.
pub(super) fn peers(identity: &Identity) -> Planned {
    let name = names::peers_service(&identity.name);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(&name),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": {AGENT_LABEL: identity.name},
            "ports": [{"name": "http", "port": A2A_PORT, "targetPort": A2A_PORT, "protocol": "TCP", "appProtocol": "http"}],
        },
    });
    Planned::new(ChildKind::Service, name, body)
}
