//! The same message again, several callers, and turns that come one at a time.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use a2a_support::{Front, Handler, answer, message, short, state, until};
use outrigger_protocol::config::{Limits, Order};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// A handler that waits for a permit before it answers.
async fn held() -> (Handler, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let handler = Handler::start(move |g| {
        let open = Arc::clone(&open);
        async move {
            open.acquire().await.unwrap().forget();
            match g.json()["text"].as_str().unwrap() {
                "message" => answer(json!({"message": "hello"})),
                "ask" => answer(json!({"state": "input-required"})),
                text => answer(json!({"text": text})),
            }
        }
    })
    .await;
    (handler, gate)
}

async fn send(front: &Front, params: &Value, key: &str) -> (u16, Value) {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}).to_string();
    let (status, _, body) = front.post(body, &[("a2a-version", "1.0"), ("idempotency-key", key)]).await;
    (status.as_u16(), serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn a_key_makes_one_task_of_many_requests() {
    let (handler, gate) = held().await;
    let front = Arc::new(Front::streaming(&handler));
    let repeat = |front: &Arc<Front>| {
        let front = Arc::clone(front);
        tokio::spawn(async move { send(&front, &message("hi"), "k1").await })
    };
    let first = repeat(&front);
    until("the turn", || handler.turns().len() == 1).await;
    let (second, third) = (repeat(&front), repeat(&front));
    until("the repetitions", || front.metric("outrigger_a2a_replays_total", &[]) == 2).await;
    gate.add_permits(10);
    let task = first.await.unwrap().1["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_COMPLETED");
    for again in [second.await.unwrap(), third.await.unwrap(), send(&front, &message("hi"), "k1").await] {
        assert_eq!(again.1["result"]["task"], task);
    }
    assert_eq!(handler.turns().len(), 1);
    // Spaces and the order of members are no difference, anything else is.
    let params = r#"{ "message": {"parts":[{"text":"hi"}], "role":"ROLE_USER","messageId":"m-hi"} }"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":9,"method":"SendMessage","params":{params}}}"#);
    let (_, _, body) = front.post(body, &[("a2a-version", "1.0"), ("idempotency-key", "k1")]).await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["result"]["task"], task);
    let (status, error) = send(&front, &message("other"), "k1").await;
    let reused = &error["error"]["data"][0]["reason"];
    assert_eq!((status, reused), (409, &json!("IDEMPOTENCY_KEY_REUSED")), "{error}");
    // A stream of the same message gives the same task, from any event on.
    let key = ("idempotency-key", "k1");
    let mut stream = front.open("SendStreamingMessage", message("hi"), &[key]).await.unwrap();
    let got = stream.rest().await;
    assert_eq!((got.len(), &got[0].1["task"]), (1, &task));
    let last = format!("{}.2.0", task["id"].as_str().unwrap());
    let mut stream = front.open("SendStreamingMessage", message("hi"), &[key, ("last-event-id", &last)]).await.unwrap();
    let got: Vec<_> = stream.rest().await.iter().map(short).collect();
    assert_eq!(got, ["task working", "chunk \"hi\"", "completed"]);
    // Direct messages and follow-ups are remembered too.
    let direct = send(&front, &message("message"), "k2").await.1["result"].clone();
    assert!(direct.get("message").is_some());
    assert_eq!(send(&front, &message("message"), "k2").await.1["result"], direct);
    let parked = send(&front, &message("ask"), "k3").await.1["result"]["task"].clone();
    let more = a2a_support::follow_up(&parked, "more");
    let turns = handler.turns().len();
    let done = send(&front, &more, "k4").await.1["result"]["task"].clone();
    assert_eq!(state(&done), "TASK_STATE_COMPLETED");
    assert_eq!(send(&front, &more, "k4").await.1["result"]["task"], done);
    assert_eq!(handler.turns().len(), turns + 1);
    // Without a key each is a message of its own.
    front.send("hi").await;
    front.send("hi").await;
    assert_eq!(handler.turns().len(), turns + 3);
}

#[tokio::test]
async fn messages_are_told_apart_by_content_where_that_is_wanted() {
    let (handler, gate) = held().await;
    gate.add_permits(10);
    let front = Front::to(&handler);
    front.set_live(|live| live.turns.dedupe_messages = true);
    let first = front.send("hi").await["result"]["task"].clone();
    assert_eq!(front.send("hi").await["result"]["task"], first);
    // The same id with another text is another message.
    let mut other = message("hi");
    other["message"]["parts"][0]["text"] = "ho".into();
    assert_ne!(front.call("SendMessage", other).await["result"]["task"]["id"], first["id"]);
    assert_eq!(handler.turns().len(), 2);
}

#[tokio::test]
async fn another_callers_task_is_none() {
    let (handler, gate) = held().await;
    gate.add_permits(100);
    let front = Front::to(&handler);
    // Tenants are callers of their own.
    let of = |tenant: &str, mut params: Value| {
        params["tenant"] = tenant.into();
        params
    };
    let parked = front.call("SendMessage", of("a", message("ask"))).await["result"]["task"].clone();
    let id = json!({"id": parked["id"]});
    let unknown = json!({"id": "no-such-task"});
    for (method, params, nothing) in [
        ("GetTask", id.clone(), unknown.clone()),
        ("CancelTask", id.clone(), unknown.clone()),
        ("SubscribeToTask", id.clone(), unknown),
        (
            "SendMessage",
            a2a_support::follow_up(&parked, "x"),
            a2a_support::follow_up(&json!({"id": "no-such-task"}), "x"),
        ),
    ] {
        let foreign = front.call(method, of("b", params)).await;
        let missing = front.call(method, of("b", nothing)).await;
        let shown = |e: &Value| e.to_string().replace(parked["id"].as_str().unwrap(), "no-such-task");
        if method != "SubscribeToTask" {
            assert_eq!(foreign["error"]["code"], -32001, "{method}: {foreign}");
        }
        assert_eq!(shown(&foreign), shown(&missing), "{method}");
    }
    let listed = front.call("ListTasks", json!({"tenant": "b"})).await["result"].clone();
    assert_eq!((&listed["tasks"], &listed["totalSize"]), (&json!([]), &json!(0)));
    let listed = front.call("ListTasks", json!({"tenant": "a"})).await["result"].clone();
    assert_eq!((listed["tasks"].as_array().unwrap().len(), &listed["totalSize"]), (1, &json!(1)));
    // Nor does a context of the same name tell anything of the other's.
    let mut in_context = message("one");
    in_context["message"]["contextId"] = "c".into();
    front.call("SendMessage", of("a", in_context.clone())).await;
    front.call("SendMessage", of("b", in_context)).await;
    assert_eq!(handler.turns().last().unwrap().json()["context"]["messages"], json!([]));
}

#[tokio::test]
async fn lists_page_through_tasks() {
    let (handler, gate) = held().await;
    gate.add_permits(100);
    let front = Front::to(&handler);
    let mut ids = Vec::new();
    for i in 0..5 {
        ids.push(front.send(&i.to_string()).await["result"]["task"]["id"].clone());
    }
    let parked = front.send("ask").await["result"]["task"]["id"].clone();
    ids.reverse();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page =
            front.call("ListTasks", json!({"pageSize": 2, "pageToken": token, "status": "TASK_STATE_COMPLETED"})).await;
        let page = page["result"].clone();
        assert_eq!((&page["totalSize"], &page["pageSize"]), (&json!(5), &json!(2)));
        for task in page["tasks"].as_array().unwrap() {
            assert!(task.get("artifacts").is_none());
            seen.push(task["id"].clone());
        }
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ids);
    let page = front.call("ListTasks", json!({"status": "TASK_STATE_INPUT_REQUIRED", "historyLength": 0})).await;
    assert_eq!(page["result"]["tasks"][0]["id"], parked);
    assert!(page["result"]["tasks"][0].get("history").is_none());
    let page = front.call("ListTasks", json!({"includeArtifacts": true, "pageSize": 100})).await;
    assert_eq!(page["result"]["tasks"][1]["artifacts"][0]["parts"][0]["text"], "4");
    assert_eq!(front.call("ListTasks", json!({"pageSize": 101})).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_caller_has_so_many_open_tasks() {
    let (handler, gate) = held().await;
    let front = Front::new(handler.port, Limits { max_open_tasks_per_caller: 2, ..Limits::default() });
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    for _ in 0..2 {
        assert!(front.call("SendMessage", params.clone()).await["error"].is_null());
    }
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}).to_string();
    let (status, headers, _) = front.post(body, &[("a2a-version", "1.0")]).await;
    assert_eq!((status.as_u16(), headers.contains_key("retry-after")), (429, true));
    params["tenant"] = "other".into();
    assert!(front.call("SendMessage", params.clone()).await["error"].is_null());
    gate.add_permits(10);
    until("the ends", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 3).await;
    assert!(front.send("hi").await["error"].is_null());
}

#[tokio::test]
async fn a_caller_has_so_many_tasks_and_forgotten_ones_are_told_apart() {
    let handler = Handler::start(|_| async { answer(json!({"text": "done"})) }).await;
    let front = Front::new(handler.port, Limits { max_tasks_per_caller: 2, ..Limits::default() });
    let mut ids = Vec::new();
    for _ in 0..2 {
        let sent = front.send("hi").await;
        ids.push(sent["result"]["task"]["id"].as_str().unwrap().to_owned());
    }
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("hi")}).to_string();
    let (status, headers, text) = front.post(body, &[("a2a-version", "1.0")]).await;
    assert_eq!((status.as_u16(), headers["retry-after"].to_str().unwrap()), (429, "60"), "{text}");
    assert!(text.contains("at most 2 may be"), "{text}");
    // Another caller has room, and so has this one when its tasks are forgotten: here for the room of others.
    let mut other = message("hi");
    other["tenant"] = "other".into();
    front.set_live(|live| live.limits.max_tasks = 1);
    assert!(front.call("SendMessage", other).await["error"].is_null());
    let absent = |kind: &str| front.metric("outrigger_a2a_tasks_absent_total", &[("kind", kind)]);
    let forgotten = front.call("GetTask", json!({"id": ids[0]})).await;
    assert_eq!((forgotten["error"]["code"].as_i64(), absent("forgotten")), (Some(-32001), 1), "{forgotten}");
    let unknown = front.call("GetTask", json!({"id": "never-was"})).await;
    // All of them read alike.
    let theirs = front.call("ListTasks", json!({"tenant": "other"})).await;
    let foreign = front.call("GetTask", json!({"id": theirs["result"]["tasks"][0]["id"]})).await;
    let plain = |answer: &Value, id: &str| answer["error"].to_string().replace(id, "ID");
    let id = theirs["result"]["tasks"][0]["id"].as_str().unwrap();
    assert_eq!(plain(&foreign, id), plain(&forgotten, &ids[0]));
    assert_eq!(plain(&foreign, id), plain(&unknown, "never-was"));
    assert_eq!((absent("unknown"), absent("foreign")), (1, 1));
    assert!(front.send("hi").await["error"].is_null());
}

#[tokio::test]
async fn a_handler_names_the_extensions_that_it_used() {
    let handler = Handler::start(|got| async move {
        match got.json()["text"].as_str().unwrap() {
            "names" => answer(json!({"text": "x", "extensions": ["urn:b", "urn:undeclared"]})),
            "none" => answer(json!({"text": "x", "extensions": []})),
            _ => answer(json!({"text": "x"})),
        }
    })
    .await;
    let front = Front::to(&handler);
    front.set_live(|live| {
        live.card["capabilities"] = json!({"extensions": [{"uri": "urn:a"}, {"uri": "urn:b"}]});
    });
    for (text, want) in [("names", Some("urn:b")), ("none", None), ("silent", Some("urn:a, urn:b"))] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(text)}).to_string();
        let (_, headers, _) = front.post(body, &[("a2a-version", "1.0"), ("a2a-extensions", "urn:a, urn:b")]).await;
        assert_eq!(headers.get("a2a-extensions").map(|v| v.to_str().unwrap()), want, "{text}");
    }
}

#[tokio::test]
async fn an_id_with_a_nul_is_refused_where_it_comes_in() {
    let handler = Handler::start(|_| async { answer(json!({"text": "done"})) }).await;
    let front = Front::to(&handler);
    let mut params = message("hi");
    params["message"]["contextId"] = "a\0b".into();
    for (method, params) in [
        ("SendMessage", params),
        ("GetTask", json!({"id": "a\0b"})),
        ("ListTasks", json!({"contextId": "a\0b"})),
        ("GetTask", json!({"id": "a", "tenant": "a\0b"})),
    ] {
        let refused = front.call(method, params).await;
        assert_eq!(refused["error"]["code"], -32602, "{method}: {refused}");
        assert!(refused.to_string().contains("NUL"), "{method}: {refused}");
    }
    assert!(handler.turns().is_empty());
}

#[tokio::test]
async fn turns_of_a_context_come_one_at_a_time_where_that_is_wanted() {
    for (order, most) in [(Order::Task, 3), (Order::Context, 1)] {
        let (now, max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let (n, m, open) = (Arc::clone(&now), Arc::clone(&max), Arc::clone(&gate));
        let handler = Handler::start(move |_| {
            let (n, m, open) = (Arc::clone(&n), Arc::clone(&m), Arc::clone(&open));
            async move {
                m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                n.fetch_sub(1, Ordering::SeqCst);
                answer(json!({"text": "done"}))
            }
        })
        .await;
        let front = Front::to(&handler);
        front.set_live(|live| live.turns.serialize = order);
        let mut params = message("hi");
        params["message"]["contextId"] = "c".into();
        params["configuration"] = json!({"returnImmediately": true});
        for _ in 0..3 {
            front.call("SendMessage", params.clone()).await;
        }
        until("the first turns", || handler.turns().len() == most).await;
        gate.add_permits(3);
        until("the ends", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 3).await;
        assert_eq!((max.load(Ordering::SeqCst), handler.turns().len()), (most, 3));
    }
}
