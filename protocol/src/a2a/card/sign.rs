//! What of a card can be signed so that every verifier gets the same bytes (A2A 1.0, section 8.4).
//!
//! The specification reads in two ways where it says which empty members count, and verifiers that go through protobuf
//! drop what they do not know. So only cards are signed that leave nothing to decide. One thing is left to decide: a
//! requirement without scopes, as every API key is, cannot be written without something empty. It is left out of the
//! payload, as the verifiers of the Python and JavaScript SDKs do.

use serde_json::Value;

use super::canonical::{below, canonical};

/// Why a card is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the card cannot be signed: {path} {what}")]
pub struct Unsignable {
    /// Where.
    pub path: String,
    /// What stands there.
    pub what: String,
}

/// Names of an object's members and what is in each.
type Schema = &'static [(&'static str, Shape)];

enum Shape {
    /// A text.
    Text,
    /// A boolean that the proto has without presence: a false one is not written by all.
    Flag,
    /// A boolean with presence.
    Choice,
    Object(Schema),
    List(&'static Shape),
    /// Members under names of the author.
    Map(&'static Shape),
    /// Whatever the author likes.
    Free,
}

use Shape::{Choice, Flag, Free, List, Map, Object, Text};

const TEXTS: Shape = List(&Text);
const REQUIREMENTS: Shape = List(&Object(&[("schemes", Map(&Object(&[("list", TEXTS)])))]));

const FLOW: Shape = Object(&[
    ("authorizationUrl", Text),
    ("deviceAuthorizationUrl", Text),
    ("tokenUrl", Text),
    ("refreshUrl", Text),
    ("scopes", Map(&Text)),
    ("pkceRequired", Flag),
]);

const SCHEME: Shape = Object(&[
    ("apiKeySecurityScheme", Object(&[("description", Text), ("location", Text), ("name", Text)])),
    ("httpAuthSecurityScheme", Object(&[("description", Text), ("scheme", Text), ("bearerFormat", Text)])),
    (
        "oauth2SecurityScheme",
        Object(&[
            ("description", Text),
            (
                "flows",
                Object(&[
                    ("authorizationCode", FLOW),
                    ("clientCredentials", FLOW),
                    ("deviceCode", FLOW),
                    ("implicit", FLOW),
                    ("password", FLOW),
                ]),
            ),
            ("oauth2MetadataUrl", Text),
        ]),
    ),
    ("openIdConnectSecurityScheme", Object(&[("description", Text), ("openIdConnectUrl", Text)])),
    ("mtlsSecurityScheme", Object(&[("description", Text)])),
]);

const CARD: Schema = &[
    ("name", Text),
    ("description", Text),
    (
        "supportedInterfaces",
        List(&Object(&[("url", Text), ("protocolBinding", Text), ("tenant", Text), ("protocolVersion", Text)])),
    ),
    ("provider", Object(&[("url", Text), ("organization", Text)])),
    ("version", Text),
    ("documentationUrl", Text),
    (
        "capabilities",
        Object(&[
            ("streaming", Choice),
            ("pushNotifications", Choice),
            ("extendedAgentCard", Choice),
            (
                "extensions",
                List(&Object(&[("uri", Text), ("description", Text), ("required", Flag), ("params", Free)])),
            ),
        ]),
    ),
    ("securitySchemes", Map(&SCHEME)),
    ("securityRequirements", REQUIREMENTS),
    ("defaultInputModes", TEXTS),
    ("defaultOutputModes", TEXTS),
    (
        "skills",
        List(&Object(&[
            ("id", Text),
            ("name", Text),
            ("description", Text),
            ("tags", TEXTS),
            ("examples", TEXTS),
            ("inputModes", TEXTS),
            ("outputModes", TEXTS),
            ("securityRequirements", REQUIREMENTS),
        ])),
    ),
    ("iconUrl", Text),
];

/// The canonical bytes of a card of 1.0 without its signatures: the payload of a signature. Scopes that are empty are
/// not in it.
pub fn signing_payload(card: &Value) -> Result<String, Unsignable> {
    let mut card = card.clone();
    if let Some(card) = card.as_object_mut() {
        card.remove("signatures");
        without_empty_scopes(card);
        for skill in card.get_mut("skills").and_then(Value::as_array_mut).into_iter().flatten() {
            skill.as_object_mut().map(without_empty_scopes);
        }
    }
    check(&card, &Object(CARD), &mut String::new())?;
    canonical(&card).map_err(|e| Unsignable { what: format!("is the number {}", e.number), path: e.path })
}

fn without_empty_scopes(of: &mut serde_json::Map<String, Value>) {
    let Some(Value::Array(requirements)) = of.get_mut("securityRequirements") else { return };
    let is_empty =
        |v: &Value| v.as_object().is_some_and(|o| o.values().all(|l| l.as_array().is_some_and(Vec::is_empty)));
    for schemes in requirements.iter_mut().filter_map(|r| r.get_mut("schemes")?.as_object_mut()) {
        schemes.retain(|_, scopes| !is_empty(scopes));
    }
    requirements.retain(|r| {
        let only_schemes = r.as_object().is_some_and(|r| r.len() == 1);
        !only_schemes || r["schemes"].as_object().is_none_or(|s| !s.is_empty())
    });
    if requirements.is_empty() {
        of.remove("securityRequirements");
    }
}

fn check(value: &Value, shape: &Shape, path: &mut String) -> Result<(), Unsignable> {
    let bad = |path: &str, what: &str| Err(Unsignable { path: path.to_owned(), what: what.to_owned() });
    match (shape, value) {
        (Text | Free, Value::String(text)) if text.is_empty() => bad(path, "is an empty text"),
        (Free, Value::Number(n)) if n.is_f64() => bad(path, "is a number with a fraction"),
        (Text | Free, Value::String(_))
        | (Choice | Free, Value::Bool(_))
        | (Flag, Value::Bool(true))
        | (Free, Value::Number(_)) => Ok(()),
        (Flag, Value::Bool(false)) => bad(path, "is false: leave it out"),
        (List(_) | Free, Value::Array(list)) if list.is_empty() => bad(path, "is an empty list: leave it out"),
        (Object(_) | Map(_) | Free, Value::Object(object)) if object.is_empty() => {
            bad(path, "is an empty object: leave it out")
        }
        (List(_) | Free, Value::Array(list)) => {
            let inner = if let List(inner) = shape { inner } else { shape };
            list.iter()
                .enumerate()
                .try_for_each(|(i, value)| below(path, &format!("[{i}]"), |path| check(value, inner, path)))
        }
        (Object(_) | Map(_) | Free, Value::Object(object)) => object.iter().try_for_each(|(key, value)| {
            below(path, &format!(".{key}"), |path| {
                if key.is_empty() || key.chars().any(|c| u32::from(c) > 0xffff) {
                    return bad(path, "has a name that is not ordered the same everywhere");
                }
                match shape {
                    Object(schema) => match schema.iter().find(|(name, _)| name == key) {
                        Some((_, inner)) => check(value, inner, path),
                        None => bad(path, "is no member of a card of A2A 1.0"),
                    },
                    Map(inner) => check(value, inner, path),
                    _ => check(value, shape, path),
                }
            })
        }),
        (Text, _) => bad(path, "must be a text"),
        (Flag | Choice, _) => bad(path, "must be true or false"),
        (List(_), _) => bad(path, "must be a list"),
        (Object(_) | Map(_), _) => bad(path, "must be an object"),
        (Free, _) => bad(path, "is null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn card() -> Value {
        json!({"name": "A é", "description": "d", "version": "1", "signatures": [{"protected": "p", "signature": "s"}],
            "supportedInterfaces": [{"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "capabilities": {"streaming": false, "extensions": [{"uri": "urn:x", "params": {"n": 7, "b": false}}]},
            "securitySchemes": {"o": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "t", "scopes": {"r": "read"}}}}}},
            "securityRequirements": [{"schemes": {"o": {"list": ["r"]}}}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}]})
    }

    #[test]
    fn the_payload() {
        insta::assert_snapshot!(signing_payload(&card()).unwrap());
    }

    #[test]
    fn requirements_without_scopes_are_left_out() {
        let plain = signing_payload(&card()).unwrap();
        let with = |requirements: Value| {
            let mut card = card();
            card["securityRequirements"] = requirements;
            signing_payload(&card).unwrap()
        };
        let scoped = json!({"schemes": {"o": {"list": ["r"]}}});
        assert_eq!(with(json!([{"schemes": {"key": {}}}, scoped, {"schemes": {"key": {"list": []}}}])), plain);
        assert_eq!(with(json!([{"schemes": {"key": {"list": []}, "o": {"list": ["r"]}}}])), plain);
        let without = plain.replace(r#""securityRequirements":[{"schemes":{"o":{"list":["r"]}}}],"#, "");
        assert_eq!(with(json!([{"schemes": {"key": {}}}])), without);
        let mut card = card();
        card.as_object_mut().unwrap().remove("securityRequirements");
        card["skills"][0]["securityRequirements"] = json!([{"schemes": {"key": {}}}]);
        assert_eq!(signing_payload(&card).unwrap(), without);
    }

    #[test]
    fn what_verifiers_read_differently_is_refused() {
        let table: Vec<_> = [
            ("/description", json!("")),
            ("/description", json!(null)),
            ("/skills", json!([])),
            ("/skills/0/tags", json!([])),
            ("/securityRequirements", json!([{"schemes": {"o": {"list": [""]}}}])),
            ("/securityRequirements", json!([{"schemes": {}, "x": 1}])),
            ("/securityRequirements", json!({})),
            ("/capabilities/extensions/0/required", json!(false)),
            ("/capabilities/extensions/0/params/n", json!(1.5)),
            ("/capabilities/extensions/0/params/n", json!(1_u64 << 60)),
            ("/capabilities/extensions/0/params/n", json!(null)),
            ("/capabilities/extensions/0/params/n", json!({})),
            ("/capabilities/extensions/0/params/\u{1f600}", json!(1)),
            ("/x-mine", json!(1)),
            ("/skills/0/security", json!([])),
            ("/capabilities/streaming", json!("yes")),
            ("/skills/0", json!("s")),
            ("/url", json!("https://a.example")),
        ]
        .into_iter()
        .map(|(pointer, value)| {
            let mut card = card();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match card.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
                object => object[key] = value,
            }
            signing_payload(&card).unwrap_err().to_string() + "\n"
        })
        .collect();
        insta::assert_snapshot!(table.concat());
    }
}
