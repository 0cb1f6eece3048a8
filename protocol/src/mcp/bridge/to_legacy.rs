//! A modern client in front of a legacy server.
//!
//! A call goes out with [`request`] under our id; its answer comes back with [`response`]. What the server asks
//! meanwhile becomes `input_required` ([`super::super::input`]); the client's retry carries the answers, and the call
//! that waits is told from another one by its [`fingerprint`]. `server/discover` is answered from the server's
//! `initialize` ([`discover`]), `subscriptions/listen` from its notifications ([`super::super::listen`]).

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::canonical::canonical;
use crate::jsonrpc::{Envelope, INTERNAL_ERROR, INVALID_PARAMS, Slice, error_response, member, splice};

use super::error_code;
use crate::mcp::edit::Outbound;
use crate::mcp::era::Modern;
use crate::mcp::handshake::Initialized;
use crate::mcp::input::Question;
use crate::mcp::meta;
use crate::mcp::object::{Edits, Object, quoted};
use crate::mcp::{RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED};

/// Whether a method is gone in the modern era, or can't be bridged: HTTP 404 and -32601.
pub fn is_removed(method: &str) -> bool {
    matches!(method, "initialize" | "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe")
        || method.starts_with("tasks/")
}

/// Whether a notification of a modern client means nothing to a legacy server: it is accepted and goes no further.
pub fn is_swallowed(method: &str) -> bool {
    matches!(method, "notifications/initialized" | "notifications/roots/list_changed")
}

/// Whether the result of a method says how long it may be kept.
pub fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    )
}

/// A call for the server under our id, which replaces a progress token too. Taken out: what only modern servers know in
/// `_meta`, and answers to questions.
pub fn request<'a>(call: &Envelope<'a>, modern: &Modern<'a>, id: u64) -> Outbound<'a> {
    let id = id.to_string();
    let mut edits = Edits::default();
    if let Some(old) = call.id {
        edits.replace(old.range(), id.as_str());
    }
    let token = modern.meta.progress_token.filter(|t| is_token(t.raw));
    if let Some(token) = token {
        edits.replace(token.range(), id.as_str());
    }
    if let Some(object) = modern.meta.object.and_then(Object::read) {
        edits.members(&object, |key| meta::REQUEST_KEYS.contains(&key), "");
    }
    let inputs = modern.input_responses.or(modern.request_state);
    if let Some(params) = inputs.and(call.params).and_then(Object::read) {
        edits.members(&params, is_input, "");
    }
    Outbound { line: edits.apply(call.text), token: token.map(|t| t.raw) }
}

fn is_token(raw: &str) -> bool {
    raw.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

fn is_input(key: &str) -> bool {
    matches!(key, "inputResponses" | "requestState")
}

/// What becomes of a server's response.
#[derive(Debug, PartialEq, Eq)]
pub enum Response {
    /// This line for the client.
    Message(Vec<u8>),
    /// URLs must be visited first: to be asked with `input_required`, and the call sent again at the retry.
    Urls(Vec<Question>),
}

/// A server's response to a call of this method, for a client whose raw id for it is `id`. `server` is the raw name and
/// version from the handshake.
pub fn response(response: &Envelope<'_>, method: &str, id: &str, server: Option<&str>) -> Response {
    let mut edits = Edits::default();
    if let Some(old) = response.id {
        edits.replace(old.range(), id);
    }
    if let Some(result) = response.result.and_then(Object::read) {
        put_result(&result, method, server, &mut edits);
    }
    match error_code(response).map(i32::try_from) {
        Some(Ok(RESOURCE_NOT_FOUND)) if method == "resources/read" => {
            if let Some(code) = response.error.and_then(|e| member(e, "code")) {
                edits.replace(code.range(), INVALID_PARAMS.to_string());
            }
        }
        Some(Ok(URL_ELICITATION_REQUIRED)) => {
            return match response.error.and_then(Question::of_urls) {
                Some(questions) => Response::Urls(questions),
                None => Response::Message(error_response::<()>(
                    Some(id),
                    INTERNAL_ERROR,
                    "the server wants a URL to be visited and names none",
                    None,
                )),
            };
        }
        _ => {}
    }
    Response::Message(edits.apply(response.text))
}

fn put_result(result: &Object<'_>, method: &str, server: Option<&str>, edits: &mut Edits<'_>) {
    let mut insert = String::new();
    if result.get("resultType").is_none() {
        insert.push_str("\"resultType\":\"complete\"");
    }
    let mut add = |member: &str| {
        let comma = if insert.is_empty() { "" } else { "," };
        let _ = write!(insert, "{comma}{member}");
    };
    if is_cacheable(method) {
        if result.get("ttlMs").is_none() {
            add("\"ttlMs\":0");
        }
        if result.get("cacheScope").is_none() {
            add("\"cacheScope\":\"private\"");
        }
    }
    if let Some(server) = server {
        let member = format!("\"{}\":{server}", meta::SERVER_INFO);
        match result.get("_meta") {
            None => add(&format!("\"_meta\":{{{member}}}")),
            Some(old) => match Object::read(old) {
                Some(object) if object.get(meta::SERVER_INFO).is_none() => edits.members(&object, |_| false, &member),
                _ => {}
            },
        }
    }
    edits.members(result, |_| false, &insert);
}

/// The answer to `server/discover`, made from the server's handshake. `supported` are the revisions that the endpoint
/// serves, the modern ones first.
pub fn discover(id: &str, server: &Initialized<'_>, supported: &[&str], ttl_ms: u64) -> Vec<u8> {
    let supported: Vec<_> = supported.iter().map(|s| quoted(s)).collect();
    let mut out = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","supportedVersions":[{}],"capabilities":{}"#,
        supported.join(","),
        without(server.capabilities, "tasks")
    );
    if let Some(instructions) = server.instructions {
        let _ = write!(out, ",\"instructions\":{instructions}");
    }
    let _ = write!(out, ",\"ttlMs\":{ttl_ms},\"cacheScope\":\"private\"");
    if let Some(info) = server.server {
        let _ = write!(out, ",\"_meta\":{{\"{}\":{info}}}", meta::SERVER_INFO);
    }
    out.push_str("}}");
    splice(&out, &[])
}

/// A raw object without one member.
pub(super) fn without(raw: &str, key: &str) -> String {
    let Some(object) = Object::read(Slice { raw, at: 0 }) else { return raw.to_owned() };
    let mut edits = Edits::default();
    edits.members(&object, |k| k == key, "");
    String::from_utf8_lossy(&edits.apply(raw)).into_owned()
}

/// What makes a retry the same call: SHA-256 of method and params without answers, state and `_meta`, however it is
/// written. `None` when the params are no object.
pub fn fingerprint(call: &Envelope<'_>) -> Option<[u8; 32]> {
    let members = match call.params {
        Some(params) => Object::read(params)?,
        None => Object::read(Slice { raw: "{}", at: 0 })?,
    };
    let mut parts: Vec<(&str, String)> = members
        .members()
        .iter()
        .filter(|m| m.key != "_meta" && !is_input(&m.key))
        .map(|m| (&*m.key, canonical(m.value.raw).unwrap_or_else(|_| m.value.raw.to_owned())))
        .collect();
    parts.sort();
    let mut text = quoted(&call.method);
    for (key, value) in parts {
        let _ = write!(text, ",{}:{value}", quoted(key));
    }
    Some(Sha256::digest(text).into())
}
