//! Arguments of a tool that a modern client repeats in HTTP headers (`x-mcp-header` in the tool's `inputSchema`;
//! 2026-07-28, transports, "Custom headers").
//!
//! ```
//! use outrigger_protocol::jsonrpc::Slice;
//! use outrigger_protocol::mcp::annotation::{check, params};
//! use outrigger_protocol::mcp::header::Header;
//!
//! let schema = r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}"#;
//! let params = params(schema).unwrap();
//! assert_eq!(params[0].header(), "mcp-param-region");
//! let arguments = Slice { raw: r#"{"region":"eu"}"#, at: 0 };
//! assert!(check(&params, Some(arguments), |_| Header::Value("eu")).is_ok());
//! assert!(check(&params, Some(arguments), |_| Header::Absent).is_err());
//! ```

use std::borrow::Cow;

use super::header::{Header, decoded};
use super::object::{Object, elements};
use super::{HEADER_MISMATCH, PARAM_HEADER_PREFIX};
use crate::jsonrpc::{Slice, error_response, member, scan, string};

/// The keyword.
const KEYWORD: &str = "x-mcp-header";
/// Deepest nesting of a schema that has the keyword.
const MAX_DEPTH: usize = 64;
/// Largest schema that has the keyword, in bytes.
const MAX_SCHEMA: usize = 1 << 20;
/// Longest piece of a request that an error repeats, in characters.
const MAX_SHOWN: usize = 64;

/// Types of arguments that a header can repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `string`.
    Text,
    /// `integer`.
    Integer,
    /// `boolean`.
    Flag,
}

/// An argument that is repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    name: String,
    path: Vec<String>,
    kind: Type,
}

impl Param {
    /// Name of its header, in lower case.
    pub fn header(&self) -> String {
        format!("{PARAM_HEADER_PREFIX}{}", self.name.to_ascii_lowercase())
    }
}

/// Why a tool is not for modern clients, who would have to leave it out themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// No string, or an empty one.
    #[error("{KEYWORD} must be a string that is not empty")]
    Empty,
    /// A character that names of headers don't have.
    #[error("{KEYWORD} {0:?} has characters that the name of a header cannot have")]
    Characters(String),
    /// Two with one name.
    #[error("{KEYWORD} {0:?} stands twice")]
    Twice(String),
    /// On what is no string, integer or boolean.
    #[error("{KEYWORD} {0:?} is on what is no string, integer or boolean")]
    Type(String),
    /// Not reachable through `properties` alone.
    #[error("{KEYWORD} {0:?} is on what is not reached through \"properties\" alone")]
    Place(String),
    /// Deeper than 64 levels or larger than 1 MiB.
    #[error("a schema with {KEYWORD} is too large or nests too deeply")]
    TooLarge,
}

/// The arguments that a tool with this raw `inputSchema` has repeated in headers.
pub fn params(schema: &str) -> Result<Vec<Param>, Invalid> {
    let mut out: Vec<Param> = Vec::new();
    // Most have none. A key may be written with escapes.
    if !schema.contains(KEYWORD) && !schema.contains("\\u") {
        return Ok(out);
    }
    if schema.len() > MAX_SCHEMA || scan::check(schema, MAX_DEPTH).is_err() {
        return if schema.contains(KEYWORD) { Err(Invalid::TooLarge) } else { Ok(out) };
    }
    // A schema, and its path when it is reached through properties alone.
    let mut open: Vec<(Slice<'_>, Option<Vec<String>>)> = vec![(Slice { raw: schema, at: 0 }, Some(Vec::new()))];
    while let Some((slice, path)) = open.pop() {
        let Some(object) = Object::read(slice) else { continue };
        for m in object.members() {
            match &*m.key {
                KEYWORD => {
                    let param = annotated(&object, m.value, path.as_deref())?;
                    if out.iter().any(|p| p.name.eq_ignore_ascii_case(&param.name)) {
                        return Err(Invalid::Twice(shown(&param.name)));
                    }
                    out.push(param);
                }
                "properties" => {
                    for property in Object::read(m.value).iter().flat_map(Object::members) {
                        let path = path.as_ref().map(|p| [&p[..], &[property.key.to_string()]].concat());
                        open.push((property.value, path));
                    }
                }
                "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                    open.extend(Object::read(m.value).iter().flat_map(Object::members).map(|m| (m.value, None)));
                }
                // Data, not schemas.
                "const" | "enum" | "default" | "examples" => {}
                _ if m.value.raw.starts_with('[') => {
                    open.extend(elements(m.value).unwrap_or_default().into_iter().map(|e| (e, None)));
                }
                _ => open.push((m.value, None)),
            }
        }
    }
    // In the order of the schema's text, as far as one can tell from outside: by name.
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

fn annotated(schema: &Object<'_>, value: Slice<'_>, path: Option<&[String]>) -> Result<Param, Invalid> {
    let name = string(value.raw).filter(|n| !n.is_empty()).ok_or(Invalid::Empty)?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) {
        return Err(Invalid::Characters(shown(&name)));
    }
    let path = path.filter(|p| !p.is_empty()).ok_or_else(|| Invalid::Place(shown(&name)))?;
    let kind = schema.get("type").and_then(type_of).ok_or_else(|| Invalid::Type(shown(&name)))?;
    Ok(Param { name: name.into_owned(), path: path.to_vec(), kind })
}

/// The one type, or one and `null`.
fn type_of(value: Slice<'_>) -> Option<Type> {
    let one = |raw: &str| {
        Some(match &*string(raw)? {
            "string" => Type::Text,
            "integer" => Type::Integer,
            "boolean" => Type::Flag,
            _ => return None,
        })
    };
    match elements(value) {
        None => one(value.raw),
        Some(list) => {
            let mut rest = list.iter().filter(|t| t.raw != "\"null\"");
            let kind = one(rest.next()?.raw);
            kind.filter(|_| rest.next().is_none())
        }
    }
}

/// A header that does not say what the body says. HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Not there.
    #[error("the header {0} is missing")]
    Missing(String),
    /// There, and the argument is not.
    #[error("the header {0} repeats an argument that the call does not have")]
    Unexpected(String),
    /// More than once.
    #[error("the header {0} stands twice")]
    Twice(String),
    /// Neither visible ASCII nor marked Base64 of UTF-8.
    #[error("the header {0} is neither visible ASCII nor valid Base64 of UTF-8")]
    Encoding(String),
    /// Another value.
    #[error("the header {name} is {header:?}, and the argument is {body}")]
    Differs {
        /// Name of the header.
        name: String,
        /// Its value, decoded and shortened.
        header: String,
        /// The raw argument, shortened.
        body: String,
    },
}

impl Mismatch {
    /// The error for the request with this raw id.
    pub fn response(&self, id: &str) -> Vec<u8> {
        error_response::<()>(Some(id), HEADER_MISMATCH, &self.to_string(), None)
    }
}

/// Holds the headers of a call against its arguments. `header` finds one by its name in lower case. What the schema
/// says of arguments is the server's business.
pub fn check<'h>(
    params: &[Param],
    arguments: Option<Slice<'_>>,
    header: impl Fn(&str) -> Header<'h>,
) -> Result<(), Mismatch> {
    for param in params {
        let name = param.header();
        let value = param.path.iter().try_fold(arguments, |at, key| at.map(|at| member(at, key)));
        let value = value.flatten().filter(|v| v.raw != "null");
        let sent = match header(&name) {
            Header::Absent if value.is_none() => continue,
            Header::Absent => return Err(Mismatch::Missing(name)),
            Header::Twice => return Err(Mismatch::Twice(name)),
            Header::NotText => return Err(Mismatch::Encoding(name)),
            Header::Value(sent) => decoded(sent).ok_or_else(|| Mismatch::Encoding(name.clone()))?,
        };
        let Some(value) = value else { return Err(Mismatch::Unexpected(name)) };
        if !says(param.kind, &sent, value.raw) {
            return Err(Mismatch::Differs { name, header: shown(&sent), body: shown(value.raw) });
        }
    }
    Ok(())
}

/// Whether a header's value stands for a raw argument.
fn says(kind: Type, sent: &str, raw: &str) -> bool {
    match string(raw) {
        Some(text) => text == sent,
        None if kind == Type::Integer => same_number(sent, raw),
        None => sent == raw,
    }
}

fn same_number(a: &str, b: &str) -> bool {
    if let (Ok(a), Ok(b)) = (a.parse::<i128>(), b.parse::<i128>()) {
        return a == b;
    }
    // Both are what was written, or the nearest to it.
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite());
    number(a).zip(number(b)).is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
}

fn shown(text: &str) -> String {
    let short: Cow<'_, str> = match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    };
    short.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(properties: &str) -> Result<Vec<String>, Invalid> {
        params(&format!("{{\"type\":\"object\",\"properties\":{properties}}}"))
            .map(|params| params.iter().map(Param::header).collect())
    }

    #[test]
    fn valid_annotations() {
        assert_eq!(of("{\"a\":{\"type\":\"number\"}}"), Ok(vec![]));
        assert_eq!(
            of(r#"{"a":{"type":"string","x-mcp-header":"B"},"b":{"type":["null","integer"],"\u0078-mcp-header":"A"}}"#),
            Ok(vec!["mcp-param-a".into(), "mcp-param-b".into()])
        );
        // A property of this name, and data of this shape.
        assert_eq!(of(r#"{"x-mcp-header":{"type":"object"},"e":{"enum":[{"x-mcp-header":7}]}}"#), Ok(vec![]));
        let nested = of(r#"{"a":{"type":"object","properties":{"b":{"type":"boolean","x-mcp-header":"N"}}}}"#);
        assert_eq!(nested, Ok(vec!["mcp-param-n".into()]));
    }

    #[test]
    fn invalid_annotations_say_why() {
        let annotated = |kind: &str, name: &str| of(&format!("{{\"a\":{{\"type\":{kind},\"x-mcp-header\":{name}}}}}"));
        for name in ["\"\"", "null", "7", "{}"] {
            assert_eq!(annotated("\"string\"", name), Err(Invalid::Empty), "{name}");
        }
        for name in ["\"a b\"", "\"a:b\"", "\"é\"", "\"a\\n\""] {
            assert!(matches!(annotated("\"string\"", name), Err(Invalid::Characters(_))), "{name}");
        }
        for kind in ["\"number\"", "\"object\"", "\"array\"", "\"null\"", "[\"string\",\"integer\"]", "[]", "7"] {
            assert!(matches!(annotated(kind, "\"A\""), Err(Invalid::Type(_))), "{kind}");
        }
        let twice = r#"{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}"#;
        assert!(matches!(of(twice), Err(Invalid::Twice(_))));
        for place in [
            r#"{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}"#,
            r#"{"a":{"anyOf":[{"type":"string","x-mcp-header":"A"}]}}"#,
            r#"{"a":{"$defs":{"d":{"properties":{"p":{"type":"string","x-mcp-header":"A"}}}}}}"#,
        ] {
            assert!(matches!(of(place), Err(Invalid::Place(_))), "{place}");
        }
        assert!(matches!(params(r#"{"type":"string","x-mcp-header":"A"}"#), Err(Invalid::Place(_))));
        let deep = format!("{}\"x-mcp-header\"{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(of(&format!("{{\"a\":{{\"enum\":{deep}}}}}")), Err(Invalid::TooLarge));
    }

    #[test]
    fn headers_against_arguments() {
        let schema = r#"{"properties":{
            "s":{"type":"string","x-mcp-header":"S"},
            "o":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}},
            "b":{"type":"boolean","x-mcp-header":"B"}}}"#;
        let all = params(schema).unwrap();
        let told = |arguments: Option<&str>, headers: &[(&str, Header<'static>)]| {
            let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map_or(Header::Absent, |(_, h)| *h);
            let arguments = arguments.map(|raw| Slice { raw, at: 0 });
            match check(&all, arguments, header) {
                Ok(()) => "ok".to_owned(),
                Err(why) => String::from_utf8(why.response("1")).unwrap(),
            }
        };
        let v = Header::Value;
        let (s, n, b) = ("mcp-param-s", "mcp-param-n", "mcp-param-b");
        for (arguments, headers, want) in [
            (None, &[][..], "ok"),
            (Some("[]"), &[], "ok"),
            (Some("{\"s\":null}"), &[], "ok"),
            (Some("{\"s\":\"\"}"), &[(s, v(""))], "ok"),
            (
                Some("{\"s\":\"\\u00fcber\",\"o\":{\"n\":42},\"b\":false}"),
                &[(s, v("=?base64?w7xiZXI=?=")), (n, v("42")), (b, v("false"))],
                "ok",
            ),
            (Some("{\"o\":{\"n\":42}}"), &[(n, v("42.0"))], "ok"),
            (Some("{\"o\":{\"n\":12345678901234567890}}"), &[(n, v("12345678901234567890"))], "ok"),
            (Some("{\"o\":{\"n\":12345678901234567890}}"), &[(n, v("12345678901234567891"))], "differs"),
            (Some("{\"s\":\"a\"}"), &[], "is missing"),
            (Some("{\"s\":\"a\"}"), &[(s, v("A"))], "and the argument is"),
            (Some("{\"s\":\"a\"}"), &[(s, Header::Twice)], "stands twice"),
            (Some("{\"s\":\"a\"}"), &[(s, Header::NotText)], "neither"),
            (Some("{\"s\":\"a\"}"), &[(s, v("=?base64?a?="))], "neither"),
            (Some("{}"), &[(s, v("a"))], "does not have"),
            (Some("{\"b\":true}"), &[(b, v("True"))], "and the argument is"),
            (Some("{\"o\":{\"n\":1}}"), &[(n, v("one"))], "and the argument is"),
        ] {
            let got = told(arguments, headers);
            let want = if want == "differs" { "and the argument is" } else { want };
            assert!(got.contains(want) && (want == "ok" || got.contains("-32020")), "{arguments:?} {headers:?} {got}");
        }
    }
}
