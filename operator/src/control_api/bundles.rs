//! Bundles of skills: put together from the `ConfigMap`s that hold their slices, kept for the next who asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::documents::Bundle;
use super::refused::Refused;
use crate::apply::{cut, live_of};
use crate::metrics::Metrics;
use crate::names::{MANAGED_BY, MANAGED_BY_LABEL};

/// Bytes of a slice; the last one of a bundle has fewer.
pub const SLICE_BYTES: usize = 700 << 10;
/// Largest bundle.
pub const MAX_BUNDLE_BYTES: usize = 20 << 20;
/// Bytes that are kept.
pub const MAX_KEPT_BYTES: usize = 32 << 20;
/// Bundles that are read at once.
const MAX_READS: usize = 2;
/// Longest time for a place among them.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time to read one slice.
const SLICE_TIMEOUT: Duration = Duration::from_secs(10);
/// Key of a slice.
const KEY: &str = "bundle";

/// Namespace, revision and digest: what one namespace wrote is nothing that another one is given.
type Key = (String, String, String);

#[derive(Default)]
struct Kept {
    /// Used last comes last.
    order: Vec<Key>,
    bytes: HashMap<Key, Bytes>,
    size: usize,
}

impl Kept {
    fn get(&mut self, key: &Key) -> Option<Bytes> {
        let found = self.bytes.get(key)?.clone();
        self.order.retain(|k| k != key);
        self.order.push(key.clone());
        Some(found)
    }

    fn put(&mut self, key: Key, bytes: Bytes) {
        if bytes.len() > MAX_KEPT_BYTES || self.bytes.contains_key(&key) {
            return;
        }
        self.size += bytes.len();
        self.order.push(key.clone());
        self.bytes.insert(key, bytes);
        while self.size > MAX_KEPT_BYTES {
            let oldest = self.order.remove(0);
            self.size -= self.bytes.remove(&oldest).map_or(0, |b| b.len());
        }
    }
}

type Reading = Arc<OnceCell<Result<Bytes, Refused>>>;

/// Takes a reading off the list, also where its asker went away: the next one finds the bundle kept, or tries again.
struct Leave<'a> {
    bundles: &'a Bundles,
    key: &'a Key,
    reading: &'a Reading,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut all = self.bundles.reading.lock();
        let here = all.get(self.key).is_some_and(|r| Arc::ptr_eq(r, self.reading));
        // Two: the list's and this one's. With more, somebody else waits and takes it over.
        if here && (self.reading.initialized() || Arc::strong_count(self.reading) <= 2) {
            all.remove(self.key);
        }
    }
}

/// Reads and keeps bundles.
pub struct Bundles {
    client: Client,
    metrics: Metrics,
    kept: Mutex<Kept>,
    /// Who asks for the same bundle meanwhile waits for it.
    reading: Mutex<HashMap<Key, Reading>>,
    places: Semaphore,
}

impl Bundles {
    /// Keeps nothing yet.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics, kept: Mutex::default(), reading: Mutex::default(), places: Semaphore::new(MAX_READS) }
    }

    /// The bytes of a bundle of a namespace.
    pub async fn get(&self, namespace: &str, digest: &str, bundle: &Bundle) -> Result<Bytes, Refused> {
        let key = (namespace.to_owned(), bundle.revision.clone(), digest.to_owned());
        let count = |outcome: &str| self.metrics.control.bundle_reads.with_label_values(&[outcome]).inc();
        if let Some(bytes) = self.kept.lock().get(&key) {
            count("kept");
            return Ok(bytes);
        }
        let reading = Arc::clone(self.reading.lock().entry(key.clone()).or_default());
        let _leave = Leave { bundles: self, key: &key, reading: &reading };
        reading
            .get_or_init(|| async {
                let read = self.read(namespace, bundle).await;
                count(if read.is_ok() { "read" } else { "error" });
                if let Ok(bytes) = &read {
                    self.kept.lock().put(key.clone(), bytes.clone());
                }
                read
            })
            .await
            .clone()
    }

    async fn read(&self, namespace: &str, bundle: &Bundle) -> Result<Bytes, Refused> {
        let slices = bundle.slices as usize;
        if slices == 0 || slices > MAX_BUNDLE_BYTES.div_ceil(SLICE_BYTES) {
            return Err(Refused::Damaged(format!("{} has {slices} slices", bundle.revision)));
        }
        let Ok(Ok(_place)) = tokio::time::timeout(PLACE_TIMEOUT, self.places.acquire()).await else {
            return Err(Refused::Busy);
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let mut whole = Vec::new();
        for i in 0..slices {
            let name = format!("{}-{i}", bundle.revision);
            let slice = slice(&api, &name).await?;
            let is_last = i + 1 == slices;
            if slice.is_empty() || slice.len() > SLICE_BYTES || (!is_last && slice.len() < SLICE_BYTES) {
                return Err(Refused::Damaged(format!("ConfigMap {name} holds {} bytes of the bundle", slice.len())));
            }
            whole.extend_from_slice(&slice);
        }
        Ok(whole.into())
    }
}

async fn slice(api: &Api<ConfigMap>, name: &str) -> Result<Vec<u8>, Refused> {
    let unavailable = |why: String| Refused::Unavailable(cut(&why));
    let found = tokio::time::timeout(SLICE_TIMEOUT, api.get_opt(name))
        .await
        .map_err(|_| unavailable(format!("no answer within {} s", SLICE_TIMEOUT.as_secs())))?
        .map_err(|e| unavailable(e.to_string()))?;
    let missing = || Refused::NotFound(format!("ConfigMap {name}, a slice of the bundle, is not there"));
    let found = found.ok_or_else(missing)?;
    // A document names what it likes; what is read for it are slices alone.
    let ours = live_of(&found.metadata).labels.get(MANAGED_BY_LABEL).is_some_and(|v| v == MANAGED_BY);
    let bytes = found.binary_data.and_then(|mut data| data.remove(KEY)).filter(|_| ours);
    bytes.map(|b| b.0).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: usize) -> Key {
        ("n".into(), format!("r-{i}"), "d".into())
    }

    #[test]
    fn the_one_used_longest_ago_makes_room() {
        let mut kept = Kept::default();
        let third = MAX_KEPT_BYTES / 3;
        for i in 0..3 {
            kept.put(key(i), vec![0; third].into());
        }
        assert!(kept.get(&key(0)).is_some());
        kept.put(key(3), vec![0; third].into());
        assert!(kept.get(&key(1)).is_none() && kept.get(&key(0)).is_some() && kept.get(&key(3)).is_some());
        assert!(kept.size <= MAX_KEPT_BYTES && kept.order.len() == kept.bytes.len());
        kept.put(key(3), vec![0; third].into());
        assert_eq!(kept.order.len(), 3, "the same one once");
        kept.put(key(4), vec![0; MAX_KEPT_BYTES + 1].into());
        assert!(kept.get(&key(4)).is_none());
    }
}
