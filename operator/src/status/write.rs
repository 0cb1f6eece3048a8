//! Writing statuses: only on change, and never in a storm.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::apply::{ApplyError, cut, is_gone, older, reason_of};
use crate::metrics::Metrics;
use crate::names::FIELD_MANAGER;

/// Returns to a state told before that may follow one another at once.
const BURST: f64 = 8.0;
/// Then one in this time: a tool that comes and goes all day stays cheap. What was not told before is told at once.
const REFILL: Duration = Duration::from_secs(10);
/// States remembered of one object, and for how long.
const REMEMBERED: usize = 12;
const REMEMBERED_FOR: Duration = Duration::from_secs(180);

/// What came of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// It says what it said before.
    Unchanged,
    /// It was written.
    Yes,
    /// It has to wait this long.
    Later(Duration),
    /// The object is gone.
    Gone,
}

struct Budget {
    tokens: f64,
    at: Instant,
}

struct Last {
    budget: Budget,
    /// States told lately: types, statuses and reasons of the conditions.
    told: VecDeque<(String, Instant)>,
    /// What was written last, for as long as the cache has not seen it.
    status: Option<(Value, String)>,
}

/// Writes statuses and remembers what it wrote.
pub struct StatusWriter {
    client: Client,
    metrics: Metrics,
    last: Mutex<HashMap<String, Last>>,
}

impl StatusWriter {
    /// A writer that remembers nothing yet.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics, last: Mutex::default() }
    }

    /// The newest status known: the cache's, or what was written since.
    pub fn newest<S: DeserializeOwned>(&self, uid: &str, resource_version: &str, cached: Option<S>) -> Option<S> {
        let mut last = self.last.lock();
        let Some(entry) = last.get_mut(uid) else { return cached };
        match &entry.status {
            Some((status, written)) if older(resource_version, written) => {
                serde_json::from_value(status.clone()).ok().or(cached)
            }
            Some(_) => {
                entry.status = None;
                cached
            }
            None => cached,
        }
    }

    /// Writes `status` unless it equals `previous`.
    pub async fn write<K, S>(
        &self,
        name: &str,
        namespace: &str,
        uid: &str,
        previous: Option<&S>,
        status: &S,
    ) -> Result<Written, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
        S: Serialize + PartialEq,
    {
        if previous == Some(status) {
            return Ok(Written::Unchanged);
        }
        let kind = K::kind(&()).into_owned();
        let value = serde_json::to_value(status).unwrap_or_default();
        // An answer to a new manifest never waits: such changes are as rare as their authors make them.
        let before = previous.and_then(|p| serde_json::to_value(p).ok()).unwrap_or_default();
        let answers = before.get("observedGeneration") != value.get("observedGeneration");
        if let Some(wait) = self.take(uid, &state(&value)).filter(|_| !answers) {
            return Ok(Written::Later(wait));
        }
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": kind,
            // The uid keeps a status from landing on another object of the same name.
            "metadata": {"name": name, "uid": uid},
            "status": value,
        });
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch_status(name, &params, &Patch::Apply(&body)).await {
            Ok(object) => {
                self.metrics.status_writes.with_label_values(&[&kind]).inc();
                let version = object.meta().resource_version.clone().unwrap_or_default();
                if let Some(entry) = self.last.lock().get_mut(uid) {
                    entry.status = Some((value, version));
                }
                Ok(Written::Yes)
            }
            Err(error) if is_gone(&error) => Ok(Written::Gone),
            Err(error) => {
                self.metrics.api_errors.with_label_values(&["patch_status", reason_of(&error)]).inc();
                Err(ApplyError::Status { kind, name: name.into(), message: cut(&error.to_string()) })
            }
        }
    }

    /// Takes one write out of the budget, if this state was told before; else how long until there is one.
    fn take(&self, uid: &str, state: &str) -> Option<Duration> {
        let now = Instant::now();
        let mut last = self.last.lock();
        let entry = last.entry(uid.to_owned()).or_insert_with(|| Last {
            budget: Budget { tokens: BURST, at: now },
            told: VecDeque::new(),
            status: None,
        });
        entry.told.retain(|(_, at)| now.saturating_duration_since(*at) < REMEMBERED_FOR);
        let told_before = entry.told.iter().any(|(told, _)| told == state);
        if told_before {
            let earned = now.saturating_duration_since(entry.budget.at).as_secs_f64() / REFILL.as_secs_f64();
            entry.budget.tokens = (entry.budget.tokens + earned).min(BURST);
            entry.budget.at = now;
            if entry.budget.tokens < 1.0 {
                return Some(REFILL.mul_f64(1.0 - entry.budget.tokens));
            }
            entry.budget.tokens -= 1.0;
        }
        entry.told.retain(|(told, _)| told != state);
        entry.told.push_back((state.to_owned(), now));
        if entry.told.len() > REMEMBERED {
            entry.told.pop_front();
        }
        None
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.last.lock().remove(uid);
    }
}

/// What a status says, without its numbers and words.
fn state(status: &Value) -> String {
    let conditions = status.get("conditions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text = |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let parts: Vec<_> =
        conditions.iter().flat_map(|c| [text(c, "type"), text(c, "status"), text(c, "reason")]).collect();
    parts.join("/")
}
