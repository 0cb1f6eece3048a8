//! Status of an Agent.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_crds::{Agent, AgentStatus, CardDigest, MAX_TOOL_NAMES, ToolsStatus};
use outrigger_protocol::status::PodStatus;

use super::pods::{PodView, Problem, refused, server_message};
use super::{Said, a2a, conditions, control, count};
use crate::plan::{self, Source};

/// A part of the Agent that is not there or not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the `MCPServer` or Skill.
    pub name: String,
    /// Whether the Agent needs it.
    pub required: bool,
    /// One word in `CamelCase`.
    pub reason: &'static str,
    /// What to do.
    pub message: String,
}

/// Why the manifest is not what the cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// One word in `CamelCase`.
    pub reason: String,
    /// What to do.
    pub message: String,
    /// Whether the manifest itself is at fault.
    pub refused: bool,
}

/// All that a status is made from.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Why the manifest could not be brought to the cluster.
    pub held: Option<Held>,
    /// Servers that are missing or not accepted.
    pub missing_servers: Vec<Missing>,
    /// Skills that are missing or not accepted.
    pub missing_skills: Vec<Missing>,
    /// Peers that do not exist, as `namespace/name`.
    pub missing_peers: Vec<String>,
    /// Whether there is a peer of which nobody can tell yet.
    pub peers_not_known_yet: bool,
    /// Peers in namespaces that the operator does not watch.
    pub unwatched_peers: Vec<String>,
    /// Skills whose newest content is refused while an older one is published.
    pub stale_skills: Vec<Missing>,
    /// The Deployment.
    pub deployment: Option<std::sync::Arc<Deployment>>,
    /// Pods of the Agent.
    pub pods: Vec<PodView>,
    /// Digest of what the manifest says of the card, if there is a plan.
    pub card_digest: Option<String>,
    /// Digest of the live document, if there is a plan.
    pub live_digest: Option<String>,
    /// Hash of the planned Deployment, if there is a plan; the Deployment carries the one it was written from.
    pub plan_hash: Option<String>,
    /// A2A endpoint.
    pub url: Option<String>,
    /// Secrets and `ConfigMap`s of the user's that the sidecar mounts, if there is a plan.
    pub sources: Vec<Source>,
}

/// The status of `agent` after `seen`.
pub fn status(agent: &Agent, seen: &Seen, now: &Time) -> AgentStatus {
    let name = agent.metadata.name.clone().unwrap_or_default();
    let previous = agent.status.clone().unwrap_or_default();
    let counts = Counts::of(agent, seen);
    let mut pods: Vec<&PodView> = seen.pods.iter().filter(|p| !p.is_leaving()).collect();
    // Ready ones first, then newest: what they say counts most.
    pods.sort_by_key(|p| {
        (!p.is_ready(), std::cmp::Reverse(p.pod.metadata.creation_timestamp.clone()), p.name().to_owned())
    });
    let problem = worst(&pods);

    let said = vec![
        ("Accepted", accepted(seen)),
        ("Ready", ready(agent, seen, &counts, problem.as_ref())),
        ("Progressing", progressing(seen, &counts, problem.as_ref())),
        ("ToolsReady", tools_ready(agent, seen, &pods)),
        ("SkillsReady", skills_ready(agent, seen, &pods)),
        ("CardServed", card_served(agent, seen, &pods)),
        ("TaskStoreReady", a2a::task_store_ready(agent, &pods)),
        ("TaskStoreShared", a2a::task_store_shared(agent)),
        ("TaskStoreDurable", a2a::task_store_durable(agent)),
        ("A2AConformant", a2a::conformant(agent, &pods)),
        ("AccessEnforced", a2a::access_enforced(agent, &pods)),
        ("PeersFound", a2a::peers_found(agent, seen, super::find(&previous.conditions, "PeersFound"))),
        ("PushDelivered", a2a::push_delivered(agent, &pods)),
        ("ControlConnected", control::connected(agent, &pods)),
    ];
    AgentStatus {
        observed_generation: agent.metadata.generation,
        replicas: counts.replicas,
        ready_replicas: counts.ready,
        selector: Some(plan::selector(&name)),
        url: seen.url.clone().or(previous.url),
        card: seen.card_digest.clone().map(|digest| CardDigest { digest }).or(previous.card),
        tools: tools(agent, &pods).or(previous.tools.filter(|_| !agent.spec.mcp_servers.is_empty())),
        sidecar_version: pods.iter().find_map(|p| p.says()).map(|s| s.version.clone()).or(previous.sidecar_version),
        conditions: conditions(&previous.conditions, agent.metadata.generation, now, said),
    }
}

struct Counts {
    desired: i32,
    replicas: i32,
    ready: i32,
    updated: i32,
    /// The Deployment's controller has seen its newest specification.
    observed: bool,
    exists: bool,
}

impl Counts {
    fn of(agent: &Agent, seen: &Seen) -> Self {
        let deployment = seen.deployment.as_deref();
        let status = deployment.and_then(|d| d.status.as_ref());
        let number = |value: Option<i32>| value.unwrap_or_default();
        Self {
            desired: agent.spec.replicas,
            replicas: number(status.and_then(|s| s.replicas)),
            ready: number(status.and_then(|s| s.ready_replicas)),
            updated: number(status.and_then(|s| s.updated_replicas)),
            observed: deployment.is_some_and(|d| {
                let hash = d.metadata.annotations.as_ref().and_then(|a| a.get(crate::names::PLAN_ANNOTATION));
                if seen.plan_hash.is_some() && seen.plan_hash.as_ref() != hash {
                    return false;
                }
                d.status.as_ref().and_then(|s| s.observed_generation) >= d.metadata.generation
                    && d.spec.as_ref().and_then(|s| s.replicas) == Some(agent.spec.replicas)
            }),
            exists: deployment.is_some(),
        }
    }

    fn rolled_out(&self) -> bool {
        self.observed && self.updated >= self.desired && self.replicas == self.updated && self.ready >= self.desired
    }
}

fn worst(pods: &[&PodView]) -> Option<Problem> {
    // The newest pod that has something to say: older ones speak of older templates.
    let mut unready: Vec<_> = pods.iter().filter(|p| !p.is_ready()).collect();
    unready.sort_by_key(|p| std::cmp::Reverse(p.pod.metadata.creation_timestamp.clone()));
    unready.iter().find_map(|p| p.problem())
}

fn deployment_condition<'a>(seen: &'a Seen, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let status = seen.deployment.as_deref()?.status.as_ref()?;
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == kind)?;
    let text = |t: &'a Option<String>| t.as_deref().unwrap_or_default();
    Some((condition.status.as_str(), text(&condition.reason), text(&condition.message)))
}

fn pods_refused(seen: &Seen) -> Option<Problem> {
    let (_, _, message) = deployment_condition(seen, "ReplicaFailure").filter(|(status, ..)| *status == "True")?;
    Some(refused("the Agent's", message))
}

fn accepted(seen: &Seen) -> Said {
    match &seen.held {
        Some(held) if held.refused => Said::no(&held.reason, &held.message),
        _ => Said::yes("Accepted", "the manifest makes sense"),
    }
}

/// Whether enough pods serve and nothing stands in the way of the manifest.
fn ready(agent: &Agent, seen: &Seen, counts: &Counts, problem: Option<&Problem>) -> Said {
    let still = match counts.ready {
        0 => String::new(),
        1 => "; 1 pod still serves as last accepted".into(),
        more => format!("; {more} pods still serve as last accepted"),
    };
    if let Some(held) = &seen.held {
        return Said::no(&held.reason, format!("{}{still}", held.message));
    }
    if let Some(missing) = seen.missing_servers.iter().chain(&seen.missing_skills).find(|m| m.required) {
        return Said::no(missing.reason, format!("{}{still}", missing.message));
    }
    if counts.desired == 0 {
        return Said::yes("ScaledToZero", "spec.replicas is 0: no pod is wanted");
    }
    let summary = format!("{} of {} pods are ready", counts.ready, counts.desired);
    let stuck = deployment_condition(seen, "Progressing").is_some_and(|(status, ..)| status == "False");
    if counts.exists && counts.ready >= counts.desired && !stuck {
        return Said::yes("PodsReady", summary);
    }
    let refused = pods_refused(seen);
    match refused.as_ref().or(problem) {
        Some(problem) => Said::no(problem.reason, format!("{}; {summary}", problem.message)),
        None if stuck => Said::no("ProgressDeadlineExceeded", format!("the rollout is stuck; {summary}")),
        None => Said::no(
            "PodsStarting",
            format!(
                "{summary}: Agent {} is starting{}",
                agent.metadata.name.as_deref().unwrap_or_default(),
                waiting(seen)
            ),
        ),
    }
}

/// What a pod waits for that nobody but the kubelet can see: the Secrets and `ConfigMap`s that the Agent names.
fn waiting(seen: &Seen) -> String {
    let Some(pod) = seen.pods.iter().find(|p| !p.is_leaving() && p.waits_for_volumes()) else { return String::new() };
    if seen.sources.is_empty() {
        return String::new();
    }
    let names: BTreeSet<_> = seen.sources.iter().map(|s| format!("{} {}", s.kind, s.name)).collect();
    let names: Vec<_> = names.into_iter().collect();
    format!("; pod {} waits for its volumes: {} must exist with the keys that are named", pod.name(), names.join(", "))
}

fn progressing(seen: &Seen, counts: &Counts, problem: Option<&Problem>) -> Said {
    if let Some(held) = &seen.held {
        return Said::no(&held.reason, "changes are held back until the manifest is accepted");
    }
    if let Some(missing) = seen.missing_servers.iter().chain(&seen.missing_skills).find(|m| m.required) {
        return Said::no(missing.reason, format!("changes are held back: {}", missing.message));
    }
    if counts.rolled_out() {
        return Said::no("Complete", "every pod has the newest template and is ready");
    }
    let summary = format!("{} of {} pods have the newest template", counts.updated, counts.desired);
    let refused = pods_refused(seen);
    let problem = refused.as_ref().or(problem);
    let why = problem.map(|p| format!("; {}", p.message)).unwrap_or_default();
    if deployment_condition(seen, "Progressing").is_some_and(|(status, ..)| status == "False") && counts.observed {
        return Said::no(problem.map_or("ProgressDeadlineExceeded", |p| p.reason), format!("{summary}{why}"));
    }
    Said::yes("RollingOut", format!("{summary}{why}"))
}

pub(super) fn no_pods(agent: &Agent, pods: &[&PodView]) -> Said {
    if agent.spec.replicas == 0 {
        return Said::unknown("ScaledToZero", "no pod is wanted, so none can tell");
    }
    let unreachable = pods.iter().find_map(|p| Some((p.name(), p.fact.as_ref()?.as_ref().err()?)));
    match unreachable {
        Some((pod, why)) => {
            Said::unknown("SidecarUnreachable", format!("the sidecar of pod {pod} cannot be asked how it is: {why}"))
        }
        None => Said::unknown("NoPods", "no pod has reported yet"),
    }
}

fn tools_ready(agent: &Agent, seen: &Seen, pods: &[&PodView]) -> Said {
    if agent.spec.mcp_servers.is_empty() {
        return Said::yes("NoTools", "the Agent uses no MCPServer");
    }
    if let Some(missing) = seen.missing_servers.first() {
        return Said::no(missing.reason, &missing.message);
    }
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        reports += 1;
        for used in &agent.spec.mcp_servers {
            // A pod of an older template may not have the server; its successor will.
            if let Some(server) = status.servers.iter().find(|s| s.name == used.name && !s.part.ready) {
                let container = crate::names::tool_container(&used.name);
                if let Some(problem) = pod.container_problem(&container) {
                    return Said::no(problem.reason, format!("tool server {}: {}", used.name, problem.message));
                }
                return Said::no("ToolNotReady", server_message(pod.name(), server));
            }
        }
    }
    if reports == 0 {
        return no_pods(agent, pods);
    }
    let serves = |name: &str| pods.iter().filter_map(|p| p.says()).any(|s| s.servers.iter().any(|s| s.name == name));
    if let Some(used) = agent.spec.mcp_servers.iter().find(|u| !serves(&u.name)) {
        return Said::no("ToolNotReady", format!("tool server {} is in no pod yet", used.name));
    }
    Said::yes("AllReady", format!("{} ready", count(agent.spec.mcp_servers.len(), "tool server")))
}

fn skills_ready(agent: &Agent, seen: &Seen, pods: &[&PodView]) -> Said {
    if agent.spec.skills.is_empty() {
        return Said::yes("NoSkills", "the Agent uses no Skill");
    }
    if let Some(missing) = seen.missing_skills.iter().chain(&seen.stale_skills).next() {
        return Said::no(missing.reason, &missing.message);
    }
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        reports += 1;
        let bad = status.skills.iter().find(|s| !s.part.ready && agent.spec.skills.iter().any(|u| u.name == s.name));
        if let Some(skill) = bad {
            let why = if skill.part.message.is_empty() { &skill.part.reason } else { &skill.part.message };
            return Said::no("SkillNotReady", format!("skill {} is not in pod {}: {why}", skill.name, pod.name()));
        }
    }
    if reports == 0 {
        return no_pods(agent, pods);
    }
    Said::yes("AllReady", format!("{} ready", count(agent.spec.skills.len(), "skill")))
}

fn card_served(agent: &Agent, seen: &Seen, pods: &[&PodView]) -> Said {
    let reports: Vec<(&str, &PodStatus)> = pods.iter().filter_map(|p| Some((p.name(), p.says()?))).collect();
    if reports.is_empty() {
        return no_pods(agent, pods);
    }
    if let Some((pod, error)) = reports.iter().find_map(|(p, s)| Some((p, s.config.error.as_ref()?))) {
        return Said::no("ConfigRefused", format!("pod {pod} keeps its last good configuration: {error}"));
    }
    if let Some((pod, _)) = reports.iter().find(|(_, s)| s.card.digest.is_empty()) {
        return Said::no("CardNotServed", format!("pod {pod} serves no card yet"));
    }
    let behind = match &seen.live_digest {
        Some(digest) => reports.iter().filter(|(_, s)| s.config.digest != *digest).count(),
        None => 0,
    };
    if behind > 0 {
        let message = format!(
            "{behind} of {} still serve an older configuration: a changed ConfigMap takes up to about a minute to reach a pod",
            count(reports.len(), "pod")
        );
        return Said::no("ConfigPending", message);
    }
    Said::yes(
        "Served",
        format!(
            "{} the newest card",
            if reports.len() == 1 { "1 pod serves".into() } else { format!("{} pods serve", reports.len()) }
        ),
    )
}

/// Tools as the first pod that says so has them, in the order of the specification.
fn tools(agent: &Agent, pods: &[&PodView]) -> Option<ToolsStatus> {
    let status = pods.iter().find_map(|p| p.says().filter(|s| s.servers.iter().any(|s| !s.tools.is_empty())))?;
    let mut names = Vec::new();
    for used in &agent.spec.mcp_servers {
        let server = status.servers.iter().find(|s| s.name == used.name);
        names.extend(server.iter().flat_map(|s| &s.tools).map(|tool| format!("{}/{tool}", used.name)));
    }
    let count = i32::try_from(names.len()).unwrap_or(i32::MAX);
    names.truncate(MAX_TOOL_NAMES);
    Some(ToolsStatus { count, names })
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
