//! The concierge of the examples, between scripted sellers: `examples/burger-concierge/agent/burger_concierge.py`.
#![allow(missing_docs, clippy::unwrap_used)]

mod a2a_support;
mod peers_support;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use a2a_support::context;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use outrigger_protocol::config::{Limits, Live, LocalUrls, Peer};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::local_api::TokenGate;
use outrigger_sidecar::mesh::resolve::Resolve;
use outrigger_sidecar::mesh::{Peers, Timing};
use outrigger_sidecar::metrics::Metrics;
use outrigger_sidecar::serve::{Listener, serve};
use peers_support::{Got, Names, Pod};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A seller that asks for a confirmation of its price, in one binding.
fn seller(name: &'static str, total: &'static str, binding: &'static str, got: &Got) -> Response<Body> {
    let card = json!({"name": name, "skills": [{"id": "order", "tags": ["food"]}], "supportedInterfaces": [
        {"url": format!("{name}.shop:8081"), "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": format!("http://{name}.shop:8080"), "protocolBinding": binding, "protocolVersion": "1.0"}]});
    let rpc = binding == "JSONRPC";
    let body: Value = serde_json::from_slice(&got.body).unwrap_or_default();
    let params = if rpc { &body["params"] } else { &body };
    let method = if rpc { body["method"].as_str().unwrap_or_default() } else { got.uri.as_str() };
    let id = format!("task-of-{name}");
    let result = match method {
        "SendMessage" | "/message:send" if params["message"]["taskId"] == id.as_str() => json!({"task": {"id": id,
            "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"parts": [{"text": format!("Order 7. Total {total} EUR.")}]}]}}),
        "SendMessage" | "/message:send" => json!({"task": {"id": id, "status": {"state": "TASK_STATE_INPUT_REQUIRED",
            "message": {"parts": [{"text": "Confirm?"}, {"data": {"total": total, "currency": "EUR"}}]}}}}),
        "CancelTask" => json!({"id": id, "status": {"state": "TASK_STATE_CANCELED"}}),
        path if path == format!("/tasks/{id}:cancel") => json!({"id": id, "status": {"state": "TASK_STATE_CANCELED"}}),
        _ if got.uri == "/.well-known/agent-card.json" => return axum::Json(card).into_response(),
        other => return (StatusCode::NOT_FOUND, other.to_owned()).into_response(),
    };
    axum::Json(if rpc { json!({"jsonrpc": "2.0", "id": body["id"], "result": result}) } else { result }).into_response()
}

struct Concierge {
    process: Child,
    url: String,
    urls: Value,
    _ctx: Context,
}

impl Drop for Concierge {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Concierge {
    /// The program as it is, with a local API that has these peers.
    async fn start(pods: &[(&str, &Pod)]) -> Self {
        let (mut ctx, live) = context::context(1, None, "http://concierge.shop:8080/", Limits::default());
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/t/{}/agents", socket.local_addr().unwrap(), context::TOKEN);
        ctx.urls = Arc::new(LocalUrls { agents: base.clone(), ..LocalUrls::clone(&ctx.urls) });
        let names = Arc::new(Names::default());
        let mut with_peers = Live::clone(&live.borrow());
        for (name, pod) in pods {
            let authority = format!("{name}-peers.shop:8080");
            names.0.lock().insert(authority.clone(), vec![pod.address]);
            with_peers.peers.push(Peer { name: (*name).into(), namespace: "shop".into(), authority });
        }
        live.send_replace(Arc::new(with_peers));
        let timing = Timing { connect: Duration::from_millis(300), ..Timing::default() };
        let peers = Peers::start_with(&ctx, names as Arc<dyn Resolve>, timing).unwrap();
        let router = TokenGate::router(Arc::clone(&ctx.token), peers.router());
        let listener = Listener { name: "local", socket, max_connections: 100 };
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        tokio::spawn(serve(listener, router, metrics, ctx.shutdown.clone()));

        let (_, port) = a2a_support::not_listening();
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/burger-concierge/agent/burger_concierge.py");
        let process =
            Command::new("python3").arg(program).env("PORT", port.to_string()).stderr(Stdio::inherit()).spawn();
        let url = format!("http://127.0.0.1:{port}/");
        let concierge = Self { process: process.unwrap(), url, urls: json!({"agents": base}), _ctx: ctx };
        let deadline = tokio::time::Instant::now() + a2a_support::PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "the concierge does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        concierge
    }

    async fn turn(&self, text: &str, memo: &Value) -> Value {
        let turn = json!({"contract": "outrigger/v1", "turn": "t", "text": text, "task": {"id": "ours"},
            "context": {"id": "c", "memo": memo}, "urls": self.urls});
        let request = Request::post(&self.url)
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .body(Full::new(Bytes::from(turn.to_string())))
            .unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let answer = tokio::time::timeout(a2a_support::PATIENCE, client.request(request)).await.unwrap().unwrap();
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }
}

fn uris(pod: &Pod) -> Vec<String> {
    pod.got().iter().map(|g| format!("{} {}", g.method, g.uri)).collect()
}

#[tokio::test]
async fn it_compares_orders_from_the_cheaper_one_and_lets_the_other_go() {
    let harbour = Pod::start(|got| async move { seller("harbour", "17.00", "JSONRPC", &got) }).await;
    let station = Pod::start(|got| async move { seller("station", "15.80", "HTTP+JSON", &got) }).await;
    let gone = Pod::start(|_| async { StatusCode::SERVICE_UNAVAILABLE.into_response() }).await;
    let concierge = Concierge::start(&[("harbour", &harbour), ("station", &station), ("gone", &gone)]).await;

    let asked = concierge.turn("two cheeseburgers", &Value::Null).await;
    assert_eq!(
        asked["text"], "station 15.80 EUR; harbour 17.00 EUR. Shall I order from station? (Not reached: gone.)",
        "{asked}"
    );
    assert_eq!(asked["state"], "input-required");
    let trace = station.got()[0].headers["traceparent"].to_str().unwrap().to_owned();
    assert!(trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "the caller's trace goes on to the sellers");

    let ordered = concierge.turn("yes", &asked["memo"]).await;
    let text = ordered["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(text, "station: Order 7. Total 15.80 EUR.", "{ordered}");
    assert!(ordered["memo"].is_null());
    assert_eq!(uris(&station).iter().filter(|u| *u == "POST /message:send").count(), 2);
    assert!(harbour.got().iter().any(|g| g.body.windows(12).any(|w| w == b"\"CancelTask\"")), "the other is let go");
}

#[tokio::test]
async fn a_no_cancels_everywhere_and_no_seller_at_all_is_said() {
    let station = Pod::start(|got| async move { seller("station", "15.80", "HTTP+JSON", &got) }).await;
    let concierge = Concierge::start(&[("station", &station)]).await;
    let asked = concierge.turn("fries", &Value::Null).await;
    let refused = concierge.turn("no", &asked["memo"]).await;
    assert_eq!(refused["state"], "canceled", "{refused}");
    assert!(uris(&station).contains(&"POST /tasks/task-of-station:cancel".to_owned()));
    let none = Concierge::start(&[]).await.turn("fries", &Value::Null).await;
    assert_eq!(none["error"]["reason"], "cannot_order", "{none}");
}
