//! The condition that tells of the pods' way to the operator itself.

use outrigger_crds::Agent;

use super::Said;
use super::agent::no_pods;
use super::pods::PodView;
use crate::facts::tells;

/// Whether changes reach the pods at once.
pub(super) fn connected(agent: &Agent, pods: &[&PodView]) -> Said {
    let mut reports = 0;
    for pod in pods {
        let Some(status) = pod.says() else { continue };
        let part = &status.control.part;
        if !tells(part) {
            continue;
        }
        reports += 1;
        if !part.ready {
            return Said::no(
                &part.reason,
                format!(
                    "pod {} works with what it last heard, and changes reach it by its volume in about a minute: {}",
                    pod.name(),
                    part.message
                ),
            );
        }
    }
    match reports {
        0 if pods.iter().any(|p| p.says().is_some()) => {
            Said::unknown("NotTold", "no pod was told of the operator's control API yet")
        }
        0 => no_pods(agent, pods),
        _ => Said::yes("Connected", "changes reach the pods at once"),
    }
}
