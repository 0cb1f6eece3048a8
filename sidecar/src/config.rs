//! Reading the configuration: the boot document once, the live document again and again.
//!
//! A ConfigMap volume changes by a swap of a symlink, so the live document is polled; one that does not parse or
//! validate is refused as a whole and the last good one stays, visible in metrics, log and `/status`. While the operator is
//! [connected](crate::control) its word counts in place of the file's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_protocol::config::{Boot, ConfigError, Live};
use outrigger_protocol::digest::sha256;
use outrigger_protocol::status::ConfigStatus;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How often the live document is looked at.
pub const POLL: Duration = Duration::from_secs(1);
/// Largest configuration document, that of a ConfigMap.
pub const MAX_DOCUMENT: u64 = 1 << 20;

/// Why the sidecar cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A document is not there or cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// File of the document.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A document is refused.
    #[error("{path}: {source}")]
    Refused {
        /// File of the document.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
}

fn read(path: &Path) -> Result<Vec<u8>, StartError> {
    let unreadable = |source| StartError::Unreadable { path: path.into(), source };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_DOCUMENT {
        return Err(unreadable(std::io::Error::other(format!("{size} bytes, at most {MAX_DOCUMENT} are read"))));
    }
    std::fs::read(path).map_err(unreadable)
}

/// Reads the boot document.
pub fn boot(path: &Path) -> Result<Boot, StartError> {
    Boot::parse(&read(path)?).map_err(|source| StartError::Refused { path: path.into(), source })
}

fn parse(bytes: &[u8], wants_card: bool) -> Result<Live, ConfigError> {
    let live = Live::parse(bytes)?;
    if wants_card && live.card.is_null() {
        return Err(ConfigError::Invalid { path: "card".into(), message: "is missing: this pod has an agent".into() });
    }
    Ok(live)
}

/// The live document in force and what became of newer ones.
#[derive(Debug)]
pub struct LiveConfig {
    path: PathBuf,
    /// Whether there is an agent, which has a card.
    wants_card: bool,
    /// Digest of the file as it was last looked at.
    seen: Mutex<Option<String>>,
    /// Whether the operator is connected: then the file does not count.
    held: AtomicBool,
    status: Mutex<ConfigStatus>,
    sender: watch::Sender<Arc<Live>>,
    metrics: Metrics,
}

impl LiveConfig {
    /// Reads the document for the first time; without a good one the sidecar does not start.
    pub fn start(path: &Path, metrics: Metrics) -> Result<Arc<Self>, StartError> {
        Self::start_with(path, true, metrics)
    }

    /// The same for a pod without an agent: its document has no card.
    pub fn start_without_card(path: &Path, metrics: Metrics) -> Result<Arc<Self>, StartError> {
        Self::start_with(path, false, metrics)
    }

    fn start_with(path: &Path, wants_card: bool, metrics: Metrics) -> Result<Arc<Self>, StartError> {
        let bytes = read(path)?;
        let live = parse(&bytes, wants_card).map_err(|source| StartError::Refused { path: path.into(), source })?;
        let digest = sha256(&bytes);
        metrics.config_loads.with_label_values(&["accepted"]).inc();
        Ok(Arc::new(Self {
            path: path.into(),
            wants_card,
            seen: Mutex::new(Some(digest.clone())),
            held: AtomicBool::new(false),
            status: Mutex::new(ConfigStatus { digest, error: None }),
            sender: watch::Sender::new(Arc::new(live)),
            metrics,
        }))
    }

    /// Follows the document in force.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Live>> {
        self.sender.subscribe()
    }

    /// Digest in force, and why a newer document was refused.
    pub fn status(&self) -> ConfigStatus {
        self.status.lock().clone()
    }

    /// From now on the operator's word counts, and the file does not: a volume is a minute behind.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// The operator is away. The file counts again, but only what is written to it from now on: as it is, it may be older
    /// than the document in force.
    pub fn release(&self) {
        self.note();
        self.held.store(false, Ordering::Release);
    }

    fn note(&self) {
        if let Ok(bytes) = read(&self.path) {
            *self.seen.lock() = Some(sha256(&bytes));
        }
    }

    /// Takes a document of the operator.
    pub fn offer(&self, bytes: &[u8]) {
        let new = sha256(bytes);
        if self.status.lock().digest == new {
            return self.accepted(&new, None);
        }
        match parse(bytes, self.wants_card) {
            Ok(live) => self.accepted(&new, Some(live)),
            Err(e) => self.refuse(None, &e.to_string()),
        }
    }

    /// A good document; without one it is that in force again.
    fn accepted(&self, digest: &str, live: Option<Live>) {
        let before = std::mem::replace(&mut *self.status.lock(), ConfigStatus { digest: digest.into(), error: None });
        if before.error.is_some() || live.is_some() {
            self.metrics.config_refused.set(0);
        }
        if let Some(live) = live {
            self.metrics.config_loads.with_label_values(&["accepted"]).inc();
            self.sender.send_replace(Arc::new(live));
            tracing::info!(target: "business", digest, "live configuration reloaded");
        }
    }

    /// Looks at the file once.
    pub fn reload(&self) {
        if self.held.load(Ordering::Acquire) {
            return self.note();
        }
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            // Between two states of the volume, or deleted: the last good one stays.
            Err(e) => return self.refuse(None, &e.to_string()),
        };
        let new = sha256(&bytes);
        if self.seen.lock().as_ref() == Some(&new) {
            let is_in_force = self.status.lock().digest == new;
            if is_in_force {
                self.accepted(&new, None);
            }
            return;
        }
        match parse(&bytes, self.wants_card) {
            Ok(live) => {
                *self.seen.lock() = Some(new.clone());
                self.accepted(&new, Some(live));
            }
            Err(e) => self.refuse(Some(new), &e.to_string()),
        }
    }

    fn refuse(&self, digest: Option<String>, error: &str) {
        let mut status = self.status.lock();
        let known = status.error.as_deref() == Some(error);
        if digest.is_some() {
            *self.seen.lock() = digest;
        }
        if !known {
            self.metrics.config_loads.with_label_values(&["refused"]).inc();
            self.metrics.config_refused.set(1);
            tracing::warn!(target: "business", error, "live configuration refused, the last good one stays");
            status.error = Some(error.to_owned());
        }
    }

    /// Looks at the document until shutdown.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => self.reload(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live(max: u64) -> String {
        let card = json!({"name": "a", "description": "d", "version": "1", "supportedInterfaces": [], "skills": []});
        json!({"version": 1, "card": card, "limits": {"maxRequestBytes": max}}).to_string()
    }

    #[test]
    fn a_pod_with_an_agent_wants_a_card() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.json");
        std::fs::write(&path, r#"{"version": 1, "card": null}"#).unwrap();
        let metrics = || Metrics::new(&prometheus::Registry::new()).unwrap();
        assert!(LiveConfig::start(&path, metrics()).unwrap_err().to_string().contains("card"));
        let config = LiveConfig::start_without_card(&path, metrics()).unwrap();
        assert_eq!(config.subscribe().borrow().mcp.access, None);
    }

    #[test]
    fn the_operators_word_counts_while_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.json");
        std::fs::write(&path, live(1024)).unwrap();
        let config = LiveConfig::start(&path, Metrics::new(&prometheus::Registry::new()).unwrap()).unwrap();
        let rx = config.subscribe();
        let in_force = || rx.borrow().limits.max_request_bytes;
        config.hold();
        config.offer(live(2048).as_bytes());
        assert_eq!((in_force(), config.status().digest), (2048, sha256(live(2048).as_bytes())));
        // The volume is behind.
        std::fs::write(&path, live(1536)).unwrap();
        config.reload();
        assert_eq!(in_force(), 2048);
        config.offer(live(0).as_bytes());
        assert!(config.status().error.unwrap().contains("limits.maxRequestBytes"));
        assert_eq!(in_force(), 2048);
        config.offer(live(2048).as_bytes());
        assert_eq!(config.status().error, None);
        std::fs::write(&path, live(1792)).unwrap();
        config.release();
        config.reload();
        assert_eq!(in_force(), 2048, "what was written before the loss does not count");
        std::fs::write(&path, live(4096)).unwrap();
        config.reload();
        assert_eq!(in_force(), 4096);
    }

    #[test]
    fn a_bad_document_is_refused_and_the_good_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.json");
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        assert!(matches!(LiveConfig::start(&path, metrics.clone()), Err(StartError::Unreadable { .. })));
        std::fs::write(&path, live(2048)).unwrap();
        let config = LiveConfig::start(&path, metrics).unwrap();
        let rx = config.subscribe();
        std::fs::write(&path, live(0)).unwrap();
        config.reload();
        assert_eq!(rx.borrow().limits.max_request_bytes, 2048);
        assert!(config.status().error.unwrap().contains("limits.maxRequestBytes"));
        std::fs::remove_file(&path).unwrap();
        config.reload();
        assert!(config.status().error.unwrap().contains("cannot read"));
        std::fs::write(&path, live(4096)).unwrap();
        config.reload();
        assert_eq!(rx.borrow().limits.max_request_bytes, 4096);
        assert_eq!(config.status().error, None);
        std::fs::remove_file(&path).unwrap();
        config.reload();
        std::fs::write(&path, live(4096)).unwrap();
        config.reload();
        assert_eq!(config.status().error, None, "the same document is back");
    }
}
