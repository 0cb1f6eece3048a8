//! Percent-encoding (RFC 3986, section 2.1); which bytes need none depends on the place.

use std::fmt::Write as _;

/// A text in which each byte that is not `plain` is `%XX`.
pub fn encoded(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        push(&mut out, byte, plain(byte));
    }
    out
}

/// Appends a byte as it is, or as `%XX` when it is not plain. One beyond ASCII never is.
pub fn push(out: &mut String, byte: u8, plain: bool) {
    if plain && byte.is_ascii() {
        out.push(char::from(byte));
    } else {
        let _ = write!(out, "%{byte:02X}");
    }
}

/// Whether a byte is plain everywhere (RFC 3986, section 2.3).
pub fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
