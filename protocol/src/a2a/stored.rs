//! A task and its changes as JSON text, as a database keeps them. What callers and agents wrote stays byte for byte.
//!
//! Members that a reader does not know are passed over, so that an older version reads what a newer one wrote.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::artifact::{Artifact, ArtifactUpdate};
use super::raw::{Members, Raw, SplitError, elements, push_key, push_list, push_text, text_of};
use super::state::State;
use super::task::{Change, Task, TurnMark};

/// A text that is not one of those that are written here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// No JSON, or another kind of value.
    #[error(transparent)]
    Text(#[from] SplitError),
    /// A member is missing or has another type.
    #[error("the member {0:?} is missing or malformed")]
    Member(&'static str),
}

/// Appends a change.
pub fn write_change(change: &Change, out: &mut String) {
    out.push('{');
    if let Some(state) = change.state {
        text(out, "state", state.short());
    }
    turn(out, change.turn.as_ref());
    for (key, value) in [("said", &change.said), ("message", &change.message), ("memo", &change.memo)] {
        raw(out, key, value.as_ref());
    }
    raw(out, "attachment", change.attachment.as_ref());
    if change.reveal {
        out.push_str(if out.ends_with('{') { "\"reveal\":true" } else { ",\"reveal\":true" });
    }
    if !change.artifacts.is_empty() {
        push_key(out, "artifacts");
        out.push('[');
        for (i, update) in change.artifacts.iter().enumerate() {
            out.push_str(if i > 0 { ",{" } else { "{" });
            artifact(out, &update.artifact);
            for (set, member) in [(update.append, ",\"append\":true"), (update.last, ",\"last\":true")] {
                out.push_str(if set { member } else { "" });
            }
            out.push('}');
        }
        out.push(']');
    }
    out.push('}');
}

/// Reads a change.
pub fn read_change(json: &str) -> Result<Change, Damaged> {
    let members = Members::split(json)?;
    let copied = |key| members.get(key).map(Raw::copy);
    let mut artifacts = Vec::new();
    if let Some(list) = members.get("artifacts") {
        for item in elements(list.get())? {
            let item = Members::split(item.get())?;
            let (append, last) = (item.get("append").is_some(), item.get("last").is_some());
            artifacts.push(ArtifactUpdate { artifact: read_artifact(&item)?, append, last });
        }
    }
    Ok(Change {
        turn: read_turn(&members)?,
        state: members.get("state").map(read_state).transpose()?,
        said: copied("said"),
        message: copied("message"),
        artifacts,
        memo: copied("memo"),
        reveal: members.get("reveal").is_some(),
        attachment: copied("attachment"),
    })
}

/// Appends all of a task, with what callers do not see.
pub fn write_task(task: &Task, out: &mut String) {
    out.push('{');
    text(out, "id", &task.id);
    text(out, "context", &task.context_id);
    text(out, "caller", &task.caller);
    text(out, "state", task.state.short());
    let since = task.since;
    let _ = write!(out, ",\"since\":\"{since}\",\"version\":{},\"epoch\":{}", task.version, task.epoch);
    out.push_str(if task.revealed { ",\"revealed\":true" } else { "" });
    if let Some(owner) = &task.owner {
        text(out, "owner", owner);
    }
    turn(out, task.turn.as_ref());
    raw(out, "said", task.said.as_ref());
    raw(out, "attachment", task.attachment.as_ref());
    push_key(out, "history");
    push_list(out, task.history.iter().map(Raw::as_str));
    push_key(out, "artifacts");
    out.push('[');
    for (i, item) in task.artifacts.iter().enumerate() {
        out.push_str(if i > 0 { ",{" } else { "{" });
        artifact(out, item);
        out.push('}');
    }
    out.push_str("]}");
}

/// Reads a task.
pub fn read_task(json: &str) -> Result<Task, Damaged> {
    let members = Members::split(json)?;
    let need = |key: &'static str| members.get(key).ok_or(Damaged::Member(key));
    let mut artifacts = Vec::new();
    for item in elements(need("artifacts")?.get())? {
        artifacts.push(read_artifact(&Members::split(item.get())?)?);
    }
    Ok(Task {
        id: shared(&members, "id")?,
        context_id: shared(&members, "context")?,
        caller: shared(&members, "caller")?,
        version: number(&members, "version")?,
        state: read_state(need("state")?)?,
        since: time(&members, "since")?,
        said: members.get("said").map(Raw::copy),
        history: elements(need("history")?.get())?.into_iter().map(Raw::copy).collect(),
        artifacts,
        revealed: members.get("revealed").is_some(),
        owner: members.get("owner").map(|_| shared(&members, "owner")).transpose()?,
        epoch: number(&members, "epoch")?,
        turn: read_turn(&members)?,
        attachment: members.get("attachment").map(Raw::copy),
    })
}

/// Appends a list of JSON values, such as the messages of a context.
pub fn write_list(items: &[Raw], out: &mut String) {
    push_list(out, items.iter().map(Raw::as_str));
}

/// Reads such a list.
pub fn read_list(json: &str) -> Result<Vec<Raw>, Damaged> {
    Ok(elements(json)?.into_iter().map(Raw::copy).collect())
}

fn text(out: &mut String, key: &str, value: &str) {
    push_key(out, key);
    push_text(out, value);
}

fn raw(out: &mut String, key: &str, value: Option<&Raw>) {
    if let Some(value) = value {
        push_key(out, key);
        out.push_str(value.as_str());
    }
}

fn turn(out: &mut String, turn: Option<&TurnMark>) {
    let Some(turn) = turn else { return };
    push_key(out, "turn");
    out.push('{');
    text(out, "id", &turn.id);
    let began = turn.began;
    let _ = write!(out, ",\"attempt\":{},\"seq\":{},\"began\":\"{began}\"", turn.attempt, turn.seq);
    out.push_str(if turn.asynchronous { ",\"async\":true}" } else { "}" });
}

fn read_turn(members: &Members<'_>) -> Result<Option<TurnMark>, Damaged> {
    let Some(turn) = members.get("turn") else { return Ok(None) };
    let turn = Members::split(turn.get())?;
    Ok(Some(TurnMark {
        id: shared(&turn, "id")?,
        attempt: u32::try_from(number(&turn, "attempt")?).map_err(|_| Damaged::Member("attempt"))?,
        seq: number(&turn, "seq")?,
        asynchronous: turn.get("async").is_some(),
        began: time(&turn, "began")?,
    }))
}

fn artifact(out: &mut String, artifact: &Artifact) {
    text(out, "id", &artifact.id);
    if let Some(name) = &artifact.name {
        text(out, "name", name);
    }
    push_key(out, "json");
    artifact.write(out);
}

fn read_artifact(members: &Members<'_>) -> Result<Artifact, Damaged> {
    let name = members.get("name").map(|_| shared(members, "name")).transpose()?;
    let json = members.get("json").ok_or(Damaged::Member("json"))?;
    Ok(Artifact::whole(shared(members, "id")?, name, Raw::copy(json)))
}

fn read_state(value: &RawValue) -> Result<State, Damaged> {
    text_of(value).and_then(|s| State::exact(&s)).ok_or(Damaged::Member("state"))
}

fn shared(members: &Members<'_>, key: &'static str) -> Result<Arc<str>, Damaged> {
    members.get(key).and_then(text_of).map(|t| t.as_ref().into()).ok_or(Damaged::Member(key))
}

fn number(members: &Members<'_>, key: &'static str) -> Result<u64, Damaged> {
    members.get(key).and_then(|v| v.get().parse().ok()).ok_or(Damaged::Member(key))
}

fn time(members: &Members<'_>, key: &'static str) -> Result<Timestamp, Damaged> {
    members.get(key).and_then(text_of).and_then(|t| t.parse().ok()).ok_or(Damaged::Member(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = Raw> {
        prop_oneof![
            Just("null".to_owned()),
            Just("{}".to_owned()),
            Just(r#"{"n": 1.0, "big":12345678901234567890,"é\u0000":[ null,true ]}"#.to_owned()),
            any::<String>().prop_map(|s| serde_json::json!({ "text": s }).to_string()),
            any::<i128>().prop_map(|n| n.to_string()),
        ]
        .prop_map(|t| Raw::parse(&t).unwrap())
    }

    fn name() -> impl Strategy<Value = Arc<str>> {
        any::<String>().prop_map(Arc::from)
    }

    fn at() -> impl Strategy<Value = Timestamp> {
        (0_i64..4_000_000_000, 0_i32..1_000_000_000).prop_map(|(s, ns)| Timestamp::new(s, ns).unwrap())
    }

    fn mark() -> impl Strategy<Value = TurnMark> {
        (name(), any::<u32>(), any::<u64>(), any::<bool>(), at())
            .prop_map(|(id, attempt, seq, asynchronous, began)| TurnMark { id, attempt, seq, asynchronous, began })
    }

    fn update() -> impl Strategy<Value = ArtifactUpdate> {
        (name(), prop::option::of(name()), json(), any::<bool>(), any::<bool>()).prop_map(
            |(id, name, part, append, last)| {
                let json = format!(r#"{{"artifactId":"a","parts":[{}],"x": 1.0}}"#, part.as_str());
                let artifact = Artifact::whole(id, name, Raw::parse(&json).unwrap());
                ArtifactUpdate { artifact, append, last }
            },
        )
    }

    prop_compose! {
        fn change()(
            turn in prop::option::of(mark()), state in prop::option::of(0_usize..8), said in prop::option::of(json()),
            message in prop::option::of(json()), artifacts in prop::collection::vec(update(), 0..3),
            memo in prop::option::of(json()), reveal in any::<bool>(), attachment in prop::option::of(json()),
        ) -> Change {
            Change { turn, state: state.map(|s| State::ALL[s]), said, message, artifacts, memo, reveal, attachment }
        }
    }

    proptest! {
        #[test]
        fn a_change_reads_back(change in change()) {
            let mut out = String::new();
            write_change(&change, &mut out);
            prop_assert_eq!(read_change(&out).unwrap(), change);
        }

        #[test]
        fn a_task_reads_back_and_goes_on_the_same(
            ids in (name(), name(), name(), name()), first in json(), made in at(), changes in prop::collection::vec(change(), 0..6),
        ) {
            let (id, context, caller, owner) = ids;
            let mut task = Task::new(id, context, caller, first, false, made);
            let mut copy = task.clone();
            for change in changes {
                let same = task.change(&change, &owner, made);
                prop_assert_eq!(copy.change(&change, &owner, made), same);
                let mut out = String::new();
                write_task(&task, &mut out);
                copy = read_task(&out).unwrap();
                prop_assert_eq!(&copy, &task);
            }
        }

        #[test]
        fn any_text_is_survived(s in any::<String>()) {
            let object = s.trim_start().starts_with('{');
            prop_assert!(read_change(&s).is_err() || object);
            prop_assert!(read_task(&s).is_err());
        }
    }

    #[test]
    fn as_it_is_written() {
        let change = Change {
            turn: Some(TurnMark {
                id: "turn".into(),
                attempt: 2,
                seq: 3,
                asynchronous: true,
                began: Timestamp::UNIX_EPOCH,
            }),
            state: Some(State::InputRequired),
            said: Some(Raw::assembled("{\"q\":1.0}")),
            message: Some(Raw::assembled("{}")),
            memo: Some(Raw::assembled("null")),
            artifacts: vec![ArtifactUpdate {
                artifact: Artifact::whole("a".into(), Some("A".into()), Raw::assembled(r#"{"artifactId":"a"}"#)),
                append: true,
                last: true,
            }],
            reveal: true,
            attachment: Some(Raw::assembled("[2]")),
        };
        let mut out = String::new();
        write_change(&change, &mut out);
        let message = Raw::assembled(r#"{"messageId":"m"}"#);
        let task = Task::new("t".into(), "c".into(), "me".into(), message, true, Timestamp::UNIX_EPOCH);
        out.push('\n');
        write_task(&task.apply(&change, &"o".into(), Timestamp::UNIX_EPOCH).unwrap(), &mut out);
        insta::assert_snapshot!(out);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read_change(r#"{"state":"done"}"#), Err(Damaged::Member("state")));
        assert_eq!(read_task(r#"{"artifacts":[]}"#), Err(Damaged::Member("id")));
        assert_eq!(read_change("[]").unwrap_err().to_string(), "must be an object");
        assert_eq!(read_change(r#"{"later":1}"#), Ok(Change::default()));
    }
}
