//! From a container that is not there yet to one that comes back: readiness, restarts, drain, bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::time::Duration;

use http::StatusCode;
use mcp_support::{CONTAINER, Rig, Setup, Shim, alive, call, eventually, fixture, init};
use outrigger_protocol::status::ServerPhase;
use outrigger_sidecar::mcp::timing::Timing;
use rustix::process::Signal;
use serde_json::json;

fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing { grace: ms(200), probe_grace: ms(200), restart: (ms(10), ms(50)), place: ms(500), ..Timing::default() }
}

#[tokio::test]
async fn the_phases_of_a_slow_start() {
    let mut rig = Rig::without_shim(Setup { timing: quick(), ..Setup::default() }).await;
    eventually("connect is tried", || rig.status().part.message.contains("not there yet")).await;
    let status = rig.status();
    assert_eq!(
        (status.phase, status.part.ready, status.part.reason.as_str()),
        (ServerPhase::Connect, false, "ShimUnreachable")
    );

    let gate = rig.dir.path().join("go");
    let command = fixture(&["--hold", gate.to_str().unwrap()]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    rig.shim = Some(Shim::start(&rig.socket(), 4, &command));
    eventually("initialize is waited for", || rig.status().phase == ServerPhase::Initialize).await;
    let status = rig.status();
    assert!(!status.part.ready && status.part.message.contains("initialize"), "{status:?}");
    assert_eq!(status.processes, 1);
    // A client that comes now waits with it.
    let session = rig.session();
    let open = async {
        std::fs::write(&gate, "").unwrap();
        rig.until_ready().await;
    };
    let (session, ()) = tokio::join!(session, open);
    rig.pid(&session).await;
    assert_eq!(rig.status().phase, ServerPhase::Ready);
}

#[tokio::test]
async fn a_start_that_hangs_is_tried_again_one_child_at_a_time() {
    let mut setup = Setup { timing: quick(), ..Setup::default() };
    setup.process.start_timeout_ms = 1_500;
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("go");
    let rig = Rig::with(&["--hold", gate.to_str().unwrap()], setup).await;
    let starts = || rig.metric("outrigger_mcp_child_starts_total", &[]);
    let mut most = 0;
    eventually("three starts", || {
        most = most.max(rig.status().processes);
        starts() >= 3.0
    })
    .await;
    assert_eq!(most, 1);
    let status = rig.status();
    assert_eq!(
        (status.phase, status.part.reason.as_str()),
        (ServerPhase::Initialize, "InitializeTimeout"),
        "{status:?}"
    );
    std::fs::write(&gate, "").unwrap();
    rig.until_ready().await;
}

#[tokio::test]
async fn a_server_that_gets_no_standard_input_is_told_so() {
    let mut setup = Setup { timing: quick(), ..Setup::default() };
    setup.process.start_timeout_ms = 300;
    let rig = Rig::with(&["--no-read"], setup).await;
    eventually("it is seen", || rig.status().part.reason == "StdinUnread").await;
    let status = rig.status();
    assert!(status.part.message.contains("in the background"), "{status:?}");
}

#[tokio::test]
async fn a_server_that_ends_at_once_loops_and_says_why() {
    let rig = Rig::with(&["--exit", "7"], Setup { timing: quick(), ..Setup::default() }).await;
    eventually("the loop is seen", || rig.status().phase == ServerPhase::CrashLoop).await;
    let status = rig.status();
    assert!(!status.part.ready);
    assert_eq!((status.part.reason.as_str(), status.last_exit.as_str()), ("ChildExited", "exit code 7"));
    assert!(status.part.message.contains("exit code 7") && status.part.message.contains("no licence"), "{status:?}");
    assert!(status.crashes >= 3);
    // A client learns it at once.
    let answer = rig.post(None, init(1)).await;
    assert!(!answer.headers.contains_key("mcp-session-id"));
    let answer = answer.json().await;
    assert_eq!(answer["error"]["data"]["reason"], "crash_loop", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("no licence"), "{answer}");
}

#[tokio::test]
async fn a_command_that_is_not_there_is_named() {
    let mut rig = Rig::without_shim(Setup { timing: quick(), ..Setup::default() }).await;
    rig.shim = Some(Shim::start(&rig.socket(), 4, &["/no/such/program", "x"]));
    eventually("the loop is seen", || rig.status().phase == ServerPhase::CrashLoop).await;
    let status = rig.status();
    assert_eq!(status.part.reason, "SpawnFailed");
    assert!(status.part.message.contains("command not found: /no/such/program"), "{status:?}");
    assert_eq!((status.processes, status.crashes), (0, 0));
}

#[tokio::test]
async fn a_refused_handshake_is_a_failed_start() {
    let rig = Rig::with(&["--refuse"], Setup { timing: quick(), ..Setup::default() }).await;
    eventually("the loop is seen", || rig.status().phase == ServerPhase::CrashLoop).await;
    let status = rig.status();
    assert_eq!(status.part.reason, "InitializeFailed");
    assert!(status.part.message.contains("no licence"), "{status:?}");
}

#[tokio::test]
async fn a_killed_shim_ends_its_sessions_and_the_next_one_is_found() {
    let mut rig = Rig::with(&[], Setup { timing: quick(), ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let pid = rig.pid(&session).await;
    let mut hanging = rig.post(Some(&session), call(1, "hang-aloud", json!({}))).await;
    hanging.event().await.unwrap();
    rig.shim().signal(Signal::KILL);
    let answer = hanging.event().await.unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "shim_lost", "{answer}");
    assert_eq!(rig.post(Some(&session), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    eventually("its child went with it", || !alive(pid)).await;
    // The stale socket refuses; the server stays ready for as long as a restart takes.
    eventually("the loss is seen", || rig.status().phase == ServerPhase::Connect).await;
    assert!(rig.socket().exists() && rig.status().part.ready);

    let command = fixture(&[]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    rig.shim = Some(Shim::start(&rig.socket(), 4, &command));
    eventually("the next shim is found", || rig.status().phase == ServerPhase::Ready).await;
    let session = rig.session().await;
    rig.pid(&session).await;
    assert!((rig.metric("outrigger_mcp_shim_restarts_total", &[]) - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn without_its_shim_for_long_a_server_is_not_ready() {
    let timing = Timing { restart_grace: Duration::from_millis(100), ..quick() };
    let mut rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    rig.shim = None;
    eventually("not ready", || !rig.status().part.ready).await;
    assert_eq!(rig.status().phase, ServerPhase::Connect);
}

#[tokio::test]
async fn a_stopped_child_makes_its_server_stalled_and_is_ended_at_last() {
    let timing = Timing { ping_every: Duration::from_millis(50), ping_limit: Duration::from_millis(40), ..quick() };
    let rig = Rig::with(&[], Setup { timing, ..Setup::default() }).await;
    rig.until_ready().await;
    let (well, session) = (rig.session().await, rig.session().await);
    let pid = rig.pid(&session).await;
    rig.text(&session, "stop-self", json!({})).await;
    eventually("it is seen", || !rig.status().part.ready).await;
    let status = rig.status();
    assert_eq!(status.part.reason, "Stalled");
    assert!(status.part.message.contains(&pid.to_string()), "{status:?}");
    eventually("it is ended", || !alive(pid)).await;
    rig.until_ready().await;
    assert_eq!(rig.post(Some(&session), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    rig.pid(&well).await;
}

#[tokio::test]
async fn sessions_are_bounded_and_the_forgotten_one_makes_room() {
    let mut setup = Setup { timing: Timing { evict_idle: Duration::from_secs(3600), ..quick() }, ..Setup::default() };
    setup.process.max_processes = 2;
    let rig = Rig::with(&[], setup).await;
    let (a, _b) = (rig.session().await, rig.session().await);
    let reply = rig.post(None, init(1)).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.headers.contains_key("retry-after"));
    let answer = reply.json().await;
    assert_eq!(answer["error"]["data"]["reason"], "too_many_sessions");
    assert!(answer["error"]["message"].as_str().unwrap().contains("maxProcesses"), "{answer}");
    // A place that becomes free is taken once its child is gone.
    rig.http("DELETE", &[("mcp-session-id", &a)], "").await;
    rig.session().await;

    let mut setup = Setup { timing: Timing { evict_idle: Duration::ZERO, ..quick() }, ..Setup::default() };
    setup.process.max_processes = 2;
    let rig = Rig::with(&[], setup).await;
    let (old, young) = (rig.session().await, rig.session().await);
    let _stream = rig.listen(&young).await;
    rig.session().await;
    assert_eq!(rig.post(Some(&old), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    rig.pid(&young).await;
}

#[tokio::test]
async fn one_process_is_enough_for_probe_and_session() {
    let mut setup = Setup { timing: quick(), ..Setup::default() };
    setup.process.max_processes = 1;
    let rig = Rig::with(&[], setup).await;
    let session = rig.session().await;
    rig.pid(&session).await;
    assert_eq!(rig.status().processes, 1);
}

#[tokio::test]
async fn an_idle_session_ends_and_one_in_use_does_not() {
    let mut setup = Setup { timing: quick(), ..Setup::default() };
    setup.process.idle_timeout_ms = 1_500;
    let rig = Rig::with(&[], setup).await;
    rig.until_ready().await;
    let (idle, used) = (rig.session().await, rig.session().await);
    let stream = rig.listen(&used).await;
    eventually("idle ended", || rig.metric("outrigger_mcp_sessions_ended_total", &[("reason", "idle")]) > 0.5).await;
    assert_eq!(rig.post(Some(&idle), call(1, "pid", json!({}))).await.status, StatusCode::NOT_FOUND);
    rig.pid(&used).await;
    drop(stream);
    eventually("used ended", || rig.metric("outrigger_mcp_sessions_ended_total", &[("reason", "idle")]) > 1.5).await;
}

#[tokio::test]
async fn a_drain_waits_for_calls_and_refuses_new_sessions() {
    let rig = Rig::with(&[], Setup { timing: quick(), ..Setup::default() }).await;
    rig.until_ready().await;
    let session = rig.session().await;
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
                      "params": {"name": "progress", "arguments": {"steps": 8, "pause": 1.0}, "_meta": {"progressToken": 1}}});
    let mut reply = rig.post(Some(&session), body.to_string()).await;
    reply.event().await.unwrap();
    rig.context.drain.start();
    let idle = tokio::spawn({
        let drain = rig.context.drain.clone();
        async move { drain.idle().await }
    });
    eventually("no more is accepted", || !rig.context.drain.accepting()).await;
    assert!(!idle.is_finished());
    let refused = rig.post(None, init(1)).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.json().await["error"]["data"]["reason"], "draining");
    // Existing sessions go on, and so does the call.
    let mut last = None;
    while let Some(event) = reply.event().await {
        last = Some(event);
    }
    assert_eq!(last.unwrap()["result"]["content"][0]["text"], "done");
    tokio::time::timeout(mcp_support::PATIENCE, idle).await.unwrap().unwrap();
    rig.pid(&session).await;
}

#[tokio::test]
async fn calls_wait_while_the_container_is_held_for_a_restart() {
    let mut rig = Rig::with(&[], Setup { timing: quick(), ..Setup::default() }).await;
    rig.until_ready().await;
    let drain = rig.context.drain.clone();
    assert!(drain.hook(CONTAINER).await);
    assert!(drain.held(CONTAINER));
    let command = fixture(&[]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    rig.shim = None;
    rig.shim = Some(Shim::start(&rig.socket(), 4, &command));
    // Another generation says hello: the hold is over and the session opens.
    let session = rig.session().await;
    rig.pid(&session).await;
    assert!(!drain.held(CONTAINER));
}

#[tokio::test]
async fn two_shims_that_do_not_fit() {
    use std::io::{BufRead as _, Write as _};
    for (lines, reason) in [
        (vec![r#"{"hello":{"protocol":2,"version":"9.0.0","pid":1,"generation":"g"}}"#], "ShimVersionMismatch"),
        (
            vec![
                r#"{"hello":{"protocol":1,"version":"0.1.0","pid":1,"generation":"g"}}"#,
                // The descriptors that should come along do not.
                r#"{"spawned":{"pid":7}}"#,
            ],
            "FdPassingRefused",
        ),
    ] {
        let rig = Rig::without_shim(Setup { timing: quick(), ..Setup::default() }).await;
        let listener = std::os::unix::net::UnixListener::bind(rig.socket()).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let lines = lines.clone();
                std::thread::spawn(move || {
                    let mut heard = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
                    for line in lines {
                        let _ = (&stream).write_all(format!("{line}\n").as_bytes());
                        // The second line answers the second message.
                        if heard.next().is_none() {
                            return;
                        }
                    }
                    while heard.next().is_some() {}
                });
            }
        });
        eventually(reason, || rig.status().part.reason == reason).await;
        let answer = rig.post(None, init(1)).await.json().await;
        assert!(answer["error"]["message"].as_str().unwrap().contains(reason), "{answer}");
    }
}
