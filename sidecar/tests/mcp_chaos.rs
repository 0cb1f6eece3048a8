//! Servers that misbehave: what comes out of them, and how they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::time::Duration;

use http::StatusCode;
use mcp_support::{Rig, Setup, alive, call, eventually};
use serde_json::json;

#[tokio::test]
async fn odd_output_costs_nothing_but_the_odd_line() {
    let rig = Rig::ready(&["--banner"]).await;
    let session = rig.session().await;
    for tool in ["garbage", "invalid-utf8", "ansi"] {
        assert_eq!(rig.text(&session, tool, json!({})).await, "ok", "{tool}");
    }
    assert_eq!(rig.text(&session, "split", json!({})).await, "äöü€😀");
    let odd = |kind| rig.metric("outrigger_mcp_odd_lines_total", &[("kind", kind)]);
    // Two banner lines per child, one of them the probe's; four lines of garbage, one of them not UTF-8.
    assert_eq!((odd("garbage"), odd("invalid_utf8"), odd("decorated")), (8.0, 2.0, 1.0));
    // A response that is broken fails its request at once, and only that.
    for tool in ["invalid-utf8-reply", "broken-reply"] {
        let answer = rig.call(&session, tool, json!({})).await;
        assert_eq!(answer["error"]["data"]["reason"], "malformed_line", "{tool}: {answer}");
    }
    rig.pid(&session).await;
}

#[tokio::test]
async fn floods_and_long_lines_within_the_limit_pass() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    assert_eq!(rig.text(&session, "stderr", json!({"bytes": 2 << 20})).await, "ok");
    assert_eq!(rig.text(&session, "big", json!({"bytes": 12_000_000})).await.len(), 12_000_000);
    // Both ways at once, larger than any pipe.
    let big = "y".repeat(10_000_000);
    let (a, b) = tokio::join!(
        rig.text(&session, "line", json!({ "big": big })),
        rig.text(&session, "big", json!({"bytes": 10_000_000})),
    );
    assert!(a.len() > 10_000_000 && b.len() == 10_000_000);
}

#[tokio::test]
async fn a_line_beyond_the_limit_fails_its_request_and_only_that() {
    let mut setup = Setup::default();
    setup.process.max_line_bytes = 100_000;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let pid = rig.pid(&session).await;
    let answer = rig.call(&session, "big", json!({"bytes": 5_000_000})).await;
    assert_eq!((&answer["id"], &answer["error"]["data"]["reason"]), (&json!(7), &json!("line_too_long")), "{answer}");
    assert_eq!(rig.text(&session, "big", json!({"bytes": 90_000})).await.len(), 90_000);
    assert_eq!(rig.pid(&session).await, pid);
    // The same bound holds for what a client sends.
    let reply = rig.post(Some(&session), call(1, "line", json!({"x": "y".repeat(200_000)}))).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn many_large_answers_at_once_all_arrive() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let calls = (0..200).map(|i| rig.post(Some(&session), call(i, "big", json!({"bytes": 64 << 10}))));
    for (i, reply) in futures::future::join_all(calls).await.into_iter().enumerate() {
        let answer = reply.last().await;
        assert_eq!(answer["id"], i);
        assert_eq!(answer["result"]["content"][0]["text"].as_str().unwrap().len(), 64 << 10);
    }
}

#[tokio::test]
async fn a_crash_says_how_and_hits_one_session_only() {
    let rig = Rig::ready(&[]).await;
    let (doomed, other) = (rig.session().await, rig.session().await);
    let answer = rig.call(&doomed, "crash", json!({"code": 3})).await;
    let error = &answer["error"];
    assert_eq!((&error["code"], &answer["id"]), (&json!(-32603), &json!(7)));
    assert_eq!(error["data"]["reason"], "child_exited");
    assert_eq!(error["data"]["exitCode"], 3);
    assert!(error["data"]["stderrTail"].as_str().unwrap().contains("last words"), "{error}");
    // The client is told to begin anew; meanwhile nobody else noticed.
    assert_eq!(rig.post(Some(&doomed), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    rig.pid(&other).await;
    let again = rig.session().await;
    let answer = rig.call(&again, "killed", json!({})).await;
    assert_eq!(answer["error"]["data"]["signal"], 9, "{answer}");
    let status = rig.status();
    assert_eq!((status.crashes, status.last_exit.as_str(), status.part.ready), (2, "signal 9", true));
    assert!((rig.metric("outrigger_mcp_child_exits_total", &[("reason", "signal")]) - 1.0).abs() < 0.1);
    assert!((rig.metric("outrigger_mcp_requests_total", &[("outcome", "child_exited")]) - 2.0).abs() < 0.1);
}

#[tokio::test]
async fn last_words_without_a_newline_count() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    assert_eq!(rig.text(&session, "unterminated", json!({})).await, "last");
}

#[tokio::test]
async fn a_server_that_closes_stdout_is_ended() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let pid = rig.pid(&session).await;
    let answer = rig.call(&session, "close-stdout", json!({})).await;
    assert_eq!(answer["error"]["data"]["reason"], "stdout_closed", "{answer}");
    eventually("it is gone", || !alive(pid)).await;
    eventually("and counted", || rig.status().crashes == 1).await;
}

#[tokio::test]
async fn a_hanging_call_times_out_and_the_session_goes_on() {
    let mut setup = Setup::default();
    setup.process.request_timeout_ms = 200;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let answer = rig.call(&session, "hang", json!({})).await;
    assert_eq!(answer["error"]["data"]["reason"], "request_timeout", "{answer}");
    // The server was told.
    let asked = rig.text(&session, "asked", json!({})).await;
    assert!(asked.contains("cancelled"), "{asked}");
    assert!((rig.metric("outrigger_mcp_requests_total", &[("outcome", "timeout")]) - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn a_server_that_does_not_read_gets_a_bounded_amount() {
    let mut setup = Setup::default();
    setup.process.request_timeout_ms = 3_000;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    let session = rig.session().await;
    assert_eq!(rig.text(&session, "deaf", json!({})).await, "deaf");
    let big = call(1, "line", json!({"x": "y".repeat(8 << 20)}));
    let calls = (0..8).map(|_| rig.post(Some(&session), big.clone()));
    let replies = futures::future::join_all(calls).await;
    let busy = replies.iter().filter(|r| r.status == StatusCode::SERVICE_UNAVAILABLE).count();
    assert!(busy >= 3, "{busy}");
    for reply in replies {
        if reply.status == StatusCode::SERVICE_UNAVAILABLE {
            assert_eq!(reply.headers["retry-after"], "1");
        }
        let answer = reply.last().await;
        let reason = answer["error"]["data"]["reason"].as_str().unwrap();
        assert!(["overloaded", "request_timeout"].contains(&reason), "{answer}");
    }
}

#[tokio::test]
async fn nothing_that_a_server_started_outlives_its_session() {
    let timing = outrigger_sidecar::mcp::timing::Timing { grace: Duration::from_millis(200), ..Default::default() };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let child = rig.pid(&session).await;
    let forked = rig.text(&session, "fork", json!({})).await;
    let mut pids: Vec<u32> = forked.split(' ').map(|p| p.parse().unwrap()).collect();
    pids.push(child);
    assert!(pids.iter().all(|p| alive(*p)));
    // Orphans of the server's own are waited for by the shim.
    rig.text(&session, "zombies", json!({})).await;
    let shim = rig.shim().pid();
    let zombies = || {
        std::fs::read_dir("/proc").unwrap().flatten().any(|e| {
            std::fs::read_to_string(e.path().join("stat")).is_ok_and(|stat| {
                let rest: Vec<&str> = stat[stat.rfind(')').unwrap() + 1..].split_whitespace().take(2).collect();
                rest == ["Z", &shim.to_string()]
            })
        })
    };
    eventually("no zombies", || !zombies()).await;
    rig.http("DELETE", &[("mcp-session-id", &session)], "").await;
    eventually("all are gone", || pids.iter().all(|p| !alive(*p))).await;
}

#[tokio::test]
async fn a_crash_takes_the_grandchildren_along() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let forked = rig.text(&session, "fork", json!({})).await;
    let pids: Vec<u32> = forked.split(' ').map(|p| p.parse().unwrap()).collect();
    // They hold stdout open, which must not delay the error.
    let answer = rig.call(&session, "crash", json!({"code": 1})).await;
    assert_eq!(answer["error"]["data"]["reason"], "child_exited", "{answer}");
    eventually("all are gone", || pids.iter().all(|p| !alive(*p))).await;
}

#[tokio::test]
async fn a_server_that_ignores_everything_is_killed() {
    let timing = outrigger_sidecar::mcp::timing::Timing { grace: Duration::from_millis(100), ..Default::default() };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let pid = rig.pid(&session).await;
    rig.text(&session, "deaf", json!({})).await;
    rig.http("DELETE", &[("mcp-session-id", &session)], "").await;
    eventually("it is gone", || !alive(pid)).await;
}

#[tokio::test]
async fn two_hundred_sessions_leave_nothing() {
    let rig = Rig::ready(&[]).await;
    for _ in 0..25 {
        let open = futures::future::join_all((0..8).map(|_| rig.session())).await;
        for session in &open {
            rig.http("DELETE", &[("mcp-session-id", session)], "").await;
        }
    }
    eventually("no child is left", || rig.status().processes == 0).await;
    let shim = rig.shim().pid();
    let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap();
    assert_eq!(children, "");
    // Socket, signals, log, stdio: what stays open does not grow with sessions.
    let open = std::fs::read_dir(format!("/proc/{shim}/fd")).unwrap().count();
    assert!(open < 20, "{open}");
    assert_eq!(rig.status().crashes, 0);
}
