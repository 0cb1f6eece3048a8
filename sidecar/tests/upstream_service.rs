//! The whole A2A side in front of an agent that speaks A2A itself, and one such side in front of another.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;
mod upstream_support;

use std::sync::Arc;

use a2a_support::{context, message, state, until};
use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use outrigger_protocol::a2a::operation::{Binding, Operation};
use outrigger_protocol::config::{Boot, Limits, Runtime};
use outrigger_sidecar::a2a::Service;
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::metrics::Metrics as A2aMetrics;
use outrigger_sidecar::a2a::store::{Memory, Store};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::metrics::Metrics;
use outrigger_sidecar::serve::{Listener, serve};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use upstream_support::{Agent, PATIENCE, Says, Step, Way, unknown};

const JSONRPC: Way = Way { binding: Binding::JsonRpc, version: "1.0", streaming: true };

struct Side {
    service: Arc<Service>,
    ctx: Context,
}

impl Drop for Side {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
    }
}

impl Side {
    /// A side in front of the agent on a port.
    fn to(port: u16) -> Self {
        let (ctx, metrics) = Self::context(port);
        let store = Arc::new(Memory::new(ctx.live.clone(), metrics.clone()));
        Self::on(ctx, metrics, store)
    }

    fn on(ctx: Context, metrics: A2aMetrics, store: Arc<Memory>) -> Self {
        let timing = Timing { reap: std::time::Duration::from_millis(50), ..upstream_support::quick() };
        let service = Service::start_on(&ctx, Arc::new(Vec::new), timing, store, metrics).unwrap();
        Self { service, ctx }
    }

    fn context(port: u16) -> (Context, A2aMetrics) {
        let (mut ctx, live) = context::context(port, None, "http://front.shop:8080/", Limits::default());
        ctx.boot = Arc::new(Boot { runtime: Runtime::A2a { port, path: "/".into() }, ..Boot::clone(&ctx.boot) });
        let mut with_streams = outrigger_protocol::config::Live::clone(&live.borrow());
        with_streams.offer.streaming = true;
        live.send_replace(Arc::new(with_streams));
        let metrics = A2aMetrics::register(&ctx.registry).unwrap();
        (ctx, metrics)
    }

    async fn raw(&self, method: &str, params: Value) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = Request::post("/")
            .header("content-type", "application/json")
            .header("a2a-version", if method.contains('/') { "0.3" } else { "1.0" })
            .body(Body::from(body))
            .unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.service.router().oneshot(request)).await.unwrap().unwrap();
        let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await.unwrap().unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        serde_json::from_str(&self.raw(method, params).await).unwrap()
    }

    /// Events of a stream, each as its result.
    async fn events(&self, method: &str, params: Value) -> Vec<Value> {
        let text = self.raw(method, params).await;
        let data = text.lines().filter_map(|l| l.strip_prefix("data: "));
        data.map(|d| serde_json::from_str::<Value>(d).unwrap()["result"].clone()).collect()
    }

    /// The side on a port of its own, with a card that leads to it.
    async fn serve(&self) -> u16 {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let card = JSONRPC.card(port).to_string();
        let card = axum::routing::get(move || async move { card });
        // Its own card would lead into the cluster.
        let router = Router::new().route("/.well-known/agent-card.json", card).fallback_service(self.service.router());
        let listener = Listener { name: "a2a", socket, max_connections: 100 };
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        tokio::spawn(serve(listener, router, metrics, self.ctx.shutdown.clone()));
        port
    }
}

fn task(state: &str) -> Value {
    json!({"id": "their-task", "contextId": "their-context", "status": {"state": state}})
}

fn status(state: &str, text: Option<&str>) -> Step {
    let mut status = json!({"state": state});
    if let Some(text) = text {
        status["message"] =
            json!({"messageId": text, "taskId": "their-task", "role": "ROLE_AGENT", "parts": [{"text": text}]});
    }
    Step::Event(json!({"statusUpdate": {"taskId": "their-task", "contextId": "their-context", "status": status}}))
}

fn chunk(text: &str, append: bool) -> Step {
    let artifact = json!({"artifactId": "a", "parts": [{"text": text}]});
    Step::Event(json!({"artifactUpdate": {"taskId": "their-task", "append": append, "artifact": artifact}}))
}

fn seller(operation: Operation, params: &Value, hold: &Arc<Semaphore>) -> Says {
    let text = params["message"]["parts"][0]["text"].as_str().unwrap_or_default();
    let begin = Step::Event(json!({"task": task("TASK_STATE_SUBMITTED")}));
    match (operation, text) {
        (Operation::SendStreamingMessage, "hold") => Says::Events(vec![begin, Step::Gate(Arc::clone(hold))]),
        (Operation::SendStreamingMessage, "hello") => Says::Events(vec![Step::Event(
            json!({"message": {"messageId": "d", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}),
        )]),
        (Operation::SendStreamingMessage, _) if params["message"]["taskId"] == "their-task" => {
            let again = Step::Event(json!({"task": task("TASK_STATE_WORKING")}));
            Says::Events(vec![again, chunk("one ", false), chunk("burger", true), status("TASK_STATE_COMPLETED", None)])
        }
        (Operation::SendStreamingMessage, _) => {
            Says::Events(vec![begin, status("TASK_STATE_INPUT_REQUIRED", Some("sure?"))])
        }
        (Operation::CancelTask, _) => Says::Json(task("TASK_STATE_CANCELED")),
        _ => unknown(params),
    }
}

fn follow_up(task: &Value, text: &str) -> Value {
    let mut params = message(text);
    params["message"]["taskId"] = task["id"].clone();
    params
}

/// Asks, answers, and looks at what came of it.
async fn order(side: &Side, case: &str) -> Value {
    let asked = side.call("SendMessage", message("burger")).await["result"]["task"].clone();
    assert_eq!(state(&asked), "TASK_STATE_INPUT_REQUIRED", "{case}: {asked}");
    assert_eq!(asked["status"]["message"]["parts"][0]["text"], "sure?", "{case}");
    assert_ne!(asked["id"], "their-task", "{case}: ids are ours");
    let sold = side.call("SendMessage", follow_up(&asked, "yes")).await["result"]["task"].clone();
    assert_eq!((state(&sold), &sold["id"]), ("TASK_STATE_COMPLETED", &asked["id"]), "{case}: {sold}");
    assert_eq!(sold["artifacts"][0]["parts"], json!([{"text": "one "}, {"text": "burger"}]), "{case}");
    assert!(!sold.to_string().contains("their-"), "{case}: nothing of theirs shows: {sold}");
    sold
}

#[tokio::test]
async fn an_order_through_the_sidecar_in_every_binding_and_version_behind_it() {
    for way in Way::all() {
        let hold = Arc::new(Semaphore::new(0));
        let agent = Agent::start(way, move |o, p| seller(o, &p, &hold)).await;
        let side = Side::to(agent.port);
        let sold = order(&side, &format!("{way:?}")).await;
        // Everything else comes from our own store.
        let got = side.call("GetTask", json!({"id": sold["id"]})).await["result"].clone();
        assert_eq!(got["artifacts"], sold["artifacts"]);
        let old = side.call("tasks/get", json!({"id": sold["id"]})).await["result"].clone();
        assert_eq!((&old["kind"], &old["status"]["state"]), (&json!("task"), &json!("completed")), "{old}");
        let direct = side.call("SendMessage", message("hello")).await["result"].clone();
        assert_eq!(direct["message"]["parts"], json!([{"text": "hi"}]), "{direct}");
    }
}

#[tokio::test]
async fn the_agent_learns_who_asks_and_which_of_its_tasks_are_meant() {
    for way in Way::all() {
        let hold = Arc::new(Semaphore::new(0));
        let agent = Agent::start(way, move |o, p| seller(o, &p, &hold)).await;
        let (ctx, metrics) = Side::context(agent.port);
        let (live, rx) = tokio::sync::watch::channel(Arc::clone(&ctx.live.borrow()));
        let ctx = Context { live: rx, ..ctx };
        live.send_modify(|live| {
            Arc::make_mut(live).card["capabilities"] =
                json!({"extensions": [{"uri": "urn:used"}, {"uri": "urn:unused"}]});
        });
        let store = Arc::new(Memory::new(ctx.live.clone(), metrics.clone()));
        let side = Side::on(ctx, metrics, store);
        let sold = order(&side, &format!("{way:?}")).await;
        let mut next = message("burger");
        next["message"]["referenceTaskIds"] = json!([sold["id"], "their-other-task"]);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": next}).to_string();
        let request = Request::post("/")
            .header("content-type", "application/json")
            .header("a2a-version", "1.0")
            .header("a2a-extensions", "urn:used, urn:unused, urn:undeclared")
            .header("outrigger-caller", "{\"anonymous\":false,\"subject\":\"forged\"}")
            .body(Body::from(body))
            .unwrap();
        let answer = tokio::time::timeout(PATIENCE, side.service.router().oneshot(request)).await.unwrap().unwrap();
        assert_eq!(answer.headers()["a2a-extensions"], "urn:used", "{way:?}: what the agent says");
        let callers = agent.callers.lock().clone();
        assert!(!callers.is_empty() && callers.iter().all(|c| c == "{\"anonymous\":true}"), "{way:?}: {callers:?}");
        let got = agent.got(Operation::SendStreamingMessage).pop().unwrap();
        // The proto of 0.3 has no such field.
        let told = (way.binding, way.version) != (Binding::Grpc, "0.3");
        let want = if told { json!(["their-task"]) } else { Value::Null };
        assert_eq!(got.params["message"]["referenceTaskIds"], want, "{way:?}: {}", got.params);
    }
}

#[tokio::test]
async fn the_agents_own_card_fills_ours() {
    let agent = Agent::start(JSONRPC, |_, p| unknown(&p)).await;
    let (mut ctx, metrics) = Side::context(agent.port);
    let mut live = outrigger_protocol::config::Live::clone(&ctx.live.borrow());
    live.card = json!({"name": "ours", "description": "ours too", "version": "1", "skills": []});
    ctx.live = tokio::sync::watch::channel(Arc::new(live)).1;
    let store = Arc::new(Memory::new(ctx.live.clone(), metrics.clone()));
    let side = Side::on(ctx, metrics, store);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let request = Request::get("/.well-known/agent-card.json").body(Body::empty()).unwrap();
        let answer = side.service.router().oneshot(request).await.unwrap().into_body().collect().await.unwrap();
        let card: Value = serde_json::from_slice(&answer.to_bytes()).unwrap();
        if card["skills"][0]["id"] == "s" {
            assert_eq!((&card["name"], &card["description"]), (&json!("ours"), &json!("ours too")), "ours come first");
            assert_eq!(card["defaultInputModes"], json!(["text/plain"]));
            assert!(!card.to_string().contains("localhost"), "its URLs are nobody's business: {card}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{card}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_stream_through_the_sidecar() {
    let hold = Arc::new(Semaphore::new(0));
    let agent = Agent::start(JSONRPC, move |o, p| seller(o, &p, &hold)).await;
    let side = Side::to(agent.port);
    let asked = side.events("SendStreamingMessage", message("burger")).await;
    assert!(asked[0].get("task").is_some(), "a task first: {asked:?}");
    let last = &asked.last().unwrap()["statusUpdate"];
    assert_eq!(last["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let task = &asked[0]["task"];
    let sold = side.events("SendStreamingMessage", follow_up(task, "yes")).await;
    let chunks: Vec<_> = sold.iter().filter(|e| e.get("artifactUpdate").is_some()).collect();
    assert_eq!(chunks.len(), 2, "{sold:?}");
    assert_eq!(chunks[1]["artifactUpdate"]["append"], true);
    assert_eq!(sold.last().unwrap()["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_cancel_through_the_sidecar() {
    let hold = Arc::new(Semaphore::new(0));
    let agent = Agent::start(JSONRPC, move |o, p| seller(o, &p, &hold)).await;
    let side = Side::to(agent.port);
    let mut params = message("hold");
    params["configuration"] = json!({"returnImmediately": true});
    let parked = side.call("SendMessage", params).await["result"]["task"].clone();
    until("the agent has it", || !agent.got(Operation::SendStreamingMessage).is_empty()).await;
    // Its id is known as soon as it has said it.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while state(&side.call("GetTask", json!({"id": parked["id"]})).await["result"]) != "TASK_STATE_WORKING" {
        assert!(tokio::time::Instant::now() < deadline, "at work");
    }
    let cancelled = side.call("CancelTask", json!({"id": parked["id"]})).await["result"].clone();
    assert_eq!(state(&cancelled), "TASK_STATE_CANCELED", "{cancelled}");
    until("the agent was told", || !agent.got(Operation::CancelTask).is_empty()).await;
    assert_eq!(agent.got(Operation::CancelTask)[0].params["id"], "their-task");
}

#[tokio::test]
async fn a_chain_of_sidecars() {
    let hold = Arc::new(Semaphore::new(0));
    let agent = Agent::start(Way { version: "0.3", ..JSONRPC }, move |o, p| seller(o, &p, &hold)).await;
    let inner = Side::to(agent.port);
    let outer = Side::to(inner.serve().await);
    order(&outer, "chain").await;
    assert_eq!(agent.got(Operation::SendStreamingMessage).len(), 2);
    let ready = outer.service.watch_agent().borrow().clone();
    assert!(ready.ready || ready.reason == "Unknown", "{ready:?}");
}

#[test]
fn a_sidecar_that_is_killed_is_followed_by_one_that_finds_the_task_again() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    let hold = Arc::new(Semaphore::new(0));
    let agent = second.block_on(Agent::start(JSONRPC, move |operation, params| {
        let mut at_work = task("TASK_STATE_WORKING");
        at_work["artifacts"] = json!([{"artifactId": "a", "parts": [{"text": "one "}]}]);
        match operation {
            Operation::SendStreamingMessage => {
                let begin = Step::Event(json!({"task": task("TASK_STATE_WORKING")}));
                Says::Events(vec![begin, chunk("one ", false), Step::Gate(Arc::clone(&hold))])
            }
            Operation::GetTask if params["id"] == "their-task" => Says::Json(at_work),
            Operation::SubscribeToTask => Says::Events(vec![
                Step::Event(json!({"task": at_work})),
                chunk("burger", true),
                status("TASK_STATE_COMPLETED", None),
            ]),
            _ => unknown(&params),
        }
    }));
    let (ctx, metrics) = Side::context(agent.port);
    let store = Arc::new(Memory::new(ctx.live.clone(), metrics.clone()));
    let of_first = Arc::clone(&store);
    let parked = first.block_on(async move {
        let side = Side::on(ctx, metrics, of_first);
        let mut params = message("burger");
        params["configuration"] = json!({"returnImmediately": true});
        let parked = side.call("SendMessage", params).await["result"]["task"].clone();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let now = side.call("GetTask", json!({"id": parked["id"]})).await["result"].clone();
            if now["artifacts"][0]["parts"] == json!([{"text": "one "}]) {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{now}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        // Killed: nothing of it runs any more, and nothing is put in order.
        std::mem::forget(side);
        parked
    });
    first.shutdown_background();
    second.block_on(async {
        store.release().await.unwrap();
        let (ctx, metrics) = Side::context(agent.port);
        let side = Side::on(ctx, metrics, Arc::new(store.share()));
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let now = side.call("GetTask", json!({"id": parked["id"]})).await["result"].clone();
            if state(&now) == "TASK_STATE_COMPLETED" {
                assert_eq!(now["artifacts"][0]["parts"], json!([{"text": "one "}, {"text": "burger"}]));
                break;
            }
            assert!(tokio::time::Instant::now() < deadline && state(&now) == "TASK_STATE_WORKING", "{now}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(agent.got(Operation::SendStreamingMessage).len(), 1, "handed over once");
        assert_eq!(agent.got(Operation::SubscribeToTask).len(), 1, "found again by its stream");
    });
}
