//! Where the files of a revision come from when the pod's volume does not have them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::tree::{File, SkillError, verify};

/// Between two tries for one revision, at first; doubles with each.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time between two tries.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Revisions whose failures are remembered.
const MAX_FAILED: usize = 1024;

/// Gives the files of a revision by the digest of its tree.
pub trait Source: Send + Sync {
    /// The files, which the caller verifies; the error is a sentence. Bounds its own time.
    fn files<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Vec<File>, String>>;
}

/// A revision that was fetched and not put in place yet: one, as they are fetched one after the other.
pub struct Fetched {
    source: Option<Arc<dyn Source>>,
    ready: Mutex<Option<(String, Vec<File>)>>,
    failed: Mutex<BTreeMap<String, (Instant, Duration)>>,
}

impl Fetched {
    /// Without a source, nothing is fetched.
    pub fn new(source: Option<Arc<dyn Source>>) -> Self {
        Self { source, ready: Mutex::default(), failed: Mutex::default() }
    }

    /// Fetches a revision, unless that failed a short time ago; whether it is there.
    pub async fn fetch(&self, digest: &str) -> bool {
        let Some(source) = &self.source else { return false };
        let pause = match self.failed.lock().get(digest) {
            Some((at, pause)) if at.elapsed() < *pause => return false,
            Some((_, pause)) => (*pause * 2).min(LONGEST_RETRY),
            None => RETRY,
        };
        match source.files(digest).await {
            Ok(files) => {
                self.failed.lock().remove(digest);
                *self.ready.lock() = Some((digest.into(), files));
                true
            }
            Err(error) => {
                tracing::warn!(target: "business", digest, error, "a skill's revision is not fetched");
                self.fail(digest, pause);
                false
            }
        }
    }

    fn fail(&self, digest: &str, pause: Duration) {
        let mut failed = self.failed.lock();
        if failed.len() >= MAX_FAILED {
            failed.clear();
        }
        failed.insert(digest.into(), (Instant::now(), pause));
    }

    /// Whether a revision was fetched.
    pub fn has(&self, digest: &str) -> bool {
        self.ready.lock().as_ref().is_some_and(|(d, _)| d == digest)
    }

    /// The files of a revision that was fetched, if they are its own.
    pub fn take(&self, digest: &str) -> Option<Result<Vec<File>, SkillError>> {
        let mut ready = self.ready.lock();
        let (_, files) = ready.take_if(|(d, _)| d == digest)?;
        drop(ready);
        let files = verify(files, digest);
        if files.is_err() {
            // To be asked for again, and not at once.
            self.fail(digest, LONGEST_RETRY);
        }
        Some(files)
    }
}
