//! Status of an `MCPServer`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_crds::{MAX_TOOL_NAMES, MCPServer, MCPServerStatus, ServerTools};
use outrigger_protocol::status::ServerStatus;

use super::pods::{PodView, server_message};
use super::{Said, conditions, count};
use crate::names::tool_container;
use crate::plan::ServerError;

/// All that a status is made from.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What is wrong with the manifest.
    pub error: Option<ServerError>,
    /// Agents that use it.
    pub agents: usize,
    /// Pods that these Agents want, all together.
    pub wanted: i32,
    /// Pods of these Agents.
    pub pods: Vec<PodView>,
}

/// The status of `server` after `seen`.
pub fn status(server: &MCPServer, seen: &Seen, now: &Time) -> MCPServerStatus {
    let name = server.metadata.name.clone().unwrap_or_default();
    let previous = server.status.clone().unwrap_or_default();
    let container = tool_container(&name);
    let mut instances: Vec<(&PodView, Option<&ServerStatus>)> = seen
        .pods
        .iter()
        .filter(|p| !p.is_leaving() && p.has_container(&container))
        .map(|p| (p, p.says().and_then(|s| s.servers.iter().find(|s| s.name == name))))
        .collect();
    instances.sort_by_key(|(p, _)| (std::cmp::Reverse(p.pod.metadata.creation_timestamp.clone()), p.name().to_owned()));
    let ready = instances.iter().filter(|(_, s)| s.is_some_and(|s| s.part.ready)).count();
    let newest = instances.iter().filter_map(|(_, s)| *s).find(|s| s.part.ready);
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    let said = vec![("Accepted", accepted(seen)), ("Ready", is_ready(seen, &container, &instances, ready))];
    MCPServerStatus {
        observed_generation: server.metadata.generation,
        agents: i32::try_from(seen.agents).unwrap_or(i32::MAX),
        instances: i32::try_from(instances.len()).unwrap_or(i32::MAX),
        ready_instances: i32::try_from(ready).unwrap_or(i32::MAX),
        protocol_version: newest.and_then(|s| text(&s.protocol_version)).or(previous.protocol_version),
        server_info: newest.and_then(|s| text(&s.server_info)).or(previous.server_info),
        tools: newest
            .map(|s| ServerTools {
                count: i32::try_from(s.tools.len()).unwrap_or(i32::MAX),
                names: s.tools.iter().take(MAX_TOOL_NAMES).cloned().collect(),
                digest: None,
            })
            .or(previous.tools),
        conditions: conditions(&previous.conditions, server.metadata.generation, now, said),
        ..MCPServerStatus::default()
    }
}

fn uses(agents: usize) -> String {
    if agents == 1 { "1 Agent uses it".into() } else { format!("{agents} Agents use it") }
}

fn accepted(seen: &Seen) -> Said {
    match &seen.error {
        Some(error) => Said::no(error.reason(), error.to_string()),
        None => Said::yes("Accepted", "the manifest makes sense"),
    }
}

fn is_ready(seen: &Seen, container: &str, instances: &[(&PodView, Option<&ServerStatus>)], ready: usize) -> Said {
    if let Some(error) = &seen.error {
        return Said::no(error.reason(), error.to_string());
    }
    if seen.agents == 0 {
        return Said::yes("NotUsed", "no Agent uses it, so it runs nowhere");
    }
    if seen.wanted == 0 && instances.is_empty() {
        return Said::yes("ScaledToZero", "the Agents that use it want no pod");
    }
    if instances.is_empty() {
        return Said::no("NoInstances", format!("no pod has it yet; {}", uses(seen.agents)));
    }
    let summary = format!("{ready} of {} ready", count(instances.len(), "instance"));
    if ready == instances.len() {
        return Said::yes("InstancesReady", summary);
    }
    for (pod, server) in instances {
        if server.is_some_and(|s| s.part.ready) {
            continue;
        }
        if let Some(problem) = pod.container_problem(container) {
            return Said::no(problem.reason, format!("{}; {summary}", problem.message));
        }
        if let Some(server) = server {
            return Said::no("ToolNotReady", format!("{}; {summary}", server_message(pod.name(), server)));
        }
    }
    Said::no("InstancesStarting", summary)
}
