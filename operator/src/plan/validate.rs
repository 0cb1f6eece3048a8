//! What the schema cannot check of an Agent, in words that say what to do.

use std::collections::BTreeMap;

use outrigger_crds::{AgentSpec, HttpRuntime};
use serde_json::Value;

use super::PlanError;
use super::merge::{items, text};
use crate::names;

/// The one runtime there is.
pub(super) fn runtime(spec: &AgentSpec) -> Result<&HttpRuntime, PlanError> {
    spec.runtime.http.as_ref().ok_or_else(|| PlanError::InvalidSpec {
        path: "spec.runtime".into(),
        message: "set runtime.http: the container takes its turns over HTTP".into(),
    })
}

/// Checks the template.
pub(super) fn template(spec: &AgentSpec, http: &HttpRuntime) -> Result<(), PlanError> {
    let pod = spec.template.get("spec").unwrap_or(&Value::Null);
    let refused = |path: &str, message: &str| PlanError::InvalidTemplate { path: path.into(), message: message.into() };
    if super::merge::named(items(pod, "containers"), names::AGENT_CONTAINER).is_none() {
        return Err(refused("spec.containers", "name one container \"agent\": it is the one that gets the turns"));
    }
    if pod.get("automountServiceAccountToken") == Some(&Value::Bool(true)) {
        return Err(refused(
            "spec.automountServiceAccountToken",
            "remove it: the tools in the pod would get the token too; mount a projected serviceAccountToken volume in the container that needs one",
        ));
    }
    ports(pod, http)
}

/// All containers of a pod share its ports, and the handler's is taken whether it is declared or not.
fn ports(pod: &Value, http: &HttpRuntime) -> Result<(), PlanError> {
    let mut taken: BTreeMap<(i64, String), &str> = BTreeMap::new();
    taken.insert((i64::from(http.port), "TCP".into()), names::AGENT_CONTAINER);
    let sidecars = items(pod, "initContainers").iter().filter(|c| text(c, "restartPolicy") == "Always");
    for container in items(pod, "containers").iter().chain(sidecars) {
        let name = text(container, "name");
        for port in items(container, "ports") {
            let Some(number) = port.get("containerPort").and_then(Value::as_i64) else { continue };
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            let first = *taken.entry((number, protocol.to_owned())).or_insert(name);
            if first != name {
                return Err(PlanError::PortConflict { port: number, first: first.into(), second: name.into() });
            }
        }
    }
    Ok(())
}
