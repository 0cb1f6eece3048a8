//! Places for turns: how many are at work, how many may wait. Limits are read at each step, so a change holds at once.

use std::collections::VecDeque;
use std::sync::Arc;

use outrigger_protocol::config::Live;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::metrics::Metrics;

/// Hands out places.
pub struct Gate {
    state: Mutex<State>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
}

#[derive(Default)]
struct State {
    running: usize,
    queued: usize,
    waiting: VecDeque<oneshot::Sender<Running>>,
}

/// A turn that was accepted and is not at work; gives its place back when dropped.
pub struct Place(Option<Arc<Gate>>);

/// A turn at work; makes room for the next one when dropped.
pub struct Running(Arc<Gate>);

impl Gate {
    /// Bounded by `limits.maxConcurrentTurns` and `limits.maxQueuedTurns`.
    pub fn new(live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), live, metrics })
    }

    fn bounds(&self) -> (usize, usize) {
        let live = self.live.borrow();
        (live.limits.max_concurrent_turns as usize, live.limits.max_queued_turns as usize)
    }

    /// Turns at work.
    pub fn running(&self) -> usize {
        self.state.lock().running
    }

    /// Accepts a turn, or `None` when as many wait as may.
    pub fn admit(self: &Arc<Self>) -> Option<Place> {
        let (run, wait) = self.bounds();
        let mut state = self.state.lock();
        if state.running + state.queued >= run.saturating_add(wait) {
            return None;
        }
        state.queued += 1;
        self.metrics.turns_queued.inc();
        Some(Place(Some(Arc::clone(self))))
    }

    /// Lets waiting turns in as far as the limit goes; called when the limits changed.
    pub fn pump(self: &Arc<Self>) {
        let (run, _) = self.bounds();
        loop {
            let mut state = self.state.lock();
            if state.running >= run {
                return;
            }
            let Some(next) = state.waiting.pop_front() else { return };
            if next.is_closed() {
                continue;
            }
            state.running += 1;
            drop(state);
            self.metrics.turns_in_flight.inc();
            // One that gave up drops what it gets, which frees the place again: outside of the lock.
            drop(next.send(Running(Arc::clone(self))));
        }
    }
}

impl Place {
    /// Waits for a place at work, in order. May be dropped while waiting.
    pub async fn run(self) -> Option<Running> {
        let gate = Arc::clone(self.0.as_ref()?);
        let (run, _) = gate.bounds();
        let waiting = {
            let mut state = gate.state.lock();
            if state.running < run && state.waiting.is_empty() {
                state.running += 1;
                gate.metrics.turns_in_flight.inc();
                None
            } else {
                let (tx, rx) = oneshot::channel();
                // Those that gave up must not pile up in front of a turn that never ends.
                state.waiting.retain(|w| !w.is_closed());
                state.waiting.push_back(tx);
                Some(rx)
            }
        };
        // `self` counts as queued until this returns or is dropped.
        match waiting {
            None => Some(Running(gate)),
            Some(rx) => rx.await.ok(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.state.lock().queued -= 1;
            gate.metrics.turns_queued.dec();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.metrics.turns_in_flight.dec();
        self.0.pump();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use outrigger_protocol::config::Limits;

    use super::*;

    fn gate(run: u32, wait: u32) -> (Arc<Gate>, watch::Sender<Arc<Live>>) {
        let (tx, rx) = watch::channel(live(run, wait));
        (Gate::new(rx, Metrics::register(&prometheus::Registry::new()).unwrap()), tx)
    }

    fn live(run: u32, wait: u32) -> Arc<Live> {
        let limits = Limits { max_concurrent_turns: run, max_queued_turns: wait, ..Limits::default() };
        Arc::new(Live { limits, ..Live::new(serde_json::Value::Null) })
    }

    #[test]
    fn places_are_bounded_and_in_order() {
        let (gate, _live) = gate(1, 2);
        let first = gate.admit().unwrap().run().now_or_never().flatten().unwrap();
        let mut second = Box::pin(gate.admit().unwrap().run());
        let mut third = Box::pin(gate.admit().unwrap().run());
        assert!(gate.admit().is_none());
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut third).now_or_never().is_none());
        let second = second.now_or_never().flatten().unwrap();
        assert_eq!((gate.metrics.turns_in_flight.get(), gate.metrics.turns_queued.get()), (1, 1));
        drop(second);
        assert!(third.now_or_never().flatten().is_some());
        assert_eq!((gate.metrics.turns_in_flight.get(), gate.metrics.turns_queued.get()), (0, 0));
    }

    #[test]
    fn one_that_gives_up_loses_no_place() {
        let (gate, _live) = gate(1, 5);
        let first = gate.admit().unwrap().run().now_or_never().flatten().unwrap();
        let mut gone = Box::pin(gate.admit().unwrap().run());
        let mut late = Box::pin(gate.admit().unwrap().run());
        assert!((&mut gone).now_or_never().is_none() && (&mut late).now_or_never().is_none());
        // The place is in the channel when the waiter goes.
        drop(first);
        drop(gone);
        assert!(late.now_or_never().flatten().is_some());
    }

    #[test]
    fn a_wider_limit_lets_the_waiting_in() {
        let (gate, tx) = gate(1, 5);
        let _first = gate.admit().unwrap().run().now_or_never().flatten().unwrap();
        let mut second = Box::pin(gate.admit().unwrap().run());
        assert!((&mut second).now_or_never().is_none());
        tx.send_replace(live(2, 5));
        gate.pump();
        assert!(second.now_or_never().flatten().is_some());
    }
}
