//! Parameters of `GetTask` and `CancelTask`, and what several methods share (A2A 1.0, sections 3.1.3, 3.1.5, 3.2.4).

use std::borrow::Cow;

use serde_json::value::RawValue;

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

/// Reads `historyLength`: absent is everything, 0 nothing, n the newest n.
pub(crate) fn history_length(members: &Members<'_>, path: &str, out: &mut Vec<Violation>) -> Option<u32> {
    let value = members.set("historyLength")?;
    // ProtoJSON takes integers as strings too.
    let text = if raw::kind(value.get()) == Kind::Text { text_of(value)? } else { Cow::Borrowed(value.get()) };
    let text = text.strip_suffix(".0").unwrap_or(&text);
    match text.parse::<i64>() {
        Ok(n) if n < 0 => violation(out, path, "must not be negative"),
        Ok(n) if n <= i64::from(i32::MAX) => return u32::try_from(n).ok(),
        _ => violation(out, path, "must be an integer of 32 bits"),
    }
    None
}

fn task_id<'a>(members: &Members<'a>, out: &mut Vec<Violation>) -> Cow<'a, str> {
    match members.set("id").map(text_of) {
        Some(Some(id)) if !id.is_empty() => return id,
        Some(None) => violation(out, "id", "must be a string"),
        _ => violation(out, "id", "is missing or empty"),
    }
    Cow::Borrowed("")
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
            id: task_id(&members, &mut out),
            history_length: history_length(&members, "historyLength", &mut out),
        };
        if out.is_empty() { Ok(got) } else { Err(Error::invalid(out)) }
    }
}

/// Parameters of `CancelTask`.
#[derive(Debug, PartialEq, Eq)]
pub struct CancelTask<'a> {
    /// The task.
    pub id: Cow<'a, str>,
}

impl<'a> CancelTask<'a> {
    /// Reads and checks the parameters.
    pub fn parse(params: Option<&'a RawValue>) -> Result<Self, Error> {
        let members = split(params, &[])?;
        let mut out = Vec::new();
        let got = Self { id: task_id(&members, &mut out) };
        if out.is_empty() { Ok(got) } else { Err(Error::invalid(out)) }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn get_task() {
        let mut table = String::new();
        for text in [
            r#"{"id":"t"}"#,
            r#"{"id":"t","historyLength":0,"tenant":"x"}"#,
            r#"{"id":"t","history_length":"3"}"#,
            r#"{"id":"t","historyLength":-1}"#,
            r#"{"id":"t","historyLength":1.5}"#,
            r#"{"id":"t","historyLength":99999999999}"#,
            r#"{"id":"","historyLength":null}"#,
            r#"{"id":7}"#,
            "[]",
        ] {
            let got = GetTask::parse(Some(serde_json::from_str(text).unwrap())).map_err(|e| e.message);
            let _ = writeln!(table, "{text}\n    {got:?}");
        }
        insta::assert_snapshot!(table);
        assert!(GetTask::parse(None).is_err());
    }
}
