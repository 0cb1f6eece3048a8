//! Long descriptions made shorter.

/// What shows that there was more.
const MARK: &str = "…";

/// A raw string with at most `most` bytes of text, a mark at its end; `None` when it is no longer than that, or no
/// string. Escapes stay as they are written, and none is cut in two.
///
/// ```
/// use outrigger_protocol::mcp::listing::cut;
/// assert_eq!(cut(r#""short""#, 5), None);
/// assert_eq!(cut(r#""a\n\u00e9xyz""#, 6).as_deref(), Some(r#""a\n…""#));
/// ```
pub fn cut(raw: &str, most: usize) -> Option<String> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    // Text is never longer than its raw form.
    if inner.len() <= most {
        return None;
    }
    let room = most.saturating_sub(MARK.len());
    let (mut at, mut bytes, mut end) = (0, 0, 0);
    while at < inner.len() {
        let (length, size) = piece(&inner[at..]);
        at += length;
        bytes += size;
        if bytes <= room {
            end = at;
        }
        if bytes > most {
            let mark = if most < MARK.len() { "" } else { MARK };
            return Some(format!("\"{}{mark}\"", &inner[..end]));
        }
    }
    None
}

/// Length in the raw form, and in text, of the character that a raw text begins with. Half a pair counts as what
/// readers put in its place.
fn piece(raw: &str) -> (usize, usize) {
    let unit = |at: usize| {
        let hex = raw.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u32::from_str_radix(hex, 16).ok()
    };
    match unit(0) {
        Some(high @ 0xd800..0xdc00) => match unit(6) {
            Some(low @ 0xdc00..0xe000) => {
                (12, char::from_u32(0x10000 + ((high - 0xd800) << 10) + low - 0xdc00).map_or(4, char::len_utf8))
            }
            _ => (6, 3),
        },
        Some(code) => (6, char::from_u32(code).map_or(3, char::len_utf8)),
        None if raw.starts_with('\\') => (raw.len().min(2), 1),
        None => raw.chars().next().map_or((1, 1), |c| (c.len_utf8(), c.len_utf8())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn where_it_is_cut() {
        for (raw, most, want) in [
            ("\"abcdef\"", 6, None),
            ("\"abcdef\"", 5, Some("\"ab…\"")),
            ("\"abcdef\"", 3, Some("\"…\"")),
            ("\"abcdef\"", 2, Some("\"\"")),
            ("\"abcdef\"", 0, Some("\"\"")),
            ("\"\\\"\\\"\\\"\\\"\\\"\"", 4, Some("\"\\\"…\"")),
            ("\"\\ud83d\\ude00abc\"", 7, None),
            ("\"\\ud83d\\ude00abc\"", 6, Some("\"…\"")),
            ("\"\\ud83dabcdef\"", 8, Some("\"\\ud83dab…\"")),
            ("\"ééé\"", 5, Some("\"é…\"")),
            ("7777", 1, None),
            ("null", 1, None),
        ] {
            assert_eq!(cut(raw, most).as_deref(), want, "{raw} {most}");
        }
    }

    proptest! {
        #[test]
        fn what_is_left_is_a_prefix(text in ".{0,40}", most in 0_usize..60, escaped in any::<bool>()) {
            let raw = if escaped {
                let units: Vec<String> = text.encode_utf16().map(|u| format!("\\u{u:04x}")).collect();
                format!("\"{}\"", units.concat())
            } else {
                crate::mcp::object::quoted(&text)
            };
            match cut(&raw, most) {
                None => prop_assert!(text.len() <= most),
                Some(short) => {
                    let short: String = serde_json::from_str(&short).unwrap();
                    prop_assert!(text.len() > most && short.len() <= most);
                    let kept = short.strip_suffix(MARK).unwrap_or(&short);
                    prop_assert!(text.starts_with(kept));
                    // No character more would have had room.
                    let next = text[kept.len()..].chars().next().map_or(0, char::len_utf8);
                    prop_assert!(most < MARK.len() || kept.len() + next + MARK.len() > most);
                }
            }
        }
    }
}
