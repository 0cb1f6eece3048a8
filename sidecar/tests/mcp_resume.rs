//! Streams that are cut and taken up again, and batches: what some handshake revisions have and others do not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use http::StatusCode;
use mcp_support::{Reply, Rig, call, initialize};
use serde_json::{Value, json};

fn progress(id: u32, steps: u32, pause: f64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
        "name": "progress", "arguments": {"steps": steps, "pause": pause}, "_meta": {"progressToken": id}}})
    .to_string()
}

async fn resume(rig: &Rig, session: &str, last: &str) -> Reply {
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", session), ("last-event-id", last)];
    rig.http("GET", &headers, "").await
}

#[tokio::test]
async fn a_response_that_is_cut_is_taken_up_where_it_was() {
    let rig = Rig::ready(&[]).await;
    let session = rig.open(&initialize("2025-11-25", json!({}))).await;
    let mut reply = rig.post(Some(&session), progress(1, 6, 0.1)).await;
    let first = reply.raw_event().await.unwrap();
    // An id without data comes first, so that there is one to go back to.
    assert_eq!((first.id.as_deref(), first.raw.as_deref()), (Some("1-0"), Some("")));
    let first = reply.raw_event().await.unwrap();
    assert_eq!((first.id.as_deref(), &first.data["params"]["progress"]), (Some("1-1"), &json!(1)));
    drop(reply);
    // The call goes on: leaving is not cancelling.
    let mut again = resume(&rig, &session, "1-1").await;
    assert_eq!(again.status, StatusCode::OK);
    for step in 2..=6 {
        assert_eq!(again.event().await.unwrap()["params"]["progress"], step);
    }
    let last = again.event().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(1), &json!("done")));
    assert_eq!(again.event().await, None);
    // From the beginning, and from the end, once more.
    let mut again = resume(&rig, &session, "1-0").await;
    assert_eq!(again.event().await.unwrap()["params"]["progress"], 1);
    let mut again = resume(&rig, &session, "1-6").await;
    assert_eq!(again.event().await.unwrap()["id"], 1);
    assert!(rig.metric("outrigger_mcp_streams_resumed_total", &[]) > 2.5);
    // Another session has no such stream: it gets its own.
    let other = rig.open(&initialize("2025-11-25", json!({}))).await;
    let mut stream = resume(&rig, &other, "1-0").await;
    rig.text(&other, "changed", json!({})).await;
    assert_eq!(stream.event().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn the_stream_of_a_session_is_taken_up_too() {
    let rig = Rig::ready(&[]).await;
    let session = rig.open(&initialize("2025-11-25", json!({}))).await;
    let mut stream = rig.listen(&session).await;
    assert_eq!(stream.raw_event().await.unwrap().id.as_deref(), Some("0-0"));
    for _ in 0..3 {
        rig.text(&session, "changed", json!({})).await;
    }
    for place in 1..=3 {
        assert_eq!(stream.raw_event().await.unwrap().id, Some(format!("0-{place}")));
    }
    drop(stream);
    let mut again = resume(&rig, &session, "0-1").await;
    again.raw_event().await.unwrap();
    for place in 2..=3 {
        assert_eq!(again.raw_event().await.unwrap().id, Some(format!("0-{place}")));
    }
}

#[tokio::test]
async fn older_clients_get_no_event_without_data_and_the_oldest_no_ids() {
    let rig = Rig::ready(&[]).await;
    for (revision, id) in [("2025-06-18", Some("1-1")), ("2025-03-26", Some("1-1")), ("2024-11-05", None)] {
        let session = rig.open(&initialize(revision, json!({}))).await;
        let mut reply = rig.post(Some(&session), progress(1, 1, 0.0)).await;
        let got = reply.raw_event().await.unwrap();
        assert_eq!(got.id.as_deref(), id, "{revision}");
        assert!(got.raw.as_ref().is_some_and(|data| data.contains("progress")), "{revision}: {got:?}");
    }
}

#[tokio::test]
async fn the_revision_that_has_batches_gets_them_and_no_other() {
    let rig = Rig::ready(&[]).await;
    let session = rig.open(&initialize("2025-03-26", json!({}))).await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let batch = format!("[{}, {note},\n{}]", call("a", "line", json!({"n": 1})), call(2, "error", json!({})));
    let reply = rig.post(Some(&session), batch.clone()).await;
    assert_eq!(reply.status, StatusCode::OK);
    let answers = reply.json().await;
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 2);
    let by_id = |id: Value| answers.iter().find(|a| a["id"] == id).unwrap();
    assert!(by_id(json!("a"))["result"]["content"][0]["text"].as_str().unwrap().contains("\"n\":1"));
    assert_eq!(by_id(json!(2))["error"]["code"], -32002);
    assert_eq!(rig.post(Some(&session), format!("[{note},{note}]")).await.status, StatusCode::ACCEPTED);
    let many = format!("[{}]", vec![note; 65].join(","));
    for (body, why) in [
        ("[]".to_owned(), "between 1 and 64"),
        (many, "between 1 and 64"),
        (format!("[{}]", initialize("2025-03-26", json!({}))), "alone"),
        ("[1]".into(), "object"),
        ("[[]]".into(), "batch"),
    ] {
        let reply = rig.post(Some(&session), body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        let error = reply.json().await;
        assert!(error["error"]["message"].as_str().unwrap().contains(why), "{error}");
    }
    let other = rig.open(&initialize("2025-06-18", json!({}))).await;
    let reply = rig.post(Some(&other), batch).await;
    assert_eq!((reply.status, reply.json().await["error"]["code"].clone()), (StatusCode::BAD_REQUEST, json!(-32600)));
}
