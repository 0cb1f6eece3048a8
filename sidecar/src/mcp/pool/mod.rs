//! One tool server: where it stands, its sessions, and its children.
//!
//! Children are [shared](slot) by clients that need nothing of each other told apart, or [owned](Owner) by one session or
//! call. Each takes a [`place`], of which there are `maxProcesses`.

pub mod health;
pub mod hello;
pub mod place;
pub mod reachability;
pub mod shared;
pub mod slot;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use outrigger_protocol::config;
use outrigger_protocol::status::{PartStatus, ServerPhase, ServerStatus};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::bridge::modern::lease::Leases;
use super::bridge::modern::parked::Parked;
use super::child::{Child, Ending, Era};
use super::client::Behind;
use super::error::{Error, tail};
use super::seal::Key as SealedKey;
use super::session::store::Sessions;
use hello::Hello;
use place::Places;
pub use shared::{Eras, Health, Info, Shared};
use slot::{Kind, Slot};

/// Starts in a row that fail before a server counts as looping.
pub const CRASH_LOOP_AFTER: u32 = 3;
/// How much of a child's stderr a status message shows.
const STATUS_TAIL: usize = 300;
/// Between attempts to start a child while the shim still counts one that ends.
const SHIM_FULL_PAUSE: Duration = Duration::from_millis(100);

/// Whose a child is.
#[derive(Clone)]
pub enum Owner {
    /// Nobody's: it is asked about the other era, and its end says nothing about the server.
    Probe,
    /// Nobody's: it does one handshake and ends.
    Check,
    /// That of all clients of a slot.
    Slot(Weak<Slot>),
    /// A session's.
    Session(SealedKey),
    /// That of one call at a time.
    Lease,
}

impl Owner {
    /// As a metric label.
    fn label(&self) -> &'static str {
        match self {
            Self::Probe | Self::Check => "probe",
            Self::Slot(_) => "shared",
            Self::Session(_) => "session",
            Self::Lease => "call",
        }
    }
}

/// A living child.
struct Member {
    child: Arc<Child>,
    owner: Owner,
}

/// See the module.
pub struct Server {
    /// What its children need of it.
    pub shared: Arc<Shared>,
    /// Where it stands.
    pub health: watch::Sender<Health>,
    /// Which eras it speaks.
    pub eras: watch::Sender<Eras>,
    /// Wakes the prober: children fail to start.
    pub failing: Notify,
    /// Its sessions.
    pub sessions: Sessions,
    /// Processes for one call at a time that are idle.
    pub leases: Leases,
    /// Calls that wait for their clients.
    pub parked: Parked,
    legacy_hello: ArcSwapOption<Hello>,
    slots: Mutex<HashMap<Kind, Arc<Slot>>>,
    members: Mutex<Vec<Member>>,
    places: Places,
    failed_starts: AtomicU32,
    crashes: AtomicU64,
    last_exit: Mutex<String>,
    last_error: Mutex<String>,
    /// The last handshake got no answer in time.
    hung: AtomicBool,
    me: Weak<Self>,
}

impl Server {
    /// Knows its configuration; nothing runs yet.
    pub fn new(shared: Shared) -> Arc<Self> {
        let shared = Arc::new(shared);
        let built_in = shared.built_in.is_some();
        let eras = match shared.conf.era {
            config::Era::Auto if built_in => Eras { legacy: Some(true), modern: Some(true), ..Eras::default() },
            config::Era::Auto => Eras::default(),
            config::Era::Legacy => Eras { legacy: Some(true), modern: Some(false), ..Eras::default() },
            config::Era::Modern => Eras { legacy: Some(false), modern: Some(true), ..Eras::default() },
        };
        Arc::new_cyclic(|me| Self {
            health: watch::Sender::new(if built_in {
                Health { phase: ServerPhase::Ready, ..Health::default() }
            } else {
                Health {
                    reason: "ShimUnreachable",
                    message: "the tool container was not reached yet".into(),
                    ..Health::default()
                }
            }),
            eras: watch::Sender::new(eras),
            failing: Notify::new(),
            sessions: Sessions::new(Arc::clone(&shared)),
            leases: Leases::default(),
            parked: Parked::default(),
            legacy_hello: ArcSwapOption::empty(),
            slots: Mutex::default(),
            members: Mutex::default(),
            places: Places::new(shared.conf.process.max_processes),
            failed_starts: AtomicU32::new(0),
            crashes: AtomicU64::new(0),
            last_exit: Mutex::default(),
            last_error: Mutex::default(),
            hung: AtomicBool::new(false),
            me: me.clone(),
            shared,
        })
    }

    /// Name of the MCPServer.
    pub fn name(&self) -> &str {
        &self.shared.conf.name
    }

    /// What `/status` says.
    pub fn status(&self) -> ServerStatus {
        let health = self.health.borrow().clone();
        let in_grace = health.lost.is_some_and(|t| t.elapsed() < self.shared.timing.restart_grace);
        let up = match health.phase {
            ServerPhase::Ready => true,
            ServerPhase::CrashLoop => false,
            ServerPhase::Connect | ServerPhase::Spawn | ServerPhase::Initialize => in_grace,
        };
        let part = if !up {
            PartStatus { ready: false, reason: health.reason.into(), message: health.message }
        } else if let Some(pid) = self.stalled() {
            let message = format!("the server's process {pid} does not answer pings");
            PartStatus { ready: false, reason: "Stalled".into(), message }
        } else {
            PartStatus { ready: true, ..PartStatus::default() }
        };
        let info = health.info.unwrap_or_default();
        let eras = self.eras.borrow().clone();
        let metrics = &self.shared.metrics;
        ServerStatus {
            name: self.name().into(),
            required: self.shared.conf.required,
            phase: health.phase,
            part,
            protocol_version: info.protocol_version,
            server_info: info.server_info,
            tools: info.tools,
            tool_digests: info.tool_digests,
            processes: u32::try_from(metrics.children.with_label_values(&[self.name()]).get()).unwrap_or(0),
            crashes: self.crashes.load(Ordering::Relaxed),
            last_exit: self.last_exit.lock().clone(),
            era: match (eras.legacy, eras.modern) {
                (Some(true), Some(true)) => "dual",
                (Some(false), Some(true)) => "modern",
                (Some(true), Some(false)) => "legacy",
                _ => "",
            }
            .into(),
            versions: eras.versions,
            last_error: self.last_error.lock().clone(),
            restarts: metrics.shim_restarts.with_label_values(&[self.name()]).get(),
        }
    }

    /// Process id of a child that misses its pings.
    fn stalled(&self) -> Option<u32> {
        let members = self.members.lock();
        let missed = |m: &&Member| m.child.missed_pings.load(Ordering::Relaxed) >= health::STALLED_AFTER;
        members.iter().find(missed).map(|m| m.child.pid)
    }

    /// Living children and whose they are.
    fn children(&self) -> Vec<(Arc<Child>, Owner)> {
        self.members.lock().iter().map(|m| (Arc::clone(&m.child), m.owner.clone())).collect()
    }

    /// The slot of clients of one kind.
    pub fn slot(&self, kind: &Kind) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(kind) {
            return Arc::clone(slot);
        }
        // Kinds are the clients' to choose: those that nobody uses are forgotten.
        slots.retain(|_, slot| !slot.unused());
        let slot = Slot::new(kind.clone(), self.me.clone());
        slots.insert(kind.clone(), Arc::clone(&slot));
        slot
    }

    /// Whether clients may share a child at all.
    pub fn shares(&self) -> bool {
        self.shared.conf.process.sharing != config::Sharing::PerSession
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
    pub async fn ready(&self) -> Result<(), Error> {
        if self.health.borrow().phase == ServerPhase::Ready {
            return Ok(());
        }
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

    /// Whether the server speaks the stateless revision; waits until that is known.
    pub async fn modern(&self) -> Result<bool, Error> {
        if let Some(known) = self.eras.borrow().modern {
            return Ok(known);
        }
        let mut eras = self.eras.subscribe();
        let known = tokio::time::timeout(self.shared.start_limit(), eras.wait_for(|e| e.modern.is_some())).await;
        match known {
            Ok(Ok(eras)) => Ok(eras.modern == Some(true)),
            _ => Err(Error::NotReady("which revisions it speaks is not known yet".into())),
        }
    }

    /// Whether the server speaks the handshake revisions: so, unless it is known not to.
    pub fn legacy(&self) -> bool {
        self.eras.borrow().legacy != Some(false)
    }

    /// Starts a child in a place of its own. Nothing is said to it yet.
    pub async fn start(&self, era: Era, behind: impl Fn() -> Behind, owner: Owner) -> Result<Arc<Child>, Error> {
        let mut place = Some(self.place().await?);
        let deadline = Instant::now() + self.shared.timing.place;
        loop {
            // The shim counts the children of a sidecar before this one, too, which take a moment to end.
            let held = Arc::new(Mutex::new(place.take()));
            let (server, inner) = (self.me.clone(), Arc::clone(&held));
            let started = Child::start(&self.shared, era, behind(), move |child, ending| {
                drop(inner.lock().take());
                if let Some(server) = server.upgrade() {
                    server.child_ended(child, ending);
                }
            })
            .await;
            match started {
                Err(Error::TooManyProcesses(_)) if Instant::now() < deadline => place = held.lock().take(),
                Err(error) => {
                    if let Error::SpawnFailed(message) = &error {
                        self.start_failed(&error, message);
                    }
                    return Err(error);
                }
                Ok(child) => {
                    self.shared.metrics.uses.with_label_values(&[self.name(), owner.label()]).inc();
                    self.members.lock().push(Member { child: Arc::clone(&child), owner });
                    // It may have ended before it stood in the list.
                    if child.ending().is_some() {
                        self.forget(&child);
                    }
                    return Ok(child);
                }
            }
            tokio::time::sleep(SHIM_FULL_PAUSE).await;
        }
    }

    fn forget(&self, child: &Arc<Child>) -> Option<Owner> {
        let mut members = self.members.lock();
        let at = members.iter().position(|m| Arc::ptr_eq(&m.child, child))?;
        let owner = members.swap_remove(at).owner;
        self.shared.metrics.uses.with_label_values(&[self.name(), owner.label()]).dec();
        Some(owner)
    }

    fn child_ended(&self, child: &Arc<Child>, ending: &Ending) {
        let owner = self.forget(child);
        if let Some(Owner::Session(key)) = &owner {
            let why = match ending {
                Ending::Asked(why) => why,
                Ending::Own(_) => "child_ended",
            };
            self.sessions.end(key, why);
        }
        if let Some(Owner::Slot(slot)) = &owner
            && let Some(slot) = slot.upgrade()
        {
            slot.lost(child, ending);
        }
        let Ending::Own(error) = ending else { return };
        *self.last_error.lock() = describe(error);
        if matches!(error, Error::ShimLost) {
            return;
        }
        self.crashes.fetch_add(1, Ordering::Relaxed);
        let exit = match error {
            Error::ChildExited(exit) => exit.to_string(),
            other => other.to_string(),
        };
        self.last_exit.lock().clone_from(&exit);
        if !child.greeted() && !matches!(owner, Some(Owner::Probe)) {
            self.start_failed(error, &describe(error));
        }
    }

    /// A child that did not get through its handshake.
    pub fn start_failed(&self, error: &Error, message: &str) {
        self.shared.metrics.child_start_failures.with_label_values(&[self.name(), error.reason()]).inc();
        message.clone_into(&mut self.last_error.lock());
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

    /// A child that lives but refuses its handshake.
    pub fn refused(&self, error: &Error) {
        self.start_failed(error, &describe(error));
    }

    /// A child runs and is about to do its handshake.
    pub fn child_started(&self) {
        // What is known of a server that loops or hung is not made less by another try.
        if self.failed_starts() >= CRASH_LOOP_AFTER || self.hung.load(Ordering::Relaxed) {
            return;
        }
        self.health.send_if_modified(|h| {
            let open = h.phase != ServerPhase::Ready;
            if open {
                h.phase = ServerPhase::Initialize;
                h.reason = "Initializing";
                h.message = "the server has not answered initialize yet".into();
            }
            open
        });
    }

    /// It was a question in the wrong era that failed, not the server.
    pub fn forgive(&self) {
        self.failed_starts.store(0, Ordering::Relaxed);
        self.last_error.lock().clear();
    }

    /// Starts in a row that failed.
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts.load(Ordering::Relaxed)
    }

    /// The container is another one: what was found out before says nothing about it.
    pub fn forget_container(&self) {
        self.failed_starts.store(0, Ordering::Relaxed);
        self.legacy_hello.store(None);
        if self.shared.conf.era == config::Era::Auto {
            self.eras.send_replace(Eras::default());
        }
    }

    /// A handshake was done.
    pub fn handshake_done(&self, info: Info) {
        self.failed_starts.store(0, Ordering::Relaxed);
        self.health.send_replace(Health { phase: ServerPhase::Ready, info: Some(info), ..Health::default() });
    }

    /// What the server said last in a handshake.
    pub fn legacy_hello(&self) -> Option<Arc<Hello>> {
        self.legacy_hello.load_full()
    }

    /// What a handshake in an era told.
    pub fn learned(&self, hello: &Hello) {
        if hello.era == Era::Legacy {
            self.legacy_hello.store(Some(Arc::new(hello.clone())));
        }
        self.eras.send_modify(|eras| {
            match hello.era {
                Era::Legacy => eras.legacy = Some(true),
                Era::Modern => eras.modern = Some(true),
            }
            for version in &hello.versions {
                if !eras.versions.contains(version) && eras.versions.len() < hello::MAX_VERSIONS {
                    eras.versions.push(version.clone());
                }
            }
        });
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
