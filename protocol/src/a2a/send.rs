//! Parameters of `SendMessage` (A2A 1.0, section 3.1.1).

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::errors::{Error, Violation};
use super::message::UserMessage;
use super::params::{history_length, object, split, text};
use super::part::violation;
use super::push;
use super::raw::{self, Members, elements, text_of};

/// Most media types that a caller may say it takes.
pub const MAX_OUTPUT_MODES: usize = 100;

/// Parameters of `SendMessage` and `SendStreamingMessage`, checked.
#[derive(Debug)]
pub struct SendMessage<'a> {
    /// The message.
    pub message: UserMessage<'a>,
    /// Whether to answer with the task as it is at once.
    pub return_immediately: bool,
    /// Newest messages to show in the task; all without it.
    pub history_length: Option<u32>,
    /// Media types that the caller takes; all without any. Advice for the agent.
    pub accepted_output_modes: Vec<Cow<'a, str>>,
    /// A receiver of the task's events.
    pub push: Option<push::Config<'a>>,
    /// The tenant.
    pub tenant: Option<Cow<'a, str>>,
    /// What the caller says about the request: an object.
    pub metadata: Option<&'a RawValue>,
}

impl<'a> SendMessage<'a> {
    /// Reads and checks the parameters; an error lists everything that is wrong.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &[])?;
        let mut out = Vec::new();
        let message = if let Some(message) = members.set("message") {
            UserMessage::parse(message, &mut out)
        } else {
            violation(&mut out, "message", "is missing");
            None
        };
        let metadata = object(&members, "metadata", "metadata", &mut out);
        let tenant = text(&members, "tenant", "tenant", &mut out);
        let (mut return_immediately, mut length, mut modes, mut push) = (false, None, Vec::new(), None);
        if let Some(configuration) = members.set("configuration") {
            match configuration_of(configuration) {
                Err(e) => violation(&mut out, "configuration", e.to_string()),
                Ok(c) => {
                    length = history_length(&c, "configuration.historyLength", &mut out);
                    match c.set("returnImmediately").map(RawValue::get) {
                        None | Some("false") => {}
                        Some("true") => return_immediately = true,
                        Some(_) => violation(&mut out, "configuration.returnImmediately", "must be true or false"),
                    }
                    if let Some(list) = c.set("acceptedOutputModes") {
                        modes = output_modes(list, &mut out);
                    }
                    push = c
                        .set("taskPushNotificationConfig")
                        .and_then(|p| push::Config::inline(p, "configuration.taskPushNotificationConfig", &mut out));
                }
            }
        }
        let Some(message) = message.filter(|_| out.is_empty()) else {
            return Err(Error::invalid(out));
        };
        Ok(Self {
            message,
            return_immediately,
            history_length: length,
            accepted_output_modes: modes,
            push,
            tenant,
            metadata,
        })
    }
}

fn output_modes<'a>(list: &'a RawValue, out: &mut Vec<Violation>) -> Vec<Cow<'a, str>> {
    let path = "configuration.acceptedOutputModes";
    let texts = elements(list.get()).ok().and_then(|l| l.into_iter().map(text_of).collect::<Option<Vec<_>>>());
    match texts {
        Some(texts) if texts.len() <= MAX_OUTPUT_MODES => return texts,
        Some(_) => violation(out, path, format!("must have at most {MAX_OUTPUT_MODES} elements")),
        None => violation(out, path, "must be a list of strings"),
    }
    Vec::new()
}

fn configuration_of(value: &RawValue) -> Result<Members<'_>, raw::SplitError> {
    let mut members = Members::split(value.get())?;
    members.camel(&["acceptedOutputModes", "taskPushNotificationConfig", "historyLength", "returnImmediately"])?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const MESSAGE: &str = r#"{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}"#;

    #[test]
    fn configuration() {
        let mut table = String::new();
        for configuration in [
            "null",
            r#"{"historyLength":2,"returnImmediately":true,"acceptedOutputModes":["text/plain"]}"#,
            r#"{"return_immediately":true}"#,
            r#"{"returnImmediately":"yes","historyLength":-1,"acceptedOutputModes":"text"}"#,
            r#"{"taskPushNotificationConfig":{"url":"https://e.example"}}"#,
            r#"{"task_push_notification_config":{"url":"nope","token":"a\nb"}}"#,
            r#"{"acceptedOutputModes":["text/plain",7]}"#,
            "7",
        ] {
            let text = format!(r#"{{"message":{MESSAGE},"configuration":{configuration}}}"#);
            let params: &RawValue = serde_json::from_str(&text).unwrap();
            let got = SendMessage::parse(Some(params))
                .map(|s| {
                    let push = s.push.map(|p| p.url.into_owned());
                    (s.return_immediately, s.history_length, s.accepted_output_modes, push)
                })
                .map_err(|e| (e.kind, e.violations.iter().map(|v| v.field.clone()).collect::<Vec<_>>()));
            let _ = writeln!(table, "{configuration}\n    {got:?}");
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn what_is_missing_is_named() {
        let e = SendMessage::parse(Some(serde_json::from_str(r#"{"metadata":3}"#).unwrap())).unwrap_err();
        let fields: Vec<_> = e.violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["message", "metadata"]);
    }
}
