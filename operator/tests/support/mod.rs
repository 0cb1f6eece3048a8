//! An API server in memory: enough of one for the operator's own requests, and a record of those that change things.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::apps::v1::Deployment;
use kube::client::Body;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{Lookup, ObjectRef, Store, store};
use kube::runtime::{reflector::store::Writer, watcher};
use kube::{Client, Resource};
use outrigger_crds::{Agent, MCPServer, Skill};
use outrigger_operator::apply::Applier;
use outrigger_operator::caches::Caches;
use outrigger_operator::control_api::keeper::Plane;
use outrigger_operator::controller::{Context, Failures};
use outrigger_operator::facts::{self, Facts, Touch};
use outrigger_operator::issuer::Issuers;
use outrigger_operator::metrics::Metrics;
use outrigger_operator::report::Reporter;
use outrigger_operator::scopes::{Scope, Scopes};
use outrigger_operator::settings::Settings;
use outrigger_operator::status::write::StatusWriter;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// One request that would change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub method: String,
    pub path: String,
    pub dry_run: bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    changes: Vec<Change>,
    version: u64,
    /// Whose tokens there are: the user and the audience.
    tokens: BTreeMap<String, (String, String)>,
    /// Questions about tokens so far.
    reviews: usize,
    /// Reads of paths so far.
    reads: Vec<String>,
    /// Refuses writes of paths that contain the text, with code and message.
    refusals: Vec<(String, u16, String)>,
}

/// The server; clones share its state.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

impl Server {
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// The changes since the last call, without Events.
    pub fn changes(&self) -> Vec<Change> {
        std::mem::take(&mut self.0.lock().changes)
    }

    pub fn refuse(&self, path: &str, code: u16, message: &str) {
        self.0.lock().refusals.push((path.into(), code, message.into()));
    }

    /// Signs a token for a ServiceAccount.
    pub fn sign(&self, token: &str, user: &str, audience: &str) {
        self.0.lock().tokens.insert(token.into(), (user.into(), audience.into()));
    }

    /// Questions about tokens so far.
    pub fn reviews(&self) -> usize {
        self.0.lock().reviews
    }

    /// Reads of paths that contain the text, so far.
    pub fn reads(&self, part: &str) -> usize {
        self.0.lock().reads.iter().filter(|p| p.contains(part)).count()
    }

    fn review(&self, body: &Value) -> Value {
        let mut state = self.0.lock();
        state.reviews += 1;
        let known = body["spec"]["token"].as_str().and_then(|t| state.tokens.get(t));
        let asked = body["spec"]["audiences"].as_array().cloned().unwrap_or_default();
        let status = match known {
            Some((user, audience)) if asked.contains(&json!(audience)) => {
                json!({"authenticated": true, "user": {"username": user}, "audiences": [audience]})
            }
            _ => json!({"error": "invalid bearer token"}),
        };
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {}, "status": status})
    }

    pub fn accept_all(&self) {
        self.0.lock().refusals.clear();
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    /// Puts an object there as somebody else would.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{version}"));
        }
        let old = state.objects.get(path).map(|o| o["spec"].clone());
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        let moved = old.is_none_or(|o| o != object["spec"]);
        object["metadata"]["generation"] = json!(if moved { generation + 1 } else { generation });
        state.objects.insert(path.into(), object);
    }

    /// Puts an object there with the metadata it has.
    pub fn restore(&self, path: &str, object: Value) {
        self.0.lock().objects.insert(path.into(), object);
    }

    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        change(&mut object);
        self.put(path, object);
    }

    pub fn remove(&self, path: &str) {
        self.0.lock().objects.remove(path);
    }

    fn list<K: DeserializeOwned>(&self, plural: &str) -> Vec<K> {
        let state = self.0.lock();
        let of_kind = state.objects.iter().filter(|(path, _)| path.rsplit('/').nth(1) == Some(plural));
        of_kind.map(|(_, o)| serde_json::from_value(o.clone()).unwrap()).collect()
    }

    fn answer(&self, method: &Method, path: &str, query: &str, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let status = |code: u16, message: &str| {
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                409 => "Conflict",
                422 => "Invalid",
                _ => "InternalError",
            };
            let value = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": reason});
            (code, value)
        };
        let is_change = !matches!(*method, Method::GET) && !path.contains("/events");
        let dry_run = query.contains("dryRun=");
        if is_change {
            let change = Change { method: method.to_string(), path: path.into(), dry_run };
            self.0.lock().changes.push(change);
            let refusals = self.0.lock().refusals.clone();
            if let Some((_, code, message)) = refusals.iter().find(|(part, ..)| path.contains(part.as_str())) {
                return status(*code, message);
            }
        }
        if path.ends_with("/tokenreviews") {
            return (201, self.review(&body));
        }
        if *method == Method::GET {
            self.0.lock().reads.push(path.into());
        }
        match *method {
            Method::GET => match self.get(path) {
                Some(object) => (200, object),
                None if path.ends_with("/replicasets") => {
                    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}))
                }
                None => status(404, "not found"),
            },
            Method::PATCH => {
                if let Some(parent) = path.strip_suffix("/status") {
                    let Some(mut object) = self.get(parent) else { return status(404, "not found") };
                    object["status"] = body["status"].clone();
                    self.put(parent, object);
                    return (200, self.get(parent).unwrap_or_default());
                }
                let old = self.get(path);
                let mut new = old.clone().unwrap_or_else(|| json!({}));
                merge(&mut new, &body);
                if dry_run {
                    return (200, new);
                }
                self.put(path, new);
                (200, self.get(path).unwrap_or_default())
            }
            Method::POST => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                if self.get(&path).is_some() {
                    return status(409, "already exists");
                }
                self.put(&path, body);
                (201, self.get(&path).unwrap_or_default())
            }
            Method::PUT => {
                let Some(old) = self.get(path) else { return status(404, "not found") };
                if old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                    return status(409, "the object has been modified");
                }
                self.put(path, body);
                (200, self.get(path).unwrap_or_default())
            }
            Method::DELETE => {
                let gone = self.0.lock().objects.remove(path);
                if gone.is_some() {
                    (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
                } else {
                    status(404, "not found")
                }
            }
            _ => status(405, "no"),
        }
    }
}

/// Maps merge, everything else is replaced: what server-side apply does to our fields.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

impl tower::Service<Request<Body>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let query = parts.uri.query().unwrap_or_default();
            let (code, value) = server.answer(&parts.method, parts.uri.path(), query, &bytes);
            Ok(Response::builder().status(code).body(Full::from(value.to_string())).unwrap())
        })
    }
}

struct Cached<K: Lookup + Clone + 'static>(Writer<K>, &'static str)
where
    K::DynamicType: std::hash::Hash + Eq + Clone + Default;

impl<K> Cached<K>
where
    K: Lookup + Clone + DeserializeOwned + 'static,
    K::DynamicType: std::hash::Hash + Eq + Clone + Default,
{
    fn fill(&mut self, server: &Server) {
        self.0.apply_watcher_event(&watcher::Event::Init);
        for object in server.list::<K>(self.1) {
            self.0.apply_watcher_event(&watcher::Event::InitApply(object));
        }
        self.0.apply_watcher_event(&watcher::Event::InitDone);
    }
}

/// A context over a [`Server`], whose caches are filled when a test says so.
pub struct World {
    pub server: Server,
    pub context: Context,
    pub touched: tokio::sync::mpsc::Receiver<Touch>,
    /// Agents that are to be looked at as one of their peers came or went.
    pub told: tokio::sync::mpsc::Receiver<ObjectRef<DeserializeGuard<Agent>>>,
    /// `MCPServer`s that are to be looked at as an Agent of another namespace changed.
    pub told_servers: tokio::sync::mpsc::Receiver<ObjectRef<DeserializeGuard<MCPServer>>>,
    fill: Box<dyn FnMut(&Server) + Send>,
}

fn cached<K>(plural: &'static str) -> (Store<K>, Cached<K>)
where
    K: Resource + Lookup + Clone + DeserializeOwned + 'static,
    <K as Lookup>::DynamicType: std::hash::Hash + Eq + Clone + Default,
{
    let (reader, writer) = store::<K>();
    (reader, Cached(writer, plural))
}

impl World {
    pub fn new() -> Self {
        let server = Server::default();
        let (agents, mut fill_agents) = cached::<DeserializeGuard<Agent>>("agents");
        let (servers, mut fill_servers) = cached::<DeserializeGuard<MCPServer>>("mcpservers");
        let (skills, mut fill_skills) = cached::<DeserializeGuard<Skill>>("skills");
        let (deployments, mut fill_deployments) = cached::<Deployment>("deployments");
        let (pods, mut fill_pods) = cached("pods");
        let (config_maps, mut fill_config_maps) = cached("configmaps");
        let (services, mut fill_services) = cached("services");
        let (service_accounts, mut fill_accounts) = cached("serviceaccounts");
        let fill = Box::new(move |server: &Server| {
            fill_agents.fill(server);
            fill_servers.fill(server);
            fill_skills.fill(server);
            fill_deployments.fill(server);
            fill_pods.fill(server);
            fill_config_maps.fill(server);
            fill_services.fill(server);
            fill_accounts.fill(server);
        });
        let client = server.client();
        let metrics = Metrics::new().unwrap();
        let (reporter, publisher) =
            Reporter::new(client.clone(), "test".into(), metrics.clone(), CancellationToken::new());
        tokio::spawn(publisher);
        let (touches, inbox) = facts::channel();
        let (agent_queue, told) = tokio::sync::mpsc::channel(64);
        let (server_queue, told_servers) = tokio::sync::mpsc::channel(64);
        let scopes = Scopes::default();
        scopes.add(Scope {
            namespace: None,
            agents: agents.clone(),
            servers: servers.clone(),
            agent_queue,
            server_queue,
        });
        let context = Context {
            client: client.clone(),
            scopes,
            issuers: Issuers::default(),
            control: Plane::default(),
            settings: Arc::new(Settings::new("registry.example/outrigger:1")),
            caches: Caches { agents, servers, skills, deployments, pods, config_maps, services, service_accounts },
            facts: Facts::default(),
            touches,
            applier: Applier::new(client.clone(), metrics.clone()),
            statuses: StatusWriter::new(client, metrics.clone()),
            reporter,
            failures: Failures::default(),
            metrics,
        };
        let mut world = Self { server, context, touched: inbox, told, told_servers, fill };
        world.sync();
        world
    }

    /// Lets the caches see what the server has.
    pub fn sync(&mut self) {
        (self.fill)(&self.server);
    }
}
