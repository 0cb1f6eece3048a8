//! A scripted A2A agent in any binding and version, and turns of the executor with it.
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value
)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Artifact, Task};
use outrigger_protocol::config::{Limits, Live, Runtime};
use outrigger_sidecar::a2a::binding::meter::Meter;
use outrigger_sidecar::a2a::binding::{Front, Operations};
use outrigger_sidecar::a2a::call::{Answer, Body, Call, Caller, Reply, StreamItem, Used};
use outrigger_sidecar::a2a::edge::{self, Edge};
use outrigger_sidecar::a2a::executor::{Executor, Timing, TurnEvent, TurnInput, TurnStream};
use outrigger_sidecar::a2a::ids::Trace;
use outrigger_sidecar::a2a::upstream::executor::A2a;
use outrigger_sidecar::metrics::Metrics;
use outrigger_sidecar::serve::{Listener, serve};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the agent does with a call.
pub enum Says {
    Json(Value),
    Error(Error),
    Events(Vec<Step>),
}

/// A step of a stream.
#[derive(Clone)]
pub enum Step {
    Event(Value),
    /// Waits until the test lets it go on.
    Gate(Arc<Semaphore>),
    Error(Error),
}

type Script = Arc<dyn Fn(Operation, Value) -> Says + Send + Sync>;

/// A call as the agent got it, in 1.0 form.
#[derive(Clone, Debug)]
pub struct Got {
    pub operation: Operation,
    pub params: Value,
    pub binding: Binding,
    pub dialect: Dialect,
    pub extensions: Vec<String>,
    pub trace: String,
}

struct Theirs {
    script: Script,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Operations for Theirs {
    async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        let params: Value = params.map_or(Value::Null, |p| serde_json::from_str(p.get()).unwrap());
        let got = Got {
            operation,
            params: params.clone(),
            binding: call.binding,
            dialect: call.dialect,
            extensions: call.extensions.clone(),
            trace: call.trace.id().to_owned(),
        };
        self.got.lock().push(got);
        let body = match (self.script)(operation, params) {
            Says::Json(json) => Body::Unary(Answer::Json(json.to_string())),
            Says::Error(error) => return Err(error),
            Says::Events(steps) => Body::Stream(
                stream::iter(steps)
                    .filter_map(|step| async move {
                        match step {
                            Step::Event(event) => {
                                Some(Ok(StreamItem { id: None, json: event.to_string(), last: false }))
                            }
                            Step::Error(error) => Some(Err(error)),
                            Step::Gate(gate) => {
                                gate.acquire().await.unwrap().forget();
                                None
                            }
                        }
                    })
                    .boxed(),
            ),
        };
        let extensions = call.extensions.iter().filter(|e| *e == "urn:used").cloned().collect();
        Ok(Reply { body, extensions, task: None })
    }
}

/// An agent of the tests' own.
pub struct Agent {
    pub port: u16,
    got: Arc<Mutex<Vec<Got>>>,
    /// `Outrigger-Caller` of every request that has it.
    pub callers: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// How it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub binding: Binding,
    pub version: &'static str,
    pub streaming: bool,
}

impl Way {
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for binding in [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc] {
            for version in ["1.0", "0.3"] {
                all.push(Self { binding, version, streaming: true });
            }
        }
        all
    }

    /// The card as an agent of this version has it.
    pub fn card(self, port: u16) -> Value {
        let base = format!("http://localhost:{port}");
        let url = match self.binding {
            Binding::Grpc => format!("localhost:{port}"),
            Binding::JsonRpc => format!("{base}/"),
            Binding::HttpJson => base,
        };
        let mut card = json!({"name": "Theirs", "description": "d", "version": "3", "skills": [{"id": "s"}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "capabilities": {"streaming": self.streaming}});
        if self.version == "0.3" {
            card["protocolVersion"] = json!("0.3.0");
            card["url"] = json!(url);
            card["preferredTransport"] = json!(self.binding.name());
        } else {
            card["supportedInterfaces"] =
                json!([{"url": url, "protocolBinding": self.binding.name(), "protocolVersion": self.version}]);
        }
        card
    }
}

impl Agent {
    pub async fn start(way: Way, script: impl Fn(Operation, Value) -> Says + Send + Sync + 'static) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(socket, way, script)
    }

    pub fn on(
        socket: TcpListener,
        way: Way,
        script: impl Fn(Operation, Value) -> Says + Send + Sync + 'static,
    ) -> Self {
        let port = socket.local_addr().unwrap().port();
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let theirs = Arc::new(Theirs { script: Arc::new(script), got: Arc::clone(&got) });
        let mut live = Live::new(way.card(port));
        live.offer.versions = vec![way.version.to_owned()];
        live.limits.heartbeat_ms = 50;
        let (stop, registry) = (CancellationToken::new(), prometheus::Registry::new());
        let meter = Arc::new(Meter::register(&registry).unwrap());
        let live = watch::channel(Arc::new(live)).1;
        let edge = Edge::new(live.clone(), edge::Metrics::register(&registry).unwrap());
        let front = Front::new(theirs, edge, live, stop.clone(), meter);
        let card = way.card(port).to_string();
        let path = if way.version == "0.3" { "/.well-known/agent.json" } else { "/.well-known/agent-card.json" };
        let router: Router = front.router().route(path, axum::routing::get(move || async move { card }));
        // What the agent does not serve is not found, even where its bindings would say so in their own words.
        let other = if way.version == "0.3" { "/.well-known/agent-card.json" } else { "/.well-known/agent.json" };
        let router = router.route(other, axum::routing::get(|| async { StatusCode::NOT_FOUND }));
        let callers: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&callers);
        let router = router.layer(axum::middleware::map_request(move |request: axum::extract::Request| {
            let all = request.headers().get_all("outrigger-caller");
            seen.lock().extend(all.iter().map(|v| v.to_str().unwrap().to_owned()));
            std::future::ready(request)
        }));
        let listener = Listener { name: "a2a", socket, max_connections: 100 };
        tokio::spawn(serve(listener, router, Metrics::new(&registry).unwrap(), stop.clone()));
        Self { port, got, callers, stop }
    }

    /// Calls of one operation, without those that only try an interface.
    pub fn got(&self, operation: Operation) -> Vec<Got> {
        let probe = |g: &Got| g.params["id"] == "00000000-0000-4000-8000-000000000000";
        self.got.lock().iter().filter(|g| g.operation == operation && !probe(g)).cloned().collect()
    }

    /// Ends all its connections, as a process that ends does.
    pub fn kill(&self) {
        self.stop.cancel();
    }
}

/// No such task: what every script says of what it does not know.
pub fn unknown(params: &Value) -> Says {
    Says::Error(Error::task_not_found(params["id"].as_str().unwrap_or_default()))
}

pub fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing { refused: ms(300), connect: ms(500), cancel: ms(2000), ..Timing::default() }
}

pub fn executor(port: u16) -> A2a {
    A2a::new(&Runtime::A2a { port, path: "/".into() }, quick()).unwrap()
}

/// A message that begins a task.
pub fn input(text: &str) -> TurnInput {
    let message =
        json!({"messageId": "m1", "contextId": "our-context", "role": "ROLE_USER", "parts": [{"text": text}]});
    let message: Arc<str> = message.to_string().into();
    let first = Raw::parse(&message).unwrap();
    let task = Task::new("our-task".into(), "our-context".into(), "".into(), first, true, Timestamp::UNIX_EPOCH);
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
    TurnInput {
        id: "turn".into(),
        attempt: 1,
        last_seq: 0,
        message,
        text: text.into(),
        task: Arc::new(task),
        is_new: true,
        conversation: Conversation::default(),
        caller: Caller::anonymous(),
        metadata: None,
        accepted_output_modes: vec![],
        extensions: vec![],
        used: Used::default(),
        references: vec![],
        skills: vec![],
        attachment: None,
        trace: Trace::of(&headers),
        limits: Arc::new(Limits::default()),
        busy_until: Instant::now() + PATIENCE,
    }
}

/// The next message on a task, after what a turn did.
pub fn follow_up(text: &str, before: &Seen) -> TurnInput {
    let mut next = input(text);
    let message = json!({"messageId": "m2", "taskId": "our-task", "role": "ROLE_USER", "parts": [{"text": text}]});
    next.message = message.to_string().into();
    next.is_new = false;
    next.attachment.clone_from(&before.attachment);
    next.conversation.memo.clone_from(&before.memo);
    let mut task = Task::clone(&next.task);
    task.artifacts.clone_from(&before.artifacts);
    task.said.clone_from(&before.said);
    next.task = Arc::new(task);
    next
}

/// What came of a turn, as the service would have it.
#[derive(Debug, Default)]
pub struct Seen {
    pub started: bool,
    pub states: Vec<State>,
    pub said: Option<Raw>,
    pub artifacts: Vec<Artifact>,
    pub updates: usize,
    pub message: Option<Raw>,
    pub fault: Option<Fault>,
    pub attachment: Option<Raw>,
    pub memo: Option<Raw>,
    pub repairs: usize,
}

impl Seen {
    /// All of a turn.
    pub async fn all(mut stream: TurnStream) -> Self {
        let mut seen = Self::default();
        tokio::time::timeout(PATIENCE, async {
            while let Some(event) = stream.next().await {
                seen.take(event);
            }
        })
        .await
        .expect("the turn ends");
        seen
    }

    pub async fn turn(executor: &A2a, input: TurnInput) -> Self {
        Self::all(executor.turn(input)).await
    }

    pub fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Started => self.started = true,
            TurnEvent::Later => panic!("nothing comes later"),
            TurnEvent::Repaired(_) => self.repairs += 1,
            TurnEvent::Fault { fault, .. } => self.fault = Some(fault),
            TurnEvent::Message { message, memo } => {
                self.message = Some(message.to_raw("our-context", None));
                self.memo = memo.or(self.memo.take());
            }
            TurnEvent::Change(change) => {
                self.states.extend(change.state);
                self.said = change.said.or(self.said.take());
                self.attachment = change.attachment.or(self.attachment.take());
                self.memo = change.memo.or(self.memo.take());
                for update in change.artifacts {
                    self.updates += 1;
                    match self.artifacts.iter_mut().find(|a| a.id == update.artifact.id) {
                        Some(old) if update.append => old.append(&update.artifact),
                        Some(old) => *old = update.artifact,
                        None => self.artifacts.push(update.artifact),
                    }
                }
            }
        }
    }

    pub fn last_state(&self) -> Option<State> {
        self.states.last().copied()
    }

    pub fn artifact(&self) -> Value {
        self.artifacts.first().map_or(Value::Null, |a| serde_json::from_str(a.to_json().as_str()).unwrap())
    }

    pub fn said(&self) -> Value {
        self.said.as_ref().map_or(Value::Null, |s| serde_json::from_str(s.as_str()).unwrap())
    }
}
