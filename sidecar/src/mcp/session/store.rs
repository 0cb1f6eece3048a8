//! All sessions of one server: found by their id, bounded, ended when nobody uses them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::Session;
use crate::mcp::pool::Shared;
use crate::mcp::seal::Key;

/// Sessions of one server at once.
pub const MAX_SESSIONS: usize = 4096;

/// See the module.
pub struct Sessions {
    shared: Arc<Shared>,
    by_key: RwLock<HashMap<Key, Arc<Session>>>,
}

impl Sessions {
    /// None yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, by_key: RwLock::default() }
    }

    /// The session that a caller knows under an id.
    pub fn find(&self, caller: &str, id: &str) -> Option<Arc<Session>> {
        let key = self.shared.seal.open(id, &["session", caller, &self.shared.conf.name])?;
        self.by_key.read().get(&key).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.by_key.read().values().cloned().collect()
    }

    /// Whether there is room for another one; one that was not used for long makes room.
    pub fn room(&self) -> bool {
        self.by_key.read().len() < MAX_SESSIONS || self.evict(|_| true)
    }

    /// Adds one.
    pub fn add(&self, session: &Arc<Session>) {
        self.by_key.write().insert(session.key, Arc::clone(session));
        self.shared.metrics.sessions.with_label_values(&[self.shared.conf.name.as_str()]).inc();
    }

    /// Ends one. Whether it was there.
    pub fn end(&self, key: &Key, why: &'static str) -> bool {
        let Some(session) = self.by_key.write().remove(key) else { return false };
        let name = self.shared.conf.name.as_str();
        self.shared.metrics.sessions.with_label_values(&[name]).dec();
        self.shared.metrics.sessions_ended.with_label_values(&[name, why]).inc();
        session.end(why);
        true
    }

    /// Ends the one that was not used for longest among some, if that is long enough.
    pub fn evict(&self, among: impl Fn(&Session) -> bool) -> bool {
        let oldest = self.all().into_iter().filter(|s| among(s)).map(|s| (s.idle(), s)).max_by_key(|(idle, _)| *idle);
        match oldest {
            Some((idle, session)) if !idle.is_zero() && idle >= self.shared.timing.evict_idle => {
                self.end(&session.key, "evicted")
            }
            _ => false,
        }
    }

    /// Ends those that were not used for too long.
    pub fn expire(&self, limit: Duration) {
        for session in self.all() {
            if session.idle() >= limit {
                self.end(&session.key, "idle");
            }
        }
    }
}
