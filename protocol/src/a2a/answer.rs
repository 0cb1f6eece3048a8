//! Reading the handler's answer: strict about what is unclear, repairing what is clear (`docs/executor-contract.md`).

use std::sync::Arc;

use serde_json::value::RawValue;

use super::conversation::MAX_MEMO_BYTES;
use super::errors::Violation;
use super::extensions;
use super::fault::Fault;
use super::message::{agent_message, text_parts};
use super::part::check_parts;
use super::raw::{
    self, Kind, MAX_DEPTH, Members, Raw, SplitError, depth_within, elements, push_key, push_text, text_of,
};
use super::state::State;
use super::task::{Artifact, ArtifactUpdate, Change};

mod event;

pub use event::{Event, Events, MAX_BATCH, split_batch};

/// What an answer may have.
const KNOWN: [&str; 8] = ["text", "parts", "artifacts", "state", "message", "error", "memo", "extensions"];
/// What stands beside anything.
const BESIDE: [&str; 2] = ["memo", "extensions"];

/// A repair rule: a clear mistake that is put right and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A JSON object without a content type.
    ContentTypeMissing,
    /// A JSON object labelled as something else.
    ContentTypeWrong,
    /// 200 with nothing in it.
    BodyMissing,
    /// A 2xx other than 200, 202, 204.
    Status2xx,
    /// JSON that begins with a byte order mark.
    ByteOrderMark,
    /// Text that is no UTF-8.
    InvalidUtf8,
    /// Another spelling of a state.
    StateSpelling,
    /// A string among parts.
    PartIsString,
    /// A string as message.
    MessageIsString,
    /// A message with another role, task or context.
    MessageIds,
    /// An event with another task or context.
    EventIds,
    /// A chunk for an artifact that is not there.
    AppendToNothing,
    /// Two artifacts with one id.
    ArtifactTwice,
    /// A direct message for a task that was shown.
    MessageForTask,
    /// Members that the contract does not have.
    UnknownMember,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::ContentTypeMissing,
        Self::ContentTypeWrong,
        Self::BodyMissing,
        Self::Status2xx,
        Self::ByteOrderMark,
        Self::InvalidUtf8,
        Self::StateSpelling,
        Self::PartIsString,
        Self::MessageIsString,
        Self::MessageIds,
        Self::EventIds,
        Self::AppendToNothing,
        Self::ArtifactTwice,
        Self::MessageForTask,
        Self::UnknownMember,
    ];

    /// Name in the contract and in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::ContentTypeMissing => "content_type_missing",
            Self::ContentTypeWrong => "content_type_wrong",
            Self::BodyMissing => "body_missing",
            Self::Status2xx => "status_2xx",
            Self::ByteOrderMark => "byte_order_mark",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::StateSpelling => "state_spelling",
            Self::PartIsString => "part_is_string",
            Self::MessageIsString => "message_is_string",
            Self::MessageIds => "message_ids",
            Self::EventIds => "event_ids",
            Self::AppendToNothing => "append_to_nothing",
            Self::ArtifactTwice => "artifact_twice",
            Self::MessageForTask => "message_for_task",
            Self::UnknownMember => "unknown_member",
        }
    }
}

/// What the head of an HTTP answer says about its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing to read.
    Nothing,
    /// A JSON object.
    Json,
    /// Text.
    Text,
    /// Server-sent events.
    Stream,
    /// Nothing to read; events come later.
    Later,
    /// Perhaps a JSON object without a label, or with the given one.
    Perhaps(Option<String>),
}

/// Judges status and content type, before any of the body is read. 429 and 503 are the caller's to handle.
pub fn head(status: u16, content_type: Option<&str>, repairs: &mut Vec<Rule>) -> Result<Form, Fault> {
    match status {
        204 | 205 => return Ok(Form::Nothing),
        202 => return Ok(Form::Later),
        200 => {}
        201..=299 => repairs.push(Rule::Status2xx),
        300..=399 => return Err(Fault::Redirect(status)),
        _ => return Err(Fault::Status(status)),
    }
    let Some(content_type) = content_type else { return Ok(Form::Perhaps(None)) };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Ok(match essence.as_str() {
        "text/plain" => Form::Text,
        "text/event-stream" => Form::Stream,
        "application/json" => Form::Json,
        other if other.ends_with("+json") => Form::Json,
        _ => Form::Perhaps(Some(content_type.chars().take(128).collect())),
    })
}

/// The task and context of the turn, and where new ids come from.
pub struct Scope<'a> {
    /// Id of the task.
    pub task: &'a str,
    /// Id of its context.
    pub context: &'a str,
    /// Makes ids of artifacts and messages.
    pub new_id: &'a dyn Fn() -> String,
}

/// What the handler wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A change of the task, with its new state.
    Change(Change),
    /// A message in place of a task.
    Message(DirectMessage),
    /// The handler's own error: always [`Fault::Agent`].
    Error(Fault),
}

/// A message in place of a task.
#[derive(Debug, PartialEq, Eq)]
pub struct DirectMessage {
    id: String,
    parts: String,
    rest: Vec<(String, String)>,
}

impl DirectMessage {
    /// From a message of an agent that speaks A2A itself; its role and its ids of task and context are not looked at.
    pub fn of(message: &Raw, new_id: &dyn Fn() -> String) -> Option<Self> {
        let mut members = Members::split(message.as_str()).ok()?;
        members.camel(&["messageId", "contextId", "taskId", "referenceTaskIds"]).ok()?;
        let id = members.set("messageId").and_then(text_of).filter(|id| !id.is_empty());
        let own = ["messageId", "contextId", "taskId", "role", "parts"];
        let rest = members.iter().filter(|(key, _)| !own.contains(key));
        Some(Self {
            id: id.map_or_else(new_id, std::borrow::Cow::into_owned),
            parts: members.set("parts").filter(|p| raw::kind(p.get()) == Kind::List)?.get().to_owned(),
            rest: rest.map(|(key, value)| (key.to_owned(), value.get().to_owned())).collect(),
        })
    }

    /// As JSON: without a task if it takes the place of one, else as the message of its status.
    pub fn to_raw(&self, context: &str, task: Option<&str>) -> Raw {
        let rest = self.rest.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        agent_message(&self.id, context, task, &self.parts, rest)
    }
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the handler wants.
    pub outcome: Outcome,
    /// The new memo; `null` erases it.
    pub memo: Option<Raw>,
    /// A2A extensions that the handler put to use; none if it does not say.
    pub extensions: Option<Vec<String>>,
}

/// Reads the body of an answer.
pub fn read(form: &Form, body: &[u8], scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Answer, Fault> {
    match form {
        // A stream and what comes later are read event by event; as whole answers they are empty.
        Form::Nothing | Form::Stream | Form::Later => Ok(completed(None, scope)),
        Form::Text => {
            let text = String::from_utf8_lossy(body);
            if matches!(text, std::borrow::Cow::Owned(_)) {
                repairs.push(Rule::InvalidUtf8);
            }
            Ok(completed((!text.is_empty()).then(|| text_parts(&text)), scope))
        }
        Form::Json => json(body, scope, repairs),
        Form::Perhaps(None) if body.is_empty() => {
            repairs.push(Rule::BodyMissing);
            Ok(completed(None, scope))
        }
        Form::Perhaps(label) => {
            let before = repairs.len();
            repairs.push(if label.is_some() { Rule::ContentTypeWrong } else { Rule::ContentTypeMissing });
            json(body, scope, repairs).map_err(|fault| match fault {
                // What does not look like an answer is named by its label.
                Fault::NotJson(_) | Fault::Empty(_) => {
                    repairs.truncate(before);
                    Fault::ContentType(label.clone().unwrap_or_default())
                }
                other => other,
            })
        }
    }
}

fn completed(parts: Option<String>, scope: &Scope<'_>) -> Answer {
    let artifacts = parts.map(|p| ArtifactUpdate::whole(made_up_artifact(&p, scope))).into_iter().collect();
    let change = Change { state: Some(State::Completed), artifacts, ..Change::default() };
    Answer { outcome: Outcome::Change(change), memo: None, extensions: None }
}

fn json(body: &[u8], scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Answer, Fault> {
    let text = std::str::from_utf8(body)
        .map_err(|e| Fault::NotJson(format!("invalid UTF-8 after byte {}", e.valid_up_to())))?;
    let members = object(text, &KNOWN, repairs)?;
    let memo = memo_of(&members)?;
    let extensions = members.set("extensions").map(extensions_of).transpose()?;
    for alone in ["message", "error"] {
        let other = KNOWN.iter().find(|k| **k != alone && !BESIDE.contains(k) && members.set(k).is_some());
        if let (Some(_), Some(other)) = (members.set(alone), other) {
            return Err(Fault::invalid(alone, format!("stands beside {other}, but excludes it")));
        }
    }
    let outcome = match (members.set("error"), members.set("message")) {
        (Some(error), _) => match agent_error(error) {
            told @ Fault::Agent { .. } => Outcome::Error(told),
            fault => return Err(fault),
        },
        (None, Some(message)) => Outcome::Message(direct(message, scope, repairs)?),
        (None, None) => Outcome::Change(change(&members, scope, repairs)?),
    };
    Ok(Answer { outcome, memo, extensions })
}

/// Splits an object of the contract and looks for members that it does not have.
fn object<'a>(text: &'a str, known: &[&str], repairs: &mut Vec<Rule>) -> Result<Members<'a>, Fault> {
    let text = match text.strip_prefix('\u{feff}') {
        Some(text) => {
            repairs.push(Rule::ByteOrderMark);
            text
        }
        None => text,
    };
    if !depth_within(text.as_bytes(), MAX_DEPTH) {
        return Err(Fault::TooDeep);
    }
    let members = Members::split(text).map_err(|e| match e {
        SplitError::Syntax(e) => Fault::NotJson(e),
        other => Fault::invalid("it", other.to_string()),
    })?;
    let unknown: Vec<&str> = members.iter().map(|(k, _)| k).filter(|k| !known.contains(k)).collect();
    if !unknown.is_empty() {
        if members.iter().all(|(k, _)| !known.contains(&k)) {
            let names: String = unknown.join(", ").chars().take(100).collect();
            return Err(Fault::Empty(names));
        }
        repairs.push(Rule::UnknownMember);
    }
    Ok(members)
}

fn extensions_of(list: &RawValue) -> Result<Vec<String>, Fault> {
    let texts = elements(list.get()).ok().and_then(|l| l.into_iter().map(text_of).collect::<Option<Vec<_>>>());
    let texts = texts.ok_or_else(|| Fault::invalid("extensions", "must be a list of strings"))?;
    extensions::parse(texts.iter().map(AsRef::as_ref)).map_err(|e| Fault::invalid("extensions", e.message))
}

fn memo_of(members: &Members<'_>) -> Result<Option<Raw>, Fault> {
    let memo = members.get("memo").map(Raw::copy);
    match &memo {
        Some(m) if m.size() > MAX_MEMO_BYTES => Err(Fault::MemoTooLarge(m.size())),
        _ => Ok(memo),
    }
}

fn agent_error(error: &RawValue) -> Fault {
    if let Some(text) = text_of(error) {
        return Fault::Agent { text: text.into_owned(), reason: None };
    }
    let Ok(members) = Members::split(error.get()) else {
        return Fault::invalid("error", "must be a string or an object");
    };
    let Some(text) = members.get("message").and_then(text_of) else {
        return Fault::invalid("error.message", "is missing or no string");
    };
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let reason = match members.set("reason").map(text_of) {
        None => None,
        Some(Some(r)) if (1..=64).contains(&r.len()) && r.bytes().all(word) => Some(r.into_owned()),
        Some(_) => return Fault::invalid("error.reason", "must be a word of letters, digits, '_', '.' and '-'"),
    };
    Fault::Agent { text: text.into_owned(), reason }
}

fn change(members: &Members<'_>, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Change, Fault> {
    let state = match members.set("state") {
        None => State::Completed,
        Some(value) => state_of(value, false, repairs)?,
    };
    let parts = joined_parts(members, repairs)?;
    let mut artifacts = match members.set("artifacts") {
        None => Vec::new(),
        Some(list) => artifacts_of(list, scope, repairs)?,
    };
    let mut said = None;
    match parts {
        Some(parts) if state == State::Completed && artifacts.is_empty() => {
            artifacts.push(made_up_artifact(&parts, scope));
        }
        Some(parts) => {
            said = Some(agent_message(&(scope.new_id)(), scope.context, Some(scope.task), &parts, []));
        }
        None => {}
    }
    let artifacts = artifacts.into_iter().map(ArtifactUpdate::whole).collect();
    Ok(Change { state: Some(state), said, artifacts, ..Change::default() })
}

/// `text` and `parts` as one list; `None` when there is nothing in them.
fn joined_parts(members: &Members<'_>, repairs: &mut Vec<Rule>) -> Result<Option<String>, Fault> {
    let mut parts = String::from("[");
    if let Some(text) = members.set("text") {
        let text = text_of(text).ok_or_else(|| Fault::invalid("text", "must be a string"))?;
        if !text.is_empty() {
            parts.push_str("{\"text\":");
            push_text(&mut parts, &text);
            parts.push('}');
        }
    }
    if let Some(list) = members.set("parts") {
        let (list, empty) = checked_parts(list, "parts", true, repairs)?;
        if !empty {
            let inner = list.trim().trim_start_matches('[');
            parts.push_str(if parts.len() > 1 { "," } else { "" });
            parts.push_str(inner.strip_suffix(']').unwrap_or(inner));
        }
    }
    parts.push(']');
    Ok((parts.len() > 2).then_some(parts))
}

fn state_of(value: &RawValue, may_work: bool, repairs: &mut Vec<Rule>) -> Result<State, Fault> {
    let name = text_of(value).ok_or_else(|| Fault::invalid("state", "must be a string"))?;
    let state = State::exact(&name).or_else(|| {
        repairs.push(Rule::StateSpelling);
        State::lenient(&name)
    });
    match state {
        Some(s) if s.is_terminal() || s.is_interrupted() => Ok(s),
        Some(State::Working) if may_work => Ok(State::Working),
        Some(_) => Err(Fault::invalid("state", "must be one that a turn may end in, not submitted or working")),
        None => {
            repairs.pop();
            let name: String = name.chars().take(64).collect();
            Err(Fault::invalid(
                "state",
                format!(
                    "{name:?} is no state, want completed, input-required, auth-required, failed, rejected or canceled"
                ),
            ))
        }
    }
}

/// Checks parts; a string among them becomes a text part. Says whether the list is empty, where that is allowed.
fn checked_parts<'a>(
    list: &'a RawValue,
    path: &str,
    may_be_empty: bool,
    repairs: &mut Vec<Rule>,
) -> Result<(std::borrow::Cow<'a, str>, bool), Fault> {
    let split = elements(list.get()).map_err(|e| Fault::invalid(path, e.to_string()))?;
    if split.is_empty() && may_be_empty {
        return Ok((list.get().into(), true));
    }
    let first =
        |out: Vec<Violation>| out.into_iter().next().map_or(Ok(()), |v| Err(Fault::invalid(v.field, v.description)));
    let mut out = Vec::new();
    if split.iter().all(|p| raw::kind(p.get()) != Kind::Text) {
        check_parts(list, path, &mut out);
        first(out)?;
        return Ok((list.get().into(), false));
    }
    repairs.push(Rule::PartIsString);
    let mut text = String::from("[");
    for part in split {
        text.push_str(if text.len() > 1 { "," } else { "" });
        if raw::kind(part.get()) == Kind::Text {
            text.push_str("{\"text\":");
            text.push_str(part.get());
            text.push('}');
        } else {
            text.push_str(part.get());
        }
    }
    text.push(']');
    let whole: &RawValue = serde_json::from_str(&text).map_err(|e| Fault::invalid(path, e.to_string()))?;
    check_parts(whole, path, &mut out);
    first(out)?;
    Ok((text.into(), false))
}

fn made_up_artifact(parts: &str, scope: &Scope<'_>) -> Artifact {
    artifact((scope.new_id)().into(), parts)
}

/// An artifact of nothing but parts.
fn artifact(id: Arc<str>, parts: &str) -> Artifact {
    let mut json = String::with_capacity(parts.len() + 72);
    json.push('{');
    push_key(&mut json, "artifactId");
    push_text(&mut json, &id);
    push_key(&mut json, "parts");
    json.push_str(parts);
    json.push('}');
    Artifact::whole(id, None, Raw::assembled(&json))
}

fn artifacts_of(list: &RawValue, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Vec<Artifact>, Fault> {
    let split = elements(list.get()).map_err(|e| Fault::invalid("artifacts", e.to_string()))?;
    let mut artifacts: Vec<Artifact> = Vec::with_capacity(split.len());
    for (i, item) in split.into_iter().enumerate() {
        let artifact = artifact_of(item, &format!("artifacts[{i}]"), scope, repairs)?;
        match artifacts.iter_mut().find(|a| a.id == artifact.id) {
            Some(old) => {
                repairs.push(Rule::ArtifactTwice);
                *old = artifact;
            }
            None => artifacts.push(artifact),
        }
    }
    Ok(artifacts)
}

fn artifact_of(item: &RawValue, path: &str, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<Artifact, Fault> {
    let mut members = Members::split(item.get()).map_err(|e| Fault::invalid(path, e.to_string()))?;
    let mut rewrite = members.camel(&["artifactId"]).map_err(|e| Fault::invalid(path, e.to_string()))?;
    let text = |key: &str| match members.set(key).map(text_of) {
        None => Ok(None),
        Some(Some(v)) => Ok(Some(v)),
        Some(None) => Err(Fault::invalid(format!("{path}.{key}"), "must be a string")),
    };
    let id = text("artifactId")?.filter(|id| !id.is_empty());
    rewrite |= id.is_none();
    let id: Arc<str> = id.map_or_else(|| (scope.new_id)().into(), |id| id.as_ref().into());
    let name = text("name")?.map(|n| n.as_ref().into());
    text("description")?;
    if members.set("metadata").is_some_and(|m| raw::kind(m.get()) != Kind::Object) {
        return Err(Fault::invalid(format!("{path}.metadata"), "must be an object"));
    }
    let parts = members.set("parts").ok_or_else(|| Fault::invalid(format!("{path}.parts"), "is missing"))?;
    let (parts, _) = checked_parts(parts, &format!("{path}.parts"), false, repairs)?;
    rewrite |= matches!(parts, std::borrow::Cow::Owned(_));
    if !rewrite {
        return Ok(Artifact::whole(id, name, Raw::copy(item)));
    }
    let mut json = String::with_capacity(item.get().len() + 64);
    json.push('{');
    push_key(&mut json, "artifactId");
    push_text(&mut json, &id);
    for (key, value) in members.iter().filter(|(k, _)| *k != "artifactId") {
        push_key(&mut json, key);
        json.push_str(if key == "parts" { &parts } else { value.get() });
    }
    json.push('}');
    Ok(Artifact::whole(id, name, Raw::assembled(&json)))
}

fn direct(message: &RawValue, scope: &Scope<'_>, repairs: &mut Vec<Rule>) -> Result<DirectMessage, Fault> {
    if let Some(text) = text_of(message) {
        repairs.push(Rule::MessageIsString);
        return Ok(DirectMessage { id: (scope.new_id)(), parts: text_parts(&text), rest: Vec::new() });
    }
    let mut members = Members::split(message.get()).map_err(|e| Fault::invalid("message", e.to_string()))?;
    members
        .camel(&["messageId", "contextId", "taskId", "referenceTaskIds"])
        .map_err(|e| Fault::invalid("message", e.to_string()))?;
    let parts = members.set("parts").ok_or_else(|| Fault::invalid("message.parts", "is missing"))?;
    let (parts, _) = checked_parts(parts, "message.parts", false, repairs)?;
    let text = |key: &str| members.set(key).and_then(text_of).filter(|v| !v.is_empty());
    let wrong = |key: &str, right: &[&str]| text(key).is_some_and(|v| !right.contains(&v.as_ref()));
    if wrong("role", &["ROLE_AGENT"]) || wrong("taskId", &[scope.task]) || wrong("contextId", &[scope.context]) {
        repairs.push(Rule::MessageIds);
    }
    if members.set("metadata").is_some_and(|m| raw::kind(m.get()) != Kind::Object) {
        return Err(Fault::invalid("message.metadata", "must be an object"));
    }
    let own = ["messageId", "contextId", "taskId", "role", "parts"];
    Ok(DirectMessage {
        id: text("messageId").map_or_else(|| (scope.new_id)(), std::borrow::Cow::into_owned),
        parts: parts.into_owned(),
        rest: members.iter().filter(|(k, _)| !own.contains(k)).map(|(k, v)| (k.into(), v.get().into())).collect(),
    })
}

#[cfg(test)]
mod tests;
