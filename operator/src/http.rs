//! `/metrics`, `/livez` and `/readyz` on one port of every replica.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::client::Watches;
use crate::metrics::Metrics;

/// What health is made from.
#[derive(Clone)]
pub struct Health {
    metrics: Metrics,
    watches: Watches,
    waiting: Arc<Mutex<BTreeSet<String>>>,
}

/// What is said before anything else is waited for.
const STARTING: &str = "starting";

impl Health {
    /// Not ready yet.
    pub fn new(metrics: Metrics, watches: Watches) -> Self {
        Self { metrics, watches, waiting: Arc::new(Mutex::new(BTreeSet::from([STARTING.to_owned()]))) }
    }

    /// Something is waited for.
    pub fn begin(&self, what: &str) {
        self.waiting.lock().insert(what.to_owned());
    }

    /// It is there.
    pub fn end(&self, what: &str) {
        let mut waiting = self.waiting.lock();
        waiting.remove(what);
        waiting.remove(STARTING);
    }
}

/// The routes.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(health)
}

async fn metrics(State(health): State<Health>) -> Response {
    health.watches.measure(&health.metrics);
    match health.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn livez(State(health): State<Health>) -> Response {
    let hanging = health.watches.hanging();
    if hanging.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::INTERNAL_SERVER_ERROR, format!("watches hang: {}\n", hanging.join(", "))).into_response()
}

async fn readyz(State(health): State<Health>) -> Response {
    let waiting: Vec<String> = health.waiting.lock().iter().cloned().collect();
    if waiting.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", waiting.join("; "))).into_response()
}

/// Binds the address; where IPv6 is off, `[::]` means every IPv4 address.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip().is_unspecified() && address.is_ipv6() => {
            TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, health: Health, shutdown: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router(health)).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
}
