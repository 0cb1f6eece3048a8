//! Status of a Skill.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_crds::{Skill, SkillStatus};
use outrigger_protocol::skill::{Defect, Severity};

use super::{Said, conditions, count};
use crate::apply::ApplyError;
use crate::plan::SkillPlan;

/// Defects named in a message.
const MAX_NAMED: usize = 5;

/// All that a status is made from.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The content, or what is wrong with it.
    pub plan: Result<SkillPlan, Vec<Defect>>,
    /// Why the content could not be published.
    pub error: Option<ApplyError>,
    /// Agents that use it.
    pub agents: usize,
}

/// The status of `skill` after `seen`. Digest, sizes and description are those of what is published.
pub fn status(skill: &Skill, seen: &Seen, now: &Time) -> SkillStatus {
    let previous = skill.status.clone().unwrap_or_default();
    let published = seen.plan.as_ref().ok().filter(|_| seen.error.is_none());
    let last = match previous.digest.as_deref().and_then(|d| d.get(..12)) {
        Some(digest) => format!("; the last valid content ({digest}) stays published"),
        None => "; nothing is published".into(),
    };
    let (accepted, ready) = match (&seen.plan, &seen.error) {
        (Err(defects), _) => {
            let message = named(defects, Severity::Error);
            (Said::no("InvalidSkill", &message), Said::no("InvalidSkill", format!("{message}{last}")))
        }
        (Ok(plan), error) => {
            let warnings = named(&plan.warnings, Severity::Warning);
            let accepted = if warnings.is_empty() {
                Said::yes("Accepted", "the skill is valid")
            } else {
                Said::yes("AcceptedWithWarnings", warnings)
            };
            match error {
                Some(error) if error.is_authors() => {
                    (Said::no(error.reason(), error.to_string()), Said::no(error.reason(), format!("{error}{last}")))
                }
                Some(error) => (accepted, Said::no(error.reason(), format!("{error}{last}"))),
                None => {
                    let message = format!("{} published", count(plan.files, "file"));
                    (accepted, Said::yes("Published", message))
                }
            }
        }
    };
    SkillStatus {
        observed_generation: skill.metadata.generation,
        digest: published.map(|p| p.digest.clone()).or(previous.digest),
        files: published.map_or(previous.files, |p| i32::try_from(p.files).unwrap_or(i32::MAX)),
        bytes: published.map_or(previous.bytes, |p| i64::try_from(p.bytes).unwrap_or(i64::MAX)),
        description: published.map(|p| p.description.clone()).or(previous.description),
        agents: i32::try_from(seen.agents).unwrap_or(i32::MAX),
        conditions: conditions(
            &previous.conditions,
            skill.metadata.generation,
            now,
            vec![("Accepted", accepted), ("Ready", ready)],
        ),
    }
}

fn named(defects: &[Defect], severity: Severity) -> String {
    let of: Vec<_> = defects.iter().filter(|d| d.severity == severity).collect();
    let mut text = of.iter().take(MAX_NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if of.len() > MAX_NAMED {
        text = format!("{text}; and {} more", of.len() - MAX_NAMED);
    }
    text
}
