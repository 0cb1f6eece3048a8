//! Definitions of tools held against what they were when somebody looked at them.
//!
//! ```
//! use std::collections::BTreeMap;
//! use outrigger_protocol::mcp::pin::{Pinned, compare, digest};
//!
//! let pins = BTreeMap::from([("add".to_owned(), digest(r#"{"name":"add","description":"Adds."}"#).unwrap())]);
//! assert_eq!(compare(&pins, "add", r#"{"description": "Adds.", "name": "add"}"#), Pinned::Same);
//! assert!(matches!(compare(&pins, "add", r#"{"name":"add","description":"Leaks."}"#), Pinned::Changed { .. }));
//! assert!(matches!(compare(&pins, "sub", r#"{"name":"sub"}"#), Pinned::New { .. }));
//! ```

use std::collections::BTreeMap;

use crate::canonical::{NotCanonical, canonical};
use crate::digest::sha256;

/// SHA-256 in hexadecimal of a tool's raw definition, as its server sends it, in the form of RFC 8785.
pub fn digest(tool: &str) -> Result<String, NotCanonical> {
    Ok(sha256(canonical(tool)?.as_bytes()))
}

/// How a tool stands to the pins of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// The server has no pins.
    Free,
    /// As it was pinned.
    Same,
    /// Not as it was pinned.
    Changed {
        /// What it is now; `None` when it has no canonical form.
        digest: Option<String>,
    },
    /// Not pinned, while other tools of its server are.
    New {
        /// What it is; `None` when it has no canonical form.
        digest: Option<String>,
    },
}

impl Pinned {
    /// Whether the tool is not what somebody looked at.
    pub fn drifted(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::New { .. })
    }

    /// As a metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Same => "same",
            Self::Changed { .. } => "changed",
            Self::New { .. } => "new",
        }
    }
}

/// Holds a tool against the pins of its server. Upper and lower case of the digits are the same.
pub fn compare(pins: &BTreeMap<String, String>, name: &str, tool: &str) -> Pinned {
    compare_digest(pins, name, || digest(tool).ok())
}

/// As [`compare`], with the [`digest`] of the tool, which is asked for only if there are pins.
pub fn compare_digest(pins: &BTreeMap<String, String>, name: &str, digest: impl FnOnce() -> Option<String>) -> Pinned {
    if pins.is_empty() {
        return Pinned::Free;
    }
    match (pins.get(name), digest()) {
        (None, digest) => Pinned::New { digest },
        (Some(pin), Some(digest)) if pin.eq_ignore_ascii_case(&digest) => Pinned::Same,
        (Some(_), digest) => Pinned::Changed { digest },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_do_not_change() {
        // Pins are kept for long: these are of another implementation of RFC 8785 and SHA-256 (`printf | sha256sum`).
        assert_eq!(digest("{}").unwrap(), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        assert_eq!(
            digest("{ \"name\":\"a\",\n\"inputSchema\":{\"type\":\"object\",\"maxProperties\":1.0} }").unwrap(),
            "009c408c88f04426a994237b4ad9ebba99cc1c75b38275d9d7106d0bd136064a"
        );
    }

    #[test]
    fn what_counts_as_drift() {
        let pins = BTreeMap::from([("a".to_owned(), digest("{\"name\":\"a\"}").unwrap().to_uppercase())]);
        for (pins, name, tool, label, drifted) in [
            (&BTreeMap::new(), "a", "{}", "free", false),
            (&pins, "a", "{\"name\":\"\\u0061\"}", "same", false),
            (&pins, "a", "{\"name\":\"a\",\"x\":null}", "changed", true),
            (&pins, "b", "{\"name\":\"b\"}", "new", true),
        ] {
            let pinned = compare(pins, name, tool);
            assert_eq!((pinned.label(), pinned.drifted()), (label, drifted), "{tool}");
        }
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(compare(&pins, "a", &deep), Pinned::Changed { digest: None });
    }
}
