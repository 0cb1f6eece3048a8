//! JSON-RPC 2.0 as A2A uses it: one request, one answer, no batch, no notification.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::errors::{Error, Kind};
use super::raw::{self, MAX_DEPTH, Members, SplitError, depth_within, text_of};

/// A request whose frame is right.
#[derive(Debug)]
pub struct Request<'a> {
    /// The id, echoed byte for byte.
    pub id: &'a RawValue,
    /// Method name.
    pub method: Cow<'a, str>,
    /// Parameters, if any.
    pub params: Option<&'a RawValue>,
}

/// A frame that is wrong, and the id to answer under if there is a good one.
#[derive(Debug)]
pub struct BadFrame<'a> {
    /// The id, if it could be read.
    pub id: Option<&'a RawValue>,
    /// What is wrong.
    pub error: Error,
}

impl<'a> Request<'a> {
    /// Reads a body. It may be anything.
    pub fn parse(body: &'a [u8]) -> Result<Self, BadFrame<'a>> {
        let bad = |id, kind, message: String| BadFrame { id, error: Error::new(kind, message) };
        let text = std::str::from_utf8(body)
            .map_err(|e| bad(None, Kind::Parse, format!("the body is no UTF-8 after byte {}", e.valid_up_to())))?;
        if !depth_within(body, MAX_DEPTH) {
            return Err(bad(None, Kind::InvalidRequest, format!("the body is nested deeper than {MAX_DEPTH} levels")));
        }
        if raw::kind(text) == raw::Kind::List && raw::elements(text).is_ok() {
            return Err(bad(None, Kind::InvalidRequest, "batches are not part of A2A: send one request".into()));
        }
        let members = Members::split(text).map_err(|e| {
            let kind = if matches!(e, SplitError::Syntax(_)) { Kind::Parse } else { Kind::InvalidRequest };
            bad(None, kind, format!("the body {e}"))
        })?;
        let invalid = |id, message: &str| bad(id, Kind::InvalidRequest, message.into());
        let id = match members.get("id") {
            None => return Err(invalid(None, "id is missing: A2A has no notifications")),
            Some(id) => match raw::kind(id.get()) {
                raw::Kind::Text | raw::Kind::Null => id,
                raw::Kind::Number if !id.get().contains(['.', 'e', 'E']) => id,
                _ => return Err(invalid(None, "id must be a string, an integer or null")),
            },
        };
        if members.get("jsonrpc").and_then(text_of).as_deref() != Some("2.0") {
            return Err(invalid(Some(id), "jsonrpc must be \"2.0\""));
        }
        let Some(method) = members.get("method").and_then(text_of) else {
            return Err(invalid(Some(id), "method is missing or no string"));
        };
        Ok(Self { id, method, params: members.set("params") })
    }
}

/// Writes an answer; `result` appends its JSON.
pub fn success(id: &RawValue, capacity: usize, result: impl FnOnce(&mut String)) -> String {
    let mut out = String::with_capacity(capacity + id.get().len() + 48);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id.get());
    out.push_str(",\"result\":");
    result(&mut out);
    out.push('}');
    out
}

/// Writes an error; without an id it is `null`.
pub fn failure(id: Option<&RawValue>, error: &Error) -> String {
    let mut out = String::with_capacity(256);
    out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    out.push_str(id.map_or("null", RawValue::get));
    out.push_str(",\"error\":");
    error.write(&mut out);
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames() {
        let deep =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        let mut table = String::new();
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":"a\"b","method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":12345678901234567890,"method":"GetTask","params":null}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":[1],"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":true,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","method":"GetTask"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"GetTask"}"#,
            r#"{"id":1,"method":"GetTask"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"GetTask"}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]"#,
            "[]",
            "[1,",
            "7",
            "",
            "hello",
            r#"{"jsonrpc":"2.0","id":1,"method":"GetTask""#,
            &deep,
        ] {
            let shown: String = body.chars().take(60).collect();
            let got = match Request::parse(body.as_bytes()) {
                Ok(r) => format!("id {} method {} params {:?}", r.id.get(), r.method, r.params.map(RawValue::get)),
                Err(b) => failure(b.id, &b.error).chars().take(120).collect(),
            };
            let _ = writeln!(table, "{shown}\n    {got}");
        }
        insta::assert_snapshot!(table);
        assert_eq!(Request::parse(b"{\"a\":\"\xff\"}").unwrap_err().error.kind, Kind::Parse);
    }

    proptest! {
        #[test]
        fn any_body_is_survived(body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(bad) = Request::parse(&body) {
                let text = failure(bad.id, &bad.error);
                prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            }
        }
    }
}
