//! Places for children: as many as may be alive at once, and who makes room.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Member, Owner, Server};
use crate::mcp::child::Child;
use crate::mcp::error::Error;

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

impl Server {
    /// A place for a child. Waits for one that is about to become free, and ends what was not used for long if none is.
    pub(super) async fn place(&self) -> Result<Place, Error> {
        if let Some(place) = self.places.take() {
            return Ok(place);
        }
        if !self.leaving() && !self.evict() {
            return Err(Error::TooManySessions(self.places.most()));
        }
        self.places.wait(self.shared.timing.place).await.ok_or_else(|| Error::TooManySessions(self.places.most()))
    }

    /// Whether a child is on its way out.
    fn leaving(&self) -> bool {
        let members = self.members.lock();
        // One that has a place and is not in the list is just being started or has just ended.
        members.len() < self.places.most()
            || members.iter().any(|m| !m.child.living() || matches!(m.owner, Owner::Probe | Owner::Check))
    }

    /// Makes room: first what nobody uses, then the session that was not used for longest, then a shared child whose
    /// clients all pause; they get another one when they go on.
    fn evict(&self) -> bool {
        let idle = |m: &&Member| m.child.table.lock().pending.is_empty();
        let unused: Vec<Arc<Child>> = {
            let members = self.members.lock();
            let unused = members.iter().filter(idle).filter(|m| match &m.owner {
                Owner::Lease => true,
                Owner::Slot(slot) => slot.upgrade().is_none_or(|s| s.unused_but_for_its_child()),
                Owner::Probe | Owner::Check | Owner::Session(_) => false,
            });
            unused.map(|m| Arc::clone(&m.child)).collect()
        };
        if let Some(child) = unused.iter().max_by_key(|c| c.idle()) {
            child.stop("evicted", self.shared.timing.grace);
            return true;
        }
        if self.sessions.evict(|s| s.own_child().is_some()) {
            return true;
        }
        let pausing: Vec<Arc<Child>> = {
            let members = self.members.lock();
            let pausing = members.iter().filter(idle).filter(
                |m| matches!(&m.owner, Owner::Slot(slot) if slot.upgrade().is_some_and(|s| s.pausing(self.shared.timing.evict_idle))),
            );
            pausing.map(|m| Arc::clone(&m.child)).collect()
        };
        let oldest = pausing.into_iter().max_by_key(|c| c.idle());
        if let Some(child) = &oldest {
            child.stop("evicted", self.shared.timing.grace);
        }
        oldest.is_some()
    }

    /// Ends what was idle for too long: sessions, and children that nobody uses.
    pub fn expire(&self) {
        let limit = Duration::from_millis(self.shared.conf.process.idle_timeout_ms);
        self.sessions.expire(limit);
        for (child, owner) in self.children() {
            let unused = match owner {
                Owner::Lease => true,
                Owner::Slot(slot) => slot.upgrade().is_none_or(|s| s.unused_but_for_its_child()),
                Owner::Probe | Owner::Check | Owner::Session(_) => false,
            };
            if unused && child.greeted() && child.table.lock().pending.is_empty() && child.idle() >= limit {
                child.stop("idle", self.shared.timing.grace);
            }
        }
    }
}
