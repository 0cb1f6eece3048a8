//! Parameters of `SendMessage` (A2A 1.0, section 3.1.1).

use serde_json::value::RawValue;

use super::errors::{Error, Kind as ErrorKind};
use super::message::UserMessage;
use super::params::{history_length, split};
use super::part::violation;
use super::raw::{self, Kind, Members, elements};

/// Parameters of `SendMessage`, checked.
#[derive(Debug)]
pub struct SendMessage<'a> {
    /// The message.
    pub message: UserMessage<'a>,
    /// Whether to answer with the task as it is at once.
    pub return_immediately: bool,
    /// Newest messages to show in the task; all without it.
    pub history_length: Option<u32>,
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
        if members.set("metadata").is_some_and(|m| raw::kind(m.get()) != Kind::Object) {
            violation(&mut out, "metadata", "must be an object");
        }
        let (mut return_immediately, mut length, mut push) = (false, None, false);
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
                    if let Some(modes) = c.set("acceptedOutputModes")
                        && !elements(modes.get()).is_ok_and(|l| l.iter().all(|v| raw::kind(v.get()) == Kind::Text))
                    {
                        violation(&mut out, "configuration.acceptedOutputModes", "must be a list of strings");
                    }
                    push = c.set("taskPushNotificationConfig").is_some();
                }
            }
        }
        let Some(message) = message.filter(|_| out.is_empty()) else {
            return Err(Error::invalid(out));
        };
        if push {
            return Err(Error::new(
                ErrorKind::PushNotificationNotSupported,
                "this agent sends no push notifications: send without configuration.taskPushNotificationConfig",
            ));
        }
        Ok(Self { message, return_immediately, history_length: length })
    }
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
            "7",
        ] {
            let text = format!(r#"{{"message":{MESSAGE},"configuration":{configuration}}}"#);
            let got = SendMessage::parse(Some(serde_json::from_str(&text).unwrap()))
                .map(|s| (s.return_immediately, s.history_length))
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
