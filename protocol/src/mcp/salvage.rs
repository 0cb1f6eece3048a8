//! What can be saved of a line on a child's stdout that is not a message.

use crate::jsonrpc::Envelope;

/// How much of each end of a broken line is searched for an id.
const SEARCH_BYTES: usize = 1024;
/// How many openings of an object are tried before a line counts as garbage.
const MAX_TRIES: usize = 8;

/// The message behind terminal decoration or log text on the same line (colour codes, a title sequence, a prompt).
pub fn after_prefix(line: &str) -> Option<Envelope<'_>> {
    line.match_indices("{\"").take(MAX_TRIES).find_map(|(at, _)| Envelope::parse(&line[at..], usize::MAX).ok())
}

/// The number under `"id"` in a line that is too long or broken, looked for in its first and last kilobyte: the
/// request that the line would have answered.
pub fn broken_id(head: &[u8], tail: &[u8]) -> Option<u64> {
    let head = &head[..head.len().min(SEARCH_BYTES)];
    let tail = &tail[tail.len().saturating_sub(SEARCH_BYTES)..];
    find_id(head).or_else(|| find_id(tail))
}

fn find_id(text: &[u8]) -> Option<u64> {
    let mut rest = text;
    while let Some(at) = rest.windows(4).position(|w| w == b"\"id\"") {
        rest = &rest[at + 4..];
        let value = rest.trim_ascii_start();
        let Some(value) = value.strip_prefix(b":") else { continue };
        let value = value.trim_ascii_start();
        let value = value.strip_prefix(b"\"").unwrap_or(value);
        let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
        // A number that runs to the end of the window may be cut.
        if digits > 0 && digits < value.len() {
            return std::str::from_utf8(&value[..digits]).ok()?.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_behind_decoration() {
        let line = "\x1b]0;title\x07\x1b[1m{\"a\":1} {\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"b\":{\"c\":1}}}";
        assert_eq!(after_prefix(line).unwrap().id.unwrap().raw, "3");
        assert!(after_prefix("Server listening on {\"port\":1}").is_none());
        assert!(after_prefix(&"{\"".repeat(100_000)).is_none());
    }

    #[test]
    fn id_of_a_broken_line() {
        let body = vec![b'x'; 5000];
        let head = [br#"{"jsonrpc":"2.0","id": 42,"result":""#.as_slice(), &body].concat();
        assert_eq!(broken_id(&head, &body), Some(42));
        let tail = [body.as_slice(), br#"","x":1},"id":"7"}"#].concat();
        assert_eq!(broken_id(&body, &tail), Some(7));
        assert_eq!(broken_id(&body, &body), None);
        assert_eq!(broken_id(br#"{"id":"#, b""), None);
    }
}
