//! What the transport has to know of a message before it sends it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use outrigger_protocol::jsonrpc::{Envelope, Kind, Slice, member, string};
use outrigger_protocol::mcp::{REVISION_HEADER, is_handshake_revision};

/// Deepest nesting of a message.
pub(super) const MAX_DEPTH: usize = 512;
/// Key of `params._meta` that names the revision of a request without a handshake (2026-07-28).
const REVISION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// Names the method of such a request.
const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
/// Names the tool, prompt, resource or task that it is about.
const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// What a message is, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    /// Raw id of a request.
    pub id: Option<Box<str>>,
    /// Its method; empty for a response.
    pub method: Box<str>,
    /// Headers of a request without a handshake; none for others.
    pub modern: Option<HeaderMap>,
}

impl Sketch {
    pub(super) fn of(text: &str) -> Option<Self> {
        let envelope = Envelope::parse(text, MAX_DEPTH).ok()?;
        let id = (envelope.kind == Kind::Request).then_some(envelope.id).flatten().map(|id| id.raw.into());
        Some(Self { id, method: (*envelope.method).into(), modern: modern_headers(&envelope) })
    }
}

/// Headers that mirror the body (2026-07-28, transports), if it is of a revision that has them.
fn modern_headers(envelope: &Envelope<'_>) -> Option<HeaderMap> {
    let params = envelope.params?;
    let revision = member(member(params, "_meta")?, REVISION_KEY)?;
    let revision = string(revision.raw).filter(|r| !is_handshake_revision(r))?;
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static(REVISION_HEADER), HeaderValue::from_str(&revision).ok()?);
    headers.insert(METHOD_HEADER, value(&envelope.method)?);
    let named = match &*envelope.method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Some(headers),
    };
    if let Some(name) = member(params, named).and_then(|n: Slice<'_>| string(n.raw)) {
        headers.insert(NAME_HEADER, value(&name)?);
    }
    Some(headers)
}

/// A value as it is, or in Base64 between markers where a header cannot carry it or it would be read as such.
fn value(text: &str) -> Option<HeaderValue> {
    let plain = text.bytes().all(|b| (0x20..0x7f).contains(&b)) && text.trim() == text && !text.starts_with("=?");
    if plain {
        HeaderValue::from_str(text).ok()
    } else {
        HeaderValue::from_str(&format!("=?base64?{}?=", STANDARD.encode(text))).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sketch(method: &str, params: &serde_json::Value) -> Sketch {
        Sketch::of(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()).unwrap()
    }

    #[test]
    fn the_body_stands_in_the_headers_of_a_request_without_a_handshake() {
        let meta = json!({REVISION_KEY: "2026-07-28"});
        let of = |method: &str, params: &serde_json::Value| {
            let headers = sketch(method, params).modern.unwrap();
            let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned());
            (text("mcp-protocol-version").unwrap(), text("mcp-method").unwrap(), text("mcp-name"))
        };
        let call = of("tools/call", &json!({"name": "add", "_meta": meta}));
        assert_eq!(call, ("2026-07-28".into(), "tools/call".into(), Some("add".into())));
        assert_eq!(of("resources/read", &json!({"uri": "file:///a b", "_meta": meta})).2.unwrap(), "file:///a b");
        assert_eq!(of("tools/call", &json!({"name": "größe", "_meta": meta})).2.unwrap(), "=?base64?Z3LDtsOfZQ==?=");
        assert_eq!(of("tools/call", &json!({"name": "=?x", "_meta": meta})).2.unwrap(), "=?base64?PT94?=");
        assert_eq!(of("tools/list", &json!({"_meta": meta})).2, None);
    }

    #[test]
    fn other_messages_have_no_such_headers() {
        assert_eq!(sketch("tools/call", &json!({"name": "add"})).modern, None);
        assert_eq!(sketch("tools/call", &json!({"_meta": {REVISION_KEY: "2025-11-25"}})).modern, None);
        let response = Sketch::of(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).unwrap();
        assert_eq!((response.id, &*response.method), (None, ""));
        assert_eq!(Sketch::of("[]"), None);
    }
}
