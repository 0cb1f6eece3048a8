//! Messages: reading a caller's, writing an agent's (A2A 1.0, section 4.1.4).

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::errors::{Error, Violation};
use super::part::{Modes, check_parts, violation};
use super::raw::{self, Kind, Members, Raw, elements, push_key, push_text, text_of};

/// Longest id of a message or context, in bytes.
pub const MAX_ID_BYTES: usize = 512;

const MEMBERS: [&str; 5] = ["messageId", "contextId", "taskId", "referenceTaskIds", "mediaType"];

/// A caller's message.
#[derive(Debug)]
pub struct UserMessage<'a> {
    text_form: Cow<'a, str>,
    has_ids: bool,
    /// Its id.
    pub message_id: Cow<'a, str>,
    /// The task it is for.
    pub task_id: Option<Cow<'a, str>>,
    /// The context it is for.
    pub context_id: Option<Cow<'a, str>>,
    /// Its text parts, joined by line feeds.
    pub text: Cow<'a, str>,
}

impl<'a> UserMessage<'a> {
    /// Reads and checks a message; violations are named under `message`.
    pub fn parse(value: &'a RawValue, out: &mut Vec<Violation>) -> Option<Self> {
        let before = out.len();
        let (mut members, renamed) = match Members::split(value.get()).and_then(|mut m| {
            let renamed = m.camel(&MEMBERS)?;
            Ok((m, renamed))
        }) {
            Ok(split) => split,
            Err(e) => {
                violation(out, "message", e.to_string());
                return None;
            }
        };
        let mut rewrite = renamed;
        match members.set("role").map(RawValue::get) {
            Some("\"ROLE_USER\"") => {}
            // Numbers of an enum are part of ProtoJSON.
            Some("1") => rewrite = true,
            None => violation(out, "message.role", "is missing, want \"ROLE_USER\""),
            Some(_) => violation(out, "message.role", "must be \"ROLE_USER\""),
        }
        let mut id = |key: &'static str| {
            let value = members.set(key)?;
            match text_of(value) {
                None => violation(out, format!("message.{key}"), "must be a string"),
                Some(v) if v.len() > MAX_ID_BYTES => {
                    violation(out, format!("message.{key}"), format!("must be at most {MAX_ID_BYTES} bytes long"));
                }
                Some(v) if v.contains('\0') => violation(out, format!("message.{key}"), "must have no NUL in it"),
                Some(v) if v.is_empty() => {}
                Some(v) => return Some(v),
            }
            None
        };
        let (message_id, task_id, context_id) = (id("messageId"), id("taskId"), id("contextId"));
        if message_id.is_none() && !out[before..].iter().any(|v| v.field == "message.messageId") {
            violation(out, "message.messageId", "is missing or empty");
        }
        let text = match members.set("parts") {
            None => {
                violation(out, "message.parts", "is missing");
                Cow::Borrowed("")
            }
            Some(parts) => check_parts(parts, "message.parts", out),
        };
        for key in ["extensions", "referenceTaskIds"] {
            if let Some(list) = members.set(key)
                && !elements(list.get()).is_ok_and(|l| l.iter().all(|v| raw::kind(v.get()) == Kind::Text))
            {
                violation(out, format!("message.{key}"), "must be a list of strings");
            }
        }
        if members.set("metadata").is_some_and(|m| raw::kind(m.get()) != Kind::Object) {
            violation(out, "message.metadata", "must be an object");
        }
        if out.len() > before {
            return None;
        }
        let has_ids = members.get("taskId").is_some() || members.get("contextId").is_some();
        let text_form = if rewrite { Cow::Owned(rewritten(&mut members)) } else { Cow::Borrowed(value.get()) };
        Some(Self { text_form, has_ids, message_id: message_id?, task_id, context_id, text })
    }

    /// Refuses a message with a part of a media type that the agent does not take.
    pub fn check_modes(&self, modes: &Modes) -> Result<(), Error> {
        let members = Members::split(&self.text_form).unwrap_or_default();
        members.set("parts").map_or(Ok(()), |parts| modes.check(parts))
    }

    /// Tasks that it refers to (A2A 1.0, section 4.1.4), the first `most` of them.
    pub fn references(&self, most: usize) -> Vec<String> {
        let members = Members::split(&self.text_form).unwrap_or_default();
        let list = members.set("referenceTaskIds").and_then(|l| elements(l.get()).ok()).unwrap_or_default();
        list.into_iter().take(most).filter_map(text_of).map(Cow::into_owned).collect()
    }

    /// The message as it was sent, in the usual spelling.
    pub fn as_str(&self) -> &str {
        &self.text_form
    }

    /// The message as the history of its task has it: with the ids of task and context.
    pub fn stored(&self, task: &str, context: &str) -> Raw {
        with_ids(&self.text_form, self.has_ids, task, context)
    }
}

fn rewritten(members: &mut Members<'_>) -> String {
    let mut out = String::from("{");
    for (key, value) in members.iter() {
        push_key(&mut out, key);
        out.push_str(if key == "role" { "\"ROLE_USER\"" } else { value.get() });
    }
    out.push('}');
    out
}

fn with_ids(message: &str, has_ids: bool, task: &str, context: &str) -> Raw {
    let mut out = String::with_capacity(message.len() + task.len() + context.len() + 32);
    if has_ids && let Ok(members) = Members::split(message) {
        out.push('{');
        for (key, value) in members.iter().filter(|(k, _)| *k != "taskId" && *k != "contextId") {
            push_key(&mut out, key);
            out.push_str(value.get());
        }
    } else {
        let body = message.trim_end();
        out.push_str(body.strip_suffix('}').unwrap_or(body));
    }
    push_key(&mut out, "contextId");
    push_text(&mut out, context);
    push_key(&mut out, "taskId");
    push_text(&mut out, task);
    out.push('}');
    Raw::assembled(&out)
}

/// Writes a message of the agent. `task` is absent in a direct message. `rest` are further members, as JSON.
pub fn agent_message<'r>(
    message_id: &str,
    context: &str,
    task: Option<&str>,
    parts: &str,
    rest: impl IntoIterator<Item = (&'r str, &'r str)>,
) -> Raw {
    let mut out = String::with_capacity(parts.len() + 192);
    out.push('{');
    push_key(&mut out, "messageId");
    push_text(&mut out, message_id);
    push_key(&mut out, "contextId");
    push_text(&mut out, context);
    if let Some(task) = task {
        push_key(&mut out, "taskId");
        push_text(&mut out, task);
    }
    out.push_str(",\"role\":\"ROLE_AGENT\",\"parts\":");
    out.push_str(parts);
    for (key, value) in rest {
        push_key(&mut out, key);
        out.push_str(value);
    }
    out.push('}');
    Raw::assembled(&out)
}

/// A list of one text part.
pub fn text_parts(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str("[{\"text\":");
    push_text(&mut out, text);
    out.push_str("}]");
    out
}

/// What the sidecar itself says of a task: a text, and the reason for programs.
pub fn notice(message_id: &str, context: &str, task: &str, text: &str, reason: &str) -> Raw {
    let mut metadata = String::from("{\"outrigger.dev/reason\":");
    push_text(&mut metadata, reason);
    metadata.push('}');
    agent_message(message_id, context, Some(task), &text_parts(text), [("metadata", metadata.as_str())])
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn parse(text: &str) -> Result<UserMessage<'_>, Vec<Violation>> {
        let mut out = Vec::new();
        UserMessage::parse(serde_json::from_str(text).unwrap(), &mut out).ok_or(out)
    }

    #[test]
    fn bytes_survive_and_ids_are_added() {
        let text = r#"{"z":9007199254740993,"role":"ROLE_USER","messageId":"m","parts":[ {"text":"hi","n":1.0} ] }"#;
        let m = parse(text).unwrap();
        assert_eq!((m.as_str(), &*m.text), (text, "hi"));
        assert_eq!(
            m.stored("t", "c").as_str(),
            r#"{"z":9007199254740993,"role":"ROLE_USER","messageId":"m","parts":[ {"text":"hi","n":1.0} ] ,"contextId":"c","taskId":"t"}"#
        );
    }

    #[test]
    fn ids_that_are_there_are_replaced() {
        let m = r#"{"taskId":"","contextId":null,"role":"ROLE_USER","messageId":"m","parts":[{"text":"hi"}]}"#;
        let m = parse(m).unwrap();
        assert!(m.task_id.is_none() && m.context_id.is_none());
        assert_eq!(
            m.stored("t", "c").as_str(),
            r#"{"role":"ROLE_USER","messageId":"m","parts":[{"text":"hi"}],"contextId":"c","taskId":"t"}"#
        );
    }

    #[test]
    fn other_spellings_are_brought_to_the_usual_one() {
        let m = parse(r#"{"message_id":"m","role":1,"parts":[{"text":"hi"}],"task_id":"t"}"#).unwrap();
        assert_eq!(m.as_str(), r#"{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}],"taskId":"t"}"#);
        assert_eq!(m.task_id.as_deref(), Some("t"));
    }

    #[test]
    fn media_types_are_checked_where_they_are_known() {
        let card = serde_json::json!({"defaultInputModes": ["text/plain"]});
        let m = parse(r#"{"messageId":"m","role":"ROLE_USER","parts":[{"url":"u","mediaType":"image/png"}]}"#).unwrap();
        assert!(m.check_modes(&Modes::of_card(&card)).is_err() && m.check_modes(&Modes::default()).is_ok());
    }

    #[test]
    fn violations_have_paths() {
        let long = format!(r#"{{"messageId":"{}","role":"ROLE_USER","parts":[{{"text":""}}]}}"#, "x".repeat(600));
        let mut table = String::new();
        for text in [
            "7",
            "{}",
            r#"{"messageId":"","role":"ROLE_AGENT","parts":{}}"#,
            r#"{"messageId":7,"role":"user","parts":[],"taskId":[],"metadata":1,"extensions":[1],"referenceTaskIds":"x"}"#,
            &long,
        ] {
            let got: Vec<_> =
                parse(text).unwrap_err().iter().map(|v| format!("{} {}", v.field, v.description)).collect();
            let _ = writeln!(table, "{}\n    {}", text.chars().take(60).collect::<String>(), got.join("\n    "));
        }
        insta::assert_snapshot!(table);
    }
}
