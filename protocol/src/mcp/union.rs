//! What the endpoint of all servers says of itself: the capabilities and instructions of its servers, put together.
//!
//! ```
//! use outrigger_protocol::mcp::union::capabilities;
//! let all = [("a", r#"{"tools":{},"x":1}"#), ("b", r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#)];
//! assert_eq!(
//!     capabilities(&all, false),
//!     r#"{"resources":{"subscribe":true},"tools":{"listChanged":true}}"#
//! );
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::object::{Object, quoted};
use crate::jsonrpc::{Slice, string};

/// Longest instructions that are put together, in bytes.
pub const MAX_INSTRUCTIONS: usize = 16 << 10;
/// Extensions, and experimental capabilities, that are put together.
const MAX_NAMED: usize = 64;
/// The lists, and the flags of each that are true when one server says so.
const LISTS: [(&str, &[&str]); 3] =
    [("prompts", &["listChanged"]), ("resources", &["listChanged", "subscribe"]), ("tools", &["listChanged"])];
/// Capabilities that are there when one server has them.
const PLAIN: [&str; 2] = ["completions", "logging"];
/// Capabilities with a member for each thing; of two servers with the same, the first says what it is like.
const NAMED: [&str; 2] = ["experimental", "extensions"];

/// The raw capabilities of all servers together, given by name and raw capabilities in the order of their names. Tasks
/// are left out, as their ids lead to no server. `changing`: whether servers may come and go, so that every list may
/// change.
pub fn capabilities(servers: &[(&str, &str)], changing: bool) -> String {
    let mut out: BTreeMap<&str, String> = BTreeMap::new();
    let objects: Vec<Object<'_>> = servers.iter().filter_map(|(_, raw)| Object::read(Slice { raw, at: 0 })).collect();
    let of = |key: &'static str| objects.iter().filter_map(move |o| o.get(key)).filter_map(Object::read);
    for (key, flags) in LISTS {
        if of(key).next().is_none() && !changing {
            continue;
        }
        let flags: Vec<String> = flags
            .iter()
            .filter(|flag| {
                changing && **flag == "listChanged" || of(key).any(|o| o.get(flag).is_some_and(|v| v.raw == "true"))
            })
            .map(|flag| format!("\"{flag}\":true"))
            .collect();
        out.insert(key, format!("{{{}}}", flags.join(",")));
    }
    for key in PLAIN {
        if of(key).next().is_some() {
            out.insert(key, "{}".into());
        }
    }
    for key in NAMED {
        let mut named: BTreeMap<String, &str> = BTreeMap::new();
        for object in of(key) {
            for member in object.members() {
                if named.len() < MAX_NAMED && member.value.raw.starts_with('{') {
                    named.entry(member.key.to_string()).or_insert(member.value.raw);
                }
            }
        }
        if !named.is_empty() {
            let members: Vec<String> = named.iter().map(|(k, v)| format!("{}:{v}", quoted(k))).collect();
            out.insert(key, format!("{{{}}}", members.join(",")));
        }
    }
    let members: Vec<String> = out.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
    format!("{{{}}}", members.join(","))
}

/// The raw instructions of all servers together, each under its name; `None` when no server has any. Given by name and
/// raw string. At most [`MAX_INSTRUCTIONS`] of text: what is longer ends with a mark.
///
/// ```
/// use outrigger_protocol::mcp::union::instructions;
/// assert_eq!(instructions(&[("time", r#""Ask me.""#)]).as_deref(), Some(r###""## time\n\nAsk me.""###));
/// ```
pub fn instructions(servers: &[(&str, &str)]) -> Option<String> {
    let mut text = String::new();
    for (server, raw) in servers {
        let Some(said) = string(raw).filter(|s| !s.trim().is_empty()) else { continue };
        let gap = if text.is_empty() { "" } else { "\n\n" };
        let _ = write!(text, "{gap}## {server}\n\n{}", said.trim_end());
        if text.len() > MAX_INSTRUCTIONS {
            let mut end = MAX_INSTRUCTIONS;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push('…');
            break;
        }
    }
    (!text.is_empty()).then(|| quoted(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_servers() {
        let servers = [
            (
                "a",
                r#"{"tools":{"listChanged":false},"logging":{},"tasks":{"list":{}},"extensions":{"e":{"n":1.0},"f":7}}"#,
            ),
            ("b", "null"),
            ("c", r#"{"prompts":{"x":1},"completions":{},"extensions":{"e":{"n":2},"g":{}},"experimental":{"q":{}}}"#),
        ];
        assert_eq!(
            capabilities(&servers, false),
            r#"{"completions":{},"experimental":{"q":{}},"extensions":{"e":{"n":1.0},"g":{}},"logging":{},"prompts":{},"tools":{}}"#
        );
        assert_eq!(capabilities(&[], false), "{}");
        assert_eq!(
            capabilities(&[("a", r#"{"resources":{"subscribe":true}}"#)], true),
            r#"{"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}}"#
        );
    }

    #[test]
    fn instructions_are_bounded() {
        assert_eq!(instructions(&[]), None);
        assert_eq!(instructions(&[("a", "\" \""), ("b", "7"), ("c", "\"\\ud800\"")]), None);
        let long = quoted(&"é".repeat(MAX_INSTRUCTIONS));
        let all = instructions(&[("a", "\"One.\\n\""), ("b", &long), ("c", "\"Never seen\"")]).unwrap();
        let text = string(&all).unwrap();
        assert!(text.starts_with("## a\n\nOne.\n\n## b\n\né") && text.ends_with("é…"), "{}", &text[..40]);
        assert!(text.len() <= MAX_INSTRUCTIONS + '…'.len_utf8());
    }
}
