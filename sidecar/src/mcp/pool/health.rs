//! Health of one server: reach the shim, do one real handshake on a disposable child, then watch. After that no
//! child is ever started for health's sake: living ones are pinged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_protocol::status::ServerPhase;
use rand::Rng as _;
use tokio::time::Instant;

use super::hello::{self, Hello};
use super::reachability;
use super::slot::Kind;
use super::{CRASH_LOOP_AFTER, Info, Owner, Server, describe};
use crate::mcp::child::wire::control::Control;
use crate::mcp::child::{Child, Era};
use crate::mcp::client::Behind;
use crate::mcp::error::Error;

/// Pings in a row that a child may miss before its server is not ready.
pub const STALLED_AFTER: u64 = 3;
/// Pings in a row after which a child is of no use to its session and is ended.
const ENDED_AFTER: u64 = 6;
/// Why such a child is ended.
pub const STALLED: &str = "stalled";
/// Between looks at whether a child has said anything.
const HEARING: Duration = Duration::from_millis(50);
/// A looping server that hangs in `initialize` for this long shows that phase again.
const LOOP_PATIENCE: Duration = Duration::from_secs(2);

/// Runs for as long as the sidecar does.
pub async fn watch(server: Arc<Server>) {
    if server.shared.built_in.is_some() {
        return;
    }
    let timing = server.shared.timing.clone();
    let Some(socket) = server.shared.conf.socket() else { return reachability::watch(server).await };
    let mut generation: Option<String> = None;
    let mut pause = timing.reconnect.0;
    loop {
        let (control, hello) = match Control::connect(socket, timing.shim).await {
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
            server.forget_container();
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
    tokio::select! {
        () = lost => {}
        () = keep_proving(server) => {}
    }
}

/// Handshakes until one is done, and again when children fail to start.
async fn keep_proving(server: &Arc<Server>) {
    loop {
        prove(server).await;
        // Failures of the handshakes above have woken this already.
        while server.health.borrow().phase == ServerPhase::Ready {
            server.failing.notified().await;
        }
    }
}

/// Tries handshakes, one at a time, until one is done.
async fn prove(server: &Arc<Server>) {
    let timing = &server.shared.timing;
    let mut pause = timing.restart.0;
    server.hung.store(false, Ordering::Relaxed);
    loop {
        if server.failed_starts() >= CRASH_LOOP_AFTER {
            tokio::time::sleep(jitter(pause)).await;
            pause = (pause * 2).min(timing.restart.1);
        }
        match handshake(server).await {
            Ok(info) => {
                tracing::info!(
                    target: "business", server = server.name(), protocol = info.protocol_version,
                    info = info.server_info, tools = info.tools.len(), "server is ready"
                );
                return server.handshake_done(info);
            }
            Err(error) => {
                tracing::warn!(target: "business", server = server.name(), reason = error.reason(), %error, "handshake failed");
                let hung = error.hung();
                server.hung.store(hung, Ordering::Relaxed);
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

/// One handshake, in the older way if the server knows it; which other way it knows is found out beside it.
pub async fn handshake(server: &Arc<Server>) -> Result<Info, Error> {
    let known = server.eras.borrow().clone();
    if known.modern.is_none() && server.shared.conf.process.max_processes == 1 {
        // There is no place for a question beside the handshake.
        probe(server).await?;
    }
    if known.legacy == Some(false) {
        return converse(server, Era::Modern).await;
    }
    let asked = match converse(server, Era::Legacy).await {
        Ok(info) => {
            if server.eras.borrow().modern.is_none() {
                let server = Arc::clone(server);
                tokio::spawn(async move { find_out(&server).await });
            }
            return Ok(info);
        }
        Err(error) => error,
    };
    // A server that knows requests without a handshake alone refuses it, hangs in it or ends.
    let other = match &asked {
        Error::InitializeFailed(_) | Error::ChildExited(_) => true,
        error if error.hung() => true,
        Error::Http(error) => !error.is_gone(),
        _ => false,
    };
    if other && server.eras.borrow().modern.is_none() {
        probe(server).await?;
    }
    if !other || server.eras.borrow().modern != Some(true) {
        return Err(asked);
    }
    let info = converse(server, Era::Modern).await?;
    server.eras.send_modify(|e| e.legacy = Some(false));
    server.forgive();
    Ok(info)
}

/// Asks whether the server knows requests without a handshake, until that is known.
async fn find_out(server: &Arc<Server>) {
    let mut pause = server.shared.timing.restart.0;
    while server.eras.borrow().modern.is_none() {
        if probe(server).await.is_ok() {
            return;
        }
        tokio::time::sleep(jitter(pause)).await;
        pause = (pause * 2).min(server.shared.timing.restart.1);
    }
}

/// Asks on a child that lives for nothing else: the first message pins some servers to its era, and others end when
/// it is not `initialize`.
async fn probe(server: &Arc<Server>) -> Result<(), Error> {
    let timing = &server.shared.timing;
    let child = server.start(Era::Modern, || Behind::Nobody, Owner::Probe).await?;
    let discover = hello::discover(&child, timing.probe_cold);
    let silent = async {
        let cold = Instant::now() + timing.probe_cold;
        while Instant::now() < cold && !child.heard.load(Ordering::Relaxed) {
            tokio::time::sleep(HEARING).await;
        }
        tokio::time::sleep(timing.probe_warm).await;
    };
    let told = tokio::select! {
        told = discover => Some(told),
        () = silent => None,
    };
    child.stop("probe", timing.probe_grace);
    child.ended().await;
    server
        .shared
        .metrics
        .probes
        .with_label_values(&[server.name(), if matches!(told, Some(Ok(_))) { "modern" } else { "legacy" }])
        .inc();
    match told {
        Some(Ok(hello)) => server.learned(&hello),
        // Not an answer of the server's: to be asked again.
        Some(Err(error @ (Error::ShimLost | Error::ShimUnreachable(_) | Error::Unreachable(_)))) => return Err(error),
        Some(Err(Error::Http(error))) if error.is_gone() => return Err(error.into()),
        Some(Err(_)) | None => server.eras.send_modify(|e| e.modern = Some(false)),
    }
    Ok(())
}

/// Says hello in an era and asks for the tools: on the child that clients will share, which so is warm for them, or on
/// one that lives for nothing else.
async fn converse(server: &Arc<Server>, era: Era) -> Result<Info, Error> {
    let looping = server.failed_starts() >= CRASH_LOOP_AFTER;
    if !looping && !server.hung.load(Ordering::Relaxed) {
        enter(server, ServerPhase::Spawn, "Spawning", "the server's process is being started");
    }
    let opening = open(server, era);
    tokio::pin!(opening);
    let opened = tokio::select! {
        opened = &mut opening => opened,
        () = tokio::time::sleep(LOOP_PATIENCE), if looping => {
            enter(server, ServerPhase::Initialize, "Initializing", "the server has not answered initialize yet");
            opening.await
        }
    };
    let (child, hello) = opened?;
    let info = hello::interview(&child, &hello).await;
    if matches!(info, Err(Error::InitializeFailed(_) | Error::RequestTimeout(_))) {
        // The process lives, so its end won't count as a failed start.
        if let Err(error) = &info {
            server.refused(error);
        }
    }
    if !server.shares() || info.is_err() {
        child.stop("probe", server.shared.timing.probe_grace);
        child.ended().await;
    }
    info
}

/// Asks a server that works for its tools, as they may be others now.
pub async fn ask_tools(server: &Arc<Server>) -> Result<(), Error> {
    server.ready().await?;
    let era = if server.eras.borrow().legacy == Some(false) { Era::Modern } else { Era::Legacy };
    let (child, hello) = open(server, era).await?;
    let info = hello::interview(&child, &hello).await;
    if !server.shares() {
        child.stop("probe", server.shared.timing.probe_grace);
    }
    let info = info?;
    server.health.send_if_modified(|h| {
        let news = h.phase == ServerPhase::Ready && h.info.as_ref() != Some(&info);
        if news {
            h.info = Some(info);
        }
        news
    });
    Ok(())
}

async fn open(server: &Arc<Server>, era: Era) -> Result<(Arc<Child>, Arc<Hello>), Error> {
    let kind = if era == Era::Modern { Kind::modern() } else { Kind::plain() };
    if server.shares() {
        let slot = server.slot(&kind);
        let child = slot.child().await?;
        let hello = slot.hello().ok_or(Error::ShimLost)?;
        return Ok((child, hello));
    }
    let child = server.start(era, || Behind::Nobody, Owner::Check).await?;
    server.child_started();
    match hello::greet(&child, &kind.revision, &kind.capabilities, None).await {
        Ok(hello) => {
            server.learned(&hello);
            Ok((child, Arc::new(hello)))
        }
        Err(error) => {
            if matches!(error, Error::InitializeFailed(_)) {
                server.refused(&error);
            }
            child.stop("probe", server.shared.timing.probe_grace);
            child.ended().await;
            Err(error)
        }
    }
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

/// Pings living children and ends what is idle, for as long as the sidecar runs.
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
        for (child, owner) in server.children() {
            // A busy child may answer late; its request has a time limit of its own.
            let busy = child.table.lock().in_flight() > 0;
            if child.greeted() && !busy && child.living() && !matches!(owner, Owner::Probe | Owner::Check) {
                tokio::spawn(ping(Arc::clone(&server), child, owner));
            }
        }
    }
}

async fn ping(server: Arc<Server>, child: Arc<Child>, owner: Owner) {
    let limit = server.shared.timing.ping_limit;
    let answer = match child.era {
        Era::Legacy => child.call("ping", "{}", limit).await,
        Era::Modern => child.call("server/discover", &format!("{{{}}}", hello::our_meta("{}")), limit).await,
    };
    let failed = match answer {
        // An error is an answer, too.
        Ok(_) => {
            child.missed_pings.store(0, Ordering::Relaxed);
            return;
        }
        Err(Error::RequestTimeout(_) | Error::Overloaded) => true,
        // A connection outlives what it leads to; a process does not.
        Err(_) => child.living() && server.shared.conf.socket().is_none(),
    };
    if !failed {
        return;
    }
    server.shared.metrics.ping_failures.with_label_values(&[server.name()]).inc();
    let missed = child.missed_pings.fetch_add(1, Ordering::Relaxed) + 1;
    tracing::warn!(target: "business", server = server.name(), pid = child.pid, missed, "ping was not answered");
    if missed < ENDED_AFTER {
        return;
    }
    match owner {
        Owner::Session(key) => {
            server.sessions.end(&key, STALLED);
        }
        _ => child.stop(STALLED, server.shared.timing.grace),
    }
}

/// A pause of half to all of its length, so that restarts of many pods spread.
pub fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}
