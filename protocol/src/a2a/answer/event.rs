//! One event of a turn: of a stream, or posted after 202 (`docs/executor-contract.md`).

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    Fault, Members, Outcome, Raw, Rule, Scope, SplitError, State, agent_error, agent_message, artifact_of,
    artifacts_of, direct, joined_parts, memo_of, object, state_of, text_of, text_parts,
};
use crate::a2a::task::{Artifact, ArtifactUpdate, Change};

/// What an event may have. `lastChunk` is A2A's own name of `last`; the ids are there for those who copy A2A's events.
const KNOWN: [&str; 15] = [
    "seq",
    "status",
    "text",
    "parts",
    "artifact",
    "append",
    "last",
    "artifacts",
    "state",
    "message",
    "error",
    "memo",
    "lastChunk",
    "taskId",
    "contextId",
];
/// What stands beside anything.
const BESIDE: [&str; 4] = ["seq", "memo", "taskId", "contextId"];

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number in the turn, if it says so itself.
    pub seq: Option<u64>,
    /// What the handler wants. A change whose state is none or `WORKING` leaves the turn going.
    pub outcome: Outcome,
    /// The new memo; `null` erases it.
    pub memo: Option<Raw>,
}

impl Event {
    /// Whether the turn ends with it.
    pub fn ends(&self) -> bool {
        match &self.outcome {
            Outcome::Change(change) => change.state.is_some_and(|s| s.is_terminal() || s.is_interrupted()),
            Outcome::Message(_) | Outcome::Error(_) => true,
        }
    }
}

/// Reads the events of one turn, in order.
#[derive(Debug)]
pub struct Events {
    result: Arc<str>,
    begun: bool,
}

impl Events {
    /// For a turn with an id; `artifacts` are those that the task has: the result may be among them.
    pub fn new(turn: Arc<str>, artifacts: &[Artifact]) -> Self {
        let begun = artifacts.iter().any(|a| a.id == turn);
        Self { result: turn, begun }
    }

    /// Reads one.
    pub fn read(&mut self, text: &str, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Event, Fault> {
        let members = object(text, &KNOWN, repairs)?;
        let seq = members.set("seq").map(seq_of).transpose()?;
        let memo = memo_of(&members)?;
        for alone in ["message", "error", "status"] {
            let beside = |k: &&&str| **k != alone && !BESIDE.contains(k) && members.set(k).is_some();
            let beside =
                KNOWN.iter().filter(beside).find(|k| alone != "status" || ["text", "parts", "state"].contains(k));
            if let (Some(_), Some(other)) = (members.set(alone), beside) {
                return Err(Fault::invalid(alone, format!("stands beside {other}, but excludes it")));
            }
        }
        let wrong = |key: &str, right: &str| members.set(key).is_some_and(|v| text_of(v).is_none_or(|v| v != right));
        if wrong("taskId", scope.task) || wrong("contextId", scope.context) {
            repairs.push(Rule::EventIds);
        }
        let outcome = match (members.set("error"), members.set("message")) {
            (Some(error), _) => match agent_error(error) {
                told @ Fault::Agent { .. } => Outcome::Error(told),
                fault => return Err(fault),
            },
            (None, Some(message)) => Outcome::Message(direct(message, scope, repairs)?),
            (None, None) => Outcome::Change(self.change(&members, scope, repairs)?),
        };
        Ok(Event { seq, outcome, memo })
    }

    fn change(&mut self, members: &Members<'_>, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Change, Fault> {
        let say = |parts: &str| agent_message(&(scope.new_id)(), scope.context, Some(scope.task), parts, []);
        let mut artifacts = Vec::new();
        if let Some(item) = members.set("artifact") {
            let artifact = artifact_of(item, "artifact", scope, repairs)?;
            let append = flag(members, "append")?;
            let last = flag(members, "last")? || flag(members, "lastChunk")?;
            artifacts.push(ArtifactUpdate { artifact, append, last });
        } else if members.set("append").is_some() {
            return Err(Fault::invalid("append", "stands without artifact"));
        }
        if let Some(list) = members.set("artifacts") {
            artifacts.extend(artifacts_of(list, scope, repairs)?.into_iter().map(ArtifactUpdate::whole));
        }
        if let Some(status) = members.set("status") {
            let text = text_of(status).ok_or_else(|| Fault::invalid("status", "must be a string"))?;
            let said = (!text.is_empty()).then(|| say(&text_parts(&text)));
            return Ok(Change { state: Some(State::Working), said, artifacts, ..Change::default() });
        }
        let state = members.set("state").map(|s| state_of(s, true, repairs)).transpose()?;
        let parts = joined_parts(members, repairs)?;
        let mut said = None;
        match (state, parts) {
            (_, None) => {}
            (None, Some(parts)) => artifacts.push(self.chunk(&parts, false)),
            (Some(State::Completed), Some(parts)) if artifacts.is_empty() => artifacts.push(self.chunk(&parts, true)),
            (Some(_), Some(parts)) => said = Some(say(&parts)),
        }
        Ok(Change { state, said, artifacts, ..Change::default() })
    }

    /// The next chunk of the result.
    fn chunk(&mut self, parts: &str, last: bool) -> ArtifactUpdate {
        let append = std::mem::replace(&mut self.begun, true);
        let artifact = super::artifact(Arc::clone(&self.result), parts);
        ArtifactUpdate { artifact, append, last }
    }
}

fn seq_of(value: &RawValue) -> Result<u64, Fault> {
    match value.get().parse::<u64>() {
        Ok(seq) if seq > 0 => Ok(seq),
        _ => Err(Fault::invalid("seq", "must be an integer from 1 on")),
    }
}

fn flag(members: &Members<'_>, key: &str) -> Result<bool, Fault> {
    match members.set(key).map(RawValue::get) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Fault::invalid(key, "must be true or false")),
    }
}

/// Most events in one request of the local API.
pub const MAX_BATCH: usize = 256;

/// Splits the body of a request with events of a turn: one object, or a list of them.
pub fn split_batch(body: &str) -> Result<Vec<&RawValue>, Fault> {
    if !super::depth_within(body.as_bytes(), super::MAX_DEPTH) {
        return Err(Fault::TooDeep);
    }
    let list = match super::elements(body) {
        Ok(list) => list,
        Err(SplitError::Syntax(e)) => return Err(Fault::NotJson(e)),
        Err(_) => vec![serde_json::from_str(body).map_err(|e| Fault::NotJson(e.to_string()))?],
    };
    match list.len() {
        0 => Err(Fault::invalid("the list", "must have at least one event")),
        n if n > MAX_BATCH => Err(Fault::invalid("the list", format!("has {n} events, at most {MAX_BATCH} are taken"))),
        _ => Ok(list),
    }
}
