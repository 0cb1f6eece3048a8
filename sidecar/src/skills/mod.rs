//! Skills of the Agent: as real files (immutable trees under `.rev/{digest}`, and `{name}` always the newest) and over
//! MCP ([`serve`]).
//!
//! The live document says which revision of which skill there is; one that says nothing of skills leaves it to the
//! start-up copies. Bytes come from a tree that is there already, from the start-up copy, or from a [`Source`]. A
//! ConfigMap volume presents files through symlinks, which several readers skip, and changes under a reader. So each
//! skill is copied, verified and put in place in one step. A turn gets the immutable path, and pins its tree.

pub mod held;
pub mod metrics;
pub mod serve;

mod source;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::config::{Live, Skill, SkillMount, Visibility};
use outrigger_protocol::status::{PartStatus, SkillStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use held::{Held, Pin, Tree};
pub use metrics::Metrics;
pub use source::{Fetched, Source};
pub use tree::{File, SkillError, digest_of};

/// How often the sources are looked at.
pub const POLL: Duration = Duration::from_secs(1);
/// A replaced tree stays no longer than the longest turn, its wait, and this.
pub const RETIRE_MARGIN: Duration = Duration::from_secs(60);
/// Bytes of skills that have no files, together.
pub const MAX_MEMORY: u64 = 128 << 20;
/// The list of the skills, beside them; hidden, so that scanners do not take it for one.
pub const CATALOGUE_FILE: &str = ".catalogue.md";

/// One skill as a turn may read it.
#[derive(Clone, Debug)]
pub struct Published {
    /// Name of the skill.
    pub name: String,
    /// Folder of the immutable tree, which stays there while this is held.
    pub path: PathBuf,
    /// See [`Pin`].
    pub pin: Pin,
}

#[derive(Debug, Default)]
struct State {
    tree: Option<Arc<Tree>>,
    /// What the document says of the revision that is in place.
    skill: Option<Arc<Skill>>,
    /// What the source looked like when it was last read, and for which revision, so that it is read once.
    seen: Option<(Option<tree::Stamp>, String)>,
    /// The revision that was asked for last, and since when.
    wanted: Option<(String, Instant)>,
    problem: Option<SkillError>,
}

/// A tree that is not the newest any more.
#[derive(Debug)]
struct Retired {
    /// When it goes, whoever reads it.
    at: Instant,
    name: String,
    tree: Arc<Tree>,
}

/// The skills of the pod.
pub struct Skills {
    sources: PathBuf,
    target: PathBuf,
    mounts: Vec<SkillMount>,
    states: Mutex<BTreeMap<String, State>>,
    retired: Mutex<Vec<Retired>>,
    live: watch::Receiver<Arc<Live>>,
    fetched: Fetched,
    /// What is served, in the order of the document; the number counts up with each change.
    shelf: watch::Sender<Arc<Vec<Held>>>,
    changes: watch::Sender<u64>,
    metrics: Metrics,
}

impl Skills {
    /// Looks at the sources once.
    pub fn start(
        sources: &Path,
        target: &Path,
        mounts: Vec<SkillMount>,
        live: watch::Receiver<Arc<Live>>,
        source: Option<Arc<dyn Source>>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let skills = Arc::new(Self {
            sources: sources.into(),
            target: target.into(),
            mounts,
            states: Mutex::default(),
            retired: Mutex::default(),
            live,
            fetched: Fetched::new(source),
            shelf: watch::Sender::default(),
            changes: watch::Sender::new(0),
            metrics,
        });
        skills.refresh();
        skills
    }

    /// Looks at the sources until shutdown.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        let mut live = self.live.clone();
        let mut tick = tokio::time::interval(POLL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
                Ok(()) = live.changed() => {}
            }
            shutdown.run_until_cancelled(self.fetch()).await;
        }
    }

    /// Looks at the sources on a thread that may wait for files.
    async fn look(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if tokio::task::spawn_blocking(move || this.refresh()).await.is_err() {
            tracing::error!(target: "business", "looking at the skills' sources failed");
        }
    }

    /// Puts in place what is at hand, and fetches what is not.
    pub async fn fetch(self: &Arc<Self>) {
        self.look().await;
        let missing: Vec<String> = {
            let states = self.states.lock();
            let missing = |s: &State| matches!(s.problem, Some(SkillError::RevisionMissing | SkillError::SkillMissing));
            let digest = |s: &State| s.wanted.as_ref().map(|(digest, _)| digest.clone()).filter(|d| !d.is_empty());
            states.values().filter(|s| missing(s)).filter_map(digest).collect()
        };
        for digest in missing {
            if self.fetched.fetch(&digest).await {
                self.look().await;
            }
        }
    }

    /// The skills that there are to be. Those of the boot document alone have no digest.
    fn wanted(&self) -> Vec<Arc<Skill>> {
        let live = self.live.borrow();
        if live.skills.is_empty() {
            let bare = |m: &SkillMount| Skill { name: m.name.clone(), required: m.required, ..Skill::default() };
            return self.mounts.iter().map(|m| Arc::new(bare(m))).collect();
        }
        live.skills.iter().map(|s| Arc::new(s.clone())).collect()
    }

    /// Puts each changed skill in place and removes trees that no turn can use any more.
    pub fn refresh(&self) {
        let wanted = self.wanted();
        let gone: Vec<(String, State)> = {
            let mut states = self.states.lock();
            let gone: Vec<String> =
                states.keys().filter(|name| wanted.iter().all(|w| w.name != **name)).cloned().collect();
            gone.into_iter().filter_map(|name| states.remove_entry(&name)).collect()
        };
        for (name, state) in gone {
            tree::remove(&self.target.join(&name));
            self.metrics.forget(&name);
            state.tree.into_iter().for_each(|tree| self.retire(&name, tree));
        }
        for skill in &wanted {
            self.refresh_one(skill);
        }
        self.shelve(&wanted);
        self.sweep();
    }

    fn refresh_one(&self, skill: &Skill) {
        let name = skill.name.as_str();
        let source = self.sources.join(name);
        let stamp = tree::stamp(&source);
        let digest = if skill.digest.is_empty() {
            self.copy_digest(name, &source, stamp.as_ref())
        } else {
            Ok(skill.digest.clone())
        };
        let seen = (stamp, digest.clone().unwrap_or_default());
        let before = {
            let mut states = self.states.lock();
            let state = states.entry(name.to_owned()).or_default();
            if let Ok(digest) = &digest
                && state.wanted.as_ref().is_none_or(|(wanted, _)| wanted != digest)
            {
                state.wanted = Some((digest.clone(), Instant::now()));
            }
            let same = state.seen.as_ref() == Some(&seen) && !self.fetched.has(&seen.1);
            if same && seen.0.is_some() && state.tree.as_ref().is_none_or(|t| t.on_disk == skill.delivery.files()) {
                return;
            }
            state.tree.clone()
        };
        let result = digest.and_then(|digest| match before {
            Some(tree) if tree.digest == digest && tree.on_disk == skill.delivery.files() => Ok(tree),
            _ => self.bring(skill, &source, &digest),
        });
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_default();
        state.seen = Some(seen);
        match result {
            Ok(tree) => {
                state.problem = None;
                if state.tree.as_ref().is_none_or(|t| !Arc::ptr_eq(t, &tree)) {
                    tracing::info!(target: "business", skill = name, digest = tree.digest, "skill in place");
                    let since = state.wanted.as_ref().map(|(_, since)| since.elapsed());
                    self.metrics.applied(name, since.unwrap_or_default());
                    if let Some(old) = state.tree.replace(tree) {
                        if old.on_disk && !skill.delivery.files() {
                            tree::remove(&self.target.join(name));
                        }
                        self.retire(name, old);
                    }
                }
            }
            Err(problem) => {
                if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!(target: "business", skill = name, error = %problem, "skill is not in place");
                    self.metrics.updates.with_label_values(&[name, "refused"]).inc();
                }
                state.problem = Some(problem);
            }
        }
        self.metrics.ready.with_label_values(&[name]).set(i64::from(state.tree.is_some()));
    }

    /// Digest of the start-up copy; its manifest is read when the volume has changed.
    fn copy_digest(&self, name: &str, source: &Path, stamp: Option<&tree::Stamp>) -> Result<String, SkillError> {
        let seen = self.states.lock().get(name).and_then(|s| s.seen.clone());
        match seen {
            Some((before, digest)) if stamp.is_some() && before.as_ref() == stamp && !digest.is_empty() => Ok(digest),
            _ => tree::copy_digest(source),
        }
    }

    /// The tree of a revision, from wherever its bytes are, in place.
    fn bring(&self, skill: &Skill, source: &Path, digest: &str) -> Result<Arc<Tree>, SkillError> {
        let name = &skill.name;
        let left = if skill.delivery.files() { tree::left(&self.target, name, digest) } else { None };
        let written = left.is_some();
        let files = match left {
            Some(files) => files,
            None => match tree::copy(source, digest) {
                Err(missing @ (SkillError::RevisionMissing | SkillError::SkillMissing)) => {
                    self.fetched.take(digest).ok_or(missing)??
                }
                copy => copy?,
            },
        };
        if skill.delivery.files() {
            tree::publish(&files, &self.target, name, digest, written)?;
            return Ok(Arc::new(Tree::new(digest, files, Some(&tree::place(&self.target, name, digest)))));
        }
        let tree = Tree::new(digest, files, None);
        let others: u64 = self.states.lock().values().filter_map(|s| s.tree.as_ref()).map(|t| t.memory()).sum();
        if others + tree.memory() > MAX_MEMORY {
            return Err(SkillError::MemoryFull(MAX_MEMORY));
        }
        Ok(Arc::new(tree))
    }

    /// Shows what is in place to those who serve it, if it is another.
    fn shelve(&self, wanted: &[Arc<Skill>]) {
        let held: Vec<Held> = {
            let mut states = self.states.lock();
            let held = |skill: &Arc<Skill>| {
                let state = states.get_mut(&skill.name)?;
                let tree = Arc::clone(state.tree.as_ref()?);
                // What is said of a revision that is not in place yet is not true of the one before.
                if skill.digest.is_empty() || skill.digest == tree.digest {
                    state.skill = Some(Arc::clone(skill));
                }
                Some(Held { skill: Arc::clone(state.skill.as_ref()?), tree })
            };
            wanted.iter().filter_map(held).collect()
        };
        let same = |a: &Held, b: &Held| a.skill == b.skill && Arc::ptr_eq(&a.tree, &b.tree);
        let changed = self.shelf.send_if_modified(|shelf| {
            let changed = shelf.len() != held.len() || !shelf.iter().zip(&held).all(|(a, b)| same(a, b));
            if changed {
                *shelf = Arc::new(held);
            }
            changed
        });
        if changed {
            self.changes.send_modify(|n| *n += 1);
            self.note();
        }
    }

    /// Writes the list of the skills that have files.
    fn note(&self) {
        let all = Arc::clone(&self.shelf.borrow());
        let listed = all.iter().filter(|h| h.tree.on_disk && h.skill.visibility == Visibility::Auto);
        let mut lines = String::new();
        for held in listed {
            let _ = writeln!(lines, "- {}: {}", held.skill.name, held.tree.description());
        }
        if let Err(error) = tree::note(&self.target, CATALOGUE_FILE, &lines) {
            tracing::warn!(target: "business", %error, "the list of the skills cannot be written");
        }
    }

    fn retire(&self, name: &str, tree: Arc<Tree>) {
        if tree.on_disk {
            let at = Instant::now() + self.longest_turn();
            self.retired.lock().push(Retired { at, name: name.into(), tree });
        }
    }

    /// Removes the trees that nobody reads.
    fn sweep(&self) {
        let now = Instant::now();
        let due: Vec<Retired> = {
            let mut retired = self.retired.lock();
            let (due, kept) = retired.drain(..).partition(|r| r.at <= now || !r.tree.pinned());
            *retired = kept;
            due
        };
        for old in due {
            let states = self.states.lock();
            let current = states.get(&old.name).and_then(|s| s.tree.as_ref());
            if current.is_none_or(|t| t.digest != old.tree.digest || !t.on_disk) {
                tree::retire(&self.target, &old.name, &old.tree.digest);
            }
        }
    }

    fn longest_turn(&self) -> Duration {
        let limits = &self.live.borrow().limits;
        Duration::from_millis(limits.turn_timeout_ms + limits.queue_timeout_ms) + RETIRE_MARGIN
    }

    /// Whether all required skills are in place.
    pub fn started(&self) -> bool {
        let states = self.states.lock();
        self.wanted().iter().all(|w| !w.required || states.get(&w.name).is_some_and(|s| s.tree.is_some()))
    }

    /// Skills as a turn that starts now may read them.
    pub fn published(&self) -> Vec<Published> {
        let all = self.shelf.borrow();
        let held = all.iter().filter(|h| h.tree.on_disk);
        held.map(|h| Published {
            name: h.skill.name.clone(),
            path: tree::place(&self.target, &h.skill.name, &h.tree.digest),
            pin: h.tree.pin(),
        })
        .collect()
    }

    /// Skills in the order of the document.
    pub fn status(&self) -> Vec<SkillStatus> {
        let states = self.states.lock();
        let told = |skill: &Arc<Skill>| {
            let state = states.get(&skill.name);
            let digest = state.and_then(|s| s.tree.as_ref()).map(|t| t.digest.clone());
            let problem = state.and_then(|s| s.problem.as_ref());
            SkillStatus {
                name: skill.name.clone(),
                required: skill.required,
                part: PartStatus {
                    ready: digest.is_some() && problem.is_none(),
                    reason: problem.map(|p| p.reason().to_owned()).unwrap_or_default(),
                    message: problem.map(ToString::to_string).unwrap_or_default(),
                },
                digest: digest.unwrap_or_default(),
            }
        };
        self.wanted().iter().map(told).collect()
    }
}

#[cfg(test)]
mod tests;
