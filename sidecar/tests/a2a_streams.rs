//! Streams: of the handler to the sidecar, and of the sidecar to callers.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use a2a_support::{
    Front, Handler, Item, PATIENCE, answer, event_stream, events, follow_up, message, quick, reason, short, shorts,
    state, until,
};
use outrigger_protocol::config::{CloseOn, Limits, OnDisconnect};
use outrigger_sidecar::a2a::executor::Timing;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

/// A handler whose turns stream what a test sends: the senders of all turns, in order.
async fn told() -> (Handler, Arc<Mutex<Vec<UnboundedSender<Value>>>>) {
    let senders: Arc<Mutex<Vec<UnboundedSender<Value>>>> = Arc::default();
    let keep = Arc::clone(&senders);
    let handler = Handler::start(move |_| {
        let (tx, response) = event_stream();
        keep.lock().push(tx);
        async { response }
    })
    .await;
    (handler, senders)
}

fn all() -> Vec<Value> {
    vec![
        json!({"status": "Asking the kitchen."}),
        json!({"text": "One "}),
        json!({"text": "burger"}),
        json!({"artifact": {"artifactId": "r", "parts": [{"text": "18.50"}]}}),
        json!({"artifact": {"artifactId": "r", "parts": [{"text": "EUR"}]}, "append": true, "last": true}),
        json!({"state": "completed", "text": "."}),
    ]
}

const SEEN: [&str; 8] = [
    "task submitted",
    "working",
    "working \"Asking the kitchen.\"",
    "chunk \"One \"",
    "chunk \"burger\" append",
    "chunk \"18.50\"",
    "chunk \"EUR\" append lastChunk",
    "chunk \".\" append lastChunk",
];

#[tokio::test]
async fn a_stream_of_the_handler_is_seen_event_by_event() {
    let (handler, senders) = told().await;
    let front = Front::streaming(&handler);
    let sending = async {
        until("the turn", || senders.lock().len() == 1).await;
        senders.lock()[0].send(all()[0].clone()).unwrap();
    };
    let (mut stream, ()) = tokio::join!(front.send_stream("hi"), sending);
    for want in &SEEN[..3] {
        assert_eq!(short(&stream.next().await.unwrap()), *want);
    }
    let mut got = Vec::new();
    for event in &all()[1..] {
        senders.lock()[0].send(event.clone()).unwrap();
        got.push(stream.next().await.unwrap());
    }
    assert_eq!(shorts(&got), SEEN[3..]);
    assert_eq!(short(&stream.next().await.unwrap()), "completed");
    assert!(stream.next().await.is_none());
    let task = front.get(got[0].1["artifactUpdate"]["taskId"].as_str().unwrap()).await;
    let parts =
        |i: usize| task["artifacts"][i]["parts"].as_array().unwrap().iter().map(|p| p["text"].clone()).collect();
    let (result, receipt): (Vec<Value>, Vec<Value>) = (parts(0), parts(1));
    assert_eq!((json!(result), json!(receipt)), (json!(["One ", "burger", "."]), json!(["18.50", "EUR"])));
    // The result has the turn's id.
    assert_eq!(task["artifacts"][0]["artifactId"], handler.turns()[0].json()["turn"]);
    assert_eq!(task["history"][1]["parts"][0]["text"], "Asking the kitchen.");
    // Ids name version and event, and rise.
    let id = task["id"].as_str().unwrap();
    assert_eq!(got[0].0, format!("{id}.4.0"));
}

#[tokio::test]
async fn all_forms_of_answers_stream() {
    let handler = Handler::start(|g| async move {
        match g.json()["text"].as_str().unwrap() {
            "json" => answer(json!({"text": "done"})),
            "ask" => answer(json!({"state": "input-required", "text": "Which?"})),
            "message" => answer(json!({"message": {"parts": [{"text": "hello"}]}})),
            "stream message" => events(&[json!({"message": "hello"})]),
            "error" => answer(json!({"error": "broken"})),
            _ => events(&all()),
        }
    })
    .await;
    let front = Front::streaming(&handler);
    let mut table = String::new();
    for text in ["json", "ask", "message", "stream message", "error", "stream"] {
        let got = front.send_stream(text).await.rest().await;
        let _ = writeln!(table, "{text}\n    {}", shorts(&got).join("\n    "));
        let unary = front.send(text).await["result"].clone();
        assert_eq!(unary.get("message").is_some(), got.len() == 1, "{text}");
        if let Some(task) = unary.get("task") {
            let last = short(got.last().unwrap());
            let state = state(task).trim_start_matches("TASK_STATE_").to_lowercase();
            assert!(last.starts_with(&state), "{last} {state}");
        }
    }
    insta::assert_snapshot!(table);
}

#[tokio::test]
async fn a_follow_up_streams_from_its_message_on() {
    let handler = Handler::start(|g| async move {
        if g.json()["text"] == "burger" {
            return events(&[json!({"text": "menu"}), json!({"state": "input-required", "text": "Confirm?"})]);
        }
        events(&[json!({"status": "cooking"}), json!({"state": "completed", "text": "ready"})])
    })
    .await;
    let front = Front::streaming(&handler);
    let first = front.send_stream("burger").await.rest().await;
    assert_eq!(shorts(&first).last().unwrap(), "input_required \"Confirm?\"");
    let task = first[0].1["task"].clone();
    let mut stream = front.open("SendStreamingMessage", follow_up(&task, "yes"), &[]).await.unwrap();
    let second = stream.rest().await;
    assert_eq!(
        shorts(&second),
        ["task working [\"menu\"]", "working \"cooking\"", "chunk \"ready\" lastChunk", "completed"]
    );
    assert_eq!(second[0].1["task"]["history"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn any_number_of_readers_see_one_order_and_may_come_back_anywhere() {
    let (handler, senders) = told().await;
    let front = Front::streaming(&handler);
    let sending = async {
        until("the turn", || senders.lock().len() == 1).await;
        senders.lock()[0].send(json!({"status": "begun"})).unwrap();
    };
    let (mut first, ()) = tokio::join!(front.send_stream("hi"), sending);
    let mut seen = vec![first.next().await.unwrap()];
    let id = seen[0].1["task"]["id"].clone();
    let subscribe = json!({"id": id});
    let mut second = front.open("SubscribeToTask", subscribe.clone(), &[]).await.unwrap();
    let begun = second.next().await.unwrap();
    assert!(short(&begun).starts_with("task working"));
    for event in &all()[1..] {
        senders.lock()[0].send(event.clone()).unwrap();
    }
    seen.extend(first.rest().await);
    let rest = second.rest().await;
    assert_eq!(rest, seen[seen.len() - rest.len()..]);
    assert!(rest.len() >= 6, "{rest:?}");
    // Whoever has everything up to some event gets the task as it was then, and exactly what is missing.
    for (i, (last, _)) in seen.iter().enumerate() {
        let mut again = front.open("SubscribeToTask", subscribe.clone(), &[("last-event-id", last)]).await.unwrap();
        let got = again.rest().await;
        assert!(short(&got[0]).starts_with("task "), "{got:?}");
        let missing: Vec<Item> = seen[i + 1..].to_vec();
        // A change with several events comes again as a whole, after the task as it was before it.
        let tail = &got[1..];
        assert!(
            tail.ends_with(&missing) && tail.len() <= missing.len() + 3,
            "after {last}: {}",
            shorts(&got).join(", ")
        );
        assert_eq!(rebuilt(&got), rebuilt(&seen), "after {last}");
    }
    // Without an id there is nothing to follow any more; one of another task is none.
    let error = front.open("SubscribeToTask", subscribe.clone(), &[]).await.err().unwrap();
    assert_eq!(error["error"]["code"], -32004);
    let error = front.open("SubscribeToTask", subscribe, &[("last-event-id", "x.1")]).await.err().unwrap();
    assert_eq!(error["error"]["code"], -32602);
    assert_eq!(front.open("SubscribeToTask", json!({"id": "x"}), &[]).await.err().unwrap()["error"]["code"], -32001);
}

/// Text of each artifact that a reader ends up with.
fn rebuilt(items: &[Item]) -> Vec<(String, Vec<Value>)> {
    let mut all: Vec<(String, Vec<Value>)> = Vec::new();
    let id = |a: &Value| a["artifactId"].as_str().unwrap().to_owned();
    let parts = |a: &Value| a["parts"].as_array().unwrap().clone();
    for (_, event) in items {
        if let Some(task) = event.get("task") {
            all = task["artifacts"].as_array().into_iter().flatten().map(|a| (id(a), parts(a))).collect();
        }
        let Some(update) = event.get("artifactUpdate") else { continue };
        let artifact = &update["artifact"];
        match all.iter_mut().find(|(i, _)| *i == id(artifact)) {
            Some((_, have)) if update["append"] == true => have.extend(parts(artifact)),
            Some((_, have)) => *have = parts(artifact),
            None => all.push((id(artifact), parts(artifact))),
        }
    }
    all
}

#[tokio::test]
async fn ten_thousand_chunks_arrive_once_and_in_order() {
    const CHUNKS: usize = 10_000;
    let handler = Handler::start(|_| async {
        let chunks = (0..CHUNKS).map(|i| json!({"text": i.to_string()}));
        events(&chunks.chain([json!({"state": "completed"})]).collect::<Vec<_>>())
    })
    .await;
    let front = Front::streaming(&handler);
    let mut stream = front.send_stream("go").await;
    let got = stream.rest().await;
    let texts: Vec<Value> = got
        .iter()
        .filter_map(|(_, e)| e.get("artifactUpdate"))
        .map(|u| {
            let parts = u["artifact"]["parts"].as_array().unwrap();
            assert_eq!(parts.len(), 1, "what was sent once is not sent again");
            parts[0]["text"].clone()
        })
        .collect();
    assert_eq!(json!(texts), json!((0..CHUNKS).map(|i| i.to_string()).collect::<Vec<_>>()));
    let task = front.get(got[0].1["task"]["id"].as_str().unwrap()).await;
    assert_eq!(task["artifacts"][0]["parts"].as_array().unwrap().len(), CHUNKS);
    assert_eq!(short(got.last().unwrap()), "completed");
}

#[tokio::test]
async fn streams_close_as_configured() {
    let handler = Handler::start(|g| async move {
        let state = g.json()["text"].clone();
        answer(json!({"state": state}))
    })
    .await;
    let front = Front::streaming(&handler);
    for (on, at, send_closes, subscribe_closes) in [
        (CloseOn::Send, "input-required", true, false),
        (CloseOn::Send, "auth-required", false, false),
        (CloseOn::Subscribe, "input-required", false, true),
        (CloseOn::Both, "auth-required", true, true),
        (CloseOn::None, "input-required", false, false),
    ] {
        front.set_live(|live| live.turns.close_on_interrupted = on);
        let mut sent = front.send_stream(at).await;
        let mut task = sent.next().await.unwrap().1["task"].clone();
        while !short(&sent.next().await.unwrap()).contains("required") {}
        task = front.get(task["id"].as_str().unwrap()).await;
        let mut subscribed = front.open("SubscribeToTask", json!({"id": task["id"]}), &[]).await.unwrap();
        assert!(short(&subscribed.next().await.unwrap()).contains("required"));
        if !send_closes || !subscribe_closes {
            let canceled = front.call("CancelTask", json!({"id": task["id"]})).await;
            assert_eq!(state(&canceled["result"]), "TASK_STATE_CANCELED");
        }
        let last = |items: Vec<Item>| items.last().map(short).unwrap_or_default();
        let (a, b) = (last(sent.rest().await), last(subscribed.rest().await));
        assert_eq!((a.is_empty(), b.is_empty()), (send_closes, subscribe_closes), "{on:?} {at}: {a} {b}");
    }
}

#[tokio::test]
async fn a_quiet_task_is_shown_after_a_while() {
    let (handler, senders) = told().await;
    let timing = Timing { reveal: Duration::from_millis(60), ..quick() };
    let front = Front::streaming_with(&handler, Limits::default(), timing);
    // The handler has answered with the head of a stream, and nothing else.
    let mut stream = tokio::time::timeout(PATIENCE, front.send_stream("hi")).await.unwrap();
    assert_eq!(short(&stream.next().await.unwrap()), "task submitted");
    let id = handler.turns()[0].json()["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(state(&front.get(&id).await), "TASK_STATE_WORKING");
    // A message comes too late to take the task's place.
    senders.lock()[0].send(json!({"message": "hello"})).unwrap();
    let rest = stream.rest().await;
    assert_eq!(shorts(&rest), ["working", "completed \"hello\""]);
    assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[("rule", "message_for_task")]), 1);
}

#[tokio::test]
async fn a_caller_that_waits_long_enough_gets_the_task_as_it_is() {
    let (handler, senders) = told().await;
    let limits = Limits { wait_timeout_ms: 80, ..Limits::default() };
    let front = Front::streaming_with(&handler, limits, quick());
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_WORKING");
    // The turn goes on.
    let mut stream = front.open("SubscribeToTask", json!({"id": task["id"]}), &[]).await.unwrap();
    assert_eq!(short(&stream.next().await.unwrap()), "task working");
    senders.lock()[0].send(json!({"state": "completed", "text": "late"})).unwrap();
    assert_eq!(shorts(&stream.rest().await), ["chunk \"late\" lastChunk", "completed"]);
}

#[tokio::test]
async fn mistakes_in_a_stream_are_put_right_and_counted() {
    let handler = Handler::start(|_| async {
        events(&[
            json!({"artifact": {"artifactId": "x", "parts": [{"text": "a"}]}, "append": true, "taskId": "other"}),
            json!({"artifact": {"artifactId": "x", "parts": ["b"]}, "append": true, "lastChunk": true}),
            json!({"state": "COMPLETED"}),
            json!({"text": "too late"}),
            json!({"state": "failed"}),
        ])
    })
    .await;
    let front = Front::streaming(&handler);
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"], json!([{"text": "a"}, {"text": "b"}]));
    for rule in ["append_to_nothing", "event_ids", "part_is_string", "state_spelling"] {
        assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[("rule", rule)]), 1, "{rule}");
    }
    until("what came too late", || front.metric("outrigger_a2a_late_answers_total", &[]) == 2).await;
    assert_eq!(front.get(task["id"].as_str().unwrap()).await, task);
}

#[tokio::test]
async fn time_limits_of_streams() {
    let (handler, senders) = told().await;
    let limits = Limits { stream_idle_timeout_ms: 150, turn_timeout_ms: 100, ..Limits::default() };
    let front = Front::streaming_with(&handler, limits, quick());
    let task = front.send("quiet").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "stream_idle"));
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
    // As long as something comes there is no limit.
    let busy = async {
        until("the turn", || senders.lock().len() == 2).await;
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            senders.lock()[1].send(json!({})).unwrap();
        }
        senders.lock()[1].send(json!({"state": "completed"})).unwrap();
    };
    let (task, ()) = tokio::join!(front.send("busy"), busy);
    assert_eq!(state(&task["result"]["task"]), "TASK_STATE_COMPLETED");
    let big = Limits { max_answer_bytes: 1_000, max_task_bytes: 700, ..Limits::default() };
    let handler = Handler::start(|g| async move {
        let size: usize = g.json()["text"].as_str().unwrap().parse().unwrap();
        let chunk = json!({"text": "x".repeat(size)});
        events(&[chunk.clone(), chunk, json!({"state": "completed"})])
    })
    .await;
    let front = Front::streaming_with(&handler, big, quick());
    for (size, want) in [("2000", "answer_too_large"), ("500", "store_refused")] {
        let task = front.send(size).await["result"]["task"].clone();
        assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", want));
    }
}

#[tokio::test]
async fn streams_are_bounded_per_task_and_caller() {
    let (handler, _senders) = told().await;
    let limits = Limits { max_streams_per_task: 2, max_streams_per_caller: 3, ..Limits::default() };
    let front = Front::streaming_with(&handler, limits, quick());
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(front.call("SendMessage", params.clone()).await["result"]["task"]["id"].clone());
    }
    let open = |id: &Value| front.open("SubscribeToTask", json!({"id": id}), &[]);
    let mut held = vec![open(&ids[0]).await.unwrap(), open(&ids[0]).await.unwrap()];
    let (status, headers, body) = front
        .post(
            json!({"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": ids[0]}}).to_string(),
            &[],
        )
        .await;
    assert_eq!((status.as_u16(), headers.contains_key("retry-after")), (429, true), "{body}");
    held.push(open(&ids[1]).await.unwrap());
    assert!(open(&ids[1]).await.is_err());
    drop(held);
    open(&ids[1]).await.unwrap();
}

#[tokio::test]
async fn a_hundred_connections_that_break_off_leave_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const MANY: usize = 100;
    let (handler, senders) = told().await;
    let limits = Limits { max_streams_per_task: u32::try_from(MANY).unwrap(), ..Limits::default() };
    let front = Front::streaming_with(&handler, limits, quick());
    let (url, _server) = a2a_support::serve(front.service.router()).await;
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    let id = front.call("SendMessage", params).await["result"]["task"]["id"].as_str().unwrap().to_owned();
    until("the turn", || senders.lock().len() == 1).await;
    let streams = || front.metric("outrigger_a2a_streams_open", &[]);
    // Twice: places that were not given back would be missing the second time.
    for round in 1..=2 {
        let mut open = Vec::new();
        for _ in 0..MANY {
            let mut socket = tokio::net::TcpStream::connect(&address).await.unwrap();
            let request = format!("GET /tasks/{id}:subscribe HTTP/1.1\r\nhost: {address}\r\na2a-version: 1.0\r\n\r\n");
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut head = [0; 15];
            tokio::time::timeout(PATIENCE, socket.read_exact(&mut head)).await.unwrap().unwrap();
            assert_eq!(&head, b"HTTP/1.1 200 OK");
            open.push(socket);
        }
        assert_eq!(streams(), MANY as u64);
        // What is not read makes the end of each connection a reset.
        senders.lock()[0].send(json!({"status": format!("round {round}")})).unwrap();
        drop(open);
        until("all are let go", || streams() == 0).await;
        let gone = front.metric("outrigger_a2a_streams_ended_total", &[("reason", "client_gone")]);
        assert_eq!(gone, (MANY * round) as u64);
    }
    senders.lock()[0].send(json!({"state": "completed", "text": "done"})).unwrap();
    until("the end of the turn", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
    let task = front.get(&id).await;
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "done", "{task}");
    until("no turn is left", || front.metric("outrigger_a2a_turns_in_flight", &[]) == 0).await;
}

#[tokio::test]
async fn a_caller_that_disconnects_cancels_only_where_that_is_wanted() {
    let (handler, senders) = told().await;
    let front = Front::streaming(&handler);
    for cancels in [false, true] {
        if cancels {
            front.set_live(|live| live.turns.on_disconnect = OnDisconnect::Cancel);
        }
        let turn = handler.turns().len();
        let sending = async {
            until("the turn", || senders.lock().len() == turn + 1).await;
            senders.lock()[turn].send(json!({"status": "begun"})).unwrap();
        };
        let (mut stream, ()) = tokio::join!(front.send_stream("hi"), sending);
        let id = stream.next().await.unwrap().1["task"]["id"].clone();
        let second = front.open("SubscribeToTask", json!({"id": id}), &[]).await.unwrap();
        drop(stream);
        // Another one still looks.
        assert_eq!(state(&front.get(id.as_str().unwrap()).await), "TASK_STATE_WORKING");
        drop(second);
        if cancels {
            until("the cancel", || front.metric("outrigger_a2a_tasks", &[("state", "canceled")]) == 1).await;
            let task = front.get(id.as_str().unwrap()).await;
            assert_eq!((state(&task), reason(&task)), ("TASK_STATE_CANCELED", "canceled"));
        } else {
            senders.lock()[turn].send(json!({"state": "completed"})).unwrap();
            until("the end", || front.metric("outrigger_a2a_tasks", &[("state", "completed")]) == 1).await;
        }
    }
    // A request that waits is a caller too.
    let front = Arc::new(front);
    let turn = senders.lock().len();
    let waiting = tokio::spawn({
        let front = Arc::clone(&front);
        async move { front.send("hi").await }
    });
    until("the turn", || senders.lock().len() == turn + 1).await;
    waiting.abort();
    until("the cancel", || front.metric("outrigger_a2a_tasks", &[("state", "canceled")]) == 2).await;
}

#[tokio::test]
async fn streams_end_cleanly_with_the_process() {
    let (handler, senders) = told().await;
    let front = Front::streaming(&handler);
    let sending = async {
        until("the turn", || senders.lock().len() == 1).await;
        senders.lock()[0].send(json!({"status": "begun"})).unwrap();
    };
    let (mut running, ()) = tokio::join!(front.send_stream("hi"), sending);
    running.next().await.unwrap();
    front.ctx.shutdown.cancel();
    // With tasks in memory the turn's end is the last that is seen of it.
    let rest = running.rest().await;
    assert!(short(rest.last().unwrap()).starts_with("failed"), "{:?}", shorts(&rest));
}
