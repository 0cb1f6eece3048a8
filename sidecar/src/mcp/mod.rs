//! MCP: tool servers for clients of every revision, over streamable HTTP.
//!
//! A call walks [`front`] (HTTP, era) → [`session`] (who it is, for clients that have sessions) → [`policy`] (may it) →
//! [`pool`] (which child) → [`child`] (ids, what is in flight) → [`wire`](child::wire); its answer [`dispatch`](child::dispatch) →
//! [`outlet`] → [`reply`](front::reply) (JSON or stream). [`bridge`] stands between eras.

pub mod bridge;
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
use outrigger_protocol::status::ServerStatus;

use crate::context::Context;
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
        let metrics = Metrics::register(&ctx.registry);
        let seal = Arc::new(Seal::default());
        let servers: Vec<_> = ctx
            .boot
            .servers
            .iter()
            .map(|conf| {
                Server::new(Shared {
                    conf: conf.clone(),
                    timing: timing.clone(),
                    metrics: metrics.clone(),
                    drain: Arc::clone(&ctx.drain),
                    seal: Arc::clone(&seal),
                    listeners: Audience::default(),
                    upstream: OnceLock::new(),
                    policy: Policy::new(&conf.name, ctx.live.clone(), metrics.clone()),
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
        self.servers.iter().map(|s| s.status()).collect()
    }

    fn get(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.iter().find(|s| s.name() == name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|s| s.name())
    }
}
