//! Names that other programs and people rely on: labels, annotations, the field manager.

use std::collections::BTreeMap;

/// Field manager of every write; the owner of our fields in `metadata.managedFields`.
pub const FIELD_MANAGER: &str = "outrigger";
/// Label with the name of the Agent; the one label of every selector.
pub const AGENT_LABEL: &str = "outrigger.dev/agent";
/// Label with the name of the `MCPServer` whose own pods and objects they are.
pub const SERVER_LABEL: &str = "outrigger.dev/mcp-server";
/// Label with the name of the Skill.
pub const SKILL_LABEL: &str = "outrigger.dev/skill";
/// Label of the `ConfigMap`s that hold a document for running pods.
pub const DOCUMENT_LABEL: &str = "outrigger.dev/document";
/// Value of [`DOCUMENT_LABEL`] for live documents.
pub const LIVE_DOCUMENT: &str = "live";
/// Label by which our objects are cached and found.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`].
pub const MANAGED_BY: &str = "outrigger";
/// Annotation with the hash of the plan that an object was last written from.
pub const PLAN_ANNOTATION: &str = "outrigger.dev/plan";
/// Name of the user's container that gets the turns.
pub const AGENT_CONTAINER: &str = "agent";
/// Name of the sidecar's container.
pub const SIDECAR_CONTAINER: &str = "outrigger";
/// Name of the init container that brings the shim.
pub const INSTALL_CONTAINER: &str = "outrigger-install";
/// Port of the Service for everything over HTTP.
pub const SERVICE_PORT: u16 = 8080;
/// Port of the Service for gRPC.
pub const GRPC_PORT: u16 = 8081;
/// Group that owns sockets, token and skills in a pod, unless the template names another.
pub const FS_GROUP: i64 = 65532;
/// User of the sidecar.
pub const SIDECAR_USER: i64 = 65532;

/// Longest name of a volume or container.
const MAX_LABEL: usize = 63;

/// Container of an `MCPServer` in a pod.
pub fn tool_container(server: &str) -> String {
    format!("tool-{server}")
}

/// Name of the objects of a Standalone `MCPServer`.
pub fn server_objects(server: &str) -> String {
    format!("{server}-mcp")
}

/// Who an Agent's sidecar is in the token of its ServiceAccount.
pub fn subject(namespace: &str, agent: &str) -> String {
    format!("system:serviceaccount:{namespace}:{agent}")
}

/// Service of an Agent that other agents resolve: one address per ready pod.
pub fn peers_service(agent: &str) -> String {
    format!("{agent}-peers")
}

/// `ConfigMap` of the live document; `objects` is the name of the ServiceAccount too.
pub fn live_document(objects: &str) -> String {
    format!("{objects}-live")
}

/// The name behind that of a `ConfigMap` of a live document.
pub fn of_live_document(config_map: &str) -> Option<&str> {
    config_map.strip_suffix("-live")
}

/// Name of the `ConfigMap` of a Skill.
pub fn skill_config_map(skill: &str) -> String {
    format!("{skill}-skill")
}

/// `name` where it fits a DNS label, else its beginning and a hash of the whole.
pub fn bounded(name: &str) -> String {
    if name.len() <= MAX_LABEL { name.into() } else { hashed(name) }
}

/// The beginning of `name` and a hash of the whole; always fits a DNS label.
pub fn hashed(name: &str) -> String {
    let hash = crate::hash::short(name.as_bytes(), 8);
    let head: String = name.chars().take(MAX_LABEL - 9).collect();
    format!("{}-{hash}", head.trim_end_matches('-'))
}

/// Labels of every object of an Agent, its pods included.
pub fn agent_labels(agent: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name", agent.into()),
        ("app.kubernetes.io/instance", agent.into()),
        ("app.kubernetes.io/component", "agent".into()),
        ("app.kubernetes.io/part-of", "outrigger".into()),
        (MANAGED_BY_LABEL, MANAGED_BY.into()),
        (AGENT_LABEL, agent.into()),
    ])
}

/// Labels of every object of a Standalone `MCPServer`, its pods included.
pub fn server_labels(server: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name", server.into()),
        ("app.kubernetes.io/instance", server.into()),
        ("app.kubernetes.io/component", "mcp-server".into()),
        ("app.kubernetes.io/part-of", "outrigger".into()),
        (MANAGED_BY_LABEL, MANAGED_BY.into()),
        (SERVER_LABEL, server.into()),
    ])
}

/// Labels of the `ConfigMap` of a Skill.
pub fn skill_labels(skill: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name", skill.into()),
        ("app.kubernetes.io/instance", skill.into()),
        ("app.kubernetes.io/component", "skill".into()),
        ("app.kubernetes.io/part-of", "outrigger".into()),
        (MANAGED_BY_LABEL, MANAGED_BY.into()),
        (SKILL_LABEL, skill.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_labels_and_differ() {
        assert_eq!(bounded("outrigger-tool-time"), "outrigger-tool-time");
        let a = bounded(&format!("outrigger-tool-{}a", "x".repeat(60)));
        let b = bounded(&format!("outrigger-tool-{}b", "x".repeat(60)));
        assert_ne!(a, b);
        assert!(a.len() <= 63 && b.len() <= 63);
        assert!(!hashed(&format!("{}-{}", "x".repeat(53), "y".repeat(20))).contains("--"));
    }
}
