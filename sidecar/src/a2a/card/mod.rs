//! The Agent Card as it is served (A2A 1.0, sections 4.4 and 8), put together when it is asked for: of what the agent
//! says of itself, where it is offered, who may call, and which interfaces passed a call of our own.
//!
//! Readers of 0.3 and 1.0 share one document that is both. With keys that sign, readers that say they know 1.0 get the
//! plain card of 1.0 with its signatures: what 0.3 needs beside it would break them.

mod build;
mod origin;
mod respond;
mod seal;
pub mod truth;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use outrigger_protocol::a2a::card as rules;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::part::Modes;
use outrigger_protocol::config::Live;
use outrigger_protocol::status::CardStatus;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

pub(crate) use respond::keys as answer_keys;
pub use respond::peer;

use crate::a2a::call::{Answer, Caller};
use crate::a2a::signer::Keys;
use crate::folder::Watched;
use truth::Facts;

/// Where the card is served: the path of 1.0, and that of 0.2, which clients still ask.
pub const PATHS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];
/// Where the public keys are that sign the card and push notifications.
pub const KEYS_PATH: &str = "/.well-known/jwks.json";
/// Most places that readers come from, each with its own rendering.
const MAX_RENDERED: usize = 64;

/// The address of a request's peer, as the listener puts it among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Serves the card.
pub struct Card {
    live: watch::Receiver<Arc<Live>>,
    facts: watch::Receiver<Arc<Facts>>,
    agent: ArcSwapOption<Value>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    of: Option<Source>,
    rendered: HashMap<Option<String>, Arc<Rendered>>,
    keys: Option<(String, Arc<Watched<Keys>>)>,
}

/// What renderings were made of.
#[derive(Clone)]
struct Source {
    live: Arc<Live>,
    facts: Arc<Facts>,
    agent: Option<Arc<Value>>,
    keys: Option<Arc<Keys>>,
}

impl Source {
    fn is(&self, other: &Self) -> bool {
        let same = |a: &Option<Arc<Keys>>, b: &Option<Arc<Keys>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let same_agent = match (&self.agent, &other.agent) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        Arc::ptr_eq(&self.live, &other.live)
            && Arc::ptr_eq(&self.facts, &other.facts)
            && same_agent
            && same(&self.keys, &other.keys)
    }
}

/// The card for readers from one place.
struct Rendered {
    /// For everybody.
    shared: Document,
    /// For readers of 1.0, when it is signed and thus another one.
    signed: Option<Document>,
    /// Why it is not signed although it should be.
    unsigned: Option<String>,
}

struct Document {
    body: Bytes,
    digest: String,
    etag: HeaderValue,
    since: SystemTime,
}

impl Card {
    /// Follows the live configuration and the truth about the interfaces.
    pub fn new(live: watch::Receiver<Arc<Live>>, facts: watch::Receiver<Arc<Facts>>) -> Self {
        Self { live, facts, agent: ArcSwapOption::empty(), state: Mutex::default() }
    }

    /// What the agent's own card says (A2A 1.0 form), for an agent that speaks A2A itself: it counts where the
    /// configuration says nothing.
    pub fn set_agent_card(&self, card: Value) {
        self.agent.store(Some(Arc::new(card)));
    }

    /// Media types that the agent takes, by its card.
    pub fn input_modes(&self) -> Modes {
        Modes::of_card(&self.source().core())
    }

    /// The card for known callers: [`Kind::UnsupportedOperation`] when there is none.
    pub fn extended(&self, caller: &Caller, challenge: impl FnOnce() -> Error) -> Result<Answer, Error> {
        let source = self.source();
        let Some(more) = source.live.extended_card.as_ref().filter(|_| build::proves(&source.live.access)) else {
            return Err(Error::new(Kind::UnsupportedOperation, "this agent has no extended card"));
        };
        if caller.identity.is_none() {
            return Err(challenge());
        }
        let core = rules::extended(&source.core(), more);
        Ok(Answer::Json(source.compose(&core, None).to_string()))
    }

    /// Digest of the card as most readers get it, and why it is not signed.
    pub fn status(&self) -> CardStatus {
        let rendered = self.rendered(None);
        CardStatus { digest: rendered.shared.digest.clone(), unsigned: rendered.unsigned.clone() }
    }

    fn source(&self) -> Source {
        let live = Arc::clone(&self.live.borrow());
        let folder = live.offer.signing_keys.clone();
        let keys = folder.map(|folder| {
            let mut state = self.state.lock();
            let watched = match &state.keys {
                Some((of, watched)) if *of == folder => Arc::clone(watched),
                _ => Arc::new(Watched::new(&folder, Keys::read)),
            };
            state.keys = Some((folder, Arc::clone(&watched)));
            drop(state);
            watched.get()
        });
        Source { live, facts: Arc::clone(&self.facts.borrow()), agent: self.agent.load_full(), keys }
    }

    /// The keys that sign the card now.
    pub fn keys(&self) -> Option<Arc<Keys>> {
        self.source().keys
    }

    fn rendered(&self, forwarded: Option<String>) -> Arc<Rendered> {
        let source = self.source();
        let mut state = self.state.lock();
        if !state.of.as_ref().is_some_and(|of| of.is(&source)) {
            let before = std::mem::take(&mut state.rendered);
            state.of = Some(source.clone());
            // What did not change keeps its date.
            if let Some(old) = before.get(&None) {
                state.rendered.insert(None, Arc::new(source.render(None, Some(old))));
            }
        }
        if let Some(rendered) = state.rendered.get(&forwarded) {
            return Arc::clone(rendered);
        }
        if state.rendered.len() >= MAX_RENDERED {
            state.rendered.retain(|from, _| from.is_none());
        }
        let fresh = Arc::new(source.render(forwarded.as_deref(), None));
        state.rendered.insert(forwarded, Arc::clone(&fresh));
        fresh
    }

    /// The base URL that a proxy in front of us tells, if it is to be believed and nothing else is known.
    fn forwarded(&self, peer: Option<Peer>, headers: &HeaderMap) -> Option<String> {
        let live = self.live.borrow();
        if live.offer.trusted_proxies.is_empty() || live.offer.public_url.is_some() {
            return None;
        }
        origin::forwarded(&live.offer.trusted_proxies, peer.map(|p| p.0), headers)
    }
}

impl Source {
    /// What the agent says of itself, by the configuration and by its own card.
    fn core(&self) -> Value {
        match self.agent.as_deref() {
            None => self.live.card.clone(),
            Some(own) => merged(own, &self.live.card),
        }
    }

    fn compose(&self, core: &Value, forwarded: Option<&str>) -> Value {
        let interfaces = build::interfaces(&self.live, &self.facts, forwarded);
        let security = build::security(&self.live.access);
        rules::compose(core, &interfaces, build::capabilities(&self.live, &self.facts), &security)
    }

    fn render(&self, forwarded: Option<&str>, before: Option<&Rendered>) -> Rendered {
        let pure = self.compose(&self.core(), forwarded);
        let shared = Document::new(rules::hybrid(&pure).to_string(), "", before.map(|b| &b.shared));
        let Some(keys) = &self.keys else { return Rendered { shared, signed: None, unsigned: None } };
        match seal::signatures(&pure, keys, &build::base(&self.live, forwarded)) {
            Ok(signatures) => {
                let unsealed = pure.to_string();
                let mut sealed = pure;
                sealed["signatures"] = signatures;
                // A signature differs each time that it is made; the card does not.
                let kids: Vec<&str> = keys.keys.iter().map(|k| k.id.as_str()).collect();
                let of = format!("{unsealed}{}", kids.join("\n"));
                let signed = Document::new(sealed.to_string(), &of, before.and_then(|b| b.signed.as_ref()));
                let faults = (!keys.faults.is_empty()).then(|| keys.faults.join("; "));
                Rendered { shared, signed: Some(signed), unsigned: faults }
            }
            Err(why) => {
                tracing::warn!(target: "business", why, "the card is not signed");
                Rendered { shared, signed: None, unsigned: Some(why) }
            }
        }
    }
}

impl Document {
    /// A document; `of` is what its digest is made of where its own bytes are not the same each time.
    fn new(body: String, of: &str, before: Option<&Self>) -> Self {
        let digest = outrigger_protocol::digest::sha256(if of.is_empty() { body.as_bytes() } else { of.as_bytes() });
        let etag = HeaderValue::from_str(&format!("W/\"{}\"", &digest[..16]))
            .unwrap_or_else(|_| HeaderValue::from_static("W/\"\""));
        let since = before.filter(|b| b.digest == digest).map_or_else(SystemTime::now, |b| b.since);
        Self { body: body.into(), digest, etag, since }
    }
}

/// The agent's own card with what the configuration says in place of it; empty lists of the configuration say nothing.
fn merged(own: &Value, configured: &Value) -> Value {
    let mut card = own.as_object().cloned().unwrap_or_default();
    for (key, value) in configured.as_object().into_iter().flatten() {
        let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_str().is_some_and(str::is_empty);
        if !empty || !card.contains_key(key) {
            card.insert(key.clone(), value.clone());
        }
    }
    card.into()
}

/// The public keys of several folders as one JWK Set (RFC 7517).
pub fn key_set<'a>(folders: impl Iterator<Item = &'a Keys>) -> Value {
    let mut keys: Vec<&Value> = Vec::new();
    for key in folders.flat_map(Keys::public) {
        if !keys.iter().any(|k| k["kid"] == key["kid"] && **k == *key) {
            keys.push(key);
        }
    }
    json!({"keys": keys})
}
