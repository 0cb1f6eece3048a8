//! The clock of a store: the one that its leases, claims and statuses go by. Tests set it by hand.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Tells the time, in whole microseconds: so it is the same before and after it was written.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Another one.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        micros((self.0)())
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// A time in whole microseconds.
pub(super) fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// A time after another one; the last one that there is when that is too far.
pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}
