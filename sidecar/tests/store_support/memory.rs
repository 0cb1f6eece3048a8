//! The store in memory, shared by its processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::{Clock, Memory, Store, memory};

use super::bed::{Bed, Death, process};

/// A clock that is set by hand, and its hand.
pub fn clock() -> (Clock, Arc<AtomicI64>) {
    let hand = Arc::new(AtomicI64::new(0));
    let now = Arc::clone(&hand);
    (Clock::new(move || Timestamp::from_microsecond(now.load(Ordering::SeqCst)).unwrap()), hand)
}

pub struct MemoryBed {
    first: Memory,
    hand: Arc<AtomicI64>,
}

impl MemoryBed {
    pub fn new() -> Self {
        let (clock, hand) = clock();
        let (live, metrics) = process(Limits::default());
        Self { first: Memory::bounded(live, metrics, memory::MAX_BYTES, clock), hand }
    }
}

impl Bed for MemoryBed {
    fn death(&self) -> Death {
        Death::Lease
    }

    fn start(&mut self, _pod: usize) -> BoxFuture<'_, Arc<dyn Store>> {
        let store: Arc<dyn Store> = Arc::new(self.first.share());
        ready(store).boxed()
    }

    fn set(&mut self, now: Timestamp) -> BoxFuture<'_, ()> {
        self.hand.store(now.as_microsecond(), Ordering::SeqCst);
        ready(()).boxed()
    }

    fn settle<'a>(&'a mut self, _process: &'a dyn Store) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}
