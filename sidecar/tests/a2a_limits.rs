//! Bounds: places, queue, store, drain, shutdown, readiness; limits that change under way.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use std::sync::Arc;
use std::time::Duration;

use a2a_support::{Front, Got, Handler, PATIENCE, answer, follow_up, message, reason, state, until};
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Response, StatusCode};
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::{Memory, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// A handler whose turns wait for a permit.
async fn held() -> (Handler, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let handler = Handler::start(move |g: Got| {
        let open = Arc::clone(&open);
        async move {
            open.acquire().await.unwrap().forget();
            answer(json!({"text": g.json()["text"]}))
        }
    })
    .await;
    (handler, gate)
}

fn send(front: &Arc<Front>, text: &str) -> tokio::task::JoinHandle<Value> {
    let (front, text) = (Arc::clone(front), text.to_owned());
    tokio::spawn(async move { front.send(&text).await })
}

async fn queued(front: &Front, n: u64) {
    until("the queue", || front.metric("outrigger_a2a_turns_queued", &[]) == n).await;
}

#[tokio::test]
async fn the_queue_is_bounded_and_limits_change_under_way() {
    let (handler, gate) = held().await;
    let limits = Limits { max_concurrent_turns: 1, max_queued_turns: 1, ..Limits::default() };
    let front = Arc::new(Front::new(handler.port, limits));
    let first = send(&front, "1");
    until("the first turn", || handler.turns().len() == 1).await;
    let second = send(&front, "2");
    queued(&front, 1).await;
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "SendMessage", "params": message("3")}).to_string();
    let (status, headers, text) = front.post(body, &[]).await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap()));
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&error["id"], &error["error"]["data"][0]["reason"]), (&json!(9), &json!("RESOURCE_EXHAUSTED")));
    assert_eq!(front.metric("outrigger_a2a_tasks", &[]), 2, "nothing was stored for the third");

    front.set_limits(|l| l.max_concurrent_turns = 2);
    until("the second turn", || handler.turns().len() == 2).await;
    let third = send(&front, "3");
    queued(&front, 1).await;
    front.set_limits(|l| l.max_concurrent_turns = 1);
    gate.add_permits(1);
    until("one end", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
    assert_eq!(handler.turns().len(), 2, "a narrower limit holds the third back");
    gate.add_permits(2);
    for call in [first, second, third] {
        assert_eq!(state(&call.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    }
}

#[tokio::test]
async fn waiting_for_a_place_is_bounded() {
    let (handler, gate) = held().await;
    let limits = Limits { max_concurrent_turns: 1, queue_timeout_ms: 100, ..Limits::default() };
    let front = Arc::new(Front::new(handler.port, limits));
    let first = send(&front, "1");
    until("the first turn", || handler.turns().len() == 1).await;
    let task = front.send("2").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_REJECTED", "queue_timeout"));
    gate.add_permits(1);
    assert_eq!(state(&first.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_follow_up_without_a_place_leaves_its_task_alone() {
    let handler = Handler::start(|g| async move {
        if g.json()["text"] == "block" {
            return std::future::pending().await;
        }
        answer(json!({"state": "input-required", "text": "?"}))
    })
    .await;
    let limits = Limits { max_concurrent_turns: 1, queue_timeout_ms: 100, ..Limits::default() };
    let front = Arc::new(Front::new(handler.port, limits));
    let task = front.send("ask").await["result"]["task"].clone();
    let block = send(&front, "block");
    until("the block", || handler.turns().len() == 2).await;
    let refused = front.call("SendMessage", follow_up(&task, "yes")).await;
    assert_eq!(refused["error"]["data"][0]["reason"], "RESOURCE_EXHAUSTED");
    assert_eq!(front.get(task["id"].as_str().unwrap()).await, task);
    block.abort();
}

#[tokio::test]
async fn the_store_is_bounded() {
    let handler = Handler::start(|g| async move {
        let state = if g.json()["text"] == "stay" { "input-required" } else { "completed" };
        answer(json!({"state": state, "text": "x"}))
    })
    .await;
    let front = Front::new(handler.port, Limits { max_tasks: 2, ..Limits::default() });
    let id = |v: &Value| v["result"]["task"]["id"].as_str().unwrap().to_owned();
    let (a, b) = (id(&front.send("a").await), id(&front.send("b").await));
    let c = id(&front.send("c").await);
    assert_eq!(front.call("GetTask", json!({"id": a})).await["error"]["code"], -32001, "the oldest end goes first");
    assert_eq!(state(&front.get(&b).await), "TASK_STATE_COMPLETED");
    assert_eq!(state(&front.get(&c).await), "TASK_STATE_COMPLETED");
    assert_eq!(front.metric("outrigger_a2a_tasks_evicted_total", &[]), 1);
    front.send("stay").await;
    front.send("stay").await;
    let full = front.send("no room").await;
    assert_eq!(full["error"]["data"][0]["reason"], "RESOURCE_EXHAUSTED");
    assert!(full["error"]["message"].as_str().unwrap().contains("all of its 2 tasks are still alive"), "{full}");
    assert_eq!(handler.turns().len(), 5, "the handler was not asked");
}

#[tokio::test]
async fn ended_tasks_are_forgotten_after_their_retention() {
    let handler = Handler::start(|_| async { answer(json!({"text": "x"})) }).await;
    let limits = Limits { task_retention_ms: 1, ..Limits::default() };
    let mut kept = None;
    let front = Front::on_store(handler.port, limits, a2a_support::quick(), |ctx, metrics| {
        let store: Arc<dyn Store> = Arc::new(Memory::new(ctx.live.clone(), metrics));
        kept.insert(store).clone()
    });
    let id = front.send("a").await["result"]["task"]["id"].as_str().unwrap().to_owned();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while front.call("GetTask", json!({"id": id})).await["error"]["code"] != -32001 {
        assert!(tokio::time::Instant::now() < deadline);
        kept.as_ref().unwrap().sweep().await.unwrap();
    }
}

#[tokio::test]
async fn turns_wait_for_a_container_that_is_restarted() {
    let handler = Handler::start(|_| async { answer(json!({"text": "x"})) }).await;
    let front = Arc::new(Front::with(
        handler.port,
        None,
        Limits { queue_timeout_ms: 20_000, ..Limits::default() },
        a2a_support::quick(),
    ));
    // Two containers, so that the hook of one does not drain the pod.
    let mut ctx = front.ctx.clone();
    ctx.drain = outrigger_sidecar::drain::Drain::new(&["agent".into(), "tool-a".into()], Duration::from_mins(1));
    ctx.registry = prometheus::Registry::new();
    let service = outrigger_sidecar::a2a::Service::start_with(&ctx, Arc::new(Vec::new), a2a_support::quick()).unwrap();
    let front = Arc::new(Front { port: front.port, service, ctx: ctx.clone(), live: front.live.clone() });
    let hook = tokio::spawn({
        let drain = Arc::clone(&ctx.drain);
        async move { drain.hook("agent").await }
    });
    until("the hold", || ctx.drain.held("agent")).await;
    assert!(tokio::time::timeout(PATIENCE, hook).await.unwrap().unwrap(), "no work is in flight");
    let call = send(&front, "hi");
    until("the wait", || front.metric("outrigger_a2a_turns_in_flight", &[]) == 1).await;
    assert!(handler.turns().is_empty());
    // The probe sees it go and come back.
    let port = handler.port;
    drop(handler);
    until("the outage", || !front.service.agent_status().ready).await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let handler = Handler::on(listener, |_| async { answer(json!({"text": "back"})) });
    let task = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap()["result"]["task"].clone();
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "back");
    assert!(!ctx.drain.held("agent") && handler.turns().len() == 1);
}

#[tokio::test]
async fn a_restart_does_not_wait_for_turns_that_wait_for_it() {
    let (handler, gate) = held().await;
    let front = Front::new(handler.port, Limits { max_concurrent_turns: 1, ..Limits::default() });
    let mut ctx = front.ctx.clone();
    ctx.drain = outrigger_sidecar::drain::Drain::new(&["agent".into(), "tool-a".into()], Duration::from_hours(1));
    ctx.registry = prometheus::Registry::new();
    let service = outrigger_sidecar::a2a::Service::start_with(&ctx, Arc::new(Vec::new), a2a_support::quick()).unwrap();
    let front = Arc::new(Front { port: front.port, service, ctx: ctx.clone(), live: front.live.clone() });
    let first = send(&front, "1");
    until("the first turn", || handler.turns().len() == 1).await;
    let waiting = [send(&front, "2"), send(&front, "3")];
    queued(&front, 2).await;
    let hook = tokio::spawn({
        let drain = Arc::clone(&ctx.drain);
        async move { drain.hook("agent").await }
    });
    until("the hold", || ctx.drain.held("agent")).await;
    assert!(!hook.is_finished(), "the first turn is at work");
    gate.add_permits(1);
    assert_eq!(state(&first.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    assert!(tokio::time::timeout(PATIENCE, hook).await.unwrap().unwrap());
    assert_eq!(handler.turns().len(), 1, "the others were held back");
    gate.add_permits(2);
    ctx.drain.reopen("agent");
    for call in waiting {
        assert_eq!(state(&call.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    }
}

#[tokio::test]
async fn a_handler_at_work_that_answers_no_probe_stays_ready() {
    // One thread: one request at a time, in order.
    let one = Arc::new(Semaphore::new(1));
    let gate = Arc::new(Semaphore::new(0));
    let (thread, open) = (Arc::clone(&one), Arc::clone(&gate));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probes = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&probes);
    let app = axum::Router::new().fallback(move |request: http::Request<Body>| {
        let (thread, open, count) = (Arc::clone(&thread), Arc::clone(&open), Arc::clone(&count));
        async move {
            let is_turn = request.method() == "POST";
            count.fetch_add(usize::from(!is_turn), std::sync::atomic::Ordering::SeqCst);
            let _turn = thread.acquire().await.unwrap();
            if is_turn {
                open.acquire().await.unwrap().forget();
            }
            StatusCode::NO_CONTENT
        }
    });
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let timing = outrigger_sidecar::a2a::executor::Timing { probe: Duration::from_millis(30), ..a2a_support::quick() };
    let front = Arc::new(Front::with(port, None, Limits::default(), timing));
    until("readiness", || front.service.agent_status().ready).await;
    let call = send(&front, "work");
    until("the turn", || one.available_permits() == 0 && front.metric("outrigger_a2a_turns_in_flight", &[]) == 1).await;
    let before = probes.load(std::sync::atomic::Ordering::SeqCst);
    until("three probes", || probes.load(std::sync::atomic::Ordering::SeqCst) >= before + 3).await;
    assert!(front.service.agent_status().ready, "{:?}", front.service.agent_status());
    gate.add_permits(1);
    assert_eq!(state(&call.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    server.abort();
}

#[tokio::test]
async fn a_pod_that_drains_ends_its_turns_and_takes_no_more() {
    let (handler, gate) = held().await;
    let front = Arc::new(Front::to(&handler));
    let call = send(&front, "1");
    until("the turn", || handler.turns().len() == 1).await;
    front.ctx.drain.start();
    let late = send(&front, "2");
    until("a message in the first seconds", || handler.turns().len() == 2).await;
    assert!(tokio::time::timeout(Duration::from_millis(20), front.ctx.drain.idle()).await.is_err());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while front.ctx.drain.accepting() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("3")}).to_string();
    let (status, headers, text) = front.post(body, &[]).await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::SERVICE_UNAVAILABLE, &"5".parse().unwrap()));
    assert!(text.contains("\"UNAVAILABLE\""), "{text}");
    gate.add_permits(2);
    for call in [call, late] {
        let task = call.await.unwrap()["result"]["task"].clone();
        assert_eq!(state(&task), "TASK_STATE_COMPLETED");
        // What is there can still be read.
        assert_eq!(front.get(task["id"].as_str().unwrap()).await, task);
    }
    tokio::time::timeout(PATIENCE, front.ctx.drain.idle()).await.unwrap();
}

#[tokio::test]
async fn shutdown_fails_what_is_left() {
    let (handler, _gate) = held().await;
    let front = Arc::new(Front::new(handler.port, Limits { max_concurrent_turns: 1, ..Limits::default() }));
    let working = send(&front, "1");
    until("the turn", || handler.turns().len() == 1).await;
    let waiting = send(&front, "2");
    queued(&front, 1).await;
    front.ctx.shutdown.cancel();
    for call in [working, waiting] {
        let task = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap()["result"]["task"].clone();
        assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "agent_stopped"));
    }
    tokio::time::timeout(PATIENCE, front.ctx.drain.idle()).await.unwrap();
}

#[tokio::test]
async fn readiness_of_the_handler() {
    let (socket, port) = a2a_support::not_listening();
    let front = Front::new(port, Limits::default());
    until("the first probe", || front.service.agent_status().reason == "Unreachable").await;
    assert!(front.service.agent_status().message.contains(&format!("127.0.0.1:{port}")));
    // It answers GET with 404, which is an answer.
    let handler = Handler::on(socket.listen(16).unwrap(), |_| async { StatusCode::OK.into_response() });
    until("readiness", || front.service.agent_status().ready).await;
    assert_eq!(front.metric("outrigger_a2a_agent_up", &[]), 1);
    assert!(handler.turns().is_empty(), "turns are never made up");
    assert_eq!(handler.got("GET")[0].uri, "/");

    let strict = Front::with(port, Some("/healthz"), Limits::default(), a2a_support::quick());
    until("the probe", || strict.service.agent_status().reason == "NotReady").await;
    let status = strict.service.agent_status();
    assert!(!status.ready && status.message.contains("GET /healthz with status 404"), "{status:?}");

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let timing = outrigger_sidecar::a2a::executor::Timing { probe: Duration::from_millis(50), ..a2a_support::quick() };
    let front = Front::with(silent.local_addr().unwrap().port(), None, Limits::default(), timing);
    until("the probe's limit", || front.service.agent_status().reason == "NoAnswer").await;
}

#[tokio::test]
async fn answers_beyond_the_limit_in_force_are_refused() {
    let handler =
        Handler::start(|_| async { Response::new(Body::from(format!("{{\"text\":\"{}\"}}", "x".repeat(5_000)))) })
            .await;
    let front = Front::to(&handler);
    assert_eq!(state(&front.send("a").await["result"]["task"]), "TASK_STATE_COMPLETED");
    front.set_limits(|l| l.max_answer_bytes = 1_000);
    assert_eq!(reason(&front.send("b").await["result"]["task"]), "answer_too_large");
}
