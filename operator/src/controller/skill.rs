//! Skill: validated, digested and published as a `ConfigMap`; the last valid content stays.

use std::pin::Pin;

use outrigger_crds::{Skill, SkillStatus};

use super::{Context, Done, ReconcileError, WAITING, now, outcome, transition};
use crate::apply::{ApplyError, Owner};
use crate::plan;
use crate::report::Note;
use crate::status::skill::{Seen, status};
use crate::status::write::Written;

/// One look at a Skill.
pub fn reconcile<'a>(
    skill: &'a Skill,
    context: &'a Context,
) -> Pin<Box<dyn Future<Output = Result<Done, ReconcileError>> + Send + 'a>> {
    Box::pin(look(skill, context))
}

async fn look(skill: &Skill, context: &Context) -> Result<Done, ReconcileError> {
    let meta = &skill.metadata;
    if meta.deletion_timestamp.is_some() {
        return Ok(Done::quiet());
    }
    let owner = Owner {
        kind: "Skill",
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    let users = context.caches.agents_where(&owner.namespace, |a| a.spec.skills.iter().any(|s| s.name == owner.name));
    let mut seen = Seen { plan: plan::skill(skill), error: None, agents: users.len() };
    let mut done = Done::quiet();
    let mut written = String::new();
    if let Ok(plan) = &seen.plan {
        match context.applier.apply(&owner, std::slice::from_ref(&plan.config_map), &context.caches).await {
            Ok(outcome) => {
                if let Some((kind, name, _)) = outcome.written.first() {
                    written = format!("{} {name}", kind.as_str());
                    let text = format!("published {} with digest {}", name, plan.digest);
                    done.notes.push(Note { warning: false, reason: "Published".into(), text });
                }
                if let Some(wait) = outcome.retry_after {
                    done.again_within(wait);
                }
            }
            Err(
                error @ (ApplyError::NameConflict { .. }
                | ApplyError::Refused { .. }
                | ApplyError::OperatorForbidden { .. }),
            ) => {
                seen.error = Some(error);
                done.again_within(WAITING);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let version = meta.resource_version.as_deref().unwrap_or_default();
    let newest: Option<SkillStatus> = context.statuses.newest(&owner.uid, version, skill.status.clone());
    let base = Skill { status: newest.clone(), ..skill.clone() };
    let new = status(&base, &seen, &now());
    let result =
        context.statuses.write::<Skill, _>(&owner.name, &owner.namespace, &owner.uid, newest.as_ref(), &new).await?;
    let before = newest.map(|s| s.conditions).unwrap_or_default();
    match result {
        Written::Yes => {
            let note = transition(&before, &new.conditions, "Ready");
            done.notes.extend(note.filter(|n| !done.notes.iter().any(|o| o.reason == n.reason)));
        }
        Written::Later(wait) => done.again_within(wait),
        Written::Unchanged | Written::Gone => {}
    }
    done.outcome = outcome(&new.conditions, &written);
    Ok(done)
}
