//! Status of an `MCPServer`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_crds::{MAX_TOOL_NAMES, MCPServer, MCPServerStatus, ServerProtocol, ServerTools};
use outrigger_protocol::mcp::is_handshake_revision;
use outrigger_protocol::status::ServerStatus;
use serde_json::json;

use super::agent::Held;
use super::pods::{PodView, Problem, join, server_message};
use super::{Said, conditions, count};
use crate::hash;
use crate::names::tool_container;
use crate::plan::{self, Place, ServerError};

/// Longest `lastError`, in characters.
const MAX_LAST_ERROR: usize = 1000;

/// All that a status is made from.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What is wrong with the manifest.
    pub error: Option<ServerError>,
    /// Why a Standalone server's objects could not be brought to the cluster.
    pub held: Option<Held>,
    /// Agents that use it.
    pub agents: usize,
    /// Pods that these Agents want, all together.
    pub wanted: i32,
    /// Pods of these Agents; of a Standalone server its own.
    pub pods: Vec<PodView>,
    /// Deployment of a Standalone server.
    pub deployment: Option<Arc<Deployment>>,
    /// Digest of the live document of a Standalone server, if it has one.
    pub live_digest: Option<String>,
}

/// A pod that has the server, and what it says of it.
type Instance<'a> = (&'a PodView, Option<&'a ServerStatus>);

/// The status of `server` after `seen`.
pub fn status(server: &MCPServer, seen: &Seen, now: &Time) -> MCPServerStatus {
    let name = server.metadata.name.clone().unwrap_or_default();
    let place = plan::place(&server.spec);
    let previous = server.status.clone().unwrap_or_default();
    let container = tool_container(&name);
    let mut instances: Vec<Instance<'_>> = seen
        .pods
        .iter()
        .filter(|p| !p.is_leaving())
        .map(|p| (p, p.says().and_then(|s| s.servers.iter().find(|s| s.name == name))))
        .filter(|(p, said)| match place {
            Place::InPod => p.has_container(&container),
            Place::Standalone => true,
            Place::Remote => said.is_some(),
        })
        .collect();
    instances.sort_by_key(|(p, _)| (std::cmp::Reverse(p.pod.metadata.creation_timestamp.clone()), p.name().to_owned()));
    let ready = instances.iter().filter(|(_, s)| s.is_some_and(|s| s.part.ready)).count();
    let newest = instances.iter().filter_map(|(_, s)| *s).find(|s| s.part.ready);
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    let said =
        vec![("Accepted", accepted(seen)), ("Ready", is_ready(server, seen, place, &container, &instances, ready))];
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let of_deployment = seen.deployment.as_deref().and_then(|d| d.status.as_ref());
    MCPServerStatus {
        observed_generation: server.metadata.generation,
        agents: number(seen.agents),
        replicas: of_deployment.and_then(|s| s.replicas).unwrap_or_default(),
        ready_replicas: of_deployment.and_then(|s| s.ready_replicas).unwrap_or_default(),
        selector: (place == Place::Standalone).then(|| plan::server_selector(&name)),
        instances: number(instances.len()),
        ready_instances: number(ready),
        protocol_version: newest.and_then(|s| text(&s.protocol_version)).or(previous.protocol_version),
        protocol: newest.and_then(|s| protocol(s, previous.protocol.as_ref(), now)).or(previous.protocol),
        server_info: newest.and_then(|s| text(&s.server_info)).or(previous.server_info),
        tools: newest.map(tools).or(previous.tools),
        restarts: restarts(&instances),
        last_error: instances.iter().filter_map(|(_, s)| *s).find_map(last_error).or(previous.last_error),
        conditions: conditions(&previous.conditions, server.metadata.generation, now, said),
    }
}

/// The era as it was found out; when it was first seen stays while it stays.
fn protocol(server: &ServerStatus, previous: Option<&ServerProtocol>, now: &Time) -> Option<ServerProtocol> {
    let version = Some(&server.protocol_version).filter(|v| !v.is_empty())?;
    let era = match server.era.as_str() {
        "" if is_handshake_revision(version) => "legacy",
        "" => "modern",
        era => era,
    };
    let versions = if server.versions.is_empty() { vec![version.clone()] } else { server.versions.clone() };
    let found = ServerProtocol { era: era.into(), versions, probed_at: Some(now.clone()) };
    let same = previous.filter(|p| p.era == found.era && p.versions == found.versions);
    Some(same.cloned().unwrap_or(found))
}

fn tools(server: &ServerStatus) -> ServerTools {
    ServerTools {
        count: i32::try_from(server.tools.len()).unwrap_or(i32::MAX),
        names: server.tools.iter().take(MAX_TOOL_NAMES).cloned().collect(),
        digest: (!server.tool_digests.is_empty()).then(|| hash::hex(json!(server.tool_digests).to_string().as_bytes())),
        digests: server.tool_digests.clone(),
    }
}

fn restarts(instances: &[Instance<'_>]) -> i64 {
    let crashes = instances.iter().filter_map(|(_, s)| *s).fold(0_u64, |sum, s| sum.saturating_add(s.crashes));
    i64::try_from(crashes).unwrap_or(i64::MAX)
}

fn last_error(server: &ServerStatus) -> Option<String> {
    let text = if server.part.ready || server.part.message.is_empty() {
        server.last_exit.clone()
    } else {
        join(&server.part.reason, &server.part.message)
    };
    (!text.is_empty()).then(|| text.chars().take(MAX_LAST_ERROR).collect())
}

fn uses(agents: usize) -> String {
    if agents == 1 { "1 Agent uses it".into() } else { format!("{agents} Agents use it") }
}

fn accepted(seen: &Seen) -> Said {
    if let Some(error) = &seen.error {
        return Said::no(error.reason(), error.to_string());
    }
    match &seen.held {
        Some(held) if held.refused => Said::no(&held.reason, &held.message),
        _ => Said::yes("Accepted", "the manifest makes sense"),
    }
}

fn is_ready(
    server: &MCPServer,
    seen: &Seen,
    place: Place,
    container: &str,
    instances: &[Instance<'_>],
    ready: usize,
) -> Said {
    if let Some(error) = &seen.error {
        return Said::no(error.reason(), error.to_string());
    }
    if let Some(held) = &seen.held {
        return Said::no(&held.reason, &held.message);
    }
    let standalone = place == Place::Standalone;
    if standalone && server.spec.replicas == 0 {
        return Said::yes("ScaledToZero", "spec.replicas is 0: no pod is wanted");
    }
    if !standalone && seen.agents == 0 {
        return Said::yes("NotUsed", "no Agent uses it, so it runs nowhere");
    }
    if !standalone && seen.wanted == 0 && instances.is_empty() {
        return Said::yes("ScaledToZero", "the Agents that use it want no pod");
    }
    if standalone && let Some(problem) = seen.deployment.as_deref().and_then(pods_refused) {
        return Said::no(problem.reason, problem.message);
    }
    if instances.is_empty() {
        let whose = if standalone { "there is no pod of it yet" } else { "no pod has it yet" };
        return Said::no("NoInstances", format!("{whose}; {}", uses(seen.agents)));
    }
    let summary = format!("{ready} of {} ready", count(instances.len(), "instance"));
    let wanted = if standalone { usize::try_from(server.spec.replicas).unwrap_or_default() } else { 0 };
    if ready >= instances.len().max(wanted) || (standalone && ready >= wanted) {
        return Said::yes("InstancesReady", summary);
    }
    for (pod, said) in instances {
        if said.is_some_and(|s| s.part.ready) {
            continue;
        }
        // Of a pod of its own every part is the server's business.
        let problem = pod.container_problem(container).or_else(|| pod.problem().filter(|_| standalone));
        if let Some(problem) = problem {
            return Said::no(problem.reason, format!("{}; {summary}", problem.message));
        }
        if let Some(said) = said {
            return Said::no("ToolNotReady", format!("{}; {summary}", server_message(pod.name(), said)));
        }
    }
    Said::no("InstancesStarting", summary)
}

fn pods_refused(deployment: &Deployment) -> Option<Problem> {
    let conditions = deployment.status.as_ref()?.conditions.iter().flatten();
    let failure = conditions.into_iter().find(|c| c.type_ == "ReplicaFailure" && c.status == "True")?;
    Some(super::pods::refused("the server's", failure.message.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use outrigger_protocol::status::{CardStatus, ConfigStatus, ControlStatus, PartStatus, PodPhase, PodStatus};
    use serde_json::Value;

    use super::*;

    fn server(spec: &Value) -> MCPServer {
        let manifest = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "MCPServer",
            "metadata": {"name": "time", "namespace": "shop", "generation": 1}, "spec": spec});
        serde_json::from_value(manifest).unwrap()
    }

    fn standalone(replicas: i32) -> MCPServer {
        server(
            &json!({"transport": {"stdio": {}}, "placement": "Standalone", "replicas": replicas, "image": "i", "command": ["c"]}),
        )
    }

    fn now() -> Time {
        Time("2026-01-01T00:00:00Z".parse().unwrap())
    }

    fn said(ready: bool, message: &str, crashes: u64) -> ServerStatus {
        ServerStatus {
            name: "time".into(),
            part: PartStatus { ready, reason: String::new(), message: message.into() },
            protocol_version: "2025-11-25".into(),
            tools: vec!["now".into()],
            crashes,
            ..ServerStatus::default()
        }
    }

    fn pod(name: &str, said: Option<ServerStatus>) -> PodView {
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "status": {"phase": "Running"}})).unwrap();
        let fact = said.map(|server| {
            Ok(Arc::new(PodStatus {
                version: "0".into(),
                phase: PodPhase::Ready,
                config: ConfigStatus::default(),
                card: CardStatus::default(),
                agent: PartStatus { ready: true, ..PartStatus::default() },
                servers: vec![server],
                skills: vec![],
                store: PartStatus::default(),
                interfaces: vec![],
                push_dead_letters: 0,
                agent_exposed: false,
                control: ControlStatus::default(),
            }))
        });
        PodView { pod: Arc::new(pod), fact }
    }

    fn ready(server: &MCPServer, seen: &Seen) -> (String, String, String) {
        let status = status(server, seen, &now());
        let c = super::super::find(&status.conditions, "Ready").unwrap();
        (c.status.clone(), c.reason.clone(), c.message.clone())
    }

    #[test]
    fn a_standalone_server_needs_no_agent() {
        let mut seen = Seen { pods: vec![pod("a", Some(said(true, "", 0))), pod("b", None)], ..Seen::default() };
        let (yes, reason, message) = ready(&standalone(1), &seen);
        assert_eq!(
            (yes.as_str(), reason.as_str(), message.as_str()),
            ("True", "InstancesReady", "1 of 2 instances ready")
        );
        assert_eq!(ready(&standalone(2), &seen).1, "InstancesStarting");
        seen.pods.push(pod("c", Some(said(false, "it does not start", 3))));
        assert_eq!(ready(&standalone(3), &seen).1, "ToolNotReady");
        let status = status(&standalone(3), &seen, &now());
        assert_eq!((status.restarts, status.last_error.as_deref()), (3, Some("it does not start")));
        assert_eq!(status.selector.as_deref(), Some("outrigger.dev/mcp-server=time"));
        assert_eq!(ready(&standalone(0), &Seen::default()).1, "ScaledToZero");
        let held = Held { reason: "IssuerUnknown".into(), message: "m".into(), refused: false };
        let held = Seen { held: Some(held), ..seen };
        assert_eq!(ready(&standalone(1), &held).1, "IssuerUnknown");
    }

    #[test]
    fn quota_and_policy_are_told() {
        let deployment = json!({"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: x"}]}});
        let seen = Seen { deployment: Some(Arc::new(serde_json::from_value(deployment).unwrap())), ..Seen::default() };
        assert_eq!(ready(&standalone(1), &seen).1, "QuotaExceeded");
    }

    #[test]
    fn a_remote_server_is_as_the_pods_that_use_it_say() {
        let remote = server(&json!({"transport": {"remote": {"url": "https://x/"}}}));
        assert_eq!(ready(&remote, &Seen::default()).1, "NotUsed");
        let pods = vec![pod("a", Some(said(true, "", 0))), pod("b", None)];
        let seen = Seen { agents: 1, wanted: 2, pods, ..Seen::default() };
        assert_eq!(ready(&remote, &seen).2, "1 of 1 instance ready");
    }

    #[test]
    fn the_time_of_a_probe_stays_while_its_result_stays() {
        let seen = Seen { pods: vec![pod("a", Some(said(true, "", 0)))], ..Seen::default() };
        let first = status(&standalone(1), &seen, &now());
        assert_eq!(first.protocol.as_ref().unwrap().era, "legacy");
        let later = Time("2026-01-02T00:00:00Z".parse().unwrap());
        let again = MCPServer { status: Some(first.clone()), ..standalone(1) };
        assert_eq!(status(&again, &seen, &later), first, "nothing to write");
    }
}
