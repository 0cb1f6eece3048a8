//! HTTP headers that repeat what stands in the body of a modern request (2026-07-28, transports, "Standard headers").

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One header of a request: its value, or why it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header<'a> {
    /// Not there.
    #[default]
    Absent,
    /// There once.
    Value(&'a str),
    /// There more than once: readers would disagree about the value.
    Twice,
    /// Has a character that is not visible ASCII, space or tab.
    NotText,
}

impl<'a> Header<'a> {
    /// From the values of all headers with this name, in any order. White space around a value is not part of it.
    pub fn of(mut values: impl Iterator<Item = &'a [u8]>) -> Self {
        let Some(value) = values.next() else { return Self::Absent };
        if values.next().is_some() {
            return Self::Twice;
        }
        match std::str::from_utf8(value) {
            Ok(text) if text.bytes().all(|b| matches!(b, b'\t' | b' '..=b'~')) => {
                Self::Value(text.trim_matches([' ', '\t']))
            }
            _ => Self::NotText,
        }
    }

    /// Whether it is there in any form.
    pub fn is_present(&self) -> bool {
        *self != Self::Absent
    }
}

/// What a value stands for: `=?base64?...?=` carries text that a header can't (lower-case marker, standard alphabet,
/// padded, UTF-8). `None` when it looks like that and is none.
///
/// ```
/// use outrigger_protocol::mcp::header::decoded;
/// assert_eq!(decoded("plain").as_deref(), Some("plain"));
/// assert_eq!(decoded("=?base64?w7xiZXI=?=").as_deref(), Some("über"));
/// assert_eq!(decoded("=?base64?w7xiZXI?="), None);
/// ```
pub fn decoded(value: &str) -> Option<Cow<'_, str>> {
    match value.strip_prefix("=?base64?").and_then(|v| v.strip_suffix("?=")) {
        None => Some(Cow::Borrowed(value)),
        Some(body) => String::from_utf8(STANDARD.decode(body).ok()?).ok().map(Cow::Owned),
    }
}

/// A text as a header value: as it is where a header can carry it, else in Base64.
pub fn encoded(text: &str) -> Cow<'_, str> {
    let plain = text.bytes().all(|b| matches!(b, b' '..=b'~')) && text.trim_matches(' ').len() == text.len();
    if plain && !(text.starts_with("=?base64?") && text.ends_with("?=")) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_and_none() {
        let of = |values: &[&'static str]| Header::of(values.iter().map(|v| v.as_bytes()));
        assert_eq!(of(&[]), Header::Absent);
        assert_eq!(of(&[" a b\t"]), Header::Value("a b"));
        assert_eq!(of(&["a", "a"]), Header::Twice);
        assert_eq!(of(&["é"]), Header::NotText);
        assert_eq!(of(&["a\u{0}"]), Header::NotText);
        assert_eq!(Header::of(std::iter::once(&b"\xff"[..])), Header::NotText);
        assert!(!of(&[]).is_present() && of(&[""]).is_present());
    }

    #[test]
    fn sentinels_are_strict() {
        for bad in
            ["=?base64?w7xiZXI?=", "=?base64?w7xi ZXI=?=", "=?base64?_-__?=", "=?base64?/w==?=", "=?base64?w7xiZXJ=?="]
        {
            assert_eq!(decoded(bad), None, "{bad}");
        }
        for literal in ["=?BASE64?YQ==?=", "=?base64?YQ==", "base64", "=?base64?="] {
            assert_eq!(decoded(literal).as_deref(), Some(literal));
        }
        assert_eq!(decoded("=?base64??=").as_deref(), Some(""));
    }

    proptest! {
        #[test]
        fn any_text_makes_the_way(text in ".*") {
            let value = encoded(&text);
            let header = Header::of(std::iter::once(value.as_bytes()));
            let Header::Value(seen) = header else { panic!("{header:?}") };
            let back = decoded(seen);
            prop_assert_eq!(back.as_deref(), Some(text.as_str()));
        }
    }
}
