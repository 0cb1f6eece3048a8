//! Many clients of one process: nothing of one reaches another, and the process may be replaced under them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::time::Duration;

use http::StatusCode;
use mcp_support::{Reply, Rig, Setup, alive, call, eventually, init, initialize};
use outrigger_protocol::config::{Process, Sharing};
use outrigger_sidecar::mcp::timing::Timing;
use serde_json::{Value, json};

const SESSIONS: usize = 50;

fn sharing(sharing: Sharing) -> Setup {
    let ms = Duration::from_millis;
    let timing = Timing { grace: ms(200), probe_grace: ms(200), restart: (ms(10), ms(50)), ..Timing::default() };
    Setup { process: Process { sharing, ..Process::default() }, timing, ..Setup::default() }
}

async fn shared() -> Rig {
    let rig = Rig::with(&[], sharing(Sharing::Auto)).await;
    rig.until_ready().await;
    rig
}

/// A session of a client that declares nothing.
async fn plain(rig: &Rig) -> String {
    rig.open(&initialize("2025-11-25", json!({}))).await
}

async fn state(rig: &Rig, session: &str) -> Value {
    serde_json::from_str(&rig.text(session, "state", json!({})).await).unwrap()
}

async fn ask(rig: &Rig, session: &str, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params});
    rig.post(Some(session), body.to_string()).await.last().await
}

#[tokio::test]
async fn fifty_sessions_with_the_same_ids_and_tokens_leak_nothing() {
    let rig = shared().await;
    let sessions = futures::future::join_all((0..SESSIONS).map(|_| plain(&rig))).await;
    let mut streams: Vec<Reply> = futures::future::join_all(sessions.iter().map(|s| rig.listen(s))).await;
    // Interleaved: each watches one of its own, one with its neighbour, and one with everybody.
    for (i, session) in sessions.iter().enumerate() {
        for uri in [format!("own://{i}"), format!("pair://{}", i / 2), "all://".into()] {
            assert_eq!(ask(&rig, session, "resources/subscribe", json!({"uri": uri})).await["result"], json!({}));
        }
    }
    let calls = sessions
        .iter()
        .enumerate()
        .flat_map(|(i, session)| (0..4).map(move |round| (format!("m{i}-{round}m"), session)));
    let calls = calls.map(async |(mark, session)| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "marked-progress", "arguments": {"mark": mark, "steps": 3}, "_meta": {"progressToken": 1}}});
        let mut reply = rig.post(Some(session), body.to_string()).await;
        for step in 1..=3 {
            let event = reply.event().await.unwrap();
            assert_eq!(event["params"], json!({"progressToken": 1, "progress": step, "message": mark}));
        }
        let last = reply.event().await.unwrap();
        assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(1), &json!(mark)));
        assert_eq!(reply.event().await, None);
    });
    futures::future::join_all(calls).await;
    // Each change is made by somebody who does not watch it.
    for i in 0..SESSIONS {
        let other = &sessions[(i + 7) % SESSIONS];
        rig.text(other, "touch", json!({"uri": format!("own://{i}")})).await;
        rig.text(other, "touch", json!({"uri": format!("pair://{}", i / 2)})).await;
    }
    rig.text(&sessions[0], "touch", json!({"uri": "nobody://"})).await;
    rig.text(&sessions[0], "touch", json!({"uri": "all://"})).await;
    rig.text(&sessions[1], "changed", json!({})).await;
    for (i, stream) in streams.iter_mut().enumerate() {
        let mut seen = Vec::new();
        loop {
            let event = stream.event().await.unwrap();
            match event["method"].as_str().unwrap() {
                "notifications/resources/updated" => seen.push(event["params"]["uri"].as_str().unwrap().to_owned()),
                "notifications/tools/list_changed" => break,
                other => panic!("session {i} got {other}"),
            }
        }
        seen.sort();
        assert_eq!(
            seen,
            ["all://".to_owned(), format!("own://{i}"), format!("pair://{}", i / 2), format!("pair://{}", i / 2)]
        );
    }
    // All of this was one process, which is told what the first watcher says and what the last one takes back.
    assert_eq!(rig.status().processes, 1);
    let before = state(&rig, &sessions[0]).await["watched"].as_array().unwrap().len();
    assert_eq!(before, SESSIONS + SESSIONS / 2 + 1);
    assert_eq!(ask(&rig, &sessions[0], "resources/unsubscribe", json!({"uri": "pair://0"})).await["result"], json!({}));
    rig.http("DELETE", &[("mcp-session-id", &sessions[2])], "").await;
    let session = &sessions[4];
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        let watched = state(&rig, session).await["watched"].clone();
        let watched: Vec<&str> = watched.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert!(watched.contains(&"pair://0") && watched.contains(&"pair://1") && watched.contains(&"all://"));
        if !watched.contains(&"own://2") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{watched:?}");
    }
}

#[tokio::test]
async fn a_session_id_with_one_byte_changed_or_of_another_replica_is_unknown() {
    let (rig, other) = (shared().await, shared().await);
    let session = plain(&rig).await;
    rig.pid(&session).await;
    for at in 0..session.len() {
        let mut changed = session.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let reply = rig.post(Some(&changed), call(1, "pid", json!({}))).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{changed}");
    }
    assert_eq!(other.post(Some(&session), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    rig.pid(&session).await;
}

#[tokio::test]
async fn who_declares_nothing_shares_and_who_can_be_asked_does_not() {
    let rig = shared().await;
    assert_eq!(rig.status().processes, 1, "one is there before anybody comes");
    let (a, b) = (plain(&rig).await, plain(&rig).await);
    let pid = rig.pid(&a).await;
    assert_eq!(rig.pid(&b).await, pid);
    let asked = rig.open(&init(1)).await;
    let own = rig.pid(&asked).await;
    assert_ne!(own, pid);
    for (of, count) in [("shared", "1"), ("session", "1")] {
        assert_eq!(rig.metric("outrigger_mcp_child_uses", &[("use", of)]).to_string(), count, "{of}");
    }
    // Another revision and another capability are told to another process.
    let older = rig.open(&initialize("2025-06-18", json!({}))).await;
    let vendor = rig.open(&initialize("2025-11-25", json!({"experimental": {"x": {}}}))).await;
    let pids = [pid, own, rig.pid(&older).await, rig.pid(&vendor).await];
    assert!(pids.iter().enumerate().all(|(i, p)| !pids[..i].contains(p)), "{pids:?}");
    assert_eq!(state(&rig, &vendor).await["initialize"]["capabilities"], json!({"experimental": {"x": {}}}));
    assert_eq!(state(&rig, &older).await["initialize"]["protocolVersion"], "2025-06-18");
    // The process of one session ends with it, the shared one does not.
    for session in [&asked, &a, &b] {
        rig.http("DELETE", &[("mcp-session-id", session)], "").await;
    }
    eventually("its process is gone", || !alive(own)).await;
    assert!(alive(pid));
    assert_eq!(rig.pid(&plain(&rig).await).await, pid);
}

#[tokio::test]
async fn all_may_have_to_share_and_then_nobody_is_asked() {
    let rig = Rig::with(&[], sharing(Sharing::Shared)).await;
    rig.until_ready().await;
    let (a, b) = (rig.open(&init(1)).await, plain(&rig).await);
    assert_eq!(rig.pid(&a).await, rig.pid(&b).await);
    // The server was not told that anybody could be asked. If it asks all the same, it hears so at once.
    assert_eq!(state(&rig, &a).await["initialize"]["capabilities"], json!({}));
    let answer: Value = serde_json::from_str(&rig.text(&a, "ask", json!({})).await).unwrap();
    assert_eq!(answer["code"], -32601, "{answer}");
}

#[tokio::test]
async fn a_process_that_is_lost_is_replaced_and_its_sessions_go_on() {
    let rig = shared().await;
    let (a, b) = (plain(&rig).await, plain(&rig).await);
    ask(&rig, &a, "resources/subscribe", json!({"uri": "x://a"})).await;
    ask(&rig, &b, "logging/setLevel", json!({"level": "error"})).await;
    ask(&rig, &a, "logging/setLevel", json!({"level": "notice"})).await;
    // Once more as the least verbose of two: the other one's level stays.
    ask(&rig, &b, "logging/setLevel", json!({"level": "alert"})).await;
    assert_eq!(state(&rig, &a).await["level"], "notice");
    let pid = rig.pid(&a).await;
    let mut stream = rig.listen(&a).await;
    let answer = rig.call(&b, "crash", json!({"code": 3})).await;
    assert_eq!(
        (&answer["error"]["data"]["reason"], &answer["error"]["data"]["exitCode"]),
        (&json!("child_exited"), &json!(3))
    );
    // Both go on, with a new process that knows what the old one knew.
    assert_ne!(rig.pid(&b).await, pid);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        let state = state(&rig, &a).await;
        if state["level"] == "notice" && state["watched"] == json!(["x://a"]) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{state}");
    }
    rig.text(&b, "touch", json!({"uri": "x://a"})).await;
    assert_eq!(stream.event().await.unwrap()["params"]["uri"], "x://a");
    assert_eq!(rig.status().crashes, 1);
    // One that is killed while nobody calls is replaced as well, as there are clients that listen.
    let pid = rig.pid(&a).await;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    eventually("another one is there", || rig.status().crashes == 2 && rig.status().processes == 1).await;
    assert_ne!(rig.pid(&a).await, pid);
}

#[tokio::test]
async fn a_log_message_goes_to_the_only_call_or_to_nobody() {
    let rig = shared().await;
    let (a, b) = (plain(&rig).await, plain(&rig).await);
    let mut reply = rig.post(Some(&a), call(1, "log", json!({}))).await;
    assert_eq!(reply.event().await.unwrap()["params"]["data"], "working");
    assert_eq!(reply.event().await.unwrap()["id"], 1);
    // Who set a level gets what it lets through.
    ask(&rig, &a, "logging/setLevel", json!({"level": "error"})).await;
    assert_eq!(rig.post(Some(&a), call(1, "log", json!({}))).await.content_type(), "application/json");
    // With two calls in flight, whose it is can't be told.
    let hanging = tokio::spawn(rig.start_post(&a, call(2, "hang", json!({}))));
    let reply = rig.post(Some(&b), call(3, "log-later", json!({}))).await;
    assert_eq!(reply.content_type(), "application/json");
    assert_eq!(reply.json().await["id"], 3);
    assert!((rig.metric("outrigger_mcp_dropped_messages_total", &[("reason", "unattributed")]) - 1.0).abs() < 0.1);
    // A call of a session that ends is cancelled, and only that one.
    rig.http("DELETE", &[("mcp-session-id", &a)], "").await;
    let answer = hanging.await.unwrap();
    assert_eq!(answer.last().await["error"]["data"]["reason"], "session_ended");
    let asked: Value = serde_json::from_str(&rig.text(&b, "asked", json!({})).await).unwrap();
    assert_eq!(asked["cancelled"].as_array().unwrap().len(), 1, "{asked}");
}

#[tokio::test]
async fn what_nobody_uses_makes_room_and_ends_when_idle() {
    let mut setup = sharing(Sharing::Auto);
    setup.process.max_processes = 2;
    setup.timing.evict_idle = Duration::ZERO;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    // Both places are taken by processes of sessions; the one that was there from the start makes room.
    let (a, b) = (rig.open(&init(1)).await, rig.open(&init(1)).await);
    assert_ne!(rig.pid(&a).await, rig.pid(&b).await);
    // A session that shares takes the place of the session that was not used for longest.
    let c = plain(&rig).await;
    let pid = rig.pid(&c).await;
    assert_eq!(rig.post(Some(&a), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    // Its process makes room while it pauses, and it gets another one.
    let _streams = (rig.listen(&b).await, rig.listen(&c).await);
    let d = rig.open(&init(1)).await;
    rig.pid(&d).await;
    eventually("it made room", || !alive(pid)).await;
    rig.http("DELETE", &[("mcp-session-id", &d)], "").await;
    assert_ne!(rig.pid(&c).await, pid);

    let mut setup = sharing(Sharing::Auto);
    setup.process.idle_timeout_ms = 100;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    eventually("nobody uses it", || rig.status().processes == 0).await;
    assert!(rig.status().part.ready);
    rig.pid(&plain(&rig).await).await;
}
