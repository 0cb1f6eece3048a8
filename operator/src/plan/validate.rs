//! What the schema cannot check of an Agent, in words that say what to do.

use std::collections::BTreeMap;

use outrigger_crds::AgentSpec;
use outrigger_protocol::config::Runtime;
use serde_json::Value;

use super::merge::{items, text};
use super::{PlanError, ServerInput};
use crate::names;

/// The one runtime that is set.
pub(super) fn runtime(spec: &AgentSpec) -> Result<Runtime, PlanError> {
    let number = |path: &str, port: i32| {
        u16::try_from(port)
            .map_err(|_| PlanError::InvalidSpec { path: path.into(), message: format!("{port} is no port") })
    };
    match (&spec.runtime.http, &spec.runtime.a2a) {
        (Some(http), None) => Ok(Runtime::Http {
            port: number("spec.runtime.http.port", http.port)?,
            path: http.path.clone(),
            ready_path: http.ready_path.clone(),
        }),
        (None, Some(a2a)) => {
            Ok(Runtime::A2a { port: number("spec.runtime.a2a.port", a2a.port)?, path: a2a.path.clone() })
        }
        _ => Err(PlanError::InvalidSpec {
            path: "spec.runtime".into(),
            message: "set runtime.http or runtime.a2a, and not both: how the container takes its work".into(),
        }),
    }
}

fn port_of(runtime: &Runtime) -> Option<i64> {
    match runtime {
        Runtime::Http { port, .. } | Runtime::A2a { port, .. } => Some(i64::from(*port)),
        Runtime::Tools {} => None,
    }
}

/// Checks the template.
pub(super) fn template(spec: &AgentSpec, runtime: &Runtime, servers: &[ServerInput<'_>]) -> Result<(), PlanError> {
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
    ports(pod, port_of(runtime), servers)
}

/// All containers of a pod share its ports, and the agent's is taken whether it is declared or not.
fn ports(pod: &Value, agent: Option<i64>, servers: &[ServerInput<'_>]) -> Result<(), PlanError> {
    let mut taken: BTreeMap<(i64, String), &str> = BTreeMap::new();
    taken.extend(agent.map(|port| ((port, "TCP".into()), names::AGENT_CONTAINER)));
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
    let mut of_servers: BTreeMap<i64, &str> = BTreeMap::new();
    for server in servers.iter().filter(|s| s.here) {
        let Some(number) = server.spec.transport.http.as_ref().map(|h| i64::from(h.port)) else { continue };
        let container = |name: &str| names::tool_container(name);
        let first = taken.get(&(number, "TCP".to_owned())).map(|name| (*name).to_owned());
        let first = first.or_else(|| of_servers.insert(number, server.name).map(container));
        if let Some(first) = first {
            return Err(PlanError::PortConflict { port: number, first, second: container(server.name) });
        }
    }
    Ok(())
}
