//! A task store that goes away: a clear 503 for what is new, and nothing accepted is lost.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;
mod outage_support;

use std::sync::Arc;
use std::time::Duration;

use a2a_support::{Front, Handler, answer, event_stream, message, quick, reason, short, shorts, state, until};
use outage_support::{Handle, Outage};
use outrigger_protocol::config::{Limits, Recovery};
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::store::Memory;
use parking_lot::Mutex;
use serde_json::{Value, json};

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

fn front(port: u16, timing: Timing) -> (Front, Arc<Outage>) {
    let mut door = None;
    let front = Front::on_store(port, Limits::default(), timing, |ctx, metrics| {
        let outage = Outage::of(Arc::new(Memory::new(ctx.live.clone(), metrics)));
        door = Some(Arc::clone(&outage));
        Arc::new(Handle(outage))
    });
    (front, door.unwrap())
}

#[tokio::test]
async fn new_work_gets_503_and_comes_back() {
    let handler = Handler::start(|_| async { answer(json!({"text": "hi"})) }).await;
    let (front, store) = front(handler.port, quick());
    let task = front.send("before").await["result"]["task"].clone();
    store.set(true, false);
    for (method, params) in [
        ("SendMessage", message("hi")),
        ("SendStreamingMessage", message("hi")),
        ("GetTask", json!({"id": task["id"]})),
        ("ListTasks", json!({})),
        ("CancelTask", json!({"id": task["id"]})),
        ("SubscribeToTask", json!({"id": task["id"]})),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (status, headers, body) = front.post(body, &[("a2a-version", "1.0")]).await;
        assert_eq!((status.as_u16(), headers.contains_key("retry-after")), (503, true), "{method}: {body}");
    }
    assert_eq!(handler.turns().len(), 1);
    store.set(false, false);
    assert_eq!(state(&front.send("after").await["result"]["task"]), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_result_in_hand_waits_for_the_store_and_streams_miss_nothing() {
    for writes in [false, true] {
        let (handler, senders) = told().await;
        let (front, store) = front(handler.port, quick());
        let sending = async {
            until("the turn", || senders.lock().len() == 1).await;
            senders.lock()[0].send(json!({"status": "begun"})).unwrap();
        };
        let (mut stream, ()) = tokio::join!(front.send_stream("hi"), sending);
        for _ in 0..3 {
            stream.next().await.unwrap();
        }
        store.set(true, writes);
        for event in
            [json!({"text": "a"}), json!({"status": "on"}), json!({"text": "b"}), json!({"state": "completed"})]
        {
            senders.lock()[0].send(event).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.set(false, false);
        let rest = shorts(&stream.rest().await);
        assert_eq!(rest, ["chunk \"a\"", "working \"on\"", "chunk \"b\" append", "completed"], "{writes}");
    }
}

#[tokio::test]
async fn an_acceptance_whose_answer_was_lost_is_carried_out() {
    let handler = Handler::start(|_| async { answer(json!({"text": "hi"})) }).await;
    let (front, store) = front(handler.port, quick());
    store.set(true, true);
    let refused = front.send("hi").await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    store.set(false, false);
    until("the turn", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
    assert_eq!(handler.turns().len(), 1);
}

#[tokio::test]
async fn turns_stop_when_the_lease_cannot_be_renewed() {
    let ms = Duration::from_millis;
    let timing = Timing { renew: ms(20), lost: ms(150), ..quick() };
    for recovery in [Recovery::Fail, Recovery::Redeliver] {
        let (handler, senders) = told().await;
        let (front, store) = front(handler.port, timing);
        front.set_live(|live| live.turns.recovery = recovery);
        let mut params = message("hi");
        params["configuration"] = json!({"returnImmediately": true});
        let task = front.call("SendMessage", params).await["result"]["task"].clone();
        until("the turn", || senders.lock().len() == 1).await;
        store.set(true, false);
        // Another process may have the task by now: this one tells the agent to stop.
        until("the DELETE", || handler.got("DELETE").len() == 1 || recovery == Recovery::Fail).await;
        tokio::time::sleep(ms(200)).await;
        store.set(false, false);
        let id = task["id"].as_str().unwrap().to_owned();
        if recovery == Recovery::Redeliver {
            until("the turn again", || senders.lock().len() == 2).await;
            assert_eq!(handler.turns()[1].json()["attempt"], 2);
            senders.lock()[1].send(json!({"state": "completed"})).unwrap();
            until("the end", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
        } else {
            until("the end", || front.metric("outrigger_a2a_tasks", &[("state", "failed")]) == 1).await;
            let task = front.get(&id).await;
            assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "store_lost"));
            until("the DELETE", || handler.got("DELETE").len() == 1).await;
            assert_eq!(senders.lock().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_stream_outlives_a_short_outage() {
    let (handler, senders) = told().await;
    let (front, store) = front(handler.port, quick());
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    until("the turn", || senders.lock().len() == 1).await;
    let mut stream = front.open("SubscribeToTask", json!({"id": task["id"]}), &[]).await.unwrap();
    stream.next().await.unwrap();
    store.set(true, false);
    senders.lock()[0].send(json!({"state": "completed", "text": "x"})).unwrap();
    let opening = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        store.set(false, false);
    };
    let (rest, ()) = tokio::join!(stream.rest(), opening);
    assert_eq!(short(rest.last().unwrap()), "completed");
}
