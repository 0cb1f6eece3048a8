//! Many clients of one server: which of them share a process, and that nothing of one reaches another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_eras;
mod mcp_support;

use std::collections::BTreeSet;

use http::StatusCode;
use mcp_eras::{Bed, text};
use mcp_support::eventually;
use outrigger_protocol::config::Sharing;
use serde_json::{Value, json};

#[tokio::test]
async fn clients_that_declare_nothing_share_a_process_and_others_have_their_own() {
    let bed = Bed::new("legacy").await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({})).await);
    let shared = a.text("pid", json!({})).await;
    assert_eq!(b.text("pid", json!({})).await, shared);
    let mut seen = BTreeSet::from([shared]);
    for capability in ["sampling", "elicitation", "roots"] {
        let own = bed.session(json!({ capability: {} })).await;
        assert!(seen.insert(own.text("pid", json!({})).await), "{capability}");
        // Its process knows what its client declared.
        assert_eq!(own.state().await["capabilities"], json!({ capability: {} }));
    }
    assert_eq!(a.state().await["capabilities"], json!({}));
    // Another revision is another handshake.
    let old = bed.session_of("2024-11-05", json!({})).await;
    assert!(seen.insert(old.text("pid", json!({})).await));
    // One ends, the other goes on.
    assert_eq!(a.end().await, StatusCode::NO_CONTENT);
    assert_eq!(a.call("pid", json!({})).await.status, StatusCode::NOT_FOUND);
    b.text("pid", json!({})).await;
}

#[tokio::test]
async fn the_policy_of_the_server_is_kept() {
    let bed = Bed::sharing("legacy", Sharing::PerSession).await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({})).await);
    assert_ne!(a.text("pid", json!({})).await, b.text("pid", json!({})).await);

    let bed = Bed::sharing("legacy", Sharing::Shared).await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({"sampling": {}, "elicitation": {}})).await);
    assert_eq!(a.text("pid", json!({})).await, b.text("pid", json!({})).await);
    // A question of a shared process belongs to nobody: it learns so at once.
    let told: Value = serde_json::from_str(&b.text("sample", json!({})).await).unwrap();
    assert_eq!(told["error"]["code"], -32601, "{told}");
}

#[tokio::test]
async fn fifty_clients_on_one_process_get_what_is_theirs_and_nothing_else() {
    const CLIENTS: usize = 50;
    let bed = Bed::new("legacy").await;
    let sessions = futures::future::join_all((0..CLIENTS).map(|_| bed.session(json!({})))).await;
    let pids: BTreeSet<String> =
        futures::future::join_all(sessions.iter().map(|s| s.text("pid", json!({})))).await.into_iter().collect();
    assert_eq!(pids.len(), 1);
    let streams = futures::future::join_all(sessions.iter().map(|s| s.listen(None))).await;

    // All use the same ids and tokens; each watches one resource of its own and one of two groups.
    let work = sessions.iter().enumerate().map(|(i, s)| async move {
        for uri in [format!("x:{i}"), format!("group:{}", i % 2)] {
            let answer = s.request(1, "resources/subscribe", json!({ "uri": uri })).await.last().await;
            assert_eq!((&answer["id"], &answer["result"]), (&json!(1), &json!({})), "{answer}");
        }
        let params =
            json!({"name": "progress", "arguments": {"steps": i % 5 + 1, "mark": i}, "_meta": {"progressToken": 1}});
        let mut all = s.request(1, "tools/call", params).await.all().await;
        let answer = all.pop().unwrap();
        assert_eq!((answer["id"].clone(), text(&answer)), (json!(1), format!("done {i}")));
        let steps: Vec<Value> = all.iter().map(|n| n["params"].clone()).collect();
        let want: Vec<Value> =
            (1..=i % 5 + 1).map(|n| json!({"progressToken": 1, "progress": n, "total": i % 5 + 1})).collect();
        assert_eq!(steps, want, "client {i}");
    });
    futures::future::join_all(work).await;

    // Half leave the groups, in the midst of the others' updates.
    let churn = sessions.iter().enumerate().map(|(i, s)| async move {
        if i % 4 == 0 {
            s.request("u", "resources/unsubscribe", json!({"uri": format!("group:{}", i % 2)})).await.last().await;
        }
        s.text("update", json!({"uri": format!("x:{i}")})).await;
    });
    futures::future::join_all(churn).await;
    for uri in ["group:0", "group:1", "x:nobody"] {
        sessions[0].text("update", json!({ "uri": uri })).await;
    }
    sessions[0].text("changed", json!({})).await;

    for (i, mut stream) in streams.into_iter().enumerate() {
        let mut seen = Vec::new();
        loop {
            let event = stream.event().await.unwrap();
            if event["method"] == "notifications/tools/list_changed" {
                break;
            }
            assert_eq!(event["method"], "notifications/resources/updated", "client {i}: {event}");
            seen.push(event["params"]["uri"].as_str().unwrap().to_owned());
        }
        seen.sort();
        let mut want = vec![format!("x:{i}")];
        if i % 4 != 0 {
            want.insert(0, format!("group:{}", i % 2));
        }
        assert_eq!(seen, want, "client {i}");
    }
    // What somebody still watches, the server still tells of.
    assert_eq!(sessions[0].state().await["uris"].as_array().unwrap().len(), CLIENTS + 2);
    futures::future::join_all(sessions.iter().skip(1).map(mcp_eras::Session::end)).await;
    let mut left = sessions[0].state().await["uris"].clone();
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    while left != json!(["x:0"]) {
        assert!(tokio::time::Instant::now() < deadline, "{left}");
        left = sessions[0].state().await["uris"].clone();
    }
}

#[tokio::test]
async fn log_messages_of_a_shared_process_reach_only_whose_they_are() {
    let bed = Bed::new("legacy").await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({})).await);
    let mut other = b.listen(None).await;
    // The most verbose level of all is the server's.
    for (s, level, set) in [(&a, "warning", "warning"), (&b, "debug", "debug"), (&a, "error", "debug")] {
        let answer = s.request(1, "logging/setLevel", json!({ "level": level })).await.last().await;
        assert_eq!(answer["result"], json!({}), "{answer}");
        assert_eq!(a.state().await["level"], set);
    }
    // Alone in flight, it is the call's; below the level of its client it is not for it.
    let mine = a.call("log", json!({"data": "mine", "level": "error"})).await.all().await;
    assert_eq!(mine[0]["params"]["data"], "mine");
    let quiet = a.call("log", json!({"data": "quiet", "level": "info"})).await.all().await;
    assert_eq!(quiet.len(), 1, "{quiet:?}");
    // With two in flight nobody can tell whose it is.
    let held =
        a.request(7, "tools/call", json!({"name": "progress-hold", "arguments": {}, "_meta": {"progressToken": "t"}}));
    let mut held = held.await;
    assert_eq!(held.event().await.unwrap()["params"]["progressToken"], "t");
    let both = b.call("log", json!({"data": "whose?", "level": "error"})).await.all().await;
    assert_eq!(both.len(), 1, "{both:?}");
    b.text("release", json!({})).await;
    let rest = held.all().await;
    assert_eq!(rest.iter().filter(|m| m["method"] == "notifications/message").count(), 0, "{rest:?}");
    assert_eq!(text(rest.last().unwrap()), "released");
    // And the other client's stream heard nothing of it all.
    a.text("changed", json!({})).await;
    assert_eq!(other.event().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn one_changed_character_of_an_id_is_an_unknown_session() {
    let bed = Bed::new("legacy").await;
    let mut session = bed.session(json!({})).await;
    let id = session.id.clone();
    assert!(id.len() >= 32 && id.bytes().all(|b| (0x21..=0x7e).contains(&b)), "{id}");
    for at in 0..id.len() {
        let mut changed = id.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        session.id = String::from_utf8(changed).unwrap();
        assert_eq!(session.call("pid", json!({})).await.status, StatusCode::NOT_FOUND, "{at}");
    }
    // Nor does another replica know it.
    let other = Bed::new("legacy").await;
    let mut stranger = other.session(json!({})).await;
    stranger.id.clone_from(&id);
    assert_eq!(stranger.call("pid", json!({})).await.status, StatusCode::NOT_FOUND);
    session.id = id;
    session.text("pid", json!({})).await;
}

#[tokio::test]
async fn sessions_outlive_a_shared_process_and_the_next_one_is_told_what_it_was_told() {
    let bed = Bed::new("legacy").await;
    let (a, b) = (bed.session(json!({})).await, bed.session(json!({})).await);
    let mut stream = b.listen(None).await;
    b.request(1, "resources/subscribe", json!({"uri": "x:1"})).await.last().await;
    b.request(1, "logging/setLevel", json!({"level": "notice"})).await.last().await;
    let before = a.text("pid", json!({})).await;
    let held = json!({"name": "progress-hold", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut held = b.request("h", "tools/call", held).await;
    assert_eq!(held.event().await.unwrap()["params"]["progressToken"], 1);
    let answer = a.call("crash", json!({})).await.last().await;
    assert_eq!(answer["error"]["data"]["reason"], "child_exited", "{answer}");
    assert_eq!(answer["error"]["data"]["exitCode"], 3);
    let answer = held.event().await.unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("h"), &json!(-32603)), "{answer}");
    // Both go on without another handshake.
    let after = a.text("pid", json!({})).await;
    assert_ne!(before, after);
    assert_eq!(b.text("pid", json!({})).await, after);
    let state = b.state().await;
    assert_eq!(
        (&state["uris"], &state["level"], &state["initializes"]),
        (&json!(["x:1"]), &json!("notice"), &json!(1))
    );
    a.text("update", json!({"uri": "x:1"})).await;
    assert_eq!(stream.event().await.unwrap()["params"]["uri"], "x:1");
    let status = bed.rig.status();
    assert_eq!((status.crashes, status.part.ready), (1, true), "{status:?}");
}

#[tokio::test]
async fn a_shared_process_is_started_once_for_all_who_come_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let args = ["--era", "legacy", "--started", started.to_str().unwrap()];
    let bed = Bed::with(&args, Sharing::Auto).await;
    let count = || std::fs::read_to_string(&started).unwrap().lines().count();
    // Which eras the server knows is found out beside the handshake.
    eventually("the probe is over", || bed.rig.metric("outrigger_mcp_era_probes_total", &[]) >= 1.0).await;
    let sessions = futures::future::join_all((0..20).map(|_| bed.session(json!({})))).await;
    let before = count();
    assert!(before <= 4, "{before} starts: probe, handshake and the shared process");
    let _ = sessions[0].call("crash", json!({})).await.last().await;
    let pids: BTreeSet<String> =
        futures::future::join_all(sessions.iter().map(|s| s.text("pid", json!({})))).await.into_iter().collect();
    assert_eq!((pids.len(), count()), (1, before + 1));
    eventually("one process", || bed.rig.status().processes == 1).await;
}
