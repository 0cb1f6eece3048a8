//! The edits that a proxy makes to messages: ids, progress tokens, and the revision of a handshake. Everything else
//! keeps its bytes.

use std::ops::Range;

use super::{HANDSHAKE_REVISIONS, is_handshake_revision};
use crate::jsonrpc::{Envelope, Slice, member, splice, string};

/// A message for a child, and what must be put back in the answers to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Outbound<'a> {
    /// One line, without its newline.
    pub line: Vec<u8>,
    /// The raw progress token of the client.
    pub token: Option<&'a str>,
}

/// A request for a child under the proxy's own id. A progress token is replaced with the same id, so that one table
/// serves both.
pub fn request<'a>(envelope: &Envelope<'a>, id: u64) -> Outbound<'a> {
    let id = id.to_string();
    let token = progress_token(envelope);
    let mut edits: Vec<(Range<usize>, &str)> = Vec::with_capacity(3);
    edits.extend(envelope.id.map(|i| (i.range(), id.as_str())));
    edits.extend(token.map(|t| (t.range(), id.as_str())));
    edits.extend(unknown_revision(envelope).map(|r| (r, newest_revision())));
    edits.sort_by_key(|(range, _)| range.start);
    Outbound { line: splice(envelope.text, &edits), token: token.map(|t| t.raw) }
}

/// `params._meta.progressToken` of a request.
pub(crate) fn progress_token<'a>(envelope: &Envelope<'a>) -> Option<Slice<'a>> {
    let token = member(member(envelope.params?, "_meta")?, "progressToken")?;
    token.raw.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit()).then_some(token)
}

/// The span of a revision in `initialize` that no child may get from a handshake: offering a newer or unknown one
/// could make it answer in a way that a session can't carry.
fn unknown_revision(envelope: &Envelope<'_>) -> Option<Range<usize>> {
    if envelope.method != "initialize" {
        return None;
    }
    let revision = member(envelope.params?, "protocolVersion")?;
    (!string(revision.raw).is_some_and(|r| is_handshake_revision(&r))).then(|| revision.range())
}

/// The newest handshake revision as raw JSON.
fn newest_revision() -> &'static str {
    debug_assert_eq!(HANDSHAKE_REVISIONS[0], "2025-11-25");
    "\"2025-11-25\""
}

/// A response or request with another raw id, as one line.
pub fn with_id(envelope: &Envelope<'_>, id: &str) -> Vec<u8> {
    match envelope.id {
        Some(old) => splice(envelope.text, &[(old.range(), id)]),
        None => splice(envelope.text, &[]),
    }
}

/// A message with one member of its params replaced, as one line; as it is when the member isn't there.
pub fn with_param(envelope: &Envelope<'_>, key: &str, raw: &str) -> Vec<u8> {
    match envelope.params.and_then(|p| member(p, key)) {
        Some(old) => splice(envelope.text, &[(old.range(), raw)]),
        None => splice(envelope.text, &[]),
    }
}

/// A raw param, such as `requestId` of `notifications/cancelled` or `progressToken` of `notifications/progress`.
pub fn param<'a>(envelope: &Envelope<'a>, key: &str) -> Option<&'a str> {
    envelope.params.and_then(|p| member(p, key)).map(|s| s.raw)
}

/// The number that a raw id or token stands for: itself, or its string form (some servers answer with strings).
pub fn own_id(raw: &str) -> Option<u64> {
    raw.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Envelope<'_> {
        Envelope::parse(text, 64).unwrap()
    }

    #[test]
    fn request_gets_our_id_and_token() {
        let text = r#"{"params":{"_meta":{"progressToken":"t1","x":[1, 2]},"name":"a"},"jsonrpc":"2.0","method":"tools/call","id":"c"}"#;
        let out = request(&parse(text), 9);
        assert_eq!(out.token, Some("\"t1\""));
        assert_eq!(
            String::from_utf8(out.line).unwrap(),
            r#"{"params":{"_meta":{"progressToken":9,"x":[1, 2]},"name":"a"},"jsonrpc":"2.0","method":"tools/call","id":9}"#
        );
    }

    #[test]
    fn a_handshake_never_offers_an_unknown_revision() {
        let init =
            |v: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":{v}}}}}"#);
        let sent = |v: &str| String::from_utf8(request(&parse(&init(v)), 1).line).unwrap();
        assert!(sent("\"2026-07-28\"").contains("\"2025-11-25\""));
        assert!(sent("7").contains("\"2025-11-25\""));
        assert!(sent("\"2024-11-05\"").contains("\"2024-11-05\""));
    }

    #[test]
    fn ids_and_params_are_put_back() {
        let r = parse(r#"{"jsonrpc":"2.0","id":17,"result":{"id":17}}"#);
        assert_eq!(with_id(&r, "1.0"), br#"{"jsonrpc":"2.0","id":1.0,"result":{"id":17}}"#);
        let n = parse(
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"17","progress":50.0}}"#,
        );
        assert_eq!(param(&n, "progressToken").and_then(own_id), Some(17));
        assert_eq!(
            with_param(&n, "progressToken", "\"t\""),
            br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":50.0}}"#
        );
        assert_eq!(own_id("\"a\""), None);
    }
}
