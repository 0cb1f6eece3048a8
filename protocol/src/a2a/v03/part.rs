//! Parts: text, files and data, whose shape differs most.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::value::RawValue;

use super::node::{Bad, Form, Way, split};
use crate::a2a::raw::{self, Kind, Members, push_key, push_text, text_of};

/// Marks data that was wrapped because 0.3 has objects only; both SDKs know it.
const WRAPPED: &str = "data_part_compat";
/// Members that say what a part holds, in any version: only the one that counts may be passed on.
const CONTENTS: [&str; 7] = ["kind", "text", "file", "data", "raw", "url", "part"];

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// Appends a part in the other version.
pub(super) fn part(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    match form.way {
        Way::In => part_in(value, form, out),
        Way::Out => part_out(value, form, out),
    }
}

/// The members that every part may have, and those that nobody knows.
fn rest(members: &Members<'_>, without: &[&str], out: &mut String) {
    for (key, value) in members.iter().filter(|(k, _)| !CONTENTS.contains(k) && !without.contains(k)) {
        push_key(out, key);
        out.push_str(value.get());
    }
}

fn part_in(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &["mediaType"])?;
    let kind = match members.get("kind").filter(|_| !form.proto) {
        Some(kind) => text_of(kind).unwrap_or_default(),
        // Some clients leave it out where the other member says it.
        None => ["text", "file", "data"].into_iter().find(|k| members.get(k).is_some()).unwrap_or_default().into(),
    };
    let content = |key: &str| members.get(key).ok_or_else(|| Bad::new("is missing").under(key));
    out.push('{');
    match &*kind {
        "text" => {
            push_key(out, "text");
            out.push_str(content("text")?.get());
            rest(&members, &[], out);
        }
        "file" => file_in(&members, content("file")?, form, out).map_err(|b| b.under("file"))?,
        "data" => {
            let mut data = content("data")?;
            if form.proto {
                let inner = split(data, &[]).map_err(|b| b.under("data"))?;
                data = inner.get("data").ok_or_else(|| Bad::new("is missing").under("data").under("data"))?;
            }
            data_in(&members, data, out);
        }
        _ if form.proto => return Err(Bad::new("must have one of text, file, data")),
        _ => return Err(Bad::new("must be text, file or data").under("kind")),
    }
    out.push('}');
    Ok(())
}

fn data_in(members: &Members<'_>, data: &RawValue, out: &mut String) {
    let metadata = members.set("metadata").and_then(|m| Members::split(m.get()).ok()).unwrap_or_default();
    let marked = metadata.get(WRAPPED).is_some_and(|m| m.get() == "true");
    let inner = marked.then(|| Members::split(data.get()).ok()?.get("value")).flatten();
    push_key(out, "data");
    let Some(inner) = inner else {
        out.push_str(data.get());
        return rest(members, &[], out);
    };
    out.push_str(inner.get());
    rest(members, &["metadata"], out);
    if metadata.iter().any(|(k, _)| k != WRAPPED) {
        push_key(out, "metadata");
        out.push('{');
        for (key, value) in metadata.iter().filter(|(k, _)| *k != WRAPPED) {
            push_key(out, key);
            out.push_str(value.get());
        }
        out.push('}');
    }
}

fn file_in(members: &Members<'_>, file: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let file = split(file, &["mimeType", "fileWithUri", "fileWithBytes"])?;
    let (uri, bytes) = if form.proto { ("fileWithUri", "fileWithBytes") } else { ("uri", "bytes") };
    match (file.set(uri), file.set(bytes)) {
        (Some(value), None) => {
            push_key(out, "url");
            out.push_str(value.get());
        }
        (None, Some(value)) => {
            push_key(out, "raw");
            match decoded_once(value).filter(|_| form.proto && form.quirks.legacy_python_file_bytes) {
                Some(text) => push_text(out, &text),
                None => out.push_str(value.get()),
            }
        }
        _ => return Err(Bad::new(format!("must have exactly one of {bytes}, {uri}"))),
    }
    let known = [uri, bytes, "name", "mimeType"];
    for (from, to) in [("name", "filename"), ("mimeType", "mediaType")] {
        if let Some(value) = file.set(from) {
            push_key(out, to);
            out.push_str(value.get());
        }
    }
    let names = ["filename", "mediaType"];
    // What nobody knows in the file moves to the part, where 1.0 has what belongs to the file.
    for (key, value) in file.iter() {
        if !known.contains(&key) && !CONTENTS.contains(&key) && !names.contains(&key) && members.get(key).is_none() {
            push_key(out, key);
            out.push_str(value.get());
        }
    }
    rest(members, &names, out);
    Ok(())
}

/// Bytes that are base64 text themselves, as that text.
fn decoded_once(value: &RawValue) -> Option<String> {
    let text = text_of(value)?;
    let text: String = text
        .chars()
        .map(|c| {
            if c == '-' {
                '+'
            } else if c == '_' {
                '/'
            } else {
                c
            }
        })
        .collect();
    let inner = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    (!inner.is_empty() && inner.len().is_multiple_of(4) && STANDARD.decode(&inner).is_ok()).then_some(inner)
}

fn part_out(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &["mediaType"])?;
    let kind = |out: &mut String, name: &str| {
        if !form.proto {
            push_key(out, "kind");
            push_text(out, name);
        }
    };
    out.push('{');
    if let Some(text) = members.set("text") {
        kind(out, "text");
        push_key(out, "text");
        out.push_str(text.get());
        rest(&members, &[], out);
    } else if let Some((name, content)) = ["raw", "url"].iter().find_map(|k| Some((*k, members.set(k)?))) {
        kind(out, "file");
        push_key(out, "file");
        out.push('{');
        push_key(
            out,
            match (name, form.proto) {
                ("raw", true) => "fileWithBytes",
                ("raw", false) => "bytes",
                (_, true) => "fileWithUri",
                (_, false) => "uri",
            },
        );
        out.push_str(content.get());
        for (from, to) in [("filename", "name"), ("mediaType", "mimeType")] {
            if let Some(value) = members.set(from) {
                push_key(out, to);
                out.push_str(value.get());
            }
        }
        out.push('}');
        rest(&members, &["filename", "mediaType"], out);
    } else if let Some(data) = members.get("data") {
        kind(out, "data");
        data_out(&members, data, form, out);
    } else {
        return Err(Bad::new("must have one of text, raw, url, data"));
    }
    out.push('}');
    Ok(())
}

fn data_out(members: &Members<'_>, data: &RawValue, form: Form, out: &mut String) {
    let metadata = members.set("metadata").and_then(|m| Members::split(m.get()).ok());
    // A mark that is the user's own would have the data unwrapped by a reader.
    let marked = metadata.as_ref().is_some_and(|m| m.get(WRAPPED).is_some());
    let wrap = marked || raw::kind(data.get()) != Kind::Object;
    push_key(out, "data");
    out.push_str(match (form.proto, wrap) {
        (true, true) => "{\"data\":{\"value\":",
        (true, false) => "{\"data\":",
        (false, true) => "{\"value\":",
        (false, false) => "",
    });
    out.push_str(data.get());
    out.push_str(&"}"[..usize::from(wrap)]);
    out.push_str(&"}"[..usize::from(form.proto)]);
    if !wrap {
        return rest(members, &[], out);
    }
    rest(members, &["metadata"], out);
    push_key(out, "metadata");
    out.push('{');
    for (key, value) in metadata.iter().flat_map(Members::iter).filter(|(k, _)| *k != WRAPPED) {
        push_key(out, key);
        out.push_str(value.get());
    }
    push_key(out, WRAPPED);
    out.push_str("true}");
}
