//! Parameters of the operations but `SendMessage`, and what several share (A2A 1.0, sections 3.1 and 3.2.4).

mod list;

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;

pub use list::{Cursor, DEFAULT_PAGE_SIZE, ListTasks, MAX_PAGE_SIZE, MAX_PAGE_TOKEN_BYTES};

use super::errors::{Error, Violation};
use super::part::violation;
use super::raw::{self, Kind, Members, text_of};

/// Splits parameters, with the members of the given names in their usual spelling.
pub(crate) fn split<'a>(params: Option<&'a RawValue>, known: &[&'static str]) -> Result<Members<'a>, Error> {
    let params = params.ok_or_else(|| Error::invalid_field("params", "is missing"))?;
    let mut members = Members::split(params.get()).map_err(|e| Error::invalid_field("params", e.to_string()))?;
    members.camel(known).map_err(|e| Error::invalid_field("params", e.to_string()))?;
    Ok(members)
}

/// The same where they may be absent.
fn split_or_none<'a>(params: Option<&'a RawValue>, known: &[&'static str]) -> Result<Members<'a>, Error> {
    if params.is_none_or(|p| raw::kind(p.get()) == Kind::Null) { Ok(Members::default()) } else { split(params, known) }
}

fn finish<T>(got: T, out: Vec<Violation>) -> Result<T, Error> {
    if out.is_empty() { Ok(got) } else { Err(Error::invalid(out)) }
}

/// Reads an integer of 32 bits; `ProtoJSON` takes it as a string too.
fn integer(members: &Members<'_>, key: &str, path: &str, out: &mut Vec<Violation>) -> Option<i32> {
    let value = members.set(key)?;
    let text = if raw::kind(value.get()) == Kind::Text { text_of(value)? } else { Cow::Borrowed(value.get()) };
    let got = text.strip_suffix(".0").unwrap_or(&text).parse().ok();
    if got.is_none() {
        violation(out, path, "must be an integer of 32 bits");
    }
    got
}

/// Reads `historyLength`: absent is everything, 0 nothing, n the newest n.
pub(crate) fn history_length(members: &Members<'_>, path: &str, out: &mut Vec<Violation>) -> Option<u32> {
    let length = u32::try_from(integer(members, "historyLength", path, out)?).ok();
    if length.is_none() {
        violation(out, path, "must not be negative");
    }
    length
}

fn page_size(members: &Members<'_>, range: RangeInclusive<u32>, out: &mut Vec<Violation>) -> Option<u32> {
    let size = integer(members, "pageSize", "pageSize", out)?;
    let size = u32::try_from(size).ok().filter(|n| range.contains(n));
    if size.is_none() {
        violation(out, "pageSize", format!("must be from {} to {}", range.start(), range.end()));
    }
    size
}

/// Reads a text that may be missing; an empty one is unset.
pub(crate) fn text<'a>(members: &Members<'a>, key: &str, path: &str, out: &mut Vec<Violation>) -> Option<Cow<'a, str>> {
    let text = members.set(key).map(text_of)?;
    match &text {
        None => violation(out, path, "must be a string"),
        // No database takes it, and nothing that is named here has one.
        Some(text) if text.contains('\0') => {
            violation(out, path, "must have no NUL in it");
            return None;
        }
        Some(_) => {}
    }
    text.filter(|t| !t.is_empty())
}

/// Reads a text that has to be there.
pub(crate) fn required<'a>(members: &Members<'a>, key: &str, out: &mut Vec<Violation>) -> Cow<'a, str> {
    let before = out.len();
    text(members, key, key, out).unwrap_or_else(|| {
        if out.len() == before {
            violation(out, key, "is missing or empty");
        }
        Cow::Borrowed("")
    })
}

/// Reads an object that may be missing.
pub(crate) fn object<'a>(
    members: &Members<'a>,
    key: &str,
    path: &str,
    out: &mut Vec<Violation>,
) -> Option<&'a RawValue> {
    let value = members.set(key)?;
    if raw::kind(value.get()) != Kind::Object {
        violation(out, path, "must be an object");
        return None;
    }
    Some(value)
}

/// The `tenant` of any parameters, if they are an object that has one. What else is wrong with them is found later.
pub fn tenant(params: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let members = Members::split(params?.get()).ok()?;
    members.set("tenant").and_then(text_of).filter(|t| !t.is_empty())
}

/// Parameters of `GetTask`.
#[derive(Debug, PartialEq, Eq)]
pub struct GetTask<'a> {
    /// The task.
    pub id: Cow<'a, str>,
    /// Newest messages to show; all without it.
    pub history_length: Option<u32>,
}

impl<'a> GetTask<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &["historyLength"])?;
        let mut out = Vec::new();
        let got = Self {
            id: required(&members, "id", &mut out),
            history_length: history_length(&members, "historyLength", &mut out),
        };
        finish(got, out)
    }
}

/// Parameters of `CancelTask`.
#[derive(Debug)]
pub struct CancelTask<'a> {
    /// The task.
    pub id: Cow<'a, str>,
    /// What the caller says about it: an object.
    pub metadata: Option<&'a RawValue>,
}

impl<'a> CancelTask<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &[])?;
        let mut out = Vec::new();
        let metadata = object(&members, "metadata", "metadata", &mut out);
        let got = Self { id: required(&members, "id", &mut out), metadata };
        finish(got, out)
    }
}

/// Parameters of `SubscribeToTask`.
#[derive(Debug, PartialEq, Eq)]
pub struct SubscribeToTask<'a> {
    /// The task.
    pub id: Cow<'a, str>,
}

impl<'a> SubscribeToTask<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &[])?;
        let mut out = Vec::new();
        let got = Self { id: required(&members, "id", &mut out) };
        finish(got, out)
    }
}

/// Parameters of `GetTaskPushNotificationConfig` and `DeleteTaskPushNotificationConfig`.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigRef<'a> {
    /// The task.
    pub task: Cow<'a, str>,
    /// The configuration; only 0.3 may leave it out, and means the task's first one then.
    pub id: Option<Cow<'a, str>>,
}

impl<'a> ConfigRef<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>, id_required: bool) -> Result<Self, Error> {
        let members = split(params, &["taskId"])?;
        let mut out = Vec::new();
        let task = required(&members, "taskId", &mut out);
        let id =
            if id_required { Some(required(&members, "id", &mut out)) } else { text(&members, "id", "id", &mut out) };
        finish(Self { task, id }, out)
    }
}

/// Parameters of `ListTaskPushNotificationConfigs`.
#[derive(Debug, PartialEq, Eq)]
pub struct ListConfigs<'a> {
    /// The task.
    pub task: Cow<'a, str>,
    /// At most so many in one answer; as many as there are without it.
    pub page_size: Option<u32>,
    /// `nextPageToken` of the answer before.
    pub page_token: Option<Cow<'a, str>>,
}

impl<'a> ListConfigs<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &["taskId", "pageSize", "pageToken"])?;
        let mut out = Vec::new();
        let got = Self {
            task: required(&members, "taskId", &mut out),
            // Without presence in the proto, 0 is unset.
            page_size: page_size(&members, 0..=MAX_PAGE_SIZE, &mut out).filter(|n| *n > 0),
            page_token: text(&members, "pageToken", "pageToken", &mut out),
        };
        finish(got, out)
    }
}

/// Checks the parameters of `GetExtendedAgentCard`: there may be none.
pub fn check_extended_card(params: Option<&RawValue>) -> Result<(), Error> {
    let members = split_or_none(params, &[])?;
    let mut out = Vec::new();
    text(&members, "tenant", "tenant", &mut out);
    finish((), out)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn table<T: std::fmt::Debug>(
        texts: &[&'static str],
        parse: impl Fn(Option<&'static RawValue>) -> Result<T, Error>,
    ) -> String {
        let mut table = String::new();
        for text in texts {
            let got = parse(Some(serde_json::from_str(text).unwrap())).map_err(|e| e.message);
            let _ = writeln!(table, "{text}\n    {got:?}");
        }
        table
    }

    #[test]
    fn get_task() {
        let texts = [
            r#"{"id":"t"}"#,
            r#"{"id":"t","historyLength":0,"tenant":"x"}"#,
            r#"{"id":"t","history_length":"3"}"#,
            r#"{"id":"t","historyLength":-1}"#,
            r#"{"id":"t","historyLength":1.5}"#,
            r#"{"id":"t","historyLength":99999999999}"#,
            r#"{"id":"","historyLength":null}"#,
            r#"{"id":7}"#,
            "[]",
        ];
        insta::assert_snapshot!(table(&texts, GetTask::parse));
        assert!(GetTask::parse(None).is_err());
    }

    #[test]
    fn others() {
        let tasks = [r#"{"id":"t","metadata":{"k":1.0}}"#, r#"{"id":"t","metadata":[]}"#, "{}"];
        let configs = [
            r#"{"taskId":"t","id":"p"}"#,
            r#"{"task_id":"t"}"#,
            r#"{"id":"p","taskId":7}"#,
            r#"{"taskId":"t","pageSize":0,"pageToken":""}"#,
            r#"{"taskId":"t","page_size":"20","pageToken":"x"}"#,
            r#"{"taskId":"t","pageSize":101}"#,
        ];
        let cards = ["{}", "null", r#"{"tenant":"x"}"#, r#"{"tenant":7}"#, "[]"];
        insta::assert_snapshot!(
            [
                table(&tasks, CancelTask::parse),
                table(&tasks, SubscribeToTask::parse),
                table(&configs, |p| ConfigRef::parse(p, true)),
                table(&configs, |p| ConfigRef::parse(p, false)),
                table(&configs, ListConfigs::parse),
                table(&cards, check_extended_card),
            ]
            .join("--\n")
        );
        assert_eq!(check_extended_card(None), Ok(()));
    }

    #[test]
    fn the_tenant_of_anything() {
        let of = |text: &'static str| tenant(Some(serde_json::from_str(text).unwrap()));
        assert_eq!(of(r#"{"id":"t","tenant":"a\"b"}"#).as_deref(), Some("a\"b"));
        assert!(of(r#"{"tenant":""}"#).is_none() && of("[]").is_none() && tenant(None).is_none());
    }
}
