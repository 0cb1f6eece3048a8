//! Who signs the tokens of ServiceAccounts, and with which keys: read from the API server, handed to the pods of
//! Standalone tool servers, which check the tokens of those who call them.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::RwLock;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::apply::cut;
use crate::metrics::Metrics;
use crate::scopes::Scopes;

/// Between two readings. The API server publishes a new key before it signs with it.
const PERIOD: Duration = Duration::from_mins(5);
/// Between two readings while there was no good one.
const RETRY: Duration = Duration::from_secs(10);
/// Longest time for one reading.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most keys of a cluster.
const MAX_KEYS: usize = 64;

/// An issuer with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Value of `iss` in tokens.
    pub url: String,
    /// Its keys (a JWK Set), sorted by key id, so that the same keys are the same document.
    pub jwks: Value,
}

/// What is known of the cluster's issuer; clones share it.
#[derive(Clone, Default)]
pub struct Issuers(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    issuer: Option<Arc<Issuer>>,
    error: String,
}

impl Issuers {
    /// The issuer, or why it is not known.
    pub fn get(&self) -> Result<Arc<Issuer>, String> {
        let known = self.0.read();
        known.issuer.clone().ok_or_else(|| known.error.clone())
    }

    /// Keeps what was read; whether it is news.
    pub fn put(&self, read: Result<Issuer, String>) -> bool {
        let mut known = self.0.write();
        match read {
            Ok(issuer) if known.issuer.as_deref() == Some(&issuer) => false,
            Ok(issuer) => {
                known.issuer = Some(Arc::new(issuer));
                true
            }
            // The last good keys stay.
            Err(error) => {
                let news = known.issuer.is_none() && known.error != error;
                known.error = error;
                news
            }
        }
    }
}

/// Reads the issuer now and then until `shutdown`, and has Standalone servers looked at when it changed.
pub async fn follow(client: Client, issuers: Issuers, scopes: Scopes, metrics: Metrics, shutdown: CancellationToken) {
    loop {
        let read = tokio::time::timeout(TIMEOUT, read(&client)).await;
        let read =
            read.unwrap_or_else(|_| Err(format!("the API server did not answer within {} s", TIMEOUT.as_secs())));
        metrics.issuer_reads.with_label_values(&[if read.is_ok() { "ok" } else { "error" }]).inc();
        if let Err(error) = &read {
            tracing::warn!(error, "the cluster's token issuer cannot be read");
        }
        let wait = if read.is_ok() { PERIOD } else { RETRY };
        if issuers.put(read) {
            scopes.tell_standalone();
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
    client.request(request).await.map_err(|e| cut(&format!("{path}: {e}")))
}

/// Reads both documents (discovery of an issuer, RFC 8414, and its keys, RFC 7517) from the API server itself: the address in the first one
/// need not be reachable.
async fn read(client: &Client) -> Result<Issuer, String> {
    let discovery = get(client, "/.well-known/openid-configuration").await?;
    let url = discovery["issuer"].as_str().filter(|i| !i.is_empty()).ok_or("the API server names no issuer")?;
    let jwks = keys(&get(client, "/openid/v1/jwks").await?)?;
    Ok(Issuer { url: url.to_owned(), jwks })
}

fn keys(document: &Value) -> Result<Value, String> {
    let mut keys = document["keys"].as_array().cloned().ok_or("the API server lists no keys")?;
    if keys.is_empty() || keys.len() > MAX_KEYS {
        return Err(format!("the API server lists {} keys, want 1 to {MAX_KEYS}", keys.len()));
    }
    keys.sort_by_key(Value::to_string);
    Ok(serde_json::json!({"keys": keys}))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_good_keys_stay() {
        let issuers = Issuers::default();
        assert!(issuers.put(Err("down".into())), "it is worth a word that there are none");
        assert!(!issuers.put(Err("down".into())));
        assert_eq!(issuers.get().unwrap_err(), "down");
        let issuer = |keys: Value| Issuer { url: "https://issuer".into(), jwks: keys };
        assert!(issuers.put(Ok(issuer(json!({"keys": [1]})))));
        assert!(!issuers.put(Ok(issuer(json!({"keys": [1]})))));
        assert!(!issuers.put(Err("down again".into())));
        assert_eq!(issuers.get().unwrap().jwks, json!({"keys": [1]}));
        assert!(issuers.put(Ok(issuer(json!({"keys": [2]})))));
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let of = |list: Value| keys(&json!({"keys": list})).unwrap();
        assert_eq!(of(json!([{"kid": "b"}, {"kid": "a"}])), of(json!([{"kid": "a"}, {"kid": "b"}])));
        assert!(keys(&json!({"keys": []})).unwrap_err().contains("0 keys"));
        assert!(keys(&json!({})).is_err());
    }
}
