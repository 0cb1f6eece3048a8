//! A task and how it changes (A2A 1.0, section 4.1.1). Every store applies the same rules.

use std::sync::Arc;

use jiff::Timestamp;

pub use super::artifact::{Artifact, ArtifactUpdate};
use super::raw::{Raw, push_key, push_list, push_text};
use super::state::State;

/// Most messages in the history of a task: the first one and the newest stay.
pub const MAX_HISTORY: usize = 1_000;
/// Most bytes of messages in the history of a task.
pub const MAX_HISTORY_BYTES: usize = 8 << 20;
/// Most artifacts of a task.
pub const MAX_ARTIFACTS: usize = 1_000;

/// A turn that is under way for a task, as the store remembers it: enough to hand it over again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnMark {
    /// Id of the turn.
    pub id: Arc<str>,
    /// How often it was handed over.
    pub attempt: u32,
    /// `seq` of the handler's last event that was written; 0 before any.
    pub seq: u64,
    /// Whether the handler answered 202: its events come to the local API.
    pub asynchronous: bool,
    /// When it began.
    pub began: Timestamp,
}

/// A task at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: Arc<str>,
    /// The context it belongs to.
    pub context_id: Arc<str>,
    /// Whose it is: key of the caller that made it, empty for the anonymous one. Never shown.
    pub caller: Arc<str>,
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
    /// The process that runs its turn, or will; none while the task waits for its caller and when it has ended.
    pub owner: Option<Arc<str>>,
    /// Rises when a task changes hands and when it is cancelled.
    pub epoch: u64,
    /// The turn under way.
    pub turn: Option<TurnMark>,
    /// What the executor wants to know of the task later, such as its id at the agent; never shown.
    pub attachment: Option<Raw>,
}

/// One change of a task. Whatever is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The turn that makes the change, as it is after it. A state that ends or interrupts the task ends its turn.
    pub turn: Option<TurnMark>,
    /// New state; also the same one again, with something new to say.
    pub state: Option<State>,
    /// Message of the new status; without a `state` it is not looked at.
    pub said: Option<Raw>,
    /// The caller's message, for the history.
    pub message: Option<Raw>,
    /// Artifacts and chunks of them, in order, before the new state.
    pub artifacts: Vec<ArtifactUpdate>,
    /// The memo of the context.
    pub memo: Option<Raw>,
    /// The caller gets to know the task.
    pub reveal: bool,
    /// What the executor wants to know of the task later.
    pub attachment: Option<Raw>,
}

impl Change {
    /// Bytes of JSON that the change brings to the task.
    pub fn size(&self) -> usize {
        let raws = self.said.iter().chain(&self.message).chain(&self.attachment);
        raws.map(Raw::size).sum::<usize>() + self.artifacts.iter().map(ArtifactUpdate::size).sum::<usize>()
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
    pub fn new(
        id: Arc<str>,
        context_id: Arc<str>,
        caller: Arc<str>,
        message: Raw,
        revealed: bool,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            context_id,
            caller,
            version: 1,
            state: State::Submitted,
            since: now,
            said: None,
            history: vec![message],
            artifacts: Vec::new(),
            revealed,
            owner: None,
            epoch: 1,
            turn: None,
            attachment: None,
        }
    }

    /// What made the task: the change that leads to version 1, so that a log holds all of it.
    pub fn first_change(&self) -> Change {
        Change {
            turn: self.turn.clone(),
            state: Some(self.state),
            message: self.history.first().cloned(),
            reveal: self.revealed,
            attachment: self.attachment.clone(),
            ..Change::default()
        }
    }

    /// The task at version 1, from what [`Self::first_change`] gave; nothing if that change makes no task.
    pub fn first(
        id: Arc<str>,
        context_id: Arc<str>,
        caller: Arc<str>,
        change: &Change,
        owner: Arc<str>,
        now: Timestamp,
    ) -> Option<Self> {
        let (message, state) = (change.message.clone()?, change.state?);
        let task = Self::new(id, context_id, caller, message, change.reveal, now);
        let (turn, attachment) = (change.turn.clone(), change.attachment.clone());
        Some(Self { state, owner: Some(owner), turn, attachment, ..task })
    }

    /// The task after a change that `writer` makes.
    pub fn apply(&self, change: &Change, writer: &Arc<str>, now: Timestamp) -> Result<Self, Refused> {
        self.check(change)?;
        let mut next = self.clone();
        next.take(change, writer, now);
        Ok(next)
    }

    /// Makes a change in place, so that a log is replayed without a copy per event. A refused one changes nothing.
    pub fn change(&mut self, change: &Change, writer: &Arc<str>, now: Timestamp) -> Result<(), Refused> {
        self.check(change)?;
        self.take(change, writer, now);
        Ok(())
    }

    /// Whether the rules allow the change.
    fn check(&self, change: &Change) -> Result<(), Refused> {
        if self.state.is_terminal() {
            return Err(Refused::Ended(self.state));
        }
        if let Some(to) = change.state
            && !self.state.may_become(to)
        {
            return Err(Refused::Move(self.state, to));
        }
        if self.artifacts.len() + change.artifacts.len() > MAX_ARTIFACTS {
            let mut ids: std::collections::HashSet<&str> = self.artifacts.iter().map(|a| &*a.id).collect();
            ids.extend(change.artifacts.iter().map(|u| &*u.artifact.id));
            if ids.len() > MAX_ARTIFACTS {
                return Err(Refused::Artifacts);
            }
        }
        Ok(())
    }

    fn take(&mut self, change: &Change, writer: &Arc<str>, now: Timestamp) {
        let stranger = self.owner.as_ref().is_some_and(|o| o != writer);
        self.version += 1;
        self.revealed |= change.reveal;
        let messages = self.history.len();
        if let Some(state) = change.state {
            // What the last status said stays readable.
            self.history.extend(self.said.take());
            self.said.clone_from(&change.said);
            self.state = state;
            self.since = now;
        }
        self.history.extend(change.message.clone());
        if self.history.len() > messages {
            self.trim_history();
        }
        for update in &change.artifacts {
            let artifact = &update.artifact;
            match self.artifacts.iter_mut().find(|a| a.id == artifact.id) {
                Some(there) if update.append => there.append(artifact),
                Some(there) => *there = artifact.clone(),
                None => self.artifacts.push(artifact.clone()),
            }
        }
        if let Some(turn) = &change.turn {
            self.turn = Some(turn.clone());
            // A task that waits is anybody's.
            self.owner = Some(Arc::clone(writer));
        }
        // Who worked on the task until now has lost it.
        if stranger || change.state == Some(State::Canceled) {
            self.epoch += 1;
        }
        if self.state.is_terminal() || self.state.is_interrupted() {
            self.turn = None;
            self.owner = None;
        }
        if let Some(attachment) = &change.attachment {
            self.attachment = Some(attachment.clone());
        }
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
            + self.artifacts.iter().map(Artifact::size).sum::<usize>()
    }

    /// Appends the task as JSON. `history_length`: absent is all, 0 none, n the newest n.
    pub fn write(&self, history_length: Option<u32>, out: &mut String) {
        self.write_part(history_length, true, out);
    }

    /// The same with or without its artifacts.
    pub fn write_part(&self, history_length: Option<u32>, with_artifacts: bool, out: &mut String) {
        out.push('{');
        push_key(out, "id");
        push_text(out, &self.id);
        push_key(out, "contextId");
        push_text(out, &self.context_id);
        push_key(out, "status");
        write_status(self.state, self.since, self.said.as_ref(), out);
        if with_artifacts && !self.artifacts.is_empty() {
            push_key(out, "artifacts");
            out.push('[');
            for (i, artifact) in self.artifacts.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                artifact.write(out);
            }
            out.push(']');
        }
        let wanted = history_length.map_or(self.history.len(), |n| self.history.len().min(n as usize));
        if wanted > 0 {
            push_key(out, "history");
            push_list(out, self.history[self.history.len() - wanted..].iter().map(Raw::as_str));
        }
        out.push('}');
    }
}

/// Appends a status as JSON (A2A 1.0, section 4.1.2).
pub fn write_status(state: State, since: Timestamp, said: Option<&Raw>, out: &mut String) {
    out.push_str("{\"state\":\"");
    out.push_str(state.wire());
    out.push_str("\",\"timestamp\":\"");
    let _ = std::fmt::Write::write_fmt(out, format_args!("{since:.3}"));
    out.push('"');
    if let Some(said) = said {
        push_key(out, "message");
        out.push_str(said.as_str());
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(text: &str) -> Raw {
        Raw::assembled(text)
    }

    fn artifact(id: &str, json: &str) -> ArtifactUpdate {
        ArtifactUpdate::whole(Artifact::whole(id.into(), None, raw(json)))
    }

    fn task() -> Task {
        let now = "2026-11-29T10:00:00.123Z".parse().unwrap();
        Task::new("t1".into(), "c1".into(), "".into(), raw(r#"{"messageId":"m1","n":9007199254740993}"#), false, now)
    }

    fn me() -> Arc<str> {
        "me".into()
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
        let t = task().apply(&asked, &me(), later).unwrap();
        let told = Change {
            state: Some(State::Working),
            message: Some(raw("{\"m\":2}")),
            artifacts: vec![artifact("a1", "{\"artifactId\":\"a1\",\"big\":12345678901234567890}")],
            ..Change::default()
        };
        let t2 = t.apply(&told, &me(), later).unwrap();
        insta::assert_snapshot!([json(&t, None), json(&t2, None), json(&t2, Some(1)), json(&t2, Some(0))].join("\n"));
        assert_eq!(t2.version, 3);
    }

    #[test]
    fn the_first_change_makes_the_task_again() {
        let mut t = task();
        t.turn = Some(TurnMark { id: "turn".into(), attempt: 1, ..TurnMark::default() });
        t.attachment = Some(raw("[1]"));
        t.owner = Some(me());
        let ids = || (Arc::clone(&t.id), Arc::clone(&t.context_id), Arc::clone(&t.caller));
        let (id, context, caller) = ids();
        assert_eq!(Task::first(id, context, caller, &t.first_change(), me(), t.since), Some(t.clone()));
        let (id, context, caller) = ids();
        assert_eq!(Task::first(id, context, caller, &Change::default(), me(), t.since), None);
    }

    #[test]
    fn owners_and_epochs() {
        let now = Timestamp::UNIX_EPOCH;
        let other: Arc<str> = "other".into();
        let turn = |attempt| Change {
            turn: Some(TurnMark { id: "turn".into(), attempt, ..TurnMark::default() }),
            state: Some(State::Working),
            ..Change::default()
        };
        let t = task().apply(&turn(1), &me(), now).unwrap();
        assert_eq!((t.owner.clone(), t.epoch), (Some(me()), 1), "a task that waited is anybody's");
        let taken = t.apply(&turn(2), &other, now).unwrap();
        assert_eq!((taken.owner.clone(), taken.epoch), (Some(other.clone()), 2));
        let canceled = Change { state: Some(State::Canceled), ..Change::default() };
        for writer in [me(), other.clone()] {
            let ended = taken.apply(&canceled, &writer, now).unwrap();
            assert_eq!((ended.owner, ended.epoch, ended.turn), (None, 3, None));
        }
        let failed = Change { state: Some(State::Failed), ..Change::default() };
        assert_eq!(taken.apply(&failed, &me(), now).unwrap().epoch, 3, "another process ended it");
        assert_eq!(taken.apply(&failed, &other, now).unwrap().epoch, 2);
        let asked = Change { state: Some(State::InputRequired), ..Change::default() };
        let rests = taken.apply(&asked, &other, now).unwrap();
        assert_eq!((rests.owner.clone(), rests.epoch), (None, 2));
        assert_eq!(rests.apply(&turn(1), &me(), now).unwrap().epoch, 2);
    }

    #[test]
    fn a_task_has_so_many_artifacts() {
        let many: Vec<_> = (0..MAX_ARTIFACTS).map(|i| artifact(&i.to_string(), "1")).collect();
        let mut t = task();
        let told = |artifacts| Change { artifacts, ..Change::default() };
        t.change(&told(many), &me(), Timestamp::UNIX_EPOCH).unwrap();
        let before = t.clone();
        let one_more = t.change(&told(vec![artifact("5", "2"), artifact("more", "1")]), &me(), Timestamp::UNIX_EPOCH);
        assert_eq!((one_more, &t), (Err(Refused::Artifacts), &before));
        t.change(&told(vec![artifact("5", "2")]), &me(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((t.artifacts.len(), t.artifacts[5].to_json().as_str()), (MAX_ARTIFACTS, "2"));
    }

    #[test]
    fn what_ended_does_not_change() {
        let end = Change { state: Some(State::Canceled), ..Change::default() };
        let t = task().apply(&end, &me(), Timestamp::UNIX_EPOCH).unwrap();
        for state in State::ALL {
            let change = Change { state: Some(state), ..Change::default() };
            assert_eq!(t.apply(&change, &me(), Timestamp::UNIX_EPOCH), Err(Refused::Ended(State::Canceled)));
        }
    }

    #[test]
    fn an_artifact_replaces_its_namesake() {
        let change =
            Change { artifacts: vec![artifact("a", "1"), artifact("b", "2"), artifact("a", "3")], ..Change::default() };
        let t = task().apply(&change, &me(), Timestamp::UNIX_EPOCH).unwrap();
        let got: Vec<_> = t.artifacts.iter().map(|a| a.to_json().as_str().to_owned()).collect();
        assert_eq!(got, ["3", "2"]);
        assert!(t.since > Timestamp::UNIX_EPOCH, "a change without a state leaves the time of the status");
    }

    #[test]
    fn history_keeps_its_first_and_its_newest_messages() {
        let mut t = task();
        for i in 0..1_100 {
            let change = Change { message: Some(raw(&i.to_string())), ..Change::default() };
            t = t.apply(&change, &me(), Timestamp::UNIX_EPOCH).unwrap();
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
                match t.apply(&change, &me(), Timestamp::UNIX_EPOCH) {
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
