//! Follows the live document at the operator, through its restarts and outages.

use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::sse;
use outrigger_protocol::config::ControlPlane;
use outrigger_protocol::control::{LIVE_EVENT, SILENCE};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Control;
use super::error::ControlError;
use crate::config::{LiveConfig, MAX_DOCUMENT};

/// Bytes of an event beside the document.
const ENVELOPE: usize = 4096;

/// Waits between two tries.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first; doubles with each failure.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// A connection that lasted this long starts them over.
    pub stable: Duration,
    /// A stream without a sign of life for this long is broken.
    pub silence: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            stable: Duration::from_secs(10),
            silence: SILENCE,
        }
    }
}

impl Pauses {
    /// The wait after so many failures in a row. All of it is jitter: a thousand sidecars come back spread.
    fn after(self, failures: u32) -> Duration {
        let wait = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.longest);
        wait.mul_f64(rand::random_range(0.1..1.0))
    }
}

impl Control {
    /// Hands documents on to `config` until `shutdown`.
    pub async fn follow(self: Arc<Self>, config: Arc<LiveConfig>, shutdown: CancellationToken) {
        let mut live = self.live.clone();
        let mut failures: u32 = 0;
        loop {
            let Some(plane) = live.borrow_and_update().control.clone() else {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    changed = live.changed() => if changed.is_err() { return },
                }
                continue;
            };
            let begin = Instant::now();
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                ended = self.once(&config) => ended,
            };
            if begin.elapsed() >= self.pauses.stable {
                failures = 0;
            }
            failures = failures.saturating_add(1);
            let wait = self.ended(ended, failures);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                // The volume brought another address, or another authority: the reason to wait is gone.
                () = moved(&mut live, &plane) => failures = 0,
            }
        }
    }

    /// One connection, from its begin to its end. Whoever drops it ends it.
    async fn once(&self, config: &LiveConfig) -> Result<(), ControlError> {
        let known = config.status().digest;
        let opened = self.requests.watch(&known).await;
        let outcome = opened.as_ref().map_or_else(ControlError::label, |_| "ok");
        self.metrics.connections.with_label_values(&[outcome]).inc();
        let mut stream = opened?;
        let _connected = Connected::begin(self, config);
        let max = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX).saturating_add(ENVELOPE);
        let (mut parser, mut events) = (sse::Parser::new(max), Vec::new());
        loop {
            let piece = tokio::time::timeout(self.pauses.silence, stream.next()).await;
            let Some(piece) = piece.map_err(|_| ControlError::Silent(self.pauses.silence))? else { return Ok(()) };
            parser.push(&piece?, &mut events).map_err(|e| ControlError::BadAnswer(e.to_string()))?;
            for event in events.drain(..).filter(|e| e.event.as_deref() == Some(LIVE_EVENT)) {
                config.offer(event.data.as_bytes());
            }
        }
    }

    /// Notes how a connection ended; how long to wait for the next.
    fn ended(&self, ended: Result<(), ControlError>, failures: u32) -> Duration {
        let Err(error) = ended else {
            // The operator ends streams now and then, and when it goes.
            return self.pauses.after(failures);
        };
        let mut state = self.state.lock();
        let text = error.to_string();
        let known = state.error.as_ref().is_some_and(|(_, known)| *known == text);
        if !known {
            tracing::warn!(target: "transport", error = text, "the operator is not followed; trying again");
        }
        state.error = Some((error.reason(), text));
        self.pauses.after(failures).max(error.retry_after().unwrap_or_default())
    }
}

/// Waits until the live document names another control API than `plane`.
async fn moved(live: &mut tokio::sync::watch::Receiver<Arc<outrigger_protocol::config::Live>>, plane: &ControlPlane) {
    if live.wait_for(|l| l.control.as_ref() != Some(plane)).await.is_err() {
        // The configuration is gone: so is the process, soon.
        std::future::pending::<()>().await;
    }
}

/// While this is there the operator's word counts, and not the volume's.
struct Connected<'a> {
    control: &'a Control,
    config: &'a LiveConfig,
}

impl<'a> Connected<'a> {
    fn begin(control: &'a Control, config: &'a LiveConfig) -> Self {
        config.hold();
        let mut state = control.state.lock();
        (state.connected, state.last) = (true, Instant::now());
        if state.error.take().is_some() {
            tracing::info!(target: "transport", "the operator is followed again");
        }
        drop(state);
        control.metrics.connected.set(1);
        Self { control, config }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.config.release();
        let mut state = self.control.state.lock();
        (state.connected, state.last) = (false, Instant::now());
        self.control.metrics.connected.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let pauses = Pauses::default();
        for (failures, most) in [(1, 1.0), (2, 2.0), (6, 30.0), (u32::MAX, 30.0)] {
            let wait = pauses.after(failures).as_secs_f64();
            assert!(wait > 0.05 && wait <= most, "{failures}: {wait}");
        }
    }
}
