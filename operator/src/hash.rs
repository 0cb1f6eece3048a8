//! SHA-256 as hex text.

pub use outrigger_protocol::digest::sha256 as hex;

/// The first `digits` hex digits of the SHA-256 of bytes.
pub fn short(bytes: &[u8], digits: usize) -> String {
    let mut text = hex(bytes);
    text.truncate(digits);
    text
}
