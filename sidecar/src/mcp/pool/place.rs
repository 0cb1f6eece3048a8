//! Places for children: as many as may be alive at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One place; free again when dropped.
pub type Place = OwnedSemaphorePermit;

/// All places of one server.
pub struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

impl Places {
    /// So many.
    pub fn new(most: u32) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(most)), most }
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A free one.
    pub fn take(&self) -> Option<Place> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Waits for one.
    pub async fn wait(&self, limit: Duration) -> Option<Place> {
        tokio::time::timeout(limit, Arc::clone(&self.free).acquire_owned()).await.ok()?.ok()
    }
}
