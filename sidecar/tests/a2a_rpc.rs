//! The wire: frames, methods, versions, sizes, and the card.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use a2a_support::{Front, Handler, answer, message};
use axum::body::Body;
use http::{Request, StatusCode};
use outrigger_protocol::config::Limits;
use serde_json::{Value, json};

async fn echo() -> (Handler, Front) {
    let handler = Handler::start(|g| async move { answer(json!({"text": g.json()["text"]})) }).await;
    let front = Front::to(&handler);
    (handler, front)
}

fn error(text: &str) -> (Value, i64, String) {
    let v: Value = serde_json::from_str(text).unwrap();
    assert_eq!(v["jsonrpc"], "2.0");
    // A caller of 0.3 finds the list in an object.
    let data = &v["error"]["data"];
    let first = data.get("details").map_or(&data[0], |details| &details[0]);
    assert_eq!(first["domain"], "a2a-protocol.org", "{v}");
    (v["id"].clone(), v["error"]["code"].as_i64().unwrap(), first["reason"].as_str().unwrap().into())
}

#[tokio::test]
async fn bodies_that_are_no_request() {
    let (handler, front) = echo().await;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}1{}}}"#,
        "{\"a\":".repeat(10_000),
        "}".repeat(10_000)
    );
    for (body, code) in [
        ("", -32700),
        ("hello", -32700),
        ("{\"jsonrpc\":\"2.0\"", -32700),
        ("[]", -32600),
        ("null", -32600),
        (r#"{"jsonrpc":"2.0","method":"GetTask","params":{}}"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"GetTask","params":{}}"#, -32600),
        (&deep, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"Nope"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}"#, -32602),
    ] {
        let (status, headers, text) = front.post(body.to_owned(), &[]).await;
        assert_eq!((status, &headers["content-type"]), (StatusCode::OK, &"application/json".parse().unwrap()));
        assert_eq!(error(&text).1, code, "{}: {text}", body.chars().take(80).collect::<String>());
    }
    assert!(handler.turns().is_empty());
    assert!(front.metric("outrigger_a2a_requests_total", &[("method", "other"), ("outcome", "parse_error")]) >= 3);
    // And the next one is served.
    assert!(front.send("hi").await["result"]["task"].is_object());
}

#[tokio::test]
async fn ids_come_back_byte_for_byte() {
    let (_handler, front) = echo().await;
    for id in ["1", "\"1\"", "null", "12345678901234567890", "\"\\u0041\""] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"GetTask","params":{{"id":"x"}}}}"#);
        let (_, _, text) = front.post(body, &[]).await;
        assert!(text.contains(&format!("\"id\":{id},")), "{text}");
    }
}

#[tokio::test]
async fn twenty_megabytes_are_refused_before_they_are_held() {
    let (_handler, front) = echo().await;
    let body =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"SendMessage\",\"pad\":\"{}\"}}", "x".repeat(20 << 20));
    let (status, _, text) = front.post(body, &[]).await;
    assert_eq!(
        (status, error(&text)),
        (StatusCode::PAYLOAD_TOO_LARGE, (Value::Null, -32600, "REQUEST_TOO_LARGE".into()))
    );
    // Without a length, what arrives is counted.
    let chunks = (0..20).map(|_| Ok::<_, std::io::Error>(axum::body::Bytes::from(vec![b'x'; 1 << 20])));
    let body = Body::from_stream(futures::stream::iter(chunks));
    let request = Request::post("/").header("content-type", "application/json").body(body).unwrap();
    let (status, _, text) = front.request(request).await;
    assert_eq!((status, error(&text).2), (StatusCode::PAYLOAD_TOO_LARGE, "REQUEST_TOO_LARGE".into()));
    // The limit is the one in force.
    front.set_limits(|l| l.max_request_bytes = 100);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("hi")}).to_string();
    assert_eq!(front.post(body, &[]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // Many small pieces are put together.
    front.set_limits(|l| *l = Limits::default());
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("pieces")}).to_string();
    let pieces: Vec<_> = body.bytes().map(|b| Ok::<_, std::io::Error>(axum::body::Bytes::from(vec![b]))).collect();
    let request = Request::post("/").body(Body::from_stream(futures::stream::iter(pieces))).unwrap();
    let (_, _, text) = front.request(request).await;
    assert!(text.contains("\"artifacts\":[{"), "{text}");
}

#[tokio::test]
async fn content_types_and_verbs() {
    let (_handler, front) = echo().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}).to_string();
    for (content_type, code) in [
        ("application/json", -32001),
        ("application/json; charset=utf-8", -32001),
        ("Application/A2A+JSON", -32001),
        ("text/plain", -32005),
        ("application/x-www-form-urlencoded", -32005),
    ] {
        let (status, _, text) = front.post(body.clone(), &[("content-type", content_type)]).await;
        assert_eq!((status, error(&text).1), (StatusCode::OK, code), "{content_type}");
    }
    let (status, headers, _) = front.request(Request::get("/").body(Body::empty()).unwrap()).await;
    assert_eq!((status, &headers["allow"]), (StatusCode::METHOD_NOT_ALLOWED, &"POST".parse().unwrap()));
    assert_eq!(front.request(Request::get("/nope").body(Body::empty()).unwrap()).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn versions() {
    let (_handler, front) = echo().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}).to_string();
    for (version, code) in
        [("1.0", -32001), ("1.0.1", -32001), ("", -32001), ("0.3", -32601), ("2.0", -32009), ("x", -32009)]
    {
        let (_, _, text) = front.post(body.clone(), &[("a2a-version", version)]).await;
        assert_eq!(error(&text).1, code, "{version}");
    }
    for version in ["0.3", "0.4"] {
        let (_, _, text) = front.post(body.clone(), &[("a2a-version", version)]).await;
        assert!(text.contains(r#""supportedVersions":"1.0, 0.3""#), "{text}");
    }
    let request = Request::post("/?A2A-Version=0.3").body(Body::from(body.clone())).unwrap();
    assert_eq!(error(&front.request(request).await.2).1, -32601);
    // The header wins.
    let request = Request::post("/?A2A-Version=0.3").header("a2a-version", "1.0").body(Body::from(body)).unwrap();
    assert_eq!(error(&front.request(request).await.2).1, -32001);
}

#[tokio::test]
async fn methods_that_the_card_does_not_promise() {
    let (handler, front) = echo().await;
    for (method, code) in [
        ("SendStreamingMessage", -32004),
        ("SubscribeToTask", -32004),
        ("GetExtendedAgentCard", -32004),
        ("CreateTaskPushNotificationConfig", -32003),
        ("GetTaskPushNotificationConfig", -32003),
        ("ListTaskPushNotificationConfigs", -32003),
        ("DeleteTaskPushNotificationConfig", -32003),
    ] {
        assert_eq!(error(&front.call_text(method, "{}").await).1, code, "{method}");
    }
    let mut params = message("hi");
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": "https://example.com"}});
    assert_eq!(front.call("SendMessage", params).await["error"]["code"], -32003);
    assert!(handler.turns().is_empty());
}

#[tokio::test]
async fn parameters_are_named_when_they_are_wrong() {
    let (handler, front) = echo().await;
    let params = json!({"message": {"messageId": "", "role": "ROLE_AGENT", "parts": [{"text": 7}, {"raw": "*"}]},
                        "configuration": {"historyLength": -1}});
    let got = front.call("SendMessage", params).await;
    let fields: Vec<_> =
        got["error"]["data"][1]["fieldViolations"].as_array().unwrap().iter().map(|v| v["field"].clone()).collect();
    assert_eq!(
        fields,
        [
            "message.role",
            "message.messageId",
            "message.parts[0].text",
            "message.parts[1].raw",
            "configuration.historyLength"
        ]
    );
    assert!(handler.turns().is_empty());
}
