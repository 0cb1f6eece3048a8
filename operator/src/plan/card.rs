//! The Agent Card (A2A 1.0, section 4.4.1), as far as the manifest says it. Interfaces, capabilities, security schemes and
//! signatures are the sidecar's to add: it advertises what passed a call of its own.

use outrigger_crds::{AgentSpec, CardSkill, CardSpec, ExtendedCard, Extension};
use serde_json::{Map, Value, json};

use super::identity::Identity;

/// The card. Optional members are absent rather than empty; an empty list of skills, and modes that are absent, are those
/// of the container's own card.
pub(super) fn card(identity: &Identity, spec: &AgentSpec, given: &CardSpec) -> Value {
    let has_own = spec.runtime.a2a.is_some();
    let mut card = json!({
        "name": identity.name,
        "description": spec.description,
        "version": given.version,
        "skills": skills(identity, spec, given, has_own),
    });
    for (key, modes) in
        [("defaultInputModes", &given.default_input_modes), ("defaultOutputModes", &given.default_output_modes)]
    {
        if !modes.is_empty() {
            card[key] = json!(modes);
        } else if !has_own {
            card[key] = json!(["text/plain"]);
        }
    }
    if let Some(provider) = &given.provider {
        card["provider"] = json!({"organization": provider.organization, "url": provider.url});
    }
    if let Some(address) = &given.documentation_url {
        card["documentationUrl"] = json!(address);
    }
    if let Some(address) = &given.icon_url {
        card["iconUrl"] = json!(address);
    }
    if !given.extensions.is_empty() {
        card["capabilities"] = json!({"extensions": given.extensions.iter().map(extension).collect::<Vec<_>>()});
    }
    card
}

/// Members of the extended card that differ from the card's. The list of skills is whole: those of the card come first,
/// but for those with an id of the extended ones.
pub(super) fn extended(card: &Value, extended: &ExtendedCard) -> Value {
    let mut members = Map::new();
    if let Some(text) = &extended.description {
        members.insert("description".into(), json!(text));
    }
    if let Some(address) = &extended.documentation_url {
        members.insert("documentationUrl".into(), json!(address));
    }
    if !extended.skills.is_empty() {
        let mut skills = card.get("skills").and_then(Value::as_array).cloned().unwrap_or_default();
        skills.retain(|s| !extended.skills.iter().any(|e| s.get("id").and_then(Value::as_str) == Some(&e.id)));
        skills.extend(extended.skills.iter().map(skill));
        members.insert("skills".into(), Value::Array(skills));
    }
    Value::Object(members)
}

fn skills(identity: &Identity, spec: &AgentSpec, given: &CardSpec, has_own: bool) -> Vec<Value> {
    if given.skills.is_empty() && !has_own {
        let (name, description) = (&identity.name, &spec.description);
        return vec![json!({"id": name, "name": name, "description": description, "tags": ["agent"]})];
    }
    given.skills.iter().map(skill).collect()
}

fn extension(extension: &Extension) -> Value {
    let mut out = Map::new();
    out.insert("uri".into(), json!(extension.uri));
    if let Some(text) = &extension.description {
        out.insert("description".into(), json!(text));
    }
    if extension.required {
        out.insert("required".into(), json!(true));
    }
    if let Some(params) = &extension.params {
        out.insert("params".into(), params.clone());
    }
    Value::Object(out)
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
