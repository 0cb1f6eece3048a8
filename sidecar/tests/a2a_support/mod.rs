//! The A2A side in process, with a scripted handler behind it.
#![allow(missing_docs, dead_code, clippy::needless_pass_by_value, clippy::panic)]

pub mod context;
pub mod schema;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use outrigger_protocol::a2a::sse;
use outrigger_protocol::config::{self, Boot, Limits, Live};
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::metrics::Metrics;
use outrigger_sidecar::a2a::store::Store;
use outrigger_sidecar::a2a::{Service, SkillRef};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::local_api::TokenGate;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::ServiceExt;

/// Longest any test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One request as the handler got it.
#[derive(Clone, Debug)]
pub struct Got {
    pub method: String,
    pub uri: String,
    pub headers: HeaderMap,
    pub text: String,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

type Script = dyn Fn(Got) -> BoxFuture<'static, Response<Body>> + Send + Sync;

/// A handler that runs a script for each turn and writes down what it got.
pub struct Handler {
    pub port: u16,
    got: Arc<Mutex<Vec<Got>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Handler {
    pub async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), script)
    }

    pub fn on<F, Fut>(listener: TcpListener, script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Body>> + Send + 'static,
    {
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let script: Arc<Script> = Arc::new(move |g| Box::pin(script(g)));
        let notes = Arc::clone(&got);
        let app = Router::new().fallback(move |request: Request<Body>| {
            let (notes, script) = (Arc::clone(&notes), Arc::clone(&script));
            async move {
                let (head, body) = request.into_parts();
                let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
                let got =
                    Got { method: head.method.to_string(), uri: head.uri.to_string(), headers: head.headers, text };
                notes.lock().push(got.clone());
                if got.method == "POST" { script(got).await } else { StatusCode::NOT_FOUND.into_response() }
            }
        });
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { port, got, server }
    }

    /// Requests of one method so far.
    pub fn got(&self, method: &str) -> Vec<Got> {
        self.got.lock().iter().filter(|g| g.method == method).cloned().collect()
    }

    pub fn turns(&self) -> Vec<Got> {
        self.got("POST")
    }
}

pub fn answer(value: Value) -> Response<Body> {
    answer_text(&value.to_string())
}

pub fn answer_text(json: &str) -> Response<Body> {
    ([("content-type", "application/json")], json.to_owned()).into_response()
}

/// Waits that suit a test; refused connections are tried again for a moment only.
pub fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing { refused: ms(300), probe_unready: ms(20), probe_ready: ms(50), ..Timing::default() }
}

/// The A2A side.
pub struct Front {
    /// Port of the handler.
    pub port: u16,
    pub service: Arc<Service>,
    pub ctx: Context,
    pub live: watch::Sender<Arc<Live>>,
}

impl Front {
    pub fn to(handler: &Handler) -> Self {
        Self::new(handler.port, Limits::default())
    }

    pub fn new(port: u16, limits: Limits) -> Self {
        Self::with(port, None, limits, quick())
    }

    /// On a store that the test makes; the configuration says that it outlives the process.
    pub fn on_store(
        port: u16,
        limits: Limits,
        timing: Timing,
        store: impl FnOnce(&Context, Metrics) -> Arc<dyn Store>,
    ) -> Self {
        let (mut ctx, live) = context::context(port, None, "http://burger-seller.shop:8080/", limits);
        let mut boot = Boot::clone(&ctx.boot);
        boot.store = config::Store::Sqlite { path: "elsewhere".into(), durable: true };
        ctx.boot = Arc::new(boot);
        let metrics = Metrics::register(&ctx.registry).unwrap();
        let store = store(&ctx, metrics.clone());
        let skills = Arc::new(Vec::new);
        let service = Service::start_on(&ctx, skills, timing, store, metrics).unwrap();
        let front = Self { port, service, ctx, live };
        front.set_live(|live| live.offer.streaming = true);
        front
    }

    pub fn with(port: u16, ready_path: Option<&str>, limits: Limits, timing: Timing) -> Self {
        let (ctx, live) = context::context(port, ready_path, "http://burger-seller.shop:8080/", limits);
        let skills = Arc::new(|| vec![SkillRef { name: "menu".into(), path: "/skills/menu".into(), pin: None }]);
        let service = Service::start_with(&ctx, skills, timing).unwrap();
        Self { port, service, ctx, live }
    }

    /// One whose card says that it streams.
    pub fn streaming(handler: &Handler) -> Self {
        Self::streaming_with(handler, Limits::default(), quick())
    }

    pub fn streaming_with(handler: &Handler, limits: Limits, timing: Timing) -> Self {
        let front = Self::with(handler.port, None, limits, timing);
        front.set_live(|live| live.offer.streaming = true);
        front
    }

    /// Changes the live configuration under way.
    pub fn set_live(&self, change: impl FnOnce(&mut Live)) {
        let mut live = Live::clone(&self.live.borrow());
        change(&mut live);
        self.live.send_replace(Arc::new(live));
    }

    /// Opens a stream; the answer if it is none.
    pub async fn open(&self, method: &str, params: Value, headers: &[(&str, &str)]) -> Result<Stream, Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let mut request = Request::post("/").header("content-type", "application/json").header("a2a-version", "1.0");
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        let response = self.service.router().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        if response.headers()["content-type"] == "text/event-stream" {
            return Ok(Stream::of(response.into_body()));
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Err(serde_json::from_slice(&body).unwrap())
    }

    /// Opens the stream of a message.
    pub async fn send_stream(&self, text: &str) -> Stream {
        self.open("SendStreamingMessage", message(text), &[]).await.unwrap()
    }

    /// Sends a request to the local API, behind the token.
    pub async fn local(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Value) {
        let response = self.service.local_router().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Posts events of a turn to the local API.
    pub async fn post_events(&self, turn: &str, events: Value) -> (StatusCode, Value) {
        let request = Request::post(format!("/turns/{turn}/events")).body(Body::from(events.to_string())).unwrap();
        let (status, _, body) = self.local(request).await;
        (status, body)
    }

    /// Changes the limits under way.
    pub fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        let mut live = Live::clone(&self.live.borrow());
        change(&mut live.limits);
        self.live.send_replace(Arc::new(live));
    }

    pub async fn request(&self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        let response = self.service.router().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Posts a body as it is.
    pub async fn post(&self, body: impl Into<Bytes>, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::post("/");
        if !headers.iter().any(|(k, _)| *k == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        self.request(request.body(Body::from(body.into())).unwrap()).await
    }

    /// Calls a method; the whole answer as text.
    pub async fn call_text(&self, method: &str, params: &str) -> String {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        self.post(body, &[("a2a-version", "1.0")]).await.2
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        serde_json::from_str(&self.call_text(method, &params.to_string()).await).unwrap()
    }

    /// Sends a text; the whole JSON-RPC answer.
    pub async fn send(&self, text: &str) -> Value {
        self.call("SendMessage", message(text)).await
    }

    pub async fn get(&self, id: &str) -> Value {
        self.call("GetTask", json!({"id": id})).await["result"].clone()
    }

    /// Sum of a metric over the series with some labels; of a histogram the number of observations.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let families = self.ctx.registry.gather();
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

/// Ends a server with the test.
pub struct Server(tokio::task::JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves a router on a port of its own; its base URL.
pub async fn serve(router: Router) -> (String, Server) {
    serve_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), router)
}

fn serve_on(listener: TcpListener, router: Router) -> (String, Server) {
    let url = format!("http://{}", listener.local_addr().unwrap());
    (url, Server(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() })))
}

/// The A2A side whose local API is served, at the URLs that turns name.
pub async fn with_local_api(port: u16) -> (Front, Server) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut ctx, live) = context::context(port, None, "http://burger-seller.shop:8080/", Limits::default());
    let base = format!("http://{}/t/{}", listener.local_addr().unwrap(), context::TOKEN);
    let mut urls = config::LocalUrls::clone(&ctx.urls);
    (urls.tasks, urls.turns) = (format!("{base}/tasks"), format!("{base}/turns"));
    ctx.urls = Arc::new(urls);
    let service = Service::start_with(&ctx, Arc::new(Vec::new), quick()).unwrap();
    let router = TokenGate::router(Arc::clone(&ctx.token), service.local_router());
    (Front { port, service, ctx, live }, serve_on(listener, router).1)
}

/// A stream of JSON-RPC answers, event by event.
pub struct Stream {
    body: Body,
    parser: sse::Parser,
    ready: VecDeque<sse::Event>,
}

/// One event: its id and its `StreamResponse`.
pub type Item = (String, Value);

impl Stream {
    fn of(body: Body) -> Self {
        Self { body, parser: sse::Parser::new(64 << 20), ready: VecDeque::default() }
    }

    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Item> {
        let read = async {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    let value: Value = serde_json::from_str(&event.data).unwrap();
                    let result = if value.get("result").is_some() { value["result"].clone() } else { value };
                    return Some((event.id.unwrap_or_default(), result));
                }
                let frame = self.body.frame().await?.unwrap();
                let mut out = Vec::new();
                self.parser.push(frame.data_ref().unwrap(), &mut out).unwrap();
                self.ready.extend(out);
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }

    /// All events to the end.
    pub async fn rest(&mut self) -> Vec<Item> {
        let mut all = Vec::new();
        while let Some(item) = self.next().await {
            all.push(item);
        }
        all
    }
}

/// An event in a word or two: what it is and what it says.
pub fn short((_, event): &Item) -> String {
    let texts = |parts: &Value| {
        let texts: Vec<_> = parts.as_array().into_iter().flatten().map(|p| p["text"].as_str().unwrap_or("?")).collect();
        texts.join("|")
    };
    let status = |s: &Value| {
        let state = s["state"].as_str().unwrap_or("?").trim_start_matches("TASK_STATE_").to_lowercase();
        let said = texts(&s["message"]["parts"]);
        if said.is_empty() { state } else { format!("{state} {said:?}") }
    };
    if let Some(task) = event.get("task") {
        let parts = task["artifacts"].as_array().into_iter().flatten().map(|a| texts(&a["parts"]));
        let parts: Vec<_> = parts.collect();
        format!(
            "task {}{}",
            status(&task["status"]),
            if parts.is_empty() { String::new() } else { format!(" {parts:?}") }
        )
    } else if let Some(message) = event.get("message") {
        format!("message {:?}", texts(&message["parts"]))
    } else if let Some(update) = event.get("statusUpdate") {
        status(&update["status"])
    } else if let Some(update) = event.get("artifactUpdate") {
        let mark = |key: &str| if update[key] == true { format!(" {key}") } else { String::new() };
        format!("chunk {:?}{}{}", texts(&update["artifact"]["parts"]), mark("append"), mark("lastChunk"))
    } else {
        format!("? {event}")
    }
}

pub fn shorts(items: &[Item]) -> Vec<String> {
    items.iter().map(short).collect()
}

/// A stream of a handler: events that a test sends one by one.
pub fn event_stream() -> (tokio::sync::mpsc::UnboundedSender<Value>, Response<Body>) {
    let (tx, rx) = tokio::sync::mpsc::unbounded_channel::<Value>();
    let body = futures::stream::unfold(rx, |mut rx| async move {
        let event = rx.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(format!("data: {event}\n\n")), rx))
    });
    (tx, ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response())
}

/// A whole stream of a handler.
pub fn events(all: &[Value]) -> Response<Body> {
    let text = all.iter().map(|e| format!("data: {e}\n\n")).collect::<Vec<_>>().concat();
    ([("content-type", "text/event-stream")], text).into_response()
}

/// Parameters of `SendMessage` with one text.
pub fn message(text: &str) -> Value {
    json!({"message": {"messageId": format!("m-{text}"), "role": "ROLE_USER", "parts": [{"text": text}]}})
}

/// The same for a task that is there.
pub fn follow_up(task: &Value, text: &str) -> Value {
    let mut params = message(text);
    params["message"]["taskId"] = task["id"].clone();
    params
}

/// State of a task.
pub fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap_or_default()
}

/// Reason that the sidecar gave with the status of a task.
pub fn reason(task: &Value) -> &str {
    task["status"]["message"]["metadata"]["outrigger.dev/reason"].as_str().unwrap_or_default()
}

/// A port that refuses connections and is nobody else's, until the socket listens.
pub fn not_listening() -> (tokio::net::TcpSocket, u16) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// Waits for a condition.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
