//! Parts of messages and artifacts: checked, never re-typed (A2A 1.0, section 4.1.6).

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::errors::Violation;
use super::raw::{self, Kind, Members, elements, text_of};

/// Most parts in one message or artifact.
pub const MAX_PARTS: usize = 1_000;

/// Collects violations under a path.
pub(crate) fn violation(out: &mut Vec<Violation>, field: impl Into<String>, description: impl Into<String>) {
    out.push(Violation { field: field.into(), description: description.into() });
}

/// Checks a list of parts and gives its text parts joined by line feeds.
///
/// `path` names the list in violations, such as `message.parts`.
pub fn check_parts<'a>(list: &'a RawValue, path: &str, out: &mut Vec<Violation>) -> Cow<'a, str> {
    let parts = match elements(list.get()) {
        Ok(parts) => parts,
        Err(e) => {
            violation(out, path, e.to_string());
            return Cow::Borrowed("");
        }
    };
    if parts.is_empty() {
        violation(out, path, "must have at least one part");
    }
    if parts.len() > MAX_PARTS {
        violation(out, path, format!("has {} parts, at most {MAX_PARTS} are taken", parts.len()));
        return Cow::Borrowed("");
    }
    let mut text: Option<Cow<'a, str>> = None;
    for (i, part) in parts.into_iter().enumerate() {
        if let Some(more) = check_part(part, path, i, out) {
            match &mut text {
                None => text = Some(more),
                Some(text) => {
                    let text = text.to_mut();
                    text.push('\n');
                    text.push_str(&more);
                }
            }
        }
    }
    text.unwrap_or_default()
}

fn check_part<'a>(part: &'a RawValue, path: &str, i: usize, out: &mut Vec<Violation>) -> Option<Cow<'a, str>> {
    let members = Members::split(part.get()).and_then(|mut m| m.camel(&["mediaType"]).map(|_| m));
    let members = match members {
        Ok(members) => members,
        Err(e) => {
            violation(out, format!("{path}[{i}]"), e.to_string());
            return None;
        }
    };
    let (mut contents, mut text) = (0, None);
    for (key, value) in members.iter() {
        let is_null = raw::kind(value.get()) == Kind::Null;
        match key {
            // A JSON null is legal data.
            "data" => contents += 1,
            _ if is_null => {}
            "text" | "raw" | "url" | "filename" | "mediaType" => {
                contents += usize::from(matches!(key, "text" | "raw" | "url"));
                match text_of(value) {
                    None => violation(out, format!("{path}[{i}].{key}"), "must be a string"),
                    Some(v) if key == "raw" && !is_base64(&v) => {
                        violation(out, format!("{path}[{i}].raw"), "must be base64");
                    }
                    Some(v) if key == "text" => text = Some(v),
                    Some(_) => {}
                }
            }
            "metadata" if raw::kind(value.get()) != Kind::Object => {
                violation(out, format!("{path}[{i}].metadata"), "must be an object");
            }
            _ => {}
        }
    }
    if contents != 1 {
        violation(out, format!("{path}[{i}]"), "must have exactly one of text, raw, url, data");
    }
    text
}

/// Standard or URL-safe alphabet, padded or not: what a `ProtoJSON` reader takes.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    text.len() - digits.len() <= 2
        && digits.len() % 4 != 1
        && digits.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn parts_and_their_faults() {
        let mut table = String::new();
        for list in [
            r#"[{"text":"a"},{"data":null},{"text":"b\n"}]"#,
            r#"[{"raw":"AAEC","filename":"b.bin","media_type":"application/octet-stream","x":1}]"#,
            r#"[{"raw":"-_8"},{"url":"https://e.example/a.png"}]"#,
            r#"[{"raw":"A"},{"raw":"****"},{"raw":7}]"#,
            r#"[{"text":"a","data":1}]"#,
            r#"[{"kind":"text"}]"#,
            r#"[{"text":null}]"#,
            r#"[{"text":7,"metadata":[],"filename":{}}]"#,
            r#"[{"text":"\ud800"}]"#,
            r#"["a",{"text":"a","text":"b"}]"#,
            "[]",
            "{}",
        ] {
            let mut out = Vec::new();
            let raw: &RawValue = serde_json::from_str(list).unwrap();
            let text = check_parts(raw, "parts", &mut out);
            let faults: Vec<_> = out.iter().map(|v| format!("{} {}", v.field, v.description)).collect();
            let _ = writeln!(table, "{list}\n    {text:?} {faults:?}");
        }
        insta::assert_snapshot!(table);
    }
}
