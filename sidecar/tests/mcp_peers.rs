//! What other proxies lose or mix up, one test a row; the rest of these rows are in `mcp_chaos.rs` and `mcp_protocol.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use http::StatusCode;
use mcp_support::{Reply, Rig, call, eventually, init};
use serde_json::{Value, json};

/// A call that reports its progress under this token.
fn with_progress(id: u32, token: &Value, steps: u32) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
           "params": {"name": "progress", "arguments": {"steps": steps}, "_meta": {"progressToken": token}}})
    .to_string()
}

/// All events of a stream of progress: tokens, and the id of the response.
async fn progress(mut reply: Reply) -> (Vec<Value>, Value) {
    let mut tokens = Vec::new();
    while let Some(event) = reply.event().await {
        if event["method"] == "notifications/progress" {
            tokens.push(event["params"]["progressToken"].clone());
        } else {
            return (tokens, event["id"].clone());
        }
    }
    panic!("the stream ended without a response");
}

#[tokio::test]
async fn unknown_members_of_lists_and_capabilities_are_kept() {
    let rig = Rig::ready(&[]).await;
    let hello = rig.post(None, init(1)).await.last().await;
    assert_eq!(hello["result"]["capabilities"]["x-own"], json!({}), "{hello}");
    assert_eq!(hello["result"]["serverInfo"]["x"], 1, "{hello}");
    let session = rig.session().await;
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let text = rig.post(Some(&session), list).await.bytes().await;
    let text = std::str::from_utf8(&text).unwrap();
    // The number is beyond what a double holds.
    assert!(text.contains(r#""x-own": {"n": 12345678901234567890}"#), "{}", &text[..text.len().min(400)]);
    assert!(text.contains(r#""x-list": null"#), "{}", &text[..text.len().min(400)]);
}

#[tokio::test]
async fn a_stuck_call_does_not_take_the_progress_of_another() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let stuck = {
        let mut stuck = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                               "params": {"name": "hang-aloud", "arguments": {}}});
        stuck["params"]["_meta"] = json!({"progressToken": "stuck"});
        rig.post(Some(&session), stuck.to_string()).await
    };
    // It is under way: this came from it.
    assert_eq!(stuck.content_type(), "text/event-stream");
    let (tokens, id) = progress(rig.post(Some(&session), with_progress(2, &json!("mine"), 5)).await).await;
    assert_eq!((tokens, id), (vec![json!("mine"); 5], json!(2)));
}

#[tokio::test]
async fn the_same_token_in_two_sessions_or_twice_in_one_stays_apart() {
    let rig = Rig::ready(&[]).await;
    let (a, b) = (rig.session().await, rig.session().await);
    let (rig, token) = (&rig, &json!(1));
    let calls = [(&a, 3), (&b, 5), (&a, 7)];
    let streams = calls.map(|(session, steps)| async move {
        progress(rig.post(Some(session), with_progress(1, token, steps)).await).await
    });
    for ((_, steps), (tokens, id)) in calls.iter().zip(futures::future::join_all(streams).await) {
        assert_eq!((tokens, id), (vec![token.clone(); *steps as usize], json!(1)));
    }
}

#[tokio::test]
async fn after_a_crash_new_sessions_work_for_good() {
    let rig = Rig::ready(&[]).await;
    for round in 1..=3 {
        let session = rig.session().await;
        let answer = rig.call(&session, "crash", json!({"code": 1})).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(rig.post(Some(&session), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
        eventually("it is counted", || rig.status().crashes == round).await;
        let next = rig.session().await;
        rig.pid(&next).await;
    }
}

#[tokio::test]
async fn a_large_request_is_no_reason_to_refuse() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    // Limits of others: 100 KB, 4 MB, 10 MB.
    for size in [101_000, 4_100_000, 10_100_000] {
        let line = rig.text(&session, "line", json!({"x": "y".repeat(size)})).await;
        assert!(line.len() > size, "{size}");
    }
}
