//! Pods are asked how they are: over a real socket, in bounds, and only as often as it takes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use outrigger_operator::facts::{self, Facts, Touch};
use outrigger_operator::metrics::Metrics;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

fn pod(uid: &str, ip: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "uid": uid, "namespace": "n"}, "status": {"phase": "Running", "podIP": ip,
        "initContainerStatuses": [{"name": "outrigger", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn status(ready: bool, processes: u32) -> Value {
    json!({"version": "0.1.0", "phase": "Ready", "config": {"digest": ""}, "card": {"digest": ""}, "agent": {"ready": ready},
        "servers": [{"name": "t", "required": true, "phase": "Ready", "ready": ready, "processes": processes, "crashes": 0}]})
}

struct Bed {
    facts: Facts,
    touches: mpsc::Sender<Touch>,
    changes: mpsc::Receiver<Arc<Pod>>,
    body: Arc<Mutex<String>>,
    shutdown: CancellationToken,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn bed() -> Bed {
    let body = Arc::new(Mutex::new(status(false, 1).to_string()));
    let shown = body.clone();
    let router = Router::new().route("/status", get(move || async move { shown.lock().clone() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (touches, inbox) = facts::channel();
    let (tell, changes) = mpsc::channel(64);
    let (facts, shutdown) = (Facts::default(), CancellationToken::new());
    let on_change: facts::OnChange = Arc::new(move |pod| {
        let _ = tell.try_send(pod);
    });
    let metrics = Metrics::new().unwrap();
    tokio::spawn(facts::run(facts.clone(), inbox, metrics, shutdown.clone(), on_change, port));
    Bed { facts, touches, changes, body, shutdown }
}

async fn change(bed: &mut Bed) -> Arc<Pod> {
    tokio::time::timeout(PATIENCE, bed.changes.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_pod_is_read_at_once_and_again_until_all_is_well() {
    let mut bed = bed().await;
    bed.touches.send(Touch::Read(pod("p", "127.0.0.1"))).await.unwrap();
    assert_eq!(change(&mut bed).await.metadata.uid.as_deref(), Some("p"));
    assert!(!bed.facts.get("p").unwrap().unwrap().agent.ready);
    // Nobody touches it: it is read again because it was not well.
    *bed.body.lock() = status(true, 1).to_string();
    change(&mut bed).await;
    assert!(bed.facts.get("p").unwrap().unwrap().agent.ready);
}

#[tokio::test]
async fn what_changes_all_the_time_is_no_change() {
    let facts = Facts::default();
    let read = |v: Value| Ok(Arc::new(serde_json::from_value(v).unwrap()));
    assert!(facts.put("p", read(status(true, 1))));
    assert!(!facts.put("p", read(status(true, 7))), "the number of processes");
    let given_up = |count: u64| {
        let mut value = status(true, 1);
        value["pushDeadLetters"] = json!(count);
        read(value)
    };
    assert!(facts.put("p", given_up(1)));
    assert!(!facts.put("p", given_up(9)), "one more push notification that was given up");
    assert!(facts.put("p", given_up(10)));
    assert!(facts.put("p", read(status(false, 7))));
    assert!(facts.put("p", Err("refused".into())));
    assert!(!facts.put("p", Err("refused".into())));
}

#[tokio::test]
async fn nonsense_and_floods_are_errors_and_a_gone_pod_is_forgotten() {
    let mut bed = bed().await;
    *bed.body.lock() = "not json".into();
    bed.touches.send(Touch::Read(pod("p", "127.0.0.1"))).await.unwrap();
    change(&mut bed).await;
    assert!(bed.facts.get("p").unwrap().is_err());
    *bed.body.lock() = "x".repeat(2 << 20);
    change(&mut bed).await;
    let error = bed.facts.get("p").unwrap().unwrap_err();
    assert!(error.contains("limit"), "{error}");
    bed.touches.send(Touch::Gone(pod("p", "127.0.0.1"))).await.unwrap();
    let gone = async {
        while bed.facts.get("p").is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}
