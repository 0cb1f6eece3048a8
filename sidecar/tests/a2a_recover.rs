//! Processes that die, leases that run out, stores that go away: what was accepted is not lost, and ends once.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use a2a_support::{Front, Handler, PATIENCE, answer, event_stream, follow_up, message, quick, reason, state, until};
use axum::response::IntoResponse;
use http::StatusCode;
use jiff::Timestamp;
use outrigger_protocol::config::{Limits, Recovery};
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::store::{Clock, Memory, Sqlite, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A sidecar with a runtime of its own, so that it can be killed.
struct Process {
    front: Option<Front>,
    runtime: Option<Runtime>,
}

impl Process {
    fn start(
        port: u16,
        recovery: Recovery,
        store: impl FnOnce(&outrigger_sidecar::context::Context, outrigger_sidecar::a2a::metrics::Metrics) -> Arc<dyn Store>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ms = Duration::from_millis;
        let timing = Timing { renew: ms(100), lost: ms(2_000), reap: ms(20), ..quick() };
        let front = {
            let _guard = runtime.enter();
            Front::on_store(port, Limits::default(), timing, store)
        };
        front.set_live(|live| live.turns.recovery = recovery);
        Self { front: Some(front), runtime: Some(runtime) }
    }

    fn front(&self) -> &Front {
        self.front.as_ref().unwrap()
    }

    /// Ends without any goodbye.
    fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
        drop(self.front.take());
    }

    /// Runs a call of a caller in it.
    async fn call(&self, method: &'static str, params: Value) -> Value {
        let service = Arc::clone(&self.front().service);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let call = self.runtime.as_ref().unwrap().spawn(async move {
            let request = http::Request::post("/").header("content-type", "application/json");
            let request = request.header("a2a-version", "1.0").body(axum::body::Body::from(body)).unwrap();
            let response = tower::ServiceExt::oneshot(service.router(), request).await.unwrap();
            http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes()
        });
        serde_json::from_slice(&call.await.unwrap()).unwrap()
    }

    async fn begin(&self, text: &str) -> Value {
        let mut params = message(text);
        params["configuration"] = json!({"returnImmediately": true});
        self.call("SendMessage", params).await["result"]["task"].clone()
    }

    async fn ended(&self, id: &Value) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let task = self.call("GetTask", json!({"id": id})).await["result"].clone();
            if ["COMPLETED", "FAILED", "CANCELED", "REJECTED"].iter().any(|s| state(&task).ends_with(s)) {
                return task;
            }
            assert!(tokio::time::Instant::now() < deadline, "the task does not end: {task}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One memory for all processes, and a clock that can jump over a lease.
struct Shared {
    memory: Memory,
    ahead: Arc<AtomicU64>,
}

impl Shared {
    fn new() -> Self {
        let ahead = Arc::new(AtomicU64::new(0));
        let skip = Arc::clone(&ahead);
        let clock = Clock::new(move || {
            Timestamp::now() + jiff::SignedDuration::from_secs(skip.load(Ordering::SeqCst).try_into().unwrap())
        });
        let live = Arc::new(outrigger_protocol::config::Live::new(Value::Null));
        let live = tokio::sync::watch::channel(live).1;
        let metrics = outrigger_sidecar::a2a::metrics::Metrics::register(&prometheus::Registry::new()).unwrap();
        Self { memory: Memory::bounded(live, metrics, 64 << 20, clock), ahead }
    }

    fn process(&self, port: u16, recovery: Recovery) -> Process {
        let store: Arc<dyn Store> = Arc::new(self.memory.share());
        Process::start(port, recovery, |_, _| store)
    }

    fn leases_run_out(&self) {
        self.ahead.fetch_add(20, Ordering::SeqCst);
    }
}

fn sqlite(
    path: &Path,
) -> impl FnOnce(&outrigger_sidecar::context::Context, outrigger_sidecar::a2a::metrics::Metrics) -> Arc<dyn Store> {
    let path = path.to_owned();
    move |ctx, metrics| {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            // The threads of a process that was killed let go of the file in a moment.
            match Sqlite::open(&path, ctx.live.clone(), metrics.clone(), Clock::system()) {
                Ok(store) => return Arc::new(store),
                Err(e) => assert!(tokio::time::Instant::now() < deadline, "{e}"),
            }
            std::thread::yield_now();
        }
    }
}

type Senders = Arc<Mutex<Vec<tokio::sync::mpsc::UnboundedSender<Value>>>>;

async fn told() -> (Handler, Senders) {
    let senders: Senders = Arc::default();
    let keep = Arc::clone(&senders);
    let handler = Handler::start(move |_| {
        let (tx, response) = event_stream();
        keep.lock().push(tx);
        async { response }
    })
    .await;
    (handler, senders)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_a_process_that_died_fails_once() {
    let (handler, senders) = told().await;
    let shared = Shared::new();
    let first = shared.process(handler.port, Recovery::Fail);
    let (second, third) = (shared.process(handler.port, Recovery::Fail), shared.process(handler.port, Recovery::Fail));
    let task = first.begin("hi").await;
    until("the turn", || senders.lock().len() == 1).await;
    senders.lock()[0].send(json!({"text": "half"})).unwrap();
    let id = task["id"].clone();
    let has_half = async {
        while second.call("GetTask", json!({"id": id})).await["result"]["artifacts"][0].is_null() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, has_half).await.unwrap();
    first.kill();
    // Before its lease has run out nobody touches its task.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(state(&second.call("GetTask", json!({"id": id})).await["result"]), "TASK_STATE_WORKING");
    shared.leases_run_out();
    let ended = second.ended(&id).await;
    assert_eq!((state(&ended), reason(&ended)), ("TASK_STATE_FAILED", "agent_restarted"));
    assert_eq!(ended["artifacts"][0]["parts"], json!([{"text": "half"}]));
    let counted = |p: &Process| p.front().metric("outrigger_a2a_tasks_recovered_total", &[("outcome", "failed")]);
    assert_eq!(counted(&second) + counted(&third), 1);
    assert_eq!(handler.turns().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_handed_over_again_where_that_is_safe() {
    let (handler, senders) = told().await;
    let shared = Shared::new();
    let first = shared.process(handler.port, Recovery::Redeliver);
    let second = shared.process(handler.port, Recovery::Redeliver);
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true, "acceptedOutputModes": ["text/plain"]});
    params["metadata"] = json!({"table": 4});
    let task = first.call("SendMessage", params).await["result"]["task"].clone();
    until("the turn", || senders.lock().len() == 1).await;
    senders.lock()[0].send(json!({"text": "one "})).unwrap();
    senders.lock()[0].send(json!({"seq": 2, "text": "two "})).unwrap();
    let id = task["id"].clone();
    let kept = async {
        loop {
            let task = second.call("GetTask", json!({"id": id})).await["result"].clone();
            if task["artifacts"][0]["parts"].as_array().is_some_and(|p| p.len() == 2) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, kept).await.unwrap();
    first.kill();
    shared.leases_run_out();
    until("the turn again", || senders.lock().len() == 2).await;
    let turns: Vec<Value> = handler.turns().iter().map(a2a_support::Got::json).collect();
    assert_eq!(turns[0]["turn"], turns[1]["turn"]);
    assert_eq!((&turns[0]["attempt"], &turns[0]["lastSeq"]), (&json!(1), &json!(0)));
    assert_eq!((&turns[1]["attempt"], &turns[1]["lastSeq"]), (&json!(2), &json!(2)));
    for member in ["text", "metadata", "acceptedOutputModes", "caller"] {
        assert_eq!(turns[0][member], turns[1][member], "{member}");
    }
    assert_eq!(turns[1]["message"]["parts"], turns[0]["message"]["parts"]);
    // It starts over: what is there already is dropped.
    for event in [
        json!({"seq": 1, "text": "one "}),
        json!({"seq": 2, "text": "two "}),
        json!({"seq": 3, "text": "three"}),
        json!({"seq": 4, "state": "completed"}),
    ] {
        senders.lock()[1].send(event).unwrap();
    }
    let ended = second.ended(&id).await;
    assert_eq!(state(&ended), "TASK_STATE_COMPLETED");
    assert_eq!(ended["artifacts"][0]["parts"], json!([{"text": "one "}, {"text": "two "}, {"text": "three"}]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_handed_over_is_handed_over_whatever_the_handler_promises() {
    let (socket, port) = a2a_support::not_listening();
    let shared = Shared::new();
    let first = shared.process(port, Recovery::Fail);
    // The queue is full with one turn that nobody takes.
    first.front().set_limits(|l| l.max_concurrent_turns = 1);
    let waiting = first.begin("first").await;
    let queued = first.begin("second").await;
    first.kill();
    let handler = Handler::on(socket.listen(16).unwrap(), |g| async move { answer(json!({"text": g.json()["text"]})) });
    let second = shared.process(handler.port, Recovery::Fail);
    shared.leases_run_out();
    let ended = second.ended(&queued["id"]).await;
    assert_eq!(state(&ended), "TASK_STATE_COMPLETED", "{ended}");
    assert_eq!(ended["artifacts"][0]["parts"][0]["text"], "second");
    // The other one was on its way: nobody knows how far it came.
    assert_eq!(reason(&second.ended(&waiting["id"]).await), "agent_restarted");
    assert_eq!(handler.turns().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_task_goes_on_anywhere() {
    let handler = Handler::start(|g| async move {
        let first = g.json()["task"]["history"] == json!([]);
        answer(if first {
            json!({"state": "input-required", "memo": {"n": 1}})
        } else {
            json!({"text": g.json()["context"]["memo"]["n"].to_string()})
        })
    })
    .await;
    let shared = Shared::new();
    let (first, second) = (shared.process(handler.port, Recovery::Fail), shared.process(handler.port, Recovery::Fail));
    let task = first.call("SendMessage", message("hi")).await["result"]["task"].clone();
    first.kill();
    shared.leases_run_out();
    tokio::time::sleep(Duration::from_millis(60)).await;
    let done = second.call("SendMessage", follow_up(&task, "yes")).await["result"]["task"].clone();
    assert_eq!((state(&done), &done["artifacts"][0]["parts"][0]["text"]), ("TASK_STATE_COMPLETED", &json!("1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_for_a_task_that_another_process_works_on_waits_until_it_rests() {
    let (handler, senders) = told().await;
    let shared = Shared::new();
    let (first, second) = (shared.process(handler.port, Recovery::Fail), shared.process(handler.port, Recovery::Fail));
    let task = first.begin("hi").await;
    until("the turn", || senders.lock().len() == 1).await;
    let sending = second.call("SendMessage", follow_up(&task, "more"));
    let resting = async {
        until("its wait", || second.front().metric("outrigger_a2a_turns_in_flight", &[]) == 1).await;
        assert_eq!(senders.lock().len(), 1);
        senders.lock()[0].send(json!({"state": "input-required"})).unwrap();
        until("the second turn", || senders.lock().len() == 2).await;
        senders.lock()[1].send(json!({"state": "completed"})).unwrap();
    };
    let (done, ()) = tokio::join!(sending, resting);
    assert_eq!(state(&done["result"]["task"]), "TASK_STATE_COMPLETED");
    // A cancel from another process reaches the turn.
    let task = first.begin("hi").await;
    until("the third turn", || senders.lock().len() == 3).await;
    let canceled = second.call("CancelTask", json!({"id": task["id"]})).await["result"].clone();
    assert_eq!(state(&canceled), "TASK_STATE_CANCELED");
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_answered_later_survives_its_sidecar() {
    let handler = Handler::start(|_| async { StatusCode::ACCEPTED.into_response() }).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let first = Process::start(handler.port, Recovery::Fail, sqlite(&file));
    let task = first.begin("hi").await;
    until("the turn", || handler.turns().len() == 1).await;
    let turn = handler.turns()[0].json()["turn"].as_str().unwrap().to_owned();
    assert_eq!(first.front().post_events(&turn, json!({"seq": 1, "text": "one "})).await.0, StatusCode::OK);
    first.kill();
    let second = Process::start(handler.port, Recovery::Fail, sqlite(&file));
    // The same URL; at first perhaps "not now".
    let next = json!([{"seq": 1, "text": "one "}, {"seq": 2, "text": "two"}, {"seq": 3, "state": "completed"}]);
    let posted = async {
        loop {
            let (status, body) = second.front().post_events(&turn, next.clone()).await;
            if status != StatusCode::SERVICE_UNAVAILABLE {
                return (status, body);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (status, body) = tokio::time::timeout(PATIENCE, posted).await.unwrap();
    assert_eq!((status, body), (StatusCode::OK, json!({"seq": 3})));
    let ended = second.ended(&task["id"]).await;
    assert_eq!(
        (state(&ended), &ended["artifacts"][0]["parts"]),
        ("TASK_STATE_COMPLETED", &json!([{"text": "one "}, {"text": "two"}]))
    );
    assert_eq!((handler.turns().len(), handler.got("DELETE").len()), (1, 0));
    assert_eq!(second.front().metric("outrigger_a2a_tasks_recovered_total", &[("outcome", "reattached")]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_in_flight_fails_when_only_the_sidecar_was_restarted() {
    let (handler, senders) = told().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let first = Process::start(handler.port, Recovery::Fail, sqlite(&file));
    let task = first.begin("hi").await;
    until("the turn", || senders.lock().len() == 1).await;
    first.kill();
    let second = Process::start(handler.port, Recovery::Fail, sqlite(&file));
    let ended = second.ended(&task["id"]).await;
    assert_eq!((state(&ended), reason(&ended)), ("TASK_STATE_FAILED", "agent_restarted"));
}
