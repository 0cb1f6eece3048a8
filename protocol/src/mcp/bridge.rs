//! The two eras in front of each other: what a proxy changes in messages of a modern client for a legacy server
//! ([`to_legacy`]) and of a legacy client for a modern server ([`to_modern`]). Everything else keeps its bytes.

pub mod to_legacy;
pub mod to_modern;

#[cfg(test)]
mod tests;

use crate::jsonrpc::{Envelope, member};

/// The code of an error response.
pub fn error_code(response: &Envelope<'_>) -> Option<i64> {
    let code = member(response.error?, "code")?.raw;
    // 1.0 and 1e0 are integers to JSON Schema.
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and no code is that large")]
    code.parse().ok().or_else(|| code.parse::<f64>().ok().filter(|c| c.fract() == 0.0).map(|c| c as i64))
}
