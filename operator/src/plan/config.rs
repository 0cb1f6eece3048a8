//! The two documents that a pod's sidecar reads, and their `ConfigMap`s.

use outrigger_crds::{AgentSpec, duration};
use outrigger_protocol::config::{
    AgentRef, Boot, CONFIG_VERSION, Drain, Limits, Reach, Runtime, SHIM_SOCKET, Server, SkillMount, Store, TOOLS_DIR,
};
use serde_json::json;

use super::identity::Identity;
use super::{AgentInput, ChildKind, PlanError, Planned, ServerInput, files, store};
use crate::names;
use crate::settings::Settings;

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
    let servers: Vec<Server> = input.servers.iter().map(|s| server(s, input.settings)).collect();
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

/// A server as the sidecar reaches it.
pub(super) fn server(input: &ServerInput<'_>, settings: &Settings) -> Server {
    let name = input.name;
    let container = || names::tool_container(name);
    let transport = &input.spec.transport;
    let reach = if let Some(remote) = &transport.remote {
        Reach::Remote {
            url: remote.url.clone(),
            headers_dir: remote.headers_from.as_ref().map(|_| files::server_headers(name).folder()),
            ca_file: remote.ca_from.as_ref().map(|_| files::server_ca(name).file()),
            allow: remote.allow.clone(),
        }
    } else if !input.here {
        Reach::Service { url: server_url(name, input.namespace, settings) }
    } else if let Some(http) = &transport.http {
        Reach::Http {
            container: container(),
            port: u16::try_from(http.port).unwrap_or_default(),
            path: http.path.clone(),
        }
    } else {
        Reach::Stdio { container: container(), socket: format!("{TOOLS_DIR}/{name}/{SHIM_SOCKET}") }
    };
    Server {
        name: name.into(),
        reach,
        // An outage elsewhere takes no pod down.
        required: input.required && input.here,
        process: input.checked.process.clone(),
        era: input.checked.era,
    }
}

/// Endpoint of a Standalone server.
pub(super) fn server_url(name: &str, namespace: &str, settings: &Settings) -> String {
    let host = super::live::host(&names::server_objects(name), namespace, &settings.cluster_domain);
    format!("http://{host}:{}/mcp/{name}", names::SERVICE_PORT)
}

/// The boot document of a Standalone server's pods.
pub(super) fn tools_boot(
    identity: &Identity,
    input: &ServerInput<'_>,
    settings: &Settings,
    grace_seconds: u32,
) -> Result<String, PlanError> {
    text(&Boot {
        version: CONFIG_VERSION,
        agent: AgentRef { name: identity.resource.clone(), namespace: identity.namespace.clone() },
        runtime: Runtime::Tools {},
        containers: vec![names::tool_container(input.name)],
        servers: vec![server(input, settings)],
        skills: Vec::new(),
        store: Store::Memory,
        drain: Drain { token: identity.drain_token(), grace_seconds },
    })
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
    names::live_document(&identity.name)
}

/// Re-read by running pods, and followed by the control API.
pub(super) fn live_config_map(identity: &Identity, live: &str) -> Planned {
    let name = live_name(identity);
    let mut metadata = identity.metadata(&name);
    metadata["labels"][names::DOCUMENT_LABEL] = json!(names::LIVE_DOCUMENT);
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"live.json": live},
    });
    Planned::new(ChildKind::ConfigMap, name, body)
}
