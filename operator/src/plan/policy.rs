//! Which tools there are for whom: the server's own rules and what each Agent asks for.

use std::collections::BTreeMap;

use outrigger_crds::{DriftPolicy, MCPServerSpec, ToolFilter};
use outrigger_protocol::config::{Drift, Filter, Mcp, ToolPolicy};

use super::ServerInput;

/// What an Agent's sidecar enforces. A Standalone server bounds the calls of all Agents together, so that stays with it.
pub(super) fn of_agent(servers: &[ServerInput<'_>]) -> Mcp {
    let mut policies = BTreeMap::new();
    for server in servers {
        let mut policy = if server.here || server.spec.transport.remote.is_some() {
            of_server(server.spec)
        } else {
            ToolPolicy { filters: own_filter(server.spec).into_iter().collect(), ..ToolPolicy::default() }
        };
        let asked = filter(server.tools);
        if !asked.is_open() {
            policy.filters.push(asked);
        }
        if policy != ToolPolicy::default() {
            policies.insert(server.name.to_owned(), policy);
        }
    }
    Mcp { servers: policies, ..Mcp::default() }
}

/// What the server's own rules say.
pub(super) fn of_server(spec: &MCPServerSpec) -> ToolPolicy {
    let Some(rules) = &spec.tools else { return ToolPolicy::default() };
    ToolPolicy {
        filters: own_filter(spec).into_iter().collect(),
        drift: match rules.drift_policy {
            None | Some(DriftPolicy::Allow) => Drift::Allow,
            Some(DriftPolicy::Warn) => Drift::Warn,
            Some(DriftPolicy::Block) => Drift::Block,
        },
        pins: rules.pins.clone(),
        max_description_bytes: rules.max_description_bytes.and_then(|v| u32::try_from(v).ok()),
        max_argument_bytes: rules.max_argument_bytes.and_then(|v| u64::try_from(v).ok()),
        max_concurrent: rules.max_concurrent.and_then(|v| u32::try_from(v).ok()),
        max_per_minute: rules.max_per_minute.and_then(|v| u32::try_from(v).ok()),
    }
}

fn own_filter(spec: &MCPServerSpec) -> Option<Filter> {
    let rules = spec.tools.as_ref()?;
    let filter = Filter { allow: rules.allow.clone(), deny: rules.deny.clone() };
    (!filter.is_open()).then_some(filter)
}

/// What an Agent asks for.
pub(super) fn filter(asked: Option<&ToolFilter>) -> Filter {
    asked.map(|a| Filter { allow: a.allow.clone(), deny: a.deny.clone() }).unwrap_or_default()
}
