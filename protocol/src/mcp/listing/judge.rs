//! Whether a tool is there for a caller.

use crate::config::{Drift, Filter, ToolPolicy};
use crate::mcp::annotation::{Invalid, params};
use crate::mcp::filter::passes_all;
use crate::mcp::pin::{Pinned, compare};

use super::Item;

/// Who a list is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience<'f> {
    /// What the caller may use beside what the server's policy says.
    pub caller: Option<&'f Filter>,
    /// A stateless client, which repeats arguments in headers.
    pub modern: bool,
    /// A client that can call tools as tasks of its server.
    pub tasks: bool,
}

/// Why a tool is not there. A call of it is answered as if there were none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// It has no name to call it by.
    #[error("it has no name")]
    NoName,
    /// A filter.
    #[error("it is not allowed")]
    NotAllowed,
    /// It is not as it was pinned, and such tools are blocked.
    #[error("its definition is not the pinned one ({})", .0.label())]
    Drifted(Pinned),
    /// Its schema names headers that clients refuse.
    #[error("{0}")]
    Annotation(Invalid),
    /// It can only be called as a task.
    #[error("it can only be called as a task, which this client cannot")]
    NeedsTask,
}

impl Dropped {
    /// As a metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoName => "name",
            Self::NotAllowed => "filter",
            Self::Drifted(_) => "drift",
            Self::Annotation(_) => "annotation",
            Self::NeedsTask => "task",
        }
    }
}

/// Whether a tool is there, and how it stands to its pin if that matters.
pub fn judge(tool: &Item<'_>, policy: Option<&ToolPolicy>, audience: Audience<'_>) -> Result<Pinned, Dropped> {
    if tool.id.is_empty() {
        return Err(Dropped::NoName);
    }
    let filters = policy.iter().flat_map(|p| &p.filters).chain(audience.caller);
    if !passes_all(filters, &tool.id) {
        return Err(Dropped::NotAllowed);
    }
    if let Some(schema) = tool.get("inputSchema").filter(|_| audience.modern) {
        params(schema).map_err(Dropped::Annotation)?;
    }
    if !audience.tasks && tool.needs_task() {
        return Err(Dropped::NeedsTask);
    }
    let pinned = match policy {
        Some(p) if p.drift != Drift::Allow => compare(&p.pins, &tool.id, tool.raw()),
        _ => Pinned::Free,
    };
    match policy {
        Some(p) if p.drift == Drift::Block && pinned.drifted() => Err(Dropped::Drifted(pinned)),
        _ => Ok(pinned),
    }
}
