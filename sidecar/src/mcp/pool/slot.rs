//! The place of a shared child: its clients stay when the child is another one.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::FutureExt as _;
use futures::future::Shared as SharedFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::hello::{self, Hello};
use super::{Owner, Server};
use crate::mcp::child::{Child, Ending, Era};
use crate::mcp::client::{Audience, Behind};
use crate::mcp::error::Error;

/// The number under which the level of requests without a session stands: no client has it.
const RAISED: u64 = u64::MAX;
/// Children that ended this long after they were started are none of those before.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// What clients must have in common to share a child.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// How the child is spoken to.
    pub era: Era,
    /// The revision that it is offered.
    pub revision: Box<str>,
    /// The capabilities that it is told, raw.
    pub capabilities: Box<str>,
}

impl Kind {
    /// Clients of the stateless revision.
    pub fn modern() -> Self {
        let revision = outrigger_protocol::mcp::MODERN_REVISIONS[0];
        Self { era: Era::Modern, revision: revision.into(), capabilities: "{}".into() }
    }

    /// Clients of a handshake revision.
    pub fn legacy(revision: &str, capabilities: &str) -> Self {
        Self { era: Era::Legacy, revision: revision.into(), capabilities: capabilities.into() }
    }

    /// Clients of the newest handshake revision that declare nothing.
    pub fn plain() -> Self {
        Self::legacy(outrigger_protocol::mcp::HANDSHAKE_REVISIONS[0], "{}")
    }
}

type Start = SharedFuture<Pin<Box<dyn Future<Output = Result<Arc<Child>, Error>> + Send>>>;

/// How often its children ended lately.
#[derive(Default)]
struct Trouble {
    ends: u32,
    not_before: Option<Instant>,
}

/// See the module.
pub struct Slot {
    /// What its clients have in common.
    pub kind: Kind,
    /// Its clients.
    pub audience: Arc<Audience>,
    child: ArcSwapOption<Child>,
    hello: ArcSwapOption<Hello>,
    start: Mutex<Option<Start>>,
    trouble: Mutex<Trouble>,
    server: Weak<Server>,
    me: Weak<Self>,
}

impl Slot {
    /// Without a child.
    pub fn new(kind: Kind, server: Weak<Server>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            kind,
            audience: Arc::default(),
            child: ArcSwapOption::empty(),
            hello: ArcSwapOption::empty(),
            start: Mutex::default(),
            trouble: Mutex::default(),
            server,
            me: me.clone(),
        })
    }

    /// Its child, if it takes requests.
    pub fn living(&self) -> Option<Arc<Child>> {
        self.child.load_full().filter(|c| c.living())
    }

    /// What its last child said of itself.
    pub fn hello(&self) -> Option<Arc<Hello>> {
        self.hello.load_full()
    }

    /// Whether it has neither clients nor a child, and gets none now.
    pub fn unused(&self) -> bool {
        self.child.load().is_none() && self.start.lock().is_none() && self.unused_but_for_its_child()
    }

    /// Whether it has no clients.
    pub fn unused_but_for_its_child(&self) -> bool {
        self.audience.is_empty()
    }

    /// Whether its child did nothing for so long.
    pub fn pausing(&self, limit: Duration) -> bool {
        self.audience.watched().is_empty() && self.child.load().as_ref().is_some_and(|c| c.idle() >= limit)
    }

    /// Its child; one that is gone is started again, once for all who wait.
    pub async fn child(&self) -> Result<Arc<Child>, Error> {
        if let Some(child) = self.living() {
            return Ok(child);
        }
        self.starting()?.await
    }

    /// The start under way, or a new one.
    fn starting(&self) -> Result<Start, Error> {
        let mut start = self.start.lock();
        if let Some(start) = &*start {
            return Ok(start.clone());
        }
        let (Some(slot), Some(server)) = (self.me.upgrade(), self.server.upgrade()) else {
            return Err(Error::ShimLost);
        };
        // A task of its own: whoever began to wait may leave.
        let task = tokio::spawn(async move {
            let started = slot.begin(&server).await;
            *slot.start.lock() = None;
            started
        });
        let begun: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { task.await.unwrap_or(Err(Error::ShimLost)) });
        let begun = begun.shared();
        *start = Some(begun.clone());
        Ok(begun)
    }

    async fn begin(self: &Arc<Self>, server: &Arc<Server>) -> Result<Arc<Child>, Error> {
        let pause = self.trouble.lock().not_before;
        if let Some(until) = pause {
            tokio::time::sleep_until(until).await;
        }
        let owner = Owner::Slot(self.me.clone());
        let behind = || Behind::Many(Arc::clone(&self.audience));
        let child = server.start(self.kind.era, behind, owner).await?;
        server.child_started();
        let hello = match hello::greet(&child, &self.kind.revision, &self.kind.capabilities, None).await {
            Ok(hello) => hello,
            Err(error) => {
                child.stop("refused", server.shared.timing.probe_grace);
                // A child that has ended counts by itself.
                if matches!(error, Error::InitializeFailed(_)) {
                    server.refused(&error);
                }
                return Err(error);
            }
        };
        server.learned(&hello);
        self.hello.store(Some(Arc::new(hello)));
        self.replay(&child);
        self.child.store(Some(Arc::clone(&child)));
        // It may have ended before it stood here.
        if child.ending().is_some() {
            self.child.store(None);
        }
        Ok(child)
    }

    /// Has a child log at least as much as a request wants to hear; it stays at that.
    pub fn raise_level(&self, child: &Arc<Child>, level: usize) {
        if !self.hello().is_some_and(|h| h.can("logging")) || self.audience.level().is_some_and(|l| l <= level) {
            return;
        }
        self.audience.set_level(RAISED, level);
        let params = format!(r#"{{"level":"{}"}}"#, outrigger_protocol::mcp::meta::LOG_LEVELS[level]);
        let _ = child.demand("logging/setLevel", &params);
    }

    /// Tells a new child what its clients told the one before.
    fn replay(&self, child: &Arc<Child>) {
        if self.kind.era == Era::Modern {
            return;
        }
        let limit = child.shared.request_limit();
        let calls = self.audience.told();
        if calls.is_empty() {
            return;
        }
        let child = Arc::clone(child);
        tokio::spawn(async move {
            for (method, params) in calls {
                match child.call(method, &params, limit).await {
                    Ok(answer) if answer.ok() => {}
                    Ok(_) | Err(_) => {
                        tracing::warn!(
                            target: "protocol", server = child.shared.conf.name, method,
                            "a new process did not take over what the one before was told"
                        );
                    }
                }
            }
        });
    }

    /// Its child is gone. Clients that listen get another one without asking.
    pub fn lost(&self, child: &Arc<Child>, ending: &Ending) {
        let current = self.child.load();
        if !current.as_ref().is_some_and(|c| Arc::ptr_eq(c, child)) {
            return;
        }
        self.child.store(None);
        if !matches!(ending, Ending::Own(_) | Ending::Asked(super::health::STALLED)) {
            return;
        }
        let Some(server) = self.server.upgrade() else { return };
        {
            let (first, longest) = server.shared.timing.restart;
            let mut trouble = self.trouble.lock();
            if child.since.elapsed() >= WELL_AFTER {
                *trouble = Trouble::default();
            }
            // The first one is replaced at once.
            let pause = first.saturating_mul(1 << trouble.ends.saturating_sub(1).min(16)).min(longest);
            trouble.not_before = (trouble.ends > 0).then(|| Instant::now() + super::health::jitter(pause));
            trouble.ends = trouble.ends.saturating_add(1);
        }
        if !self.audience.is_empty()
            && let Some(me) = self.me.upgrade()
        {
            tokio::spawn(async move {
                if let Err(error) = me.child().await {
                    tracing::warn!(target: "transport", %error, "a shared process is not replaced");
                }
            });
        }
    }

    /// A client has left.
    pub fn left(&self, serial: u64) {
        let alone = self.audience.leave(serial);
        let Some(child) = self.living() else { return };
        child.drop_client(serial, &Error::SessionEnded);
        if alone.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for uri in alone {
                let params = serde_json::json!({ "uri": uri }).to_string();
                let _ = child.call("resources/unsubscribe", &params, child.shared.request_limit()).await;
            }
        });
    }
}
