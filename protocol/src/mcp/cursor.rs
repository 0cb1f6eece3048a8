//! Where a client stands in a list that is made of the lists of several servers. The bytes are to be sealed before a
//! client sees them, since they say which server comes next.
//!
//! ```
//! use outrigger_protocol::mcp::cursor::Cursor;
//!
//! let cursor = Cursor { generation: 7, server: "time".into(), inner: Some("\"p2\"".into()) };
//! assert_eq!(Cursor::read(&cursor.write().unwrap()), Some(cursor));
//! ```

use crate::jsonrpc::scan;

/// Longest cursor of a server that is carried, in bytes of raw JSON.
pub const MAX_INNER: usize = 8 << 10;
/// First byte of this form.
const FORM: u8 = 1;

/// A place in a list of lists. Servers are walked in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Changes when the set of servers or what is let through does; a cursor of another one is not valid any more.
    pub generation: u64,
    /// The server that is next, by name, so that it is found among others too.
    pub server: String,
    /// Its own cursor, a raw JSON string; `None` for its first page. Cursors may be empty.
    pub inner: Option<String>,
}

impl Cursor {
    /// As bytes; `None` when the server's cursor is no string or longer than [`MAX_INNER`].
    pub fn write(&self) -> Option<Vec<u8>> {
        let length = u16::try_from(self.server.len()).ok()?;
        let inner = self.inner.as_deref().unwrap_or_default();
        if inner.len() > MAX_INNER || self.inner.is_some() && !is_string(inner) {
            return None;
        }
        let mut out = Vec::with_capacity(11 + self.server.len() + inner.len());
        out.push(FORM);
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(self.server.as_bytes());
        out.extend_from_slice(inner.as_bytes());
        Some(out)
    }

    /// From bytes that [`Cursor::write`] made.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[FORM])?;
        let (generation, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (server, inner) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let inner = text(inner)?;
        if inner.len() > MAX_INNER || !inner.is_empty() && !is_string(&inner) {
            return None;
        }
        Some(Self {
            generation: u64::from_be_bytes(*generation),
            server: text(server)?,
            inner: (!inner.is_empty()).then_some(inner),
        })
    }
}

fn is_string(raw: &str) -> bool {
    raw.starts_with('"') && scan::check(raw, 1).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_cursor() {
        let made = |inner: &str| Cursor { generation: 1, server: "s".into(), inner: Some(inner.into()) };
        assert_eq!(made("7").write(), None);
        assert_eq!(made("").write(), None);
        assert_eq!(made(&format!("\"{}\"", "x".repeat(MAX_INNER))).write(), None);
        let good = made("\"\"").write().unwrap();
        assert_eq!(Cursor::read(&good), Some(made("\"\"")));
        for bad in [&b""[..], &[2], &good[..5], &good[..11], &good[..good.len() - 1]] {
            assert_eq!(Cursor::read(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_place_makes_the_way(generation in any::<u64>(), server in "[a-z-]{1,63}", inner in prop::option::of(".{0,50}")) {
            let inner = inner.map(|i| crate::mcp::object::quoted(&i));
            let cursor = Cursor { generation, server, inner };
            prop_assert_eq!(Cursor::read(&cursor.write().unwrap()), Some(cursor));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(cursor) = Cursor::read(&bytes) {
                prop_assert_eq!(cursor.write().unwrap(), bytes);
            }
        }
    }
}
