//! The Agent Card.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::a2a::errors::{Error, Kind};

/// Members of a card that are those of 0.3 and not of 1.0.
pub const ONLY_V03: [&str; 6] = [
    "protocolVersion",
    "url",
    "preferredTransport",
    "additionalInterfaces",
    "security",
    "supportsAuthenticatedExtendedCard",
];

/// A scheme's wrapper in 1.0 and its `type` in 0.3.
const SCHEMES: [(&str, &str); 5] = [
    ("apiKeySecurityScheme", "apiKey"),
    ("httpAuthSecurityScheme", "http"),
    ("oauth2SecurityScheme", "oauth2"),
    ("openIdConnectSecurityScheme", "openIdConnect"),
    ("mtlsSecurityScheme", "mutualTLS"),
];

/// What a card of 0.3 calls its version. Clients of the time compare it with this text.
const PROTOCOL_VERSION: &str = "0.3.0";

fn is_v03(interface: &Value) -> bool {
    let version = interface.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    version == "0.3" || version.starts_with("0.3.")
}

/// A card of 1.0 as one of 0.3: only its members. Without an interface of 0.3 it has no `url`, so no caller can use it.
///
/// Signatures are left out: they are those of the other form.
pub fn card_out(card: &Value) -> Value {
    let mut out = base(card);
    if let Some(schemes) = card.get("securitySchemes").and_then(Value::as_object) {
        let schemes = schemes.iter().map(|(name, scheme)| (name.clone(), scheme_out(scheme)));
        out.insert("securitySchemes".into(), schemes.collect::<Map<_, _>>().into());
    }
    if let Some(requirements) = card.get("securityRequirements") {
        out.insert("security".into(), security_out(requirements));
    }
    let skills = list(card, "skills").map(|skill| {
        let Some(skill) = skill.as_object() else { return skill.clone() };
        let mut skill = skill.clone();
        if let Some(requirements) = skill.remove("securityRequirements") {
            skill.insert("security".into(), security_out(&requirements));
        }
        skill.into()
    });
    out.insert("skills".into(), skills.collect());
    out.into()
}

/// A card of 1.0 as the proto of 0.3 has it: its schemes are those of 1.0.
pub(super) fn proto(card: &Value) -> Value {
    let mut out = base(card);
    if let Some(mut schemes) = card.get("securitySchemes").cloned() {
        for scheme in schemes.as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(flows) = scheme.pointer_mut("/oauth2SecurityScheme/flows") {
                *flows = flows_out(flows);
            }
        }
        out.insert("securitySchemes".into(), schemes);
    }
    if let Some(requirements) = card.get("securityRequirements") {
        out.insert("security".into(), requirements.clone());
    }
    let skills = list(card, "skills").map(|skill| {
        let mut skill = skill.clone();
        if let Some(requirements) = skill.as_object_mut().and_then(|s| s.remove("securityRequirements")) {
            skill["security"] = requirements;
        }
        skill
    });
    out.insert("skills".into(), skills.collect());
    out.into()
}

/// All but schemes and skills.
fn base(card: &Value) -> Map<String, Value> {
    let without =
        ["supportedInterfaces", "capabilities", "securitySchemes", "securityRequirements", "signatures", "skills"];
    let members = card.as_object().into_iter().flatten();
    let mut out: Map<_, _> =
        members.filter(|(k, _)| !without.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    out.insert("protocolVersion".into(), PROTOCOL_VERSION.into());
    let interfaces: Vec<_> = list(card, "supportedInterfaces").filter(|i| is_v03(i)).collect();
    // Clients that know no other binding take the main one to be JSON-RPC.
    let main = interfaces.iter().find(|i| i["protocolBinding"] == "JSONRPC").or(interfaces.first());
    if let Some(main) = main {
        out.insert("url".into(), main["url"].clone());
        out.insert("preferredTransport".into(), main["protocolBinding"].clone());
        let all = interfaces.iter().map(|i| json!({"url": i["url"], "transport": i["protocolBinding"]}));
        out.insert("additionalInterfaces".into(), all.collect());
    }
    let mut capabilities = card.get("capabilities").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(extended) = capabilities.remove("extendedAgentCard") {
        out.insert("supportsAuthenticatedExtendedCard".into(), extended);
    }
    out.insert("capabilities".into(), capabilities.into());
    out
}

fn list<'a>(card: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    card.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Schemes of 1.0 that are those of 0.3 too: the members of both stand in each.
pub fn merge_schemes(schemes: &Value) -> Value {
    let Some(schemes) = schemes.as_object() else { return schemes.clone() };
    let merged = schemes.iter().map(|(name, scheme)| {
        let mut both = scheme.as_object().cloned().unwrap_or_default();
        if let Value::Object(flat) = scheme_out(scheme) {
            both.extend(flat);
        }
        (name.clone(), both.into())
    });
    merged.collect::<Map<_, _>>().into()
}

fn scheme_out(scheme: &Value) -> Value {
    let found = SCHEMES.iter().find_map(|(wrapper, kind)| Some((*kind, scheme.get(*wrapper)?)));
    let Some((kind, inner)) = found else { return scheme.clone() };
    let mut out = inner.as_object().cloned().unwrap_or_default();
    out.insert("type".into(), kind.into());
    if let Some(location) = out.remove("location") {
        out.insert("in".into(), location);
    }
    if let Some(flows) = out.get_mut("flows") {
        *flows = flows_out(flows);
    }
    out.into()
}

/// 0.3 has no device flow and does not speak of PKCE.
fn flows_out(flows: &Value) -> Value {
    let mut flows = flows.clone();
    if let Some(flows) = flows.as_object_mut() {
        flows.remove("deviceCode");
        for flow in flows.values_mut().filter_map(Value::as_object_mut) {
            flow.remove("pkceRequired");
        }
    }
    flows
}

/// Requirements of 1.0 as the `security` of 0.3.
pub fn security_out(requirements: &Value) -> Value {
    let each = requirements.as_array().into_iter().flatten().map(|requirement| {
        let schemes = requirement.get("schemes").and_then(Value::as_object).into_iter().flatten();
        let scopes = |list: &Value| list.get("list").cloned().unwrap_or_else(|| json!([]));
        Value::Object(schemes.map(|(name, list)| (name.clone(), scopes(list))).collect())
    });
    each.collect()
}

/// A card of 0.3 as one of 1.0. One that has `supportedInterfaces` is of 1.0 already: it loses its members of 0.3 only.
pub fn card_in(card: &RawValue) -> Result<Value, Error> {
    let bad = |what: &str| Error::new(Kind::InvalidAgentResponse, format!("the agent's card {what}"));
    let card: Value = serde_json::from_str(card.get()).map_err(|e| bad(&format!("is no JSON: {e}")))?;
    let Value::Object(card) = card else { return Err(bad("must be an object")) };
    let mut out: Map<_, _> =
        card.iter().filter(|(k, _)| !ONLY_V03.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    let is_v10 = card.get("supportedInterfaces").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    if !is_v10 {
        let interfaces = interfaces_in(&card);
        if interfaces.is_empty() {
            return Err(bad("names no url"));
        }
        out.insert("supportedInterfaces".into(), interfaces.into());
        let mut capabilities = card.get("capabilities").and_then(Value::as_object).cloned().unwrap_or_default();
        capabilities.remove("stateTransitionHistory");
        if let Some(extended @ Value::Bool(_)) = card.get("supportsAuthenticatedExtendedCard") {
            capabilities.insert("extendedAgentCard".into(), extended.clone());
        }
        out.insert("capabilities".into(), capabilities.into());
        out.remove("signatures");
    }
    if let Some(schemes) = out.get_mut("securitySchemes").and_then(Value::as_object_mut) {
        for scheme in schemes.values_mut() {
            *scheme = scheme_in(scheme);
        }
    }
    if let Some(security) = card.get("security")
        && !out.contains_key("securityRequirements")
    {
        out.insert("securityRequirements".into(), security_in(security));
    }
    for skill in out.get_mut("skills").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(skill) = skill.as_object_mut()
            && let Some(security) = skill.remove("security")
        {
            skill.entry("securityRequirements").or_insert_with(|| security_in(&security));
        }
    }
    Ok(out.into())
}

fn interfaces_in(card: &Map<String, Value>) -> Vec<Value> {
    let version = card.get("protocolVersion").and_then(Value::as_str).unwrap_or("0.3");
    // A patch number does not matter.
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    let version = &version[..end];
    let transport =
        |v: Option<&Value>| v.and_then(Value::as_str).filter(|t| !t.is_empty()).unwrap_or("JSONRPC").to_owned();
    let main = (card.get("url"), transport(card.get("preferredTransport")));
    let further = card.get("additionalInterfaces").and_then(Value::as_array).into_iter().flatten();
    let all = std::iter::once(main).chain(further.map(|i| (i.get("url"), transport(i.get("transport")))));
    let mut seen: Vec<Value> = Vec::new();
    for (url, binding) in all {
        let Some(url) = url.and_then(Value::as_str).filter(|u| !u.is_empty()) else { continue };
        let interface = json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
        if !seen.contains(&interface) {
            seen.push(interface);
        }
    }
    seen
}

fn scheme_in(scheme: &Value) -> Value {
    let Some(object) = scheme.as_object() else { return scheme.clone() };
    if let Some((wrapper, _)) = SCHEMES.iter().find(|(wrapper, _)| object.contains_key(*wrapper)) {
        return json!({ *wrapper: object[*wrapper] });
    }
    let kind = object.get("type").and_then(Value::as_str);
    let Some((wrapper, _)) = SCHEMES.iter().find(|(_, k)| kind == Some(k)) else { return scheme.clone() };
    let mut inner = object.clone();
    inner.remove("type");
    if let Some(location) = inner.remove("in") {
        inner.insert("location".into(), location);
    }
    if let Some(Value::Object(flows)) = inner.get_mut("flows") {
        // 1.0 has one flow only: the one that is not deprecated, where there are several.
        let best = ["authorizationCode", "clientCredentials", "deviceCode", "implicit", "password"];
        if let Some(name) = best.into_iter().find(|name| flows.get(*name).is_some_and(Value::is_object)) {
            flows.retain(|k, _| k == name);
        }
    }
    json!({ *wrapper: inner })
}

fn security_in(security: &Value) -> Value {
    let each = security.as_array().into_iter().flatten().map(|requirement| {
        // The proto of 0.3 has them as 1.0 does.
        if requirement.get("schemes").is_some_and(Value::is_object) {
            return requirement.clone();
        }
        let schemes = requirement.as_object().into_iter().flatten();
        let schemes = schemes.map(|(name, scopes)| {
            let list = if scopes.is_array() { json!({ "list": scopes }) } else { json!({}) };
            (name.clone(), list)
        });
        json!({ "schemes": schemes.collect::<Map<_, _>>() })
    });
    each.collect()
}
