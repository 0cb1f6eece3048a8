//! The Services under which clients and other agents reach the Agent.

use outrigger_crds::AgentSpec;
use outrigger_protocol::config::A2A_PORT;
use serde_json::{Value, json};

use super::identity::Identity;
use super::store::{Lifetime, lifetime};
use super::{ChildKind, Planned};
use crate::names::{self, GRPC_PORT, SERVICE_PORT};

/// The one that clients use. Two ports, one listener: a gateway that is told `h2c` speaks HTTP/2 to it, as gRPC asks.
/// Where tasks live in one pod, a client stays with the pod it came to.
pub(super) fn service(identity: &Identity, spec: &AgentSpec) -> Planned {
    let affinity = if lifetime(spec) == Lifetime::Database { "None" } else { "ClientIP" };
    let ports = [port("http", SERVICE_PORT, "http"), port("grpc", GRPC_PORT, "kubernetes.io/h2c")];
    front(identity, affinity, &ports)
}

/// A Service with an address in the cluster, under the name of what it belongs to.
pub(super) fn front(identity: &Identity, affinity: &str, ports: &[Value]) -> Planned {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(&identity.name),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": identity.selector(),
            "sessionAffinity": affinity,
            "ports": ports,
        },
    });
    Planned::new(ChildKind::Service, &identity.name, body)
}

/// A port of a Service; the sidecar has one listener for all of them.
pub(super) fn port(name: &str, port: u16, protocol: &str) -> Value {
    json!({"name": name, "port": port, "targetPort": A2A_PORT, "protocol": "TCP", "appProtocol": protocol})
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
            "selector": identity.selector(),
            "ports": [port("http", A2A_PORT, "http")],
        },
    });
    Planned::new(ChildKind::Service, name, body)
}
