//! Leader election on a Lease: compare-and-swap on its resource version, expiry on the local monotonic clock.
//!
//! Clocks of different machines are never compared: a holder is taken for dead when its record has not changed for the
//! whole of the Lease's duration, as this process saw it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A holder that does not renew for this long has lost the Lease.
pub const LEASE_SECONDS: i32 = 15;
/// Between two tries to take or renew.
const TICK: Duration = Duration::from_secs(2);
/// Longest time for one try.
const TRY_TIMEOUT: Duration = Duration::from_secs(4);
/// A holder that could not renew for this long stops: before another takes over.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Takes, keeps and releases the Lease.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    me: String,
    /// The record as it was last seen, and when it last changed.
    seen: Option<(String, Instant)>,
}

impl Elector {
    /// An elector that calls itself `me`, which has to be unique among all replicas and restarts.
    pub fn new(client: Client, namespace: &str, name: &str, me: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.into(), me: me.into(), seen: None }
    }

    /// Waits until the Lease is ours; `false` on shutdown.
    pub async fn win(&mut self, shutdown: &CancellationToken) -> bool {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return false,
                _ = ticks.tick() => {}
            }
            match tokio::time::timeout(TRY_TIMEOUT, self.attempt()).await {
                Ok(Ok(true)) => {
                    info!(lease = self.name, me = self.me, "leading");
                    return true;
                }
                Ok(Ok(false)) => failing = false,
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut failing, true) {
                        warn!(lease = self.name, %error, "cannot take the lease; trying again");
                    }
                }
                Err(_) => warn!(lease = self.name, "the API server does not answer; trying again"),
            }
        }
    }

    /// Renews until shutdown or until the Lease is lost.
    pub async fn keep(&mut self, shutdown: &CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let left = GIVE_UP.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(TRY_TIMEOUT.min(left), self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "another replica holds the lease");
                    return;
                }
                Ok(Err(error)) => warn!(lease = self.name, %error, "lease not renewed"),
                Err(_) => warn!(lease = self.name, "lease not renewed: the API server does not answer"),
            }
            if renewed.elapsed() >= GIVE_UP {
                warn!(lease = self.name, "lease not renewed for {} s: giving it up", GIVE_UP.as_secs());
                return;
            }
        }
    }

    /// Lets go of the Lease, so that another need not wait for its end.
    pub async fn release(&mut self) {
        let release = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            if lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref()) != Some(&self.me) {
                return Ok(());
            }
            if let Some(spec) = lease.spec.as_mut() {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
            }
            self.api.replace(&self.name, &PostParams::default(), &lease).await.map(|_| ())
        };
        match tokio::time::timeout(TRY_TIMEOUT, release).await {
            Ok(Ok(())) => info!(lease = self.name, "released"),
            Ok(Err(error)) => warn!(lease = self.name, %error, "not released; it ends by itself"),
            Err(_) => warn!(lease = self.name, "not released; it ends by itself"),
        }
    }

    /// One try; whether the Lease is ours now.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return self.create().await };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                let now = Instant::now();
                self.seen = Some((version, now));
                now
            }
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let lasts = Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(15));
        if !holder.is_empty() && holder != self.me && since.elapsed() <= lasts {
            return Ok(false);
        }
        let taken_over = holder != self.me;
        lease.spec = Some(self.record(&spec, taken_over));
        match self.api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(lease) => {
                self.seen = lease.metadata.resource_version.map(|v| (v, Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self) -> Result<bool, kube::Error> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.record(&LeaseSpec::default(), true)) };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn record(&self, before: &LeaseSpec, taken_over: bool) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            acquire_time: if taken_over { Some(now.clone()) } else { before.acquire_time.clone() },
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(taken_over)),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }
}
