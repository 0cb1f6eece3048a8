//! A legacy client in front of a modern server.
//!
//! `initialize` is answered from `server/discover` ([`initialize_result`]). Each call goes out with [`request`], which
//! puts the session's `_meta` on it, and its answer comes back with [`response`]. What the server asks for with
//! `input_required` goes to the client as requests ([`super::super::input`]), and their answers into a [`retry`]. What
//! changes reaches the session through one `subscriptions/listen` ([`super::super::listen`]).

use std::fmt::Write as _;

use crate::jsonrpc::{Envelope, INTERNAL_ERROR, splice};

use super::error_code;
use super::to_legacy::without;
use crate::mcp::edit::{Outbound, progress_token};
use crate::mcp::handshake::Discovered;
use crate::mcp::listen::put_meta;
use crate::mcp::meta::{self, Stamp};
use crate::mcp::object::{Edits, Object, quoted};
use crate::mcp::{HEADER_MISMATCH, UNSUPPORTED_REVISION, is_handshake_revision};

/// Where an error keeps what the server said, under `data`.
pub const ORIGINAL_ERROR: &str = "outrigger.dev/original";

/// What a proxy does itself for a legacy client, as modern servers know nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// `initialize`: answered with [`initialize_result`].
    Initialize,
    /// `ping`: answered with an empty result.
    Ping,
    /// `logging/setLevel`: remembered for the session, answered with an empty result.
    SetLevel,
    /// `resources/subscribe`: added to the session's set, answered with an empty result.
    Subscribe,
    /// `resources/unsubscribe`: taken from the session's set, answered with an empty result.
    Unsubscribe,
    /// A notification that goes no further.
    Swallow,
    /// A method of 2025-11-25 that has no counterpart: -32601.
    Unknown,
}

/// What a proxy does itself; `None` for what goes to the server.
pub fn local(method: &str) -> Option<Local> {
    Some(match method {
        "initialize" => Local::Initialize,
        "ping" => Local::Ping,
        "logging/setLevel" => Local::SetLevel,
        "resources/subscribe" => Local::Subscribe,
        "resources/unsubscribe" => Local::Unsubscribe,
        "notifications/initialized" | "notifications/roots/list_changed" => Local::Swallow,
        "tasks/get" | "tasks/result" | "tasks/list" | "tasks/cancel" => Local::Unknown,
        _ => return None,
    })
}

/// The answer to `initialize`. `revision` is the [`negotiated`](crate::mcp::negotiated) one, `name` that of the
/// MCPServer, for a server that does not name itself.
pub fn initialize_result(id: &str, revision: &str, server: &Discovered<'_>, name: &str) -> Vec<u8> {
    debug_assert!(is_handshake_revision(revision));
    let info =
        server.server.map_or_else(|| format!(r#"{{"name":{},"version":"unknown"}}"#, quoted(name)), str::to_owned);
    let mut out = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":{},"capabilities":{},"serverInfo":{info}"#,
        quoted(revision),
        // Tasks are an extension with other methods in the modern era.
        without(server.capabilities, "tasks")
    );
    if let Some(instructions) = server.instructions {
        let _ = write!(out, ",\"instructions\":{instructions}");
    }
    out.push_str("}}");
    splice(&out, &[])
}

/// The capabilities of a legacy client (raw) as its modern requests declare them.
pub fn client_capabilities(raw: &str) -> String {
    if raw.starts_with('{') { without(raw, "tasks") } else { "{}".to_owned() }
}

/// An empty result for a request with this raw id.
pub fn empty_result(id: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes()
}

/// A call for the server under our id, which replaces a progress token too, with the session's `_meta`.
pub fn request<'a>(call: &Envelope<'a>, id: u64, stamp: &Stamp) -> Outbound<'a> {
    stamped(call, id, stamp, "", |_| false)
}

/// A call again, with the answers to what the server asked: keys and raw results. `state` is the server's raw state.
pub fn retry<'a>(
    call: &Envelope<'a>,
    id: u64,
    stamp: &Stamp,
    answers: &[(&str, &str)],
    state: Option<&str>,
) -> Outbound<'a> {
    let mut insert = String::new();
    if !answers.is_empty() {
        let list: Vec<_> = answers.iter().map(|(key, result)| format!("{}:{result}", quoted(key))).collect();
        let _ = write!(insert, "\"inputResponses\":{{{}}}", list.join(","));
    }
    if let Some(state) = state {
        let _ = write!(insert, "{}\"requestState\":{state}", if insert.is_empty() { "" } else { "," });
    }
    stamped(call, id, stamp, &insert, |key| matches!(key, "inputResponses" | "requestState"))
}

fn stamped<'a>(
    call: &Envelope<'a>,
    id: u64,
    stamp: &Stamp,
    insert: &str,
    remove: impl Fn(&str) -> bool,
) -> Outbound<'a> {
    let id = id.to_string();
    let mut edits = Edits::default();
    if let Some(old) = call.id {
        edits.replace(old.range(), id.as_str());
    }
    let token = progress_token(call);
    if let Some(token) = token {
        edits.replace(token.range(), id.as_str());
    }
    put_meta(call, stamp.members(), |key| meta::REQUEST_KEYS.contains(&key), insert, remove, &mut edits);
    Outbound { line: edits.apply(call.text), token: token.map(|t| t.raw) }
}

/// A server's response for a client whose raw id for it is `id`. Errors that only modern clients know become internal
/// ones, with the original in `data`.
pub fn response(response: &Envelope<'_>, id: &str) -> Vec<u8> {
    let mut edits = Edits::default();
    if let Some(old) = response.id {
        edits.replace(old.range(), id);
    }
    let modern = error_code(response)
        .is_some_and(|c| (i64::from(UNSUPPORTED_REVISION)..=i64::from(HEADER_MISMATCH)).contains(&c));
    if let (true, Some(error)) = (modern, response.error) {
        let message = Object::read(error).and_then(|e| e.get("message")).filter(|m| m.raw.starts_with('"'));
        let message = message.map_or("\"the server refused the request\"", |m| m.raw);
        let new =
            format!(r#"{{"code":{INTERNAL_ERROR},"message":{message},"data":{{"{ORIGINAL_ERROR}":{}}}}}"#, error.raw);
        edits.replace(error.range(), new);
    }
    edits.apply(response.text)
}
