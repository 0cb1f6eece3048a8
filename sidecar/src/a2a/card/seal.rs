//! Signatures of the card (A2A 1.0, section 8.4).

use outrigger_protocol::a2a::card::{canonical, signing_payload};
use serde_json::{Value, json};

use super::KEYS_PATH;
use crate::a2a::signer::Keys;

/// One signature per key, and two where the specification can be read in two ways: verifiers take a card when one of
/// them fits. An error says why there is none.
pub(super) fn signatures(card: &Value, keys: &Keys, base: &str) -> Result<Value, String> {
    if keys.keys.is_empty() {
        return Err(keys.faults.join("; "));
    }
    let payload = signing_payload(card).map_err(|e| e.to_string())?;
    let literal = canonical(card).map_err(|e| e.to_string())?;
    let url = format!("{base}{KEYS_PATH}");
    let mut members = vec![("typ", "JOSE")];
    // Keys from elsewhere are believed only where nobody in between can change them.
    if base.starts_with("https://") {
        members.push(("jku", url.as_str()));
    }
    let mut all = Vec::new();
    for key in &keys.keys {
        for bytes in [&payload, &literal] {
            let (protected, signature) =
                key.sign(&members, bytes.as_bytes()).map_err(|e| format!("{}: {e}", key.id))?;
            all.push(json!({"protected": protected, "signature": signature}));
            if payload == literal {
                break;
            }
        }
    }
    Ok(all.into())
}
