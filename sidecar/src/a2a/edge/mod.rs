//! Who calls, and whether that caller may (A2A 1.0, section 7).
//!
//! A caller proves who it is by a token of an issuer or by an API key; nothing else in a request says anything about
//! its sender. What the handler gets to know of a caller is in the turn, so no header can be spoofed.
//!
//! A credential that is wrong is refused, even where callers without any are let in.

mod jwks;
mod jwt;
mod keys;
mod metrics;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::config::Live;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::call::{Caller, Identity};
use super::card::truth::SELF_HEADER;
use super::ids::uuid;
use crate::bucket::Buckets;
use crate::outbound::resolve::{Resolver, System};
pub(crate) use jwt::{Denied, Verifier};
use keys::ApiKeyring;

pub use jwks::Timing;
pub use metrics::Metrics;

/// `issuer` of a caller with an API key.
pub const API_KEY_ISSUER: &str = "api-key";
/// Key of the sidecar itself as a caller; it owns no task.
const SELF_KEY: &str = "outrigger-self";
/// Longest name of a caller, in bytes.
pub const MAX_SUBJECT: usize = 512;

/// Lets callers in.
pub struct Edge {
    live: watch::Receiver<Arc<Live>>,
    gate: ArcSwap<Gate>,
    rebuild: Mutex<()>,
    buckets: Buckets,
    metrics: Metrics,
    anonymous: Caller,
    resolver: Arc<dyn Resolver>,
    timing: Timing,
    secret: Arc<str>,
}

/// What the live configuration asks for, made ready.
struct Gate {
    of: Arc<Live>,
    /// Nobody is asked for anything, and nothing is counted.
    open: bool,
    /// Whether callers without credentials are let in.
    anonymous: bool,
    keys: Option<ApiKeyring>,
    tokens: Option<Verifier>,
    /// `WWW-Authenticate`.
    challenge: String,
}

impl Edge {
    /// Follows the live configuration.
    pub fn new(live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Arc<Self> {
        Self::with(live, metrics, Arc::new(System), Timing::default())
    }

    /// With another resolver of the issuers' names and other times.
    pub fn with(
        live: watch::Receiver<Arc<Live>>,
        metrics: Metrics,
        resolver: Arc<dyn Resolver>,
        timing: Timing,
    ) -> Arc<Self> {
        let gate = Gate::new(Arc::clone(&live.borrow()), None, &metrics, &resolver, timing);
        Arc::new(Self {
            live,
            gate: ArcSwap::from_pointee(gate),
            rebuild: Mutex::default(),
            buckets: Buckets::default(),
            metrics,
            anonymous: Caller::anonymous(),
            resolver,
            timing,
            secret: format!("{}{}", uuid(), uuid()).into(),
        })
    }

    /// Finds out who sent a request. [`Kind::Unauthenticated`] and [`Kind::Forbidden`] come with `WWW-Authenticate`,
    /// [`Kind::RateLimited`] with `Retry-After`; [`Kind::Unavailable`] when an issuer's keys were never seen.
    pub async fn admit(&self, headers: &HeaderMap, tenant: Option<&str>) -> Result<Caller, Error> {
        let gate = self.gate();
        if gate.open && tenant.is_none() {
            return Ok(self.anonymous.clone());
        }
        if headers.get(SELF_HEADER).is_some_and(|given| keys::same_text(given.as_bytes(), self.secret.as_bytes())) {
            return Ok(Caller { key: SELF_KEY.into(), identity: None });
        }
        let identity = match gate.identify(headers).await {
            Ok(identity) => identity,
            Err(error) => {
                self.metrics.admissions.with_label_values(&[error.kind.label()]).inc();
                tracing::debug!(target: "protocol", reason = error.message, "caller refused");
                return Err(error);
            }
        };
        let limits = &gate.of.limits;
        if limits.max_requests_per_second > 0 {
            // Without the tenant, which anybody can make up.
            let who = key(identity.as_deref());
            if let Err(wait) = self.buckets.take(&who, f64::from(limits.max_requests_per_second), limits.request_burst)
            {
                self.metrics.admissions.with_label_values(&[Kind::RateLimited.label()]).inc();
                let message = format!("more than {} requests in a second", limits.max_requests_per_second);
                return Err(Error::new(Kind::RateLimited, message).retry_after(wait));
            }
        }
        if !gate.open {
            let how = match identity.as_deref() {
                None => "anonymous",
                Some(identity) if identity.issuer == API_KEY_ISSUER => "api_key",
                Some(_) => "token",
            };
            self.metrics.admissions.with_label_values(&[how]).inc();
        }
        Ok(Caller { key: key(identity.as_deref()), identity }.in_tenant(tenant))
    }

    /// What the sidecar's calls of its own carry in [`SELF_HEADER`]: they are let in as nobody, whatever is asked for.
    /// New with each start, never logged.
    pub fn secret(&self) -> Arc<str> {
        Arc::clone(&self.secret)
    }

    /// What a request without credentials is told; for operations that are never anonymous.
    pub fn challenge(&self) -> Error {
        self.gate().unauthenticated("credentials are needed")
    }

    fn gate(&self) -> Arc<Gate> {
        let gate = self.gate.load_full();
        if Arc::ptr_eq(&gate.of, &self.live.borrow()) {
            return gate;
        }
        let _one = self.rebuild.lock();
        let gate = self.gate.load_full();
        let live = Arc::clone(&self.live.borrow());
        if Arc::ptr_eq(&gate.of, &live) {
            return gate;
        }
        let fresh = Arc::new(Gate::new(live, Some(&gate), &self.metrics, &self.resolver, self.timing));
        self.gate.store(Arc::clone(&fresh));
        fresh
    }
}

impl Gate {
    fn new(
        live: Arc<Live>,
        before: Option<&Self>,
        metrics: &Metrics,
        resolver: &Arc<dyn Resolver>,
        timing: Timing,
    ) -> Self {
        let access = &live.access;
        let known = |gate: &Self| gate.of.access.api_key == access.api_key;
        let keys = match before.filter(|b| known(b)) {
            Some(before) => before.keys.clone(),
            None => access.api_key.as_ref().map(ApiKeyring::new),
        };
        let tokens = (!access.jwt.is_empty())
            .then(|| Verifier::new(&access.jwt, before.and_then(|b| b.tokens.as_ref()), metrics, resolver, timing));
        let mut challenges = Vec::new();
        if tokens.is_some() {
            challenges.push("Bearer".to_owned());
        }
        if let Some(keys) = &access.api_key {
            challenges.push(format!("ApiKey header=\"{}\"", keys.header));
        }
        let proof = keys.is_some() || tokens.is_some();
        Self {
            open: !proof && live.limits.max_requests_per_second == 0,
            anonymous: !proof || access.anonymous,
            keys,
            tokens,
            challenge: if challenges.is_empty() { "Bearer".to_owned() } else { challenges.join(", ") },
            of: live,
        }
    }

    async fn identify(&self, headers: &HeaderMap) -> Result<Option<Arc<Identity>>, Error> {
        if let Some(verifier) = &self.tokens
            && let Some(token) = bearer(headers)
        {
            return match verifier.verify(&token).await {
                Ok(identity) => Ok(Some(identity)),
                Err(denied) => Err(refusal(denied)),
            };
        }
        if let Some(keys) = &self.keys {
            match keys.find(headers) {
                keys::Found::Nothing => {}
                keys::Found::Known(identity) => return Ok(Some(identity)),
                keys::Found::Unknown => return Err(self.unauthenticated("the API key is not known")),
            }
        }
        if self.anonymous { Ok(None) } else { Err(self.unauthenticated("credentials are needed")) }
    }

    fn unauthenticated(&self, message: &str) -> Error {
        Error::new(Kind::Unauthenticated, message).header("www-authenticate", self.challenge.clone())
    }
}

fn refusal(denied: Denied) -> Error {
    match denied {
        Denied::Invalid(why) => {
            let message = format!("the token is not accepted: {why}");
            let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{why}\"");
            Error::new(Kind::Unauthenticated, message).header("www-authenticate", challenge)
        }
        Denied::Scope(scopes) => {
            let scopes = scopes.join(" ");
            let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scopes}\"");
            Error::new(Kind::Forbidden, format!("the token lacks a scope, want all of: {scopes}"))
                .header("www-authenticate", challenge)
        }
        Denied::Unavailable => {
            Error::new(Kind::Unavailable, "the keys of the token's issuer cannot be read now").retry_after(10)
        }
    }
}

/// The token of an `Authorization: Bearer` header.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<std::borrow::Cow<'_, str>> {
    let value = headers.get(http::header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| String::from_utf8_lossy(token.trim_ascii()))
}

/// Whose tasks they are. A hash: names of callers are long at times and do not belong in file names and logs.
fn key(identity: Option<&Identity>) -> Arc<str> {
    let Some(Identity { issuer, subject, .. }) = identity else { return "".into() };
    let mut text = Vec::new();
    for field in [issuer, subject] {
        text.extend_from_slice(&(field.len() as u64).to_be_bytes());
        text.extend_from_slice(field.as_bytes());
    }
    outrigger_protocol::digest::sha256(&text)[..32].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_callers_do_not_meet() {
        let who = |issuer: &str, subject: &str| Identity {
            issuer: issuer.into(),
            subject: subject.into(),
            scopes: vec!["changes nothing".into()],
        };
        let all = [
            key(None),
            key(Some(&who("i", "s"))),
            key(Some(&who("is", ""))),
            key(Some(&who("", "is"))),
            key(Some(&who("i", "st"))),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{i}");
        }
        let other = Identity { scopes: vec![], ..who("i", "s") };
        assert_eq!(key(Some(&other)), all[1]);
        assert_eq!(&*all[0], "");
    }
}
