//! Which resources have a new look after a change of which object.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use outrigger_crds::{Agent, MCPServer, McpServerUse, Skill};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::apply::live_of;
use crate::caches::{Caches, Guarded};
use crate::names::{AGENT_LABEL, SERVER_LABEL, SKILL_LABEL};
use crate::scopes::{Scopes, namespace_of};
use crate::status::find;

/// Requests of one kind that may wait; the watches wait beyond that.
const QUEUE: usize = 1024;

/// A resource to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// Namespace and name of an Agent.
    Agent(String, String),
    /// Namespace and name of an `MCPServer`.
    Server(String, String),
    /// Namespace and name of a Skill.
    Skill(String, String),
}

/// Where triggers go.
#[derive(Clone)]
pub struct Senders {
    /// To the controller of Agents.
    pub agents: mpsc::Sender<ObjectRef<Guarded<Agent>>>,
    /// To the controller of `MCPServer`s.
    pub servers: mpsc::Sender<ObjectRef<Guarded<MCPServer>>>,
    /// To the controller of Skills.
    pub skills: mpsc::Sender<ObjectRef<Guarded<Skill>>>,
}

/// The other ends.
pub struct Receivers {
    /// Of the controller of Agents.
    pub agents: mpsc::Receiver<ObjectRef<Guarded<Agent>>>,
    /// Of the controller of `MCPServer`s.
    pub servers: mpsc::Receiver<ObjectRef<Guarded<MCPServer>>>,
    /// Of the controller of Skills.
    pub skills: mpsc::Receiver<ObjectRef<Guarded<Skill>>>,
}

/// Bounded channels to the three controllers.
pub fn channels() -> (Senders, Receivers) {
    let (agents, agents_rx) = mpsc::channel(QUEUE);
    let (servers, servers_rx) = mpsc::channel(QUEUE);
    let (skills, skills_rx) = mpsc::channel(QUEUE);
    (Senders { agents, servers, skills }, Receivers { agents: agents_rx, servers: servers_rx, skills: skills_rx })
}

impl Senders {
    /// Sends all; waits while a queue is full. A closed queue means shutdown.
    pub async fn send(&self, triggers: BTreeSet<Trigger>) {
        for trigger in triggers {
            let _closed = match trigger {
                Trigger::Agent(ns, name) => self.agents.send(ObjectRef::new(&name).within(&ns)).await.is_err(),
                Trigger::Server(ns, name) => self.servers.send(ObjectRef::new(&name).within(&ns)).await.is_err(),
                Trigger::Skill(ns, name) => self.skills.send(ObjectRef::new(&name).within(&ns)).await.is_err(),
            };
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Remembered {
    mark: String,
    /// Namespace and name.
    servers: BTreeSet<(String, String)>,
    skills: BTreeSet<String>,
}

type Names = HashMap<(&'static str, String, String), Remembered>;

/// Works out triggers; remembers what each resource referred to, so that what it no longer refers to is told too.
pub struct Mapper {
    caches: Caches,
    scopes: Scopes,
    remembered: Mutex<Names>,
}

fn place(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn mark(meta: &ObjectMeta) -> String {
    format!("{}/{}", meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default())
}

impl Mapper {
    /// A mapper that remembers nothing yet.
    pub fn new(caches: Caches, scopes: Scopes) -> Self {
        Self { caches, scopes, remembered: Mutex::default() }
    }

    fn swap(&self, kind: &'static str, meta: &ObjectMeta, now: Option<Remembered>) -> Remembered {
        let (namespace, name) = place(meta);
        let mut remembered = self.remembered.lock();
        match now {
            Some(now) => remembered.insert((kind, namespace, name), now),
            None => remembered.remove(&(kind, namespace, name)),
        }
        .unwrap_or_default()
    }

    /// An Agent changed, or is gone.
    pub fn agent(&self, agent: &Guarded<Agent>, gone: bool) -> BTreeSet<Trigger> {
        let meta = agent.meta();
        let (namespace, name) = place(meta);
        let mut now = Remembered { mark: mark(meta), ..Remembered::default() };
        if let Ok(agent) = &agent.0 {
            let server = |s| (namespace_of(s, &namespace).to_owned(), s.name.clone());
            now.servers = agent.spec.mcp_servers.iter().map(server).collect();
            now.skills = agent.spec.skills.iter().map(|s| s.name.clone()).collect();
        }
        let before = self.swap("Agent", meta, (!gone).then(|| now.clone()));
        // A write of the status alone changes neither uid nor generation.
        if !gone && before == now {
            return BTreeSet::new();
        }
        let (ours, others): (Vec<_>, Vec<_>) = before.servers.union(&now.servers).partition(|(ns, _)| *ns == namespace);
        for (namespace, name) in others {
            self.scopes.tell_server(namespace, name);
        }
        let servers = ours.into_iter().map(|(ns, name)| Trigger::Server(ns.clone(), name.clone()));
        let skills = before.skills.union(&now.skills).map(|s| Trigger::Skill(namespace.clone(), s.clone()));
        // Those that name it as a peer only ask whether it is there.
        let uid = |mark: &str| mark.split_once('/').map(|(uid, _)| uid.to_owned());
        if gone || uid(&before.mark) != uid(&now.mark) {
            self.scopes.tell_callers(&namespace, &name);
        }
        let own = (!gone).then(|| Trigger::Agent(namespace.clone(), name.clone()));
        servers.chain(skills).chain(own).collect()
    }

    /// An `MCPServer` changed, or is gone.
    pub fn server(&self, server: &Guarded<MCPServer>, gone: bool) -> BTreeSet<Trigger> {
        let meta = server.meta();
        let (namespace, name) = place(meta);
        let now = Remembered { mark: mark(meta), ..Remembered::default() };
        if self.swap("MCPServer", meta, (!gone).then(|| now.clone())) == now && !gone {
            return BTreeSet::new();
        }
        let is = |s: &McpServerUse| s.name == name && namespace_of(s, &namespace) == namespace;
        let users = self.caches.agents_where(&namespace, |a| a.spec.mcp_servers.iter().any(is));
        self.scopes.tell_users(&namespace, &name);
        let own = (!gone).then(|| Trigger::Server(namespace.clone(), name.clone()));
        users.iter().map(of_agent).chain(own).collect()
    }

    /// A Skill changed, or is gone. What it has published matters to Agents, so its status does too.
    pub fn skill(&self, skill: &Guarded<Skill>, gone: bool) -> BTreeSet<Trigger> {
        let meta = skill.meta();
        let (namespace, name) = place(meta);
        let status = skill.0.as_ref().ok().and_then(|s| s.status.as_ref());
        let digest = status.and_then(|s| s.digest.as_deref()).unwrap_or_default();
        let accepted = status.and_then(|s| find(&s.conditions, "Accepted")).map_or("", |c| c.status.as_str());
        let mark = mark(meta);
        let now = Remembered { mark: format!("{mark}/{digest}/{accepted}"), ..Remembered::default() };
        let before = self.swap("Skill", meta, (!gone).then(|| now.clone()));
        if before == now && !gone {
            return BTreeSet::new();
        }
        let users = self.caches.agents_where(&namespace, |a| a.spec.skills.iter().any(|s| s.name == name));
        let same_manifest = before.mark.starts_with(&format!("{mark}/"));
        let own = (!gone && !same_manifest).then(|| Trigger::Skill(namespace.clone(), name.clone()));
        users.iter().map(of_agent).chain(own).collect()
    }

    /// An object of ours changed: its owner has a look.
    pub fn child(&self, meta: &ObjectMeta) -> BTreeSet<Trigger> {
        let namespace = meta.namespace.clone().unwrap_or_default();
        let label = |name: &str| meta.labels.as_ref().and_then(|l| l.get(name)).cloned();
        let trigger = match live_of(meta).controller {
            Some((kind, name, _)) if kind == "Agent" => Some(Trigger::Agent(namespace, name)),
            Some((kind, name, _)) if kind == "MCPServer" => Some(Trigger::Server(namespace, name)),
            Some((kind, name, _)) if kind == "Skill" => Some(Trigger::Skill(namespace, name)),
            Some(_) => None,
            None => label(AGENT_LABEL)
                .map(|name| Trigger::Agent(namespace.clone(), name))
                .or_else(|| label(SERVER_LABEL).map(|name| Trigger::Server(namespace.clone(), name)))
                .or_else(|| label(SKILL_LABEL).map(|name| Trigger::Skill(namespace, name))),
        };
        trigger.into_iter().collect()
    }

    /// A pod, or what it says of itself, changed: its Agent and the Agent's servers have a look, or its server.
    pub fn pod(&self, meta: &ObjectMeta) -> BTreeSet<Trigger> {
        let namespace = meta.namespace.clone().unwrap_or_default();
        let label = |key: &str| meta.labels.as_ref().and_then(|l| l.get(key));
        let Some(name) = label(AGENT_LABEL) else {
            return label(SERVER_LABEL).map(|name| Trigger::Server(namespace, name.clone())).into_iter().collect();
        };
        let agent = self.caches.agents.get(&ObjectRef::new(name).within(&namespace));
        let servers = agent
            .iter()
            .filter_map(|a| a.0.as_ref().ok())
            .flat_map(|a| &a.spec.mcp_servers)
            .filter(|s| namespace_of(s, &namespace) == namespace)
            .map(|s| Trigger::Server(namespace.clone(), s.name.clone()));
        servers.chain(std::iter::once(Trigger::Agent(namespace.clone(), name.clone()))).collect()
    }
}

fn of_agent(agent: &Arc<Guarded<Agent>>) -> Trigger {
    let (namespace, name) = place(agent.meta());
    Trigger::Agent(namespace, name)
}
