//! JSON that keeps its bytes: texts, splitting into members and elements, depth, writing.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deepest nesting of objects and lists that is read anywhere in A2A.
pub const MAX_DEPTH: usize = 128;

/// One JSON value as text, shared: a clone copies no text.
#[derive(Clone, PartialEq, Eq)]
pub struct Raw(Arc<str>);

impl Raw {
    /// Copies a value that was split off a larger text.
    pub fn copy(value: &RawValue) -> Self {
        Self(value.get().into())
    }

    /// Takes text that was put together from valid JSON.
    pub(crate) fn assembled(text: &str) -> Self {
        debug_assert!(serde_json::from_str::<&RawValue>(text).is_ok(), "not JSON: {text}");
        Self(text.into())
    }

    /// Takes a piece of valid JSON: values of a list, joined by commas.
    pub(crate) fn fragment(text: &str) -> Self {
        Self(text.into())
    }

    /// Takes JSON text from a place that only holds what was valid JSON once, such as a database.
    pub fn parse(text: &str) -> Result<Self, SplitError> {
        serde_json::from_str::<&RawValue>(text).map_err(|e| SplitError::Syntax(e.to_string()))?;
        Ok(Self(text.into()))
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Bytes of the JSON text.
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A JSON object split into its members, in their order, values untouched.
#[derive(Debug, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// Why a text does not split.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SplitError {
    /// Another kind of value.
    #[error("must be {0}")]
    Kind(&'static str),
    /// One member stands twice: receivers would disagree about its value.
    #[error("has the member {0:?} twice")]
    Twice(String),
    /// No JSON.
    #[error("is no JSON: {0}")]
    Syntax(String),
}

impl<'a> Members<'a> {
    /// Splits an object.
    pub fn split(text: &'a str) -> Result<Self, SplitError> {
        if kind(text) != Kind::Object {
            // Not JSON at all is the more basic fault.
            serde_json::from_str::<&RawValue>(text).map_err(|e| SplitError::Syntax(e.to_string()))?;
            return Err(SplitError::Kind("an object"));
        }
        let members: Self = serde_json::from_str(text).map_err(|e| SplitError::Syntax(e.to_string()))?;
        members.twice().map_or(Ok(()), |key| Err(SplitError::Twice(key)))?;
        Ok(members)
    }

    fn twice(&self) -> Option<String> {
        if self.0.len() <= 16 {
            let mut rest = self.0.iter();
            while let Some((key, _)) = rest.next() {
                if rest.clone().any(|(other, _)| other == key) {
                    return Some(key.to_string());
                }
            }
            return None;
        }
        let mut seen = std::collections::HashSet::with_capacity(self.0.len());
        self.0.iter().find(|(key, _)| !seen.insert(key)).map(|(key, _)| key.to_string())
    }

    /// The value of a member; `null` counts as a value.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| *v)
    }

    /// The value of a member that is there and not `null`.
    pub fn set(&self, key: &str) -> Option<&'a RawValue> {
        self.get(key).filter(|v| kind(v.get()) != Kind::Null)
    }

    /// Members in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(k, v)| (k.as_ref(), *v))
    }

    /// Whether the object has no member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Brings the `snake_case` spelling of the given members, which `ProtoJSON` allows, to camelCase.
    /// Says whether anything changed.
    pub fn camel(&mut self, known: &[&'static str]) -> Result<bool, SplitError> {
        let mut changed = false;
        for (key, _) in &mut self.0 {
            if !key.contains('_') {
                continue;
            }
            if let Some(name) = known.iter().find(|name| is_snake_of(key, name)) {
                *key = Cow::Borrowed(name);
                changed = true;
            }
        }
        if changed {
            self.twice().map_or(Ok(()), |key| Err(SplitError::Twice(key)))?;
        }
        Ok(changed)
    }
}

/// Whether a name is the `snake_case` of another one, which is in camelCase.
pub(crate) fn is_snake_of(snake: &str, camel: &str) -> bool {
    let mut rest = snake.bytes();
    camel.bytes().all(|c| {
        if c.is_ascii_uppercase() {
            rest.next() == Some(b'_') && rest.next() == Some(c.to_ascii_lowercase())
        } else {
            rest.next() == Some(c)
        }
    }) && rest.next().is_none()
}

struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(v.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        d.deserialize_map(V)
    }
}

/// Splits a list into its elements.
pub fn elements(text: &str) -> Result<Vec<&RawValue>, SplitError> {
    if kind(text) != Kind::List {
        serde_json::from_str::<&RawValue>(text).map_err(|e| SplitError::Syntax(e.to_string()))?;
        return Err(SplitError::Kind("a list"));
    }
    serde_json::from_str(text).map_err(|e| SplitError::Syntax(e.to_string()))
}

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{}`
    Object,
    /// `[]`
    List,
    /// `""`
    Text,
    /// `1`
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
    /// Nothing, or no JSON.
    Nothing,
}

/// Kind of the value that begins a text; the rest is not looked at.
pub fn kind(text: &str) -> Kind {
    match text.trim_start_matches([' ', '\t', '\n', '\r']).as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::List,
        Some(b'"') => Kind::Text,
        Some(b't' | b'f') => Kind::Bool,
        Some(b'n') => Kind::Null,
        Some(b'-' | b'0'..=b'9') => Kind::Number,
        _ => Kind::Nothing,
    }
}

/// The characters of a JSON string; `None` for another kind of value and for a lone surrogate.
pub fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(value.get()).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Whether objects and lists are nested at most `max` deep. Needs no valid JSON: run it before a parser that recurses.
pub fn depth_within(text: &[u8], max: usize) -> bool {
    let (mut depth, mut in_text, mut i) = (0_usize, false, 0);
    while let Some(&byte) = text.get(i) {
        if in_text {
            match byte {
                b'\\' => i += 1,
                b'"' => in_text = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => in_text = true,
                b'{' | b'[' => {
                    depth += 1;
                    if depth > max {
                        return false;
                    }
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        i += 1;
    }
    true
}

/// Appends a JSON string.
pub fn push_text(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|b| b < 0x20 || b == b'"' || b == b'\\') {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            other => {
                let _ = fmt::Write::write_fmt(out, format_args!("\\u{other:04x}"));
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Appends `"key":`, after a comma unless the object just began.
pub fn push_key(out: &mut String, key: &str) {
    if !out.ends_with(['{', '[']) {
        out.push(',');
    }
    push_text(out, key);
    out.push(':');
}

/// Appends texts as a JSON list.
pub fn push_list<'a>(out: &mut String, items: impl Iterator<Item = &'a str>) {
    out.push('[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_keep_order_and_bytes() {
        let text = r#" {"b": 1.0, "a":12345678901234567890, "\u0063": {"x" : null}} "#;
        let m = Members::split(text).unwrap();
        let got: Vec<_> = m.iter().map(|(k, v)| (k.to_owned(), v.get())).collect();
        assert_eq!(got, [("b".into(), "1.0"), ("a".into(), "12345678901234567890"), ("c".into(), r#"{"x" : null}"#)]);
    }

    #[test]
    fn split_says_what_is_wrong() {
        assert_eq!(Members::split("[]").unwrap_err(), SplitError::Kind("an object"));
        assert_eq!(Members::split(r#"{"a":1,"a":2}"#).unwrap_err(), SplitError::Twice("a".into()));
        assert!(matches!(Members::split(r#"{"a":"#), Err(SplitError::Syntax(_))));
        assert!(matches!(Members::split("{} {}"), Err(SplitError::Syntax(_))));
        assert!(matches!(Members::split("<html>"), Err(SplitError::Syntax(_))));
        let many = (0..40).map(|i| format!("\"k{i}\":0,")).collect::<Vec<_>>().concat();
        assert_eq!(Members::split(&format!("{{{many}\"k7\":1}}")).unwrap_err(), SplitError::Twice("k7".into()));
        assert_eq!(elements("{}").unwrap_err(), SplitError::Kind("a list"));
    }

    #[test]
    fn snake_case_is_brought_to_camel_case() {
        let mut m = Members::split(r#"{"message_id":"1","other_key":2}"#).unwrap();
        assert!(m.camel(&["messageId", "taskId"]).unwrap());
        assert!(m.get("messageId").is_some() && m.get("other_key").is_some());
        let mut m = Members::split(r#"{"message_id":"1","messageId":"2"}"#).unwrap();
        assert_eq!(m.camel(&["messageId"]).unwrap_err(), SplitError::Twice("messageId".into()));
    }

    #[test]
    fn depth_is_found_without_recursion() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(!depth_within(deep.as_bytes(), MAX_DEPTH) && depth_within(deep.as_bytes(), 10_000));
        assert!(depth_within(br#"{"a":"[[[[\"[[["}"#, 1) && !depth_within(br#"{"a":[]}"#, 1));
        // A splitter that recursed would end the process here.
        assert!(serde_json::from_str::<&RawValue>(&deep).is_ok());
    }

    proptest! {
        #[test]
        fn written_text_reads_back(s in any::<String>()) {
            let mut out = String::new();
            push_text(&mut out, &s);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), s.clone());
            let raw: &RawValue = serde_json::from_str(&out).unwrap();
            prop_assert_eq!(text_of(raw).unwrap(), s);
        }

        #[test]
        fn depth_agrees_with_a_count(levels in 0_usize..300) {
            let text = r#"{"a":"#.repeat(levels) + "\"}\"" + &"}".repeat(levels);
            prop_assert_eq!(depth_within(text.as_bytes(), MAX_DEPTH), levels <= MAX_DEPTH);
        }

        #[test]
        fn any_bytes_are_survived(s in any::<String>()) {
            let _ = Members::split(&s).is_ok();
            let _ = elements(&s).is_ok();
            let _ = depth_within(s.as_bytes(), 3);
        }
    }
}
