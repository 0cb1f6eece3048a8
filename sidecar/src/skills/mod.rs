//! Skills as real files: immutable trees under `.rev/{digest}`, and `{name}` always the newest.
//!
//! A ConfigMap volume presents files through symlinks, which several readers skip, and changes under a reader. So each
//! skill is copied, verified and put in place in one step. A turn gets the immutable path; an old tree stays until no
//! turn can still use it.

mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::config::{Live, SkillMount};
use outrigger_protocol::status::{PartStatus, SkillStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
pub use tree::SkillError;

/// How often the sources are looked at.
pub const POLL: Duration = Duration::from_secs(1);
/// A replaced tree stays this much longer than the longest turn and its wait.
pub const RETIRE_MARGIN: Duration = Duration::from_secs(60);

/// One skill as a turn may read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Name of the skill.
    pub name: String,
    /// Folder of the immutable tree.
    pub path: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    digest: Option<String>,
    /// What the source looked like when it was last read, so that it is read once.
    seen: Option<tree::Stamp>,
    problem: Option<SkillError>,
}

/// The skills of the pod.
#[derive(Debug)]
pub struct Skills {
    sources: PathBuf,
    target: PathBuf,
    mounts: Vec<SkillMount>,
    states: Mutex<BTreeMap<String, State>>,
    retired: Mutex<Vec<(Instant, String)>>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
}

impl Skills {
    /// Looks at the sources once.
    pub fn start(
        sources: &Path,
        target: &Path,
        mounts: Vec<SkillMount>,
        live: watch::Receiver<Arc<Live>>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let skills = Arc::new(Self {
            sources: sources.into(),
            target: target.into(),
            mounts,
            states: Mutex::default(),
            retired: Mutex::default(),
            live,
            metrics,
        });
        skills.refresh();
        skills
    }

    /// Looks at the sources until shutdown.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        if self.mounts.is_empty() {
            return;
        }
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {
                    let this = Arc::clone(&self);
                    if tokio::task::spawn_blocking(move || this.refresh()).await.is_err() {
                        tracing::error!(target: "business", "looking at the skills' sources failed");
                    }
                }
            }
        }
    }

    /// Puts each changed skill in place and removes trees that no turn can use any more.
    pub fn refresh(&self) {
        for mount in &self.mounts {
            self.refresh_one(&mount.name);
        }
        let now = Instant::now();
        let due: Vec<String> = {
            let mut retired = self.retired.lock();
            let due = retired.iter().filter(|(at, _)| *at <= now).map(|(_, d)| d.clone()).collect();
            retired.retain(|(at, _)| *at > now);
            due
        };
        for digest in due {
            if self.states.lock().values().all(|s| s.digest.as_ref() != Some(&digest)) {
                tree::remove(&self.target.join(tree::REVISIONS).join(&digest));
            }
        }
    }

    fn refresh_one(&self, name: &str) {
        let source = self.sources.join(name);
        let stamp = tree::stamp(&source);
        let before = {
            let states = self.states.lock();
            let state = states.get(name);
            if stamp.is_some() && state.is_some_and(|s| s.seen == stamp) {
                return;
            }
            state.and_then(|s| s.digest.clone())
        };
        let result = tree::publish(&source, &self.target, name, before.as_deref());
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_default();
        state.seen = stamp;
        match result {
            Ok(digest) => {
                state.problem = None;
                if state.digest.as_ref() != Some(&digest) {
                    tracing::info!(target: "business", skill = name, digest, "skill in place");
                    self.metrics.skill_updates.with_label_values(&[name, "published"]).inc();
                    if let Some(old) = state.digest.replace(digest) {
                        self.retired.lock().push((Instant::now() + self.longest_turn(), old));
                    }
                }
            }
            Err(problem) => {
                if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!(target: "business", skill = name, error = %problem, "skill is not in place");
                    self.metrics.skill_updates.with_label_values(&[name, "refused"]).inc();
                }
                state.problem = Some(problem);
            }
        }
        self.metrics.skills.with_label_values(&[name]).set(i64::from(state.digest.is_some()));
    }

    fn longest_turn(&self) -> Duration {
        let limits = &self.live.borrow().limits;
        Duration::from_millis(limits.turn_timeout_ms + limits.queue_timeout_ms) + RETIRE_MARGIN
    }

    /// Whether all required skills are in place.
    pub fn started(&self) -> bool {
        let states = self.states.lock();
        self.mounts.iter().all(|m| !m.required || states.get(&m.name).is_some_and(|s| s.digest.is_some()))
    }

    /// Skills as a turn that starts now may read them.
    pub fn published(&self) -> Vec<Published> {
        let states = self.states.lock();
        self.mounts
            .iter()
            .filter_map(|m| {
                let digest = states.get(&m.name)?.digest.as_ref()?;
                Some(Published {
                    name: m.name.clone(),
                    path: self.target.join(tree::REVISIONS).join(digest).join(&m.name),
                })
            })
            .collect()
    }

    /// Skills in the order of the boot document.
    pub fn status(&self) -> Vec<SkillStatus> {
        let states = self.states.lock();
        self.mounts
            .iter()
            .map(|m| {
                let state = states.get(&m.name);
                let digest = state.and_then(|s| s.digest.clone());
                let problem = state.and_then(|s| s.problem.as_ref());
                SkillStatus {
                    name: m.name.clone(),
                    required: m.required,
                    part: PartStatus {
                        ready: digest.is_some() && problem.is_none(),
                        reason: problem.map(|p| p.reason().to_owned()).unwrap_or_default(),
                        message: problem.map(ToString::to_string).unwrap_or_default(),
                    },
                    digest: digest.unwrap_or_default(),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
