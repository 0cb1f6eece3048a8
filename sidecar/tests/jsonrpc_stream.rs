//! Streams as server-sent events: frames, errors, signs of life, callers that go, slow ones, the end of the pod.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod binding_support;

use std::sync::Arc;
use std::time::Duration;

use binding_support::{JSON, Seen, Stand, events, fed, item, streaming, unary, until};
use futures::StreamExt;
use futures::stream;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_sidecar::a2a::call::StreamItem;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;

type Feed = mpsc::UnboundedSender<Result<StreamItem, Error>>;

/// A stand whose streams are fed by the test, newest last.
async fn fed_stand() -> (Stand, Arc<Mutex<Vec<Feed>>>) {
    let feeds: Arc<Mutex<Vec<Feed>>> = Arc::default();
    let kept = Arc::clone(&feeds);
    let stand = Stand::start(move |_| {
        let (tx, rx) = mpsc::unbounded_channel();
        kept.lock().push(tx);
        async move { Ok(fed(rx)) }
    })
    .await;
    (stand, feeds)
}

fn request(method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"id": "t1"}}).to_string()
}

fn status(state: &str) -> String {
    json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": state}}}).to_string()
}

async fn feed_of(feeds: &Mutex<Vec<Feed>>, n: usize) -> Feed {
    until("the stream began", || feeds.lock().len() > n).await;
    feeds.lock()[n].clone()
}

#[tokio::test]
async fn events_are_responses_with_ids() {
    let (stand, feeds) = fed_stand().await;
    let body = request("SubscribeToTask");
    let open = stand.stream("POST", "/", JSON, &body);
    let feeding = async {
        let feed = feed_of(&feeds, 0).await;
        // JSON that was written over several lines is one line here.
        feed.send(Ok(item("t1.1.0", "{\r\n \"task\": {\"id\":\n\"t1\"}\n}", false))).unwrap();
        feed
    };
    let (mut sse, feed) = tokio::join!(open, feeding);
    assert_eq!(sse.status, 200);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
        ("a2a-version", "1.0"),
    ] {
        assert_eq!(sse.headers[name], value);
    }
    assert!(!sse.headers.contains_key("access-control-allow-origin"));
    let first = sse.next().await.unwrap();
    assert_eq!((first.id.as_deref(), first.event), (Some("t1.1.0"), None));
    let frame: Value = serde_json::from_str(&first.data).unwrap();
    assert_eq!(frame, json!({"jsonrpc": "2.0", "id": 7, "result": {"task": {"id": "t1"}}}));
    assert!(sse.text.starts_with("retry: 2000\nid: t1.1.0\ndata: {"), "{}", sse.text);
    assert_eq!(stand.metric("outrigger_a2a_streams_open", &[("binding", "jsonrpc")]), 1);
    feed.send(Ok(item("t1.2.0", &status("TASK_STATE_WORKING"), false))).unwrap();
    assert_eq!(sse.json().await["result"]["statusUpdate"]["status"]["state"], "TASK_STATE_WORKING");
    // A direct message has no id.
    feed.send(Ok(StreamItem { id: None, json: "{\"message\":{}}".into(), last: true })).unwrap();
    let last = sse.next().await.unwrap();
    assert_eq!(last.id, None);
    assert!(sse.next().await.is_none());
    // The service is let go with its last event.
    until("the service is let go", || feed.is_closed()).await;
    assert_eq!(stand.metric("outrigger_a2a_streams_open", &[]), 0);
    assert_eq!(stand.metric("outrigger_a2a_streams_ended_total", &[("binding", "jsonrpc"), ("reason", "done")]), 1);
    assert_eq!(stand.metric("outrigger_a2a_first_event_seconds", &[("binding", "jsonrpc")]), 1);
    assert_eq!(stand.metric("outrigger_a2a_requests_total", &[("method", "SubscribeToTask"), ("outcome", "ok")]), 1);
}

#[tokio::test]
async fn an_error_before_the_first_event_is_a_plain_answer() {
    let stand = Stand::start(|seen: Seen| async move {
        match seen.json()["id"].as_str() {
            Some("at once") => Err(Error::task_not_found("x")),
            Some("first") => Ok(events(vec![Err(Error::task_not_found("x"))])),
            _ => Ok(events(vec![])),
        }
    })
    .await;
    for (id, code) in [("at once", -32001), ("first", -32001), ("never", -32603)] {
        for (method, version) in [("SubscribeToTask", "1.0"), ("tasks/resubscribe", "0.3")] {
            let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"id": id}}).to_string();
            let got = stand.ask("POST", "/", JSON, &body).await;
            assert_eq!((got.status.as_u16(), got.header("content-type")), (200, "application/json"), "{id}");
            assert_eq!(
                (got.json()["error"]["code"].as_i64(), got.header("a2a-version")),
                (Some(code), version),
                "{id}"
            );
        }
    }
    assert_eq!(stand.metric("outrigger_a2a_streams_ended_total", &[]), 0);
}

#[tokio::test]
async fn a_late_error_is_an_event_of_its_own() {
    let stand = Stand::start(|_| async {
        let late = Error::new(Kind::Internal, "it broke\nhere");
        Ok(events(vec![Ok(item("t1.1.0", "{\"task\":{\"id\":\"t1\"}}", false)), Err(late)]))
    })
    .await;
    for (method, path, body) in [
        ("POST", "/", request("SubscribeToTask")),
        ("POST", "/", request("tasks/resubscribe")),
        ("GET", "/tasks/t1:subscribe", String::new()),
        ("POST", "/v1/tasks/t1:subscribe", String::new()),
    ] {
        let got = stand.stream(method, path, JSON, &body).await.all().await;
        let [first, last] = &got[..] else { panic!("{got:?}") };
        assert_eq!((first.event.as_deref(), last.event.as_deref()), (None, Some("error")), "{path}");
        let error: Value = serde_json::from_str(&last.data).unwrap();
        let error = if path.starts_with("/v1") { &error } else { &error["error"] };
        assert_eq!(error["message"], "it broke\nhere", "{path}");
        assert_eq!(error["code"], if path == "/tasks/t1:subscribe" { 500 } else { -32603 });
    }
    assert_eq!(stand.metric("outrigger_a2a_streams_ended_total", &[("reason", "error")]), 4);
}

#[tokio::test]
async fn a_quiet_stream_shows_signs_of_life() {
    let (stand, feeds) = fed_stand().await;
    stand.configure(|live| live.limits.heartbeat_ms = 30);
    let body = request("SubscribeToTask");
    let open = stand.stream("POST", "/", JSON, &body);
    let feeding = async {
        let feed = feed_of(&feeds, 0).await;
        feed.send(Ok(item("t1.1.0", "{\"task\":{\"id\":\"t1\"}}", false))).unwrap();
        feed
    };
    let (mut sse, feed) = tokio::join!(open, feeding);
    while sse.text.matches(": hb\n\n").count() < 3 {
        assert!(sse.more().await);
    }
    feed.send(Ok(item("t1.2.0", &status("TASK_STATE_COMPLETED"), true))).unwrap();
    let got = sse.all().await;
    assert_eq!(got.len(), 2, "comments are no events");
}

#[tokio::test]
async fn a_caller_that_goes_lets_go_of_the_service() {
    let (stand, feeds) = fed_stand().await;
    for (n, half) in [false, true].into_iter().enumerate() {
        let mut socket = TcpStream::connect(stand.address).await.unwrap();
        let body = request("SubscribeToTask");
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(head.as_bytes()).await.unwrap();
        let feed = feed_of(&feeds, n).await;
        feed.send(Ok(item("t1.1.0", "{\"task\":{\"id\":\"t1\"}}", false))).unwrap();
        let mut got = vec![0; 4096];
        let read = socket.read(&mut got).await.unwrap();
        assert!(String::from_utf8_lossy(&got[..read]).starts_with("HTTP/1.1 200 OK"));
        // One that closes its half of the connection is gone too: nobody reads on after that.
        if half {
            socket.shutdown().await.unwrap();
        } else {
            drop(socket);
        }
        until("the service is let go", || feed.is_closed()).await;
    }
    until("both are counted", || stand.metric("outrigger_a2a_streams_ended_total", &[("reason", "client_gone")]) == 2)
        .await;
}

#[tokio::test]
async fn a_slow_reader_holds_up_its_own_stream_alone() {
    const EVENTS: usize = 2_000;
    let pulled: Arc<Mutex<usize>> = Arc::default();
    let count = Arc::clone(&pulled);
    let stand = Stand::start(move |_| {
        let count = Arc::clone(&count);
        async move {
            let text = "x".repeat(16 << 10);
            let items = stream::iter(0..EVENTS).map(move |i| {
                *count.lock() += 1;
                let json = format!("{{\"statusUpdate\":{{\"n\":{i},\"text\":\"{text}\"}}}}");
                Ok(item(&format!("t1.{i}.0"), &json, i + 1 == EVENTS))
            });
            Ok(streaming(items.boxed()))
        }
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(stand.address).await.unwrap();
    let head = "GET /tasks/t1:subscribe HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    // 32 MB are ready; what is pulled stops at what the sockets and one buffer hold.
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = *pulled.lock();
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    assert!(before < EVENTS / 2, "{before} of {EVENTS} events were pulled for a reader that reads nothing");
    // Meanwhile others are served, and the slow one gets everything in order.
    let fast = stand.stream("GET", "/tasks/t1:subscribe", &[], "").await.all().await;
    assert_eq!(fast.len(), EVENTS);
    let mut text = String::new();
    tokio::time::timeout(binding_support::PATIENCE, socket.read_to_string(&mut text)).await.unwrap().unwrap();
    let ids: Vec<_> = text.lines().filter_map(|l| l.strip_prefix("id: ")).collect();
    assert_eq!(ids.len(), EVENTS);
    assert_eq!((ids[0], ids[EVENTS - 1]), ("t1.0.0", "t1.1999.0"));
}

#[tokio::test]
async fn streams_end_cleanly_with_the_pod() {
    let (stand, feeds) = fed_stand().await;
    let one = "{\"task\":{\"id\":\"t1\"}}";
    let mut open = Vec::new();
    for n in 0..2 {
        let (sse, feed) = tokio::join!(stand.stream("GET", "/tasks/t1:subscribe", &[], ""), async {
            let feed = feed_of(&feeds, n).await;
            feed.send(Ok(item("t1.1.0", one, false))).unwrap();
            feed
        });
        open.push((sse, feed));
    }
    // What is written already still goes out before the last word.
    open[1].1.send(Ok(item("t1.2.0", &status("TASK_STATE_WORKING"), false))).unwrap();
    stand.shutdown.cancel();
    for ((mut sse, feed), want) in open.into_iter().zip([1, 2]) {
        while sse.more().await {}
        assert_eq!(sse.text.matches("data: ").count(), want, "{}", sse.text);
        assert!(sse.text.ends_with("subscribe again with Last-Event-ID\n\n"), "{}", sse.text);
        until("the service is let go", || feed.is_closed()).await;
    }
    assert_eq!(stand.metric("outrigger_a2a_streams_ended_total", &[("reason", "shutdown")]), 2);
    until("the port is closed", || std::net::TcpStream::connect(stand.address).is_err()).await;
}

#[tokio::test]
async fn a_stream_of_0_3_says_when_it_is_final() {
    let stand = Stand::start(|_| async {
        Ok(events(vec![
            Ok(item(
                "t1.1.0",
                r#"{"task":{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_WORKING"}}}"#,
                false,
            )),
            Ok(item("t1.2.0", &status("TASK_STATE_WORKING"), false)),
            Ok(item("t1.3.0", &status("TASK_STATE_INPUT_REQUIRED"), true)),
        ]))
    })
    .await;
    let got = stand.stream("POST", "/", JSON, &request("tasks/resubscribe")).await;
    assert_eq!(got.headers["a2a-version"], "0.3");
    let got: Vec<Value> = got.all().await.iter().map(|e| serde_json::from_str(&e.data).unwrap()).collect();
    let kinds: Vec<_> = got.iter().map(|e| e["result"]["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["task", "status-update", "status-update"]);
    assert_eq!((&got[1]["result"]["final"], &got[2]["result"]["final"]), (&json!(false), &json!(true)));
    assert_eq!(got[2]["result"]["status"]["state"], "input-required");
}

#[tokio::test]
async fn what_a_request_says_beside_its_parameters() {
    let stand = Stand::answering("{}").await;
    stand.configure(|live| {
        live.card = json!({"capabilities": {"extensions": [{"uri": "urn:need", "required": true}, {"uri": "urn:b"}]}});
    });
    let body = request("GetTask");
    let got = stand.ask("POST", "/", JSON, &body).await;
    assert_eq!(got.json()["error"]["code"], -32008);
    assert!(stand.seen().is_empty());
    let headers = [
        ("content-type", "application/json"),
        ("a2a-extensions", "urn:b, urn:need"),
        ("x-a2a-extensions", "urn:c"),
        ("idempotency-key", "k1"),
        ("last-event-id", "t1.3.0"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t", "tenant": "acme"}}).to_string();
    assert_eq!(stand.ask("POST", "/", &headers, &body).await.json()["result"], json!({}));
    let call = stand.last().call;
    assert_eq!(call.extensions, ["urn:b", "urn:need", "urn:c"]);
    assert_eq!((call.idempotency_key.as_deref(), call.last_event_id.as_deref()), (Some("k1"), Some("t1.3.0")));
    assert_eq!(call.trace.id(), "0af7651916cd43dd8448eb211c80319c");
    assert!(!call.caller.key.is_empty());
    let long = "k".repeat(300);
    let got = stand.ask("POST", "/", &[("idempotency-key", &long), ("a2a-extensions", "urn:need")], &body).await;
    assert_eq!(got.json()["error"]["code"], -32600);
}

#[tokio::test]
async fn what_is_not_offered() {
    let stand = Stand::answering("{}").await;
    stand.configure(|live| live.offer.versions = vec!["1.0".into()]);
    assert_eq!(stand.rpc("GetTask", &json!({"id": "t"})).await["result"], json!({}));
    let got = stand.rpc("tasks/get", &json!({"id": "t"})).await;
    assert_eq!(got["error"]["code"], -32601);
    assert!(got["error"]["message"].as_str().unwrap().contains("1.0"));
    stand.configure(|live| live.offer.bindings = vec!["GRPC".into()]);
    assert_eq!(stand.rpc("GetTask", &json!({"id": "t"})).await["error"]["code"], -32004);
    let got = stand.ask("GET", "/tasks/t", &[], "").await;
    assert_eq!((got.status.as_u16(), got.json()["error"]["status"].as_str()), (400, Some("FAILED_PRECONDITION")));
    assert_eq!(stand.seen().len(), 1);
}

#[tokio::test]
async fn json_rpc_below_the_agents_own_url() {
    let stand = Stand::start(|_| async { Ok(unary("{}")) }).await;
    stand.configure(|live| live.offer.public_url = Some("https://agents.example.com/burger".into()));
    for path in ["/", "/burger", "/burger/"] {
        let got = stand.ask("POST", path, JSON, &request("GetTask")).await;
        assert_eq!(got.json()["result"], json!({}), "{path}");
    }
    let got = stand.ask("GET", "/burger/", JSON, "").await;
    assert_eq!((got.status.as_u16(), got.header("allow")), (405, "POST"));
    let got = stand.ask("GET", "/burger/tasks/t1", &[], "").await;
    assert_eq!((got.status.as_u16(), stand.last().json()), (200, json!({"id": "t1"})));
}
