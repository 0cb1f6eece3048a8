//! The Agent Card (A2A 1.0, sections 4.4 and 8): put together, made readable for 0.3, ready to be signed.

mod canonical;
mod sign;

use serde_json::{Map, Value, json};

pub use canonical::{NotCanonical, canonical};
pub use sign::{Unsignable, signing_payload};

use super::extensions::{self, DELIVERY};
use super::operation::Binding;
use super::v03;

/// Media types of an agent that names none.
const DEFAULT_MODES: [&str; 1] = ["text/plain"];

/// One way to reach the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Base URL; for gRPC `host:port`.
    pub url: String,
    /// The binding.
    pub binding: Binding,
    /// The version, `1.0` or `0.3`.
    pub version: &'static str,
    /// The tenant that a caller names, if there are several.
    pub tenant: Option<String>,
}

/// What the agent can do beyond the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Streams.
    pub streaming: bool,
    /// Push notifications.
    pub push: bool,
    /// A card for known callers.
    pub extended_card: bool,
}

/// How callers prove who they are, in 1.0 form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Security {
    /// Schemes by name.
    pub schemes: Map<String, Value>,
    /// Any one of these is enough: `{"schemes": {name: {"list": [scope]}}}`.
    pub requirements: Vec<Value>,
}

/// Puts a card of 1.0 together.
///
/// `core` is what the agent says of itself. Its interfaces, security and signatures are not taken over, nor its
/// capabilities but for extensions, to which [ours](DELIVERY) is added. Interfaces keep their order, but those of 1.0 come first: clients take the first
/// one of their binding, some without a look at its version.
pub fn compose(core: &Value, interfaces: &[Interface], capabilities: Capabilities, security: &Security) -> Value {
    let mut card = core.as_object().cloned().unwrap_or_default();
    let extensions = card.remove("capabilities").and_then(|mut c| Some(c.get_mut("extensions")?.take()));
    // One that speaks of 0.3 in its own way would contradict the interfaces.
    for key in ["signatures", "securitySchemes", "securityRequirements"].iter().chain(&v03::ONLY_V03) {
        card.remove(*key);
    }
    let (new, old): (Vec<_>, Vec<_>) = interfaces.iter().partition(|i| i.version == "1.0");
    let list = new.into_iter().chain(old).map(|i| {
        let mut interface = json!({"url": i.url, "protocolBinding": i.binding.name(), "protocolVersion": i.version});
        if let Some(tenant) = i.tenant.as_deref().filter(|t| !t.is_empty()) {
            interface["tenant"] = tenant.into();
        }
        interface
    });
    card.insert("supportedInterfaces".into(), list.collect());
    let mut said = json!({"streaming": capabilities.streaming, "pushNotifications": capabilities.push});
    if capabilities.extended_card {
        said["extendedAgentCard"] = true.into();
    }
    let mut extensions = extensions.and_then(|e| e.as_array().cloned()).unwrap_or_default();
    extensions.retain(|e| e.get("uri").is_none_or(|uri| uri != DELIVERY));
    extensions.push(extensions::delivery());
    said["extensions"] = extensions.into();
    card.insert("capabilities".into(), said);
    if !security.schemes.is_empty() {
        card.insert("securitySchemes".into(), security.schemes.clone().into());
    }
    if !security.requirements.is_empty() {
        card.insert("securityRequirements".into(), security.requirements.clone().into());
    }
    for key in ["defaultInputModes", "defaultOutputModes"] {
        if card.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty) {
            card.insert(key.into(), json!(DEFAULT_MODES));
        }
    }
    card.into()
}

/// A card for known callers: the public one with the members of another in place of its own.
pub fn extended(core: &Value, more: &Value) -> Value {
    let mut card = core.as_object().cloned().unwrap_or_default();
    card.extend(more.as_object().cloned().unwrap_or_default());
    card.into()
}

/// A card of 1.0 that is one of 0.3 too: the members of both stand in it, so that a reader of either finds its own.
///
/// Without an interface of 0.3 it stays what it is. Signatures cover the card without what is added here.
pub fn hybrid(card: &Value) -> Value {
    let old = v03::card_out(card);
    let (Some(members), Value::Object(old)) = (card.as_object(), old) else { return card.clone() };
    if !old.contains_key("url") {
        return card.clone();
    }
    let mut out = members.clone();
    for (key, value) in old {
        // What 1.0 has under the same name says more.
        if !out.contains_key(&key) {
            out.insert(key, value);
        }
    }
    if let Some(schemes) = out.get_mut("securitySchemes") {
        *schemes = v03::merge_schemes(schemes);
    }
    for skill in out.get_mut("skills").and_then(Value::as_array_mut).into_iter().flatten() {
        let security = skill.get("securityRequirements").map(v03::security_out);
        if let (Some(skill), Some(security)) = (skill.as_object_mut(), security) {
            skill.insert("security".into(), security);
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composed() {
        let core = json!({"name": "A", "description": "d", "version": "1", "skills": [{"id": "s"}],
            "defaultInputModes": ["text/plain", "image/*"], "defaultOutputModes": [], "signatures": [1], "url": "dropped",
            "capabilities": {"streaming": true, "extensions": [{"uri": "urn:x"}]}, "supportedInterfaces": [1],
            "securitySchemes": {"mine": {}}, "securityRequirements": [1]});
        let at = |url: &str, binding, version| Interface { url: url.into(), binding, version, tenant: None };
        let interfaces = [
            at("https://a.example", Binding::JsonRpc, "0.3"),
            at("https://a.example", Binding::JsonRpc, "1.0"),
            Interface { tenant: Some("acme".into()), ..at("a.example:443", Binding::Grpc, "1.0") },
            at("https://a.example", Binding::HttpJson, "0.3"),
        ];
        let scheme = json!({"httpAuthSecurityScheme": {"scheme": "Bearer"}});
        let security = Security {
            schemes: Map::from_iter([("bearer".into(), scheme)]),
            requirements: vec![json!({"schemes": {"bearer": {}}})],
        };
        let can = Capabilities { streaming: false, push: true, extended_card: true };
        insta::assert_json_snapshot!(compose(&core, &interfaces, can, &security));
        let bare = compose(&json!({}), &[], Capabilities::default(), &Security::default());
        assert!(bare.get("securitySchemes").is_none() && bare["capabilities"]["streaming"] == false);
        let more = extended(&core, &json!({"skills": [1, 2], "x": 1}));
        assert_eq!((&more["skills"], &more["x"], &more["name"]), (&json!([1, 2]), &json!(1), &json!("A")));
    }
}
