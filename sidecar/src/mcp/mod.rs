//! MCP: tool servers for clients of every revision, over streamable HTTP.
//!
//! A call walks [`front`] (HTTP, era) → [`session`] (who it is, for clients that have sessions) → [`policy`] (may it) →
//! [`pool`] (which child) → [`child`] (ids, what is in flight) → [`wire`](child::wire); its answer [`dispatch`](child::dispatch) →
//! [`outlet`] → [`reply`](front::reply) (JSON or stream). [`bridge`] stands between eras.

pub mod bridge;
pub mod builtin;
pub mod child;
pub mod client;
pub mod error;
pub mod front;
pub mod metrics;
pub mod outlet;
pub mod policy;
pub mod pool;
pub mod seal;
pub mod session;
pub mod timing;
pub mod wire_http;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::routing::any;
use outrigger_protocol::config;
use outrigger_protocol::status::{ServerPhase, ServerStatus};

use crate::context::Context;
use crate::skills::serve::{Found, Tools};
use builtin::BuiltIn;
use client::Audience;
use metrics::Metrics;
use policy::Policy;
use pool::{Server, Shared, health};
use seal::Seal;
use timing::Timing;

/// All in-pod tool servers.
pub struct Servers {
    servers: Vec<Arc<Server>>,
    metrics: Metrics,
}

impl Servers {
    /// Starts to reach every server of the boot document. Call within a runtime.
    pub fn start(ctx: &Context) -> Arc<Self> {
        Self::start_with(ctx, &Timing::default())
    }

    /// As [`Servers::start`], with other waits.
    pub fn start_with(ctx: &Context, timing: &Timing) -> Arc<Self> {
        Self::start_beside(ctx, timing, &[])
    }

    /// As [`Servers::start_with`], with servers that are part of the sidecar, by name. A name that a server of the boot
    /// document has is that server's.
    pub fn start_beside(ctx: &Context, timing: &Timing, built_in: &[(&str, Arc<dyn BuiltIn>)]) -> Arc<Self> {
        let metrics = Metrics::register(&ctx.registry);
        let seal = Arc::new(Seal::default());
        let of_boot = ctx.boot.servers.iter().map(|conf| (conf.clone(), None));
        let inner = built_in.iter().filter_map(|(name, server)| {
            if ctx.boot.servers.iter().any(|s| s.name == *name) {
                tracing::error!(target: "business", name, "an MCPServer hides a server of the sidecar's own: rename it");
                return None;
            }
            Some((inner_conf(name), Some(Arc::clone(server))))
        });
        let servers: Vec<_> = of_boot
            .chain(inner)
            .map(|(conf, built_in)| {
                Server::new(Shared {
                    policy: Policy::new(&conf.name, ctx.live.clone(), metrics.clone()),
                    conf,
                    built_in,
                    timing: timing.clone(),
                    metrics: metrics.clone(),
                    drain: Arc::clone(&ctx.drain),
                    seal: Arc::clone(&seal),
                    listeners: Audience::default(),
                    upstream: OnceLock::new(),
                })
            })
            .collect();
        for server in &servers {
            tokio::spawn(ctx.shutdown.clone().run_until_cancelled_owned(health::watch(Arc::clone(server))));
            tokio::spawn(ctx.shutdown.clone().run_until_cancelled_owned(health::keep(Arc::clone(server))));
            tokio::spawn(ctx.shutdown.clone().run_until_cancelled_owned(policy::follow(Arc::clone(server))));
        }
        Arc::new(Self { servers, metrics })
    }

    /// Serves `/mcp/{server}`.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/mcp/{server}", any(front::handle)).with_state(Arc::clone(self))
    }

    /// Where every server stands, in the order of the boot document.
    pub fn status(&self) -> Vec<ServerStatus> {
        self.servers.iter().filter(|s| s.shared.built_in.is_none()).map(|s| s.status()).collect()
    }

    fn get(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.iter().find(|s| s.name() == name && offered(s))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().filter(|s| offered(s)).map(|s| s.name())
    }
}

impl Tools for Servers {
    fn find(&self, server: &str) -> Found {
        let Some(server) = self.get(server) else { return Found::NoServer };
        let status = server.status();
        // A longer list may have been cut.
        if status.phase == ServerPhase::Ready && status.tools.len() < pool::hello::MAX_TOOLS {
            Found::Tools(status.tools)
        } else {
            Found::Unknown
        }
    }
}

fn offered(server: &Server) -> bool {
    server.shared.built_in.as_ref().is_none_or(|s| s.offered())
}

/// Each session has a conversation of its own, which remembers what was said in it.
fn inner_conf(name: &str) -> config::Server {
    let max_processes = u32::try_from(session::store::MAX_SESSIONS).unwrap_or(u32::MAX);
    let process = config::Process { sharing: config::Sharing::PerSession, max_processes, ..config::Process::default() };
    config::Server {
        name: name.into(),
        reach: config::Reach::BuiltIn,
        required: false,
        process,
        era: config::Era::Auto,
    }
}
