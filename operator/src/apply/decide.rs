//! When an object is written: never in steady state, once after a change of ours or of somebody else's.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::plan::{ChildKind, Planned};

/// What is known of an object in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource_version: String,
    /// `metadata.generation`; kinds without one have 0.
    pub generation: i64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Hash of the plan that it was last written from.
    pub plan: Option<String>,
    /// Kind, name and uid of its controller.
    pub controller: Option<(String, String, String)>,
}

/// What we remember of our last write, or of the last time the object was found as it should be.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Uid of the object.
    pub uid: String,
    /// Hash of the plan.
    pub hash: String,
    /// `metadata.resourceVersion` then.
    pub resource_version: String,
    /// `metadata.generation` then.
    pub generation: i64,
    /// How often somebody else's change was undone in a row.
    pub undone: u32,
    /// When that was last.
    pub undone_at: Option<Instant>,
}

/// What to do with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Keep,
    /// Read it and compare: it moved, or we do not know it yet.
    Compare,
    /// Write it: the plan changed, or it is not there.
    Write,
}

/// Decides from what the caches know; makes no request.
pub fn decide(planned: &Planned, live: Option<&Live>, applied: Option<&Applied>) -> Decision {
    let Some(live) = live else { return Decision::Write };
    match applied.filter(|a| a.uid == live.uid) {
        Some(applied) if applied.hash != planned.hash => Decision::Write,
        Some(applied) if moved(planned, live, applied) => Decision::Compare,
        Some(_) => Decision::Keep,
        None if live.plan.as_deref() == Some(&planned.hash) => Decision::Compare,
        None => Decision::Write,
    }
}

/// Whether the live object may no longer be what we wrote.
fn moved(planned: &Planned, live: &Live, applied: &Applied) -> bool {
    if older(&live.resource_version, &applied.resource_version) {
        // The cache has not seen our own write yet.
        return false;
    }
    if live.resource_version == applied.resource_version {
        return false;
    }
    // Status and bookkeeping move a Deployment all the time, its generation only with its specification.
    if planned.kind == ChildKind::Deployment {
        let labels = planned.body.pointer("/metadata/labels").and_then(serde_json::Value::as_object);
        let labels_stay =
            labels.is_none_or(|l| l.iter().all(|(k, v)| live.labels.get(k).map(String::as_str) == v.as_str()));
        return live.generation != applied.generation
            || !labels_stay
            || live.plan.as_deref() != Some(&planned.hash)
            || live.controller.is_none();
    }
    true
}

/// Whether a resource version is older than another. Versions of one kind are increasing numbers.
pub fn older(a: &str, b: &str) -> bool {
    match (a.parse::<u128>(), b.parse::<u128>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}

/// After this long without another change of somebody else's, the next is undone at once again.
const QUIET: Duration = Duration::from_mins(10);
/// Wait before the second undoing; doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Longest wait between two.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

impl Applied {
    /// How long to wait before somebody else's change is undone (again): two managers that fight over a field must
    /// not turn into a storm.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let last = self.undone_at?;
        let since = now.saturating_duration_since(last);
        if since >= QUIET || self.undone == 0 {
            return None;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.undone.saturating_sub(1).min(10)).min(LONGEST_WAIT);
        wait.checked_sub(since).filter(|left| !left.is_zero())
    }

    /// Counts one more undoing.
    pub fn count_undone(&mut self, now: Instant) {
        let quiet = self.undone_at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        self.undone = if quiet { 1 } else { self.undone.saturating_add(1) };
        self.undone_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn planned(kind: ChildKind) -> Planned {
        Planned { kind, name: "x".into(), body: json!({"metadata": {"labels": {"a": "1"}}}), hash: "h1".into() }
    }

    fn live(rv: &str, generation: i64) -> Live {
        Live {
            uid: "u".into(),
            resource_version: rv.into(),
            generation,
            labels: BTreeMap::from([("a".into(), "1".into())]),
            plan: Some("h1".into()),
            controller: Some(("Agent".into(), "x".into(), "o".into())),
        }
    }

    fn applied(rv: &str, generation: i64) -> Applied {
        Applied {
            uid: "u".into(),
            hash: "h1".into(),
            resource_version: rv.into(),
            generation,
            undone: 0,
            undone_at: None,
        }
    }

    #[test]
    fn the_table() {
        let d = planned(ChildKind::Deployment);
        let s = planned(ChildKind::Service);
        let mut no_label = live("12", 3);
        no_label.labels.clear();
        let mut old_plan = applied("12", 3);
        old_plan.hash = "h0".into();
        let mut unknown_plan = live("12", 3);
        unknown_plan.plan = Some("h0".into());
        let mut reborn = live("12", 3);
        reborn.uid = "v".into();
        for (what, planned, live, applied, want) in [
            ("absent", &d, None, None, Decision::Write),
            ("as written", &d, Some(live("10", 3)), Some(applied("10", 3)), Decision::Keep),
            ("status moved", &d, Some(live("12", 3)), Some(applied("10", 3)), Decision::Keep),
            ("spec moved", &d, Some(live("12", 4)), Some(applied("10", 3)), Decision::Compare),
            ("label lost", &d, Some(no_label), Some(applied("10", 3)), Decision::Compare),
            ("cache behind", &d, Some(live("9", 2)), Some(applied("10", 3)), Decision::Keep),
            ("plan changed", &d, Some(live("12", 3)), Some(old_plan), Decision::Write),
            ("after a restart", &d, Some(live("12", 3)), None, Decision::Compare),
            ("after a restart, other plan", &d, Some(unknown_plan), None, Decision::Write),
            ("another object now", &d, Some(reborn), Some(applied("12", 3)), Decision::Compare),
            ("service moved", &s, Some(live("12", 0)), Some(applied("10", 0)), Decision::Compare),
            ("service as written", &s, Some(live("10", 0)), Some(applied("10", 0)), Decision::Keep),
        ] {
            assert_eq!(decide(planned, live.as_ref(), applied.as_ref()), want, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fight_slows_down() {
        let mut a = applied("1", 1);
        assert_eq!(a.wait(Instant::now()), None, "the first change is undone at once");
        a.count_undone(Instant::now());
        assert_eq!(a.wait(Instant::now()), Some(Duration::from_secs(5)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(a.wait(Instant::now()), None);
        a.count_undone(Instant::now());
        assert_eq!(a.wait(Instant::now()), Some(Duration::from_secs(10)));
        for _ in 0..40 {
            a.count_undone(Instant::now());
        }
        assert_eq!(a.wait(Instant::now()), Some(Duration::from_mins(5)));
        tokio::time::advance(QUIET).await;
        assert_eq!(a.wait(Instant::now()), None);
    }
}
