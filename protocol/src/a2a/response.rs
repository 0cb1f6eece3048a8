//! What an agent answers, as a client reads it: tasks, messages and events of A2A 1.0 (sections 3.1 and 4.2).
//!
//! Lenient where the meaning is clear: other spellings of members and states, numbers for names, members that are
//! missing. Parts, metadata and unknown members stay the text that came.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::message::agent_message;
use super::raw::{self, Kind, MAX_DEPTH, Members, Raw, depth_within, elements, push_key, push_text, text_of};
use super::state::State;
use super::task::{Artifact, ArtifactUpdate};

/// An answer that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} {what}")]
pub struct Unreadable {
    /// Dotted path of what is wrong.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

fn unreadable(path: &str, what: impl Into<String>) -> Unreadable {
    let path = if path.is_empty() { "it" } else { path };
    Unreadable { path: path.into(), what: what.into() }
}

/// One answer: the result of `SendMessage`, or an event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A task as it is now.
    Task(TaskView),
    /// A message in place of a task.
    Message(MessageView),
    /// A new status.
    Status(StatusView),
    /// An artifact, or a chunk of one.
    Artifact {
        /// Task that it belongs to, in the agent's words.
        task: Option<String>,
        /// What is new.
        update: ArtifactUpdate,
    },
}

/// A task as its agent shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// Its context.
    pub context: Option<String>,
    /// Its status.
    pub status: Status,
    /// Its artifacts.
    pub artifacts: Vec<Artifact>,
    /// What was said before, oldest first.
    pub history: Vec<Raw>,
    /// Its metadata.
    pub metadata: Option<Raw>,
}

/// A status of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its state; none when it is unspecified.
    pub state: Option<State>,
    /// Since when, as it came.
    pub timestamp: Option<String>,
    /// Its message.
    pub message: Option<Raw>,
}

/// A direct message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageView {
    /// The message.
    pub message: Raw,
    /// Context that the agent gave it.
    pub context: Option<String>,
}

/// A new status of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusView {
    /// The task, in the agent's words.
    pub task: Option<String>,
    /// Its context.
    pub context: Option<String>,
    /// The status.
    pub status: Status,
}

impl Response {
    /// Reads the result of `SendMessage`, or an event: an object with one of `task`, `message`, `statusUpdate` and
    /// `artifactUpdate`. A bare task or message is taken for what it is.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let members = object("", text, &["statusUpdate", "artifactUpdate", "messageId", "contextId"])?;
        if let Some(task) = members.set("task") {
            return TaskView::read("task", task.get()).map(Self::Task);
        }
        if let Some(message) = members.set("message") {
            return MessageView::read("message", message).map(Self::Message);
        }
        if let Some(update) = members.set("statusUpdate") {
            return status_update(update.get()).map(Self::Status);
        }
        if let Some(update) = members.set("artifactUpdate") {
            return artifact_update(update.get());
        }
        if members.set("id").is_some() && members.set("status").is_some() {
            return TaskView::read("", text).map(Self::Task);
        }
        if members.set("messageId").is_some() && members.set("parts").is_some() {
            let whole: &RawValue = serde_json::from_str(text).map_err(|e| unreadable("", e.to_string()))?;
            return MessageView::read("", whole).map(Self::Message);
        }
        Err(unreadable("", "has none of task, message, statusUpdate and artifactUpdate"))
    }
}

impl TaskView {
    /// Reads a task, as `GetTask` and `CancelTask` give it.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        Self::read("", text)
    }

    fn read(path: &str, text: &str) -> Result<Self, Unreadable> {
        let members = object(path, text, &["contextId"])?;
        let id = string(&members, path, "id")?.ok_or_else(|| unreadable(&under(path, "id"), "is missing or empty"))?;
        let status = match members.set("status") {
            Some(status) => Status::read(&under(path, "status"), status.get())?,
            None => Status::default(),
        };
        let mut artifacts = Vec::new();
        for (i, artifact) in list(&members, path, "artifacts")?.into_iter().enumerate() {
            artifacts.push(artifact_of(&format!("{}[{i}]", under(path, "artifacts")), artifact, i)?);
        }
        let history = list(&members, path, "history")?.into_iter().map(Raw::copy).collect();
        let context = string(&members, path, "contextId")?;
        Ok(Self { id, context, status, artifacts, history, metadata: members.set("metadata").map(Raw::copy) })
    }

    /// The task as JSON of 1.0.
    pub fn write(&self, out: &mut String) {
        out.push('{');
        push_key(out, "id");
        push_text(out, &self.id);
        if let Some(context) = &self.context {
            push_key(out, "contextId");
            push_text(out, context);
        }
        push_key(out, "status");
        self.status.write(out);
        if !self.artifacts.is_empty() {
            push_key(out, "artifacts");
            let texts: Vec<Raw> = self.artifacts.iter().map(Artifact::to_json).collect();
            raw::push_list(out, texts.iter().map(Raw::as_str));
        }
        if !self.history.is_empty() {
            push_key(out, "history");
            raw::push_list(out, self.history.iter().map(Raw::as_str));
        }
        if let Some(metadata) = &self.metadata {
            push_key(out, "metadata");
            out.push_str(metadata.as_str());
        }
        out.push('}');
    }
}

impl Status {
    fn read(path: &str, text: &str) -> Result<Self, Unreadable> {
        let members = object(path, text, &[])?;
        let state = match members.set("state") {
            None => None,
            Some(state) => state_of(state)
                .ok_or_else(|| unreadable(&under(path, "state"), format!("is no state: {}", short(state.get()))))?,
        };
        let message = members.set("message").filter(|m| raw::kind(m.get()) == Kind::Object).map(Raw::copy);
        Ok(Self { state, timestamp: string(&members, path, "timestamp")?, message })
    }

    /// The status as JSON of 1.0.
    pub fn write(&self, out: &mut String) {
        out.push_str("{\"state\":\"");
        out.push_str(self.state.map_or("TASK_STATE_UNSPECIFIED", State::wire));
        out.push('"');
        if let Some(timestamp) = &self.timestamp {
            push_key(out, "timestamp");
            push_text(out, timestamp);
        }
        if let Some(message) = &self.message {
            push_key(out, "message");
            out.push_str(message.as_str());
        }
        out.push('}');
    }
}

impl MessageView {
    fn read(path: &str, value: &RawValue) -> Result<Self, Unreadable> {
        let members = object(path, value.get(), &["contextId"])?;
        if members.set("parts").is_none() {
            return Err(unreadable(&under(path, "parts"), "is missing"));
        }
        Ok(Self { message: Raw::copy(value), context: string(&members, path, "contextId")? })
    }
}

/// An agent's message as one of our task: with our ids, its own id or a new one, and the agent's role.
pub fn as_ours(message: &Raw, task: &str, context: &str, new_id: &dyn Fn() -> String) -> Option<Raw> {
    let mut members = Members::split(message.as_str()).ok()?;
    members.camel(&["messageId", "contextId", "taskId", "referenceTaskIds"]).ok()?;
    let id = members.set("messageId").and_then(text_of).filter(|id| !id.is_empty());
    let id = id.map_or_else(new_id, std::borrow::Cow::into_owned);
    let parts = members.set("parts").filter(|p| raw::kind(p.get()) == Kind::List).map_or("[]", RawValue::get);
    let own = ["messageId", "contextId", "taskId", "role", "parts"];
    let rest = members.iter().filter(|(key, _)| !own.contains(key)).map(|(key, value)| (key, value.get()));
    Some(agent_message(&id, context, Some(task), parts, rest))
}

/// A caller's message as the agent gets it: with the agent's ids in place of ours. `reference` gives the agent's id of a
/// task of `referenceTaskIds`; one that it does not know is left out.
pub fn as_theirs(
    message: &str,
    task: Option<&str>,
    context: Option<&str>,
    reference: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Unreadable> {
    let members = object("message", message, &["contextId", "taskId", "referenceTaskIds"])?;
    let mut out = String::with_capacity(message.len() + 96);
    out.push('{');
    for (key, value) in members.iter().filter(|(k, _)| *k != "taskId" && *k != "contextId") {
        if key == "referenceTaskIds" {
            let ids = elements(value.get()).unwrap_or_default().into_iter().filter_map(text_of);
            let theirs: Vec<String> = ids.filter_map(|id| reference(&id)).map(|id| quoted(&id)).collect();
            if !theirs.is_empty() {
                push_key(&mut out, key);
                raw::push_list(&mut out, theirs.iter().map(String::as_str));
            }
            continue;
        }
        push_key(&mut out, key);
        out.push_str(value.get());
    }
    for (key, id) in [("contextId", context), ("taskId", task)] {
        if let Some(id) = id {
            push_key(&mut out, key);
            push_text(&mut out, id);
        }
    }
    out.push('}');
    Ok(out)
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_text(&mut out, text);
    out
}

fn status_update(text: &str) -> Result<StatusView, Unreadable> {
    let path = "statusUpdate";
    let members = object(path, text, &["taskId", "contextId"])?;
    let status = members.set("status").ok_or_else(|| unreadable(&under(path, "status"), "is missing"))?;
    Ok(StatusView {
        task: string(&members, path, "taskId")?,
        context: string(&members, path, "contextId")?,
        status: Status::read(&under(path, "status"), status.get())?,
    })
}

fn artifact_update(text: &str) -> Result<Response, Unreadable> {
    let path = "artifactUpdate";
    let members = object(path, text, &["taskId", "contextId", "lastChunk"])?;
    let artifact = members.set("artifact").ok_or_else(|| unreadable(&under(path, "artifact"), "is missing"))?;
    let artifact = artifact_of(&under(path, "artifact"), artifact, 0)?;
    let flag = |key: &str| members.set(key).is_some_and(|v| v.get() == "true");
    let update = ArtifactUpdate { artifact, append: flag("append"), last: flag("lastChunk") };
    Ok(Response::Artifact { task: string(&members, path, "taskId")?, update })
}

/// An artifact; one without an id is called by its place, so that it has the same name the next time.
fn artifact_of(path: &str, value: &RawValue, place: usize) -> Result<Artifact, Unreadable> {
    let mut members = Members::split(value.get()).map_err(|e| unreadable(path, e.to_string()))?;
    let renamed = members.camel(&["artifactId"]).map_err(|e| unreadable(path, e.to_string()))?;
    let id = string(&members, path, "artifactId")?;
    let parts = members.set("parts").filter(|p| raw::kind(p.get()) == Kind::List);
    let complete = id.is_some() && parts.is_some();
    let id: Arc<str> = id.map_or_else(|| format!("artifact-{place}").into(), Into::into);
    let name = string(&members, path, "name")?.map(Into::into);
    if complete && !renamed {
        return Ok(Artifact::whole(id, name, Raw::copy(value)));
    }
    let mut out = String::with_capacity(value.get().len() + 64);
    out.push('{');
    push_key(&mut out, "artifactId");
    push_text(&mut out, &id);
    for (key, value) in members.iter().filter(|(k, _)| *k != "artifactId" && *k != "parts") {
        push_key(&mut out, key);
        out.push_str(value.get());
    }
    push_key(&mut out, "parts");
    out.push_str(parts.map_or("[]", RawValue::get));
    out.push('}');
    Ok(Artifact::whole(id, name, Raw::assembled(&out)))
}

/// `None` is no state at all, `Some(None)` the unspecified one.
#[expect(clippy::option_option, reason = "two ways to be without a state")]
fn state_of(value: &RawValue) -> Option<Option<State>> {
    if let Ok(number) = value.get().parse::<usize>() {
        // In the order of the enum; see the proto.
        let by_number = [
            None,
            Some(State::Submitted),
            Some(State::Working),
            Some(State::Completed),
            Some(State::Failed),
            Some(State::Canceled),
            Some(State::InputRequired),
            Some(State::Rejected),
            Some(State::AuthRequired),
        ];
        return by_number.get(number).copied();
    }
    let name = text_of(value)?;
    if matches!(name.as_ref(), "TASK_STATE_UNSPECIFIED" | "unknown" | "") {
        return Some(None);
    }
    State::lenient(&name).map(Some)
}

fn object<'a>(path: &str, text: &'a str, known: &[&'static str]) -> Result<Members<'a>, Unreadable> {
    if !depth_within(text.as_bytes(), MAX_DEPTH) {
        return Err(unreadable(path, format!("is nested deeper than {MAX_DEPTH} levels")));
    }
    let mut members = Members::split(text).map_err(|e| unreadable(path, e.to_string()))?;
    members.camel(known).map_err(|e| unreadable(path, e.to_string()))?;
    Ok(members)
}

fn under(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A string that is there and not empty.
fn string(members: &Members<'_>, path: &str, key: &str) -> Result<Option<String>, Unreadable> {
    match members.set(key).map(text_of) {
        None => Ok(None),
        Some(Some(text)) => Ok(Some(text.into_owned()).filter(|t| !t.is_empty())),
        Some(None) => Err(unreadable(&under(path, key), "must be a string")),
    }
}

fn list<'a>(members: &Members<'a>, path: &str, key: &str) -> Result<Vec<&'a RawValue>, Unreadable> {
    match members.set(key) {
        None => Ok(Vec::new()),
        Some(value) => elements(value.get()).map_err(|e| unreadable(&under(path, key), e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    #[test]
    fn what_is_read() {
        let mut table = String::new();
        for text in [
            r#"{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","timestamp":"2026-01-01T00:00:00Z"},"x":1}}"#,
            r#"{"task":{"id":"t","context_id":"c","status":{"state":3},"artifacts":[{"name":"n","parts":[{"data":1.0}]},{"artifact_id":"b"}],"history":[{"n":1}]}}"#,
            r#"{"message":{"messageId":"m","contextId":"c","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}"#,
            r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELLED","message":{"parts":[]}}}}"#,
            r#"{"status_update":{"task_id":"t","status":{"state":"TASK_STATE_UNSPECIFIED"}}}"#,
            r#"{"artifactUpdate":{"taskId":"t","append":true,"lastChunk":true,"artifact":{"artifactId":"a","parts":[{"text":"x"}]}}}"#,
            r#"{"id":"t","status":{"state":"completed"}}"#,
            r#"{"messageId":"m","role":"ROLE_AGENT","parts":[]}"#,
            r#"{"task":{"status":{"state":"TASK_STATE_WORKING"}}}"#,
            r#"{"task":{"id":"t","status":{"state":"TASK_STATE_DONE"}}}"#,
            r#"{"task":{"id":"t","status":{"state":77}}}"#,
            r#"{"task":{"id":7}}"#,
            r#"{"task":{"id":"t","artifacts":{}}}"#,
            r#"{"message":{"messageId":"m"}}"#,
            r#"{"statusUpdate":{}}"#,
            r#"{"artifactUpdate":{"artifact":[]}}"#,
            "{}",
            "[]",
            "",
        ] {
            let got = match Response::parse(text) {
                Ok(Response::Task(task)) => {
                    let mut out = String::from("task ");
                    task.write(&mut out);
                    out
                }
                other => format!("{other:?}"),
            };
            let _ = writeln!(table, "{text}\n    {got}");
        }
        insta::assert_snapshot!(table);
        assert!(TaskView::parse(r#"{"id":"t"}"#).is_ok_and(|t| t.status.state.is_none()));
    }

    #[test]
    fn messages_change_their_ids_and_nothing_else() {
        let theirs = r#"{"message_id":"m","taskId":"x","contextId":"y","role":"agent","parts":[ {"text":"hi","n":1.0} ],"metadata":{"b":12345678901234567890}}"#;
        let ours = as_ours(&Raw::assembled(theirs), "t", "c", &|| "new".into()).unwrap();
        assert_eq!(
            ours.as_str(),
            r#"{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_AGENT","parts":[ {"text":"hi","n":1.0} ],"metadata":{"b":12345678901234567890}}"#
        );
        let bare = as_ours(&Raw::assembled("{}"), "t", "c", &|| "new".into()).unwrap();
        assert!(bare.as_str().contains(r#""messageId":"new""#) && bare.as_str().contains(r#""parts":[]"#));
        let caller = r#"{"messageId":"m","task_id":"t","contextId":"c","parts":[],"z":1.0}"#;
        assert_eq!(
            as_theirs(caller, Some("x"), Some("y"), &|_| None).unwrap(),
            r#"{"messageId":"m","parts":[],"z":1.0,"contextId":"y","taskId":"x"}"#
        );
        assert_eq!(as_theirs(caller, None, None, &|_| None).unwrap(), r#"{"messageId":"m","parts":[],"z":1.0}"#);
        let refers = r#"{"reference_task_ids":["a","b\n","c"],"messageId":"m"}"#;
        let theirs = |id: &str| (id != "a").then(|| format!("up-{id}"));
        assert_eq!(
            as_theirs(refers, None, None, &theirs).unwrap(),
            r#"{"referenceTaskIds":["up-b\n","up-c"],"messageId":"m"}"#
        );
        assert_eq!(as_theirs(refers, None, None, &|_| None).unwrap(), r#"{"messageId":"m"}"#);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "\\PC{0,120}") {
            let _ = Response::parse(&text);
            let _ = TaskView::parse(&text);
        }
    }
}
