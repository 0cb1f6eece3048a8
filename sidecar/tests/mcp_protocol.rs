//! Streamable HTTP in front of a stdio server: sessions, statuses, ids, streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::time::Duration;

use http::StatusCode;
use mcp_support::{Rig, Setup, call, eventually, init};
use serde_json::{Value, json};

#[tokio::test]
async fn a_session_from_handshake_to_delete() {
    let rig = Rig::ready(&[]).await;
    let status = rig.status();
    assert_eq!((status.protocol_version.as_str(), status.server_info.as_str()), ("2025-11-25", "fixture 1.2.3"));
    // 150 tools on four pages, of which the status names 128.
    assert_eq!((status.tools.len(), status.tools[127].as_str()), (128, "tool127"));
    assert_eq!((status.processes, status.crashes), (0, 0));

    let session = rig.session().await;
    let pid = rig.pid(&session).await;
    assert_eq!(rig.status().processes, 1);
    let reply = rig.http("DELETE", &[("mcp-session-id", &session)], "").await;
    assert_eq!(reply.status, StatusCode::NO_CONTENT);
    let reply = rig.post(Some(&session), call(1, "pid", json!({}))).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    eventually("the child is gone", || !mcp_support::alive(pid) && rig.status().processes == 0).await;
    assert_eq!(rig.status().crashes, 0);
    assert!((rig.metric("outrigger_mcp_sessions_ended_total", &[("reason", "deleted")]) - 1.0).abs() < 0.1);
}

/// Method, headers, body; status, code, part of the message.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, String, u16, i64, &'a str);

#[tokio::test]
async fn every_refusal_has_its_status_and_says_why() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let json = ("content-type", "application/json");
    let with = ("mcp-session-id", session.as_str());
    let ping = r#"{"jsonrpc":"2.0","id":"x","method":"ping"}"#.to_owned();
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let cases: [Case<'_>; 20] = [
        ("POST", vec![json], ping.clone(), 400, -32600, "initialize"),
        ("POST", vec![json, ("mcp-session-id", "constructor")], ping.clone(), 404, -32600, "initialize again"),
        ("POST", vec![json, with, ("origin", "http://evil.example")], ping.clone(), 403, -32600, "Origin"),
        ("POST", vec![json, with, ("host", "evil.example:80")], ping.clone(), 403, -32600, "loopback"),
        ("POST", vec![with, ("content-type", "text/plain")], ping.clone(), 415, -32600, "application/json"),
        ("POST", vec![with], ping.clone(), 415, -32600, "application/json"),
        ("POST", vec![json, with, ("accept", "text/html")], ping.clone(), 406, -32600, "text/event-stream"),
        ("POST", vec![json, with, ("mcp-protocol-version", "2026-07-28")], ping.clone(), 400, -32602, "_meta"),
        ("POST", vec![json, with, ("mcp-protocol-version", "1")], ping.clone(), 400, -32022, "data.supported"),
        ("POST", vec![json, with], "{\"jsonrpc\":".into(), 400, -32700, "ends too early"),
        ("POST", vec![json, with], "hello".into(), 400, -32700, "not JSON"),
        ("POST", vec![json, with], String::new(), 400, -32700, "not JSON"),
        ("POST", vec![json, with], format!("[{ping}]"), 400, -32600, "batch"),
        ("POST", vec![json, with], r#"{"id":1,"method":"ping"}"#.into(), 400, -32600, "jsonrpc"),
        ("POST", vec![json, with], deep, 400, -32600, "512 levels"),
        ("POST", vec![json, with], " ".repeat(20 << 20), 413, -32600, "16777216 bytes"),
        ("PUT", vec![json, with], ping.clone(), 405, -32600, "POST"),
        ("GET", vec![("accept", "text/event-stream")], String::new(), 400, -32600, "Mcp-Session-Id"),
        ("GET", vec![with, ("accept", "application/json")], String::new(), 406, -32600, "event-stream"),
        ("DELETE", vec![("mcp-session-id", "nope")], String::new(), 404, -32600, "not known"),
    ];
    for (method, headers, body, status, code, why) in cases {
        let shown = format!("{method} {headers:?} {}", &body[..body.len().min(60)]);
        let reply = rig.http(method, &headers, body).await;
        assert_eq!(reply.status.as_u16(), status, "{shown}");
        let body = reply.json().await;
        assert_eq!(body["error"]["code"], code, "{shown}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(why), "{shown}: {body}");
    }
    // Errors about a readable request carry its id.
    let reply = rig.http("POST", &[json], ping).await.json().await;
    assert_eq!(reply["id"], "x");
    // None of it harmed the session.
    rig.pid(&session).await;
}

#[tokio::test]
async fn an_unknown_server_is_told_the_known_ones() {
    let mut rig = Rig::fixture(&[]).await;
    rig.base = rig.base.replace("/mcp/fixture", "/mcp/time");
    let reply = rig.post(None, init(1)).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    let body = reply.json().await;
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("\"time\"") && message.contains("fixture"), "{message}");
}

#[tokio::test]
async fn payloads_pass_byte_for_byte() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let sent = "{\n  \"method\" : \"tools\\/call\", \"jsonrpc\":\"2.0\",\r\n \"id\":1.0, \"x-extra\": [1, 2],\"params\":{\"name\":\"line\",\
                \"arguments\":{\"n\":12345678901234567890,\"f\":1.00,\"s\":\"\\ud800\"},\"_meta\":{\"progressToken\":\"tok\"}}}";
    let reply = rig.post(Some(&session), sent).await;
    assert_eq!(reply.status, StatusCode::OK);
    let bytes = reply.bytes().await;
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.contains("\"id\": 1.0"), "{text}");
    let answer: Value = serde_json::from_str(text).unwrap();
    let line = answer["result"]["content"][0]["text"].as_str().unwrap();
    let ours: Value = serde_json::from_str(&line.replace("\\ud800", "")).unwrap();
    let id = ours["id"].to_string();
    assert_eq!(ours["params"]["_meta"]["progressToken"], ours["id"]);
    // The trace is added, and nothing else.
    let trace = format!("\"traceparent\":{},", ours["params"]["_meta"]["traceparent"]);
    assert_eq!(line.matches(&trace).count(), 1, "{line}");
    assert_eq!(
        line.replace(&trace, ""),
        sent.replace(['\n', '\r'], " ").replace("\"id\":1.0", &format!("\"id\":{id}")).replace("\"tok\"", &id)
    );

    let reply = rig.post(Some(&session), call("a", "raw", json!({}))).await.bytes().await;
    let text = std::str::from_utf8(&reply).unwrap();
    let deep = format!("{}{}", "[".repeat(600), "]".repeat(600));
    assert_eq!(
        text,
        format!(
            "{{\"result\": {{\"n\":12345678901234567890, \"f\":1.0,\t\"s\":\"\\ud800 \\u00e9\",\"x-unknown\":null,\"deep\":{deep}}}, \
             \"extra\":1, \"jsonrpc\":\"2.0\" , \"id\":\"a\"}}"
        )
    );
    // Vendor methods, errors and answers under the string form of an id pass, too.
    let vendor = rig.post(Some(&session), r#"{"jsonrpc":"2.0","id":1,"method":"vendor/echo","params":[1]}"#).await;
    assert_eq!(vendor.json().await["result"]["params"], json!([1]));
    let error = rig.call(&session, "error", json!({})).await;
    assert_eq!(error["error"], json!({"code": -32002, "message": "no", "data": {"uri": "x"}}));
    assert_eq!(rig.text(&session, "string-id", json!({})).await, "ok");
}

#[tokio::test]
async fn the_same_id_twice_and_two_sessions_keep_their_answers() {
    let rig = Rig::ready(&[]).await;
    let (a, b) = (rig.session().await, rig.session().await);
    assert_ne!(a, b);
    let (pid_a, pid_b) = (rig.pid(&a).await, rig.pid(&b).await);
    assert_ne!(pid_a, pid_b);
    let calls: Vec<_> = (0..40)
        .map(|i| {
            let session = if i % 2 == 0 { &a } else { &b };
            rig.post(Some(session), call(1, "line", json!({ "mark": format!("m{i}m") })))
        })
        .collect();
    for (i, reply) in futures::future::join_all(calls).await.into_iter().enumerate() {
        let answer = reply.last().await;
        assert_eq!(answer["id"], 1);
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains(&format!("m{i}m")), "{answer}");
    }
}

#[tokio::test]
async fn progress_goes_to_its_own_request_and_restarts_its_time() {
    let mut setup = Setup::default();
    setup.process.request_timeout_ms = 600;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    let session = rig.session().await;
    // A call before it that hangs, with the same token, gets none of it.
    let hang = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call",
                      "params": {"name": "hang", "arguments": {}, "_meta": {"progressToken": "mine"}}});
    let stuck = tokio::spawn(rig.start_post(&session, hang.to_string()));
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
                      "params": {"name": "progress", "arguments": {"steps": 5, "pause": 0.3}, "_meta": {"progressToken": "mine"}}});
    let mut reply = rig.post(Some(&session), body.to_string()).await;
    for step in 1..=5 {
        let event = reply.event().await.unwrap();
        assert_eq!(event["params"], json!({"progressToken": "mine", "progress": step, "total": 5}));
    }
    let last = reply.event().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(5), &json!("done")));
    let stuck = stuck.await.unwrap();
    assert_eq!(stuck.content_type(), "application/json");
    assert_eq!(stuck.json().await["error"]["data"]["reason"], "request_timeout");
    assert_eq!(reply.event().await, None);
    assert!((rig.metric("outrigger_mcp_dropped_messages_total", &[("reason", "late_progress")]) - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn questions_of_the_server_reach_the_client_and_answers_come_back() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    // While a call runs, on its response.
    let mut reply = rig.post(Some(&session), call(3, "ask", json!({}))).await;
    let question = reply.event().await.unwrap();
    assert_eq!(question["method"], "sampling/createMessage");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"role": "assistant", "n": 1}});
    assert_eq!(rig.post(Some(&session), answer.to_string()).await.status, StatusCode::ACCEPTED);
    // The first answer wins.
    assert_eq!(rig.post(Some(&session), answer.to_string()).await.status, StatusCode::ACCEPTED);
    let last = reply.event().await.unwrap();
    let got: Value = serde_json::from_str(last["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(got, json!({"role": "assistant", "n": 1}));
    assert!((rig.metric("outrigger_mcp_dropped_messages_total", &[("reason", "unknown_answer")]) - 1.0).abs() < 0.1);
    // Between calls, on the session's stream, even if that comes later.
    assert_eq!(rig.text(&session, "ask-later", json!({})).await, "later");
    let mut stream = rig.listen(&session).await;
    let question = stream.event().await.unwrap();
    assert_eq!(question["method"], "roots/list");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}});
    rig.post(Some(&session), answer.to_string()).await;
    let asked: Value = serde_json::from_str(&rig.text(&session, "asked", json!({})).await).unwrap();
    assert_eq!(asked["answer"], json!({"jsonrpc": "2.0", "id": "q2", "result": {"roots": []}}));
    // A ping of the server is the proxy's to answer.
    assert_eq!(rig.text(&session, "ping-client", json!({})).await, "{}");
}

#[tokio::test]
async fn an_undeliverable_question_is_answered_with_an_error() {
    let timing =
        outrigger_sidecar::mcp::timing::Timing { undelivered: Duration::from_millis(100), ..Default::default() };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    rig.text(&session, "ask-later", json!({})).await;
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        // JSON only, so that this call's response can't carry the question.
        let headers = [
            ("content-type", "application/json"),
            ("accept", "application/json"),
            ("mcp-session-id", session.as_str()),
        ];
        let reply = rig.http("POST", &headers, call(1, "asked", json!({}))).await.json().await;
        let asked: Value = serde_json::from_str(reply["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
        if asked["answer"]["error"]["code"] == -32603 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{asked}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn one_stream_per_session_the_newest() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let mut first = rig.listen(&session).await;
    assert_eq!(first.status, StatusCode::OK);
    rig.text(&session, "changed", json!({})).await;
    assert_eq!(first.event().await.unwrap()["method"], "notifications/tools/list_changed");
    let mut second = rig.listen(&session).await;
    assert_eq!(first.event().await, None);
    rig.text(&session, "changed", json!({})).await;
    assert_eq!(second.event().await.unwrap()["method"], "notifications/tools/list_changed");
    // What belongs to a call goes with the call.
    let mut reply = rig.post(Some(&session), call(1, "log", json!({}))).await;
    assert_eq!(reply.event().await.unwrap()["method"], "notifications/message");
    assert_eq!(reply.event().await.unwrap()["result"]["content"][0]["text"], "done");
    rig.http("DELETE", &[("mcp-session-id", &session)], "").await;
    assert_eq!(second.event().await, None);
}

#[tokio::test]
async fn a_late_response_becomes_a_stream_that_is_kept_alive() {
    let timing = outrigger_sidecar::mcp::timing::Timing {
        stream_after: Duration::from_millis(50),
        keep_alive: Duration::from_millis(50),
        ..Default::default()
    };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    // No progress token, so nothing but comments comes before the response.
    let reply = rig.post(Some(&session), call(1, "progress", json!({"steps": 4, "pause": 0.1}))).await;
    assert_eq!(reply.content_type(), "text/event-stream");
    let text = String::from_utf8(reply.bytes().await.to_vec()).unwrap();
    assert!(text.starts_with("id: 1-0\ndata: \n\n: keep-alive\n\n"), "{text}");
    assert!(text.ends_with("\n\n") && text.matches("event: message").count() == 1, "{text}");
    // A client that reads no streams waits for its JSON.
    let headers =
        [("content-type", "application/json"), ("accept", "application/json"), ("mcp-session-id", session.as_str())];
    let reply = rig.http("POST", &headers, call(2, "progress", json!({"steps": 2, "pause": 0.1}))).await;
    assert_eq!(reply.json().await["id"], 2);
    // One that reads nothing else gets a stream at once.
    let headers =
        [("content-type", "application/json"), ("accept", "text/event-stream"), ("mcp-session-id", session.as_str())];
    let mut reply = rig.http("POST", &headers, call(3, "pid", json!({}))).await;
    assert_eq!(reply.event().await.unwrap()["id"], 3);
}

#[tokio::test]
async fn cancelled_reaches_the_server_under_its_own_id_and_closes_the_request() {
    let timing = outrigger_sidecar::mcp::timing::Timing { cancelled: Duration::from_millis(50), ..Default::default() };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let mut reply = rig.post(Some(&session), call("mine", "hang-aloud", json!({}))).await;
    assert_eq!(reply.event().await.unwrap()["params"]["data"], "hanging");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "mine"}});
    assert_eq!(rig.post(Some(&session), cancel.to_string()).await.status, StatusCode::ACCEPTED);
    let answer = reply.event().await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!("mine"), &json!("cancelled")));
    let asked: Value = serde_json::from_str(&rig.text(&session, "asked", json!({})).await).unwrap();
    assert!(asked["cancelled"][0].is_u64(), "{asked}");
    // What is not in flight is not cancelled.
    let unknown = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(rig.post(Some(&session), unknown.to_string()).await.status, StatusCode::ACCEPTED);
    let asked: Value = serde_json::from_str(&rig.text(&session, "asked", json!({})).await).unwrap();
    assert_eq!(asked["cancelled"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_handshake_that_names_a_newer_revision_is_answered_with_one_that_has_handshakes() {
    let rig = Rig::ready(&[]).await;
    let body = init(1).replace("2025-11-25", "2026-07-28");
    let answer = rig.post(None, body).await.json().await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(answer["result"]["capabilities"]["x-own"], json!({}));
}
