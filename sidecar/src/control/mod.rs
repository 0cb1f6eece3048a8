//! The way to the operator: newer live documents as they are written, bytes of skills, proposals.
//!
//! Nothing in a pod waits for it. A pod starts from its volumes and works on with the last good document while the operator
//! is away; the metric `outrigger_control_connected` and `/status` say so.

mod client;
mod error;
mod follow;
mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::config::Live;
use outrigger_protocol::control::{Proposal, Proposed};
use outrigger_protocol::status::{ControlStatus, PartStatus};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::outbound::resolve::Resolver;
use client::Requests;

pub use client::MAX_BUNDLE_BYTES;
pub use error::ControlError;
pub use follow::Pauses;
pub use metrics::Metrics;

/// A connection that is away for less than this is no fault: operators are updated.
pub const FORGIVEN: Duration = Duration::from_secs(60);

/// Where the connection stands.
struct State {
    connected: bool,
    /// When it was last connected; before that, the start.
    last: Instant,
    /// Why the last try failed.
    error: Option<(&'static str, String)>,
}

/// The way to the operator.
pub struct Control {
    live: watch::Receiver<Arc<Live>>,
    requests: Requests,
    state: Mutex<State>,
    metrics: Metrics,
    pauses: Pauses,
}

impl Control {
    /// `token` is the file with the token of this pod's ServiceAccount. Where the operator is stands in the live document.
    pub fn new(
        live: watch::Receiver<Arc<Live>>,
        token: PathBuf,
        resolver: Arc<dyn Resolver>,
        pauses: Pauses,
        registry: &Registry,
    ) -> Result<Arc<Self>, prometheus::Error> {
        Ok(Arc::new(Self {
            requests: Requests::new(live.clone(), token, resolver),
            live,
            state: Mutex::new(State { connected: false, last: Instant::now(), error: None }),
            metrics: Metrics::register(registry)?,
            pauses,
        }))
    }

    /// The bytes of the bundle whose tree digest this is: one that the live document names. What is in them is the
    /// caller's to check.
    pub async fn bundle(&self, digest: &str) -> Result<Bytes, ControlError> {
        let answer = self.requests.bundle(digest).await;
        let outcome = answer.as_ref().map_or_else(ControlError::label, |_| "ok");
        self.metrics.bundles.with_label_values(&[outcome]).inc();
        answer
    }

    /// Proposes a change to a skill.
    pub async fn propose(&self, proposal: &Proposal) -> Result<Proposed, ControlError> {
        self.requests.propose(proposal).await
    }

    /// How it is, for `/status`; brings the gauges up to date.
    pub fn status(&self) -> ControlStatus {
        let state = self.state.lock();
        let away = if state.connected { Duration::ZERO } else { state.last.elapsed() };
        self.metrics.connected.set(i64::from(state.connected));
        self.metrics.stale.set(i64::try_from(away.as_secs()).unwrap_or(i64::MAX));
        let part = if self.live.borrow().control.is_none() {
            // Neither well nor unwell.
            PartStatus::default()
        } else if away <= FORGIVEN {
            PartStatus { ready: true, ..PartStatus::default() }
        } else {
            let (reason, message) = state.error.clone().unwrap_or(("ControlUnreachable", "not connected yet".into()));
            PartStatus { ready: false, reason: reason.into(), message }
        };
        ControlStatus { connected: state.connected, stale_seconds: away.as_secs(), part }
    }
}
