//! The Lease: taken once, kept, taken over only when its holder is silent, released on the way out.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use outrigger_operator::election::Elector;
use serde_json::json;
use support::Server;
use tokio_util::sync::CancellationToken;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/o/leases/l";

fn elector(server: &Server, me: &str) -> Elector {
    Elector::new(server.client(), "o", "l", me)
}

fn holder(server: &Server) -> String {
    server.get(LEASE).unwrap()["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn the_first_wins_and_the_second_waits_for_its_silence() {
    let (server, shutdown) = (Server::default(), CancellationToken::new());
    let mut first = elector(&server, "a");
    assert!(first.win(&shutdown).await);
    assert_eq!(holder(&server), "a");
    let start = tokio::time::Instant::now();
    assert!(elector(&server, "b").win(&shutdown).await);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!(holder(&server), "b");
    assert_eq!(server.get(LEASE).unwrap()["spec"]["leaseTransitions"], 2);
    // The first finds out and stops.
    first.keep(&shutdown).await;
    assert!(!shutdown.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_keeps_it() {
    let (server, shutdown) = (Server::default(), CancellationToken::new());
    let mut first = elector(&server, "a");
    assert!(first.win(&shutdown).await);
    let keeping = {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { first.keep(&shutdown).await })
    };
    let mut second = elector(&server, "b");
    let try_for = tokio::time::timeout(Duration::from_mins(2), second.win(&shutdown)).await;
    assert!(try_for.is_err(), "never won");
    assert_eq!(holder(&server), "a");
    shutdown.cancel();
    keeping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    let (server, shutdown) = (Server::default(), CancellationToken::new());
    let mut first = elector(&server, "a");
    assert!(first.win(&shutdown).await);
    first.release().await;
    assert_eq!(holder(&server), "");
    let start = tokio::time::Instant::now();
    assert!(elector(&server, "b").win(&shutdown).await);
    assert!(start.elapsed() < Duration::from_secs(3));
    first.release().await;
    assert_eq!(holder(&server), "b", "what is not ours is not released");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_gives_up_before_another_takes_over() {
    let (server, shutdown) = (Server::default(), CancellationToken::new());
    let mut first = elector(&server, "a");
    assert!(first.win(&shutdown).await);
    server.refuse("/leases/", 500, "etcdserver: request timed out");
    let start = tokio::time::Instant::now();
    first.keep(&shutdown).await;
    let kept = start.elapsed();
    assert!(kept >= Duration::from_secs(10) && kept < Duration::from_secs(15), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_wait() {
    let (server, shutdown) = (Server::default(), CancellationToken::new());
    server.put(LEASE, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "o"}, "spec": {"holderIdentity": "z", "leaseDurationSeconds": 3600}}));
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_mins(1)).await;
        stop.cancel();
    });
    assert!(!elector(&server, "a").win(&shutdown).await);
    assert_eq!(holder(&server), "z");
}
