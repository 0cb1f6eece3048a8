//! What pods say of themselves: `/status` of their admin port, read by the leader.
//!
//! A pod is read when it changes, every second or so while a part of it is not ready (more rarely after two minutes),
//! and once a minute otherwise.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use outrigger_protocol::status::{PartStatus, PodStatus};
use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Longest time for one read.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer of a pod.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Reads at once.
const MAX_READS: usize = 32;
/// Pods waiting to be taken up; more wait at the watch.
const QUEUE: usize = 1024;
/// Between reads of a pod that is not ready, at first.
const SOON: Duration = Duration::from_secs(1);
/// For this long.
const SOON_LASTS: Duration = Duration::from_mins(2);
/// Between reads of a pod that is not ready, later.
const LATER: Duration = Duration::from_secs(10);
/// Between reads of a pod where all is well.
const RARELY: Duration = Duration::from_mins(1);
/// Failed reads in a row after which the last good one no longer counts.
const FORGIVEN: u32 = 2;

/// What is known of one pod: its own words, or why they could not be read.
pub type Fact = Result<Arc<PodStatus>, String>;

/// Facts by the uid of the pod.
#[derive(Clone, Default)]
pub struct Facts {
    known: Arc<RwLock<HashMap<String, Fact>>>,
}

impl Facts {
    /// What is known of a pod.
    pub fn get(&self, uid: &str) -> Option<Fact> {
        self.known.read().get(uid).cloned()
    }

    /// Keeps what a pod said; whether that changes anything worth a look.
    pub fn put(&self, uid: &str, fact: Fact) -> bool {
        let mut known = self.known.write();
        let changed = match (known.get(uid), &fact) {
            (Some(Ok(old)), Ok(new)) => essence(old) != essence(new),
            (Some(Err(old)), Err(new)) => old != new,
            _ => true,
        };
        known.insert(uid.into(), fact);
        changed
    }

    fn remove(&self, uid: &str) {
        self.known.write().remove(uid);
    }
}

/// Without what changes all the time.
fn essence(status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    for server in &mut status.servers {
        server.processes = 0;
        server.crashes = 0;
        if server.part.ready {
            server.last_exit.clear();
        }
    }
    // How long is the pod's own to know; that it is too long is in the part.
    (status.control.connected, status.control.stale_seconds) = (status.control.part.ready, 0);
    status.push_dead_letters = magnitude(status.push_dead_letters);
    status
}

/// The largest power of ten that a count has reached, or 0: what grows all the time is worth a word now and then.
pub fn magnitude(count: u64) -> u64 {
    count.checked_ilog10().map_or(0, |digits| 10_u64.saturating_pow(digits))
}

/// Whether a part says how it is. One of an older sidecar does not, and is neither well nor unwell.
pub fn tells(part: &PartStatus) -> bool {
    part.ready || !part.reason.is_empty() || !part.message.is_empty()
}

/// Whether everything a pod says of itself is well.
pub fn all_well(status: &PodStatus) -> bool {
    status.config.error.is_none()
        && status.agent.ready
        && status.servers.iter().all(|s| s.part.ready)
        && status.skills.iter().all(|s| s.part.ready)
        && (status.store.ready || !tells(&status.store))
        && status.interfaces.iter().all(|i| i.part.ready)
        && (status.control.part.ready || !tells(&status.control.part))
}

/// A change of a pod, as the watch tells it.
#[derive(Clone, Debug)]
pub enum Touch {
    /// Read it now, if it can be read.
    Read(Arc<Pod>),
    /// It is gone.
    Gone(Arc<Pod>),
}

/// Whom to tell that the facts of a pod changed.
pub type OnChange = Arc<dyn Fn(Arc<Pod>) + Send + Sync>;

struct Entry {
    pod: Arc<Pod>,
    address: IpAddr,
    due: Instant,
    reading: bool,
    /// It changed while it was being read.
    again: bool,
    failures: u32,
    unwell_since: Option<Instant>,
}

/// Address of a pod whose sidecar can be asked.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let running =
        status.init_container_statuses.iter().flatten().any(|c| {
            c.name == crate::names::SIDECAR_CONTAINER && c.state.as_ref().is_some_and(|s| s.running.is_some())
        });
    if !running {
        return None;
    }
    status.pod_ip.as_ref()?.parse().ok()
}

/// Where the watch of pods sends its changes.
pub fn channel() -> (mpsc::Sender<Touch>, mpsc::Receiver<Touch>) {
    mpsc::channel(QUEUE)
}

/// Reads pods at `port` until `shutdown`.
pub async fn run(
    facts: Facts,
    mut touches: mpsc::Receiver<Touch>,
    metrics: Metrics,
    shutdown: CancellationToken,
    on_change: OnChange,
    port: u16,
) {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(READ_TIMEOUT));
    // An address may belong to another pod tomorrow: no connection is kept.
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let mut entries: HashMap<String, Entry> = HashMap::new();
    let mut reads: JoinSet<(String, Fact)> = JoinSet::new();
    loop {
        let now = Instant::now();
        let mut next = now + RARELY;
        for (uid, entry) in &mut entries {
            if entry.reading {
                continue;
            }
            if entry.due <= now && reads.len() < MAX_READS {
                entry.reading = true;
                let (client, uid, address) = (client.clone(), uid.clone(), entry.address);
                reads.spawn(async move { (uid, read(&client, address, port).await) });
            } else if reads.len() < MAX_READS {
                next = next.min(entry.due);
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            touch = touches.recv() => match touch {
                None => return,
                Some(touch) => touched(&facts, &mut entries, touch),
            },
            Some(done) = reads.join_next(), if !reads.is_empty() => {
                if let Ok((uid, fact)) = done {
                    metrics.pod_reads.with_label_values(&[if fact.is_ok() { "ok" } else { "error" }]).inc();
                    if let Some(pod) = finished(&facts, &mut entries, &uid, fact) {
                        on_change(pod);
                    }
                }
            }
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

fn touched(facts: &Facts, entries: &mut HashMap<String, Entry>, touch: Touch) {
    let (pod, gone) = match touch {
        Touch::Read(pod) => (pod, false),
        Touch::Gone(pod) => (pod, true),
    };
    let Some(uid) = pod.metadata.uid.clone() else { return };
    match address(&pod) {
        Some(address) if !gone => {
            let now = Instant::now();
            let entry = entries.entry(uid).or_insert_with(|| Entry {
                pod: pod.clone(),
                address,
                due: now,
                reading: false,
                again: false,
                failures: 0,
                unwell_since: None,
            });
            entry.again = entry.reading;
            (entry.pod, entry.address, entry.due) = (pod, address, now);
        }
        _ => {
            entries.remove(&uid);
            facts.remove(&uid);
        }
    }
}

/// Keeps the fact and sets the time of the next read; the pod, if anything changed.
fn finished(facts: &Facts, entries: &mut HashMap<String, Entry>, uid: &str, fact: Fact) -> Option<Arc<Pod>> {
    let entry = entries.get_mut(uid)?;
    let now = Instant::now();
    entry.reading = false;
    entry.failures = if fact.is_err() { entry.failures.saturating_add(1) } else { 0 };
    let well = fact.as_ref().is_ok_and(|s| all_well(s));
    if well {
        entry.unwell_since = None;
        entry.due = now + RARELY.mul_f64(rand::random_range(0.9..1.1));
    } else {
        let since = *entry.unwell_since.get_or_insert(now);
        entry.due = now + if now.saturating_duration_since(since) < SOON_LASTS { SOON } else { LATER };
    }
    if std::mem::take(&mut entry.again) {
        entry.due = now;
    }
    let keep_last = fact.is_err() && entry.failures <= FORGIVEN && matches!(facts.get(uid), Some(Ok(_)));
    (!keep_last && facts.put(uid, fact)).then(|| entry.pod.clone())
}

async fn read(client: &Client<HttpConnector, Empty<Bytes>>, address: IpAddr, port: u16) -> Fact {
    let host = match address {
        IpAddr::V4(a) => a.to_string(),
        IpAddr::V6(a) => format!("[{a}]"),
    };
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let uri = format!("http://{host}:{port}/status").parse().map_err(|e: http::uri::InvalidUri| text(&e))?;
    let exchange = async {
        let response = client.get(uri).await.map_err(|e| text(&e))?;
        if response.status() != http::StatusCode::OK {
            return Err(format!("the sidecar answered {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|e| text(&e))?;
        serde_json::from_slice::<PodStatus>(&body.to_bytes()).map(Arc::new).map_err(|e| text(&e))
    };
    tokio::time::timeout(READ_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err(format!("the sidecar did not answer within {} s", READ_TIMEOUT.as_secs())))
}
