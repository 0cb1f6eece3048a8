//! The scopes of one operator (all namespaces, or some, each with caches of its own), as far as they know of each other:
//! an Agent may name a peer in another namespace.

use std::sync::Arc;

use futures::FutureExt;
use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use outrigger_crds::{Agent, PeerRef};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use crate::caches::Guarded;

type Key = ObjectRef<Guarded<Agent>>;

/// What is known of an Agent of any namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, readable or not.
    There,
    /// It is not.
    Missing,
    /// Its scope has not seen its first list yet.
    NotKnownYet,
    /// No scope watches its namespace.
    NotWatched,
}

struct Scope {
    /// The one namespace; without it all are.
    namespace: Option<String>,
    agents: Store<Guarded<Agent>>,
    queue: mpsc::Sender<Key>,
}

/// All scopes; clones share them.
#[derive(Clone, Default)]
pub struct Scopes(Arc<RwLock<Vec<Scope>>>);

impl Scopes {
    /// Adds a scope: its Agents, and the queue of their controller.
    pub fn add(&self, namespace: Option<String>, agents: Store<Guarded<Agent>>, queue: mpsc::Sender<Key>) {
        self.0.write().push(Scope { namespace, agents, queue });
    }

    /// Whether an Agent of this name is there.
    pub fn presence(&self, namespace: &str, name: &str) -> Presence {
        let scopes = self.0.read();
        let Some(scope) = scopes.iter().find(|s| s.namespace.as_deref().is_none_or(|n| n == namespace)) else {
            return Presence::NotWatched;
        };
        if scope.agents.get(&ObjectRef::new(name).within(namespace)).is_some() {
            return Presence::There;
        }
        let filled = matches!(scope.agents.wait_until_ready().now_or_never(), Some(Ok(())));
        if filled { Presence::Missing } else { Presence::NotKnownYet }
    }

    /// Has the Agents looked at that name this one as a peer. One that is told too late, as its queue is full, has its
    /// regular look.
    pub fn tell_callers(&self, namespace: &str, name: &str) {
        for scope in self.0.read().iter() {
            let callers = scope.agents.state_filter(|agent| {
                let own = agent.meta().namespace.as_deref().unwrap_or_default();
                let is = |p: &PeerRef| p.name == name && p.namespace.as_deref().unwrap_or(own) == namespace;
                agent.0.as_ref().is_ok_and(|a| a.spec.peers.iter().any(is))
            });
            for caller in callers {
                let _full = scope.queue.try_send(caller.to_object_ref(())).is_err();
            }
        }
    }
}
