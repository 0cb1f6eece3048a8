//! How a proxy meets a server: `initialize` (legacy) and `server/discover` (modern), and what they answer.

use std::borrow::Cow;

use crate::jsonrpc::{Envelope, Kind, Slice, string};

use super::meta::{self, Stamp};
use super::object::{Object, elements, quoted};
use super::{HEADER_MISMATCH, MODERN_REVISIONS, UNSUPPORTED_REVISION, is_handshake_revision, is_modern_revision};

/// The notification that ends a handshake.
pub const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// An `initialize` of our own. `capabilities` and `client` are raw objects.
///
/// ```
/// use outrigger_protocol::mcp::handshake::initialize;
///
/// let line = initialize(1, "2025-11-25", "{}", r#"{"name":"outrigger","version":"1"}"#);
/// assert!(line.starts_with(br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","#));
/// ```
pub fn initialize(id: u64, revision: &str, capabilities: &str, client: &str) -> Vec<u8> {
    let params =
        format!(r#"{{"protocolVersion":{},"capabilities":{capabilities},"clientInfo":{client}}}"#, quoted(revision));
    own_request(id, "initialize", &params)
}

/// A `server/discover` of our own.
pub fn discover(id: u64, stamp: &Stamp) -> Vec<u8> {
    own_request(id, "server/discover", &format!(r#"{{"_meta":{{{}}}}}"#, stamp.members()))
}

fn own_request(id: u64, method: &str, params: &str) -> Vec<u8> {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    crate::jsonrpc::splice(&line, &[])
}

/// Why an answer to a handshake can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The result is no object.
    #[error("the result is no object")]
    NoObject,
    /// A member is not there or of the wrong kind.
    #[error("the result has no {0}")]
    Missing(&'static str),
}

/// What a legacy server says of itself, as raw JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initialized<'a> {
    /// The revision it chose.
    pub revision: Cow<'a, str>,
    /// Its capabilities, an object.
    pub capabilities: &'a str,
    /// Its name and version, an object.
    pub server: Option<&'a str>,
    /// A string for the model.
    pub instructions: Option<&'a str>,
}

impl<'a> Initialized<'a> {
    /// Reads an `InitializeResult`.
    pub fn read(result: &'a str) -> Result<Self, Unusable> {
        let object = Object::read(Slice { raw: result, at: 0 }).ok_or(Unusable::NoObject)?;
        Ok(Self {
            revision: object.text("protocolVersion").ok_or(Unusable::Missing("protocolVersion"))?,
            capabilities: object.get("capabilities").filter(is_object).map_or("{}", |c| c.raw),
            server: object.get("serverInfo").filter(is_object).map(|s| s.raw),
            instructions: object.get("instructions").filter(is_string).map(|i| i.raw),
        })
    }
}

/// What a modern server says of itself, as raw JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered<'a> {
    /// The revisions it serves.
    pub supported: Vec<Cow<'a, str>>,
    /// Its capabilities, an object.
    pub capabilities: &'a str,
    /// Its name and version, an object.
    pub server: Option<&'a str>,
    /// A string for the model.
    pub instructions: Option<&'a str>,
    /// How long this holds, in milliseconds.
    pub ttl_ms: u64,
}

impl<'a> Discovered<'a> {
    /// Reads a `DiscoverResult`.
    pub fn read(result: &'a str) -> Result<Self, Unusable> {
        let object = Object::read(Slice { raw: result, at: 0 }).ok_or(Unusable::NoObject)?;
        let meta = object.get("_meta").and_then(Object::read);
        Ok(Self {
            supported: object
                .get("supportedVersions")
                .and_then(strings)
                .ok_or(Unusable::Missing("supportedVersions"))?,
            capabilities: object.get("capabilities").filter(is_object).map_or("{}", |c| c.raw),
            server: meta.and_then(|m| m.get(meta::SERVER_INFO)).filter(is_object).map(|s| s.raw),
            instructions: object.get("instructions").filter(is_string).map(|i| i.raw),
            ttl_ms: object.get("ttlMs").and_then(|t| t.raw.parse().ok()).unwrap_or(0),
        })
    }

    /// The newest revision that it and this proxy serve.
    pub fn revision(&self) -> Option<&'static str> {
        MODERN_REVISIONS.into_iter().find(|r| self.supported.iter().any(|s| s == r))
    }
}

/// What a `server/discover` on a connection to throw away tells of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It speaks this modern revision.
    Modern(&'static str),
    /// It is modern, and speaks no revision that this proxy knows.
    Unknown,
    /// It is legacy: what it answered is no answer to the question.
    Legacy,
}

/// Reads the answer to a probe (2026-07-28, versioning). No answer at all means [`Probe::Legacy`] too.
pub fn probe(answer: &Envelope<'_>) -> Probe {
    if answer.kind != Kind::Response {
        return Probe::Legacy;
    }
    if let Some(result) = answer.result {
        return match Discovered::read(result.raw) {
            Ok(found) => found.revision().map_or(Probe::Unknown, Probe::Modern),
            Err(_) => Probe::Legacy,
        };
    }
    let Some(error) = answer.error.and_then(Object::read) else { return Probe::Legacy };
    let code: Option<i32> = error.get("code").and_then(|c| c.raw.parse().ok());
    if !code.is_some_and(|c| (UNSUPPORTED_REVISION..=HEADER_MISMATCH).contains(&c)) {
        return Probe::Legacy;
    }
    let supported = error.get("data").and_then(Object::read).and_then(|d| d.get("supported")).and_then(strings);
    // It may be particular about something else: what it speaks is known when it is asked for real.
    let Some(list) = supported else { return Probe::Modern(MODERN_REVISIONS[0]) };
    match MODERN_REVISIONS.into_iter().find(|r| list.iter().any(|s| s == r)) {
        Some(revision) => Probe::Modern(revision),
        None if list.iter().any(|s| !is_handshake_revision(s) && !is_modern_revision(s)) => Probe::Unknown,
        None => Probe::Legacy,
    }
}

fn is_object(value: &Slice<'_>) -> bool {
    value.raw.starts_with('{')
}

fn is_string(value: &Slice<'_>) -> bool {
    value.raw.starts_with('"')
}

/// The strings of an array; others in it are passed over.
fn strings(array: Slice<'_>) -> Option<Vec<Cow<'_, str>>> {
    Some(elements(array)?.into_iter().filter_map(|e| string(e.raw)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_our_own() {
        let stamp = Stamp::new("2026-07-28", "{}", Some(r#"{"name":"o","version":"1"}"#), Some("info"));
        let lines =
            [initialize(3, "2025-11-25", r#"{"roots":{}}"#, r#"{"name":"o","version":"1"}"#), discover(4, &stamp)];
        let text: Vec<_> = lines.iter().map(|l| std::str::from_utf8(l).unwrap()).collect();
        insta::assert_snapshot!(text.join("\n"));
        for line in text {
            assert_eq!(Envelope::parse(line, 9).unwrap().kind, Kind::Request);
        }
        assert_eq!(Envelope::parse(INITIALIZED, 9).unwrap().kind, Kind::Notification);
    }

    #[test]
    fn what_servers_say() {
        let legacy = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}, "x":18446744073709551616},"serverInfo":{"name":"s"},"instructions":"\ud800"}"#;
        insta::assert_debug_snapshot!([
            Initialized::read(legacy),
            Initialized::read(
                r#"{"protocolVersion":"2024-11-05","capabilities":null,"serverInfo":"s","instructions":null}"#
            ),
            Initialized::read("{}"),
            Initialized::read("[]"),
        ]);
        let modern = r#"{"resultType":"complete","supportedVersions":["2026-07-28",7,"2027-01-01"],"capabilities":{"tools":{}},"ttlMs":5000,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m"}}}"#;
        insta::assert_debug_snapshot!([Discovered::read(modern), Discovered::read("{}"), Discovered::read("7")]);
        assert_eq!(Discovered::read(modern).unwrap().revision(), Some("2026-07-28"));
    }

    #[test]
    fn probes() {
        let of = |rest: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":"p",{rest}}}"#);
            probe(&Envelope::parse(&text, 64).unwrap())
        };
        let modern = Probe::Modern("2026-07-28");
        assert_eq!(of(r#""result":{"supportedVersions":["2026-07-28"],"capabilities":{}}"#), modern);
        assert_eq!(of(r#""result":{"supportedVersions":["2031-01-01"],"capabilities":{}}"#), Probe::Unknown);
        assert_eq!(of(r#""result":{"tools":[]}"#), Probe::Legacy);
        assert_eq!(of(r#""error":{"code":-32601,"message":"m"}"#), Probe::Legacy);
        assert_eq!(of(r#""error":{"code":-32021,"message":"m"}"#), modern);
        assert_eq!(of(r#""error":{"code":-32022,"message":"m","data":{"supported":["2026-07-28"]}}"#), modern);
        assert_eq!(of(r#""error":{"code":-32022,"message":"m","data":{"supported":["2031-01-01"]}}"#), Probe::Unknown);
        assert_eq!(of(r#""error":{"code":-32022,"message":"m","data":{"supported":["2025-11-25"]}}"#), Probe::Legacy);
        assert_eq!(of(r#""method":"roots/list""#), Probe::Legacy);
    }
}
