//! A2A over gRPC: framing, status and details, deadlines, metadata, streams, the end of the pod.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod binding_support;

use std::sync::Arc;
use std::time::Duration;

use binding_support::grpc::{Answer, call, post, request_bytes, rpc};
use binding_support::{Seen, Stand, events, fed, item, streaming, unary, until};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::BodyExt as _;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::extensions::DELIVERY;
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_sidecar::a2a::call::StreamItem;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Feed = mpsc::UnboundedSender<Result<StreamItem, Error>>;

const GET: &str = "/lf.a2a.v1.A2AService/GetTask";
const TASK: &str = r#"{"task":{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_WORKING"}}}"#;

#[tokio::test]
async fn metadata_and_numbers() {
    let stand =
        Stand::start(|seen: Seen| async move { Ok(unary(&format!("{{\"message\":{}}}", seen.json()["message"]))) })
            .await;
    let message = json!({"messageId": "m", "role": "ROLE_USER", "metadata": {"n": 7, "big": 12_345_678_901_234_567_u64},
                         "parts": [{"text": ""}, {"data": null}, {"data": [1, 2.5, {"a": -0.5}]}, {"raw": "AAEC"}]});
    let metadata =
        [("a2a-version", "1.0.1"), ("a2a-extensions", "urn:a"), ("last-event-id", "t1.2.0"), ("idempotency-key", "k")];
    let asked = json!({"tenant": "acme", "message": message});
    let mut got = call(&stand, Operation::SendMessage, Dialect::V10, &metadata, &asked).await;
    let messages = got.all().await;
    assert_eq!(got.status(), 0, "{}", got.message());
    // The integer that a double cannot hold is the one loss.
    let mut want = message.clone();
    want["metadata"]["big"] = json!(1.234_567_890_123_456_8e16);
    assert_eq!(messages, [json!({"message": want})]);
    let seen = stand.last();
    assert!(seen.params.as_ref().unwrap().contains("\"n\":7,") || seen.params.as_ref().unwrap().contains("\"n\":7}"));
    assert_eq!((seen.call.binding, seen.call.extensions.as_slice()), (Binding::Grpc, &["urn:a".to_owned()][..]));
    assert_eq!((seen.call.last_event_id.as_deref(), seen.call.idempotency_key.as_deref()), (Some("t1.2.0"), Some("k")));
    assert!(!seen.call.caller.key.is_empty());
}

#[tokio::test]
async fn requests_that_are_none() {
    let stand = Stand::answering("{}").await;
    let (_, get) = rpc(Operation::GetTask, Dialect::V10).unwrap();
    let good = request_bytes(get, &json!({"id": "t1"}));
    let with = |prefix: &[u8]| Bytes::from([prefix, &good[5..]].concat());
    let long = |n: usize| Bytes::from([&[0_u8][..], &u32::try_from(n).unwrap().to_be_bytes(), &vec![b'x'; n]].concat());
    stand.configure(|live| live.limits.max_request_bytes = 1_000);
    for (what, path, metadata, body, code) in [
        ("no message", GET, &[][..], Bytes::new(), 3),
        ("short", GET, &[], with(&[0, 0, 0, 0, 200]), 3),
        ("two", GET, &[], Bytes::from([&good[..], &good[..]].concat()), 3),
        ("compressed", GET, &[], with(&[1, 0, 0, 0, 4]), 3),
        ("no proto", GET, &[], Bytes::from_static(b"\0\0\0\0\x02\xff\xff"), 3),
        ("large", GET, &[], long(1_100), 8),
        ("unknown method", "/lf.a2a.v1.A2AService/Nope", &[], good.clone(), 12),
        ("unknown service", "/lf.a2a.v2.A2AService/GetTask", &[], good.clone(), 12),
        ("compression", GET, &[("grpc-encoding", "gzip")], good.clone(), 12),
        ("version", GET, &[("a2a-version", "7")], good.clone(), 9),
        ("version of the other service", GET, &[("a2a-version", "0.3")], good.clone(), 12),
        ("timeout", GET, &[("grpc-timeout", "soon")], good.clone(), 3),
    ] {
        let mut got = Answer::of(post(&stand, path, metadata, body).await, get);
        assert_eq!(got.all().await, Vec::<Value>::new(), "{what}");
        assert_eq!(got.status(), code, "{what}: {}", got.message());
        assert!(got.headers.contains_key("grpc-status-details-bin") && !got.message().is_empty(), "{what}");
    }
    assert!(stand.seen().is_empty());
    let got = post(&stand, GET, &[("content-type", "application/grpc-web")], good.clone()).await;
    assert_eq!(got.status(), 415);
    let got = stand.ask("POST", GET, &[("content-type", "application/grpc")], "").await;
    assert_eq!(got.status, 505);
    // The next one is served.
    let mut got = Answer::of(post(&stand, GET, &[("content-type", "application/grpc+proto")], good).await, get);
    assert_eq!((got.all().await, got.status()), (vec![json!({})], 0));
}

#[tokio::test]
async fn an_answer_that_no_message_can_hold() {
    let stand = Stand::answering(r#"{"id":7,"status":"x"}"#).await;
    let mut got = call(&stand, Operation::GetTask, Dialect::V10, &[], &json!({"id": "t"})).await;
    assert_eq!((got.all().await, got.status()), (vec![], 13));
    assert_eq!(stand.metric("outrigger_a2a_requests_total", &[("outcome", "internal_error")]), 1);
}

#[tokio::test]
async fn deadlines_of_calls_and_streams() {
    let stand = Stand::start(|seen: Seen| async move {
        if seen.operation.streams() {
            return Ok(streaming(stream::iter([Ok(item("t1.1.0", TASK, false))]).chain(stream::pending()).boxed()));
        }
        std::future::pending().await
    })
    .await;
    let metadata = [("grpc-timeout", "100m")];
    let mut got = call(&stand, Operation::GetTask, Dialect::V10, &metadata, &json!({"id": "t"})).await;
    assert_eq!((got.all().await, got.status()), (vec![], 4));
    let mut got = call(&stand, Operation::SubscribeToTask, Dialect::V10, &metadata, &json!({"id": "t"})).await;
    assert_eq!((got.all().await.len(), got.status()), (1, 4));
    assert_eq!(stand.metric("outrigger_a2a_requests_total", &[("outcome", "deadline_exceeded")]), 1);
    until("the stream is counted", || {
        stand.metric("outrigger_a2a_streams_ended_total", &[("binding", "grpc"), ("reason", "deadline")]) == 1
    })
    .await;
}

#[tokio::test]
async fn errors_before_and_within_a_stream() {
    let stand = Stand::start(|seen: Seen| async move {
        let late = || Error::new(Kind::Internal, "it broke");
        Ok(match seen.json()["id"].as_str() {
            Some("first") => events(vec![Err(Error::task_not_found("x"))]),
            Some("late") => events(vec![Ok(item("t1.1.0", TASK, false)), Err(late())]),
            _ => events(vec![Ok(item("t1.1.0", TASK, false)), Ok(item("t1.2.0", r#"{"task":7}"#, false))]),
        })
    })
    .await;
    for (id, messages, status) in [("first", 0, 5), ("late", 1, 13), ("unwritable", 1, 13)] {
        for (dialect, asked) in
            [(Dialect::V10, json!({"id": id})), (Dialect::V03Proto, json!({"name": format!("tasks/{id}")}))]
        {
            let mut got = call(&stand, Operation::SubscribeToTask, dialect, &[], &asked).await;
            assert_eq!((got.all().await.len(), got.status()), (messages, status), "{id} {dialect:?}");
            let named = ["TaskNotFoundError: ", "InternalError: "].iter().any(|name| got.message().starts_with(name));
            assert_eq!(named, dialect == Dialect::V03Proto, "{id}: {}", got.message());
        }
    }
    assert_eq!(stand.metric("outrigger_a2a_streams_open", &[]), 0);
}

#[tokio::test]
async fn a_stream_lives_until_its_caller_or_the_pod_goes() {
    let feeds: Arc<Mutex<Vec<Feed>>> = Arc::default();
    let kept = Arc::clone(&feeds);
    let stand = Stand::start(move |_| {
        let (tx, rx) = mpsc::unbounded_channel();
        tx.send(Ok(item("t1.1.0", TASK, false))).unwrap();
        kept.lock().push(tx);
        async move { Ok(fed(rx)) }
    })
    .await;
    let open = || async {
        let mut got = call(&stand, Operation::SubscribeToTask, Dialect::V10, &[], &json!({"id": "t1"})).await;
        assert_eq!(got.next().await.unwrap()["task"]["id"], "t1");
        got
    };
    drop(open().await);
    until("the service is let go", || feeds.lock()[0].is_closed()).await;
    let mut got = open().await;
    feeds.lock()[1].send(Ok(item("t1.2.0", TASK, false))).unwrap();
    assert!(got.next().await.is_some());
    stand.shutdown.cancel();
    assert_eq!((got.all().await, got.status()), (vec![], 14));
    until("the service is let go", || feeds.lock()[1].is_closed()).await;
}

/// A connection may hold a thousand streams, and a caller with one of them more waits without harm.
#[tokio::test]
async fn many_streams_over_one_connection() {
    const STREAMS: usize = 500;
    let stand = Stand::start(|_| async {
        Ok(streaming(stream::iter([Ok(item("t1.1.0", TASK, false))]).chain(stream::pending()).boxed()))
    })
    .await;
    let (path, rpc) = rpc(Operation::SubscribeToTask, Dialect::V10).unwrap();
    let body = request_bytes(rpc, &json!({"id": "t1"}));
    let sender = stand.h2().await;
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let request = http::Request::post(format!("http://{}{path}", stand.address))
            .header("content-type", "application/grpc")
            .body(http_body_util::Full::from(body.clone()))
            .unwrap();
        let mut sender = sender.clone();
        open.push(tokio::spawn(async move {
            let mut got = Answer::of(sender.send_request(request).await.unwrap(), rpc);
            assert!(got.next().await.is_some());
            got
        }));
    }
    let mut held = Vec::new();
    for task in open {
        held.push(tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap());
    }
    assert_eq!(stand.metric("outrigger_a2a_streams_open", &[("binding", "grpc")]), STREAMS as u64);
    drop(held);
    until("all are let go", || stand.metric("outrigger_a2a_streams_open", &[]) == 0).await;
}

#[tokio::test]
async fn the_health_service_answers_checks() {
    let stand = Stand::start(|_: Seen| async move { Err(Error::new(Kind::Internal, "nobody asks this")) }).await;
    let check = |service: &'static str| {
        let mut body = vec![0, 0, 0, 0, 0];
        if !service.is_empty() {
            body.extend([0x0a, u8::try_from(service.len()).unwrap()]);
            body.extend(service.as_bytes());
        }
        body[4] = u8::try_from(body.len() - 5).unwrap();
        let stand = &stand;
        async move {
            let response = post(stand, "/grpc.health.v1.Health/Check", &[], body.into()).await;
            let (head, body) = response.into_parts();
            let all = body.collect().await.unwrap();
            let trailers = all.trailers().cloned().unwrap_or(head.headers);
            (trailers["grpc-status"].to_str().unwrap().to_owned(), all.to_bytes().to_vec())
        }
    };
    for service in ["", "lf.a2a.v1.A2AService", "a2a.v1.A2AService"] {
        assert_eq!(check(service).await, ("0".into(), vec![0, 0, 0, 0, 2, 0x08, 1]), "{service:?} is SERVING");
    }
    assert_eq!(check("some.Other").await, ("5".into(), vec![]));
    let watch = post(&stand, "/grpc.health.v1.Health/Watch", &[], vec![0, 0, 0, 0, 0].into()).await;
    assert_eq!(watch.headers()["grpc-status"], "12");
}

#[tokio::test]
async fn events_have_ids_for_those_who_ask_for_them() {
    let stand = Stand::start(|seen: Seen| async move {
        let mut reply = events(vec![Ok(item("t1.1", TASK, false)), Ok(item("t1.2.0", TASK, true))]);
        reply.extensions = seen.call.extensions;
        Ok(reply)
    })
    .await;
    for (metadata, ids) in [(vec![("a2a-extensions", DELIVERY)], true), (vec![], false)] {
        let (path, rpc) = rpc(Operation::SubscribeToTask, Dialect::V10).unwrap();
        let response = post(&stand, path, &metadata, request_bytes(rpc, &json!({"id": "t1"}))).await;
        let mut bytes = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        let mut got = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
            let rest = bytes.split_off(5 + length);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            got.push(["t1.1", "t1.2.0"].iter().any(|id| text.ends_with(id)));
            bytes = rest;
        }
        assert_eq!(got, [ids, ids]);
    }
}
