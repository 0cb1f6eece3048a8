//! Tasks through the whole A2A side: turns, follow-ups, messages, cancel.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use a2a_support::{Front, Handler, answer, answer_text, context::TOKEN, follow_up, message, reason, state, until};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

fn seller(got: &a2a_support::Got) -> http::Response<Body> {
    let turn = got.json();
    if turn["task"]["state"] == "TASK_STATE_INPUT_REQUIRED" {
        let receipt = json!({"artifactId": "receipt", "name": "Receipt", "parts": [{"data": turn["context"]["memo"]}]});
        return answer(json!({"artifacts": [receipt], "text": "Thank you."}));
    }
    answer(json!({"state": "input-required", "text": "Confirm?", "memo": {"order": turn["text"]}}))
}

#[tokio::test]
async fn an_order_is_confirmed_and_completed() {
    let handler = Handler::start(|g| async move { seller(&g) }).await;
    let front = Front::to(&handler);
    let body = json!({"jsonrpc": "2.0", "id": "a", "method": "SendMessage", "params": message("one burger")});
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (_, headers, text) = front.post(body.to_string(), &[("traceparent", parent), ("tracestate", "x=1")]).await;
    assert_eq!(headers["a2a-version"], "1.0");
    let first: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(first["id"], "a");
    let task = &first["result"]["task"];
    assert_eq!(state(task), "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(task["status"]["message"]["parts"][0]["text"], "Confirm?");
    assert_eq!(task["history"].as_array().unwrap().len(), 1);
    assert!(task.get("artifacts").is_none());

    let second = front.call("SendMessage", follow_up(task, "yes")).await;
    let done = &second["result"]["task"];
    assert_eq!(
        (state(done), &done["id"], &done["contextId"]),
        ("TASK_STATE_COMPLETED", &task["id"], &task["contextId"])
    );
    assert_eq!(done["artifacts"][0]["parts"][0]["data"]["order"], "one burger");
    assert_eq!(done["status"]["message"]["parts"][0]["text"], "Thank you.");
    let said: Vec<_> = done["history"].as_array().unwrap().iter().map(|m| &m["parts"][0]["text"]).collect();
    assert_eq!(said, ["one burger", "Confirm?", "yes"]);
    assert!(done["history"].as_array().unwrap().iter().all(|m| m["taskId"] == task["id"]));
    assert_eq!(front.get(done["id"].as_str().unwrap()).await, *done);

    let turns = handler.turns();
    let (one, two) = (turns[0].json(), turns[1].json());
    assert_eq!(turns[0].headers["authorization"], format!("Bearer {TOKEN}"));
    assert_eq!(turns[0].headers["outrigger-turn"], one["turn"].as_str().unwrap());
    assert_eq!(turns[0].headers["tracestate"], "x=1");
    let trace = turns[0].headers["traceparent"].to_str().unwrap();
    assert!(trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && trace.ends_with("-01") && trace != parent);
    assert_eq!((&one["task"]["state"], &one["task"]["history"]), (&json!("TASK_STATE_SUBMITTED"), &json!([])));
    assert_eq!(one["context"].get("memo"), None);
    assert_eq!(two["context"]["memo"], json!({"order": "one burger"}));
    let texts =
        |list: &Value| list.as_array().unwrap().iter().map(|m| m["parts"][0]["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&two["task"]["history"]), ["one burger", "Confirm?"]);
    assert_eq!(texts(&two["context"]["messages"]), ["one burger"]);
    assert_eq!(two["skills"], json!([{"name": "menu", "path": "/skills/menu"}]));
    assert_eq!(two["urls"]["tasks"], format!("http://127.0.0.1:19900/t/{TOKEN}/tasks"));
    assert_ne!(one["turn"], two["turn"]);

    for (name, labels, want) in [
        ("outrigger_a2a_requests_total", vec![("method", "SendMessage"), ("outcome", "ok")], 2),
        ("outrigger_a2a_request_duration_seconds", vec![("method", "SendMessage")], 2),
        ("outrigger_a2a_turn_duration_seconds", vec![], 2),
        ("outrigger_a2a_tasks", vec![("state", "completed")], 1),
        ("outrigger_a2a_tasks", vec![("state", "input-required")], 0),
        ("outrigger_a2a_task_transitions_total", vec![("state", "working")], 2),
        ("outrigger_a2a_turns_in_flight", vec![], 0),
        ("outrigger_a2a_turns_queued", vec![], 0),
    ] {
        assert_eq!(front.metric(name, &labels), want, "{name} {labels:?}");
    }
}

#[tokio::test]
async fn numbers_order_and_unknown_members_survive_both_ways() {
    let artifact = r#"{"z":1.0,"artifactId":"a","parts":[ {"data":{"b":9007199254740993,"a":12345678901234567890,"c":1E400}} ],"new":null}"#;
    let handler =
        Handler::start(move |_| async move { answer_text(&format!(r#"{{"artifacts":[{artifact}]}}"#)) }).await;
    let front = Front::to(&handler);
    let sent = r#"{"zebra":{"y":1,"x":2.0},"messageId":"m","role":"ROLE_USER","parts":[{"data":{"n":9007199254740993,"f":1.0}} , {"text":"é\u00e9","extra":[1,2.50]}],"metadata":{"k":7}}"#;
    let got = front.call_text("SendMessage", &format!(r#"{{"message":{sent},"metadata":{{}}}}"#)).await;
    assert!(got.contains(artifact), "{got}");
    let kept = sent.strip_suffix('}').unwrap();
    assert!(got.contains(&format!("{kept},\"contextId\":\"")), "{got}");
    let turn = &handler.turns()[0].text;
    assert!(turn.contains(&format!("\"message\":{sent},\"text\":\"éé\"")), "{turn}");
}

#[tokio::test]
async fn a_message_takes_the_place_of_a_task() {
    let handler = Handler::start(|g| async move {
        let hello = g.json()["context"]["memo"].clone();
        answer(json!({"message": {"parts": [{"text": format!("hello {hello}")}]}, "memo": 7}))
    })
    .await;
    let front = Front::to(&handler);
    let mut params = message("hi");
    params["message"]["contextId"] = "my-context".into();
    let first = front.call("SendMessage", params.clone()).await["result"]["message"].clone();
    assert_eq!(first["parts"][0]["text"], "hello null");
    assert_eq!((&first["role"], &first["contextId"]), (&json!("ROLE_AGENT"), &json!("my-context")));
    assert!(first.get("taskId").is_none() && first["messageId"].is_string());
    let second = front.call("SendMessage", params.clone()).await;
    assert_eq!(second["result"]["message"]["parts"][0]["text"], "hello 7");
    let turn = handler.turns()[1].json();
    assert_eq!(turn["context"]["messages"].as_array().unwrap().len(), 1);
    let gone = front.call("GetTask", json!({"id": turn["task"]["id"]})).await;
    assert_eq!(gone["error"]["code"], -32001);
    assert_eq!(front.metric("outrigger_a2a_tasks", &[]), 0);

    // One that asked to return at once has seen the task.
    params["configuration"] = json!({"returnImmediately": true});
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    let id = task["id"].as_str().unwrap().to_owned();
    until("the turn", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
    let task = front.get(&id).await;
    assert_eq!(task["status"]["message"]["parts"][0]["text"], "hello 7");
    assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[("rule", "message_for_task")]), 1);
}

#[tokio::test]
async fn returning_at_once_and_history_length() {
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let handler = Handler::start(move |_| {
        let open = Arc::clone(&open);
        async move {
            open.acquire().await.unwrap().forget();
            answer(json!({"state": "input-required", "text": "?"}))
        }
    })
    .await;
    let front = Front::to(&handler);
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true, "historyLength": 0});
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_SUBMITTED");
    assert!(task.get("history").is_none());
    let id = task["id"].as_str().unwrap().to_owned();
    until("the turn", || handler.turns().len() == 1).await;
    assert_eq!(state(&front.get(&id).await), "TASK_STATE_WORKING");
    gate.add_permits(1);
    until("the question", || front.metric("outrigger_a2a_tasks", &[("state", "input-required")]) == 1).await;
    // A follow-up returns when it is at work, so that the old question is not taken for a new one.
    let mut params = follow_up(&task, "yes");
    params["configuration"] = json!({"returnImmediately": true});
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_WORKING");
    for (length, want) in [(json!(0), None), (json!(1), Some(1)), (json!(50), Some(3)), (Value::Null, Some(3))] {
        let got = front.call("GetTask", json!({"id": id, "historyLength": length})).await["result"].clone();
        assert_eq!(got.get("history").map(|h| h.as_array().unwrap().len()), want);
    }
    gate.add_permits(1);
}

#[tokio::test]
async fn where_a_message_may_go() {
    let handler = Handler::start(|g| async move { seller(&g) }).await;
    let front = Front::to(&handler);
    let task = front.send("one").await["result"]["task"].clone();

    let mut params = follow_up(&task, "yes");
    params["message"]["contextId"] = "another".into();
    let refused = front.call("SendMessage", params).await;
    assert_eq!(refused["error"]["code"], -32602);
    assert_eq!(refused["error"]["data"][1]["fieldViolations"][0]["field"], "message.contextId");
    assert_eq!(front.get(task["id"].as_str().unwrap()).await, task, "nothing was stored");

    let unknown = json!({"id": "0b9a6a52-6a0e-4f0c-8f1b-3b1f3c1f5b58"});
    assert_eq!(front.call("SendMessage", follow_up(&unknown, "yes")).await["error"]["code"], -32001);
    assert_eq!(front.call("GetTask", unknown.clone()).await["error"]["code"], -32001);
    assert_eq!(front.call("CancelTask", unknown).await["error"]["code"], -32001);

    let done = front.call("SendMessage", follow_up(&task, "yes")).await["result"]["task"].clone();
    assert_eq!(state(&done), "TASK_STATE_COMPLETED");
    let refused = front.call("SendMessage", follow_up(&done, "again")).await;
    assert_eq!(refused["error"]["code"], -32004);
    assert_eq!(refused["error"]["data"][0]["reason"], "UNSUPPORTED_OPERATION");
    assert_eq!(handler.turns().len(), 2);

    // Another task of the same context remembers.
    let mut params = message("two");
    params["message"]["contextId"] = task["contextId"].clone();
    let other = front.call("SendMessage", params).await["result"]["task"].clone();
    assert_eq!(other["contextId"], task["contextId"]);
    let turn = handler.turns().pop().unwrap().json();
    let texts: Vec<_> =
        turn["context"]["messages"].as_array().unwrap().iter().map(|m| m["parts"][0]["text"].clone()).collect();
    assert_eq!(texts, ["one", "yes"]);
    assert_eq!(turn["context"]["memo"], json!({"order": "one"}));
}

/// A handler whose turns wait until they are let go.
async fn held() -> (Handler, Arc<Semaphore>, Arc<AtomicUsize>) {
    let gate = Arc::new(Semaphore::new(0));
    let dropped = Arc::new(AtomicUsize::new(0));
    let (open, gone) = (Arc::clone(&gate), Arc::clone(&dropped));
    let handler = Handler::start(move |g| {
        struct Gone(Arc<AtomicUsize>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (open, gone) = (Arc::clone(&open), Gone(Arc::clone(&gone)));
        async move {
            open.acquire().await.unwrap().forget();
            std::mem::forget(gone);
            answer(json!({"text": g.json()["text"]}))
        }
    })
    .await;
    (handler, gate, dropped)
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_nothing() {
    let (handler, gate, dropped) = held().await;
    let front = Front::to(&handler);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("hi")}).to_string();
    let request = Request::post("/").header("content-type", "application/json").body(Body::from(body)).unwrap();
    let call = tokio::spawn(front.service.router().oneshot(request));
    until("the turn", || handler.turns().len() == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    until("the end", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    assert!(handler.got("DELETE").is_empty());
    // The agent finds the whole task on the local API.
    let id = handler.turns()[0].json()["task"]["id"].as_str().unwrap().to_owned();
    let request = Request::get(format!("/tasks/{id}")).body(Body::empty()).unwrap();
    let response = front.service.local_router().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let task: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((state(&task), &task["artifacts"][0]["parts"][0]["text"]), ("TASK_STATE_COMPLETED", &json!("hi")));
    let request = Request::get("/tasks/nope").body(Body::empty()).unwrap();
    assert_eq!(front.service.local_router().oneshot(request).await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_cancel_ends_the_turn() {
    let (handler, gate, dropped) = held().await;
    let front = Arc::new(Front::to(&handler));
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    let task = front.call("SendMessage", params).await["result"]["task"].clone();
    until("the turn", || handler.turns().len() == 1).await;
    let canceled = front.call("CancelTask", json!({"id": task["id"]})).await["result"].clone();
    assert_eq!((state(&canceled), reason(&canceled)), ("TASK_STATE_CANCELED", "canceled"));
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
    let turn = handler.turns()[0].json()["turn"].as_str().unwrap().to_owned();
    let delete = &handler.got("DELETE")[0];
    assert_eq!(
        (&*delete.uri, delete.headers["outrigger-turn"].to_str().unwrap()),
        (&*format!("/?turn={turn}"), &*turn)
    );
    until("the closed connection", || dropped.load(Ordering::SeqCst) == 1).await;
    gate.add_permits(1);
    // Again is no error; what has completed cannot be canceled.
    assert_eq!(front.call("CancelTask", json!({"id": task["id"]})).await["result"], canceled);
    let done = front.send("more").await["result"]["task"].clone();
    let refused = front.call("CancelTask", json!({"id": done["id"]})).await;
    assert_eq!(refused["error"]["code"], -32002);
    assert_eq!(refused["error"]["data"][0]["metadata"]["state"], "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn a_cancel_reaches_the_caller_that_waits_and_a_parked_task() {
    let handler = Handler::start(|g| async move {
        if g.json()["text"] == "park" {
            return answer(json!({"state": "input-required"}));
        }
        std::future::pending().await
    })
    .await;
    let front = Arc::new(Front::to(&handler));
    let waiting = tokio::spawn({
        let front = Arc::clone(&front);
        async move { front.send("hi").await }
    });
    until("the turn", || handler.turns().len() == 1).await;
    let id = handler.turns()[0].json()["task"]["id"].clone();
    // Nobody was told the id of this task yet: not even a guess cancels it.
    assert_eq!(front.call("CancelTask", json!({"id": id})).await["error"]["code"], -32001);
    waiting.abort();

    let task = front.send("park").await["result"]["task"].clone();
    let waiting = tokio::spawn({
        let (front, params) = (Arc::clone(&front), follow_up(&task, "go on"));
        async move { front.call("SendMessage", params).await }
    });
    until("the second turn", || handler.turns().len() == 3).await;
    let canceled = front.call("CancelTask", json!({"id": task["id"]})).await["result"].clone();
    assert_eq!(waiting.await.unwrap()["result"]["task"], canceled);

    let parked = front.send("park").await["result"]["task"].clone();
    let canceled = front.call("CancelTask", json!({"id": parked["id"]})).await["result"].clone();
    assert_eq!(state(&canceled), "TASK_STATE_CANCELED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_and_completion_never_both_win() {
    let handler = Handler::start(|_| async move { answer(json!({"text": "done"})) }).await;
    let front = Arc::new(Front::to(&handler));
    let mut seen = [0_usize; 2];
    for i in 0..200 {
        let mut params = message("hi");
        params["configuration"] = json!({"returnImmediately": true});
        let task = front.call("SendMessage", params).await["result"]["task"].clone();
        let id = task["id"].as_str().unwrap().to_owned();
        for _ in 0..i % 20 {
            tokio::task::yield_now().await;
        }
        let canceled = front.call("CancelTask", json!({"id": id})).await;
        until("the end", || front.metric("outrigger_a2a_turns_in_flight", &[]) == 0).await;
        let end = front.get(&id).await;
        if canceled.get("result").is_some() {
            assert_eq!(state(&end), "TASK_STATE_CANCELED");
            assert!(end.get("artifacts").is_none(), "{end}");
            seen[0] += 1;
        } else {
            assert_eq!(canceled["error"]["code"], -32002);
            assert_eq!(state(&end), "TASK_STATE_COMPLETED");
            seen[1] += 1;
        }
    }
    assert_eq!(seen[0] + seen[1], 200);
    assert!(seen[0] > 0, "no cancel ever won");
}

#[tokio::test]
async fn turns_of_one_task_come_one_at_a_time() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (n, m) = (Arc::clone(&now), Arc::clone(&most));
    let gate = Arc::new(Semaphore::new(1));
    let open = Arc::clone(&gate);
    let handler = Handler::start(move |g| {
        let (n, m, open) = (Arc::clone(&n), Arc::clone(&m), Arc::clone(&open));
        async move {
            m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            open.acquire().await.unwrap().forget();
            n.fetch_sub(1, Ordering::SeqCst);
            let state = if g.json()["text"] == "last" { "completed" } else { "input-required" };
            answer(json!({"state": state, "text": g.json()["text"]}))
        }
    })
    .await;
    let front = Arc::new(Front::to(&handler));
    let task = front.send("first").await["result"]["task"].clone();
    let send = |text: &str| {
        let (front, params) = (Arc::clone(&front), follow_up(&task, text));
        tokio::spawn(async move { front.call("SendMessage", params).await })
    };
    let second = send("second");
    until("the second turn", || handler.turns().len() == 2).await;
    let last = send("last");
    until("its wait", || front.metric("outrigger_a2a_turns_queued", &[]) == 1).await;
    let late = send("late");
    until("its wait", || front.metric("outrigger_a2a_turns_queued", &[]) == 2).await;
    assert_eq!(handler.turns().len(), 2);
    gate.add_permits(10);
    assert_eq!(state(&second.await.unwrap()["result"]["task"]), "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(state(&last.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    // Its task ended before its turn came; it was never stored.
    assert_eq!(late.await.unwrap()["error"]["code"], -32004);
    assert_eq!(most.load(Ordering::SeqCst), 1);
    let end = front.get(task["id"].as_str().unwrap()).await;
    assert!(!end["history"].to_string().contains("late"));
    tokio::time::timeout(Duration::from_secs(5), front.ctx.drain.idle()).await.unwrap();
}
