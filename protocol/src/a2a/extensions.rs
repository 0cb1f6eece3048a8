//! Extensions that a caller asks for (A2A 1.0, section 4.6.1).

use serde_json::{Value, json};

use super::errors::{Error, Kind};

/// Header that names them, as in 1.0; gRPC metadata has it too.
pub const HEADER: &str = "a2a-extensions";
/// The same in 0.3.
pub const HEADER_V03: &str = "x-a2a-extensions";
/// Our extension, which every card declares: streams that are resumed, messages that are sent again, and what became of
/// a receiver of push notifications. `docs/a2a-delivery-extension.md` describes it.
pub const DELIVERY: &str = "https://outrigger.dev/a2a/extensions/delivery/v1";
/// Most extensions that one request may ask for.
pub const MAX_EXTENSIONS: usize = 64;
/// Longest URI of one, in bytes.
pub const MAX_URI_BYTES: usize = 1_024;

/// Reads the values of the header, which may repeat: URIs between commas, each once, in order.
pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, Error> {
    let mut out: Vec<String> = Vec::new();
    for uri in values.into_iter().flat_map(|v| v.split(',')).map(str::trim).filter(|u| !u.is_empty()) {
        if uri.len() > MAX_URI_BYTES {
            return Err(refused(format!("an extension's URI is longer than {MAX_URI_BYTES} bytes")));
        }
        if out.iter().any(|known| known == uri) {
            continue;
        }
        if out.len() == MAX_EXTENSIONS {
            return Err(refused(format!("more than {MAX_EXTENSIONS} extensions are asked for")));
        }
        out.push(uri.to_owned());
    }
    Ok(out)
}

fn refused(message: String) -> Error {
    Error::new(Kind::InvalidRequest, message)
}

/// The extensions of a card.
pub fn of_card(card: &Value) -> impl Iterator<Item = &Value> {
    card.pointer("/capabilities/extensions").and_then(Value::as_array).into_iter().flatten()
}

/// [`DELIVERY`] as a card declares it. That it is not required goes without saying: a member with the value that it has
/// without being there could not be signed.
pub fn delivery() -> Value {
    json!({
        "uri": DELIVERY,
        "description": "Streams resume with Last-Event-ID, Idempotency-Key makes a message safe to send again, and \
            push notification configurations tell of dead letters.",
    })
}

/// The extensions that a card requires of every caller.
pub fn required(card: &Value) -> Vec<String> {
    let required = of_card(card).filter(|e| e.get("required") == Some(&Value::Bool(true)));
    required.filter_map(|e| e.get("uri")?.as_str().map(str::to_owned)).collect()
}

/// Refuses a request that does not ask for everything that is required.
pub fn check(required: &[String], asked: &[String]) -> Result<(), Error> {
    let Some(missing) = required.iter().find(|uri| !asked.contains(uri)) else { return Ok(()) };
    Err(Error::new(
        Kind::ExtensionSupportRequired,
        format!("this agent requires the extension {missing}: name it in the header A2A-Extensions"),
    )
    .with("extension", missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_in_order() {
        assert_eq!(parse([" urn:a , urn:b,", "urn:a", "", "urn:c"]).unwrap(), ["urn:a", "urn:b", "urn:c"]);
        assert_eq!(parse([]).unwrap(), Vec::<String>::new());
        let many = (0..65).map(|i| format!("urn:{i}")).collect::<Vec<_>>().join(",");
        assert_eq!(parse([many.as_str()]).unwrap_err().kind, Kind::InvalidRequest);
        assert!(parse([many.replace("urn:64", "urn:63").as_str()]).is_ok());
        assert!(parse(["x".repeat(1_025).as_str()]).is_err());
    }

    #[test]
    fn what_a_card_requires_must_be_asked_for() {
        let card = json!({"capabilities": {"extensions": [
            {"uri": "urn:a", "required": true}, {"uri": "urn:b"}, {"uri": "urn:c", "required": false}, {"required": true}]}});
        let required = required(&card);
        assert_eq!(required, ["urn:a"]);
        assert!(check(&required, &["urn:b".into(), "urn:a".into()]).is_ok());
        let e = check(&required, &[]).unwrap_err();
        assert!(e.kind == Kind::ExtensionSupportRequired && e.message.contains("urn:a"));
        assert!(super::required(&json!({})).is_empty());
    }
}
