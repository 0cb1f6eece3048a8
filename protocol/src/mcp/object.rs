//! Edits of raw JSON objects inside a message: members taken out and put in, every other byte kept.

use std::borrow::Cow;
use std::ops::Range;

use crate::jsonrpc::{Slice, scan, splice};

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its key, unescaped.
    pub key: Cow<'a, str>,
    /// Offset of the key's opening quote in the message.
    pub at: usize,
    /// Its value.
    pub value: Slice<'a>,
}

/// An object inside a message, split into its members in their order.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    at: usize,
    members: Vec<Member<'a>>,
}

impl<'a> Object<'a> {
    /// Splits a value; `None` when it is no object.
    pub fn read(value: Slice<'a>) -> Option<Self> {
        let mut members = Vec::new();
        scan::members(value.raw, usize::MAX, |key, at, slice| {
            let slice = Slice { raw: slice.raw, at: value.at + slice.at };
            members.push(Member { key, at: value.at + at, value: slice });
            Ok(())
        })
        .ok()?;
        Some(Self { at: value.at, members })
    }

    /// Its members in their order.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The value under a key; of two with one key, the last.
    pub fn get(&self, key: &str) -> Option<Slice<'a>> {
        self.members.iter().rev().find(|m| m.key == key).map(|m| m.value)
    }

    /// The string under a key.
    pub fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(|v| crate::jsonrpc::string(v.raw))
    }
}

/// The elements of an array inside a message; `None` when the value is no array.
pub fn elements(array: Slice<'_>) -> Option<Vec<Slice<'_>>> {
    let mut out = Vec::new();
    scan::elements(array.raw, usize::MAX, |e| {
        out.push(Slice { raw: e.raw, at: array.at + e.at });
        Ok(())
    })
    .ok()?;
    Some(out)
}

/// Changes to one message, gathered in any order.
///
/// ```
/// use outrigger_protocol::jsonrpc::Slice;
/// use outrigger_protocol::mcp::object::{Edits, Object};
///
/// let text = r#"{"a": 1, "b": 2}"#;
/// let object = Object::read(Slice { raw: text, at: 0 }).unwrap();
/// let mut edits = Edits::default();
/// edits.members(&object, |key| key == "a", r#""c":3"#);
/// assert_eq!(edits.apply(text), br#"{"c":3,"b": 2}"#);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Edits<'e>(Vec<(Range<usize>, Cow<'e, str>)>);

impl<'e> Edits<'e> {
    /// Replaces a span. Spans must not overlap.
    pub fn replace(&mut self, range: Range<usize>, new: impl Into<Cow<'e, str>>) {
        self.0.push((range, new.into()));
    }

    /// Takes the members out whose key `remove` is true for, and puts `insert` in front of the others: members without
    /// braces and outer commas, such as `"a":1,"b":2`, or nothing.
    pub fn members(&mut self, object: &Object<'_>, remove: impl Fn(&str) -> bool, insert: &str) {
        let members = &object.members;
        let mut kept = None;
        let mut i = 0;
        while i < members.len() {
            if !remove(&members[i].key) {
                kept = Some(i);
                i += 1;
                continue;
            }
            let run = members[i..].iter().take_while(|m| remove(&m.key)).count();
            let last = i + run - 1;
            // With the comma in front of them; there is none in front of the first.
            let range = match (kept, members.get(last + 1)) {
                (Some(before), _) => members[before].value.range().end..members[last].value.range().end,
                (None, Some(next)) => members[i].at..next.at,
                (None, None) => members[i].at..members[last].value.range().end,
            };
            self.replace(range, "");
            i += run;
        }
        if !insert.is_empty() {
            let any = members.iter().any(|m| !remove(&m.key));
            let at = object.at + 1;
            self.replace(at..at, format!("{insert}{}", if any { "," } else { "" }));
        }
    }

    /// The message with all changes, as one line without its newline.
    pub fn apply(mut self, text: &str) -> Vec<u8> {
        // An insertion comes before the removal that begins where it stands.
        self.0.sort_by_key(|(range, _)| (range.start, range.end));
        let edits: Vec<(Range<usize>, &str)> = self.0.iter().map(|(range, new)| (range.clone(), &**new)).collect();
        splice(text, &edits)
    }
}

/// A text as a raw JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edited(text: &str, remove: &[&str], insert: &str) -> String {
        let object = Object::read(Slice { raw: text, at: 0 }).unwrap();
        let mut edits = Edits::default();
        edits.members(&object, |k| remove.contains(&k), insert);
        String::from_utf8(edits.apply(text)).unwrap()
    }

    #[test]
    fn members_go_with_their_comma() {
        let text = "{ \"a\" : 1 , \"b\":[2], \"c\":{} }";
        for (remove, insert, want) in [
            (&[][..], "", "{ \"a\" : 1 , \"b\":[2], \"c\":{} }"),
            (&["a"], "", "{ \"b\":[2], \"c\":{} }"),
            (&["b"], "", "{ \"a\" : 1, \"c\":{} }"),
            (&["c"], "", "{ \"a\" : 1 , \"b\":[2] }"),
            (&["a", "b"], "", "{ \"c\":{} }"),
            (&["b", "c"], "", "{ \"a\" : 1 }"),
            (&["a", "c"], "", "{ \"b\":[2] }"),
            (&["a", "b", "c"], "", "{  }"),
            (&["a", "b", "c"], "\"x\":1", "{\"x\":1  }"),
            (&["a"], "\"x\":1", "{\"x\":1, \"b\":[2], \"c\":{} }"),
        ] {
            assert_eq!(edited(text, remove, insert), want, "{remove:?} {insert}");
        }
        assert_eq!(edited("{}", &["a"], "\"x\":1"), "{\"x\":1}");
        assert_eq!(edited("{\"\\u0061\":1,\"a\":2,\"b\":\"\\ud800\"}", &["a"], ""), "{\"b\":\"\\ud800\"}");
    }

    #[test]
    fn values_are_found() {
        let text = "{\"a\":\"x\\n\",\"n\":[1, {}],\"a\":\"y\"}";
        let object = Object::read(Slice { raw: text, at: 0 }).unwrap();
        assert_eq!(object.text("a").as_deref(), Some("y"));
        let parts = elements(object.get("n").unwrap()).unwrap();
        assert_eq!((&text[parts[0].range()], &text[parts[1].range()]), ("1", "{}"));
        assert!(object.text("n").is_none() && elements(object.get("a").unwrap()).is_none());
        assert!(Object::read(Slice { raw: "[]", at: 0 }).is_none());
        assert_eq!(quoted("a\"\u{1}"), "\"a\\\"\\u0001\"");
    }

    proptest! {
        #[test]
        fn what_is_left_reads_as_before(
            members in prop::collection::btree_map("[a-f]{1,2}", any::<i64>(), 0..8),
            remove in prop::collection::vec("[a-f]{1,2}", 0..6),
            pretty in any::<bool>(),
            insert in any::<bool>(),
        ) {
            let text = if pretty { serde_json::to_string_pretty(&members) } else { serde_json::to_string(&members) }.unwrap();
            let remove: Vec<&str> = remove.iter().map(String::as_str).collect();
            let got = edited(&text, &remove, if insert { "\"new\":0" } else { "" });
            let mut want = members.clone();
            want.retain(|k, _| !remove.contains(&k.as_str()));
            if insert {
                want.insert("new".into(), 0);
            }
            prop_assert_eq!(serde_json::from_str::<std::collections::BTreeMap<String, i64>>(&got).unwrap(), want);
        }
    }
}
