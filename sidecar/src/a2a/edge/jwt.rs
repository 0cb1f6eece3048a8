//! JSON Web Tokens (RFC 7519), as RFC 8725 says they should be checked.

use std::collections::HashMap;
use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use outrigger_protocol::config::JwtIssuer;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::{Duration, Instant};

use super::jwks::{Issuer, KeySet, Timing};
use super::{Identity, MAX_SUBJECT, Metrics};
use crate::outbound::resolve::Resolver;

/// Clocks may differ by so many seconds.
const LEEWAY: u64 = 30;
/// Longest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// Tokens that are remembered as good.
const MAX_KNOWN: usize = 4096;
/// For so long at most.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Most scopes of a token that are kept.
const MAX_SCOPES: usize = 256;

/// Why a token is not enough.
#[derive(Debug)]
pub(crate) enum Denied {
    /// It is none, or not for us.
    Invalid(&'static str),
    /// It lacks one of these scopes.
    Scope(Vec<String>),
    /// The issuer's keys were never seen, and it does not answer.
    Unavailable,
}

/// Checks tokens of the configured issuers.
pub(crate) struct Verifier {
    issuers: Vec<Arc<Issuer>>,
    known: Mutex<HashMap<[u8; 32], Known>>,
}

/// A token that was checked.
struct Known {
    identity: Arc<Identity>,
    until: Instant,
    issuer: usize,
    keys: u64,
}

#[derive(Deserialize)]
struct Issued {
    iss: Option<String>,
}

#[derive(Deserialize)]
struct Claims {
    exp: Option<f64>,
    sub: Option<String>,
    client_id: Option<String>,
    scope: Option<Value>,
    scp: Option<Value>,
}

impl Verifier {
    pub(super) fn new(
        configs: &[JwtIssuer],
        before: Option<&Self>,
        metrics: &Metrics,
        resolver: &Arc<dyn Resolver>,
        timing: Timing,
    ) -> Self {
        let kept = |config: &JwtIssuer| before.and_then(|b| b.issuers.iter().find(|i| i.config == *config));
        let issuers = configs
            .iter()
            .map(|c| {
                kept(c)
                    .cloned()
                    .unwrap_or_else(|| Issuer::new(c.clone(), metrics.clone(), Arc::clone(resolver), timing))
            })
            .collect();
        Self { issuers, known: Mutex::default() }
    }

    /// For one issuer whose keys are there already.
    pub(crate) fn fixed(issuer: &str, audience: &str, keys: &Value, metrics: &Metrics) -> Self {
        let config = JwtIssuer {
            issuer: issuer.to_owned(),
            audiences: vec![audience.to_owned()],
            jwks_url: None,
            jwks_file: None,
            ca_file: None,
            scopes: Vec::new(),
        };
        Self { issuers: vec![Issuer::fixed(config, keys, metrics.clone())], known: Mutex::default() }
    }

    /// Whose token it is.
    pub(crate) async fn verify(&self, token: &str) -> Result<Arc<Identity>, Denied> {
        if token.len() > MAX_TOKEN {
            return Err(Denied::Invalid("it is too long"));
        }
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(identity) = self.remembered(&hash) {
            return Ok(identity);
        }
        let header = decode_header(token).map_err(|_| Denied::Invalid("it is malformed"))?;
        if !allowed(header.alg) {
            return Err(Denied::Invalid("its algorithm is not accepted"));
        }
        let issued: Issued =
            jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| Denied::Invalid("it is malformed"))?;
        let mut denied = Denied::Invalid("its issuer is not accepted");
        for (at, issuer) in self.issuers.iter().enumerate() {
            if issued.iss.as_deref() != Some(issuer.config.issuer.as_str()) {
                continue;
            }
            let Some(keys) = issuer.keys(header.kid.as_deref()).await else {
                denied = Denied::Unavailable;
                continue;
            };
            match check(token, header.alg, header.kid.as_deref(), &issuer.config, &keys) {
                Ok((identity, exp)) => {
                    let identity = Arc::new(identity);
                    self.remember(hash, Arc::clone(&identity), exp, at, keys.generation);
                    return Ok(identity);
                }
                Err(why) => denied = why,
            }
        }
        Err(denied)
    }

    fn remembered(&self, hash: &[u8; 32]) -> Option<Arc<Identity>> {
        let known = self.known.lock();
        let entry = known.get(hash)?;
        let issuer = self.issuers.get(entry.issuer)?;
        let good = entry.until > Instant::now() && issuer.generation() == Some(entry.keys);
        good.then(|| Arc::clone(&entry.identity))
    }

    fn remember(&self, hash: [u8; 32], identity: Arc<Identity>, exp: f64, issuer: usize, keys: u64) {
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        // The leeway is for clocks, not for time.
        let left = Duration::try_from_secs_f64(exp - now).unwrap_or_default().min(KNOWN_FOR);
        if left.is_zero() {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            let now = Instant::now();
            known.retain(|_, k| k.until > now);
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
        }
        known.insert(hash, Known { identity, until: Instant::now() + left, issuer, keys });
    }
}

/// Signatures that anybody can check and only the issuer can make.
fn allowed(algorithm: Algorithm) -> bool {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    matches!(algorithm, ES256 | ES384 | EdDSA | PS256 | PS384 | PS512 | RS256 | RS384 | RS512)
}

fn check(
    token: &str,
    algorithm: Algorithm,
    kid: Option<&str>,
    config: &JwtIssuer,
    keys: &KeySet,
) -> Result<(Identity, f64), Denied> {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY;
    validation.validate_nbf = true;
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&config.audiences);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let mut why = "its key is not known";
    for key in keys.candidates(kid, algorithm) {
        match decode::<Claims>(token, key, &validation) {
            Ok(data) => return accept(data.claims, config),
            Err(error) => {
                why = match error.kind() {
                    ErrorKind::InvalidSignature => "its signature is wrong",
                    ErrorKind::ExpiredSignature => return Err(Denied::Invalid("it has expired")),
                    ErrorKind::ImmatureSignature => return Err(Denied::Invalid("it is not valid yet")),
                    ErrorKind::InvalidAudience => return Err(Denied::Invalid("it is for another audience")),
                    ErrorKind::MissingRequiredClaim(_) => return Err(Denied::Invalid("it lacks exp, iss or aud")),
                    _ => "it is malformed",
                }
            }
        }
    }
    Err(Denied::Invalid(why))
}

fn accept(claims: Claims, config: &JwtIssuer) -> Result<(Identity, f64), Denied> {
    let subject = claims.sub.or(claims.client_id).unwrap_or_default();
    if subject.is_empty() || subject.len() > MAX_SUBJECT {
        return Err(Denied::Invalid("it names no subject, or a very long one"));
    }
    let mut scopes = Vec::new();
    for claim in [claims.scope, claims.scp].into_iter().flatten() {
        match claim {
            Value::String(list) => scopes.extend(list.split_ascii_whitespace().map(str::to_owned)),
            Value::Array(list) => scopes.extend(list.iter().filter_map(Value::as_str).map(str::to_owned)),
            _ => {}
        }
    }
    if !config.scopes.iter().all(|wanted| scopes.contains(wanted)) {
        return Err(Denied::Scope(config.scopes.clone()));
    }
    scopes.truncate(MAX_SCOPES);
    Ok((Identity { subject, issuer: config.issuer.clone(), scopes }, claims.exp.unwrap_or_default()))
}
