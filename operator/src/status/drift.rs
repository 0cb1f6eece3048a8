//! Whether the tools of a server are those that somebody looked at: what pods say of them, held against the pins.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_crds::{DriftPolicy, MCPServerSpec};
use outrigger_protocol::config::{Drift, Filter, ToolPolicy};
use outrigger_protocol::mcp::filter::{passes, passes_all};
use outrigger_protocol::status::ServerStatus;

use super::{Said, count};

/// Tools that a message names.
const MAX_NAMED: usize = 16;

/// `ToolsDrifted`: true when a pod has a tool that is not as `spec.tools.pins` has it. A pod tells of 128 tools.
pub fn tools_drifted<'a>(spec: &MCPServerSpec, pods: impl Iterator<Item = &'a ServerStatus>) -> Said {
    let Some(rules) = spec.tools.as_ref().filter(|rules| !rules.pins.is_empty()) else {
        return Said::no("NotPinned", "spec.tools.pins has no tool, so there is nothing to hold the server against");
    };
    let filter = Filter { allow: rules.allow.clone(), deny: rules.deny.clone() };
    let (mut told, mut changed, mut new) = (false, BTreeSet::new(), BTreeSet::new());
    for server in pods {
        told |= !server.tools.is_empty();
        for tool in server.tools.iter().filter(|tool| passes(&filter, tool)) {
            match rules.pins.get(tool) {
                None => new.insert(tool.as_str()),
                Some(pin) => !is_as(pin, tool, &server.tool_digests) && changed.insert(tool.as_str()),
            };
        }
    }
    if !told {
        return Said::unknown("NotTold", "no pod has told its tools yet");
    }
    if changed.is_empty() && new.is_empty() {
        return Said::no("AsPinned", format!("every tool that is there is as it was pinned ({})", rules.pins.len()));
    }
    let mut parts = Vec::new();
    if !changed.is_empty() {
        parts.push(format!("not as pinned: {}", named(&changed)));
    }
    if !new.is_empty() {
        parts.push(format!("not pinned: {}", named(&new)));
    }
    let follows = match rules.drift_policy {
        Some(DriftPolicy::Block) => "they are blocked",
        Some(DriftPolicy::Warn) => "they are counted and logged",
        Some(DriftPolicy::Allow) | None => "driftPolicy allows it",
    };
    let what = "look at their definitions, then copy their digests from status.tools.digests to spec.tools.pins";
    Said::yes("DefinitionsChanged", format!("{}; {follows}; {what}", parts.join("; ")))
}

/// Whether clients see a tool that its server has.
pub fn is_offered(rules: &ToolPolicy, server: &ServerStatus, tool: &str) -> bool {
    let pinned = |pins: &BTreeMap<String, String>| pins.get(tool).is_some_and(|p| is_as(p, tool, &server.tool_digests));
    let blocked = rules.drift == Drift::Block && !rules.pins.is_empty() && !pinned(&rules.pins);
    passes_all(&rules.filters, tool) && !blocked
}

/// A definition without a canonical form has no digest, and can be no pinned one.
fn is_as(pin: &str, tool: &str, digests: &BTreeMap<String, String>) -> bool {
    digests.get(tool).is_some_and(|digest| digest.eq_ignore_ascii_case(pin))
}

fn named(tools: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = tools.iter().take(MAX_NAMED).copied().collect();
    match tools.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {} more", names.join(", "), count(more, "tool")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(tools: &Value) -> MCPServerSpec {
        serde_json::from_value(json!({"transport": {"stdio": {}}, "image": "i", "command": ["c"], "tools": tools}))
            .unwrap()
    }

    fn pod(digests: &[(&str, &str)]) -> ServerStatus {
        ServerStatus {
            tools: digests.iter().map(|(name, _)| (*name).to_owned()).collect(),
            tool_digests: digests
                .iter()
                .filter(|(_, digest)| !digest.is_empty())
                .map(|(name, digest)| ((*name).to_owned(), (*digest).to_owned()))
                .collect(),
            ..ServerStatus::default()
        }
    }

    fn told(tools: &Value, pods: &[ServerStatus]) -> (&'static str, String, String) {
        let said = tools_drifted(&spec(tools), pods.iter());
        (said.status, said.reason, said.message)
    }

    #[test]
    fn tools_are_held_against_their_pins() {
        let pins = json!({"pins": {"add": "aa", "sub": "bb"}, "driftPolicy": "Block"});
        let same = pod(&[("add", "AA"), ("sub", "bb")]);
        assert_eq!(told(&json!({}), std::slice::from_ref(&same)).1, "NotPinned");
        let (status, reason, _) = told(&pins, &[]);
        assert_eq!((status, reason.as_str()), ("Unknown", "NotTold"));
        let (status, reason, _) = told(&pins, std::slice::from_ref(&same));
        assert_eq!((status, reason.as_str()), ("False", "AsPinned"));
        let other = pod(&[("add", "cc"), ("sub", ""), ("mul", "dd")]);
        let (status, reason, message) = told(&pins, &[same, other]);
        assert_eq!((status, reason.as_str()), ("True", "DefinitionsChanged"));
        assert_eq!(
            message,
            "not as pinned: add, sub; not pinned: mul; they are blocked; look at their definitions, then copy their \
             digests from status.tools.digests to spec.tools.pins"
        );
    }

    #[test]
    fn what_is_not_there_does_not_count() {
        let tools = json!({"pins": {"add": "aa"}, "deny": ["drop*"]});
        assert_eq!(told(&tools, &[pod(&[("add", "aa"), ("drop_all", "xx")])]).1, "AsPinned");
    }

    #[test]
    fn a_message_names_a_bounded_number() {
        let many: Vec<String> = (0..40).map(|i| format!("t{i:02}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "xx")).collect();
        let message = told(&json!({"pins": {"add": "aa"}}), &[pod(&many)]).2;
        assert!(message.contains("t15 and 24 tools more") && !message.contains("t16"), "{message}");
    }
}
