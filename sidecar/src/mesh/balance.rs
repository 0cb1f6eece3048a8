//! The addresses of one peer and which of them gets a request: the one with the fewest under way, in turn.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Version};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Timing;
use super::connect::{Backend, Lease};
use super::metrics::PeerMetrics;
use super::resolve::Resolve;

/// Longest time that an address is left alone.
pub const MAX_EJECTION: Duration = Duration::from_secs(30);
/// Addresses stay in use this long while the name does not resolve.
const STALE: Duration = Duration::from_secs(30);
/// Less than any sidecar waits for a request on an open connection.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// First pause when no address takes a connection; doubled each time.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// One peer's addresses.
pub struct Pool {
    authority: String,
    /// The peer's `Host`.
    pub host: HeaderValue,
    resolver: Arc<dyn Resolve>,
    /// Waits in force.
    pub timing: Timing,
    /// Metrics of this peer.
    pub metrics: PeerMetrics,
    known: Mutex<Known>,
    /// One resolution at a time.
    resolving: tokio::sync::Mutex<()>,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Known {
    backends: Vec<Arc<Backend>>,
    /// When the name was looked up last, and when it was found last.
    asked: Option<Instant>,
    found: Option<Instant>,
}

impl Pool {
    /// No address is looked up yet.
    pub fn new(authority: &str, resolver: Arc<dyn Resolve>, timing: Timing, metrics: PeerMetrics) -> Self {
        Self {
            authority: authority.to_owned(),
            host: HeaderValue::from_str(authority).unwrap_or_else(|_| HeaderValue::from_static("peer")),
            resolver,
            timing,
            metrics,
            known: Mutex::default(),
            resolving: tokio::sync::Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// `host:port` that it resolves.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// A connection to one of the addresses. Those that take none are left out and tried later; all of them are tried
    /// again for the time of [`Timing::connect`], as a peer's pods may be just changing.
    pub async fn lease(&self, version: Version) -> Result<Lease, String> {
        let until = Instant::now() + self.timing.connect;
        let mut pause = PAUSE;
        loop {
            let mut why = String::from("no pod of it is ready");
            let mut tried: Vec<SocketAddr> = Vec::new();
            match self.backends().await {
                Ok(backends) => {
                    while let Some(backend) = self.pick(&backends, &tried) {
                        let left = until.saturating_duration_since(Instant::now());
                        if left.is_zero() && !tried.is_empty() {
                            break;
                        }
                        tried.push(backend.address);
                        let limit = if left.is_zero() { self.timing.connect } else { left };
                        match backend.lease(version, limit, Some(&self.metrics.open)).await {
                            Ok(lease) => {
                                backend.good();
                                return Ok(lease);
                            }
                            Err(error) => {
                                backend.eject(self.timing.eject, MAX_EJECTION);
                                self.metrics.ejections.inc();
                                tracing::debug!(target: "transport", peer = self.authority, address = %backend.address, error, "no connection");
                                why = format!("{}: {error}", backend.address);
                            }
                        }
                    }
                }
                Err(error) => why = format!("{} does not resolve: {error}", self.authority),
            }
            if Instant::now() + pause > until {
                return Err(why);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// The addresses there are, looked up anew when that was a while ago.
    async fn backends(&self) -> Result<Vec<Arc<Backend>>, String> {
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let _one = self.resolving.lock().await;
        if let Some(fresh) = self.fresh() {
            return Ok(fresh);
        }
        let found = match tokio::time::timeout(self.timing.connect, self.resolver.resolve(&self.authority)).await {
            Ok(found) => found.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {} s", self.timing.connect.as_secs_f64())),
        };
        let now = Instant::now();
        let mut known = self.known.lock();
        match found {
            Ok(addresses) => {
                let old = std::mem::take(&mut known.backends);
                let mut backends: Vec<Arc<Backend>> = Vec::with_capacity(addresses.len());
                for address in addresses {
                    if backends.iter().any(|b| b.address == address) {
                        continue;
                    }
                    let same = old.iter().find(|b| b.address == address).map(Arc::clone);
                    backends.push(same.unwrap_or_else(|| Backend::new(address, IDLE_FOR)));
                }
                self.metrics.addresses.set(i64::try_from(backends.len()).unwrap_or(i64::MAX));
                known.backends = backends;
                (known.asked, known.found) = (Some(now), Some(now));
            }
            Err(error) => {
                if known.found.is_none_or(|found| now - found > STALE) {
                    known.backends.clear();
                    self.metrics.addresses.set(0);
                    return Err(error);
                }
                tracing::debug!(target: "transport", peer = self.authority, error, "known addresses stay in use");
                known.asked = Some(now);
            }
        }
        Ok(known.backends.clone())
    }

    fn fresh(&self) -> Option<Vec<Arc<Backend>>> {
        let known = self.known.lock();
        // Without any address nothing is fresh: pods may be there any moment.
        let fresh = !known.backends.is_empty() && known.asked.is_some_and(|t| t.elapsed() < self.timing.resolve);
        fresh.then(|| known.backends.clone())
    }

    /// The one with the fewest requests among those not tried; one that is left alone only when there is no other.
    fn pick(&self, backends: &[Arc<Backend>], tried: &[SocketAddr]) -> Option<Arc<Backend>> {
        let now = Instant::now();
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..backends.len()).filter_map(|i| backends.get((start + i) % backends.len()));
        let open = in_turn.filter(|b| !tried.contains(&b.address));
        open.min_by_key(|b| (b.ejected_until(now), b.outstanding())).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::metrics::Metrics;
    use futures::future::BoxFuture;

    struct Script(Mutex<Vec<std::io::Result<Vec<SocketAddr>>>>);

    impl Resolve for Script {
        fn resolve(&self, _: &str) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
            let next = self.0.lock().pop().unwrap_or_else(|| Err(std::io::Error::other("no more")));
            Box::pin(async { next })
        }
    }

    fn pool(mut answers: Vec<std::io::Result<Vec<SocketAddr>>>) -> Pool {
        answers.reverse();
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap().of("a.b");
        Pool::new("a:1", Arc::new(Script(Mutex::new(answers))), Timing::default(), metrics)
    }

    fn at(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|p| SocketAddr::from(([127, 0, 0, 1], *p))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_looked_up_anew_and_outlive_a_failing_resolver_for_a_while() {
        let failed = || Err(std::io::Error::other("down"));
        let pool = pool(vec![Ok(at(&[1, 2, 2])), Ok(at(&[2, 3])), failed(), failed(), Ok(vec![]), Ok(at(&[4]))]);
        let ports = |b: &[Arc<Backend>]| b.iter().map(|b| b.address.port()).collect::<Vec<_>>();
        let first = pool.backends().await.unwrap();
        assert_eq!(ports(&first), [1, 2]);
        assert_eq!(ports(&pool.backends().await.unwrap()), [1, 2], "not asked again so soon");
        let tick = Timing::default().resolve;
        tokio::time::advance(tick).await;
        let second = pool.backends().await.unwrap();
        assert_eq!(ports(&second), [2, 3]);
        assert!(Arc::ptr_eq(&first[1], &second[0]), "an address that stays keeps its connections");
        tokio::time::advance(tick).await;
        assert_eq!(ports(&pool.backends().await.unwrap()), [2, 3], "stale but known");
        tokio::time::advance(STALE).await;
        assert_eq!(pool.backends().await.err().as_deref(), Some("down"));
        assert!(pool.backends().await.unwrap().is_empty(), "a name without pods");
        assert_eq!(ports(&pool.backends().await.unwrap()), [4], "asked again at once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_busy_address_is_picked_in_turn_and_an_ejected_one_last() {
        let pool = pool(vec![Ok(at(&[1, 2, 3]))]);
        let all = pool.backends().await.unwrap();
        let picked: Vec<u16> = (0..6).map(|_| pool.pick(&all, &[]).unwrap().address.port()).collect();
        assert_eq!(picked, [1, 2, 3, 1, 2, 3]);
        let most = Duration::from_secs(30);
        all[0].eject(Duration::from_secs(1), most);
        assert!((0..6).all(|_| pool.pick(&all, &[]).unwrap().address.port() != 1));
        assert_eq!(pool.pick(&all, &at(&[2, 3])).unwrap().address.port(), 1, "there is no other");
        assert!(pool.pick(&all, &at(&[1, 2, 3])).is_none());
        tokio::time::advance(Duration::from_millis(1100)).await;
        assert!((0..3).any(|_| pool.pick(&all, &[]).unwrap().address.port() == 1), "its time is over");
        for _ in 0..40 {
            all[0].eject(Duration::from_secs(1), most);
        }
        let until = all[0].ejected_until(Instant::now()).unwrap();
        assert_eq!(until - Instant::now(), most);
    }
}
