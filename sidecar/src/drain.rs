//! Draining: which work is in flight on which container, and whether new work is taken.
//!
//! Every container that the operator renders asks `/drain/{container}` before it is stopped. The hook runs both when
//! the pod is deleted and when a probe restarts that container alone. So one hook holds new work for its container and
//! waits for the work it has; only when all containers have asked does the pod drain: readiness goes off at once, new
//! work is taken for [`ACCEPT_AFTER_DRAIN`] more (endpoints take that long to forget the pod), then refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// New work is still taken this long after the pod began to drain.
pub const ACCEPT_AFTER_DRAIN: Duration = Duration::from_secs(5);
/// A hook waits this long for the hooks of the other containers before it takes its stop for one of its own.
pub const TOGETHER: Duration = Duration::from_secs(1);
/// A hook returns this long before the grace period ends, so that the container can still stop by itself.
pub const MARGIN: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
struct State {
    containers: BTreeMap<String, Container>,
    draining_since: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Container {
    in_flight: usize,
    held: bool,
}

/// Work in flight per container, and whether new work is taken.
#[derive(Debug)]
pub struct Drain {
    state: watch::Sender<State>,
    grace: Duration,
}

/// One piece of work on a container; ends when dropped.
#[derive(Debug)]
pub struct Work {
    drain: Arc<Drain>,
    container: String,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.drain.state.send_modify(|s| {
            if let Some(c) = s.containers.get_mut(&self.container) {
                c.in_flight = c.in_flight.saturating_sub(1);
            }
        });
    }
}

impl Drain {
    /// Knows the containers of the pod and its grace period.
    pub fn new(containers: &[String], grace: Duration) -> Arc<Self> {
        let containers = containers.iter().map(|c| (c.clone(), Container::default())).collect();
        Arc::new(Self { state: watch::Sender::new(State { containers, draining_since: None }), grace })
    }

    /// Counts one piece of work on a container until the guard is dropped. Work on an unknown container is not counted.
    pub fn work(self: &Arc<Self>, container: &str) -> Work {
        self.state.send_modify(|s| {
            if let Some(c) = s.containers.get_mut(container) {
                c.in_flight += 1;
            }
        });
        Work { drain: Arc::clone(self), container: container.to_owned() }
    }

    /// Whether the pod still takes new work from the outside; if not, answer 503 with `Retry-After`.
    pub fn accepting(&self) -> bool {
        self.state.borrow().draining_since.is_none_or(|t| t.elapsed() < ACCEPT_AFTER_DRAIN)
    }

    /// Whether the pod is on its way out: readiness is off.
    pub fn draining(&self) -> bool {
        self.state.borrow().draining_since.is_some()
    }

    /// Whether a container asked to be left alone: it is about to be restarted.
    pub fn held(&self, container: &str) -> bool {
        let s = self.state.borrow();
        s.draining_since.is_none() && s.containers.get(container).is_some_and(|c| c.held)
    }

    /// Whether the drain hook of a container was asked: the container is about to end.
    pub fn asked(&self, container: &str) -> bool {
        self.state.borrow().containers.get(container).is_some_and(|c| c.held)
    }

    /// Waits until a container may get new work: at once unless it is held by its own drain hook. The caller bounds it.
    pub async fn opened(&self, container: &str) {
        let mut rx = self.state.subscribe();
        let _ =
            rx.wait_for(|s| s.draining_since.is_some() || s.containers.get(container).is_none_or(|c| !c.held)).await;
    }

    /// A container is back after a restart of its own: it may get new work again.
    pub fn reopen(&self, container: &str) {
        self.state.send_if_modified(|s| match s.containers.get_mut(container) {
            Some(c) if c.held && s.draining_since.is_none() => {
                c.held = false;
                true
            }
            _ => false,
        });
    }

    /// Drains the whole pod, as on SIGTERM.
    pub fn start(&self) {
        self.state.send_if_modified(|s| {
            let first = s.draining_since.is_none();
            if first {
                s.draining_since = Some(Instant::now());
            }
            first
        });
    }

    /// The drain hook of one container: returns when its work is done, or shortly before the grace period ends.
    /// `false` for a container that this pod does not have.
    pub async fn hook(&self, container: &str) -> bool {
        let deadline = Instant::now() + self.grace.saturating_sub(MARGIN);
        let ours = self.state.send_if_modified(|s| {
            let Some(c) = s.containers.get_mut(container) else { return false };
            c.held = true;
            if s.draining_since.is_none() && s.containers.values().all(|c| c.held) {
                s.draining_since = Some(Instant::now());
            }
            true
        });
        if !ours {
            return false;
        }
        let mut rx = self.state.subscribe();
        // Hooks of one pod come together; a stop of this container alone goes on when nobody else asks.
        let together = Instant::now() + TOGETHER;
        let _ = tokio::time::timeout_at(together.min(deadline), rx.wait_for(|s| s.draining_since.is_some())).await;
        let since = rx.borrow().draining_since;
        let done = async {
            if let Some(since) = since {
                tokio::time::sleep_until(since + ACCEPT_AFTER_DRAIN).await;
                let _ = rx.wait_for(|s| s.containers.values().all(|c| c.in_flight == 0)).await;
            } else {
                let _ = rx.wait_for(|s| s.containers.get(container).is_none_or(|c| c.in_flight == 0)).await;
            }
        };
        let _ = tokio::time::timeout_at(deadline, done).await;
        true
    }

    /// Waits until no work is in flight.
    pub async fn idle(&self) {
        let mut rx = self.state.subscribe();
        let _ = rx.wait_for(|s| s.containers.values().all(|c| c.in_flight == 0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(names: &[&str]) -> Arc<Drain> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Drain::new(&names, Duration::from_secs(60))
    }

    #[tokio::test(start_paused = true)]
    async fn one_hook_holds_its_container_and_waits_for_its_work_only() {
        let d = drain(&["agent", "tool-a", "tool-b"]);
        let a = d.work("tool-a");
        let _b = d.work("tool-b");
        let hook = tokio::spawn({
            let d = Arc::clone(&d);
            async move { d.hook("tool-a").await }
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!hook.is_finished() && d.held("tool-a") && !d.held("tool-b") && d.accepting() && !d.draining());
        drop(a);
        assert!(hook.await.unwrap());
        assert!(d.held("tool-a"));
        d.reopen("tool-a");
        assert!(!d.held("tool-a"));
    }

    #[tokio::test(start_paused = true)]
    async fn all_hooks_drain_the_pod_and_wait_for_all_work() {
        let d = drain(&["agent", "tool-a"]);
        let turn = d.work("agent");
        let hooks: Vec<_> = ["agent", "tool-a"]
            .into_iter()
            .map(|c| {
                let d = Arc::clone(&d);
                tokio::spawn(async move { d.hook(c).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(d.draining() && d.accepting());
        tokio::time::sleep(ACCEPT_AFTER_DRAIN).await;
        assert!(!d.accepting() && hooks.iter().all(|h| !h.is_finished()));
        drop(turn);
        for h in hooks {
            assert!(h.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_ends_before_the_grace_period_does() {
        let d = drain(&["agent"]);
        let _turn = d.work("agent");
        let before = Instant::now();
        assert!(d.hook("agent").await);
        assert_eq!(before.elapsed(), Duration::from_secs(58));
        assert!(!d.hook("nobody").await);
    }
}
