//! The Agent Card (A2A 1.0, section 4.4.1).

use outrigger_crds::{AgentSpec, CardSkill, CardSpec};
use serde_json::{Map, Value, json};

use super::identity::Identity;
use crate::names::SERVICE_PORT;

/// A2A endpoint inside the cluster.
pub(super) fn url(identity: &Identity, domain: &str) -> String {
    format!("http://{}.{}.svc.{domain}:{SERVICE_PORT}/", identity.name, identity.namespace)
}

/// The whole card. Required lists are never empty, optional members are absent rather than empty.
pub(super) fn card(identity: &Identity, spec: &AgentSpec, domain: &str) -> Value {
    let given = spec.card.clone().unwrap_or_default();
    let or_text = |modes: &[String]| if modes.is_empty() { vec!["text/plain".to_owned()] } else { modes.to_vec() };
    let mut card = json!({
        "name": identity.name,
        "description": spec.description,
        "version": given.version,
        "supportedInterfaces": [
            {"url": url(identity, domain), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ],
        "capabilities": {"streaming": false, "pushNotifications": false},
        "defaultInputModes": or_text(&given.default_input_modes),
        "defaultOutputModes": or_text(&given.default_output_modes),
        "skills": skills(identity, spec, &given),
    });
    if let Some(provider) = &given.provider {
        card["provider"] = json!({"organization": provider.organization, "url": provider.url});
    }
    if let Some(address) = &given.documentation_url {
        card["documentationUrl"] = json!(address);
    }
    if let Some(address) = &given.icon_url {
        card["iconUrl"] = json!(address);
    }
    card
}

fn skills(identity: &Identity, spec: &AgentSpec, given: &CardSpec) -> Vec<Value> {
    if given.skills.is_empty() {
        let (name, description) = (&identity.name, &spec.description);
        return vec![json!({"id": name, "name": name, "description": description, "tags": ["agent"]})];
    }
    given.skills.iter().map(skill).collect()
}

fn skill(skill: &CardSkill) -> Value {
    let tags = if skill.tags.is_empty() { vec!["agent".to_owned()] } else { skill.tags.clone() };
    let mut out = Map::new();
    out.insert("id".into(), json!(skill.id));
    out.insert("name".into(), json!(skill.name));
    out.insert("description".into(), json!(skill.description));
    out.insert("tags".into(), json!(tags));
    for (key, list) in
        [("examples", &skill.examples), ("inputModes", &skill.input_modes), ("outputModes", &skill.output_modes)]
    {
        if !list.is_empty() {
            out.insert(key.into(), json!(list));
        }
    }
    Value::Object(out)
}
