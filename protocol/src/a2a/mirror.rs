//! A task of an agent behind us as our own task shows it: what the agent says becomes changes, each thing once.
//!
//! Events bring what is new; snapshots (a task that was asked for, the first event of a subscription) bring everything
//! again. The mirror knows what it has shown and gives the difference, so that a stream can be left for a snapshot and
//! taken up again without a chunk lost or doubled.

use std::sync::Arc;

use super::raw::{Members, Raw, elements, push_key, push_list, text_of};
use super::response::{Status, TaskView, as_ours};
use super::state::State;
use super::task::{Artifact, ArtifactUpdate, Change, Task};

/// What has been shown of a task.
pub struct Mirror {
    task: Arc<str>,
    context: Arc<str>,
    state: State,
    /// Id of the status message shown last.
    said: Option<String>,
    artifacts: Vec<Artifact>,
    new_id: fn() -> String,
}

impl Mirror {
    /// A mirror of a task of ours that shows what the task has.
    pub fn new(task: &Task, new_id: fn() -> String) -> Self {
        Self {
            task: Arc::clone(&task.id),
            context: Arc::clone(&task.context_id),
            state: State::Working,
            said: task.said.as_ref().and_then(message_id),
            artifacts: task.artifacts.clone(),
            new_id,
        }
    }

    /// The state shown last.
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes of artifacts that it remembers.
    pub fn size(&self) -> usize {
        self.artifacts.iter().map(Artifact::size).sum()
    }

    /// A status. `None` if it says nothing new.
    pub fn status(&mut self, status: &Status) -> Option<Change> {
        // Taken, or without a state: it is at work, as far as anybody can see.
        let state = match status.state {
            None | Some(State::Submitted) => State::Working,
            Some(state) => state,
        };
        let id = status.message.as_ref().map(|m| message_id(m).unwrap_or_default());
        // A message without an id cannot be told from the one before.
        let said = status.message.as_ref().filter(|_| id.as_deref() == Some("") || id != self.said);
        if said.is_none() && state == self.state {
            return None;
        }
        let said = said.and_then(|m| as_ours(m, &self.task, &self.context, &self.new_id));
        if said.is_some() {
            self.said = id;
        }
        self.state = state;
        Some(Change { state: Some(state), said, ..Change::default() })
    }

    /// An artifact or a chunk of one, as an event brings it.
    pub fn artifact(&mut self, update: ArtifactUpdate) -> Change {
        match self.artifacts.iter_mut().find(|a| a.id == update.artifact.id) {
            Some(known) if update.append => known.append(&update.artifact),
            Some(known) => *known = update.artifact.clone(),
            None => self.artifacts.push(update.artifact.clone()),
        }
        Change { artifacts: vec![update], ..Change::default() }
    }

    /// A whole task. `None` if it brings nothing new.
    ///
    /// Of an artifact that went on, the rest is appended; one that is another now replaces the old one.
    pub fn snapshot(&mut self, task: &TaskView) -> Option<Change> {
        let mut artifacts = Vec::new();
        for artifact in &task.artifacts {
            let Some(known) = self.artifacts.iter_mut().find(|a| a.id == artifact.id) else {
                self.artifacts.push(artifact.clone());
                artifacts.push(ArtifactUpdate::whole(artifact.clone()));
                continue;
            };
            match rest(known, artifact) {
                Some(None) => {}
                Some(Some(more)) => {
                    known.append(&more);
                    artifacts.push(ArtifactUpdate { artifact: more, append: true, last: false });
                }
                None => {
                    *known = artifact.clone();
                    artifacts.push(ArtifactUpdate::whole(artifact.clone()));
                }
            }
        }
        let status = self.status(&task.status);
        if artifacts.is_empty() {
            return status;
        }
        Some(Change { artifacts, ..status.unwrap_or_default() })
    }
}

fn message_id(message: &Raw) -> Option<String> {
    let mut members = Members::split(message.as_str()).ok()?;
    members.camel(&["messageId"]).ok()?;
    members.set("messageId").and_then(text_of).map(std::borrow::Cow::into_owned).filter(|id| !id.is_empty())
}

/// What an artifact has beyond a known one: `Some(None)` if nothing, `None` if it is no continuation of it.
#[expect(clippy::option_option, reason = "no continuation, and one without anything new")]
fn rest(known: &Artifact, now: &Artifact) -> Option<Option<Artifact>> {
    let (known, text) = (known.to_json(), now.to_json());
    if known == text {
        return Some(None);
    }
    let (old, new) = (Members::split(known.as_str()).ok()?, Members::split(text.as_str()).ok()?);
    let parts = |m: &Members<'_>| -> Option<Vec<String>> {
        Some(elements(m.set("parts")?.get()).ok()?.into_iter().map(|p| p.get().to_owned()).collect())
    };
    let (before, after) = (parts(&old)?, parts(&new)?);
    let more = after.strip_prefix(before.as_slice())?;
    if more.is_empty() {
        return Some(None);
    }
    let mut json = String::with_capacity(text.size());
    json.push('{');
    for (key, value) in new.iter() {
        push_key(&mut json, key);
        if key == "parts" {
            push_list(&mut json, more.iter().map(String::as_str));
        } else {
            json.push_str(value.get());
        }
    }
    json.push('}');
    Some(Some(Artifact::whole(Arc::clone(&now.id), now.name.clone(), Raw::assembled(&json))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::response::Response;
    use jiff::Timestamp;
    use proptest::prelude::*;

    fn mirror() -> Mirror {
        let hello = Raw::assembled(r#"{"messageId":"m0"}"#);
        let task = Task::new("ours".into(), "c".into(), "".into(), hello, true, Timestamp::UNIX_EPOCH);
        Mirror::new(&task, || "made-up".into())
    }

    fn status(mirror: &mut Mirror, json: &str) -> Option<Change> {
        match Response::parse(&format!(r#"{{"statusUpdate":{{"taskId":"x","status":{json}}}}}"#)).unwrap() {
            Response::Status(view) => mirror.status(&view.status),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_status_is_shown_once_and_with_our_ids() {
        let mut m = mirror();
        assert_eq!(status(&mut m, r#"{"state":"TASK_STATE_SUBMITTED"}"#), None, "it is at work here already");
        let json = r#"{"state":"TASK_STATE_WORKING","message":{"messageId":"s1","taskId":"x","contextId":"y","role":"ROLE_AGENT","parts":[{"text":"hm"}]}}"#;
        let change = status(&mut m, json).unwrap();
        assert_eq!(change.state, Some(State::Working));
        assert_eq!(
            change.said.unwrap().as_str(),
            r#"{"messageId":"s1","contextId":"c","taskId":"ours","role":"ROLE_AGENT","parts":[{"text":"hm"}]}"#
        );
        assert_eq!(status(&mut m, json), None, "the same again");
        let done = status(&mut m, &json.replace("WORKING", "INPUT_REQUIRED")).unwrap();
        assert_eq!((done.state, done.said), (Some(State::InputRequired), None));
    }

    #[test]
    fn a_snapshot_after_events_brings_the_difference() {
        let mut m = mirror();
        let task = |artifacts: &str, state: &str| {
            TaskView::parse(&format!(r#"{{"id":"x","status":{{"state":"{state}"}},"artifacts":{artifacts}}}"#)).unwrap()
        };
        let working = "TASK_STATE_WORKING";
        let first = m.snapshot(&task(r#"[{"artifactId":"a","parts":[{"text":"1"}]}]"#, working)).unwrap();
        assert_eq!((first.artifacts.len(), first.artifacts[0].append, first.state), (1, false, None));
        assert_eq!(m.snapshot(&task(r#"[{"artifactId":"a","parts":[{"text":"1"}]}]"#, working)), None);
        let more = task(
            r#"[{"artifactId":"a","name":"N","parts":[{"text":"1"},{"text":"2"}]},{"artifactId":"b","parts":[]}]"#,
            "TASK_STATE_COMPLETED",
        );
        let change = m.snapshot(&more).unwrap();
        assert_eq!(change.state, Some(State::Completed));
        assert!(change.artifacts[0].append && !change.artifacts[1].append);
        assert_eq!(
            change.artifacts[0].artifact.to_json().as_str(),
            r#"{"artifactId":"a","name":"N","parts":[{"text":"2"}]}"#
        );
        let other = m.snapshot(&task(r#"[{"artifactId":"a","parts":[{"text":"other"}]}]"#, "TASK_STATE_COMPLETED"));
        let other = other.unwrap();
        assert_eq!((other.artifacts[0].append, other.state), (false, None), "it was replaced");
    }

    proptest! {
        /// Chunks seen as events and then a snapshot, cut anywhere: what was shown adds up to the whole.
        #[test]
        fn nothing_is_lost_or_doubled(texts in prop::collection::vec("[a-z]{1,3}", 1..20), seen in 0_usize..20, looks in prop::collection::vec(0_usize..20, 0..4)) {
            let part = |t: &String| format!(r#"{{"text":"{t}"}}"#);
            let whole = |n: usize| {
                let parts: Vec<_> = texts[..n.min(texts.len())].iter().map(part).collect();
                let json = format!(r#"{{"id":"x","artifacts":[{{"artifactId":"a","parts":[{}]}}]}}"#, parts.join(","));
                TaskView::parse(&json).unwrap()
            };
            let mut m = mirror();
            let mut shown: Option<Artifact> = None;
            let mut show = |change: Option<Change>| {
                for update in change.into_iter().flat_map(|c| c.artifacts) {
                    match (&mut shown, update.append) {
                        (Some(shown), true) => shown.append(&update.artifact),
                        (shown, _) => *shown = Some(update.artifact),
                    }
                }
            };
            for text in texts.iter().take(seen) {
                let json = format!(r#"{{"artifactUpdate":{{"append":true,"artifact":{{"artifactId":"a","parts":[{}]}}}}}}"#, part(text));
                let Ok(Response::Artifact { update, .. }) = Response::parse(&json) else { panic!("an update") };
                let change = m.artifact(update);
                show(Some(change));
            }
            let mut at = seen;
            for look in looks {
                // An agent's snapshots only ever grow.
                at = at.max(look);
                let change = m.snapshot(&whole(at));
                show(change);
            }
            let change = m.snapshot(&whole(texts.len()));
            show(change);
            prop_assert_eq!(shown.unwrap().to_json(), whole(texts.len()).artifacts[0].to_json());
        }
    }
}
