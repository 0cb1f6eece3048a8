//! What a server, its sessions and its children know of each other.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use outrigger_protocol::config;
use outrigger_protocol::status::ServerPhase;
use tokio::time::Instant;

use crate::drain::Drain;
use crate::mcp::builtin::BuiltIn;
use crate::mcp::client::Audience;
use crate::mcp::error::Error;
use crate::mcp::metrics::Metrics;
use crate::mcp::policy::Policy;
use crate::mcp::seal::Seal;
use crate::mcp::timing::Timing;
use crate::mcp::wire_http::Upstream;

/// What a server, its sessions and its children share.
pub struct Shared {
    /// From the boot document.
    pub conf: config::Server,
    /// The server itself, where it is a part of the sidecar.
    pub built_in: Option<Arc<dyn BuiltIn>>,
    /// Waits.
    pub timing: Timing,
    /// Metrics.
    pub metrics: Metrics,
    /// Work in flight.
    pub drain: Arc<Drain>,
    /// Seals what clients carry for us.
    pub seal: Arc<Seal>,
    /// Clients without a session that listen for changes of the server as a whole.
    pub listeners: Audience,
    /// What connections to a server over HTTP share, once there is one.
    pub upstream: OnceLock<Arc<Upstream>>,
    /// What callers may do with its tools.
    pub policy: Policy,
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

/// What a handshake and a listing told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Revision that the server answered with.
    pub protocol_version: String,
    /// Name and version of the server's own.
    pub server_info: String,
    /// Names of its tools.
    pub tools: Vec<String>,
    /// SHA-256 (hex) of their definitions, by name.
    pub tool_digests: BTreeMap<String, String>,
}

/// Which eras a server speaks, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eras {
    /// Whether it knows `initialize`.
    pub legacy: Option<bool>,
    /// Whether it knows requests that carry all they need.
    pub modern: Option<bool>,
    /// All revisions that it has named.
    pub versions: Vec<String>,
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
