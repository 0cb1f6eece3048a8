//! The scopes of one operator (all namespaces, or some, each with caches of its own), as far as they know of each other:
//! an Agent may name a peer or a tool server in another namespace.

use std::sync::Arc;

use futures::FutureExt;
use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use outrigger_crds::{Agent, MCPServer, McpServerUse, PeerRef};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use crate::caches::Guarded;
use crate::plan::{Place, place};

type Key = ObjectRef<Guarded<Agent>>;
type ServerKey = ObjectRef<Guarded<MCPServer>>;

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

/// One scope as the others see it.
pub struct Scope {
    /// The one namespace; without it all are.
    pub namespace: Option<String>,
    /// Its Agents.
    pub agents: Store<Guarded<Agent>>,
    /// Its `MCPServer`s.
    pub servers: Store<Guarded<MCPServer>>,
    /// Queue of the controller of Agents.
    pub agent_queue: mpsc::Sender<Key>,
    /// Queue of the controller of `MCPServer`s.
    pub server_queue: mpsc::Sender<ServerKey>,
}

/// All scopes; clones share them.
#[derive(Clone, Default)]
pub struct Scopes(Arc<RwLock<Vec<Scope>>>);

/// The namespace of a server that an Agent of `own` uses.
pub fn namespace_of<'a>(used: &'a McpServerUse, own: &'a str) -> &'a str {
    used.namespace.as_deref().unwrap_or(own)
}

fn look<K>(store: &Store<Guarded<K>>, namespace: &str, name: &str) -> Result<Arc<Guarded<K>>, Presence>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    if let Some(found) = store.get(&ObjectRef::new(name).within(namespace)) {
        return Ok(found);
    }
    let filled = matches!(store.wait_until_ready().now_or_never(), Some(Ok(())));
    Err(if filled { Presence::Missing } else { Presence::NotKnownYet })
}

impl Scopes {
    /// Adds a scope.
    pub fn add(&self, scope: Scope) {
        self.0.write().push(scope);
    }

    /// Whether an Agent of this name is there.
    pub fn presence(&self, namespace: &str, name: &str) -> Presence {
        let scopes = self.0.read();
        let Some(scope) = watching(&scopes, namespace) else { return Presence::NotWatched };
        look(&scope.agents, namespace, name).map_or_else(|presence| presence, |_| Presence::There)
    }

    /// The `MCPServer` of this name, or what is known of it.
    pub fn server(&self, namespace: &str, name: &str) -> Result<Arc<Guarded<MCPServer>>, Presence> {
        let scopes = self.0.read();
        look(&watching(&scopes, namespace).ok_or(Presence::NotWatched)?.servers, namespace, name)
    }

    /// The Agents of all namespaces that use this server.
    pub fn users(&self, namespace: &str, name: &str) -> Vec<Arc<Guarded<Agent>>> {
        let scopes = self.0.read();
        scopes.iter().flat_map(|scope| users(scope, namespace, name)).collect()
    }

    /// Has the Agents of other namespaces looked at that use this server.
    pub fn tell_users(&self, namespace: &str, name: &str) {
        for scope in self.0.read().iter() {
            for user in users(scope, namespace, name) {
                if user.meta().namespace.as_deref() != Some(namespace) {
                    let _full = scope.agent_queue.try_send(user.to_object_ref(())).is_err();
                }
            }
        }
    }

    /// Has a server looked at.
    pub fn tell_server(&self, namespace: &str, name: &str) {
        if let Some(scope) = watching(&self.0.read(), namespace) {
            let _full = scope.server_queue.try_send(ObjectRef::new(name).within(namespace)).is_err();
        }
    }

    /// Has all Standalone servers looked at.
    pub fn tell_standalone(&self) {
        for scope in self.0.read().iter() {
            let standalone = |s: &Guarded<MCPServer>| s.0.as_ref().is_ok_and(|s| place(&s.spec) == Place::Standalone);
            for server in scope.servers.state_filter(standalone) {
                let _full = scope.server_queue.try_send(server.to_object_ref(())).is_err();
            }
        }
    }

    /// Has everything looked at that has pods of its own; waits while a queue is full. A closed queue means shutdown.
    pub async fn tell_all(&self) {
        for (queue, agents) in self.all_agents() {
            for agent in agents {
                let _closed = queue.send(agent).await.is_err();
            }
        }
        for (queue, servers) in self.all_standalone() {
            for server in servers {
                let _closed = queue.send(server).await.is_err();
            }
        }
    }

    fn all_agents(&self) -> Vec<(mpsc::Sender<Key>, Vec<Key>)> {
        let keys = |s: &Scope| s.agents.state().iter().map(|a| a.to_object_ref(())).collect();
        self.0.read().iter().map(|s| (s.agent_queue.clone(), keys(s))).collect()
    }

    fn all_standalone(&self) -> Vec<(mpsc::Sender<ServerKey>, Vec<ServerKey>)> {
        let standalone = |s: &Guarded<MCPServer>| s.0.as_ref().is_ok_and(|s| place(&s.spec) == Place::Standalone);
        let keys = |s: &Scope| s.servers.state_filter(standalone).iter().map(|s| s.to_object_ref(())).collect();
        self.0.read().iter().map(|s| (s.server_queue.clone(), keys(s))).collect()
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
                let _full = scope.agent_queue.try_send(caller.to_object_ref(())).is_err();
            }
        }
    }
}

fn watching<'a>(scopes: &'a [Scope], namespace: &str) -> Option<&'a Scope> {
    scopes.iter().find(|s| s.namespace.as_deref().is_none_or(|n| n == namespace))
}

fn users(scope: &Scope, namespace: &str, name: &str) -> Vec<Arc<Guarded<Agent>>> {
    scope.agents.state_filter(|agent| {
        let own = agent.meta().namespace.as_deref().unwrap_or_default();
        let is = |used: &McpServerUse| used.name == name && namespace_of(used, own) == namespace;
        agent.0.as_ref().is_ok_and(|a| a.spec.mcp_servers.iter().any(is))
    })
}
