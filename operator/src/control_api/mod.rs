//! The control API: what sidecars ask of the operator over HTTPS ([`outrigger_protocol::control`]). Every replica serves
//! it; the one that leads also changes the [authority](authority) that its certificates are signed by.
//!
//! A request walks serve → routes → review (who?) → documents, bundles. Nothing here writes to the cluster but the
//! [keeper] of the authority, in its one Secret.

pub mod authority;
pub mod bundles;
pub mod documents;
pub mod keeper;
pub mod metrics;
pub mod refused;
pub mod review;
pub mod routes;
pub mod serve;
pub mod stream;
pub mod tls;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::Health;
use crate::metrics::Metrics;
use crate::scopes::Scopes;
use bundles::Bundles;
use documents::Documents;
use keeper::{Keeper, Place, Plane};
use review::Reviewer;
use routes::Served;
use stream::Streams;
use tls::Certificates;

/// Seconds of Unix time.
pub fn now() -> i64 {
    Timestamp::now().as_second()
}

/// What the control API of one replica is made from.
pub struct Parts {
    /// Client of the API server.
    pub client: Client,
    /// Where it is.
    pub place: Place,
    /// Where it listens.
    pub listener: TcpListener,
    /// Namespaces to serve; none means all.
    pub namespaces: Vec<String>,
    /// Whether this replica leads.
    pub leading: watch::Receiver<bool>,
    /// What sidecars are told of it.
    pub plane: Plane,
    /// Counts.
    pub metrics: Metrics,
    /// What is waited for.
    pub health: Health,
}

/// Runs the control API until `shutdown`.
pub async fn run(parts: Parts, shutdown: CancellationToken) -> Result<(), rustls::Error> {
    let Parts { client, place, listener, namespaces, leading, plane, metrics, health } = parts;
    let certificates = Arc::new(Certificates::default());
    let tls = tls::config(Arc::clone(&certificates))?;
    let documents = Documents::of_scopes(namespaces.len().max(1));
    let keeper = Keeper {
        client: client.clone(),
        place,
        leading,
        plane,
        certificates,
        metrics: metrics.clone(),
        health: health.clone(),
        clock: now,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper.run(shutdown.clone()));
    let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.into_iter().map(Some).collect() };
    for namespace in scopes {
        tasks.spawn(documents::follow(
            client.clone(),
            namespace,
            documents.clone(),
            metrics.clone(),
            health.clone(),
            shutdown.clone(),
        ));
    }
    let served = Served {
        reviewer: Reviewer::new(client.clone(), metrics.clone(), now),
        documents,
        bundles: Bundles::new(client, metrics.clone()),
        streams: Streams::new(metrics.clone()),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
        clock: now,
    };
    serve::serve(listener, tls, routes::router(Arc::new(served)), metrics, shutdown).await;
    tasks.join_all().await;
    Ok(())
}

/// Has everything looked at that tells pods of the control API, each time that what they are told changes.
pub async fn tell(plane: Plane, scopes: Scopes, shutdown: CancellationToken) {
    let mut known = plane.subscribe();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = known.changed() => if changed.is_err() { return },
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = scopes.tell_all() => {}
        }
    }
}
