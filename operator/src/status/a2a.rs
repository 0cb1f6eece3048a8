//! Conditions of an Agent's A2A side: where tasks are kept, what is served, who is reached.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_crds::Agent;

use super::agent::{Seen, no_pods};
use super::pods::{PodView, join};
use super::{Said, count};
use crate::facts::{magnitude, tells};
use crate::plan::{Lifetime, lifetime};

/// Whether every pod finds every task.
pub(super) fn task_store_shared(agent: &Agent) -> Said {
    if lifetime(&agent.spec) == Lifetime::Database {
        return Said::yes("Database", "all pods share one database");
    }
    if agent.spec.replicas <= 1 {
        return Said::yes("SinglePod", "one pod holds all tasks");
    }
    Said::no(
        "OnePerPod",
        format!(
            "each of the {} pods keeps its own tasks: the Service sends a client's address to one pod, but a client behind another address, or after that pod is gone, does not find its tasks; set tasks.store.postgres to share them",
            agent.spec.replicas
        ),
    )
}

/// What tasks outlive.
pub(super) fn task_store_durable(agent: &Agent) -> Said {
    match lifetime(&agent.spec) {
        Lifetime::Database => {
            Said::yes("Database", "tasks are kept in a database: containers and pods may be replaced")
        }
        Lifetime::Volume => Said::yes(
            "Volume",
            "tasks are kept on a volume that outlives the pod: containers and the pod may be replaced",
        ),
        Lifetime::Pod => Said::no(
            "EndsWithPod",
            "tasks outlive a restart of the sidecar's container and end with their pod: set tasks.store.sqlite.volume.persistentVolumeClaim or tasks.store.postgres to keep them",
        ),
        Lifetime::Container => Said::no(
            "EndsWithContainer",
            "tasks are in the memory of the sidecar's container and end with it: set tasks.store.sqlite or tasks.store.postgres to keep them",
        ),
    }
}

/// Whether the store works in each pod.
pub(super) fn task_store_ready(agent: &Agent, pods: &[&PodView]) -> Said {
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says().filter(|s| tells(&s.store)) else { continue };
        reports += 1;
        if !status.store.ready {
            let why = join(&status.store.reason, &status.store.message);
            return Said::no("TaskStoreNotReady", format!("the task store of pod {} does not work: {why}", pod.name()));
        }
    }
    if reports == 0 { not_told(agent, pods) } else { Said::yes("Ready", "the task store works") }
}

/// Whether every interface that was asked for passed a call of its own, and so stands in the card.
pub(super) fn conformant(agent: &Agent, pods: &[&PodView]) -> Said {
    let (mut most, mut untold) = (0, false);
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        let failed: Vec<_> = status.interfaces.iter().filter(|i| !i.part.ready && tells(&i.part)).collect();
        if let Some(first) = failed.first() {
            let names: Vec<_> = failed.iter().map(|i| format!("{} {}", i.binding, i.version)).collect();
            let why = join(&first.part.reason, &first.part.message);
            let message = format!(
                "{} of pod {} did not pass a call of its own and is not in the card: {why}",
                names.join(", "),
                pod.name()
            );
            return Said::no("InterfaceFailed", message);
        }
        untold |= status.interfaces.iter().any(|i| !i.part.ready);
        most = most.max(status.interfaces.len());
    }
    if most == 0 || untold {
        return not_told(agent, pods);
    }
    Said::yes("AllPass", format!("{} passed a call of its own", count(most, "interface")))
}

/// Whether the Agents that this one may call are there.
pub(super) fn peers_found(agent: &Agent, seen: &Seen, before: Option<&Condition>) -> Said {
    if agent.spec.peers.is_empty() {
        return Said::yes("NoPeers", "the Agent names no peer");
    }
    if let Some(first) = seen.missing_peers.first() {
        let others = match seen.missing_peers.len() {
            1 => String::new(),
            more => format!(" (and {} more)", more - 1),
        };
        return Said::no(
            "PeerNotFound",
            format!(
                "Agent {first}{others} does not exist: create it, or remove it from spec.peers; calls to it fail until then"
            ),
        );
    }
    if seen.peers_not_known_yet {
        return match before {
            Some(before) => before.into(),
            None => Said::unknown("NotTold", "the operator is about to find out"),
        };
    }
    if let Some(first) = seen.unwatched_peers.first() {
        return Said::unknown(
            "PeerNotWatched",
            format!(
                "the operator does not watch the namespace of Agent {first}, so it cannot tell whether it is there"
            ),
        );
    }
    Said::yes("AllFound", format!("{} found", count(agent.spec.peers.len(), "peer")))
}

/// Whether the sidecar is the only way to the agent's container.
pub(super) fn access_enforced(agent: &Agent, pods: &[&PodView]) -> Said {
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        reports += 1;
        if status.agent_exposed {
            return Said::no(
                "AgentExposed",
                format!(
                    "the agent of pod {} also listens on the pod's address: who calls it there goes round spec.access and the limits; let it listen on 127.0.0.1 alone",
                    pod.name()
                ),
            );
        }
    }
    if reports == 0 {
        return no_pods(agent, pods);
    }
    if agent.spec.access.is_none() {
        return Said::yes("Open", "spec.access is not set: everybody may call who reaches the Agent");
    }
    Said::yes("Enforced", "callers prove who they are as spec.access says")
}

/// Whether push notifications reached their receivers.
pub(super) fn push_delivered(agent: &Agent, pods: &[&PodView]) -> Said {
    if !agent.spec.push.as_ref().is_some_and(|p| p.enabled) {
        return Said::yes("NoPush", "push notifications are off");
    }
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        reports += 1;
        // The count grows for as long as the sidecar runs; its magnitude is news now and then.
        if status.push_dead_letters > 0 {
            return Said::no(
                "GivenUp",
                format!(
                    "pod {} gave up {} or more push notifications since it started: their receivers were away for too long or refused them; see the metrics of the pod",
                    pod.name(),
                    magnitude(status.push_dead_letters)
                ),
            );
        }
    }
    if reports == 0 { no_pods(agent, pods) } else { Said::yes("Delivered", "no push notification was given up") }
}

/// Nobody can tell, or the sidecars are too old to.
fn not_told(agent: &Agent, pods: &[&PodView]) -> Said {
    if pods.iter().any(|p| p.says().is_some()) {
        return Said::unknown("NotTold", "no pod has told yet");
    }
    no_pods(agent, pods)
}
