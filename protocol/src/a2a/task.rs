//! A task and how it changes (A2A 1.0, section 4.1.1). Every store applies the same rules.

use std::sync::Arc;

use jiff::Timestamp;

use super::raw::{Raw, push_key, push_list, push_text};
use super::state::State;

/// Most messages in the history of a task: the first one and the newest stay.
pub const MAX_HISTORY: usize = 1_000;
/// Most bytes of messages in the history of a task.
pub const MAX_HISTORY_BYTES: usize = 8 << 20;
/// Most artifacts of a task.
pub const MAX_ARTIFACTS: usize = 1_000;

/// One artifact as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its `artifactId`.
    pub id: Arc<str>,
    /// Its `name`, if it has one.
    pub name: Option<Arc<str>>,
    /// The whole of it.
    pub json: Raw,
}

/// A task at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: Arc<str>,
    /// The context it belongs to.
    pub context_id: Arc<str>,
    /// 1 when created; one more with every change.
    pub version: u64,
    /// Its state.
    pub state: State,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// The message of its status.
    pub said: Option<Raw>,
    /// What was said before, oldest first.
    pub history: Vec<Raw>,
    /// What it made.
    pub artifacts: Vec<Artifact>,
    /// Whether a caller may know of it: a direct message takes the place of a task that none has seen.
    pub revealed: bool,
}

/// One change of a task. Whatever is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The turn that makes the change.
    pub turn: Option<Arc<str>>,
    /// Number of this change in its turn, from 1.
    pub step: u32,
    /// New state; also the same one again, with something new to say.
    pub state: Option<State>,
    /// Message of the new status; without a `state` it is not looked at.
    pub said: Option<Raw>,
    /// The caller's message, for the history.
    pub message: Option<Raw>,
    /// Artifacts; one with an id that is there already replaces it.
    pub artifacts: Vec<Artifact>,
    /// The memo of the context.
    pub memo: Option<Raw>,
    /// The caller gets to know the task.
    pub reveal: bool,
}

impl Change {
    /// Bytes of JSON that the change brings to the task.
    pub fn size(&self) -> usize {
        let raws = self.said.iter().chain(&self.message).chain(self.artifacts.iter().map(|a| &a.json));
        raws.map(Raw::size).sum()
    }
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The task ended.
    #[error("the task is {} and does not change any more", .0.wire())]
    Ended(State),
    /// There is no such move.
    #[error("a task does not go from {} to {}", .0.wire(), .1.wire())]
    Move(State, State),
    /// More artifacts than a task may have.
    #[error("a task has at most {MAX_ARTIFACTS} artifacts")]
    Artifacts,
}

impl Task {
    /// A new task with its first message.
    pub fn new(id: Arc<str>, context_id: Arc<str>, message: Raw, revealed: bool, now: Timestamp) -> Self {
        Self {
            id,
            context_id,
            version: 1,
            state: State::Submitted,
            since: now,
            said: None,
            history: vec![message],
            artifacts: Vec::new(),
            revealed,
        }
    }

    /// The task after a change.
    pub fn apply(&self, change: &Change, now: Timestamp) -> Result<Self, Refused> {
        if self.state.is_terminal() {
            return Err(Refused::Ended(self.state));
        }
        if let Some(to) = change.state
            && !self.state.may_become(to)
        {
            return Err(Refused::Move(self.state, to));
        }
        let mut next = self.clone();
        next.version += 1;
        next.revealed |= change.reveal;
        if let Some(state) = change.state {
            // What the last status said stays readable.
            next.history.extend(next.said.take());
            next.said.clone_from(&change.said);
            next.state = state;
            next.since = now;
        }
        next.history.extend(change.message.clone());
        next.trim_history();
        for artifact in &change.artifacts {
            match next.artifacts.iter().position(|a| a.id == artifact.id) {
                Some(at) => next.artifacts[at] = artifact.clone(),
                None if next.artifacts.len() == MAX_ARTIFACTS => return Err(Refused::Artifacts),
                None => next.artifacts.push(artifact.clone()),
            }
        }
        Ok(next)
    }

    fn trim_history(&mut self) {
        let Some((first, rest)) = self.history.split_first() else { return };
        let mut bytes = first.size();
        // The newest message always stays: a turn is about to answer it.
        let keep = rest
            .iter()
            .rev()
            .take(MAX_HISTORY - 1)
            .take_while(|m| {
                bytes += m.size();
                bytes <= MAX_HISTORY_BYTES
            })
            .count()
            .max(1)
            .min(rest.len());
        let drop = rest.len() - keep;
        self.history.drain(1..=drop);
    }

    /// Bytes of JSON that the task holds.
    pub fn size(&self) -> usize {
        self.said.as_ref().map_or(0, Raw::size)
            + self.history.iter().map(Raw::size).sum::<usize>()
            + self.artifacts.iter().map(|a| a.json.size()).sum::<usize>()
    }

    /// Appends the task as JSON. `history_length`: absent is all, 0 none, n the newest n.
    pub fn write(&self, history_length: Option<u32>, out: &mut String) {
        out.push('{');
        push_key(out, "id");
        push_text(out, &self.id);
        push_key(out, "contextId");
        push_text(out, &self.context_id);
        out.push_str(",\"status\":{\"state\":\"");
        out.push_str(self.state.wire());
        out.push_str("\",\"timestamp\":\"");
        let _ = std::fmt::Write::write_fmt(out, format_args!("{:.3}", self.since));
        out.push('"');
        if let Some(said) = &self.said {
            push_key(out, "message");
            out.push_str(said.as_str());
        }
        out.push('}');
        if !self.artifacts.is_empty() {
            push_key(out, "artifacts");
            push_list(out, self.artifacts.iter().map(|a| a.json.as_str()));
        }
        let wanted = history_length.map_or(self.history.len(), |n| self.history.len().min(n as usize));
        if wanted > 0 {
            push_key(out, "history");
            push_list(out, self.history[self.history.len() - wanted..].iter().map(Raw::as_str));
        }
        out.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(text: &str) -> Raw {
        Raw::assembled(text)
    }

    fn artifact(id: &str, json: &str) -> Artifact {
        Artifact { id: id.into(), name: None, json: raw(json) }
    }

    fn task() -> Task {
        let now = "2026-11-29T10:00:00.123Z".parse().unwrap();
        Task::new("t1".into(), "c1".into(), raw(r#"{"messageId":"m1","n":9007199254740993}"#), false, now)
    }

    fn json(task: &Task, n: Option<u32>) -> String {
        let mut out = String::new();
        task.write(n, &mut out);
        out
    }

    #[test]
    fn a_task_as_json() {
        let later = "2026-11-29T10:00:05Z".parse().unwrap();
        let asked = Change { state: Some(State::InputRequired), said: Some(raw("{\"q\":1.0}")), ..Change::default() };
        let t = task().apply(&asked, later).unwrap();
        let told = Change {
            state: Some(State::Working),
            message: Some(raw("{\"m\":2}")),
            artifacts: vec![artifact("a1", "{\"artifactId\":\"a1\",\"big\":12345678901234567890}")],
            ..Change::default()
        };
        let t2 = t.apply(&told, later).unwrap();
        insta::assert_snapshot!([json(&t, None), json(&t2, None), json(&t2, Some(1)), json(&t2, Some(0))].join("\n"));
        assert_eq!(t2.version, 3);
    }

    #[test]
    fn what_ended_does_not_change() {
        let end = Change { state: Some(State::Canceled), ..Change::default() };
        let t = task().apply(&end, Timestamp::UNIX_EPOCH).unwrap();
        for state in State::ALL {
            let change = Change { state: Some(state), ..Change::default() };
            assert_eq!(t.apply(&change, Timestamp::UNIX_EPOCH), Err(Refused::Ended(State::Canceled)));
        }
    }

    #[test]
    fn an_artifact_replaces_its_namesake() {
        let change =
            Change { artifacts: vec![artifact("a", "1"), artifact("b", "2"), artifact("a", "3")], ..Change::default() };
        let t = task().apply(&change, Timestamp::UNIX_EPOCH).unwrap();
        let got: Vec<_> = t.artifacts.iter().map(|a| a.json.as_str()).collect();
        assert_eq!(got, ["3", "2"]);
        assert!(t.since > Timestamp::UNIX_EPOCH, "a change without a state leaves the time of the status");
    }

    #[test]
    fn history_keeps_its_first_and_its_newest_messages() {
        let mut t = task();
        for i in 0..1_100 {
            let change = Change { message: Some(raw(&i.to_string())), ..Change::default() };
            t = t.apply(&change, Timestamp::UNIX_EPOCH).unwrap();
        }
        assert_eq!(t.history.len(), MAX_HISTORY);
        assert!(
            t.history[0].as_str().contains("m1") && t.history[1].as_str() == "101" && t.history[999].as_str() == "1099"
        );
    }

    proptest! {
        /// No order of changes makes a version skip, revives an ended task, or writes something that is no JSON.
        #[test]
        fn changes_keep_the_rules(moves in prop::collection::vec((0_usize..8, any::<bool>(), any::<bool>()), 0..20)) {
            let mut t = task();
            for (i, (state, message, art)) in moves.into_iter().enumerate() {
                let change = Change {
                    state: Some(State::ALL[state]),
                    message: message.then(|| raw(&i.to_string())),
                    artifacts: art.then(|| artifact("a", &i.to_string())).into_iter().collect(),
                    ..Change::default()
                };
                match t.apply(&change, Timestamp::UNIX_EPOCH) {
                    Ok(next) => {
                        prop_assert!(!t.state.is_terminal() && next.version == t.version + 1);
                        prop_assert!(next.history.len() <= t.history.len() + 2);
                        t = next;
                    }
                    Err(_) => prop_assert!(!t.state.may_become(State::ALL[state])),
                }
                prop_assert!(serde_json::from_str::<serde_json::Value>(&json(&t, None)).is_ok());
            }
        }
    }
}
