//! Streams of sessions that are taken up again where they were cut, and batches (2025-03-26 to 2025-11-25, transports).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_eras;
mod mcp_support;

use http::StatusCode;
use mcp_eras::{Bed, text};
use serde_json::{Value, json};

fn hold(token: &str) -> Value {
    json!({"name": "progress-hold", "arguments": {}, "_meta": {"progressToken": token}})
}

#[tokio::test]
async fn a_response_that_was_cut_goes_on_after_the_last_event() {
    let bed = Bed::new("legacy").await;
    for capabilities in [json!({}), json!({"roots": {}})] {
        let session = bed.session(capabilities).await;
        let mut reply = session.request("c", "tools/call", hold("mine")).await;
        // The first event tells where to begin and carries nothing.
        let first = reply.raw_event().await.unwrap();
        assert_eq!(first.data, Value::Null);
        let priming = first.id.unwrap();
        let second = reply.raw_event().await.unwrap();
        assert_eq!(second.data["params"], json!({"progressToken": "mine", "progress": 1, "total": 3}));
        let seen = second.id.unwrap();
        assert_ne!(priming, seen);
        drop(reply);
        // A client that goes away cancels nothing: the call goes on and its response is kept.
        session.text("release", json!({})).await;
        let state = session.state().await;
        assert_eq!(state["cancelled"], json!([]), "{state}");
        let mut again = session.listen(Some(&seen)).await;
        let progress = again.event().await.unwrap();
        assert_eq!(progress["params"], json!({"progressToken": "mine", "progress": 2, "total": 3}));
        let answer = again.event().await.unwrap();
        assert_eq!((&answer["id"], text(&answer).as_str()), (&json!("c"), "released"));
        assert_eq!(again.raw_event().await, None);
        // From its very beginning, with what was read already.
        let all = session.listen(Some(&priming)).await.all().await;
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(all[0]["params"]["progress"], 1);
        assert_eq!(all[2]["id"], "c");
        session.end().await;
    }
}

#[tokio::test]
async fn the_stream_of_a_session_goes_on_after_the_last_event() {
    let bed = Bed::new("legacy").await;
    let session = bed.session(json!({})).await;
    for uri in ["x:1", "x:2", "x:3"] {
        session.request(1, "resources/subscribe", json!({ "uri": uri })).await.last().await;
    }
    let mut stream = session.listen(None).await;
    let mut last = String::new();
    session.text("update", json!({"uri": "x:1"})).await;
    while let Some(event) = stream.raw_event().await {
        last.clone_from(event.id.as_ref().unwrap());
        if event.data["params"]["uri"] == "x:1" {
            break;
        }
    }
    session.text("update", json!({"uri": "x:2"})).await;
    drop(stream);
    session.text("update", json!({"uri": "x:3"})).await;
    let mut stream = session.listen(Some(&last)).await;
    for uri in ["x:2", "x:3"] {
        assert_eq!(stream.event().await.unwrap()["params"]["uri"], uri);
    }
    // Another session can't read it.
    let other = bed.session(json!({})).await;
    let mut stranger = other.listen(Some(&last)).await;
    other.text("changed", json!({})).await;
    assert_eq!(stranger.event().await.unwrap()["method"], "notifications/tools/list_changed");
    // Ids that nobody gave are no fault: the stream begins with what comes.
    let mut stream = session.listen(Some("nonsense")).await;
    session.text("changed", json!({})).await;
    assert_eq!(stream.event().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn older_clients_get_no_event_without_data() {
    let bed = Bed::new("legacy").await;
    let session = bed.session_of("2025-06-18", json!({})).await;
    let mut reply = session.request(1, "tools/call", hold("t")).await;
    let first = reply.raw_event().await.unwrap();
    assert_eq!(first.data["method"], "notifications/progress");
    let seen = first.id.unwrap();
    drop(reply);
    session.text("release", json!({})).await;
    let rest = session.listen(Some(&seen)).await.all().await;
    assert_eq!(rest.len(), 2, "{rest:?}");
}

#[tokio::test]
async fn batches_are_for_the_one_revision_that_has_them() {
    let bed = Bed::new("legacy").await;
    let call = |id: &str, mark: u32| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
               "params": {"name": "progress", "arguments": {"steps": 0, "mark": mark}}})
    };
    let batch = json!([
        call("a", 1),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "none"}},
        call("b", 2),
    ]);
    let session = bed.session_of("2025-03-26", json!({})).await;
    let reply = session.post(batch.clone()).await;
    assert_eq!(reply.status, StatusCode::OK);
    // One array, or each response as an event.
    let mut answers: Vec<Value> = Vec::new();
    for part in reply.all().await {
        match part {
            Value::Array(all) => answers.extend(all),
            one => answers.push(one),
        }
    }
    answers.sort_by_key(|a| a["id"].to_string());
    assert_eq!(
        answers.iter().map(|a| (a["id"].clone(), text(a))).collect::<Vec<_>>(),
        [(json!("a"), "done 1".to_owned()), (json!("b"), "done 2".to_owned())]
    );
    let only = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(session.post(only).await.status, StatusCode::ACCEPTED);
    for bad in [json!([]), json!([1]), json!([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}])] {
        assert_eq!(session.post(bad.clone()).await.status, StatusCode::BAD_REQUEST, "{bad}");
    }
    for revision in ["2025-06-18", "2025-11-25"] {
        let session = bed.session_of(revision, json!({})).await;
        let reply = session.post(batch.clone()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        let body = reply.json().await;
        assert_eq!(body["error"]["code"], -32600, "{body}");
    }
}
