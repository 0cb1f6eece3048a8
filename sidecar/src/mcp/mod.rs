//! MCP over stdio: endpoint, session, pool, pipe.
//!
//! A call walks [`endpoint`] (HTTP) → [`server`] (session, places for children) → [`child`] (ids, what is in flight)
//! → [`wire`](child::wire) (pipe), and its answer [`dispatch`](child::dispatch) (stdout) → [`table`](child::table) →
//! [`outlet`] → [`reply`] (JSON or stream). [`health`] does the one handshake that readiness asks for.

pub mod child;
pub mod endpoint;
pub mod error;
pub mod health;
pub mod metrics;
pub mod outlet;
pub mod reachability;
pub mod reply;
pub mod server;
pub mod timing;
pub mod wire_http;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::routing::any;
use outrigger_protocol::status::ServerStatus;

use crate::context::Context;
use metrics::Metrics;
use server::{Server, Shared};
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
                    upstream: OnceLock::new(),
                })
            })
            .collect();
        for server in &servers {
            tokio::spawn(ctx.shutdown.clone().run_until_cancelled_owned(health::watch(Arc::clone(server))));
            tokio::spawn(ctx.shutdown.clone().run_until_cancelled_owned(health::keep(Arc::clone(server))));
        }
        Arc::new(Self { servers, metrics })
    }

    /// Serves `/mcp/{server}`.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/mcp/{server}", any(endpoint::handle)).with_state(Arc::clone(self))
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
