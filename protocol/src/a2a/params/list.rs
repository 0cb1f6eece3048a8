//! Parameters of `ListTasks` and the token that continues a list (A2A 1.0, section 3.1.4).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::value::RawValue;

use super::{finish, history_length, page_size, split_or_none, text};
use crate::a2a::errors::{Error, Violation};
use crate::a2a::part::violation;
use crate::a2a::raw::{self, Kind, Members, text_of};
use crate::a2a::state::State;

/// Tasks in one answer when the caller does not say.
pub const DEFAULT_PAGE_SIZE: u32 = 50;
/// Most tasks in one answer.
pub const MAX_PAGE_SIZE: u32 = 100;
/// Longest token that is looked at.
pub const MAX_PAGE_TOKEN_BYTES: usize = 1_024;

const KNOWN: [&str; 7] =
    ["contextId", "pageSize", "pageToken", "historyLength", "statusTimestampAfter", "includeArtifacts", "status"];

/// First byte of a token; another one is of another time.
const TOKEN_VERSION: u8 = 1;

/// Parameters of `ListTasks`.
#[derive(Debug, PartialEq, Eq)]
pub struct ListTasks<'a> {
    /// Of one context.
    pub context_id: Option<Cow<'a, str>>,
    /// In one state.
    pub status: Option<State>,
    /// At most so many: 1 to [`MAX_PAGE_SIZE`].
    pub page_size: u32,
    /// What follows this place.
    pub after: Option<Cursor>,
    /// Newest messages to show in each; all without it.
    pub history_length: Option<u32>,
    /// Status not older than this.
    pub since: Option<Timestamp>,
    /// Whether artifacts are shown.
    pub include_artifacts: bool,
}

impl<'a> ListTasks<'a> {
    /// Reads and checks the parameters; there may be none.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split_or_none(params, &KNOWN)?;
        let mut out = Vec::new();
        let token = text(&members, "pageToken", "pageToken", &mut out);
        let after = token.as_deref().and_then(Cursor::decode);
        if token.is_some() && after.is_none() {
            violation(&mut out, "pageToken", "is none that this agent gave");
        }
        let since = text(&members, "statusTimestampAfter", "statusTimestampAfter", &mut out).and_then(|t| {
            let at = t.parse().ok();
            if at.is_none() {
                violation(&mut out, "statusTimestampAfter", "must be a time such as 2026-11-29T10:00:00Z");
            }
            at
        });
        let include_artifacts = match members.set("includeArtifacts").map(RawValue::get) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                violation(&mut out, "includeArtifacts", "must be true or false");
                false
            }
        };
        let got = Self {
            context_id: text(&members, "contextId", "contextId", &mut out),
            status: status(&members, &mut out),
            page_size: page_size(&members, 1..=MAX_PAGE_SIZE, &mut out).unwrap_or(DEFAULT_PAGE_SIZE),
            after,
            history_length: history_length(&members, "historyLength", &mut out),
            since,
            include_artifacts,
        };
        finish(got, out)
    }
}

/// A name or a number of the enum; the one of no meaning is no filter.
fn status(members: &Members<'_>, out: &mut Vec<Violation>) -> Option<State> {
    let value = members.set("status")?;
    let state = if raw::kind(value.get()) == Kind::Number {
        value.get().parse().ok().and_then(State::numbered)
    } else {
        text_of(value).and_then(|name| match &*name {
            "" | "TASK_STATE_UNSPECIFIED" => Some(None),
            name => State::ALL.into_iter().find(|s| s.wire() == name).map(Some),
        })
    };
    if state.is_none() {
        violation(out, "status", "must be one of the TASK_STATE_ names");
    }
    state.flatten()
}

/// A place in a list: the time of the last task's status, and its id. It holds when that task changes or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Time of its status.
    pub since: Timestamp,
    /// Its id.
    pub id: String,
}

impl Cursor {
    /// The place as an opaque token.
    pub fn encode(&self) -> String {
        let nanos = i64::try_from(self.since.as_nanosecond()).unwrap_or(i64::MAX);
        let mut bytes = vec![TOKEN_VERSION];
        bytes.extend_from_slice(&nanos.to_be_bytes());
        bytes.extend_from_slice(self.id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token; `None` for one that was not made by [`Self::encode`].
    pub fn decode(token: &str) -> Option<Self> {
        if token.len() > MAX_PAGE_TOKEN_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (nanos, id) = rest.split_first_chunk::<8>()?;
        if *version != TOKEN_VERSION || id.is_empty() {
            return None;
        }
        Some(Self {
            since: Timestamp::from_nanosecond(i64::from_be_bytes(*nanos).into()).ok()?,
            id: std::str::from_utf8(id).ok()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn filters() {
        let token = Cursor { since: "2026-11-29T10:00:00.123456789Z".parse().unwrap(), id: "t1".into() }.encode();
        let mut table = String::new();
        for text in [
            "null",
            "{}",
            r#"{"contextId":"c","status":"TASK_STATE_WORKING","pageSize":100,"historyLength":0,"includeArtifacts":true}"#,
            r#"{"context_id":"c","status":6,"page_size":"1","status_timestamp_after":"2026-11-29T12:00:00+02:00"}"#,
            r#"{"status":"TASK_STATE_UNSPECIFIED","pageToken":"","contextId":""}"#,
            r#"{"status":0}"#,
            r#"{"status":"BOGUS"}"#,
            r#"{"status":9}"#,
            r#"{"status":"working"}"#,
            r#"{"pageSize":0}"#,
            r#"{"pageSize":101}"#,
            r#"{"pageSize":-1}"#,
            r#"{"pageToken":"bogus","statusTimestampAfter":"yesterday","includeArtifacts":"yes","historyLength":-1}"#,
            r#"{"pageToken":7}"#,
            "[]",
        ] {
            let got = ListTasks::parse(Some(serde_json::from_str(text).unwrap()))
                .map_err(|e| e.violations.iter().map(|v| format!("{} {}", v.field, v.description)).collect::<Vec<_>>());
            let _ = writeln!(table, "{text}\n    {got:?}");
        }
        insta::assert_snapshot!(table);
        let text = format!(r#"{{"pageToken":"{token}"}}"#);
        let got = ListTasks::parse(Some(serde_json::from_str(&text).unwrap())).unwrap().after.unwrap();
        assert_eq!((got.since.to_string().as_str(), got.id.as_str()), ("2026-11-29T10:00:00.123456789Z", "t1"));
        assert_eq!(ListTasks::parse(None).unwrap().page_size, DEFAULT_PAGE_SIZE);
    }

    proptest! {
        #[test]
        fn tokens_read_back(nanos in any::<i64>(), id in "\\PC{1,100}") {
            let cursor = Cursor { since: Timestamp::from_nanosecond(nanos.into()).unwrap(), id };
            prop_assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        }

        #[test]
        fn any_token_is_survived(token in "[A-Za-z0-9_-]{0,40}") {
            if let Some(cursor) = Cursor::decode(&token) {
                prop_assert!(!cursor.id.is_empty());
            }
        }
    }
}
