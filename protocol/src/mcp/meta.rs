//! What a modern request says of itself in `params._meta` (2026-07-28, basic, "Per-request protocol fields").

use std::fmt::Write as _;

use super::edit::param;
use crate::jsonrpc::{Envelope, Slice, scan, string};

/// Revision of the request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Capabilities of the client for this request.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Name and version of the client.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Least severe level of the log messages that the client wants for this request.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// In results: name and version of the server.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// In messages of a subscription: id of its `subscriptions/listen`.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The keys of a request that only modern servers know.
pub const REQUEST_KEYS: [&str; 4] = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL];

/// Levels of log messages, the most verbose first.
pub const LOG_LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Place of a level in [`LOG_LEVELS`].
pub fn log_level(level: &str) -> Option<usize> {
    LOG_LEVELS.iter().position(|l| *l == level)
}

/// Place in [`LOG_LEVELS`] of the level that a `logging/setLevel` asks for (2025-11-25, logging).
pub fn level_asked(set_level: &Envelope<'_>) -> Option<usize> {
    param(set_level, "level").and_then(string).and_then(|level| log_level(&level))
}

/// The members of a request's `_meta` that a proxy knows, as raw JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The whole `_meta`, when it is an object.
    pub object: Option<Slice<'a>>,
    /// [`PROTOCOL_VERSION`].
    pub revision: Option<Slice<'a>>,
    /// [`CLIENT_CAPABILITIES`].
    pub capabilities: Option<Slice<'a>>,
    /// [`CLIENT_INFO`].
    pub client: Option<Slice<'a>>,
    /// [`LOG_LEVEL`].
    pub log_level: Option<Slice<'a>>,
    /// `progressToken`, of either era.
    pub progress_token: Option<Slice<'a>>,
    /// `traceparent` (W3C Trace Context).
    pub traceparent: Option<Slice<'a>>,
    /// `tracestate`.
    pub tracestate: Option<Slice<'a>>,
    /// `baggage` (W3C Baggage).
    pub baggage: Option<Slice<'a>>,
    /// A key of the above stands twice, so that two readers may see different values.
    pub twice: Option<&'static str>,
}

impl<'a> Meta<'a> {
    /// Reads a `_meta`; what is no object has nothing in it. Of two members with one key, the last counts.
    pub fn read(meta: Slice<'a>) -> Self {
        let mut out = Self::default();
        let read = scan::object(meta.raw, usize::MAX, |key, value| {
            let (slot, key) = match key {
                PROTOCOL_VERSION => (&mut out.revision, PROTOCOL_VERSION),
                CLIENT_CAPABILITIES => (&mut out.capabilities, CLIENT_CAPABILITIES),
                CLIENT_INFO => (&mut out.client, CLIENT_INFO),
                LOG_LEVEL => (&mut out.log_level, LOG_LEVEL),
                "progressToken" => (&mut out.progress_token, "progressToken"),
                "traceparent" => (&mut out.traceparent, "traceparent"),
                "tracestate" => (&mut out.tracestate, "tracestate"),
                "baggage" => (&mut out.baggage, "baggage"),
                _ => return Ok(()),
            };
            if slot.replace(Slice { raw: value.raw, at: meta.at + value.at }).is_some() {
                out.twice = Some(key);
            }
            Ok(())
        });
        out.object = read.is_ok().then_some(meta);
        out
    }

    /// Place in [`LOG_LEVELS`] of the level that the request asks for.
    pub fn log_level(&self) -> Option<usize> {
        log_level(&string(self.log_level?.raw)?)
    }

    /// The capabilities as raw JSON; without any, none.
    pub fn capabilities(&self) -> &'a str {
        self.capabilities.map_or("{}", |c| c.raw)
    }
}

/// The members that make a request modern, written once for all requests of a session.
///
/// ```
/// use outrigger_protocol::mcp::meta::Stamp;
///
/// let stamp = Stamp::new("2026-07-28", "{}", Some(r#"{"name":"c","version":"1"}"#), None);
/// assert!(stamp.members().starts_with(r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp(String);

impl Stamp {
    /// From raw JSON: `capabilities` and `client` are objects. `level` is one of [`LOG_LEVELS`].
    pub fn new(revision: &str, capabilities: &str, client: Option<&str>, level: Option<&str>) -> Self {
        let mut out = format!("\"{PROTOCOL_VERSION}\":\"{revision}\",\"{CLIENT_CAPABILITIES}\":{capabilities}");
        if let Some(client) = client {
            let _ = write!(out, ",\"{CLIENT_INFO}\":{client}");
        }
        if let Some(level) = level {
            let _ = write!(out, ",\"{LOG_LEVEL}\":\"{level}\"");
        }
        Self(out)
    }

    /// Members of `_meta`, without braces.
    pub fn members(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_with_their_places() {
        let text = r#"  {"io.modelcontextprotocol\/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},
            "io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/logLevel":"notice","progressToken":1.0,
            "traceparent":"00-a","tracestate":"t","baggage":"b","vendor/x":[1]}"#;
        let meta = Meta::read(Slice { raw: &text[2..], at: 2 });
        assert_eq!(&text[meta.revision.unwrap().range()], "\"2026-07-28\"");
        assert_eq!(meta.capabilities(), "{\"roots\":{}}");
        assert_eq!((meta.client.unwrap().raw, meta.log_level()), ("{\"name\":\"c\"}", Some(2)));
        assert_eq!(&text[meta.progress_token.unwrap().range()], "1.0");
        assert_eq!((meta.traceparent.unwrap().raw, meta.tracestate.unwrap().raw), ("\"00-a\"", "\"t\""));
        assert_eq!((meta.baggage.unwrap().raw, meta.twice), ("\"b\"", None));
    }

    #[test]
    fn nothing_in_what_is_no_object() {
        for raw in ["null", "[]", "\"progressToken\""] {
            assert_eq!(Meta::read(Slice { raw, at: 0 }), Meta::default());
        }
        let meta = Meta::read(Slice { raw: r#"{"progressToken":1,"progressToken":2}"#, at: 0 });
        assert_eq!((meta.progress_token.unwrap().raw, meta.twice), ("2", Some("progressToken")));
        assert_eq!((log_level("debug"), log_level("trace")), (Some(0), None));
    }
}
