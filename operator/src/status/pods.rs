//! What keeps a pod from being ready, in words that name the container and what to do.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use outrigger_protocol::status::{PodPhase, PodStatus, ServerStatus};

use crate::facts::{Fact, tells};
use crate::names::{AGENT_CONTAINER, INSTALL_CONTAINER, SIDECAR_CONTAINER};

/// Longest part of a container's last words in a message.
const MAX_LAST_WORDS: usize = 300;

/// A pod and what it says of itself.
#[derive(Clone, Debug)]
pub struct PodView {
    /// The pod.
    pub pod: std::sync::Arc<Pod>,
    /// Its own words.
    pub fact: Option<Fact>,
}

/// Why a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One word in `CamelCase`.
    pub reason: &'static str,
    /// A sentence that names the part.
    pub message: String,
    /// The lower, the nearer to the cause.
    rank: u8,
}

impl Problem {
    /// A problem that is not one of a pod.
    pub(super) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, rank: 0 }
    }
}

/// Why the cluster makes no pods, by what the Deployment's `ReplicaFailure` says; `whose` they are, such as "the Agent's".
pub(super) fn refused(whose: &str, message: &str) -> Problem {
    let reason = if message.contains("exceeded quota") {
        "QuotaExceeded"
    } else if message.contains("violates PodSecurity") {
        "PodSecurityViolation"
    } else {
        "PodsRefused"
    };
    Problem::new(reason, format!("the cluster refuses {whose} pods: {message}"))
}

impl PodView {
    /// Name of the pod.
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it is on its way out, or done.
    pub fn is_leaving(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|s| s.phase.as_deref());
        self.pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// Whether the kubelet calls it ready.
    pub fn is_ready(&self) -> bool {
        let conditions = self.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
    }

    /// What it said of itself last.
    pub fn says(&self) -> Option<&PodStatus> {
        self.fact.as_ref().and_then(|f| f.as_ref().ok()).map(AsRef::as_ref)
    }

    /// Whether it has a container of this name.
    pub fn has_container(&self, name: &str) -> bool {
        let status = self.pod.status.as_ref();
        status.is_some_and(|s| s.container_statuses.iter().flatten().any(|c| c.name == name))
    }

    /// What keeps it from being ready.
    pub fn problem(&self) -> Option<Problem> {
        let unschedulable = self.unschedulable();
        let containers = self.containers().filter_map(|c| container(self.name(), c));
        let own = self.own_words();
        unschedulable.into_iter().chain(containers).chain(own).min_by_key(|p| p.rank)
    }

    /// Whether it has a node and waits for what its containers need before the first can start: volumes, mostly.
    pub fn waits_for_volumes(&self) -> bool {
        let conditions = || self.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let says = |kind: &str, status: &str| conditions().any(|c| c.type_ == kind && c.status == status);
        says("PodScheduled", "True") && says("PodReadyToStartContainers", "False")
    }

    /// What keeps one container from work.
    pub fn container_problem(&self, name: &str) -> Option<Problem> {
        self.containers().filter(|c| c.name == name).find_map(|c| container(self.name(), c))
    }

    fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        let status = self.pod.status.iter();
        status.flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()))
    }

    fn unschedulable(&self) -> Option<Problem> {
        let condition = self
            .pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        let why = condition.message.as_deref().unwrap_or("no node takes it");
        let message = format!("pod {} has no node: {why}", self.name());
        Some(Problem { reason: "Unschedulable", message, rank: 0 })
    }

    fn own_words(&self) -> Option<Problem> {
        let name = self.name();
        let status = match self.fact.as_ref()? {
            Ok(status) => status,
            Err(why) => {
                let message = format!("the sidecar of pod {name} cannot be asked how it is: {why}");
                return Some(Problem { reason: "SidecarUnreachable", message, rank: 50 });
            }
        };
        if let Some(skill) = status.skills.iter().find(|s| s.required && !s.part.ready) {
            let why = join(&skill.part.reason, &skill.part.message);
            let message = format!("skill {} is not in pod {name}: {why}", skill.name);
            return Some(Problem { reason: "SkillNotReady", message, rank: 20 });
        }
        if let Some(server) = status.servers.iter().find(|s| s.required && !s.part.ready) {
            return Some(Problem { reason: "ToolNotReady", message: server_message(name, server), rank: 21 });
        }
        if !status.store.ready && tells(&status.store) {
            let why = join(&status.store.reason, &status.store.message);
            let message = format!("the task store of pod {name} does not work: {why}");
            return Some(Problem { reason: "TaskStoreNotReady", message, rank: 19 });
        }
        if !status.agent.ready {
            let why = join(&status.agent.reason, &status.agent.message);
            let message = format!("the container agent of pod {name} does not answer: {why}");
            return Some(Problem { reason: "AgentNotAnswering", message, rank: 22 });
        }
        if let Some(error) = &status.config.error {
            let message = format!("pod {name} refused its configuration: {error}");
            return Some(Problem { reason: "ConfigRefused", message, rank: 23 });
        }
        (status.phase == PodPhase::Draining).then(|| Problem {
            reason: "Draining",
            message: format!("pod {name} takes no new work"),
            rank: 60,
        })
    }
}

/// Server, phase and reason, as they stand in conditions.
pub fn server_message(pod: &str, server: &ServerStatus) -> String {
    let mut text = format!("tool server {} is in phase {} in pod {pod}", server.name, server.phase.as_str());
    let why = join(&server.part.reason, &server.part.message);
    if !why.is_empty() {
        text = format!("{text}: {why}");
    }
    if !server.last_exit.is_empty() && !text.contains(&server.last_exit) {
        text = format!("{text}; its last process ended with {}", server.last_exit);
    }
    text
}

pub(super) fn join(reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (true, _) => message.into(),
        (false, true) => reason.into(),
        (false, false) => format!("{message} ({reason})"),
    }
}

/// Where the author of the manifest sets something for a container.
fn field(container: &str, path: &str) -> String {
    match container {
        SIDECAR_CONTAINER => format!("spec.sidecar.{path} of the Agent"),
        INSTALL_CONTAINER => format!("the chart's value for the install container's {path}"),
        _ => match container.strip_prefix("tool-") {
            Some(server) => format!("spec.{path} of MCPServer {server}"),
            None => format!("{path} of the container {container} in spec.template"),
        },
    }
}

fn pull_secrets(container: &str) -> String {
    match container {
        SIDECAR_CONTAINER | INSTALL_CONTAINER => {
            "the chart's values for the sidecar's image and its pull secrets".into()
        }
        _ => match container.strip_prefix("tool-") {
            Some(server) => format!("spec.image and spec.imagePullSecrets of MCPServer {server}"),
            None => "its image and imagePullSecrets in spec.template".into(),
        },
    }
}

fn container(pod: &str, status: &ContainerStatus) -> Option<Problem> {
    let name = status.name.as_str();
    let state = status.state.as_ref()?;
    // Later containers matter less: they may only wait for an earlier one.
    let rank = match name {
        INSTALL_CONTAINER => 1,
        SIDECAR_CONTAINER => 2,
        AGENT_CONTAINER => 4,
        _ => 3,
    };
    let problem = |reason, message| Some(Problem { reason, message, rank });
    if let Some(waiting) = &state.waiting {
        let why = waiting.message.as_deref().unwrap_or_default();
        match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "RegistryUnavailable" => {
                let image = &status.image;
                return problem(
                    "ImagePullFailed",
                    format!(
                        "container {name} of pod {pod}: image {image} cannot be pulled: {}; check {}",
                        cut(why),
                        pull_secrets(name)
                    ),
                );
            }
            "CreateContainerConfigError"
                if ["runAsNonRoot", "run as root", "non-root policy"].iter().any(|words| why.contains(words)) =>
            {
                return problem(
                    "RunsAsRoot",
                    format!(
                        "container {name} of pod {pod}: {}; set runAsUser to a number other than 0 in {}",
                        cut(why),
                        field(name, "securityContext")
                    ),
                );
            }
            "CreateContainerConfigError" | "CreateContainerError" => {
                return problem("ContainerConfigError", format!("container {name} of pod {pod}: {}", cut(why)));
            }
            "RunContainerError" => {
                return problem(
                    "ContainerStartFailed",
                    format!("container {name} of pod {pod} cannot be started: {}", cut(why)),
                );
            }
            "CrashLoopBackOff" => {
                let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
                return Some(ended(pod, name, last, rank));
            }
            _ => return None,
        }
    }
    if let Some(terminated) = &state.terminated {
        let is_init = name == INSTALL_CONTAINER || terminated.exit_code == 0;
        if is_init && terminated.exit_code == 0 {
            return None;
        }
        return Some(ended(pod, name, Some(terminated), rank));
    }
    // It runs again, and may be on its way back.
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref())?;
    let oom = last.reason.as_deref() == Some("OOMKilled");
    (oom && !status.ready).then(|| Problem { rank: rank + 30, ..ended(pod, name, Some(last), rank) })
}

fn ended(pod: &str, name: &str, last: Option<&ContainerStateTerminated>, rank: u8) -> Problem {
    let Some(last) = last else {
        let message = format!("container {name} of pod {pod} ends again and again");
        return Problem { reason: "CrashLoop", message, rank };
    };
    if last.reason.as_deref() == Some("OOMKilled") {
        let message = format!(
            "container {name} of pod {pod} was killed for its memory: raise limits.memory in {}",
            field(name, "resources")
        );
        return Problem { reason: "OutOfMemory", message, rank };
    }
    let words = last.message.as_deref().map(last_words).unwrap_or_default();
    let how = match last.signal {
        Some(signal) if signal != 0 => format!("signal {signal}"),
        _ => format!("exit code {}", last.exit_code),
    };
    let what = if words.is_empty() { String::new() } else { format!(": {words}") };
    let reason = if last.reason.as_deref() == Some("StartError") { "ContainerStartFailed" } else { "CrashLoop" };
    Problem { reason, message: format!("container {name} of pod {pod} ended with {how}{what}"), rank }
}

/// The last line that says something.
fn last_words(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_LAST_WORDS).collect()
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_LAST_WORDS * 2).collect()
}
