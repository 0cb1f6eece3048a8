//! Each outcome told once: a log line, an Event, a counter.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::Metrics;

/// Name of the program in Events.
const CONTROLLER: &str = "outrigger-operator";
/// Events that may wait to be published; more are dropped and counted.
const QUEUE: usize = 256;
/// Longest time for one publication.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same Event within this time is one with a higher count.
const SAME_FOR: Duration = Duration::from_mins(6);
/// Events remembered for that.
const REMEMBERED: usize = 2048;
/// Longest note; the API server's own bound.
const MAX_NOTE: usize = 1000;

/// What came of a reconciliation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was as it should be.
    Unchanged,
    /// Something was written; what.
    Changed(String),
    /// All is done that can be done; reason and message say what is waited for.
    Waiting(String, String),
    /// The manifest has to change; reason and message say how.
    Refused(String, String),
    /// Something failed that may work next time.
    Error(String, String),
    /// It took too long.
    Timeout,
}

impl Outcome {
    fn label(&self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Changed(_) => "changed",
            Self::Waiting(..) => "waiting",
            Self::Refused(..) => "refused",
            Self::Error(..) => "error",
            Self::Timeout => "timeout",
        }
    }
}

/// Something to tell people who look at a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it needs attention.
    pub warning: bool,
    /// One word in `CamelCase`.
    pub reason: String,
    /// A sentence.
    pub text: String,
}

struct Publication {
    about: ObjectReference,
    note: Note,
}

/// Reports outcomes. Never fails and never waits: a reconciliation does not depend on it.
#[derive(Clone)]
pub struct Reporter {
    metrics: Metrics,
    queue: mpsc::Sender<Publication>,
}

impl Reporter {
    /// A reporter, and the task that publishes its Events until `shutdown`.
    pub fn new(
        client: Client,
        instance: String,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let publisher = Publisher { client, instance, metrics: metrics.clone(), recent: HashMap::new() };
        (Self { metrics, queue }, publisher.run(receiver, shutdown))
    }

    /// Tells of one outcome of one object, with notes for those who look at the object.
    pub fn report<K: Resource<DynamicType = ()>>(&self, object: &K, outcome: &Outcome, notes: Vec<Note>) {
        let about = object.object_ref(&());
        let kind = K::kind(&());
        self.metrics.reconciles.with_label_values(&[kind.as_ref(), outcome.label()]).inc();
        let (namespace, name) = (about.namespace.as_deref(), about.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        match outcome {
            Outcome::Unchanged => debug!(%kind, namespace, name, "unchanged"),
            Outcome::Changed(what) => info!(%kind, namespace, name, what, "changed"),
            Outcome::Waiting(reason, message) | Outcome::Refused(reason, message) => {
                // Repeated with every look; the transition is in the notes.
                debug!(%kind, namespace, name, reason, text = message, "{}", outcome.label());
            }
            Outcome::Error(reason, message) => {
                warn!(%kind, namespace, name, reason, text = message, "failed; trying again");
            }
            Outcome::Timeout => warn!(%kind, namespace, name, "took too long; trying again"),
        }
        for mut note in notes {
            info!(%kind, namespace, name, reason = note.reason, text = note.text, "told");
            note.text = note.text.chars().take(MAX_NOTE).collect();
            if self.queue.try_send(Publication { about: about.clone(), note }).is_err() {
                self.metrics.events.with_label_values(&["failed"]).inc();
            }
        }
    }
}

struct Recent {
    name: String,
    count: i32,
    at: Instant,
}

struct Publisher {
    client: Client,
    instance: String,
    metrics: Metrics,
    recent: HashMap<(String, String, String), Recent>,
}

impl Publisher {
    async fn run(mut self, mut queue: mpsc::Receiver<Publication>, shutdown: CancellationToken) {
        loop {
            let publication = tokio::select! {
                () = shutdown.cancelled() => return,
                next = queue.recv() => match next {
                    Some(publication) => publication,
                    None => return,
                },
            };
            let kind = if publication.note.warning { "Warning" } else { "Normal" };
            let published = tokio::time::timeout(PUBLISH_TIMEOUT, self.publish(&publication, kind)).await;
            match published {
                Ok(Ok(())) => self.metrics.events.with_label_values(&[kind]).inc(),
                Ok(Err(error)) => {
                    self.metrics.events.with_label_values(&["failed"]).inc();
                    debug!(%error, "event not published");
                }
                Err(_) => self.metrics.events.with_label_values(&["failed"]).inc(),
            }
        }
    }

    async fn publish(&mut self, publication: &Publication, kind: &str) -> Result<(), kube::Error> {
        let Publication { about, note } = publication;
        self.recent.retain(|_, r| r.at.elapsed() < SAME_FOR);
        if self.recent.len() >= REMEMBERED {
            self.recent.clear();
        }
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let key = (about.uid.clone().unwrap_or_default(), note.reason.clone(), note.text.clone());
        let now = Timestamp::now();
        if let Some(recent) = self.recent.get_mut(&key) {
            recent.count += 1;
            let series = EventSeries { count: recent.count, last_observed_time: MicroTime(now) };
            api.patch(&recent.name, &PatchParams::default(), &Patch::Merge(&json!({"series": series}))).await?;
            return Ok(());
        }
        let name = format!("{}.{:x}", about.name.as_deref().unwrap_or(CONTROLLER), now.as_nanosecond());
        let event = Event {
            action: Some("Reconcile".into()),
            event_time: Some(MicroTime(now)),
            metadata: ObjectMeta { name: Some(name.clone()), namespace: Some(namespace), ..ObjectMeta::default() },
            note: Some(note.text.clone()),
            reason: Some(note.reason.clone()),
            regarding: Some(about.clone()),
            reporting_controller: Some(CONTROLLER.into()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(kind.into()),
            ..Event::default()
        };
        api.create(&PostParams::default(), &event).await?;
        self.recent.insert(key, Recent { name, count: 1, at: Instant::now() });
        Ok(())
    }
}
