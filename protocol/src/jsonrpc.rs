//! JSON-RPC 2.0 envelopes on raw JSON: ids and payloads keep their bytes.
//!
//! Nothing here re-types a payload. [`scan`] checks JSON without recursion and says where the members of an object
//! stand; [`Envelope`] knows the six members of a message; [`splice`] writes a message with some spans replaced. What
//! typed parsers lose or refuse (integers beyond 64 bits, `1.0` as an id, lone surrogates, deep nesting, unknown
//! members) passes untouched.

pub mod scan;

use std::borrow::Cow;
use std::ops::Range;

use serde::Serialize;

pub use scan::Malformed;

/// The text is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is not a request, or not one that may come now.
pub const INVALID_REQUEST: i32 = -32600;
/// Nobody answers this method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The parameters make no sense.
pub const INVALID_PARAMS: i32 = -32602;
/// Something broke on the way, not in the request.
pub const INTERNAL_ERROR: i32 = -32603;

/// A raw piece of a message and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    /// The JSON as it was written, without surrounding white space.
    pub raw: &'a str,
    /// Offset of its first byte in the message.
    pub at: usize,
}

impl Slice<'_> {
    /// The bytes of the message it covers.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.raw.len()
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has a result or an error.
    Response,
}

/// One message, split into the members that JSON-RPC names. Others are kept in the text and not looked at.
#[derive(Clone, Debug)]
pub struct Envelope<'a> {
    /// The whole message.
    pub text: &'a str,
    /// What it is.
    pub kind: Kind,
    /// The id; `null` only in a response.
    pub id: Option<Slice<'a>>,
    /// The method, unescaped.
    pub method: Cow<'a, str>,
    /// The parameters of a request or notification.
    pub params: Option<Slice<'a>>,
    /// The result of a response.
    pub result: Option<Slice<'a>>,
    /// The error of a response.
    pub error: Option<Slice<'a>>,
}

impl<'a> Envelope<'a> {
    /// Splits a message whose values nest at most `max_depth` levels deep.
    ///
    /// Refuses what is no JSON, a batch, a duplicate member, and an object that is neither request, notification nor
    /// response of JSON-RPC 2.0.
    pub fn parse(text: &'a str, max_depth: usize) -> Result<Self, Malformed> {
        let (mut version, mut method) = (None, None);
        let (mut id, mut params, mut result, mut error) = (None, None, None, None);
        scan::object(text, max_depth, |key, value| {
            let slot = match key {
                "jsonrpc" => &mut version,
                "method" => &mut method,
                "id" => &mut id,
                "params" => &mut params,
                "result" => &mut result,
                "error" => &mut error,
                _ => return Ok(()),
            };
            if slot.replace(value).is_some() {
                return Err(Malformed::Duplicate(key.to_owned()));
            }
            Ok(())
        })?;
        if version.is_none_or(|v: Slice<'_>| v.raw != "\"2.0\"") {
            return Err(Malformed::Envelope("member \"jsonrpc\" must be \"2.0\""));
        }
        let method = match method {
            Some(m) => Some(string(m.raw).ok_or(Malformed::Envelope("member \"method\" must be a string"))?),
            None => None,
        };
        let kind = match (&method, id, result.is_some(), error.is_some()) {
            (Some(_), Some(id), false, false) if is_id(id.raw) => Kind::Request,
            (Some(_), Some(_), false, false) => {
                return Err(Malformed::Envelope("member \"id\" must be a string or a number"));
            }
            (Some(_), None, false, false) => Kind::Notification,
            (None, Some(id), true, false) if is_id(id.raw) => Kind::Response,
            (None, _, false, true) if id.is_none_or(|i| is_id(i.raw) || i.raw == "null") => Kind::Response,
            (None, _, false, false) => return Err(Malformed::Envelope("needs a method, a result or an error")),
            _ => return Err(Malformed::Envelope("is neither a request nor a notification nor a response")),
        };
        Ok(Self { text, kind, id, method: method.unwrap_or_default(), params, result, error })
    }
}

/// Whether a raw value may be the id of a request.
fn is_id(raw: &str) -> bool {
    raw.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

/// The text of a raw JSON string; `None` if the value is of another type, or has a lone surrogate.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// The member of a raw object under a key; `None` too when the value is no object. `base` is the object's offset in
/// its message, which the result's offset counts from.
pub fn member<'a>(object: Slice<'a>, key: &str) -> Option<Slice<'a>> {
    let mut found = None;
    scan::object(object.raw, usize::MAX, |k, v| {
        if k == key {
            found = Some(Slice { raw: v.raw, at: object.at + v.at });
        }
        Ok(())
    })
    .ok()?;
    found
}

/// Writes a message with some spans replaced, as one line: a raw line feed or carriage return can only be white space
/// in valid JSON, and becomes a space. `edits` stand in the order of the text and don't overlap. No newline at the end.
pub fn splice(text: &str, edits: &[(Range<usize>, &str)]) -> Vec<u8> {
    let extra: usize = edits.iter().map(|(_, new)| new.len()).sum();
    // One byte more: the caller appends the newline without another allocation.
    let mut out = Vec::with_capacity(text.len() + extra + 1);
    let mut from = 0;
    for (range, new) in edits {
        out.extend_from_slice(&text.as_bytes()[from..range.start]);
        out.extend_from_slice(new.as_bytes());
        from = range.end;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
    for b in &mut out {
        *b = if *b == b'\n' || *b == b'\r' { b' ' } else { *b };
    }
    out
}

/// An error response. `id` is the raw id of the request, `None` when it could not be told (the id is then `null`).
pub fn error_response<D: Serialize>(id: Option<&str>, code: i32, message: &str, data: Option<&D>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Error<'a, D> {
        code: i32,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a D>,
    }
    // These types always serialise; an empty object stays valid JSON all the same.
    let error = serde_json::to_string(&Error { code, message, data }).unwrap_or_else(|_| "{}".into());
    let id = id.unwrap_or("null");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}").into_bytes()
}

/// An error response without data.
pub fn plain_error(id: Option<&str>, code: i32, message: &str) -> Vec<u8> {
    error_response::<()>(id, code, message, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Envelope<'_>, Malformed> {
        Envelope::parse(text, 512)
    }

    #[test]
    fn kinds_and_raw_slices() {
        let e = parse(r#" {"jsonrpc":"2.0", "id" : 1.0 ,"method":"tools\/call","params":{"a":12345678901234567890}} "#)
            .unwrap();
        assert_eq!((e.kind, e.id.unwrap().raw, &*e.method), (Kind::Request, "1.0", "tools/call"));
        assert_eq!(&e.text[e.params.unwrap().range()], r#"{"a":12345678901234567890}"#);
        assert_eq!(parse(r#"{"jsonrpc":"2.0","method":"x"}"#).unwrap().kind, Kind::Notification);
        assert_eq!(parse(r#"{"jsonrpc":"2.0","id":"a","result":null}"#).unwrap().result.unwrap().raw, "null");
        assert_eq!(parse(r#"{"jsonrpc":"2.0","id":null,"error":{}}"#).unwrap().kind, Kind::Response);
        assert_eq!(parse(r#"{"jsonrpc":"2.0","error":{}}"#).unwrap().kind, Kind::Response);
        assert_eq!(parse(r#"{"jsonrpc":"2.0","\u0069d":7,"method":"x"}"#).unwrap().id.unwrap().raw, "7");
    }

    #[test]
    fn what_is_no_message_says_why() {
        for (text, why) in [
            (r#"{"id":1,"method":"x"}"#, "jsonrpc"),
            (r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#, "jsonrpc"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, "\"id\""),
            (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, "\"id\""),
            (r#"{"jsonrpc":"2.0","id":1,"method":3}"#, "\"method\""),
            (r#"{"jsonrpc":"2.0","id":1}"#, "needs a method"),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, "neither"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, "twice"),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, "batch"),
            ("7", "object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn splice_replaces_spans_and_newlines_only() {
        let text = "{\r\n \"jsonrpc\":\"2.0\",\"id\":\"a\\nb\",\n\"method\":\"x\"}";
        let id = parse(text).unwrap().id.unwrap();
        assert_eq!(
            String::from_utf8(splice(text, &[(id.range(), "17")])).unwrap(),
            "{   \"jsonrpc\":\"2.0\",\"id\":17, \"method\":\"x\"}"
        );
    }

    #[test]
    fn nested_members_keep_offsets() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":1,"_meta":{"progressToken": "t" }}}"#;
        let params = parse(text).unwrap().params.unwrap();
        let token = member(member(params, "_meta").unwrap(), "progressToken").unwrap();
        assert_eq!(&text[token.range()], "\"t\"");
        assert_eq!(member(params, "nope"), None);
        assert_eq!(member(token, "x"), None);
    }

    #[test]
    fn errors_keep_the_raw_id() {
        let e = error_response(Some("1.0"), INTERNAL_ERROR, "no \"luck\"", Some(&serde_json::json!({"reason": "x"})));
        assert_eq!(
            String::from_utf8(e).unwrap(),
            r#"{"jsonrpc":"2.0","id":1.0,"error":{"code":-32603,"message":"no \"luck\"","data":{"reason":"x"}}}"#
        );
        assert!(String::from_utf8(plain_error(None, PARSE_ERROR, "m")).unwrap().contains("\"id\":null"));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".*", inner, 0..6).prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_message_differs_in_the_spliced_span_only(params in value(), pretty in any::<bool>(), id in any::<u64>()) {
            let message = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "m", "params": params});
            let text = if pretty { serde_json::to_string_pretty(&message) } else { serde_json::to_string(&message) }.unwrap();
            let envelope = Envelope::parse(&text, 512).unwrap();
            let line = String::from_utf8(splice(&text, &[(envelope.id.unwrap().range(), "\"new\"")])).unwrap();
            prop_assert!(!line.contains('\n'));
            // Both sides go through the same reader, which rounds some floats.
            let mut want: serde_json::Value = serde_json::from_str(&text).unwrap();
            want["id"] = "new".into();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), want);
        }

        #[test]
        fn agrees_with_a_typed_parser_on_any_text(text in "[\\[\\]{}\",:0-9eE+\\-. truefalsn\\\\u]{0,40}") {
            // A lone surrogate is the one thing this scanner takes and a typed parser does not.
            let typed = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(scan::check(&text, 512).is_ok(), typed, "{}", text);
        }
    }
}
