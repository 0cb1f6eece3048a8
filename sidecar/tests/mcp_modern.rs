//! Clients of the stateless revision in front of servers that speak it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::time::Duration;

use http::StatusCode;
use mcp_support::{Rig, Setup, eventually, initialize, modern};
use outrigger_protocol::config::{Era, Process, Sharing};
use outrigger_sidecar::mcp::timing::Timing;
use serde_json::{Value, json};

fn setup() -> Setup {
    let ms = Duration::from_millis;
    let timing = Timing { grace: ms(200), probe_grace: ms(200), restart: (ms(10), ms(50)), ..Timing::default() };
    Setup {
        era: Era::Auto,
        process: Process { sharing: Sharing::Auto, ..Process::default() },
        timing,
        ..Setup::default()
    }
}

async fn rig(args: &[&str]) -> Rig {
    let rig = Rig::with(args, setup()).await;
    rig.until_ready().await;
    rig
}

async fn text(rig: &Rig, tool: &str, arguments: Value) -> String {
    let answer = rig.modern("tools/call", json!({"name": tool, "arguments": arguments})).await.last().await;
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn each_client_is_served_in_its_own_way() {
    let rig = rig(&["--era", "dual"]).await;
    eventually("both ways are known", || rig.status().era == "dual").await;
    assert_eq!(rig.status().versions, ["2025-11-25", "2026-07-28"]);
    let answer = rig.modern("server/discover", json!({})).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key("mcp-session-id"));
    assert_eq!(answer.json().await["result"]["supportedVersions"][0], "2026-07-28");
    let one = text(&rig, "pid", json!({})).await;
    let session = rig.open(&initialize("2025-11-25", json!({}))).await;
    let other = rig.pid(&session).await.to_string();
    assert_ne!(one, other);
    assert_eq!((text(&rig, "pid", json!({})).await, rig.pid(&session).await.to_string()), (one, other));
    // Bytes pass, but for the id.
    let line = text(&rig, "line", json!({"n": 1})).await;
    assert!(line.contains("\"io.modelcontextprotocol/clientCapabilities\":{}"), "{line}");
    // A session id means nothing here.
    let body = modern(3, "tools/call", json!({"name": "pid", "arguments": {}}));
    let headers = [
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "pid"),
        ("mcp-session-id", "nonsense"),
    ];
    assert_eq!(rig.http("POST", &headers, body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_call_of_either_era_tells_its_server_the_trace() {
    let rig = rig(&["--era", "dual"]).await;
    eventually("both ways are known", || rig.status().era == "dual").await;
    let session = rig.open(&initialize("2025-11-25", json!({}))).await;
    let (trace, parent) =
        ("0af7651916cd43dd8448eb211c80319c", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let own = json!({"traceparent": "00-11111111111111111111111111111111-2222222222222222-00"});
    for (headers, meta) in [
        (vec![], json!({})),
        (vec![("traceparent", parent), ("tracestate", "v=1")], json!({})),
        (vec![("traceparent", parent)], own.clone()),
        (vec![("traceparent", "00-nonsense"), ("tracestate", "v=1")], json!({})),
    ] {
        let params = json!({"name": "line", "arguments": {}, "_meta": meta});
        let legacy = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string();
        let mut of_session = vec![("content-type", "application/json"), ("mcp-session-id", &*session)];
        let mut alone = vec![
            ("content-type", "application/json"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "line"),
        ];
        of_session.extend(&headers);
        alone.extend(&headers);
        for (headers_sent, body) in [(of_session, legacy), (alone, modern(7, "tools/call", params))] {
            let answer = rig.http("POST", &headers_sent, body).await.last().await;
            let line = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
            let meta_sent = serde_json::from_str::<Value>(line).unwrap()["params"]["_meta"].clone();
            let told = meta_sent["traceparent"].as_str().unwrap_or_else(|| panic!("{line}"));
            if meta == own {
                assert_eq!(told, own["traceparent"], "what a client says in the message counts");
            } else if headers.contains(&("traceparent", parent)) {
                assert!(told.len() == 55 && told[3..35] == *trace && told != parent, "a span of ours: {told}");
                assert_eq!(meta_sent["tracestate"], "v=1");
            } else {
                assert!(told.len() == 55 && told[3..35] != *trace && meta_sent.get("tracestate").is_none(), "{line}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_handshake_is_ready_all_the_same() {
    let rig = rig(&["--era", "modern"]).await;
    let status = rig.status();
    assert_eq!(
        (status.era.as_str(), status.protocol_version.as_str(), status.tools.len()),
        ("modern", "2026-07-28", 128)
    );
    assert_eq!((status.server_info.as_str(), status.last_error.as_str()), ("fixture 1.2.3", ""));
    assert_eq!(text(&rig, "string-id", json!({})).await, "ok");
    // What it should say of itself can be told instead.
    let rig = Rig::with(&["--era", "modern"], Setup { era: Era::Modern, ..setup() }).await;
    rig.until_ready().await;
    assert_eq!(rig.metric("outrigger_mcp_era_probes_total", &[]).to_string(), "0");
    text(&rig, "pid", json!({})).await;
}

#[tokio::test]
async fn servers_that_break_when_asked_are_asked_where_it_does_not_matter() {
    let rig = rig(&["--exit-on-discover"]).await;
    eventually("it is known", || rig.status().era == "legacy").await;
    assert_eq!(rig.status().versions, ["2025-11-25"]);
    let session = rig.open(&initialize("2025-11-25", json!({}))).await;
    rig.pid(&session).await;
    rig.until_ready().await;
    let mut setup = setup();
    setup.timing.probe_cold = Duration::from_millis(300);
    setup.timing.probe_warm = Duration::from_millis(100);
    let rig = Rig::with(&["--silent-on-discover"], setup).await;
    eventually("it is known", || rig.status().era == "legacy").await;
    rig.until_ready().await;
}

#[tokio::test]
async fn statuses_are_those_of_the_revision() {
    let rig = rig(&["--era", "modern"]).await;
    let body = modern("x", "tools/call", json!({"name": "pid", "arguments": {}}));
    let json = ("content-type", "application/json");
    let (version, method, name) =
        (("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "pid"));
    let without = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": {}}).to_string();
    let unknown = body.replace("2026-07-28", "2031-01-01");
    for (headers, body, status, code) in [
        (vec![json, version, method, name], body.clone(), 200, 0),
        (vec![json, version, method], body.clone(), 400, -32020),
        (vec![json, version, name], body.clone(), 400, -32020),
        (vec![json, method, name], body.clone(), 400, -32020),
        (vec![json, version, method, ("mcp-name", "pids")], body.clone(), 400, -32020),
        (vec![json, version, ("mcp-method", "tools/list")], without, 400, -32602),
        (vec![json, ("mcp-protocol-version", "2031-01-01"), method, name], unknown, 400, -32022),
    ] {
        let shown = format!("{headers:?} {body}");
        let reply = rig.http("POST", &headers, body).await;
        assert_eq!(reply.status.as_u16(), status, "{shown}");
        let answer = reply.json().await;
        assert_eq!(answer["id"], "x", "{shown}");
        assert_eq!(answer["error"]["code"].as_i64().unwrap_or(0), code, "{shown}: {answer}");
    }
    for removed in ["ping", "initialize-not", "logging/setLevel"] {
        let reply = rig.modern(removed, json!({})).await;
        assert_eq!((reply.status, reply.json().await["error"]["code"].clone()), (StatusCode::NOT_FOUND, json!(-32601)));
    }
    for verb in ["GET", "DELETE"] {
        let reply = rig.http(verb, &[version, ("accept", "text/event-stream")], "").await;
        assert_eq!(reply.status, StatusCode::METHOD_NOT_ALLOWED);
    }
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}).to_string();
    let reply = rig.http("POST", &[json, version, ("mcp-method", "notifications/cancelled")], note).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED);
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(rig.http("POST", &[json, version], response).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn subscriptions_carry_the_ids_of_their_clients() {
    let rig = rig(&["--era", "modern"]).await;
    let listen =
        |id: &str, what: Value| rig.modern_as(json!(id), "subscriptions/listen", json!({"notifications": what}));
    let mut tools = listen("mine", json!({"toolsListChanged": true})).await;
    let mut thing = listen("mine", json!({"resourceSubscriptions": ["x://1"]})).await;
    for stream in [&mut tools, &mut thing] {
        let ack = stream.event().await.unwrap();
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "mine");
    }
    text(&rig, "touch", json!({"uri": "x://1"})).await;
    text(&rig, "changed", json!({})).await;
    for (stream, method) in
        [(&mut tools, "notifications/tools/list_changed"), (&mut thing, "notifications/resources/updated")]
    {
        let event = stream.event().await.unwrap();
        assert_eq!(event["method"], method);
        assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "mine");
    }
    // A client that leaves has cancelled; the other one is ended by the server, in good order.
    drop(tools);
    text(&rig, "changed", json!({})).await;
    text(&rig, "end-listens", json!({})).await;
    let end = thing.event().await.unwrap();
    assert_eq!(
        (&end["id"], &end["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"]),
        (&json!("mine"), &json!("mine"))
    );
    assert_eq!(thing.event().await, None);
}

#[tokio::test]
async fn progress_comes_and_leaving_cancels() {
    let rig = rig(&["--era", "modern"]).await;
    let params = json!({"name": "progress", "arguments": {"steps": 2}, "_meta": {"progressToken": "t"}});
    let mut reply = rig.modern("tools/call", params).await;
    for step in 1..=2 {
        let event = reply.raw_event().await.unwrap();
        assert_eq!(event.id, None, "there is nothing to go back to");
        assert_eq!(event.data["params"], json!({"progressToken": "t", "progress": step, "total": 2}));
    }
    assert_eq!(reply.event().await.unwrap()["result"]["resultType"], "complete");
    let params = json!({"name": "hang-aloud", "arguments": {}, "_meta": {"io.modelcontextprotocol/logLevel": "info"}});
    let mut reply = rig.modern("tools/call", params).await;
    assert_eq!(reply.event().await.unwrap()["params"]["data"], "hanging");
    drop(reply);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        let asked: Value = serde_json::from_str(&text(&rig, "asked", json!({})).await).unwrap();
        if asked["cancelled"].as_array().is_some_and(|c| c.len() == 1) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{asked}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Who asked for no log gets none.
    let reply = rig.modern("tools/call", json!({"name": "log", "arguments": {}})).await;
    assert_eq!(reply.content_type(), "application/json");
    // A crash is told, and the next call finds another process.
    let answer = rig.modern("tools/call", json!({"name": "crash", "arguments": {}})).await.json().await;
    assert_eq!(answer["error"]["data"]["reason"], "child_exited");
    text(&rig, "pid", json!({})).await;
}

#[tokio::test]
async fn a_process_for_each_call_if_that_is_wanted() {
    let mut setup = setup();
    setup.process.sharing = Sharing::PerSession;
    let rig = Rig::with(&["--era", "modern"], setup).await;
    rig.until_ready().await;
    let (a, b) = (text(&rig, "pid", json!({})).await, text(&rig, "pid", json!({})).await);
    assert_ne!(a, b);
    eventually("none is left", || rig.status().processes == 0).await;
}
