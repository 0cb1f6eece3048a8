//! Clients of the stateless revision (2026-07-28) in front of servers that know it: what passes, what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_eras;
mod mcp_support;

use http::StatusCode;
use mcp_eras::{Bed, MODERN, borrowed, headers_of, modern, text};
use mcp_support::eventually;
use outrigger_protocol::config::Sharing;
use serde_json::{Value, json};

#[tokio::test]
async fn requests_pass_with_their_bytes_and_the_server_is_asked_as_the_client_asks() {
    for era in ["dual", "modern"] {
        let bed = Bed::new(era).await;
        let answer = bed.modern("d", "server/discover", json!({}), json!({})).await.json().await;
        assert_eq!(answer["id"], "d", "{era}: {answer}");
        assert_eq!(answer["result"]["instructions"], "be kind");
        assert_eq!(answer["result"]["capabilities"]["x-own"], json!({"a": 1}));
        assert_eq!(answer["result"]["resultType"], "complete");
        assert!(answer["result"]["supportedVersions"].as_array().unwrap().contains(&json!(MODERN)), "{answer}");

        let params =
            json!({"name": "line", "arguments": {"n": 1}, "_meta": {"progressToken": "mine", "vendor/x": [1]}});
        let answer = bed.modern(1.5, "tools/call", params, json!({"x": {}})).await.json().await;
        assert_eq!(answer["id"], 1.5);
        assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "eras");
        let line: Value = serde_json::from_str(&text(&answer)).unwrap();
        let meta = &line["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({"x": {}}));
        assert_eq!(meta["vendor/x"], json!([1]));
        assert_eq!(meta["progressToken"], line["id"]);
        assert_eq!(line["params"]["arguments"], json!({"n": 1}));
        // One process for all, without a session.
        let reply = bed.modern(1, "tools/call", json!({"name": "pid", "arguments": {}}), json!({})).await;
        assert!(!reply.headers.contains_key("mcp-session-id"));
        let pid = text(&reply.json().await);
        assert_eq!(text(&bed.tool("pid", json!({})).await), pid);
        let state = bed.modern_state().await;
        assert_eq!((&state["era"], &state["initializes"]), (&json!("modern"), &json!(0)));
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_with_status_code_and_id() {
    let bed = Bed::new("dual").await;
    let body = modern("i", "tools/call", json!({"name": "pid", "arguments": {}}), json!({}));
    let right = headers_of(&body);
    // A header that is left out or changed, the body that goes with it; status, code.
    let with = |name: &str, value: Option<&str>| {
        let mut headers: Vec<(&'static str, String)> = right.iter().filter(|(n, _)| *n != name).cloned().collect();
        let name = right.iter().find(|(n, _)| *n == name).unwrap().0;
        headers.extend(value.map(|v| (name, v.to_owned())));
        headers
    };
    let mut no_capabilities = body.clone();
    no_capabilities["params"]["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientCapabilities");
    let mut no_revision = body.clone();
    no_revision["params"]["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/protocolVersion");
    let mut future = body.clone();
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let cases = [
        (with("mcp-protocol-version", None), &body, 400, -32020),
        (with("mcp-protocol-version", Some("2025-11-25")), &body, 400, -32020),
        (with("mcp-method", None), &body, 400, -32020),
        (with("mcp-method", Some("tools/list")), &body, 400, -32020),
        (with("mcp-method", Some("Tools/Call")), &body, 400, -32020),
        (with("mcp-name", None), &body, 400, -32020),
        (with("mcp-name", Some("line")), &body, 400, -32020),
        (with("mcp-name", Some("=?base64?bGluZQ==?=")), &body, 400, -32020),
        (with("mcp-name", Some("=?base64?cGlk?=")), &body, 200, 0),
        (with("mcp-name", Some("  pid ")), &body, 200, 0),
        (right.clone(), &no_capabilities, 400, -32602),
        (right.clone(), &no_revision, 400, -32602),
        (with("mcp-protocol-version", Some("2099-01-01")), &future, 400, -32022),
    ];
    for (headers, body, status, code) in cases {
        let reply = bed.http("POST", &borrowed(&headers), body.to_string()).await;
        assert_eq!(reply.status.as_u16(), status, "{headers:?}");
        let answer = reply.json().await;
        assert_eq!(answer["id"], "i", "{headers:?}: {answer}");
        assert_eq!(answer["error"]["code"].as_i64().unwrap_or(0), code, "{headers:?}: {answer}");
        if code == -32022 {
            assert_eq!(answer["error"]["data"]["requested"], "2099-01-01", "{answer}");
            assert!(answer["error"]["data"]["supported"].as_array().unwrap().contains(&json!(MODERN)), "{answer}");
        }
    }
    for method in ["GET", "DELETE", "PUT"] {
        let reply =
            bed.http(method, &[("mcp-protocol-version", MODERN), ("accept", "text/event-stream")], String::new());
        assert_eq!(reply.await.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
    }
    // What the revision does not have any more, and what no server has.
    for method in ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "vendor/none"] {
        let reply = bed.modern(9, method, json!({"uri": "x:1", "level": "info"}), json!({})).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{method}");
        let answer = reply.json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(9), &json!(-32601)), "{answer}");
    }
    // A capability that the client did not declare.
    let reply = bed.modern(9, "tools/call", json!({"name": "sample", "arguments": {}}), json!({})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    let answer = reply.json().await;
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
    assert_eq!(answer["error"]["data"]["requiredCapabilities"], json!({"sampling": {}}));
    // An array, a notification, and a session id that means nothing.
    let batch = bed.http("POST", &borrowed(&right), format!("[{body}]")).await;
    assert_eq!(batch.status, StatusCode::BAD_REQUEST);
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(bed.http("POST", &borrowed(&headers_of(&note)), note.to_string()).await.status, StatusCode::ACCEPTED);
    let mut stray = right.clone();
    stray.push(("mcp-session-id", "constructor".into()));
    let reply = bed.http("POST", &borrowed(&stray), body.to_string()).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert!(!reply.headers.contains_key("mcp-session-id"));
}

#[tokio::test]
async fn progress_of_clients_with_the_same_ids_and_tokens_stays_apart() {
    let bed = Bed::new("dual").await;
    let calls = (0..20).map(|i| {
        let bed = &bed;
        async move {
            let params =
                json!({"name": "progress", "arguments": {"steps": 2, "mark": i}, "_meta": {"progressToken": 1}});
            let mut all = bed.modern(1, "tools/call", params, json!({})).await.all().await;
            assert_eq!(text(&all.pop().unwrap()), format!("done {i}"));
            let tokens: Vec<&Value> = all.iter().map(|n| &n["params"]["progressToken"]).collect();
            assert_eq!(tokens, [&json!(1), &json!(1)]);
        }
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_request() {
    let bed = Bed::new("dual").await;
    let params = json!({"name": "progress-hold", "arguments": {}, "_meta": {"progressToken": "t"}});
    let mut reply = bed.modern(1, "tools/call", params, json!({})).await;
    assert_eq!(reply.headers["x-accel-buffering"], "no");
    // No ids: nothing of this revision is taken up again.
    let first = reply.raw_event().await.unwrap();
    assert_eq!((first.id, &first.data["params"]["progressToken"]), (None, &json!("t")));
    drop(reply);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        let cancelled = bed.modern_state().await["cancelled"].as_array().unwrap().len();
        if cancelled == 1 {
            break;
        }
        assert!(cancelled == 0 && tokio::time::Instant::now() < deadline);
    }
    // What the server says late is dropped.
    bed.tool("release", json!({})).await;
    eventually("dropped", || bed.rig.metric("outrigger_mcp_dropped_messages_total", &[]) >= 1.0).await;
}

#[tokio::test]
async fn subscriptions_carry_the_id_of_their_client() {
    let bed = Bed::new("dual").await;
    let wanted = |uri: &str| json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": [uri]}});
    let mut a = bed.modern(1, "subscriptions/listen", wanted("x:a"), json!({})).await;
    let mut b = bed.modern("1", "subscriptions/listen", wanted("x:b"), json!({})).await;
    for (stream, id, uri) in [(&mut a, json!(1), "x:a"), (&mut b, json!("1"), "x:b")] {
        let ack = stream.event().await.unwrap();
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
        assert_eq!(ack["params"]["notifications"]["resourceSubscriptions"], json!([uri]));
    }
    bed.tool("update", json!({"uri": "x:b"})).await;
    bed.tool("changed", json!({})).await;
    let event = b.event().await.unwrap();
    assert_eq!(event["params"], json!({"uri": "x:b", "_meta": {"io.modelcontextprotocol/subscriptionId": "1"}}));
    for (stream, id) in [(&mut a, json!(1)), (&mut b, json!("1"))] {
        let event = stream.event().await.unwrap();
        assert_eq!(event["method"], "notifications/tools/list_changed");
        assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
    }
    drop(a);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    while bed.modern_state().await["cancelled"].as_array().unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the server was not told that a client left");
    }
}

#[tokio::test]
async fn input_requests_and_retries_of_a_modern_server_pass() {
    let bed = Bed::new("dual").await;
    let params = json!({"name": "elicit", "arguments": {}});
    let answer = bed.modern(1, "tools/call", params.clone(), json!({"elicitation": {}})).await.last().await;
    assert_eq!(answer["result"]["resultType"], "input_required", "{answer}");
    assert_eq!(answer["result"]["inputRequests"]["who"]["method"], "elicitation/create");
    let mut retry = params;
    retry["requestState"] = answer["result"]["requestState"].clone();
    retry["inputResponses"] = json!({"who": {"action": "accept", "content": {"name": "me"}}});
    let answer = bed.modern(2, "tools/call", retry, json!({"elicitation": {}})).await.last().await;
    let told: Value = serde_json::from_str(&text(&answer)).unwrap();
    assert_eq!(told["answer"]["content"]["name"], "me");
    assert_eq!(told["state"], "state-of-who");
}

#[tokio::test]
async fn a_server_of_both_eras_is_used_in_that_of_each_client() {
    let bed = Bed::new("dual").await;
    assert_eq!(bed.modern_state().await["era"], "modern");
    let session = bed.session(json!({})).await;
    let state = session.state().await;
    assert_eq!((&state["era"], &state["initializes"]), (&json!("legacy"), &json!(1)));
    assert_eq!(bed.modern_state().await["era"], "modern");
}

#[tokio::test]
async fn a_server_that_ends_on_anything_but_a_handshake_is_none_the_worse() {
    let bed = Bed::with(&["--era", "legacy", "--fragile"], Sharing::Auto).await;
    let status = bed.rig.status();
    assert_eq!((status.crashes, status.part.ready), (0, true), "{status:?}");
    let session = bed.session(json!({})).await;
    session.text("pid", json!({})).await;
}
