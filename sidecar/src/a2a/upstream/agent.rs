//! The agent in the container: its card, and the interface that was found to work.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{ACCEPT, HOST};
use http::{HeaderValue, Request, StatusCode};
use outrigger_protocol::a2a::errors::Kind;
use outrigger_protocol::a2a::operation::Binding;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::client::{Client, With, cause, read};
use super::error::CallError;
use super::interface::{Interface, Target, candidates};
use super::wire;
use crate::a2a::executor::{NO_ANSWER, NotReady, Timing};
use crate::mesh::connect::{Backend, SendError};

/// Largest card.
const MAX_CARD: u64 = 1 << 20;
/// Most interfaces of a card that are tried.
const MAX_TRIED: usize = 16;
/// Most ports that connections are kept to.
const MAX_PORTS: usize = 16;
/// Where cards are: the path of 1.0, and that of 0.2.
const CARD_PATHS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];
/// A task that no agent has: asking for it tells whether an interface is one, and changes nothing.
const NO_TASK: &str = "00000000-0000-4000-8000-000000000000";

/// The agent in the container.
pub struct Agent {
    port: u16,
    /// Without a slash at its end.
    path: String,
    timing: Timing,
    backends: Mutex<HashMap<u16, Arc<Backend>>>,
    found: watch::Sender<Option<Found>>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
}

/// What a look at the agent found.
#[derive(Clone)]
pub struct Found {
    /// A client of the interface that works.
    pub client: Arc<Client>,
    /// The card in 1.0 form.
    pub card: Arc<Value>,
    text: Arc<str>,
}

/// How well an interface answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answered {
    /// As A2A, but not to the point.
    Somehow,
    /// That there is no such task.
    Well,
}

fn not_ready(reason: &'static str, message: impl Into<String>) -> NotReady {
    NotReady { reason, message: message.into() }
}

impl Agent {
    /// The agent on a port of 127.0.0.1; `path` is that of its JSON-RPC endpoint and what its card's path begins with.
    pub fn new(port: u16, path: &str, timing: Timing) -> Self {
        Self {
            port,
            path: path.trim_end_matches('/').to_owned(),
            timing,
            backends: Mutex::default(),
            found: watch::Sender::new(None),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Follows what was found.
    pub fn subscribe(&self) -> watch::Receiver<Option<Found>> {
        self.found.subscribe()
    }

    /// The client that was found last.
    pub fn client(&self) -> Option<Arc<Client>> {
        self.found.borrow().as_ref().map(|f| Arc::clone(&f.client))
    }

    /// The client, looked for until a time.
    pub async fn ready(&self, until: Instant) -> Result<Arc<Client>, NotReady> {
        let mut pause = Duration::from_millis(50);
        loop {
            if let Some(client) = self.client() {
                return Ok(client);
            }
            match self.look().await {
                Ok(client) => return Ok(client),
                Err(e) if Instant::now() + pause > until => return Err(e),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Looks at the agent: reads its card, and tries its interfaces when the card is new.
    pub async fn look(&self) -> Result<Arc<Client>, NotReady> {
        let _one = self.looking.lock().await;
        let text = timeout_at(Instant::now() + self.timing.probe, self.card()).await.unwrap_or_else(|_| {
            let limit = self.timing.probe.as_secs_f64();
            Err(not_ready(NO_ANSWER, format!("the agent did not give its card within {limit} s")))
        })?;
        if let Some(found) = self.found.borrow().as_ref().filter(|f| *f.text == *text) {
            return Ok(Arc::clone(&found.client));
        }
        let card = super::client::card(&text)
            .map_err(|e| not_ready("BadCard", format!("the agent's card cannot be used: {e}")))?;
        let client = self.choose(&card).await?;
        let client = Arc::new(client);
        tracing::info!(target: "business", interface = client.interface().describe(), url = client.interface().url, "the agent speaks A2A");
        self.found.send_replace(Some(Found { client: Arc::clone(&client), card, text: text.into() }));
        Ok(client)
    }

    /// The first interface that answers well, else the first that answers somehow.
    async fn choose(&self, card: &Arc<Value>) -> Result<Client, NotReady> {
        let mut somehow = None;
        let mut said = Vec::new();
        for interface in candidates(card).into_iter().take(MAX_TRIED) {
            for client in self.clients(&interface, card) {
                match self.ask(&client).await {
                    Ok(Answered::Well) => return Ok(client),
                    Ok(Answered::Somehow) => somehow = somehow.or(Some(client)),
                    Err(e) => {
                        let note = format!("{} at {}: {e}", interface.describe(), interface.url);
                        tracing::debug!(target: "protocol", note, "no interface");
                        said.push(note);
                    }
                }
            }
        }
        said.truncate(3);
        let why = if said.is_empty() { "its card names none that is known".to_owned() } else { said.join("; ") };
        somehow.ok_or_else(|| not_ready("NoInterface", format!("no interface of the agent answers: {why}")))
    }

    /// Clients for an interface: at the path of its URL, and at the configured one. An agent rarely knows its own address,
    /// so it is looked for on 127.0.0.1 whatever host its card says; its port counts when the host is a local one.
    fn clients(&self, interface: &Interface, card: &Arc<Value>) -> Vec<Client> {
        let Some(target) = Target::parse(&interface.url) else { return Vec::new() };
        let grpc = interface.binding == Binding::Grpc;
        let port = if (target.is_local() || grpc) && !target.tls { target.port } else { self.port };
        let Some(backend) = self.backend(port) else { return Vec::new() };
        let mut paths = vec![target.path.clone()];
        let own = if self.path.is_empty() { "/" } else { &self.path };
        if !grpc && target.path.trim_end_matches('/') != self.path {
            paths.push(own.to_owned());
        }
        let host = format!("127.0.0.1:{port}");
        let client = |path: String| {
            Client::new(Arc::clone(&backend), &host, &path, interface.clone(), Arc::clone(card), self.timing.connect)
        };
        paths.into_iter().map(client).collect()
    }

    fn backend(&self, port: u16) -> Option<Arc<Backend>> {
        let mut backends = self.backends.lock();
        if backends.len() >= MAX_PORTS && !backends.contains_key(&port) {
            return None;
        }
        let new = || Client::backend(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Some(Arc::clone(backends.entry(port).or_insert_with(new)))
    }

    async fn ask(&self, client: &Client) -> Result<Answered, CallError> {
        match client.get(NO_TASK, &With::limit(self.timing.probe)).await {
            Ok(_) => Ok(Answered::Well),
            Err(e) if e.is(Kind::TaskNotFound) => Ok(Answered::Well),
            // An agent without tasks; but one of another version says so too.
            Err(CallError::Agent(e))
                if !matches!(e.kind, Some(Kind::MethodNotFound | Kind::VersionNotSupported | Kind::Parse)) =>
            {
                Ok(Answered::Somehow)
            }
            Err(e) => Err(e),
        }
    }

    /// The text of the card.
    async fn card(&self) -> Result<String, NotReady> {
        let mut places: Vec<String> = CARD_PATHS.iter().map(|p| format!("{}{p}", self.path)).collect();
        if !self.path.is_empty() {
            places.extend(CARD_PATHS.map(str::to_owned));
        }
        let mut last = String::new();
        for place in &places {
            match self.fetch(place).await {
                Ok(text) => return Ok(text),
                Err(e @ (CallError::NotSent(_) | CallError::Broken(_))) => {
                    let reason = if matches!(e, CallError::NotSent(_)) { "Unreachable" } else { "NoHttp" };
                    return Err(not_ready(reason, e.to_string()));
                }
                Err(e) => last = format!("GET {place}: {e}"),
            }
        }
        Err(not_ready("NoCard", format!("the agent serves no card: {last}")))
    }

    async fn fetch(&self, path: &str) -> Result<String, CallError> {
        let backend = self.backend(self.port).ok_or_else(|| CallError::NotSent("too many ports".into()))?;
        let request = || {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().map_err(|e| CallError::NotSent(format!("{path:?} is no path: {e}")))?;
            let headers = request.headers_mut();
            let host = HeaderValue::from_str(&format!("127.0.0.1:{}", self.port));
            headers.insert(HOST, host.unwrap_or_else(|_| HeaderValue::from_static("localhost")));
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            // One that asks gets the card of its version.
            headers.insert("a2a-version", HeaderValue::from_static("1.0"));
            Ok::<_, CallError>(request)
        };
        loop {
            let lease = backend.lease(http::Version::HTTP_11, self.timing.connect, None).await;
            let mut lease = lease.map_err(|e| CallError::NotSent(format!("{}: {e}", backend.address)))?;
            let fresh = lease.is_fresh();
            match lease.send(request()?).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    if head.status != StatusCode::OK {
                        return Err(CallError::Status(head.status.as_u16()));
                    }
                    let bytes = read(body, MAX_CARD).await?;
                    lease.finish();
                    return wire::text(&bytes).map(str::to_owned);
                }
                // A GET may be asked again.
                Err(_) if !fresh => {}
                Err(SendError::NotSent(_)) => return Err(CallError::NotSent("the connection ended at once".into())),
                Err(SendError::Broken(e)) => return Err(CallError::Broken(cause(&e))),
            }
        }
    }
}
