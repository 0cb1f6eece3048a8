//! The lease of this process on its tasks: renewed again and again; when that fails for too long, turns must stop.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::executor::Timing;
use super::store::Store;

/// Renews until shutdown. `lost` is true while the lease may be another's.
pub async fn keep(store: Arc<dyn Store>, timing: Timing, lost: watch::Sender<bool>, shutdown: CancellationToken) {
    let mut renewed = Instant::now();
    let mut next = renewed;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = sleep_until(next) => {}
        }
        let asked = Instant::now();
        let left = (renewed + timing.lost).saturating_duration_since(asked);
        let limit = if left.is_zero() { timing.renew } else { left.min(timing.renew) };
        let failed = match timeout(limit, store.renew()).await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some(format!("no answer within {} s", limit.as_secs_f64())),
        };
        if let Some(error) = failed {
            let is_lost = renewed.elapsed() >= timing.lost;
            if lost.send_if_modified(|l| !std::mem::replace(l, is_lost) && is_lost) {
                tracing::error!(target: "business", error, "the lease on this process's tasks was not renewed: turns stop");
            } else {
                tracing::warn!(target: "business", error, "the lease on this process's tasks was not renewed");
            }
            // Sooner than usual: a short outage should not use up the lease.
            let soon = Instant::now() + timing.renew / 5;
            next = if is_lost { soon } else { soon.min(renewed + timing.lost) };
        } else {
            // The lease counts from when it was asked for.
            renewed = asked;
            next = asked + timing.renew;
            if lost.send_if_modified(|l| std::mem::replace(l, false)) {
                tracing::info!(target: "business", "the lease on this process's tasks holds again");
            }
        }
    }
}
