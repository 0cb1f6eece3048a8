//! What every part of the sidecar gets at its start.

use std::sync::Arc;

use outrigger_protocol::config::{Boot, Live, LocalUrls};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::drain::Drain;

/// Shared by all parts; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// What binds to the pod template; never changes.
    pub boot: Arc<Boot>,
    /// The live configuration in force; changes without a restart.
    pub live: watch::Receiver<Arc<Live>>,
    /// This pod's local URLs, the token included: given to the agent in each turn. Never log them.
    pub urls: Arc<LocalUrls>,
    /// The pod's local secret, which also authenticates the sidecar to the handler. Never log it.
    pub token: Arc<str>,
    /// Work in flight per container, and whether new work is taken.
    pub drain: Arc<Drain>,
    /// Where each part registers its metrics.
    pub registry: prometheus::Registry,
    /// Cancelled when the process must end.
    pub shutdown: CancellationToken,
}
