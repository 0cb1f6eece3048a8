//! The live documents of Agents and Standalone `MCPServer`s, as they are in the cluster: followed by every replica, for
//! the sidecars that are connected to it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::review::Account;
use crate::hash;
use crate::http::Health;
use crate::metrics::Metrics;
use crate::names::{self, DOCUMENT_LABEL, LIVE_DOCUMENT, MANAGED_BY, MANAGED_BY_LABEL};
use crate::watch::WatchBackoff;

/// Most documents of one replica; those beyond are read by their pods from the volume alone.
pub const MAX_DOCUMENTS: usize = 20_000;
/// A watch is opened anew after this long.
const WATCH_SECONDS: u32 = 200;
/// Objects in one answer to a list: a document has at most 1 MiB.
const PAGE: u32 = 50;
/// Key in the `ConfigMap`.
const KEY: &str = "live.json";

/// A bundle that a document names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// Name of the `SkillRevision`.
    pub revision: String,
    /// `ConfigMap`s that hold it.
    pub slices: u32,
}

/// One document.
#[derive(Debug)]
pub struct Document {
    /// As its author wrote it.
    pub text: Bytes,
    /// Its SHA-256, hex.
    pub etag: String,
    /// Bundles by tree digest.
    pub bundles: HashMap<String, Bundle>,
    /// Names of the skills that the agent may propose changes to.
    pub evolving: BTreeSet<String>,
    /// Whether it may propose new ones.
    pub new_skills: bool,
}

/// What the operator reads of a document; the rest is for the sidecar.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Read {
    skills: Vec<ReadSkill>,
    disclosure: ReadDisclosure,
}

#[derive(Deserialize)]
struct ReadSkill {
    name: String,
    revision: String,
    slices: u32,
    digest: String,
    #[serde(default)]
    evolves: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadDisclosure {
    new_skills: bool,
}

impl Document {
    /// A document that does not parse is handed on too: whether it is good is the sidecar's to say.
    pub fn new(text: String) -> Self {
        let read: Read = serde_json::from_str(&text).unwrap_or_default();
        let evolving = read.skills.iter().filter(|s| s.evolves).map(|s| s.name.clone()).collect();
        let bundle = |s: ReadSkill| (s.digest, Bundle { revision: s.revision, slices: s.slices });
        Self {
            etag: hash::hex(text.as_bytes()),
            bundles: read.skills.into_iter().map(bundle).collect(),
            evolving,
            new_skills: read.disclosure.new_skills,
            text: text.into(),
        }
    }
}

/// What a stream follows: the newest document, nothing once it is gone.
pub type Following = watch::Receiver<Option<Arc<Document>>>;

#[derive(Default)]
struct State {
    by_account: HashMap<Account, watch::Sender<Option<Arc<Document>>>>,
    /// Scopes that have not seen their first list.
    filling: usize,
}

/// All documents; clones share them.
#[derive(Clone, Default)]
pub struct Documents(Arc<RwLock<State>>);

impl Documents {
    /// None is known; so many scopes are to be read.
    pub fn of_scopes(scopes: usize) -> Self {
        Self(Arc::new(RwLock::new(State { filling: scopes, ..State::default() })))
    }

    /// Follows the document of an account; `None` if it has none.
    pub fn follow(&self, account: &Account) -> Option<Following> {
        self.0.read().by_account.get(account).map(watch::Sender::subscribe)
    }

    /// Whether all that there are have been seen.
    pub fn complete(&self) -> bool {
        self.0.read().filling == 0
    }

    /// Keeps a document, and tells those that follow it if it changed; `false` if there are too many.
    pub fn put(&self, account: Account, text: String) -> bool {
        let mut state = self.0.write();
        let full = state.by_account.len() >= MAX_DOCUMENTS;
        match state.by_account.get(&account) {
            Some(sender) => {
                let same = sender.borrow().as_ref().is_some_and(|d| d.text == text.as_bytes());
                if !same {
                    sender.send_replace(Some(Arc::new(Document::new(text))));
                }
                true
            }
            None if full => false,
            None => {
                let sender = watch::Sender::new(Some(Arc::new(Document::new(text))));
                state.by_account.insert(account, sender);
                true
            }
        }
    }

    /// Forgets a document; streams that follow it end.
    pub fn remove(&self, account: &Account) {
        if let Some(sender) = self.0.write().by_account.remove(account) {
            sender.send_replace(None);
        }
    }

    fn accounts_of(&self, namespace: Option<&str>) -> Vec<Account> {
        let state = self.0.read();
        state.by_account.keys().filter(|a| namespace.is_none_or(|n| n == a.namespace)).cloned().collect()
    }

    fn len(&self) -> usize {
        self.0.read().by_account.len()
    }
}

/// Whose document a `ConfigMap` is, and its text.
fn read(object: ConfigMap) -> Option<(Account, String)> {
    let account = account(&object)?;
    let text = object.data?.remove(KEY)?;
    Some((account, text))
}

fn account(object: &ConfigMap) -> Option<Account> {
    let name = names::of_live_document(object.metadata.name.as_deref()?)?.to_owned();
    Some(Account { namespace: object.metadata.namespace.clone()?, name })
}

/// Follows the documents of one scope until `shutdown`.
pub async fn follow(
    client: Client,
    namespace: Option<String>,
    documents: Documents,
    metrics: Metrics,
    health: Health,
    shutdown: CancellationToken,
) {
    let place = namespace.as_deref().unwrap_or("all namespaces");
    let filling = format!("the live documents of {place} are being read");
    let mut filled = false;
    health.begin(&filling);
    let api: Api<ConfigMap> = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},{DOCUMENT_LABEL}={LIVE_DOCUMENT}");
    let config = watcher::Config::default().timeout(WATCH_SECONDS).labels(&labels).page_size(PAGE);
    let mut stream = Box::pin(watcher(api, config).backoff(WatchBackoff::default()));
    let mut failing = false;
    let mut listing = Listing { namespace: namespace.clone(), documents: documents.clone(), seen: HashSet::new() };
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                metrics.watch_errors.with_label_values(&["live_documents"]).inc();
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, "the watch of live documents failed; trying again");
                }
                continue;
            }
            Some(Ok(event)) => {
                if listing.take(event) && !std::mem::replace(&mut filled, true) {
                    documents.0.write().filling -= 1;
                    health.end(&filling);
                }
            }
        }
        if std::mem::take(&mut failing) {
            info!("the watch of live documents works again");
        }
        metrics.objects.with_label_values(&["live_documents"]).set(i64::try_from(documents.len()).unwrap_or(i64::MAX));
    }
}

/// What a watch says, brought to the documents.
struct Listing {
    namespace: Option<String>,
    documents: Documents,
    /// What the list that is being read has so far.
    seen: HashSet<Account>,
}

impl Listing {
    /// Whether a list is complete with it.
    fn take(&mut self, event: watcher::Event<ConfigMap>) -> bool {
        match event {
            watcher::Event::Init => self.seen.clear(),
            watcher::Event::InitApply(object) => {
                self.seen.extend(account(&object));
                self.put(object);
            }
            watcher::Event::InitDone => {
                // A list tells of what is there; what went while the watch was down has to be worked out.
                let seen = std::mem::take(&mut self.seen);
                let known = self.documents.accounts_of(self.namespace.as_deref());
                known.iter().filter(|a| !seen.contains(a)).for_each(|gone| self.documents.remove(gone));
                return true;
            }
            watcher::Event::Apply(object) => self.put(object),
            watcher::Event::Delete(object) => {
                if let Some(account) = account(&object) {
                    self.documents.remove(&account);
                }
            }
        }
        false
    }

    fn put(&self, object: ConfigMap) {
        let Some((account, text)) = read(object) else { return };
        if !self.documents.put(account.clone(), text) {
            let (namespace, name) = (account.namespace, account.name);
            warn!(namespace, name, "more than {MAX_DOCUMENTS} live documents: this one comes by its volume alone");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(name: &str) -> Account {
        Account { namespace: "shop".into(), name: name.into() }
    }

    fn etag(following: &Following) -> Option<String> {
        following.borrow().as_ref().map(|d| d.etag.clone())
    }

    #[test]
    fn followers_hear_of_changes_and_of_the_end() {
        let documents = Documents::default();
        assert!(documents.follow(&account("a")).is_none());
        assert!(documents.put(account("a"), "{}".into()));
        let mut following = documents.follow(&account("a")).unwrap();
        assert_eq!(etag(&following), Some(hash::hex(b"{}")));
        assert!(documents.put(account("a"), "{}".into()));
        assert!(!following.has_changed().unwrap(), "the same text is no change");
        assert!(documents.put(account("a"), "{ }".into()));
        assert!(following.has_changed().unwrap());
        following.mark_unchanged();
        documents.remove(&account("a"));
        assert_eq!(etag(&following), None);
        assert!(documents.follow(&account("a")).is_none());
    }

    #[test]
    fn what_is_read_of_a_document() {
        let digest = "0".repeat(64);
        let text = json!({
            "version": 1, "card": null, "other": [1],
            "skills": [{"name": "menu", "revision": "menu-7", "slices": 2, "digest": digest, "evolves": true, "version": "1"}],
        });
        let document = Document::new(text.to_string());
        assert_eq!(document.bundles[&digest], Bundle { revision: "menu-7".into(), slices: 2 });
        assert!(document.evolving.contains("menu") && !document.new_skills);
        let broken = Document::new("{".into());
        assert_eq!((broken.bundles.len(), broken.text.as_ref()), (0, b"{".as_slice()));
    }

    #[test]
    fn a_list_tells_what_went_while_the_watch_was_down() {
        let object = |name: &str| -> ConfigMap {
            serde_json::from_value(
                json!({"metadata": {"name": name, "namespace": "shop"}, "data": {"live.json": "{}"}}),
            )
            .unwrap()
        };
        let mut listing =
            Listing { namespace: Some("shop".into()), documents: Documents::default(), seen: HashSet::new() };
        listing.documents.put(Account { namespace: "other".into(), name: "x".into() }, "{}".into());
        for event in [watcher::Event::Apply(object("a-live")), watcher::Event::Apply(object("b-live"))] {
            assert!(!listing.take(event));
        }
        assert_eq!(listing.documents.len(), 3);
        listing.take(watcher::Event::Apply(object("boot")));
        assert_eq!(listing.documents.len(), 3, "what is no live document is nothing");
        listing.take(watcher::Event::Init);
        listing.take(watcher::Event::InitApply(object("b-live")));
        assert!(listing.take(watcher::Event::InitDone));
        let there = |name: &str| listing.documents.follow(&account(name)).is_some();
        assert!(!there("a") && there("b"));
        assert_eq!(listing.documents.len(), 2, "other namespaces are other watches' business");
        listing.take(watcher::Event::Delete(object("b-live")));
        assert_eq!(listing.documents.len(), 1);
    }
}
