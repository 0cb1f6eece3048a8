//! One list made of the lists of several servers.

use std::fmt::Write as _;

use super::{List, Page};
use crate::jsonrpc::splice;
use crate::mcp::meta::SERVER_INFO;

/// Items of one list that is put together.
pub const MAX_ITEMS: usize = 16_384;
/// Bytes of all its items.
pub const MAX_BYTES: usize = 32 << 20;

/// The list has no room for another item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list of several servers has at most {MAX_ITEMS} items and {MAX_BYTES} bytes")]
pub struct Full;

/// A list that grows.
#[derive(Clone, Debug)]
pub struct Merged {
    list: List,
    items: Vec<(String, String)>,
    bytes: usize,
    /// The shortest time that a part may be kept; `None` before the first part.
    ttl_ms: Option<u64>,
    public: bool,
}

impl Merged {
    /// An empty one.
    pub fn new(list: List) -> Self {
        Self { list, items: Vec::new(), bytes: 0, ttl_ms: None, public: true }
    }

    /// Notes how long a page may be kept, and by whom: the whole not longer, and not by more.
    pub fn part(&mut self, page: &Page<'_>) {
        let ttl = page.ttl_ms.unwrap_or_default();
        self.ttl_ms = Some(self.ttl_ms.map_or(ttl, |old| old.min(ttl)));
        self.public &= page.public;
    }

    /// Notes that a part is missing: the list is not to be kept.
    pub fn missing(&mut self) {
        self.ttl_ms = Some(0);
        self.public = false;
    }

    /// Adds an item under the name, URI or template that it is shown with.
    pub fn push(&mut self, id: impl Into<String>, raw: impl Into<String>) -> Result<(), Full> {
        let raw = raw.into();
        if self.items.len() >= MAX_ITEMS || self.bytes + raw.len() > MAX_BYTES {
            return Err(Full);
        }
        self.bytes += raw.len();
        self.items.push((id.into(), raw));
        Ok(())
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Puts the items in the order of their names, which stays whatever order servers have.
    pub fn sort(&mut self) {
        self.items.sort_by(|a, b| a.0.cmp(&b.0));
    }

    /// The response for the request with this raw id. `next` is the cursor of the next page. A stateless client is also
    /// told how long it may keep this, and by which server (raw) it was made.
    pub fn response(&self, id: &str, next: Option<&str>, modern: Option<&str>) -> Vec<u8> {
        let mut result = String::with_capacity(self.bytes + self.items.len() + 256);
        result.push('{');
        if modern.is_some() {
            result.push_str("\"resultType\":\"complete\",");
        }
        let _ = write!(result, "\"{}\":[", self.list.key());
        for (i, (_, raw)) in self.items.iter().enumerate() {
            result.push_str(if i == 0 { "" } else { "," });
            result.push_str(raw);
        }
        result.push(']');
        if let Some(next) = next {
            let _ = write!(result, ",\"nextCursor\":{}", crate::mcp::object::quoted(next));
        }
        if let Some(server) = modern {
            let scope = if self.public && self.ttl_ms.is_some() { "public" } else { "private" };
            let ttl = self.ttl_ms.unwrap_or_default();
            let _ =
                write!(result, ",\"ttlMs\":{ttl},\"cacheScope\":\"{scope}\",\"_meta\":{{\"{SERVER_INFO}\":{server}}}");
        }
        result.push('}');
        splice(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"), &[])
    }
}
