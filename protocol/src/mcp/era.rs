//! Which era a request over HTTP speaks, told from the request alone, and the rules for its headers (2026-07-28,
//! transports and versioning).
//!
//! ```
//! use outrigger_protocol::jsonrpc::Envelope;
//! use outrigger_protocol::mcp::era::{Class, Headers, classify};
//! use outrigger_protocol::mcp::header::Header;
//!
//! let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","_meta":{
//!   "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
//! let headers = Headers {
//!     revision: Header::Value("2026-07-28"),
//!     method: Header::Value("tools/call"),
//!     name: Header::Value("add"),
//!     session: false,
//! };
//! let Ok(Class::Modern(call)) = classify(&headers, &Envelope::parse(body, 512).unwrap()) else { panic!() };
//! assert_eq!(call.target.as_deref(), Some("add"));
//! ```

mod fault;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use super::header::{Header, decoded};
use super::meta::{self, Meta};
use super::{METHOD_HEADER, NAME_HEADER, REVISION_HEADER, is_handshake_revision, is_modern_revision};
use crate::jsonrpc::{Envelope, Kind, METHOD_NOT_FOUND, Slice, scan, string};

pub use fault::Fault;

/// The headers of a request that its era is told from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    /// `MCP-Protocol-Version`.
    pub revision: Header<'a>,
    /// `Mcp-Method`.
    pub method: Header<'a>,
    /// `Mcp-Name`.
    pub name: Header<'a>,
    /// Whether there is an `Mcp-Session-Id`.
    pub session: bool,
}

/// What a message is part of.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one on the stack per request")]
pub enum Class<'a> {
    /// A message that carries all it needs; an `Mcp-Session-Id` on it means nothing.
    Modern(Modern<'a>),
    /// `initialize`, or part of a session: one without a session id must be refused. A revision in its header is a
    /// known one, except on `initialize`.
    Legacy,
}

/// A modern request whose headers and `_meta` are right, or a modern notification.
#[derive(Clone, Debug)]
pub struct Modern<'a> {
    /// What it says of itself. Revision and capabilities are there in a request.
    pub meta: Meta<'a>,
    /// Tool, prompt, URI or task that it is about, for the methods that name one.
    pub target: Option<Cow<'a, str>>,
    /// `params.inputResponses`, for the methods that may ask for input.
    pub input_responses: Option<Slice<'a>>,
    /// `params.requestState`, for the methods that may ask for input.
    pub request_state: Option<Slice<'a>>,
}

/// Tells the era of a message, and checks what a modern one must have. Faults come in this order: required `_meta`
/// members, headers against the body, revision.
pub fn classify<'a>(headers: &Headers<'_>, message: &Envelope<'a>) -> Result<Class<'a>, Fault> {
    let params = Params::read(message);
    let named = params.meta.revision;
    let body = named.and_then(|r| string(r.raw));
    let header = match headers.revision {
        Header::Value(value) => Some(value),
        _ => None,
    };
    let modern_header = header.is_some_and(is_modern_revision);
    if message.kind == Kind::Response {
        return if modern_header { Err(Fault::Response) } else { legacy(headers, message) };
    }
    match (named, &body) {
        (None, _) if modern_header && message.kind == Kind::Notification => notification(headers, message, &params),
        // A handshake needs no header, and clients that know both eras send either.
        (None, _) if modern_header && message.method != "initialize" => Err(Fault::MetaMissing(meta::PROTOCOL_VERSION)),
        (None, _) => legacy(headers, message),
        // What else a session carries there is its own business.
        (Some(_), Some(body)) if is_modern_revision(body) || !headers.session => {
            if message.kind == Kind::Notification {
                notification(headers, message, &params)
            } else {
                request(headers, message, &params, body)
            }
        }
        (Some(_), _) if headers.session && !modern_header => legacy(headers, message),
        (Some(_), Some(body)) => request(headers, message, &params, body),
        (Some(_), None) => Err(Fault::MetaType(meta::PROTOCOL_VERSION, "a string")),
    }
}

fn legacy<'a>(headers: &Headers<'_>, message: &Envelope<'_>) -> Result<Class<'a>, Fault> {
    if message.method == "initialize" {
        return Ok(Class::Legacy);
    }
    match headers.revision {
        Header::Value(value) if !is_handshake_revision(value) => Err(Fault::unsupported(value)),
        Header::Twice => Err(Fault::Twice(REVISION_HEADER)),
        Header::NotText => Err(Fault::NotText(REVISION_HEADER)),
        Header::Value(_) | Header::Absent => Ok(Class::Legacy),
    }
}

fn request<'a>(
    headers: &Headers<'_>,
    message: &Envelope<'a>,
    params: &Params<'a>,
    revision: &str,
) -> Result<Class<'a>, Fault> {
    let meta = params.meta;
    if let Some(key) = meta.twice.or(params.twice) {
        return Err(Fault::MemberTwice(key));
    }
    let Some(capabilities) = meta.capabilities else { return Err(Fault::MetaMissing(meta::CLIENT_CAPABILITIES)) };
    if !capabilities.raw.starts_with('{') {
        return Err(Fault::MetaType(meta::CLIENT_CAPABILITIES, "an object"));
    }
    if meta.client.is_some_and(|c| !c.raw.starts_with('{')) {
        return Err(Fault::MetaType(meta::CLIENT_INFO, "an object"));
    }
    if meta.log_level.is_some() && meta.log_level().is_none() {
        return Err(Fault::MetaType(meta::LOG_LEVEL, "one of the levels of syslog, such as \"info\""));
    }
    same(REVISION_HEADER, headers.revision, revision)?;
    same(METHOD_HEADER, headers.method, &message.method)?;
    let target = params.target.and_then(|t| string(t.raw));
    if target_key(&message.method).is_some() {
        name(headers.name, target.as_deref())?;
    }
    if !is_modern_revision(revision) {
        return Err(Fault::unsupported(revision));
    }
    let Params { input_responses, request_state, .. } = *params;
    Ok(Class::Modern(Modern { meta, target, input_responses, request_state }))
}

/// A notification needs no `_meta`. What it repeats in headers must be right all the same.
fn notification<'a>(headers: &Headers<'_>, message: &Envelope<'a>, params: &Params<'a>) -> Result<Class<'a>, Fault> {
    if let Some(revision) = params.meta.revision {
        let revision = string(revision.raw).ok_or(Fault::MetaType(meta::PROTOCOL_VERSION, "a string"))?;
        same(REVISION_HEADER, headers.revision, &revision)?;
        if !is_modern_revision(&revision) {
            return Err(Fault::unsupported(&revision));
        }
    }
    if headers.method.is_present() {
        same(METHOD_HEADER, headers.method, &message.method)?;
    }
    Ok(Class::Modern(Modern { meta: params.meta, target: None, input_responses: None, request_state: None }))
}

/// The member of `params` that `Mcp-Name` repeats.
pub fn target_key(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// Whether a modern server may answer a method with `input_required`.
pub fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// The HTTP status of a modern response whose first message is an error with this code.
pub fn status(code: i32) -> u16 {
    match code {
        METHOD_NOT_FOUND => 404,
        super::HEADER_MISMATCH | super::MISSING_CAPABILITY | super::UNSUPPORTED_REVISION => 400,
        _ => 200,
    }
}

fn same(name: &'static str, header: Header<'_>, body: &str) -> Result<(), Fault> {
    match header {
        Header::Value(value) if value == body => Ok(()),
        Header::Value(value) => Err(Fault::differs(name, value, body)),
        Header::Absent => Err(Fault::HeaderMissing(name)),
        Header::Twice => Err(Fault::HeaderTwice(name)),
        Header::NotText => Err(Fault::HeaderNotText(name)),
    }
}

fn name(header: Header<'_>, body: Option<&str>) -> Result<(), Fault> {
    let value = match header {
        // Without a name, it is the server that refuses the params.
        Header::Absent if body.is_none() => return Ok(()),
        Header::Value(value) => decoded(value).ok_or(Fault::HeaderEncoding(NAME_HEADER))?,
        _ => Cow::Borrowed(""),
    };
    match (header, body) {
        (Header::Value(_), Some(body)) if *value == *body => Ok(()),
        (Header::Value(_), body) => Err(Fault::differs(NAME_HEADER, &value, body.unwrap_or_default())),
        (header, _) => same(NAME_HEADER, header, ""),
    }
}

/// The members of `params` that a proxy acts on, read in one go.
#[derive(Default)]
struct Params<'a> {
    meta: Meta<'a>,
    target: Option<Slice<'a>>,
    input_responses: Option<Slice<'a>>,
    request_state: Option<Slice<'a>>,
    twice: Option<&'static str>,
}

impl<'a> Params<'a> {
    fn read(message: &Envelope<'a>) -> Self {
        let (target, asks) = (target_key(&message.method), may_ask(&message.method));
        let mut out = Self::default();
        let Some(params) = message.params else { return out };
        let mut meta = None;
        // Params that are no object have none of these members.
        let _ = scan::object(params.raw, usize::MAX, |key, value| {
            let (slot, key) = match key {
                "_meta" => (&mut meta, "_meta"),
                "inputResponses" if asks => (&mut out.input_responses, "inputResponses"),
                "requestState" if asks => (&mut out.request_state, "requestState"),
                _ => match target {
                    Some(target) if target == key => (&mut out.target, target),
                    _ => return Ok(()),
                },
            };
            if slot.replace(Slice { raw: value.raw, at: params.at + value.at }).is_some() {
                out.twice = Some(key);
            }
            Ok(())
        });
        out.meta = meta.map(Meta::read).unwrap_or_default();
        out
    }
}
