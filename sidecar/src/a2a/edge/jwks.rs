//! Keys of an issuer (RFC 7517): found, kept, and read again when a token names one that is not there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use jsonwebtoken::jwk::{Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use outrigger_protocol::address::{Scheme, Target};
use outrigger_protocol::config::JwtIssuer;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Metrics;
use crate::folder::{Entry, Watched};
use crate::outbound::resolve::{Resolver, System};
use crate::outbound::{Client, Guard, Outgoing, Waits, tls};

/// How often keys are read.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Two readings are at least this far apart, whatever tokens name.
    pub refresh_gap: Duration,
    /// Keys older than this are read again while they go on being used.
    pub fresh_for: Duration,
    /// One reading takes at most so long: callers wait for it.
    pub fetch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            refresh_gap: Duration::from_secs(10),
            fresh_for: Duration::from_secs(300),
            fetch: Duration::from_secs(8),
        }
    }
}

/// Largest document.
const MAX_DOCUMENT: usize = 512 << 10;
/// Most keys of an issuer.
const MAX_KEYS: usize = 128;

/// An issuer with what is known of its keys.
pub(super) struct Issuer {
    pub(super) config: JwtIssuer,
    source: Source,
    current: ArcSwapOption<KeySet>,
    refreshed: Mutex<Option<Instant>>,
    read_at: parking_lot::Mutex<Option<Instant>>,
    metrics: Metrics,
    resolver: Arc<dyn Resolver>,
    timing: Timing,
}

enum Source {
    /// Given once; another document is another issuer.
    Fixed(Option<Arc<KeySet>>),
    Remote,
    File(Watched<Option<Arc<KeySet>>>),
}

/// Keys at one time.
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// Another document has another one; the same again leaves tokens that were checked as they are.
    pub(super) generation: u64,
}

struct Key {
    id: Option<String>,
    algorithm: Option<KeyAlgorithm>,
    public: DecodingKey,
}

impl Issuer {
    pub(super) fn new(config: JwtIssuer, metrics: Metrics, resolver: Arc<dyn Resolver>, timing: Timing) -> Arc<Self> {
        let source = config.jwks_file.as_ref().map_or(Source::Remote, |f| Source::File(Watched::new(f, from_file)));
        Self::on(config, source, metrics, resolver, timing)
    }

    /// With keys that are there already.
    pub(super) fn fixed(config: JwtIssuer, document: &Value, metrics: Metrics) -> Arc<Self> {
        let keys = KeySet::parse(document.to_string().as_bytes());
        if let Err(error) = &keys {
            tracing::warn!(target: "business", issuer = config.issuer, error, "the keys of a token issuer cannot be used");
        }
        let source = Source::Fixed(keys.ok().map(Arc::new));
        Self::on(config, source, metrics, Arc::new(System), Timing::default())
    }

    fn on(
        config: JwtIssuer,
        source: Source,
        metrics: Metrics,
        resolver: Arc<dyn Resolver>,
        timing: Timing,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            source,
            current: ArcSwapOption::empty(),
            refreshed: Mutex::default(),
            read_at: parking_lot::Mutex::default(),
            metrics,
            resolver,
            timing,
        })
    }

    /// The keys to check a token with; `None` when there were never any.
    pub(super) async fn keys(self: &Arc<Self>, kid: Option<&str>) -> Option<Arc<KeySet>> {
        match &self.source {
            Source::Fixed(keys) => return keys.clone(),
            Source::File(file) => return file.get().as_ref().clone(),
            Source::Remote => {}
        }
        if let Some(keys) = self.current.load_full()
            && keys.has(kid)
        {
            if self.read_at.lock().is_none_or(|at| at.elapsed() > self.timing.fresh_for) {
                // An issuer that is down stops nobody whose key is known.
                let issuer = Arc::clone(self);
                tokio::spawn(async move { issuer.refresh().await });
            }
            return Some(keys);
        }
        self.refresh().await;
        self.current.load_full()
    }

    /// Which keys are in force.
    pub(super) fn generation(&self) -> Option<u64> {
        match &self.source {
            Source::Fixed(keys) => keys.as_ref().map(|k| k.generation),
            Source::File(file) => file.get().as_ref().as_ref().map(|k| k.generation),
            Source::Remote => self.current.load().as_ref().map(|k| k.generation),
        }
    }

    /// Reads the keys, one reader at a time; those who waited find the work done.
    async fn refresh(&self) {
        let mut last = self.refreshed.lock().await;
        if last.is_some_and(|at| at.elapsed() < self.timing.refresh_gap) {
            return;
        }
        let got = self.fetch().await;
        *last = Some(Instant::now());
        match got {
            Ok(keys) => {
                self.metrics.jwks.with_label_values(&["read"]).inc();
                *self.read_at.lock() = Some(Instant::now());
                self.current.store(Some(Arc::new(keys)));
            }
            Err(error) => {
                self.metrics.jwks.with_label_values(&["failed"]).inc();
                tracing::warn!(target: "transport", issuer = self.config.issuer, error, "keys of a token issuer cannot be read");
            }
        }
    }

    async fn fetch(&self) -> Result<KeySet, String> {
        let trust = match &self.config.ca_file {
            Some(file) => tls::only(Path::new(file)),
            None => tls::public(),
        };
        let waits = Waits { total: self.timing.fetch, ..Waits::default() };
        let client = Client::new(Guard::Open, trust.map_err(|e| e.to_string())?, Arc::clone(&self.resolver), waits);
        let url = match &self.config.jwks_url {
            Some(url) => url.clone(),
            None => self.discover(&client).await?,
        };
        KeySet::parse(&get(&client, &url).await?)
    }

    async fn discover(&self, client: &Client) -> Result<String, String> {
        let issuer = &self.config.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document: Value = serde_json::from_slice(&get(client, &url).await?).map_err(|e| format!("{url}: {e}"))?;
        if document["issuer"].as_str() != Some(issuer) {
            return Err(format!("{url} speaks of another issuer"));
        }
        let keys = document["jwks_uri"].as_str().ok_or_else(|| format!("{url} has no jwks_uri"))?;
        let secure = |url: &str| Target::parse(url).is_ok_and(|t| t.scheme() == Scheme::Https);
        if secure(&url) && !secure(keys) {
            return Err(format!("{url} names keys without TLS"));
        }
        Ok(keys.to_owned())
    }
}

async fn get(client: &Client, url: &str) -> Result<bytes::Bytes, String> {
    let target = Target::parse(url).map_err(|e| format!("{url} {e}"))?;
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let request =
        Outgoing { method: Method::GET, target, headers, body: bytes::Bytes::new(), max_answer: MAX_DOCUMENT };
    let answer = client.send(request).await.map_err(|e| format!("{url}: {e}"))?;
    if answer.status != StatusCode::OK {
        return Err(format!("{url} answers {}", answer.status));
    }
    answer.body.ok_or_else(|| format!("{url} is larger than {MAX_DOCUMENT} bytes"))
}

fn from_file(files: Result<Vec<Entry>, String>) -> Option<Arc<KeySet>> {
    let file = files.and_then(|mut files| files.pop().ok_or_else(|| "it is not there".to_owned()));
    match file.and_then(|f| KeySet::parse(&f.content)) {
        Ok(keys) => Some(Arc::new(keys)),
        Err(error) => {
            tracing::warn!(target: "business", error, "the file with a token issuer's keys cannot be used");
            None
        }
    }
}

impl KeySet {
    /// Reads a JWK Set. Keys of kinds that are not known are passed over, as the RFC says.
    fn parse(document: &[u8]) -> Result<Self, String> {
        let hash = Sha256::digest(document);
        let generation = hash.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let document: Value = serde_json::from_slice(document).map_err(|e| format!("the key set is no JSON: {e}"))?;
        let list = document["keys"].as_array().ok_or("the key set has no list of keys")?;
        let mut keys = Vec::new();
        for value in list.iter().take(MAX_KEYS) {
            let Ok(jwk) = serde_json::from_value::<Jwk>(value.clone()) else { continue };
            let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
            if let (true, Ok(public)) = (signs, DecodingKey::from_jwk(&jwk)) {
                keys.push(Key { id: jwk.common.key_id, algorithm: jwk.common.key_algorithm, public });
            }
        }
        if keys.is_empty() {
            return Err("the key set has no key that signs".to_owned());
        }
        Ok(Self { keys, generation })
    }

    fn has(&self, kid: Option<&str>) -> bool {
        kid.is_none_or(|kid| self.keys.iter().any(|k| k.id.as_deref() == Some(kid)))
    }

    /// Keys that may have signed a token: those of its `kid`, and of the kind that its algorithm needs.
    pub(super) fn candidates(&self, kid: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &DecodingKey> {
        self.keys
            .iter()
            .filter(move |k| kid.is_none() || k.id.as_deref() == kid)
            .filter(move |k| k.algorithm.is_none_or(|a| a == KeyAlgorithm::from(algorithm)))
            .map(|k| &k.public)
            .filter(move |k| k.family() == algorithm.family())
    }
}
