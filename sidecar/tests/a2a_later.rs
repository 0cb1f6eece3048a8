//! Turns that are answered 202, and their events on the local API.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;

use std::time::Duration;

use a2a_support::{Front, Handler, follow_up, message, quick, reason, shorts, state, until};
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Request, StatusCode};
use outrigger_protocol::config::Limits;
use serde_json::{Value, json};

async fn worker() -> Handler {
    Handler::start(|_| async { StatusCode::ACCEPTED.into_response() }).await
}

/// Sends a message that is answered 202; its task and turn.
async fn begin(front: &Front, handler: &Handler) -> (Value, String) {
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    let before = handler.turns().len();
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    until("the turn", || handler.turns().len() == before + 1).await;
    let turn = handler.turns()[before].json()["turn"].as_str().unwrap().to_owned();
    (task, turn)
}

#[tokio::test]
async fn events_come_later_and_each_counts_once() {
    let handler = worker().await;
    let front = Front::streaming(&handler);
    let mut stream = front.send_stream("hi").await;
    let turn = handler.turns()[0].json()["turn"].as_str().unwrap().to_owned();
    let (first, second) = (json!({"seq": 1, "status": "baking"}), json!({"seq": 2, "text": "One "}));
    assert_eq!(front.post_events(&turn, first.clone()).await, (StatusCode::OK, json!({"seq": 1})));
    // Again, alone or with the next one: nothing happens twice.
    assert_eq!(front.post_events(&turn, first.clone()).await, (StatusCode::OK, json!({"seq": 1})));
    assert_eq!(front.post_events(&turn, json!([first, second])).await, (StatusCode::OK, json!({"seq": 2})));
    let (status, body) = front.post_events(&turn, json!({"seq": 4, "text": "gap"})).await;
    assert_eq!(
        (status, &body["error"]["reason"], &body["error"]["expected"]),
        (StatusCode::CONFLICT, &json!("seq_gap"), &json!(3))
    );
    // What stands before a mistake is kept, the rest is not.
    let (status, body) = front.post_events(&turn, json!([{"seq": 3}, {"seq": 4, "delta": 1, "text": 7}])).await;
    assert_eq!((status, &body["error"]["reason"]), (StatusCode::BAD_REQUEST, &json!("answer_invalid")), "{body}");
    for (bad, reason) in
        [(json!({"text": "x"}), "answer_invalid"), (json!([]), "answer_invalid"), (json!({"x": 1}), "answer_empty")]
    {
        let (status, body) = front.post_events(&turn, bad).await;
        assert_eq!((status, &body["error"]["reason"]), (StatusCode::BAD_REQUEST, &json!(reason)));
    }
    let end = json!([{"seq": 4, "text": "burger"}, {"seq": 5, "state": "completed"}, {"seq": 6, "text": "late"}]);
    assert_eq!(front.post_events(&turn, end.clone()).await, (StatusCode::OK, json!({"seq": 5})));
    assert_eq!(front.metric("outrigger_a2a_late_answers_total", &[]), 1);
    let got = shorts(&stream.rest().await);
    let want =
        ["task submitted", "working", "working \"baking\"", "chunk \"One \"", "chunk \"burger\" append", "completed"];
    assert_eq!(got, want);
    until("the end of the turn", || front.metric("outrigger_a2a_turn_duration_seconds", &[]) == 1).await;
    let (status, body) = front.post_events(&turn, end).await;
    assert_eq!((status, &body["error"]["reason"]), (StatusCode::GONE, &json!("turn_ended")));
    assert!(handler.got("DELETE").is_empty());
}

#[tokio::test]
async fn every_state_works_and_a_follow_up_is_a_turn_of_its_own() {
    let handler = worker().await;
    let front = Front::streaming(&handler);
    for (event, want) in [
        (json!({"seq": 1, "state": "input-required", "text": "Which?"}), "TASK_STATE_INPUT_REQUIRED"),
        (json!({"seq": 1, "state": "auth-required"}), "TASK_STATE_AUTH_REQUIRED"),
        (json!({"seq": 1, "state": "rejected"}), "TASK_STATE_REJECTED"),
        (json!({"seq": 1, "error": {"message": "broken", "reason": "grill"}}), "TASK_STATE_FAILED"),
        // A caller knows of the task since the 202.
        (json!({"seq": 1, "message": "hello"}), "TASK_STATE_COMPLETED"),
    ] {
        let (task, turn) = begin(&front, &handler).await;
        assert_eq!(front.post_events(&turn, event).await.0, StatusCode::OK);
        assert_eq!(state(&front.get(task["id"].as_str().unwrap()).await), want);
    }
    let (task, turn) = begin(&front, &handler).await;
    front.post_events(&turn, json!({"seq": 1, "state": "input-required"})).await;
    let answering = async {
        until("the second turn", || handler.turns().len() == 7).await;
        let second = handler.turns()[6].json()["turn"].as_str().unwrap().to_owned();
        assert_ne!(second, turn);
        assert_eq!(front.post_events(&second, json!({"seq": 1, "state": "completed"})).await.0, StatusCode::OK);
    };
    let (done, ()) = tokio::join!(front.call("SendMessage", follow_up(&task, "yes")), answering);
    assert_eq!(state(&done["result"]["task"]), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_turn_that_is_answered_later_takes_no_place() {
    let handler = worker().await;
    let front = Front::new(handler.port, Limits { max_concurrent_turns: 1, ..Limits::default() });
    let mut turns = Vec::new();
    for _ in 0..5 {
        turns.push(begin(&front, &handler).await);
    }
    until("the places", || front.metric("outrigger_a2a_turns_in_flight", &[]) == 0).await;
    for (task, turn) in turns {
        assert_eq!(front.post_events(&turn, json!({"seq": 1, "state": "completed"})).await.0, StatusCode::OK);
        assert_eq!(state(&front.get(task["id"].as_str().unwrap()).await), "TASK_STATE_COMPLETED");
    }
}

#[tokio::test]
async fn events_may_come_before_the_202() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let told = std::sync::Arc::new(tokio::sync::Mutex::new(Some(told)));
    let handler = Handler::start(move |_| {
        let told = std::sync::Arc::clone(&told);
        async move {
            let wait = told.lock().await.take().unwrap();
            wait.await.unwrap();
            StatusCode::ACCEPTED.into_response()
        }
    })
    .await;
    let front = Front::to(&handler);
    let (task, turn) = begin(&front, &handler).await;
    let posting = front.post_events(&turn, json!({"seq": 1, "state": "completed"}));
    let answering = async {
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
    };
    let (posted, ()) = tokio::join!(posting, answering);
    assert_eq!(posted, (StatusCode::OK, json!({"seq": 1})));
    assert_eq!(state(&front.get(task["id"].as_str().unwrap()).await), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_cancel_ends_a_turn_that_is_answered_later() {
    let handler = worker().await;
    let front = Front::to(&handler);
    let (task, turn) = begin(&front, &handler).await;
    assert_eq!(front.post_events(&turn, json!({"seq": 1})).await.0, StatusCode::OK);
    assert_eq!(state(&front.call("CancelTask", json!({"id": task["id"]})).await["result"]), "TASK_STATE_CANCELED");
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
    assert_eq!(front.post_events(&turn, json!({"seq": 2, "state": "completed"})).await.0, StatusCode::GONE);
    assert_eq!(state(&front.get(task["id"].as_str().unwrap()).await), "TASK_STATE_CANCELED");
    tokio::time::timeout(Duration::from_secs(5), front.ctx.drain.idle()).await.unwrap();
}

#[tokio::test]
async fn limits_of_turns_that_are_answered_later() {
    let handler = worker().await;
    let limits =
        Limits { async_idle_timeout_ms: 150, async_timeout_ms: 400, max_answer_bytes: 500, ..Limits::default() };
    let front = Front::streaming_with(&handler, limits, quick());
    let task = front.send("quiet").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "async_idle"));
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
    let (task, turn) = begin(&front, &handler).await;
    let big = json!({"seq": 1, "text": "x".repeat(600)});
    assert_eq!(front.post_events(&turn, big).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let mut seq = 0;
    loop {
        seq += 1;
        let (status, _) = front.post_events(&turn, json!({"seq": seq, "status": "still"})).await;
        if status == StatusCode::GONE {
            break;
        }
        assert_eq!(status, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let task = front.get(task["id"].as_str().unwrap()).await;
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "async_timeout"));
    let request = Request::post("/turns/nobody/events").body(Body::from("{}")).unwrap();
    until("the first look for turns", || front.metric("outrigger_a2a_tasks", &[]) > 0).await;
    assert_eq!(front.local(request).await.0, StatusCode::GONE);
}
