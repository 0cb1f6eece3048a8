//! The A2A side in process, with a scripted handler behind it.
#![allow(missing_docs, dead_code, clippy::needless_pass_by_value)]

pub mod context;
pub mod schema;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use outrigger_protocol::config::{Limits, Live};
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::{Service, SkillRef};
use outrigger_sidecar::context::Context;
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

    pub fn with(port: u16, ready_path: Option<&str>, limits: Limits, timing: Timing) -> Self {
        let (ctx, live) = context::context(port, ready_path, "http://burger-seller.shop:8080/", limits);
        let skills = Arc::new(|| vec![SkillRef { name: "menu".into(), path: "/skills/menu".into() }]);
        let service = Service::start_with(&ctx, skills, timing).unwrap();
        Self { service, ctx, live }
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
