//! Parts of messages and artifacts: checked, never re-typed (A2A 1.0, section 4.1.6).

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::errors::{Error, Kind as ErrorKind, Violation};
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

/// Media types that an agent takes: the `defaultInputModes` of its card and the `inputModes` of its skills. One may be
/// a range such as `text/*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modes(Vec<String>);

impl Modes {
    /// Reads them from a card; with none at all everything is taken.
    pub fn of_card(card: &Value) -> Self {
        let list = |of: &Value, key: &str| {
            let list = of.get(key).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(essence).collect::<Vec<_>>()
        };
        let skills = card.get("skills").and_then(Value::as_array).into_iter().flatten();
        let mut all = list(card, "defaultInputModes");
        all.extend(skills.flat_map(|skill| list(skill, "inputModes")));
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// Whether a media type is one of them; parameters such as `charset` do not matter.
    pub fn take(&self, media_type: &str) -> bool {
        let wanted = essence(media_type);
        self.0.is_empty()
            || self.0.iter().any(|mode| match mode.strip_suffix("/*") {
                Some("*") => true,
                Some(kind) => wanted.split('/').next() == Some(kind),
                None => mode == "*" || *mode == wanted,
            })
    }

    /// Refuses a list of parts with a media type that is not one of them. A part without one is not looked at.
    pub fn check(&self, parts: &RawValue) -> Result<(), Error> {
        for part in elements(parts.get()).unwrap_or_default() {
            let members = Members::split(part.get()).and_then(|mut m| m.camel(&["mediaType"]).map(|_| m));
            let media_type = members.ok().and_then(|m| m.set("mediaType").and_then(text_of));
            if let Some(media_type) = media_type.filter(|t| !t.is_empty() && !self.take(t)) {
                let shown: String = media_type.chars().take(100).collect();
                return Err(Error::new(
                    ErrorKind::ContentTypeNotSupported,
                    format!("the media type {shown:?} is not taken, {} is", self.0.join(", ")),
                )
                .with("mediaType", shown));
            }
        }
        Ok(())
    }
}

fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
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
    fn media_types_of_parts() {
        let card = serde_json::json!({"defaultInputModes": ["text/plain; charset=utf-8", "Image/*"], "skills": [{"inputModes": ["application/json"]}, {}]});
        let modes = Modes::of_card(&card);
        let check = |parts: &'static str| modes.check(serde_json::from_str(parts).unwrap());
        for ok in [
            r#"[{"text":"a"},{"text":"a","mediaType":""},{"text":"a","mediaType":"TEXT/plain;charset=x"}]"#,
            r#"[{"url":"u","media_type":"image/png"},{"data":1,"mediaType":"application/json"}]"#,
        ] {
            assert_eq!(check(ok), Ok(()));
        }
        for bad in ["text/html", "imagex/png", "application/json-seq", "text"] {
            let parts = format!(r#"[{{"text":"a"}},{{"text":"a","mediaType":"{bad}"}}]"#);
            let e = modes.check(serde_json::from_str(&parts).unwrap()).unwrap_err();
            assert!(e.kind == ErrorKind::ContentTypeNotSupported && e.message.contains(bad), "{e}");
        }
        for all in [
            serde_json::json!({}),
            serde_json::json!({"defaultInputModes": ["*/*"]}),
            serde_json::json!({"defaultInputModes": ["*"]}),
        ] {
            assert!(Modes::of_card(&all).take("text/html"));
        }
    }

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
