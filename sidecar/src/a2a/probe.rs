//! Whether the handler is there: asked again and again, and told to drain and readiness.

use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::status::PartStatus;
use tokio::sync::watch;
use tokio::time::Instant;

use super::executor::{Executor, NO_ANSWER, NotReady, Timing};
use super::gate::Gate;
use super::metrics::Metrics;
use crate::context::Context;

/// Container that runs the handler.
pub const CONTAINER: &str = "agent";
/// A handler that still answers this long after its drain hook was asked was not stopped after all.
const NOT_STOPPED_AFTER: Duration = Duration::from_secs(30);

/// What is said before the first probe.
pub fn unknown() -> PartStatus {
    PartStatus { ready: false, reason: "Unknown".into(), message: "the agent was not asked yet".into() }
}

/// Probes until shutdown.
pub async fn watch_handler(
    ctx: Context,
    executor: Arc<dyn Executor>,
    timing: Timing,
    gate: Arc<Gate>,
    metrics: Metrics,
    status: watch::Sender<PartStatus>,
) {
    let mut held_since: Option<Instant> = None;
    let mut was_down = false;
    loop {
        let mut seen = executor.probe().await;
        // A handler with a single thread answers no probe while it works: that is no outage.
        if matches!(seen, Err(NotReady { reason: NO_ANSWER, .. })) && gate.running() > 0 && status.borrow().ready {
            seen = Ok(());
        }
        let up = seen.is_ok();
        metrics.agent_up.set(i64::from(up));
        let next = match seen {
            Ok(()) => PartStatus { ready: true, ..PartStatus::default() },
            Err(NotReady { reason, message }) => PartStatus { ready: false, reason: reason.into(), message },
        };
        status.send_if_modified(|old| {
            let changed = *old != next;
            if old.ready != next.ready {
                tracing::info!(target: "business", ready = next.ready, reason = next.reason, message = next.message, "agent");
            }
            *old = next;
            changed
        });
        let held = ctx.drain.held(CONTAINER);
        if held {
            let since = *held_since.get_or_insert_with(Instant::now);
            was_down |= !up;
            if up && (was_down || since.elapsed() >= NOT_STOPPED_AFTER) {
                ctx.drain.reopen(CONTAINER);
            }
        } else {
            held_since = None;
            was_down = false;
        }
        let pause = if up && !held { timing.probe_ready } else { timing.probe_unready };
        tokio::select! {
            () = ctx.shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
