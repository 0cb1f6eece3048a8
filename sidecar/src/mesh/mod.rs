//! Calling other agents: `/agents/{name}[.{namespace}]/…` of the local API leads to the peers of the live configuration.
//!
//! A request walks route → pool → connection → peer's sidecar; its body and that of the answer pass through in pieces.
//! Only cards are read, as the URLs in them must lead back here.

mod balance;
mod body;
mod cards;
pub(crate) mod connect;
mod headers;
pub mod metrics;
mod proxy;
mod refusal;
pub mod resolve;

pub use proxy::MAX_REQUEST;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{any, get};
use http::{Request, Response};
use outrigger_protocol::config::{Live, Peer};
use parking_lot::Mutex;
use serde_json::json;

use crate::context::Context;
use balance::Pool;
use metrics::Metrics;
use refusal::Refusal;
use resolve::{Resolve, System};

/// Waits of a call to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// To open a connection.
    pub connect: Duration,
    /// From the request to the first byte of the answer.
    pub first_byte: Duration,
    /// From the request to the last byte of an answer that is no stream.
    pub unary: Duration,
    /// Between two pieces of a stream; heartbeats count.
    pub stream_idle: Duration,
    /// How long addresses of a peer are used before its name is resolved again.
    pub resolve: Duration,
    /// How long an address that does not take connections is left alone at first; doubled each time, up to
    /// `MAX_EJECTION`.
    pub eject: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { connect: s(5), first_byte: s(60), unary: s(120), stream_idle: s(60), resolve: s(2), eject: s(1) }
    }
}

/// The agents that this one may call.
pub struct Peers {
    ctx: Context,
    pools: Mutex<Pools>,
    resolver: Arc<dyn Resolve>,
    timing: Timing,
    metrics: Metrics,
}

#[derive(Default)]
struct Pools {
    /// The configuration that `by_peer` was last brought in line with.
    of: Option<Arc<Live>>,
    by_peer: HashMap<(String, String), Arc<Pool>>,
}

impl Peers {
    /// Peers of the live configuration, resolved by the system.
    pub fn start(ctx: &Context) -> Result<Arc<Self>, prometheus::Error> {
        Self::start_with(ctx, Arc::new(System), Timing::default())
    }

    /// With another resolver and other waits; for tests.
    pub fn start_with(
        ctx: &Context,
        resolver: Arc<dyn Resolve>,
        timing: Timing,
    ) -> Result<Arc<Self>, prometheus::Error> {
        let metrics = Metrics::register(&ctx.registry)?;
        Ok(Arc::new(Self { ctx: ctx.clone(), pools: Mutex::default(), resolver, timing, metrics }))
    }

    /// What is served on the local API, under the token.
    pub fn router(self: &Arc<Self>) -> Router {
        let call =
            any(|State(peers): State<Arc<Self>>, request: Request<Body>| async move { peers.call(request).await });
        Router::new()
            .route("/agents", get(|State(peers): State<Arc<Self>>| async move { peers.list() }))
            .route("/agents/{peer}", call.clone())
            .route("/agents/{peer}/", call.clone())
            .route("/agents/{peer}/{*rest}", call)
            .with_state(Arc::clone(self))
    }

    /// The peers with their local URLs.
    fn list(&self) -> Response<Body> {
        let live = Arc::clone(&self.ctx.live.borrow());
        let agents: Vec<_> = live
            .peers
            .iter()
            .map(|p| {
                let url = format!("{}/{}.{}", self.ctx.urls.agents, p.name, p.namespace);
                json!({"name": p.name, "namespace": p.namespace, "url": url})
            })
            .collect();
        refusal::json(http::StatusCode::OK, &json!({"agents": agents}))
    }

    async fn call(&self, request: Request<Body>) -> Response<Body> {
        let segment = request.uri().path().split('/').nth(2).unwrap_or_default().to_owned();
        match self.find(&segment) {
            Ok((peer, pool)) => proxy::call(self, &peer, &segment, &pool, request).await,
            Err(refusal) => {
                self.metrics.requests.with_label_values(&["", refusal.reason.label()]).inc();
                refusal.response()
            }
        }
    }

    /// The peer that a path segment names: in a namespace, or in our own, or the only one of that name.
    fn find(&self, segment: &str) -> Result<(Peer, Arc<Pool>), Refusal> {
        let live = Arc::clone(&self.ctx.live.borrow());
        let (name, namespace) = segment.split_once('.').map_or((segment, None), |(name, rest)| (name, Some(rest)));
        let named = |p: &&Peer| p.name == name && namespace.is_none_or(|ns| p.namespace == ns);
        let own = &self.ctx.boot.agent.namespace;
        let mut found = live.peers.iter().filter(named);
        let peer = match live.peers.iter().filter(named).find(|p| p.namespace == *own) {
            Some(own) => Some(own),
            None => found.next().filter(|_| found.next().is_none()),
        };
        let Some(peer) = peer else {
            let known: Vec<String> = live.peers.iter().map(|p| format!("{}.{}", p.name, p.namespace)).collect();
            return Err(Refusal::unknown(segment, &known));
        };
        let key = (peer.namespace.clone(), peer.name.clone());
        let mut pools = self.pools.lock();
        if pools.of.as_ref().is_none_or(|of| !Arc::ptr_eq(of, &live)) {
            // A pool whose peer is gone, or is somewhere else now, ends with its last request.
            let wanted = |(ns, name): &(String, String), authority: &str| {
                live.peers.iter().any(|p| p.namespace == *ns && p.name == *name && p.authority == authority)
            };
            pools.by_peer.retain(|key, pool| wanted(key, pool.authority()));
            pools.of = Some(Arc::clone(&live));
        }
        let pool = pools.by_peer.entry(key).or_insert_with(|| {
            let label = format!("{}.{}", peer.name, peer.namespace);
            Arc::new(Pool::new(&peer.authority, Arc::clone(&self.resolver), self.timing, self.metrics.of(&label)))
        });
        Ok((peer.clone(), Arc::clone(pool)))
    }
}
