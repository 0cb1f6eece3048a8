//! The two documents that a pod's sidecar reads, and their `ConfigMap`s.

use outrigger_crds::{AgentSpec, HttpRuntime, duration};
use outrigger_protocol::config::{
    AgentRef, Boot, CONFIG_VERSION, Drain, Limits, Live, Runtime, SHIM_SOCKET, Server, SkillMount, Store, TOOLS_DIR,
};
use serde_json::{Value, json};

use super::identity::Identity;
use super::{AgentInput, ChildKind, PlanError, Planned};
use crate::names;

/// Milliseconds of a duration in a specification.
pub(super) fn millis(path: &str, text: &str) -> Result<u64, PlanError> {
    duration::parse(text).and_then(|d| u64::try_from(d.as_millis()).ok()).ok_or_else(|| PlanError::InvalidSpec {
        path: path.into(),
        message: format!("\"{text}\" is no duration between 1ms and a year: write 30s, 2m or 1h30m"),
    })
}

fn set<T: TryFrom<i64>>(slot: &mut T, value: Option<i64>) {
    if let Some(value) = value.and_then(|v| T::try_from(v).ok()) {
        *slot = value;
    }
}

fn set_millis(slot: &mut u64, path: &str, value: Option<&String>) -> Result<(), PlanError> {
    if let Some(text) = value {
        *slot = millis(path, text)?;
    }
    Ok(())
}

/// Bounds of the A2A side.
pub(super) fn limits(spec: &AgentSpec) -> Result<Limits, PlanError> {
    let mut limits = Limits::default();
    if let Some(given) = &spec.limits {
        set_millis(&mut limits.turn_timeout_ms, "spec.limits.turnTimeout", given.turn_timeout.as_ref())?;
        set_millis(&mut limits.queue_timeout_ms, "spec.limits.queueTimeout", given.queue_timeout.as_ref())?;
        set(&mut limits.max_concurrent_turns, given.max_concurrent_turns.map(i64::from));
        set(&mut limits.max_queued_turns, given.max_queued_turns.map(i64::from));
        set(&mut limits.max_request_bytes, given.max_request_bytes);
        set(&mut limits.max_answer_bytes, given.max_answer_bytes);
    }
    if let Some(given) = &spec.tasks {
        set(&mut limits.max_tasks, given.max.map(i64::from));
        set_millis(&mut limits.task_retention_ms, "spec.tasks.retention", given.retention.as_ref())?;
    }
    Ok(limits)
}

/// The boot document as text.
pub(super) fn boot(
    input: &AgentInput<'_>,
    identity: &Identity,
    http: &HttpRuntime,
    grace_seconds: u32,
) -> Result<String, PlanError> {
    let port = u16::try_from(http.port).map_err(|_| PlanError::InvalidSpec {
        path: "spec.runtime.http.port".into(),
        message: format!("{} is no port", http.port),
    })?;
    let servers: Vec<Server> = input
        .servers
        .iter()
        .map(|server| Server {
            name: server.name.into(),
            container: names::tool_container(server.name),
            socket: format!("{TOOLS_DIR}/{}/{SHIM_SOCKET}", server.name),
            required: server.required,
            process: server.process.clone(),
        })
        .collect();
    let mut containers = vec![names::AGENT_CONTAINER.to_owned()];
    containers.extend(servers.iter().map(|s| s.container.clone()));
    let boot = Boot {
        version: CONFIG_VERSION,
        agent: AgentRef { name: identity.name.clone(), namespace: identity.namespace.clone() },
        runtime: Runtime::Http { port, path: http.path.clone(), ready_path: http.ready_path.clone() },
        containers,
        servers,
        skills: input
            .agent
            .spec
            .skills
            .iter()
            .map(|s| SkillMount { name: s.name.clone(), required: s.required })
            .collect(),
        store: Store::Memory,
        drain: Drain { token: identity.drain_token(), grace_seconds },
    };
    text(&boot)
}

/// The live document as text.
pub(super) fn live(card: &Value, limits: Limits) -> String {
    json!(Live { limits, ..Live::new(card.clone()) }).to_string()
}

fn text<T: serde::Serialize>(document: &T) -> Result<String, PlanError> {
    serde_json::to_string(document)
        .map_err(|e| PlanError::InvalidSpec { path: "spec".into(), message: format!("cannot be rendered: {e}") })
}

/// Named by its content and immutable: a pod never sees the tools of a newer one.
pub(super) fn boot_config_map(identity: &Identity, name: &str, boot: &str) -> Planned {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(name),
        "immutable": true,
        "data": {"boot.json": boot},
    });
    Planned::new(ChildKind::ConfigMap, name, body)
}

/// Name of the live `ConfigMap`.
pub(super) fn live_name(identity: &Identity) -> String {
    format!("{}-live", identity.name)
}

/// Re-read by running pods.
pub(super) fn live_config_map(identity: &Identity, live: &str) -> Planned {
    let name = live_name(identity);
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(&name),
        "data": {"live.json": live},
    });
    Planned::new(ChildKind::ConfigMap, name, body)
}
