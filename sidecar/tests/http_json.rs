//! A2A over HTTP and JSON: paths, verbs, bodies, media types, tenants, versions.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod binding_support;

use binding_support::{Asked, JSON, Seen, Stand, nothing, unary};
use outrigger_protocol::a2a::operation::{Binding, Operation};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MESSAGE: &str = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;

fn reason(got: &Asked) -> (u16, String) {
    let error = &got.json()["error"];
    assert_eq!(error["code"], got.status.as_u16(), "{error}");
    assert_eq!(got.header("content-type"), "application/json");
    (got.status.as_u16(), error["details"][0]["reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn paths_and_verbs_that_are_none() {
    let stand = Stand::answering("{}").await;
    for (verb, path, status, allow) in [
        ("GET", "/nope/nope", 404, ""),
        ("GET", "/tasks/a/b", 404, ""),
        ("GET", "/a/b/tasks/c", 404, ""),
        ("GET", "/tasks/%FF", 404, ""),
        ("DELETE", "/tasks/t1", 405, "GET"),
        ("GET", "/message:send", 405, "POST"),
        ("GET", "/tasks/t1:cancel", 405, "POST"),
        ("PUT", "/tasks/t1:subscribe", 405, "GET, POST"),
        ("PATCH", "/tasks/t1/pushNotificationConfigs/p", 405, "DELETE, GET"),
        ("OPTIONS", "/tasks", 405, "GET"),
        ("GET", "/", 405, "POST"),
    ] {
        let got = stand.ask(verb, path, &[], "").await;
        let want = if status == 404 { "METHOD_NOT_FOUND" } else { "METHOD_NOT_ALLOWED" };
        assert_eq!(reason(&got), (status, want.to_owned()), "{verb} {path}");
        assert_eq!(got.header("allow"), allow, "{verb} {path}");
        assert!(!got.headers.contains_key("access-control-allow-origin"));
    }
    let got = stand.ask("GET", "/v1/nope", &[], "").await;
    assert_eq!((got.status.as_u16(), &got.json()["code"]), (404, &json!(-32601)));
    assert!(stand.seen().is_empty());
    assert_eq!(stand.metric("outrigger_a2a_requests_total", &[("method", "other"), ("binding", "http_json")]), 11);
}

#[tokio::test]
async fn paths_name_operation_task_and_tenant() {
    let stand = Stand::answering("{}").await;
    for (verb, path, operation, params) in [
        ("GET", "/tasks/t1/", Operation::GetTask, json!({"id": "t1"})),
        ("GET", "/tasks/a%2Fb?history_length=3&x=y", Operation::GetTask, json!({"id": "a/b", "historyLength": 3})),
        ("GET", "/acme/tasks/t1", Operation::GetTask, json!({"tenant": "acme", "id": "t1"})),
        ("GET", "/tasks?tenant=acme", Operation::ListTasks, json!({"tenant": "acme"})),
        ("GET", "/tasks/t1:subscribe", Operation::SubscribeToTask, json!({"id": "t1"})),
        ("POST", "/tasks/t1%3Asubscribe", Operation::SubscribeToTask, json!({"id": "t1"})),
        ("POST", "/acme/tasks/t1:cancel", Operation::CancelTask, json!({"tenant": "acme", "id": "t1"})),
        ("GET", "/acme/extendedAgentCard", Operation::GetExtendedAgentCard, json!({"tenant": "acme"})),
    ] {
        let got = stand.ask(verb, path, &[], "").await;
        let seen = stand.last();
        assert_eq!((seen.operation, seen.json()), (operation, params), "{verb} {path}: {}", got.text);
        assert_eq!(seen.call.binding, Binding::HttpJson);
        assert_eq!(seen.call.caller.key.is_empty(), seen.json().get("tenant").is_none(), "{verb} {path}");
    }
}

#[tokio::test]
async fn bodies_and_queries_that_are_wrong() {
    let stand = Stand::answering("{}").await;
    let deep = format!("{}1{}", "{\"a\":".repeat(500), "}".repeat(500));
    for (verb, path, headers, body, want) in [
        ("POST", "/message:send", JSON, "", (400, "PARSE_ERROR")),
        ("POST", "/message:send", JSON, "{\"message\"", (400, "PARSE_ERROR")),
        ("POST", "/message:send", JSON, "[]", (400, "INVALID_REQUEST")),
        ("POST", "/message:send", JSON, &deep, (400, "INVALID_REQUEST")),
        ("POST", "/message:send", &[("content-type", "text/plain")], MESSAGE, (400, "CONTENT_TYPE_NOT_SUPPORTED")),
        ("POST", "/acme/message:send", JSON, r#"{"tenant":"other"}"#, (400, "INVALID_PARAMS")),
        ("POST", "/tasks/t1:cancel", JSON, r#"{"id":"t2"}"#, (400, "INVALID_PARAMS")),
        ("GET", "/tasks?pageSize=many", &[], "", (400, "INVALID_PARAMS")),
        ("GET", "/tasks?includeArtifacts=yes", &[], "", (400, "INVALID_PARAMS")),
        ("GET", "/tasks/t1", &[("a2a-version", "2.0")], "", (400, "VERSION_NOT_SUPPORTED")),
        ("GET", "/tasks/t1?A2A-Version=9.9", &[], "", (400, "VERSION_NOT_SUPPORTED")),
        ("GET", "/tasks/t1", &[("a2a-version", "0.3")], "", (404, "METHOD_NOT_FOUND")),
    ] {
        let got = stand.ask(verb, path, headers, body).await;
        assert_eq!(reason(&got), (want.0, want.1.to_owned()), "{verb} {path} {body:.40}");
    }
    assert!(stand.seen().is_empty());
    stand.configure(|live| live.limits.max_request_bytes = 100);
    let got = stand.ask("POST", "/message:send", JSON, &format!("{MESSAGE}{}", " ".repeat(100))).await;
    assert_eq!(reason(&got), (413, "REQUEST_TOO_LARGE".into()));
    let got = stand.ask("GET", "/v1/tasks/t1", &[("a2a-version", "1.0")], "").await;
    assert_eq!((got.status.as_u16(), &got.json()["code"]), (404, &json!(-32601)));
    assert_eq!(stand.metric("outrigger_a2a_versions_total", &[("version", "other")]), 2);
}

#[tokio::test]
async fn media_types_mirror_the_caller() {
    let stand = Stand::start(|seen: Seen| async move {
        match seen.operation {
            Operation::DeleteTaskPushNotificationConfig => Ok(nothing()),
            _ => Ok(unary("{\"id\":\"t1\"}")),
        }
    })
    .await;
    let types = |got: &Asked| got.header("content-type").to_owned();
    assert_eq!(types(&stand.ask("GET", "/tasks/t1", &[], "").await), "application/a2a+json");
    assert_eq!(types(&stand.ask("GET", "/tasks/t1", &[("accept", "application/json")], "").await), "application/json");
    assert_eq!(types(&stand.ask("POST", "/message:send", JSON, MESSAGE).await), "application/json");
    let newer = [("content-type", "application/a2a+json")];
    assert_eq!(types(&stand.ask("POST", "/message:send", &newer, MESSAGE).await), "application/a2a+json");
    assert_eq!(types(&stand.ask("GET", "/v1/tasks/t1", &[], "").await), "application/json");
    let got = stand.ask("GET", "/nope/nope", &[("accept", "application/a2a+json")], "").await;
    assert_eq!(types(&got), "application/a2a+json");
    let got = stand.ask("DELETE", "/tasks/t1/pushNotificationConfigs/p", &[], "").await;
    assert_eq!((got.status.as_u16(), got.text.as_str()), (200, "{}"));
    assert_eq!(stand.last().json(), json!({"taskId": "t1", "id": "p"}));
}

/// What hyper refuses by itself is answered too, and the port goes on.
#[tokio::test]
async fn what_is_no_http() {
    let stand = Stand::answering("{}").await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET /tasks/t1 HTTP/9.9\r\n\r\n",
        b"GET tasks HTTP/1.1\r\nhost a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense nonsense nonsense",
    ] {
        let mut socket = TcpStream::connect(stand.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut got = Vec::new();
        // The server closes, whether it answers or not.
        let read = tokio::time::timeout(binding_support::PATIENCE, socket.read_to_end(&mut got)).await.unwrap();
        assert!(read.is_err() || !got.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&got));
    }
    assert_eq!(stand.ask("GET", "/tasks/t1", &[], "").await.status, 200);
    assert_eq!(stand.seen().len(), 1);
}

/// A body whose sender goes away, or closes its half before the end, is not carried out.
#[tokio::test]
async fn half_a_body() {
    let stand = Stand::answering("{}").await;
    for path in ["/", "/message:send"] {
        let mut socket = TcpStream::connect(stand.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n{{\"jsonrpc\"");
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut got = Vec::new();
        let _ = tokio::time::timeout(binding_support::PATIENCE, socket.read_to_end(&mut got)).await.unwrap();
        assert!(!got.starts_with(b"HTTP/1.1 200") || String::from_utf8_lossy(&got).contains("error"), "{path}");
    }
    assert!(stand.seen().is_empty());
}

/// One connection carries many requests, whatever their outcome.
#[tokio::test]
async fn a_connection_stays_open_after_errors() {
    let stand = Stand::start(|seen: Seen| async move {
        if seen.json()["id"] == "t1" {
            Ok(unary("{}"))
        } else {
            Err(outrigger_protocol::a2a::errors::Error::task_not_found("x"))
        }
    })
    .await;
    let mut socket = TcpStream::connect(stand.address).await.unwrap();
    let mut statuses = Vec::new();
    for path in ["/tasks/t1", "/tasks/t2", "/nope/x", "/tasks/t1"] {
        socket.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        let mut got = Vec::new();
        let mut byte = [0];
        while !got.ends_with(b"\r\n\r\n") {
            socket.read_exact(&mut byte).await.unwrap();
            got.push(byte[0]);
        }
        let head = String::from_utf8(got).unwrap().to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        socket.read_exact(&mut body).await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap();
        statuses.push(head[9..12].to_owned());
    }
    assert_eq!(statuses, ["200", "404", "404", "200"]);
}
