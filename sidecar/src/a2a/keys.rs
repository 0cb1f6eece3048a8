//! Idempotency: under which key a message is remembered, so that a repetition is answered and not done again.

use std::sync::Arc;

use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::raw::{Kind, Members, elements, kind};
use outrigger_protocol::digest::hex;
use sha2::{Digest, Sha256};

use super::store::Key;

/// Longest `Idempotency-Key`, in bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// With `turns.dedupeMessages` the same message again within this time is the same turn; up to twice as long.
const WINDOW_SECONDS: i64 = 60;

/// The keys of a message: it is remembered under the first, and was done before if any is known.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub Vec<Key>);

/// The key that a caller gave.
pub fn given(caller: &str, key: &str, params: &str, turn: &Arc<str>) -> Result<Keys, Error> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES || key.bytes().any(|b| b.is_ascii_control()) {
        let what = format!("must be 1 to {MAX_KEY_BYTES} bytes without control characters");
        return Err(Error::invalid_field("Idempotency-Key", what));
    }
    let id = format!("k\n{caller}\n{key}").into();
    Ok(Keys(vec![Key { id, hash: hash(params).into(), turn: Arc::clone(turn) }]))
}

/// The keys of a message by its content, at a time in seconds since 1970.
pub fn by_content(caller: &str, task: &str, message: &str, params: &str, turn: &Arc<str>, now: i64) -> Keys {
    let hash: Arc<str> = hash(params).into();
    let window = now / WINDOW_SECONDS;
    let key = |window: i64| {
        // The hash is part of the name: another body with the same message id is another message.
        let id = format!("m\n{caller}\n{task}\n{message}\n{hash}\n{window}").into();
        Key { id, hash: Arc::clone(&hash), turn: Arc::clone(turn) }
    };
    Keys(vec![key(window), key(window - 1)])
}

/// SHA-256 of a JSON value whatever its spaces and the order of its members, hex.
fn hash(json: &str) -> String {
    let mut digest = Sha256::new();
    feed(json, &mut digest);
    hex(&digest.finalize())
}

fn feed(json: &str, digest: &mut Sha256) {
    match kind(json) {
        Kind::Object => {
            let Ok(members) = Members::split(json) else { return digest.update(json) };
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            digest.update("{");
            for (key, value) in sorted {
                digest.update(key.len().to_le_bytes());
                digest.update(key);
                feed(value.get(), digest);
            }
            digest.update("}");
        }
        Kind::List => {
            let Ok(list) = elements(json) else { return digest.update(json) };
            digest.update("[");
            for value in list {
                feed(value.get(), digest);
            }
            digest.update("]");
        }
        Kind::Text => match serde_json::from_str::<String>(json) {
            Ok(text) => {
                digest.update("\"");
                digest.update(text.len().to_le_bytes());
                digest.update(text);
            }
            Err(_) => digest.update(json),
        },
        _ => {
            digest.update(json.trim());
            digest.update(",");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_members_does_not_matter_and_all_else_does() {
        let same = [
            r#"{"a":1,"b":[true,{"c":"x","d":null}]}"#,
            "{ \"b\" : [ true, {\"d\":null,\"\\u0063\":\"\\u0078\"} ],\n\"a\":1 }",
        ];
        assert_eq!(hash(same[0]), hash(same[1]));
        let others = [
            r#"{"a":1,"b":[true,{"c":"x"}]}"#,
            r#"{"a":1,"b":[{"c":"x","d":null},true]}"#,
            r#"{"a":"1","b":[true,{"c":"x","d":null}]}"#,
            r#"{"a":1.0,"b":[true,{"c":"x","d":null}]}"#,
            r#"{"a":12,"b":[true,{"c":"x","d":null}]}"#,
            "{}",
        ];
        let mut all: Vec<_> = others.iter().map(|o| hash(o)).chain([hash(same[0])]).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1);
        assert_ne!(hash("[1,2]"), hash("[12]"));
    }

    #[test]
    fn keys_are_checked_and_scoped() {
        let turn: Arc<str> = "t".into();
        for bad in ["", "a\nb", &"x".repeat(MAX_KEY_BYTES + 1)] {
            assert!(given("c", bad, "{}", &turn).is_err());
        }
        let id = |caller: &str| given(caller, "k", "{}", &turn).unwrap().0[0].id.clone();
        assert_ne!(id("a"), id("b"));
        let at = |now| by_content("c", "", "m", "{}", &turn, now).0;
        assert!(at(119)[1].id == at(0)[0].id && at(120).iter().all(|k| k.id != at(0)[0].id));
    }
}
