//! Keys that sign: the card for its readers (A2A 1.0, section 8.4) and push notifications for their receivers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::Value;

use crate::folder::Entry;

/// Most keys of a folder.
pub const MAX_KEYS: usize = 16;

/// A private key with its public half as a JWK.
pub struct SigningKey {
    /// Its id: the name of its file.
    pub id: String,
    algorithm: Algorithm,
    key: EncodingKey,
    public: Value,
}

/// The keys of a folder, by name.
#[derive(Default)]
pub struct Keys {
    /// Those that can be used.
    pub keys: Vec<SigningKey>,
    /// What is wrong with the others, or with the folder; no word of it is secret.
    pub faults: Vec<String>,
}

impl Keys {
    /// Makes keys of PEM files: PKCS#8 of an elliptic curve (P-256, P-384), Ed25519 or RSA key, or PKCS#1.
    pub fn read(files: Result<Vec<Entry>, String>) -> Self {
        let mut keys = Self::default();
        match files {
            Err(e) => keys.faults.push(e),
            Ok(files) => {
                for file in files {
                    if keys.keys.len() == MAX_KEYS {
                        keys.faults.push(format!("{}: more than {MAX_KEYS} keys", file.name));
                        break;
                    }
                    match SigningKey::read(&file) {
                        Some(key) => keys.keys.push(key),
                        None => keys.faults.push(format!(
                            "{}: no PEM file with a private key of P-256, P-384, Ed25519 or RSA (2048 bits or more)",
                            file.name
                        )),
                    }
                }
                if keys.keys.is_empty() && keys.faults.is_empty() {
                    keys.faults.push("there is no key in the folder".to_owned());
                }
            }
        }
        keys
    }

    /// Public halves, for `jwks.json`.
    pub fn public(&self) -> impl Iterator<Item = &Value> {
        self.keys.iter().map(|k| &k.public)
    }
}

impl SigningKey {
    fn read(file: &Entry) -> Option<Self> {
        let pem = &file.content;
        let candidates = [
            (EncodingKey::from_ec_pem(pem), Algorithm::ES256),
            (EncodingKey::from_ec_pem(pem), Algorithm::ES384),
            (EncodingKey::from_ed_pem(pem), Algorithm::EdDSA),
            (EncodingKey::from_rsa_pem(pem), Algorithm::RS256),
        ];
        candidates.into_iter().find_map(|(key, algorithm)| {
            let key = key.ok()?;
            // The curve shows only when the key is used.
            crypto::sign(b"probe", &key, algorithm).ok()?;
            let mut public = serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).ok()?).ok()?;
            public["kid"] = Value::from(file.name.as_str());
            public["use"] = Value::from("sig");
            Some(Self { id: file.name.clone(), algorithm, key, public })
        })
    }

    /// Signs a JWS: gives the protected header and the signature, both in base64url. `members` are added to the header's
    /// `alg` and `kid`.
    pub fn sign(
        &self,
        members: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<(String, String), jsonwebtoken::errors::Error> {
        let mut header = serde_json::Map::new();
        header.insert("alg".into(), serde_json::to_value(self.algorithm)?);
        header.insert("kid".into(), Value::from(self.id.as_str()));
        for (name, value) in members {
            header.insert((*name).into(), Value::from(*value));
        }
        let protected = URL_SAFE_NO_PAD.encode(Value::Object(header).to_string());
        let input = format!("{protected}.{}", URL_SAFE_NO_PAD.encode(payload));
        let signature = crypto::sign(input.as_bytes(), &self.key, self.algorithm)?;
        Ok((protected, signature))
    }

    /// A JSON Web Token with these claims.
    pub fn token(&self, claims: &Value) -> Result<String, jsonwebtoken::errors::Error> {
        let payload = claims.to_string();
        let (protected, signature) = self.sign(&[("typ", "JWT")], payload.as_bytes())?;
        Ok(format!("{protected}.{}.{signature}", URL_SAFE_NO_PAD.encode(payload)))
    }
}
