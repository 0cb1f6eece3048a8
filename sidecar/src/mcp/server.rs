//! One tool server of the pod: its health, its sessions, and the places for its children.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::config;
use outrigger_protocol::jsonrpc::Envelope;
use outrigger_protocol::status::{PartStatus, ServerPhase, ServerStatus};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::child::{Child, Ending, Request};
use super::error::{Error, tail};
use super::metrics::Metrics;
use super::outlet::Outlet;
use super::timing::Timing;
use super::wire_http::Upstream;
use crate::drain::Drain;

/// Starts in a row that fail before a server counts as looping.
pub const CRASH_LOOP_AFTER: u32 = 3;
/// How much of a child's stderr a status message shows.
const STATUS_TAIL: usize = 300;

/// What a server and its children share.
pub struct Shared {
    /// From the boot document.
    pub conf: config::Server,
    /// Waits.
    pub timing: Timing,
    /// Metrics.
    pub metrics: Metrics,
    /// Work in flight.
    pub drain: Arc<Drain>,
    /// What connections to a server over HTTP share, once there is one.
    pub upstream: OnceLock<Arc<Upstream>>,
}

impl Shared {
    /// What connections over HTTP share; the first one makes it.
    pub fn upstream(&self, make: impl FnOnce() -> Result<Upstream, Error>) -> Result<Arc<Upstream>, Error> {
        if let Some(upstream) = self.upstream.get() {
            return Ok(Arc::clone(upstream));
        }
        let fresh = Arc::new(make()?);
        Ok(Arc::clone(self.upstream.get_or_init(|| fresh)))
    }

    /// Its container; empty when it is in none of this pod.
    pub fn container(&self) -> &str {
        self.conf.container().unwrap_or_default()
    }

    /// The socket of its shim; empty when there is none.
    pub fn socket(&self) -> &str {
        self.conf.socket().unwrap_or_default()
    }

    /// Time until a response; progress restarts it.
    pub fn request_limit(&self) -> Duration {
        Duration::from_millis(self.conf.process.request_timeout_ms.max(1))
    }

    /// Time until the answer of `initialize`.
    pub fn start_limit(&self) -> Duration {
        Duration::from_millis(self.conf.process.start_timeout_ms.max(1))
    }

    /// Counts a request of a client.
    pub fn count(&self, method: &str, outcome: &str, started: Instant) {
        let name = self.conf.name.as_str();
        self.metrics.requests.with_label_values(&[name, method, outcome]).inc();
        self.metrics.duration.with_label_values(&[name, method]).observe(started.elapsed().as_secs_f64());
    }

    /// Counts a message that could not be delivered.
    pub fn dropped(&self, reason: &str) {
        self.metrics.dropped.with_label_values(&[self.conf.name.as_str(), reason]).inc();
    }
}

/// What a handshake told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Revision that the server answered with.
    pub protocol_version: String,
    /// Name and version of the server's own.
    pub server_info: String,
    /// Names of its tools.
    pub tools: Vec<String>,
}

/// Where a server stands.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The step that it has reached.
    pub phase: ServerPhase,
    /// Why it is not ready, one word.
    pub reason: &'static str,
    /// Why it is not ready, a sentence.
    pub message: String,
    /// Since when its shim is gone, for a server that was ready before.
    pub lost: Option<Instant>,
    /// From the last handshake.
    pub info: Option<Info>,
}

/// One client of a server, with a child of its own.
pub struct Session {
    /// Random; the client's secret.
    pub id: String,
    /// Its child.
    pub child: Arc<Child>,
    last_used: Mutex<Instant>,
}

impl Session {
    /// Restarts the idle time.
    pub fn touch(&self) {
        *self.last_used.lock() = Instant::now();
    }

    /// How long nothing was open; zero while something is.
    fn idle(&self) -> Duration {
        if self.child.table.lock().in_use() {
            self.touch();
        }
        self.last_used.lock().elapsed()
    }
}

/// See the module.
pub struct Server {
    /// What its children need of it.
    pub shared: Arc<Shared>,
    /// Where it stands.
    pub health: watch::Sender<Health>,
    /// Wakes the prober: children fail to start.
    pub failing: Notify,
    sessions: RwLock<HashMap<String, Arc<Session>>>,
    places: Arc<Semaphore>,
    failed_starts: AtomicU32,
    crashes: AtomicU64,
    last_exit: Mutex<String>,
}

impl Server {
    /// Knows its configuration; nothing runs yet.
    pub fn new(shared: Shared) -> Arc<Self> {
        let places =
            usize::try_from(shared.conf.process.max_processes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            shared: Arc::new(shared),
            health: watch::Sender::new(Health {
                reason: "ShimUnreachable",
                message: "the tool container was not reached yet".into(),
                ..Health::default()
            }),
            failing: Notify::new(),
            sessions: RwLock::default(),
            places: Arc::new(Semaphore::new(places)),
            failed_starts: AtomicU32::new(0),
            crashes: AtomicU64::new(0),
            last_exit: Mutex::default(),
        })
    }

    /// Name of the MCPServer.
    pub fn name(&self) -> &str {
        &self.shared.conf.name
    }

    /// What `/status` says.
    pub fn status(&self) -> ServerStatus {
        let health = self.health.borrow().clone();
        let stalled = self.stalled();
        let in_grace = health.lost.is_some_and(|t| t.elapsed() < self.shared.timing.restart_grace);
        let up = match health.phase {
            ServerPhase::Ready => true,
            ServerPhase::CrashLoop => false,
            ServerPhase::Connect | ServerPhase::Spawn | ServerPhase::Initialize => in_grace,
        };
        let part = if !up {
            PartStatus { ready: false, reason: health.reason.into(), message: health.message }
        } else if let Some(pid) = stalled {
            let message = format!("the server's process {pid} does not answer pings");
            PartStatus { ready: false, reason: "Stalled".into(), message }
        } else {
            PartStatus { ready: true, ..PartStatus::default() }
        };
        let info = health.info.unwrap_or_default();
        let children = self.shared.metrics.children.with_label_values(&[self.name()]).get();
        ServerStatus {
            name: self.name().into(),
            required: self.shared.conf.required,
            phase: health.phase,
            part,
            protocol_version: info.protocol_version,
            server_info: info.server_info,
            tools: info.tools,
            processes: u32::try_from(children).unwrap_or(0),
            crashes: self.crashes.load(Ordering::Relaxed),
            last_exit: self.last_exit.lock().clone(),
        }
    }

    /// Process id of a child that misses its pings.
    fn stalled(&self) -> Option<u32> {
        let sessions = self.sessions.read();
        let missed = |s: &&Arc<Session>| s.child.missed_pings.load(Ordering::Relaxed) >= super::health::STALLED_AFTER;
        sessions.values().find(missed).map(|s| s.child.pid)
    }

    /// The session with this id.
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.read().get(id).cloned()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.read().values().cloned().collect()
    }

    /// Ends a session; its child gets the stop ladder.
    pub fn end_session(&self, id: &str, why: &'static str) -> bool {
        let Some(session) = self.sessions.write().remove(id) else { return false };
        self.session_ended(why);
        session.child.stop(why, self.shared.timing.grace);
        true
    }

    fn session_ended(&self, why: &str) {
        self.shared.metrics.sessions.with_label_values(&[self.name()]).dec();
        self.shared.metrics.sessions_ended.with_label_values(&[self.name(), why]).inc();
    }

    /// Opens a session: waits until the server is ready, starts a child and sends it the client's `initialize`.
    pub async fn open_session(
        self: &Arc<Self>,
        id: String,
        body: Bytes,
        outlet: Outlet,
        streams: bool,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        if !shared.drain.accepting() {
            return Err(Error::Draining);
        }
        self.opened().await?;
        let work = shared.drain.work(shared.container());
        self.ready().await?;
        let child = self.start(Some(id.clone())).await?;
        let session =
            Arc::new(Session { id: id.clone(), child: Arc::clone(&child), last_used: Mutex::new(Instant::now()) });
        self.sessions.write().insert(id.clone(), session);
        shared.metrics.sessions.with_label_values(&[self.name()]).inc();
        let text = std::str::from_utf8(&body).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let envelope = Envelope::parse(text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let limit = shared.start_limit();
        let request = Request { envelope: &envelope, outlet, streams, internal: false, limit, work: Some(work) };
        let sent = child.request(request);
        // It may have ended before it stood in the map.
        if let Some(ending) = child.ending() {
            self.forget(&id, &ending);
        }
        sent
    }

    /// Waits until the container may get new work.
    pub async fn opened(&self) -> Result<(), Error> {
        let (drain, container) = (&self.shared.drain, self.shared.container());
        if !drain.held(container) {
            return Ok(());
        }
        tokio::time::timeout(self.shared.timing.held, drain.opened(container))
            .await
            .map_err(|_| Error::NotReady("its container is being restarted".into()))
    }

    /// Waits until a handshake was done, at most as long as a start may take.
    async fn ready(&self) -> Result<(), Error> {
        let mut health = self.health.subscribe();
        let settled = health.wait_for(|h| {
            matches!(h.phase, ServerPhase::Ready | ServerPhase::CrashLoop)
                || matches!(h.reason, "ShimVersionMismatch" | "FdPassingRefused")
        });
        let settled = tokio::time::timeout(self.shared.start_limit(), settled).await;
        let phase = settled.ok().and_then(Result::ok).map(|h| h.phase);
        let health = self.health.borrow();
        match phase {
            Some(ServerPhase::Ready) => Ok(()),
            Some(ServerPhase::CrashLoop) => Err(Error::CrashLoop(health.message.clone())),
            _ => Err(Error::NotReady(format!("{} ({})", health.message, health.reason))),
        }
    }

    /// Starts a child in a place of its own; with an id it belongs to that session.
    pub async fn start(self: &Arc<Self>, session: Option<String>) -> Result<Arc<Child>, Error> {
        let place = self.place().await?;
        let server = Arc::downgrade(self);
        let deadline = Instant::now() + self.shared.timing.place;
        let attended = session.is_some();
        let mut on_end = Some(move |child: &Arc<Child>, ending: &Ending| {
            drop(place);
            if let Some(server) = server.upgrade() {
                server.child_ended(session.as_deref(), child, ending);
            }
        });
        loop {
            // The shim counts the children of a sidecar before this one, too, which take a moment to end.
            let Some(callback) = on_end.take() else { return Err(Error::ShimLost) };
            let slot = Arc::new(Mutex::new(Some(callback)));
            let inner = Arc::clone(&slot);
            let started = Child::start(&self.shared, attended, move |child, ending| {
                if let Some(callback) = inner.lock().take() {
                    callback(child, ending);
                }
            })
            .await;
            match started {
                Err(Error::TooManyProcesses(_)) if Instant::now() < deadline => on_end = slot.lock().take(),
                Err(error) => {
                    if let Error::SpawnFailed(message) = &error {
                        self.start_failed(&error, message);
                    }
                    return Err(error);
                }
                Ok(child) => return Ok(child),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A place for a child. Waits for one that is about to become free, and ends a forgotten session if none is.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        let most = usize::try_from(self.shared.conf.process.max_processes).unwrap_or(usize::MAX);
        let leaving = self.sessions.read().len() < most;
        if !leaving && !self.evict() {
            return Err(Error::TooManySessions(most));
        }
        match tokio::time::timeout(self.shared.timing.place, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Error::TooManySessions(most)),
        }
    }

    /// Ends the session that was not used for longest, if that is long enough.
    fn evict(&self) -> bool {
        let oldest = self.sessions().into_iter().map(|s| (s.idle(), s)).max_by_key(|(idle, _)| *idle);
        match oldest {
            Some((idle, session)) if idle >= self.shared.timing.evict_idle => self.end_session(&session.id, "evicted"),
            _ => false,
        }
    }

    /// Ends sessions that were idle for too long.
    pub fn expire(&self) {
        let limit = Duration::from_millis(self.shared.conf.process.idle_timeout_ms);
        for session in self.sessions() {
            if session.idle() >= limit {
                self.end_session(&session.id, "idle");
            }
        }
    }

    fn forget(&self, id: &str, ending: &Ending) {
        if self.sessions.write().remove(id).is_some() {
            self.session_ended(match ending {
                Ending::Asked(why) => why,
                Ending::Own(_) => "child_ended",
            });
        }
    }

    fn child_ended(&self, session: Option<&str>, child: &Child, ending: &Ending) {
        if let Some(id) = session {
            self.forget(id, ending);
        }
        let Ending::Own(error) = ending else { return };
        if matches!(error, Error::ShimLost) {
            return;
        }
        self.crashes.fetch_add(1, Ordering::Relaxed);
        let exit = match error {
            Error::ChildExited(exit) => exit.to_string(),
            other => other.to_string(),
        };
        self.last_exit.lock().clone_from(&exit);
        if !child.initialized.load(Ordering::Relaxed) {
            self.start_failed(error, &describe(error));
        }
    }

    /// A child that did not get through its handshake.
    fn start_failed(&self, error: &Error, message: &str) {
        self.shared.metrics.child_start_failures.with_label_values(&[self.name(), error.reason()]).inc();
        let failed = self.failed_starts.fetch_add(1, Ordering::Relaxed) + 1;
        if failed >= CRASH_LOOP_AFTER {
            self.health.send_modify(|h| {
                h.phase = ServerPhase::CrashLoop;
                h.reason = error.reason();
                h.message = format!("{failed} starts in a row failed: {message}");
            });
            self.failing.notify_one();
        }
    }

    /// Starts in a row that failed.
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts.load(Ordering::Relaxed)
    }

    /// The container is another one: what failed before says nothing about it.
    pub fn forget_failures(&self) {
        self.failed_starts.store(0, Ordering::Relaxed);
    }

    /// A handshake was done.
    pub fn handshake_done(&self, info: Info) {
        self.failed_starts.store(0, Ordering::Relaxed);
        self.health.send_replace(Health { phase: ServerPhase::Ready, info: Some(info), ..Health::default() });
    }
}

/// A failure with the end of what the server wrote to stderr, for a status message.
pub fn describe(error: &Error) -> String {
    match error {
        Error::ChildExited(exit) if !exit.tail.trim().is_empty() => {
            format!("{error}; stderr ends with: {}", tail(exit.tail.trim(), STATUS_TAIL))
        }
        other => other.to_string(),
    }
}

impl Server {
    /// A child that lives but refuses its handshake.
    pub fn refused(&self, error: &Error) {
        self.start_failed(error, &describe(error));
    }
}
