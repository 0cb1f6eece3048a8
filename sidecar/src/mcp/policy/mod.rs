//! What callers may do with the tools of a server: the rules of the live document, in the path of each request.
//!
//! A tool that a caller may not use is not there: it is in no list, and a call of it is answered like that of any unknown
//! name, without the server's hearing of it. What is bounded (size of arguments, calls at once, calls in a minute) is
//! answered as the failure of the tool, which agents show to their model (2025-11-25 and 2026-07-28, tools, "Error
//! handling"), with the time after which it may be called again.

mod audit;
mod definitions;
mod gate;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use outrigger_protocol::config::{Drift, Filter, Live, ToolPolicy};
use outrigger_protocol::jsonrpc::Envelope;
use outrigger_protocol::mcp::listing::{Audience, Change, Dropped, Item, List, Page, judge};
use outrigger_protocol::mcp::pin::Pinned;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::client::{Client as _, Streams};
use super::metrics::Metrics;
use super::outlet::Answer;
use super::pool::Server;
use crate::bucket::Buckets;
use definitions::Definitions;
pub use definitions::{Definition, MAX_DEFINITIONS};
pub use gate::admitted;

/// Drifted definitions of one server that are told once each.
const MAX_TOLD: usize = 1024;
/// What clients are told when rules change.
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// The rules for one server, and what must be remembered to keep them.
pub struct Policy {
    server: Box<str>,
    live: watch::Receiver<Arc<Live>>,
    metrics: Metrics,
    definitions: Definitions,
    rates: Buckets,
    /// Calls in flight by tool, of tools whose calls are bounded.
    running: Mutex<HashMap<Arc<str>, u32>>,
    /// Definitions that were told of as drifted.
    told: Mutex<HashSet<(String, Option<String>)>>,
}

/// Who may see what: the rules at one time, for one caller.
#[derive(Clone)]
pub struct View {
    live: Arc<Live>,
    caller: Option<Arc<Filter>>,
}

impl Policy {
    /// Follows the live document.
    pub fn new(server: &str, live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Self {
        Self {
            server: server.into(),
            live,
            metrics,
            definitions: Definitions::default(),
            rates: Buckets::default(),
            running: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// The rules now, for a caller that may have a filter of its own.
    pub fn view(&self, caller: Option<Arc<Filter>>) -> View {
        View { live: Arc::clone(&self.live.borrow()), caller: caller.filter(|f| !f.is_open()) }
    }

    /// Keeps what the server said of its tools; `all`: there are no others.
    pub fn learn(&self, tools: &[Definition], all: bool) {
        self.definitions.learn(tools, all);
        // What drifted is told when it is seen, whether or not a client asks for it.
        let live = Arc::clone(&self.live.borrow());
        let Some(rules) = live.mcp.servers.get(&*self.server).filter(|r| r.drift != Drift::Allow) else { return };
        for tool in tools {
            self.tell(rules, &tool.name, &tool.standing(&rules.pins));
        }
    }

    /// The server said that its tools are others now.
    pub fn stale(&self) {
        self.definitions.stale();
    }

    /// A response to `tools/list` as a caller may see it.
    fn shown(&self, view: &View, answer: Answer) -> Answer {
        if !answer.ok() {
            return answer;
        }
        let rules = view.rules(&self.server);
        let text = std::str::from_utf8(&answer.body).unwrap_or_default();
        let envelope = Envelope::parse(text, usize::MAX).ok();
        let page = envelope.as_ref().and_then(|e| e.result).and_then(|r| Page::read(List::Tools, r));
        let Some((envelope, page)) = envelope.as_ref().zip(page) else {
            // What can't be read can't be filtered.
            let id = envelope.as_ref().and_then(|e| e.id).map(|i| i.raw);
            let why = "the server's answer to tools/list has no list of tools";
            return Answer::error(id, outrigger_protocol::jsonrpc::INTERNAL_ERROR, why);
        };
        let audience = Audience { caller: view.caller.as_deref(), modern: false, tasks: true };
        let most = rules.and_then(|r| r.max_description_bytes).and_then(|m| usize::try_from(m).ok());
        let change = Change { max_description: most, ..Change::default() };
        let edited = page.rewritten(envelope.text, false, |tool: &Item<'_>| {
            let verdict = judge(tool, rules, audience);
            if let (Some(rules), Ok(standing) | Err(Dropped::Drifted(standing))) = (rules, &verdict) {
                self.tell(rules, &tool.id, standing);
            }
            verdict.is_ok().then(|| tool.changed(&change))
        });
        edited.map_or_else(|| answer.clone(), Answer::result)
    }

    /// Counts and logs a drifted definition, once.
    fn tell(&self, rules: &ToolPolicy, tool: &str, standing: &Pinned) {
        let (Pinned::Changed { digest } | Pinned::New { digest }) = standing else { return };
        let mut told = self.told.lock();
        if told.len() >= MAX_TOLD || !told.insert((tool.to_owned(), digest.clone())) {
            return;
        }
        drop(told);
        self.metrics.drift.with_label_values(&[&*self.server, standing.label()]).inc();
        tracing::warn!(
            target: "business", server = &*self.server, tool, digest = digest.as_deref().unwrap_or("none"),
            blocked = rules.drift == Drift::Block, "the definition of a tool is {}",
            if matches!(standing, Pinned::New { .. }) { "not pinned" } else { "not the pinned one" }
        );
    }

    fn refused(&self, reason: &str) {
        self.metrics.refused.with_label_values(&[&*self.server, reason]).inc();
    }
}

impl View {
    fn rules(&self, server: &str) -> Option<&ToolPolicy> {
        self.live.mcp.servers.get(server)
    }

    /// Whether all that the server says and is asked passes.
    fn is_open(&self, server: &str) -> bool {
        self.caller.is_none() && self.rules(server).is_none()
    }

    fn filters(&self, server: &str) -> impl Iterator<Item = &Filter> {
        self.rules(server).into_iter().flat_map(|r| &r.filters).chain(self.caller.as_deref())
    }
}

/// Tells clients that there are other tools now when the rules change, for as long as the sidecar runs.
pub async fn follow(server: Arc<Server>) {
    let policy = &server.shared.policy;
    let mut live = policy.live.clone();
    // A filter of one caller is told to all: a session does not know whose it is.
    let rules = |live: &Live| {
        let callers = live.mcp.access.as_ref().map(|access| access.callers.clone());
        (live.mcp.servers.get(server.name()).cloned(), callers)
    };
    let mut before = rules(&live.borrow_and_update().clone());
    while live.changed().await.is_ok() {
        let now = rules(&live.borrow_and_update().clone());
        if now == before {
            continue;
        }
        before = now;
        policy.told.lock().clear();
        let notice = Bytes::from_static(LIST_CHANGED.as_bytes());
        let told = |result: Result<(), &'static str>| result.unwrap_or_else(|why| server.shared.dropped(why));
        for session in server.sessions.all() {
            told(session.tell("notifications/tools/list_changed", notice.clone(), Streams::default()));
        }
        for listener in server.shared.listeners.everyone() {
            told(listener.tell("notifications/tools/list_changed", notice.clone(), Streams::default()));
        }
    }
}
