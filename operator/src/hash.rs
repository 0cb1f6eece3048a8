//! SHA-256 as hex text.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// SHA-256 of bytes, 64 hex digits.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The first `digits` hex digits of the SHA-256 of bytes.
pub fn short(bytes: &[u8], digits: usize) -> String {
    let mut text = hex(bytes);
    text.truncate(digits);
    text
}
