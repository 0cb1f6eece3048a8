//! Clients of one era in front of servers of the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_eras;
mod mcp_support;

use http::StatusCode;
use mcp_eras::{Bed, MODERN, text};
use serde_json::{Value, json};

fn call(name: &str) -> Value {
    json!({"name": name, "arguments": {}})
}

#[tokio::test]
async fn a_modern_client_sees_a_legacy_server_as_a_modern_one() {
    let bed = Bed::new("legacy").await;
    let answer = bed.modern("d", "server/discover", json!({}), json!({})).await.json().await;
    let result = &answer["result"];
    assert_eq!((&answer["id"], &result["resultType"]), (&json!("d"), &json!("complete")), "{answer}");
    assert!(result["supportedVersions"].as_array().unwrap().contains(&json!(MODERN)), "{answer}");
    assert_eq!((&result["instructions"], &result["capabilities"]["x-own"]), (&json!("be kind"), &json!({"a": 1})));
    assert_eq!(result["cacheScope"], "private");
    assert!(result["ttlMs"].as_u64().is_some(), "{answer}");

    let answer = bed.modern(1, "tools/list", json!({}), json!({})).await.json().await;
    let result = &answer["result"];
    assert_eq!(result["tools"].as_array().unwrap().len(), 3, "{answer}");
    assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("private")));
    assert!(result["ttlMs"].as_u64().is_some(), "{answer}");

    let params = json!({"name": "line", "arguments": {"n": 1}, "_meta": {"progressToken": "t", "vendor/x": 1}});
    let answer = bed.modern(1, "tools/call", params, json!({})).await.json().await;
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "eras");
    let line: Value = serde_json::from_str(&text(&answer)).unwrap();
    // Only what a legacy server knows reaches it, and the trace.
    let mut meta = line["params"]["_meta"].clone();
    let trace = meta.as_object_mut().unwrap().remove("traceparent");
    assert!(trace.as_ref().and_then(Value::as_str).is_some_and(|t| t.len() == 55), "{line}");
    assert_eq!(meta, json!({"progressToken": line["id"], "vendor/x": 1}));

    // A resource that is not there, and methods of the other era.
    let answer = bed.modern(1, "resources/read", json!({"uri": "x:none"}), json!({})).await.json().await;
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["uri"]),
        (&json!(-32602), &json!("x:none")),
        "{answer}"
    );
    for method in ["ping", "logging/setLevel", "resources/subscribe", "vendor/none"] {
        let reply = bed.modern(1, method, json!({"uri": "x:1", "level": "info"}), json!({})).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{method}");
        assert_eq!(reply.json().await["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn questions_of_a_legacy_server_become_input_requests() {
    let bed = Bed::new("legacy").await;
    let capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    for (tool, method, response) in [
        ("elicit", "elicitation/create", json!({"action": "accept", "content": {"name": "me"}})),
        (
            "sample",
            "sampling/createMessage",
            json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}),
        ),
        ("roots", "roots/list", json!({"roots": []})),
    ] {
        let answer = bed.modern(1, "tools/call", call(tool), capabilities.clone()).await.last().await;
        let result = &answer["result"];
        assert_eq!((&answer["id"], &result["resultType"]), (&json!(1), &json!("input_required")), "{tool}: {answer}");
        let requests = result["inputRequests"].as_object().unwrap();
        assert_eq!(requests.len(), 1, "{answer}");
        let (key, request) = requests.iter().next().unwrap();
        assert_eq!(request["method"], method);
        let state = result["requestState"].as_str().unwrap();

        // Another call, or a state that nobody gave, is refused; the call still waits.
        for (name, state) in [(tool, format!("{state}A")), ("pid", state.to_owned())] {
            let mut retry = call(name);
            retry["requestState"] = state.into();
            retry["inputResponses"] = json!({ key: response });
            let answer = bed.modern(2, "tools/call", retry, capabilities.clone()).await.last().await;
            assert!(answer["error"]["code"].is_i64(), "{answer}");
        }
        let mut retry = call(tool);
        retry["requestState"] = state.into();
        retry["inputResponses"] = json!({ key: response });
        let answer = bed.modern("r", "tools/call", retry.clone(), capabilities.clone()).await.last().await;
        assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!("r"), &json!("complete")), "{answer}");
        let told: Value = serde_json::from_str(&text(&answer)).unwrap();
        assert_eq!(told["answer"], response, "{tool}");
        // It is used up.
        let answer = bed.modern(3, "tools/call", retry, capabilities.clone()).await.last().await;
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    // A client that declared nothing is not asked.
    let answer = bed.modern(1, "tools/call", call("elicit"), json!({})).await.last().await;
    let told: Value = serde_json::from_str(&text(&answer)).unwrap();
    assert_eq!(told["error"]["code"], -32601, "{told}");
}

#[tokio::test]
async fn a_url_to_visit_becomes_an_input_request() {
    let bed = Bed::new("legacy").await;
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    let answer = bed.modern(1, "tools/call", call("visit"), capabilities.clone()).await.last().await;
    assert_eq!(answer["result"]["resultType"], "input_required", "{answer}");
    let (key, request) = answer["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!((&request["method"], &request["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
    assert_eq!(request["params"]["url"], "https://example.com/consent");
    assert!(request["params"].get("elicitationId").is_none(), "{request}");
    let state = &answer["result"]["requestState"];
    // The call is sent again, without the answer, which a legacy server could not read.
    let retry = json!({"name": "visit", "arguments": {}, "requestState": state,
                       "inputResponses": {key.as_str(): {"action": "accept"}}});
    let answer = bed.modern(2, "tools/call", retry, capabilities).await.last().await;
    assert_eq!(answer["result"]["resultType"], "input_required", "it was not visited: {answer}");
}

#[tokio::test]
async fn subscriptions_in_front_of_a_legacy_server() {
    let bed = Bed::new("legacy").await;
    let wanted = |uri: &str| json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": [uri]}});
    let mut a = bed.modern(1, "subscriptions/listen", wanted("x:a"), json!({})).await;
    let mut b = bed.modern("1", "subscriptions/listen", wanted("x:b"), json!({})).await;
    for (stream, id, uri) in [(&mut a, json!(1), "x:a"), (&mut b, json!("1"), "x:b")] {
        let ack = stream.event().await.unwrap();
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged", "{ack}");
        assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
        let granted = &ack["params"]["notifications"];
        assert_eq!((&granted["toolsListChanged"], &granted["resourceSubscriptions"]), (&json!(true), &json!([uri])));
        // The server has no prompts.
        assert_ne!(granted["promptsListChanged"], true, "{ack}");
    }
    for uri in ["x:a", "x:b", "x:c"] {
        bed.tool("update", json!({ "uri": uri })).await;
    }
    bed.tool("changed", json!({})).await;
    for (stream, id, uri) in [(&mut a, json!(1), "x:a"), (&mut b, json!("1"), "x:b")] {
        let event = stream.event().await.unwrap();
        assert_eq!(
            (&event["params"]["uri"], &event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]),
            (&json!(uri), &id)
        );
        let event = stream.event().await.unwrap();
        assert_eq!(event["method"], "notifications/tools/list_changed");
        assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
    }
    // The server forgets what nobody wants any more.
    drop((a, b));
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    while bed.modern_state().await["uris"] != json!([]) {
        assert!(tokio::time::Instant::now() < deadline, "{}", bed.modern_state().await);
    }
}

#[tokio::test]
async fn log_messages_are_for_those_who_ask_for_them() {
    let bed = Bed::new("legacy").await;
    let mut params = json!({"name": "log", "arguments": {"data": "d", "level": "info"}});
    let all = bed.modern(1, "tools/call", params.clone(), json!({})).await.all().await;
    assert_eq!(all.len(), 1, "{all:?}");
    params["_meta"] = json!({"io.modelcontextprotocol/logLevel": "info"});
    let all = bed.modern(1, "tools/call", params, json!({})).await.all().await;
    assert_eq!((all.len(), &all[0]["params"]["data"]), (2, &json!("d")), "{all:?}");
    assert_eq!(bed.modern_state().await["level"], "info");
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_call_of_a_legacy_server() {
    let bed = Bed::new("legacy").await;
    let params = json!({"name": "progress-hold", "arguments": {}, "_meta": {"progressToken": "t"}});
    let mut reply = bed.modern(1, "tools/call", params, json!({})).await;
    assert_eq!(reply.event().await.unwrap()["params"]["progressToken"], "t");
    drop(reply);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    while bed.modern_state().await["cancelled"].as_array().unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the server was not told");
    }
}

#[tokio::test]
async fn a_legacy_client_sees_a_modern_server_as_a_legacy_one() {
    let bed = Bed::new("modern").await;
    // The handshake is the sidecar's; this checks the revision and the server's name.
    let session = bed.session(json!({})).await;
    let answer = session.request(2, "tools/list", json!({})).await.last().await;
    assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), 3, "{answer}");
    let line: Value = serde_json::from_str(&session.text("line", json!({"n": 1})).await).unwrap();
    let meta = &line["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], MODERN, "{line}");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "test");
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
    // What only this era has is answered in front.
    let answer = session.request("p", "ping", json!({})).await.last().await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!("p"), &json!({})));
    let answer = session.request(1, "logging/setLevel", json!({"level": "notice"})).await.last().await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(session.state().await["level"], "notice");
    let answer = session.request(1, "logging/setLevel", json!({"level": "loud"})).await.last().await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    // Errors of the other era are none of this one.
    let answer = session.call("sample", json!({})).await.last().await;
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["outrigger.dev/original"]["code"]),
        (&json!(-32603), &json!(-32021)),
        "{answer}"
    );
}

#[tokio::test]
async fn input_requests_of_a_modern_server_become_questions() {
    let bed = Bed::new("modern").await;
    let session = bed.session(json!({"elicitation": {}, "sampling": {}})).await;
    let mut reply = session.call("elicit", json!({})).await;
    let question = reply.event().await.unwrap();
    assert_eq!((&question["method"], &question["params"]["message"]), (&json!("elicitation/create"), &json!("who?")));
    let response = json!({"action": "accept", "content": {"name": "me"}});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": response});
    assert_eq!(session.post(answer).await.status, StatusCode::ACCEPTED);
    let answer = reply.event().await.unwrap();
    assert_eq!(answer["id"], 1, "{answer}");
    let told: Value = serde_json::from_str(&text(&answer)).unwrap();
    assert_eq!((&told["answer"], &told["state"]), (&response, &json!("state-of-who")));
    assert_eq!(reply.event().await, None);
}

#[tokio::test]
async fn a_legacy_client_watches_resources_of_a_modern_server() {
    let bed = Bed::new("modern").await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({})).await);
    let (mut a_stream, mut b_stream) = (a.listen(None).await, b.listen(None).await);
    for (s, uri) in [(&a, "x:a"), (&b, "x:b")] {
        let answer = s.request(1, "resources/subscribe", json!({ "uri": uri })).await.last().await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    for uri in ["x:a", "x:b", "x:c"] {
        a.text("update", json!({ "uri": uri })).await;
    }
    for (stream, uri) in [(&mut a_stream, "x:a"), (&mut b_stream, "x:b")] {
        let event = stream.event().await.unwrap();
        assert_eq!(
            (&event["method"], &event["params"]["uri"]),
            (&json!("notifications/resources/updated"), &json!(uri))
        );
    }
    a.text("changed", json!({})).await;
    for stream in [&mut a_stream, &mut b_stream] {
        assert_eq!(stream.event().await.unwrap()["method"], "notifications/tools/list_changed");
    }
    // Nothing of a client's is left when it ends.
    a.request(1, "resources/unsubscribe", json!({"uri": "x:a"})).await.last().await;
    a.text("update", json!({"uri": "x:a"})).await;
    a.text("changed", json!({})).await;
    assert_eq!(a_stream.event().await.unwrap()["method"], "notifications/tools/list_changed");
}
