//! All bindings on a real port, before a service that plays a script; clients of HTTP/1.1, HTTP/2 and gRPC.
#![allow(missing_docs, dead_code)]

pub mod grpc;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::Operation;
use outrigger_protocol::a2a::sse::{Event, Parser};
use outrigger_protocol::config::Live;
use outrigger_sidecar::a2a::binding::meter::Meter;
use outrigger_sidecar::a2a::binding::{Front, Operations};
use outrigger_sidecar::a2a::call::{Answer, Body as ReplyBody, Call, Reply, StreamItem};
use outrigger_sidecar::a2a::edge::{self, Edge};
use outrigger_sidecar::serve::{Listener, serve};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Longest any test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One call as the service got it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub operation: Operation,
    pub params: Option<String>,
    pub call: Call,
}

impl Seen {
    pub fn json(&self) -> Value {
        self.params.as_deref().map_or(Value::Null, |p| serde_json::from_str(p).unwrap())
    }
}

type Script = dyn Fn(Seen) -> BoxFuture<'static, Result<Reply, Error>> + Send + Sync;

/// A service that plays a script and writes down what it got.
pub struct Scripted {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
}

impl Operations for Scripted {
    async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        let seen = Seen { operation, params: params.map(|p| p.get().to_owned()), call: call.clone() };
        self.seen.lock().push(seen.clone());
        (self.script)(seen).await
    }
}

/// The bindings on a port.
pub struct Stand {
    pub address: SocketAddr,
    pub live: watch::Sender<Arc<Live>>,
    pub shutdown: CancellationToken,
    pub registry: prometheus::Registry,
    service: Arc<Scripted>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Stand {
    pub async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Seen) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let service =
            Arc::new(Scripted { script: Box::new(move |seen| Box::pin(script(seen))), seen: Mutex::default() });
        let (live, rx) = watch::channel(Arc::new(Live::new(json!({"name": "a", "capabilities": {}}))));
        let registry = prometheus::Registry::new();
        let shutdown = CancellationToken::new();
        let meter = Arc::new(Meter::register(&registry).unwrap());
        let edge = Edge::new(rx.clone(), edge::Metrics::register(&registry).unwrap());
        let front = Front::new(Arc::clone(&service), edge, rx, shutdown.clone(), meter);
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let metrics = outrigger_sidecar::metrics::Metrics::new(&prometheus::Registry::new()).unwrap();
        let listener = Listener { name: "a2a", socket, max_connections: 1_000 };
        let server = tokio::spawn(serve(listener, front.router(), metrics, shutdown.clone()));
        Self { address, live, shutdown, registry, service, server }
    }

    /// Answers everything with one text.
    pub async fn answering(json: &'static str) -> Self {
        Self::start(move |_| async move { Ok(unary(json)) }).await
    }

    pub fn configure(&self, change: impl FnOnce(&mut Live)) {
        let mut live = Live::clone(&self.live.borrow());
        change(&mut live);
        self.live.send_replace(Arc::new(live));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.service.seen.lock().clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().pop().unwrap()
    }

    /// A request over a connection of its own.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let io = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    /// The same, read to its end.
    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Asked {
        let mut request = Request::builder().method(method).uri(path).header("host", "agent.example");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.open(request.body(Full::from(body.to_owned())).unwrap()).await;
        let (head, body) = response.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.unwrap().unwrap().to_bytes();
        Asked { status: head.status, headers: head.headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub async fn rpc(&self, method: &str, params: &Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        serde_json::from_str(&self.ask("POST", "/", JSON, &body).await.text).unwrap()
    }

    /// A stream over a connection of its own.
    pub async fn stream(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Sse {
        let mut request = Request::builder().method(method).uri(path).header("host", "agent.example");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Sse::of(self.open(request.body(Full::from(body.to_owned())).unwrap()).await)
    }

    pub async fn h2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Sum of a metric over the series with some labels; of a histogram the number of observations.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let families = self.registry.gather();
        let Some(family) = families.iter().find(|f| f.name() == name) else { return 0 };
        let matches = |m: &&prometheus::proto::Metric| {
            labels.iter().all(|(k, v)| m.get_label().iter().any(|l| l.name() == *k && l.value() == *v))
        };
        let whole = |n: f64| format!("{n:.0}").parse::<u64>().unwrap();
        let of = |m: &prometheus::proto::Metric| {
            whole(m.get_counter().get_value()) + whole(m.get_gauge().get_value()) + m.get_histogram().get_sample_count()
        };
        family.get_metric().iter().filter(matches).map(of).sum()
    }
}

pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Asked {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Asked {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

/// A stream as its reader sees it.
pub struct Sse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    parser: Parser,
    ready: Vec<Event>,
    /// All that came, comments too.
    pub text: String,
}

impl Sse {
    pub fn of(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let ready = Vec::new();
        Self {
            status: head.status,
            headers: head.headers,
            body,
            parser: Parser::new(1 << 24),
            ready,
            text: String::new(),
        }
    }

    /// The next piece of the body; false at its end.
    pub async fn more(&mut self) -> bool {
        let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the stream is silent");
        let Some(frame) = frame else { return false };
        let data = frame.unwrap().into_data().unwrap();
        self.text.push_str(std::str::from_utf8(&data).unwrap());
        self.parser.push(&data, &mut self.ready).unwrap();
        true
    }

    pub async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            if !self.more().await {
                return None;
            }
        }
        Some(self.ready.remove(0))
    }

    pub async fn json(&mut self) -> Value {
        serde_json::from_str(&self.next().await.expect("the stream is over").data).unwrap()
    }

    pub async fn all(mut self) -> Vec<Event> {
        let mut out = Vec::new();
        while let Some(event) = self.next().await {
            out.push(event);
        }
        out
    }
}

pub fn unary(json: &str) -> Reply {
    Reply { body: ReplyBody::Unary(Answer::Json(json.to_owned())), extensions: vec![], task: None }
}

pub fn nothing() -> Reply {
    Reply { body: ReplyBody::Unary(Answer::Nothing), extensions: vec![], task: None }
}

pub fn streaming(items: BoxStream<'static, Result<StreamItem, Error>>) -> Reply {
    Reply { body: ReplyBody::Stream(items), extensions: vec![], task: None }
}

pub fn item(id: &str, json: &str, last: bool) -> StreamItem {
    StreamItem { id: Some(id.to_owned()), json: json.to_owned(), last }
}

/// A stream that ends.
pub fn events(items: Vec<Result<StreamItem, Error>>) -> Reply {
    streaming(stream::iter(items).boxed())
}

/// A stream that a test feeds.
pub fn fed(rx: mpsc::UnboundedReceiver<Result<StreamItem, Error>>) -> Reply {
    streaming(stream::unfold(rx, |mut rx| async move { rx.recv().await.map(|item| (item, rx)) }).boxed())
}

/// Waits for a condition.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
