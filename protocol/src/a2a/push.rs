//! Push notification configurations (A2A 1.0, section 4.3): checked when they come, kept as they came.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;

use serde_json::value::RawValue;

use super::errors::{Error, Violation};
use super::params::{object, required, split, text};
use super::part::violation;
use super::raw::{Members, Raw, push_key, push_text, text_of};

/// Longest URL, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;
/// Longest id of a configuration, in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4_096;
/// Longest name of an authentication scheme, in bytes.
pub const MAX_SCHEME_BYTES: usize = 64;
/// Longest credentials, in bytes.
pub const MAX_CREDENTIALS_BYTES: usize = 8_192;

const MEMBERS: [&str; 1] = ["taskId"];
/// Members of a stored configuration that are no part of it: how the request's trace goes on (W3C Trace Context).
const TRACE: [&str; 2] = ["@traceparent", "@tracestate"];

/// A receiver of a task's events, as a caller names it.
pub struct Config<'a> {
    /// The task; absent where it goes with a message.
    pub task: Option<Cow<'a, str>>,
    /// Its id, if the caller gave one.
    pub id: Option<Cow<'a, str>>,
    /// Where events go: an absolute `http` or `https` URL without user information.
    pub url: Cow<'a, str>,
    /// What the receiver knows the sender by, for `X-A2A-Notification-Token`.
    pub token: Option<Cow<'a, str>>,
    /// Scheme of the header `Authorization`.
    pub scheme: Option<Cow<'a, str>>,
    /// What follows the scheme.
    pub credentials: Option<Cow<'a, str>>,
    /// All of it but `taskId`, `id` and `tenant`, secrets included: to be stored, never logged.
    pub json: Raw,
}

impl fmt::Debug for Config<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No secret ends in a log.
        f.debug_struct("Config").field("task", &self.task).field("id", &self.id).finish_non_exhaustive()
    }
}

impl<'a> Config<'a> {
    /// Reads and checks the parameters of `CreateTaskPushNotificationConfig`.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &MEMBERS)?;
        let mut out = Vec::new();
        let task = required(&members, "taskId", &mut out);
        let config = Self::of(&members, Some(task), "", &mut out);
        config.filter(|_| out.is_empty()).ok_or_else(|| Error::invalid(out))
    }

    /// Reads and checks one that goes with a message; violations are named under `path`.
    pub fn inline(value: &'a RawValue, path: &str, out: &mut Vec<Violation>) -> Option<Self> {
        let mut members = match Members::split(value.get()) {
            Ok(members) => members,
            Err(e) => {
                violation(out, path, e.to_string());
                return None;
            }
        };
        if let Err(e) = members.camel(&MEMBERS) {
            violation(out, path, e.to_string());
            return None;
        }
        let prefix = format!("{path}.");
        let task = text(&members, "taskId", &format!("{prefix}taskId"), out);
        Self::of(&members, task, &prefix, out)
    }

    fn of(members: &Members<'a>, task: Option<Cow<'a, str>>, prefix: &str, out: &mut Vec<Violation>) -> Option<Self> {
        let before = out.len();
        let url = bounded(members, "url", prefix, MAX_URL_BYTES, out);
        match &url {
            None if out.len() == before => violation(out, format!("{prefix}url"), "is missing or empty"),
            Some(url) => {
                if let Err(what) = check_url(url) {
                    violation(out, format!("{prefix}url"), what);
                }
            }
            None => {}
        }
        let token = bounded(members, "token", prefix, MAX_TOKEN_BYTES, out);
        check_header(token.as_deref(), &format!("{prefix}token"), out);
        let path = format!("{prefix}authentication");
        let authentication = object(members, "authentication", &path, out);
        let (mut scheme, mut credentials) = (None, None);
        match authentication.map(|a| Members::split(a.get())) {
            None => {}
            Some(Err(e)) => violation(out, path, e.to_string()),
            Some(Ok(a)) => {
                let prefix = format!("{path}.");
                scheme = bounded(&a, "scheme", &prefix, MAX_SCHEME_BYTES, out);
                credentials = bounded(&a, "credentials", &prefix, MAX_CREDENTIALS_BYTES, out);
                if scheme.as_deref().is_some_and(|s| !s.bytes().all(is_token)) {
                    violation(out, format!("{path}.scheme"), "must be the name of a scheme, such as Bearer");
                }
                if scheme.is_none() && credentials.is_some() {
                    violation(out, format!("{path}.scheme"), "is missing or empty");
                }
                check_header(credentials.as_deref(), &format!("{path}.credentials"), out);
            }
        }
        let got = Self {
            task,
            id: bounded(members, "id", prefix, MAX_ID_BYTES, out),
            url: url.unwrap_or_default(),
            token,
            scheme,
            credentials,
            json: rest(members),
        };
        (out.len() == before).then_some(got)
    }
}

fn rest(members: &Members<'_>) -> Raw {
    let mut json = String::from("{");
    let own = |key: &str| ["taskId", "id", "tenant"].contains(&key) || TRACE.contains(&key);
    for (key, value) in members.iter().filter(|(k, _)| !own(k)) {
        push_key(&mut json, key);
        json.push_str(value.get());
    }
    json.push('}');
    Raw::assembled(&json)
}

fn bounded<'a>(
    members: &Members<'a>,
    key: &str,
    prefix: &str,
    max: usize,
    out: &mut Vec<Violation>,
) -> Option<Cow<'a, str>> {
    let path = format!("{prefix}{key}");
    let value = text(members, key, &path, out)?;
    if value.len() > max {
        violation(out, path, format!("must be at most {max} bytes long"));
        return None;
    }
    Some(value)
}

/// What goes into a header must not end it.
fn check_header(value: Option<&str>, path: &str, out: &mut Vec<Violation>) {
    if value.is_some_and(|v| v.bytes().any(|b| b < 0x20 || b == 0x7f) || v.trim() != v) {
        violation(out, path, "must have no control characters and no spaces around it");
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Checks that a text is an absolute `http` or `https` URL with a host and without user information. Where it may lead
/// is not looked at: that is known at connect time only.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    if url.bytes().any(|b| b <= 0x20 || b == 0x7f || b == b'\\') {
        return Err("must have no spaces, control characters or backslashes");
    }
    let scheme = url.split_once("://");
    let Some((scheme, rest)) = scheme.filter(|(s, _)| ["http", "https"].iter().any(|k| s.eq_ignore_ascii_case(k)))
    else {
        return Err("must be an absolute URL of http or https");
    };
    debug_assert!(!scheme.is_empty());
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must have no user information");
    }
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (address, after) = inner.split_once(']').ok_or("has a broken address")?;
        address.parse::<Ipv6Addr>().map_err(|_| "has a broken address")?;
        ("v6", after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or("has a broken address")?)
    } else {
        let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
        (host, port)
    };
    if host.is_empty() || host.contains(['[', ']', '%', '<', '>', '"', '^', '`', '{', '|', '}']) {
        return Err("must name a host");
    }
    if !port.is_empty() && (!port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_ok_and(|p| p == 0)) {
        return Err("has a broken port");
    }
    if !port.is_empty() && port.parse::<u16>().is_err() {
        return Err("has a broken port");
    }
    Ok(())
}

/// A configuration as it is stored ([`Config::json`]) with the trace of the request that made it: the values of
/// `traceparent` and `tracestate`.
pub fn with_trace(json: &Raw, parent: &str, state: Option<&str>) -> Raw {
    let mut out = json.as_str().trim_end().strip_suffix('}').unwrap_or("{").to_owned();
    for (key, value) in TRACE.into_iter().zip([Some(parent), state]) {
        if let Some(value) = value {
            push_key(&mut out, key);
            push_text(&mut out, value);
        }
    }
    out.push('}');
    Raw::assembled(&out)
}

/// The trace that [`with_trace`] wrote.
pub fn trace(json: &Raw) -> Option<(String, Option<String>)> {
    let members = Members::split(json.as_str()).ok()?;
    let [parent, state] = TRACE.map(|key| members.set(key).and_then(text_of).map(Cow::into_owned));
    Some((parent?, state))
}

/// A configuration as it is stored without what only a delivery needs: the token and the credentials.
pub fn without_secrets(json: &Raw) -> Raw {
    let members = Members::split(json.as_str()).unwrap_or_default();
    let mut out = String::from("{");
    for (key, value) in members.iter().filter(|(key, _)| *key != "token") {
        push_key(&mut out, key);
        write_value(key, value, &mut out);
    }
    out.push('}');
    Raw::assembled(&out)
}

/// What became of a receiver that was given up, for callers who ask for
/// [our extension](super::extensions::DELIVERY).
#[derive(Clone, Copy, Debug)]
pub struct DeadLetter<'a> {
    /// Why, for people.
    pub why: &'a str,
    /// Version of the task after the last event that was delivered; 0 if none was.
    pub delivered: u64,
}

impl DeadLetter<'_> {
    fn write(self, task: &str, out: &mut String) {
        push_key(out, "deadLetter");
        out.push('{');
        push_key(out, "reason");
        push_text(out, self.why);
        if self.delivered > 0 {
            push_key(out, "lastEventId");
            push_text(out, &format!("{task}.{}", self.delivered));
        }
        out.push('}');
    }
}

/// Appends a member's value; of `authentication` all but the credentials.
fn write_value(key: &str, value: &RawValue, out: &mut String) {
    let inner = Members::split(value.get()).ok().filter(|_| key == "authentication");
    let Some(inner) = inner else {
        out.push_str(value.get());
        return;
    };
    out.push('{');
    for (key, value) in inner.iter().filter(|(k, _)| *k != "credentials") {
        push_key(out, key);
        out.push_str(value.get());
    }
    out.push('}');
}

/// Appends a configuration as an answer shows it: `json` is [`Config::json`]. Credentials are not shown.
pub fn write(task: &str, id: &str, json: &Raw, dead: Option<DeadLetter<'_>>, out: &mut String) {
    out.push('{');
    push_key(out, "taskId");
    push_text(out, task);
    push_key(out, "id");
    push_text(out, id);
    let members = Members::split(json.as_str()).unwrap_or_default();
    let own = |key: &str| ["taskId", "id"].contains(&key) || TRACE.contains(&key);
    let given = |key: &str| dead.is_none() || key != "deadLetter";
    for (key, value) in members.iter().filter(|(k, _)| !own(k) && given(k)) {
        push_key(out, key);
        write_value(key, value, out);
    }
    if let Some(dead) = dead {
        dead.write(task, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn urls() {
        let mut table = String::new();
        for url in [
            "https://e.example/hook?x=1#y",
            "HTTP://e.example:8080",
            "https://[2001:db8::1]:443/x",
            "https://127.0.0.1/",
            "https://e.example:",
            "ftp://e.example/",
            "//e.example/",
            "/hook",
            "https:/e.example",
            "https://",
            "https:///x",
            "https://:443/",
            "https://user@e.example/",
            "https://user:pw@e.example/",
            "https://e.example:0/",
            "https://e.example:99999/",
            "https://e.example:4a/",
            "https://[::1/",
            "https://[::1]x/",
            "https://[nope]/",
            "https://e.exa mple/",
            "https://e.example\\@evil.example/",
            "https://e.example/\r\nX: y",
            "javascript:alert(1)",
            "",
        ] {
            let _ = writeln!(table, "{url:?} {:?}", check_url(url));
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn configurations() {
        let long = format!(r#"{{"taskId":"t","url":"https://e.example/{}"}}"#, "x".repeat(3_000));
        let mut table = String::new();
        for text in [
            r#"{"tenant":"x","taskId":"t","id":"p","url":"https://e.example","token":"k","authentication":{"scheme":"Bearer","credentials":"s"},"n":1.0}"#,
            r#"{"task_id":"t","url":"http://e.example","id":"","authentication":null}"#,
            r#"{"url":"https://e.example"}"#,
            r#"{"taskId":"t","url":"nope","token":"a\nb","authentication":{"scheme":"Be arer","credentials":"x\r\ny: z"}}"#,
            r#"{"taskId":"t","url":"https://e.example","authentication":{"credentials":"s"}}"#,
            r#"{"taskId":7,"url":7,"id":[],"token":{},"authentication":"x"}"#,
            r#"{"taskId":"t"}"#,
            &long,
            "[]",
        ] {
            let got = match Config::parse(Some(serde_json::from_str(text).unwrap())) {
                Ok(c) => {
                    let mut shown = String::new();
                    write(c.task.as_deref().unwrap(), c.id.as_deref().unwrap_or("new"), &c.json, None, &mut shown);
                    let secrets = (&c.url, &c.token, &c.scheme, &c.credentials);
                    format!("{c:?} {secrets:?}\n    {:?}\n    {shown}", c.json)
                }
                Err(e) => e
                    .violations
                    .iter()
                    .map(|v| format!("{} {}", v.field, v.description))
                    .collect::<Vec<_>>()
                    .join("\n    "),
            };
            let _ = writeln!(table, "{}\n    {got}", text.chars().take(150).collect::<String>());
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn what_is_kept_beside_it() {
        let json = Raw::assembled(
            r#"{"url":"https://e.example","token":"t","n":1.0,"authentication":{"scheme":"Basic","credentials":"c"}}"#,
        );
        let traced = with_trace(&json, "00-aa-bb-01", Some("k=\"v\""));
        assert_eq!(trace(&traced), Some(("00-aa-bb-01".into(), Some("k=\"v\"".into()))));
        assert_eq!(trace(&with_trace(&Raw::assembled("{}"), "p", None)), Some(("p".into(), None)));
        assert_eq!(trace(&json), None);
        let shown = |json: &Raw, dead| {
            let mut out = String::new();
            write("t1", "c", json, dead, &mut out);
            out
        };
        let dead = DeadLetter { why: "the receiver answers \"410\"", delivered: 3 };
        insta::assert_snapshot!(
            [
                shown(&traced, None),
                shown(&traced, Some(dead)),
                shown(&without_secrets(&traced), Some(DeadLetter { delivered: 0, ..dead })),
                without_secrets(&traced).as_str().to_owned(),
            ]
            .join("\n")
        );
        // Nobody else names a trace.
        let given = r#"{"taskId":"t","url":"https://e.example","@traceparent":"x","@tracestate":"y"}"#;
        let config = Config::parse(Some(serde_json::from_str(given).unwrap())).unwrap();
        assert_eq!(config.json.as_str(), r#"{"url":"https://e.example"}"#);
    }

    #[test]
    fn one_that_goes_with_a_message_needs_no_task() {
        let mut out = Vec::new();
        let text = r#"{"url":"https://e.example","taskId":""}"#;
        let config = Config::inline(serde_json::from_str(text).unwrap(), "configuration.x", &mut out).unwrap();
        assert!(config.task.is_none() && out.is_empty());
        assert!(Config::inline(serde_json::from_str("{}").unwrap(), "configuration.x", &mut out).is_none());
        assert_eq!(out[0].field, "configuration.x.url");
    }
}
