//! Skills over MCP: the extension `io.modelcontextprotocol/skills` (SEP-2640) for clients that know it, and tools and
//! prompts for all others, from one store. Nothing is told that was not asked for but the catalogue, which has a budget.

mod catalogue;
mod resources;
mod talk;
mod tools;
mod view;

use std::sync::{Arc, OnceLock, Weak};

use outrigger_protocol::config::Live;
use tokio::sync::watch;

use super::{Metrics, Skills};
use crate::mcp::builtin::{BuiltIn, Conversation};
use view::View;
pub use view::{Found, Tools};

/// Name of the server: the last segment of its URL.
pub const NAME: &str = "skills";
/// Most entries of one page of a list.
pub const PAGE: usize = 100;

/// The server of one pod's skills.
pub struct Disclosure {
    skills: Arc<Skills>,
    live: watch::Receiver<Arc<Live>>,
    namespace: String,
    tools: OnceLock<Weak<dyn Tools>>,
    me: Weak<Self>,
}

impl Disclosure {
    /// Serves these skills of an Agent of a namespace.
    pub fn new(skills: &Arc<Skills>, live: watch::Receiver<Arc<Live>>, namespace: &str) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            skills: Arc::clone(skills),
            live,
            namespace: namespace.into(),
            tools: OnceLock::new(),
            me: me.clone(),
        })
    }

    /// Says where the tools are that skills require; before that, none is known to be missing.
    pub fn know(&self, tools: Weak<dyn Tools>) {
        let _ = self.tools.set(tools);
    }

    fn view(&self) -> View {
        let held = Arc::clone(&self.skills.shelf.borrow());
        let live = Arc::clone(&self.live.borrow());
        let tools = self.tools.get().and_then(Weak::upgrade);
        View::new(&held, &live, &self.namespace, tools.as_deref())
    }

    fn metrics(&self) -> &Metrics {
        &self.skills.metrics
    }
}

impl BuiltIn for Disclosure {
    fn offered(&self) -> bool {
        self.skills.shelf.borrow().iter().any(view::served)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.skills.changes.subscribe()
    }

    fn open(&self) -> Box<dyn Conversation> {
        Box::new(talk::Talk::new(self.me.upgrade()))
    }
}
