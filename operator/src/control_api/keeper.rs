//! Keeps the authority: reads its Secret in every replica, changes it where this one leads, and hands out what follows
//! from it: the certificate of this replica, and what sidecars are told.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use outrigger_protocol::config::ControlPlane;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::authority::{self, Authorities, AuthorityError, Step};
use super::tls::Certificates;
use crate::apply::cut;
use crate::http::Health;
use crate::metrics::Metrics;
use crate::names::{FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL};

/// Name of the Secret, in the operator's namespace.
pub const SECRET: &str = "outrigger-ca";
/// Key of the record.
const RECORD: &str = "authorities.json";
/// Key with the certificates alone, for people and other programs.
const BUNDLE: &str = "ca.crt";
/// Between two readings.
const PERIOD: Duration = Duration::from_secs(60);
/// Between two readings while there is no authority.
const RETRY: Duration = Duration::from_secs(2);
/// Longest time for one reading and writing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What readiness waits for.
const WAITING: &str = "the control API has no certificate yet";

/// Why the Secret is not as it should be. The variant is the label of the metric.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("Secret {SECRET}: {0}")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("the certificate cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

impl KeepError {
    fn label(&self) -> &'static str {
        match self {
            Self::Api(kube::Error::Api(status)) if status.code == 403 => "forbidden",
            Self::Api(kube::Error::Api(status)) if status.code == 409 => "conflict",
            Self::Api(_) | Self::Timeout => "unavailable",
            Self::Authority(_) | Self::Tls(_) => "damaged",
        }
    }
}

/// What sidecars are told of the control API; clones share it.
#[derive(Clone)]
pub struct Plane(Arc<watch::Sender<Option<Arc<ControlPlane>>>>);

impl Default for Plane {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Plane {
    /// What is known.
    pub fn get(&self) -> Option<Arc<ControlPlane>> {
        self.0.borrow().clone()
    }

    /// Keeps what is known now; whether it is news.
    pub fn put(&self, plane: ControlPlane) -> bool {
        self.0.send_if_modified(|known| {
            let news = known.as_deref() != Some(&plane);
            if news {
                *known = Some(Arc::new(plane));
            }
            news
        })
    }

    /// Follows what is known.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<ControlPlane>>> {
        self.0.subscribe()
    }

    /// Waits until something is known, at most so long.
    pub async fn known_within(&self, wait: Duration) -> bool {
        let mut known = self.subscribe();
        matches!(tokio::time::timeout(wait, known.wait_for(Option::is_some)).await, Ok(Ok(_)))
    }
}

/// Where the control API is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Namespace of the operator.
    pub namespace: String,
    /// Name of its Service.
    pub service: String,
    /// DNS domain of the cluster.
    pub domain: String,
    /// Port of the Service.
    pub port: u16,
}

impl Place {
    /// Base URL for sidecars.
    pub fn url(&self) -> String {
        format!("https://{}.{}.svc.{}:{}", self.service, self.namespace, self.domain, self.port)
    }

    /// DNS names of the certificates.
    pub fn names(&self) -> Vec<String> {
        let short = format!("{}.{}.svc", self.service, self.namespace);
        vec![format!("{short}.{}", self.domain), short]
    }
}

/// Keeps the authority of one replica.
pub struct Keeper {
    /// Client of the API server.
    pub client: Client,
    /// Where the control API is.
    pub place: Place,
    /// Whether this replica leads.
    pub leading: watch::Receiver<bool>,
    /// What sidecars are told.
    pub plane: Plane,
    /// The certificate of this replica.
    pub certificates: Arc<Certificates>,
    /// Counts.
    pub metrics: Metrics,
    /// What is waited for.
    pub health: Health,
    /// Seconds of Unix time.
    pub clock: fn() -> i64,
}

impl Keeper {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.health.begin(WAITING);
        let (mut known, mut renew, mut failing) = (None, 0, false);
        loop {
            let leads = *self.leading.borrow_and_update();
            let looked = tokio::time::timeout(TIMEOUT, self.look(leads)).await.unwrap_or(Err(KeepError::Timeout));
            let used = looked.and_then(|found| self.put_to_use(found, &mut known, &mut renew));
            let outcome = used.as_ref().map_or_else(KeepError::label, |()| "ok");
            self.metrics.control.authority_reads.with_label_values(&[outcome]).inc();
            match used {
                Ok(()) => failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        warn!(error = cut(&error.to_string()), "the authority of the control API; trying again");
                    }
                }
            }
            let wait = if known.is_none() { RETRY } else { PERIOD };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                // The sender is gone at the end only.
                Ok(()) = self.leading.changed() => {}
            }
        }
    }

    /// Reads the authority; takes the step that is due where this replica leads.
    async fn look(&self, leads: bool) -> Result<Option<Authorities>, KeepError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.place.namespace);
        let secret = api.get_opt(SECRET).await?;
        let record = secret.as_ref().and_then(|s| s.data.as_ref()).and_then(|d| d.get(RECORD));
        let found = record.map(|record| Authorities::parse(&record.0)).transpose();
        if !leads {
            return Ok(found?);
        }
        let found = found.unwrap_or_else(|error| {
            warn!(%error, "the authority of the control API is made anew");
            None
        });
        let now = (self.clock)();
        let Some(step) = authority::due(found.as_ref(), now) else { return Ok(found) };
        let new = authority::take(step, found, now)?;
        self.write(&api, secret.as_ref(), &new).await?;
        self.metrics.control.authority_steps.with_label_values(&[step.as_str()]).inc();
        info!(step = step.as_str(), "the authority of the control API changed");
        Ok(Some(new))
    }

    /// Server-side apply is the one way to make an object whose name the right to create it is bound to. The version that
    /// was read goes with it, so that of two replicas that think they lead only one writes.
    async fn write(&self, api: &Api<Secret>, old: Option<&Secret>, new: &Authorities) -> Result<(), KeepError> {
        let labels = json!({
            "app.kubernetes.io/name": "outrigger",
            "app.kubernetes.io/component": "control-api",
            "app.kubernetes.io/part-of": "outrigger",
            MANAGED_BY_LABEL: MANAGED_BY,
        });
        let data = json!({BUNDLE: ByteString(new.bundle().into_bytes()), RECORD: ByteString(new.record()?)});
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": self.place.namespace, "labels": labels},
            "type": "Opaque",
            "data": data,
        });
        if let Some(version) = old.and_then(Secret::resource_version) {
            body["metadata"]["resourceVersion"] = json!(version);
        }
        api.patch(SECRET, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&body)).await?;
        Ok(())
    }

    /// Makes the certificate of this replica where it is due, then tells of the authority.
    fn put_to_use(
        &self,
        found: Option<Authorities>,
        known: &mut Option<Authorities>,
        renew: &mut i64,
    ) -> Result<(), KeepError> {
        // A Secret that was deleted comes back by the leader; until then the last one stays.
        let Some(found) = found else { return Ok(()) };
        let now = (self.clock)();
        if now >= *renew || known.as_ref() != Some(&found) {
            let serving = found.issue(&self.place.names(), now)?;
            *renew = serving.renew;
            self.certificates.put(serving)?;
        }
        self.metrics.control.authority_not_after.set(found.not_after());
        self.plane.put(ControlPlane { url: self.place.url(), ca: found.bundle() });
        *known = Some(found);
        self.health.end(WAITING);
        Ok(())
    }
}

/// Labels of the outcomes and steps, for counters that are there before they count.
pub fn labels() -> (impl Iterator<Item = &'static str>, impl Iterator<Item = &'static str>) {
    (["ok", "forbidden", "conflict", "unavailable", "damaged"].into_iter(), Step::ALL.into_iter().map(Step::as_str))
}
