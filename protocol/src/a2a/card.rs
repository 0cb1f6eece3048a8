//! The Agent Card (A2A 1.0, sections 4.4 and 8).

use serde_json::Value;

use super::v03;

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
