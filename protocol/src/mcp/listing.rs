//! Lists of tools, prompts, resources and skills: items left out, changed, sorted, and put together from several
//! servers. An item that stays as it is keeps its bytes.
//!
//! ```
//! use outrigger_protocol::jsonrpc::Envelope;
//! use outrigger_protocol::mcp::listing::{List, Page};
//!
//! let text = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"b"},{"name":"a", "x":1.0}],"nextCursor":"n"}}"#;
//! let page = Page::read(List::Tools, Envelope::parse(text, 64).unwrap().result.unwrap()).unwrap();
//! let line = page.rewritten(text, true, |item| (item.id != "b").then(|| item.raw().into())).unwrap();
//! assert_eq!(
//!     String::from_utf8(line).unwrap(),
//!     r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a", "x":1.0}],"nextCursor":"n"}}"#
//! );
//! ```

mod cut;
mod judge;
mod merged;

use std::borrow::Cow;

pub use cut::cut;
pub use judge::{Audience, Dropped, judge};
pub use merged::{Full, MAX_BYTES, MAX_ITEMS, Merged};

use super::names::ORIGINAL_NAME;
use super::object::{Edits, Object, elements, quoted};
use super::uri;
use crate::jsonrpc::{Slice, member, splice, string};

/// A list that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum List {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
    /// `skills/list` (extension `io.modelcontextprotocol/skills`).
    Skills,
}

impl List {
    /// Each of them.
    pub const ALL: [Self; 5] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates, Self::Skills];

    /// The list that a method gives.
    pub fn of(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.method() == method)
    }

    /// The method that gives it.
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Skills => "skills/list",
        }
    }

    /// The member of the result that has the items.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Skills => "skills",
        }
    }

    /// The member of an item that tells it from others.
    pub fn id_key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources | Self::Skills => "uri",
            Self::Templates => "uriTemplate",
        }
    }
}

/// One item of a list.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Its name, URI or template; empty when it has none.
    pub id: Cow<'a, str>,
    list: List,
    /// Split with offsets that count from the item's first byte.
    object: Option<Object<'a>>,
    raw: &'a str,
}

/// What is to be changed in an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change<'c> {
    /// Another name, URI or template.
    pub id: Option<&'c str>,
    /// What its server calls it, to be told in `_meta`.
    pub original: Option<&'c str>,
    /// Longest description in bytes.
    pub max_description: Option<usize>,
    /// Another URI of the user interface that belongs to it (MCP Apps).
    pub app: Option<&'c str>,
}

impl<'a> Item<'a> {
    fn read(list: List, slice: Slice<'a>) -> Self {
        let object = Object::read(Slice { raw: slice.raw, at: 0 });
        let id = object.as_ref().and_then(|o| o.text(list.id_key())).unwrap_or_default();
        Self { id, list, object, raw: slice.raw }
    }

    /// As its server sent it.
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    /// A member of it.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.object.as_ref()?.get(key).map(|v| v.raw)
    }

    /// The URI of the user interface that belongs to it (MCP Apps).
    pub fn app(&self) -> Option<Cow<'a, str>> {
        uri::app(Slice { raw: self.raw, at: 0 }).and_then(|u| string(u.raw))
    }

    /// Whether a tool can only be called as a task of the handshake revisions (2025-11-25, `execution.taskSupport`),
    /// which a stateless client can't.
    pub fn needs_task(&self) -> bool {
        let execution = self.object.as_ref().and_then(|o| o.get("execution"));
        execution.and_then(|e| member(e, "taskSupport")).is_some_and(|t| string(t.raw).as_deref() == Some("required"))
    }

    /// The item with changes; as it is where there are none.
    pub fn changed(&self, change: &Change<'_>) -> Cow<'a, str> {
        let Some(object) = &self.object else { return Cow::Borrowed(self.raw) };
        let mut edits = Edits::default();
        let mut any = false;
        let mut replace = |slice: Slice<'_>, new: String| {
            if slice.raw != new {
                edits.replace(slice.range(), new);
                any = true;
            }
        };
        if let Some((new, old)) = change.id.zip(object.get(self.list.id_key())).filter(|(new, _)| *new != self.id) {
            replace(old, quoted(new));
        }
        if let Some((most, old)) = change.max_description.zip(object.get("description"))
            && let Some(short) = cut(old.raw, most)
        {
            replace(old, short);
        }
        if let Some((new, old)) = change.app.zip(uri::app(Slice { raw: self.raw, at: 0 })) {
            replace(old, quoted(new));
        }
        if let Some(original) = change.original {
            let member = format!("\"{ORIGINAL_NAME}\":{}", quoted(original));
            match object.get("_meta").map(|m| (m, Object::read(m))) {
                Some((_, Some(meta))) => edits.members(&meta, |key| key == ORIGINAL_NAME, &member),
                Some((meta, None)) => edits.replace(meta.range(), format!("{{{member}}}")),
                None => edits.members(object, |_| false, &format!("\"_meta\":{{{member}}}")),
            }
            any = true;
        }
        if !any {
            return Cow::Borrowed(self.raw);
        }
        String::from_utf8(edits.apply(self.raw)).map_or(Cow::Borrowed(self.raw), Cow::Owned)
    }
}

/// One page of a server's list.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Its items in their order.
    pub items: Vec<Item<'a>>,
    /// Where the next page begins, a raw string.
    pub next: Option<&'a str>,
    /// How long it may be kept, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Whether it may be kept for all callers.
    pub public: bool,
    array: Slice<'a>,
}

impl<'a> Page<'a> {
    /// Reads a result; `None` when it has no such list.
    pub fn read(list: List, result: Slice<'a>) -> Option<Self> {
        let object = Object::read(result)?;
        let array = object.get(list.key())?;
        let items = elements(array)?.into_iter().map(|slice| Item::read(list, slice)).collect();
        Some(Self {
            items,
            next: object.get("nextCursor").filter(|c| c.raw.starts_with('"')).map(|c| c.raw),
            ttl_ms: object.get("ttlMs").and_then(|t| t.raw.parse().ok()),
            public: object.text("cacheScope").as_deref() == Some("public"),
            array,
        })
    }

    /// The response `text` that this page was read from, with each item as `change` gives it, and without those that it
    /// gives nothing for. `sorted`: in the order of their names, which stays when a server's own does not. `None` when
    /// nothing changes.
    pub fn rewritten(
        &self,
        text: &str,
        sorted: bool,
        mut change: impl FnMut(&Item<'a>) -> Option<Cow<'a, str>>,
    ) -> Option<Vec<u8>> {
        let mut items: Vec<(&str, Cow<'a, str>)> =
            self.items.iter().filter_map(|item| change(item).map(|new| (&*item.id, new))).collect();
        let in_order = !sorted || items.is_sorted_by_key(|(id, _)| *id);
        let same = items.len() == self.items.len() && items.iter().all(|(_, new)| matches!(new, Cow::Borrowed(_)));
        if same && in_order {
            return None;
        }
        if sorted {
            items.sort_by_key(|(id, _)| *id);
        }
        let raw: Vec<&str> = items.iter().map(|(_, new)| &**new).collect();
        Some(splice(text, &[(self.array.range(), &format!("[{}]", raw.join(",")))]))
    }
}

#[cfg(test)]
mod tests;
