//! Health of one server: reach the shim, do one real handshake on a disposable child, then watch. After that no
//! child is ever started for health's sake: living ones are pinged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_protocol::status::ServerPhase;
use rand::Rng as _;
use serde::Deserialize;
use tokio::time::Instant;

use super::child::Child;
use super::child::wire::control::Control;
use super::error::Error;
use super::reachability;
use super::server::{CRASH_LOOP_AFTER, Info, Server, describe};

/// Pings in a row that a child may miss before its server is not ready.
pub const STALLED_AFTER: u64 = 3;
/// Pings in a row after which a child is of no use to its session and is ended.
const ENDED_AFTER: u64 = 6;
/// Names of tools that are kept.
const MAX_TOOLS: usize = 128;
/// Pages of tools that are read.
const MAX_PAGES: usize = 16;
/// A looping server that hangs in `initialize` for this long shows that phase again.
const LOOP_PATIENCE: Duration = Duration::from_secs(2);
pub(super) const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"outrigger","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#
);

/// Runs for as long as the sidecar does.
pub async fn watch(server: Arc<Server>) {
    if server.shared.conf.socket().is_none() {
        return reachability::watch(server).await;
    }
    let timing = server.shared.timing.clone();
    let mut generation: Option<String> = None;
    let mut pause = timing.reconnect.0;
    loop {
        let (control, hello) = match Control::connect(server.shared.socket(), timing.shim).await {
            Ok(connected) => connected,
            Err(error) => {
                unreachable(&server, &error);
                tokio::time::sleep(jitter(pause)).await;
                pause = (pause * 2).min(timing.reconnect.1);
                continue;
            }
        };
        pause = timing.reconnect.0;
        tracing::info!(target: "transport", server = server.name(), generation = hello.generation, "shim reached");
        if generation.as_ref().is_some_and(|g| *g != hello.generation) {
            server.shared.metrics.shim_restarts.with_label_values(&[server.name()]).inc();
            server.forget_failures();
            server.shared.drain.reopen(server.shared.container());
        }
        generation = Some(hello.generation);
        follow(&server, control).await;
        server.health.send_modify(|h| {
            if h.phase == ServerPhase::Ready {
                h.lost = Some(Instant::now());
            }
            h.phase = ServerPhase::Connect;
            h.reason = Error::ShimLost.reason();
            h.message = Error::ShimLost.to_string();
        });
    }
}

/// From a shim's hello until it is gone.
async fn follow(server: &Arc<Server>, mut control: Control) {
    let lost = async { while control.receive().await.is_ok() {} };
    let handshakes = async {
        loop {
            prove(server).await;
            // Failures of the handshakes above have woken this already.
            while server.health.borrow().phase == ServerPhase::Ready {
                server.failing.notified().await;
            }
        }
    };
    tokio::select! {
        () = lost => {}
        () = handshakes => {}
    }
}

/// Tries handshakes, one at a time, until one is done.
async fn prove(server: &Arc<Server>) {
    let timing = &server.shared.timing;
    let mut pause = timing.restart.0;
    let mut hung = false;
    loop {
        if server.failed_starts() >= CRASH_LOOP_AFTER {
            tokio::time::sleep(jitter(pause)).await;
            pause = (pause * 2).min(timing.restart.1);
        }
        match handshake(server, hung).await {
            Ok(info) => {
                tracing::info!(
                    target: "business", server = server.name(), protocol = info.protocol_version,
                    info = info.server_info, tools = info.tools.len(), "server is ready"
                );
                return server.handshake_done(info);
            }
            Err(error) => {
                tracing::warn!(target: "business", server = server.name(), reason = error.reason(), %error, "handshake failed");
                hung = matches!(error, Error::InitializeTimeout(_));
                // What counts as a failed start has set the phase by itself.
                server.health.send_modify(|h| {
                    if h.phase != ServerPhase::CrashLoop {
                        h.reason = error.reason();
                        h.message = describe(&error);
                    }
                });
                if !hung && server.failed_starts() < CRASH_LOOP_AFTER {
                    tokio::time::sleep(jitter(pause)).await;
                    pause = (pause * 2).min(timing.restart.1);
                }
            }
        }
    }
}

/// One handshake on a child that lives for nothing else, and its end.
async fn handshake(server: &Arc<Server>, hung: bool) -> Result<Info, Error> {
    let looping = server.failed_starts() >= CRASH_LOOP_AFTER;
    if !hung && !looping {
        enter(server, ServerPhase::Spawn, "Spawning", "the server's process is being started");
    }
    let child = server.start(None).await?;
    let talk = async {
        if hung {
            let message = "did not answer initialize in time, was started again and has not answered yet";
            enter(server, ServerPhase::Initialize, "InitializeTimeout", message);
        } else if !looping {
            enter(server, ServerPhase::Initialize, "Initializing", "the server has not answered initialize yet");
        }
        let initialize = child.call("initialize", INITIALIZE, server.shared.start_limit());
        tokio::pin!(initialize);
        let answer = tokio::select! {
            answer = &mut initialize => answer,
            () = tokio::time::sleep(LOOP_PATIENCE), if looping => {
                enter(server, ServerPhase::Initialize, "Initializing", "the server has not answered initialize yet");
                initialize.await
            }
        };
        interview(&child, &answer?.body).await
    };
    let info = talk.await;
    if matches!(info, Err(Error::InitializeFailed(_) | Error::RequestTimeout(_))) {
        // The process lives, so its end won't count as a failed start.
        if let Err(error) = &info {
            server.refused(error);
        }
    }
    child.stop("probe", server.shared.timing.probe_grace);
    child.ended().await;
    info
}

fn enter(server: &Server, phase: ServerPhase, reason: &'static str, message: &str) {
    server.health.send_modify(|h| {
        h.phase = phase;
        h.reason = reason;
        h.message = message.into();
    });
}

fn unreachable(server: &Server, error: &Error) {
    server.health.send_if_modified(|h| {
        let changed = h.phase != ServerPhase::Connect || h.reason != error.reason();
        h.phase = ServerPhase::Connect;
        h.reason = error.reason();
        h.message = error.to_string();
        changed
    });
}

#[derive(Deserialize)]
struct Response<T> {
    result: Option<T>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
struct RpcError {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: String,
    #[serde(default)]
    server_info: Implementation,
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Default, Deserialize)]
struct Implementation {
    #[serde(default)]
    name: String,
    #[serde(default)]
    version: String,
}

#[derive(Default, Deserialize)]
struct Capabilities {
    tools: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
}

/// Reads the answer of `initialize` and asks for the tools.
pub(super) async fn interview(child: &Child, answer: &[u8]) -> Result<Info, Error> {
    let response: Response<Initialized> = serde_json::from_slice(answer)
        .map_err(|e| Error::InitializeFailed(format!("its answer makes no sense: {e}")))?;
    let Some(hello) = response.result else {
        let message = response.error.map(|e| e.message).unwrap_or_default();
        return Err(Error::InitializeFailed(message));
    };
    child.tell("notifications/initialized")?;
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        if hello.capabilities.tools.is_none() || tools.len() >= MAX_TOOLS {
            break;
        }
        let params = cursor.map_or_else(|| "{}".into(), |c: String| serde_json::json!({ "cursor": c }).to_string());
        let answer = child.call("tools/list", &params, child.shared.request_limit()).await?;
        match serde_json::from_slice::<Response<Page>>(&answer.body) {
            Ok(Response { result: Some(page), .. }) => {
                tools.extend(page.tools.into_iter().map(|t| t.name));
                cursor = page.next_cursor;
            }
            // It talks, so it can work; what it says of its tools is between it and its clients.
            Ok(Response { error, .. }) => {
                let error = error.map(|e| e.message).unwrap_or_default();
                tracing::warn!(target: "business", server = child.shared.conf.name, error, "tools/list was refused");
                break;
            }
            Err(error) => {
                tracing::warn!(target: "business", server = child.shared.conf.name, %error, "tools/list makes no sense");
                break;
            }
        }
        if cursor.is_none() {
            break;
        }
    }
    tools.truncate(MAX_TOOLS);
    let server_info = format!("{} {}", hello.server_info.name, hello.server_info.version).trim().to_owned();
    Ok(Info { protocol_version: hello.protocol_version, server_info, tools })
}

/// Pings living children and ends idle sessions, for as long as the sidecar runs.
pub async fn keep(server: Arc<Server>) {
    let idle = Duration::from_millis(server.shared.conf.process.idle_timeout_ms);
    let every = server.shared.timing.ping_every.min(idle / 4).max(Duration::from_millis(20));
    let mut ping_at = Instant::now() + server.shared.timing.ping_every;
    loop {
        tokio::time::sleep(every.min(ping_at.saturating_duration_since(Instant::now()))).await;
        server.expire();
        if Instant::now() < ping_at {
            continue;
        }
        ping_at = Instant::now() + server.shared.timing.ping_every;
        for session in server.sessions() {
            let child = &session.child;
            // A busy child may answer late; its request has a time limit of its own.
            let busy = child.table.lock().in_flight() > 0;
            if child.initialized.load(Ordering::Relaxed) && !busy && !child.stopping() {
                tokio::spawn(ping(Arc::clone(&server), session));
            }
        }
    }
}

async fn ping(server: Arc<Server>, session: Arc<super::server::Session>) {
    let child = &session.child;
    match child.call("ping", "{}", server.shared.timing.ping_limit).await {
        // An error is an answer, too.
        Ok(_) => child.missed_pings.store(0, Ordering::Relaxed),
        Err(Error::RequestTimeout(_) | Error::Overloaded) => {
            server.shared.metrics.ping_failures.with_label_values(&[server.name()]).inc();
            let missed = child.missed_pings.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(target: "business", server = server.name(), pid = child.pid, missed, "ping was not answered");
            if missed >= ENDED_AFTER {
                server.end_session(&session.id, "stalled");
            }
        }
        Err(_) => {}
    }
}

/// A pause of half to all of its length, so that restarts of many pods spread.
pub(super) fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}
