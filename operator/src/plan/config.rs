//! The two documents that a pod's sidecar reads, and their `ConfigMap`s.

use outrigger_crds::{AgentSpec, duration};
use outrigger_protocol::config::{
    AgentRef, Boot, CONFIG_VERSION, Drain, Era, Limits, Reach, Runtime, SHIM_SOCKET, Server, SkillMount, TOOLS_DIR,
};
use serde_json::json;

use super::identity::Identity;
use super::{AgentInput, ChildKind, PlanError, Planned, store};
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
        for (slot, name, value) in [
            (&mut limits.turn_timeout_ms, "turnTimeout", &given.turn_timeout),
            (&mut limits.stream_idle_timeout_ms, "streamIdleTimeout", &given.stream_idle_timeout),
            (&mut limits.async_idle_timeout_ms, "asyncIdleTimeout", &given.async_idle_timeout),
            (&mut limits.async_timeout_ms, "asyncTimeout", &given.async_timeout),
            (&mut limits.wait_timeout_ms, "waitTimeout", &given.wait_timeout),
            (&mut limits.heartbeat_ms, "heartbeat", &given.heartbeat),
            (&mut limits.queue_timeout_ms, "queueTimeout", &given.queue_timeout),
        ] {
            set_millis(slot, &format!("spec.limits.{name}"), value.as_ref())?;
        }
        for (slot, value) in [
            (&mut limits.max_concurrent_turns, given.max_concurrent_turns),
            (&mut limits.max_queued_turns, given.max_queued_turns),
            (&mut limits.max_open_tasks_per_caller, given.max_open_tasks_per_caller),
            (&mut limits.max_tasks_per_caller, given.max_tasks_per_caller),
            (&mut limits.max_streams_per_caller, given.max_streams_per_caller),
            (&mut limits.max_streams_per_task, given.max_streams_per_task),
            (&mut limits.max_requests_per_second, given.max_requests_per_second),
            (&mut limits.request_burst, given.request_burst),
            (&mut limits.max_push_configs, given.max_push_configs),
        ] {
            set(slot, value.map(i64::from));
        }
        for (slot, value) in [
            (&mut limits.max_request_bytes, given.max_request_bytes),
            (&mut limits.max_answer_bytes, given.max_answer_bytes),
            (&mut limits.max_task_bytes, given.max_task_bytes),
        ] {
            set(slot, value);
        }
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
    runtime: Runtime,
    grace_seconds: u32,
) -> Result<String, PlanError> {
    let servers: Vec<Server> = input
        .servers
        .iter()
        .map(|server| Server {
            name: server.name.into(),
            reach: Reach::Stdio {
                container: names::tool_container(server.name),
                socket: format!("{TOOLS_DIR}/{}/{SHIM_SOCKET}", server.name),
            },
            required: server.required,
            process: server.process.clone(),
            era: Era::Auto,
        })
        .collect();
    let mut containers = vec![names::AGENT_CONTAINER.to_owned()];
    containers.extend(servers.iter().filter_map(|s| s.container().map(str::to_owned)));
    let boot = Boot {
        version: CONFIG_VERSION,
        agent: AgentRef { name: identity.name.clone(), namespace: identity.namespace.clone() },
        runtime,
        containers,
        servers,
        skills: input
            .agent
            .spec
            .skills
            .iter()
            .map(|s| SkillMount { name: s.name.clone(), required: s.required })
            .collect(),
        store: store::boot(&input.agent.spec, identity),
        drain: Drain { token: identity.drain_token(), grace_seconds },
    };
    text(&boot)
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
