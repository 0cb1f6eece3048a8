//! The trace that a call belongs to (W3C Trace Context), told to the server in `params._meta` (2026-07-28, basic,
//! "`_meta`"; servers of the handshake revisions take other members of `_meta` as they come).
//!
//! ```
//! use outrigger_protocol::jsonrpc::Envelope;
//! use outrigger_protocol::mcp::trace::traced;
//!
//! let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#;
//! let line = traced(&Envelope::parse(text, 64).unwrap(), "00-1-2-01", None).unwrap();
//! assert_eq!(
//!     String::from_utf8(line).unwrap(),
//!     r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"traceparent":"00-1-2-01"},"name":"a"}}"#
//! );
//! ```

use std::fmt::Write as _;

use super::object::{Edits, Object, quoted};
use crate::jsonrpc::Envelope;

/// Name of the trace and of the span that a request belongs to, as a header and in `_meta`.
pub const PARENT: &str = "traceparent";
/// What vendors add to it.
pub const STATE: &str = "tracestate";

/// The request with its trace, as one line. `None` when it stays as it is: it names its trace itself, or has no params
/// or a `_meta` that is no object.
pub fn traced(request: &Envelope<'_>, parent: &str, state: Option<&str>) -> Option<Vec<u8>> {
    let params = Object::read(request.params?)?;
    let mut members = format!("\"{PARENT}\":{}", quoted(parent));
    if let Some(state) = state {
        let _ = write!(members, ",\"{STATE}\":{}", quoted(state));
    }
    let mut edits = Edits::default();
    match params.get("_meta") {
        None => edits.members(&params, |_| false, &format!("\"_meta\":{{{members}}}")),
        Some(meta) => {
            let meta = Object::read(meta)?;
            if meta.get(PARENT).is_some() {
                return None;
            }
            // The state of another trace means nothing.
            edits.members(&meta, |key| key == STATE, &members);
        }
    }
    Some(edits.apply(request.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_added_where_there_is_none() {
        let request = |params: &str| format!(r#"{{"id":1.0,"jsonrpc":"2.0","method":"m"{params}}}"#);
        for (params, state, want) in [
            ("", None, None),
            (r#","params":[1]"#, None, None),
            (r#","params":{"_meta":7}"#, None, None),
            (r#","params":{"_meta":{"traceparent":"x"}}"#, None, None),
            (r#","params":{"_meta":{"tr\u0061ceparent":"x"}}"#, None, None),
            (r#","params":{}"#, None, Some(r#","params":{"_meta":{"traceparent":"p"}}"#)),
            (
                r#","params":{"_meta":{}}"#,
                Some("s"),
                Some(r#","params":{"_meta":{"traceparent":"p","tracestate":"s"}}"#),
            ),
            (
                r#","params":{"a":1.0,"_meta":{"progressToken": 1,"tracestate":"old"}}"#,
                None,
                Some(r#","params":{"a":1.0,"_meta":{"traceparent":"p","progressToken": 1}}"#),
            ),
        ] {
            let text = request(params);
            let line = traced(&Envelope::parse(&text, 64).unwrap(), "p", state).map(|l| String::from_utf8(l).unwrap());
            assert_eq!(line, want.map(request), "{params}");
        }
    }
}
