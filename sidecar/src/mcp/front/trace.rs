//! The trace of a call: that of its `_meta`, else of its HTTP request, else a new one. Servers get it in `_meta`.

use http::HeaderMap;
use outrigger_protocol::jsonrpc::{Envelope, Kind};
use outrigger_protocol::mcp::trace;

use crate::a2a::ids::Trace;

/// Longest `tracestate` that is passed on (W3C Trace Context asks for 512 characters at least).
const MAX_STATE: usize = 512;

/// A call of a tool with its trace; `None` for what stays as it is. The span is one of ours, below the caller's.
pub fn traced(headers: &HeaderMap, envelope: &Envelope<'_>) -> Option<String> {
    if envelope.kind != Kind::Request || envelope.method != "tools/call" {
        return None;
    }
    let trace = Trace::of(headers);
    let state = trace.state.as_ref().and_then(|s| s.to_str().ok()).filter(|s| s.len() <= MAX_STATE);
    String::from_utf8(trace::traced(envelope, trace.parent.to_str().ok()?, state)?).ok()
}
