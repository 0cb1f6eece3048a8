//! Pods of peers, and names that lead to them.
#![allow(missing_docs, dead_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::BodyExt;
use outrigger_sidecar::mesh::resolve::Resolve;
use outrigger_sidecar::metrics::Metrics;
use outrigger_sidecar::serve::{Listener, serve};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Names that lead to addresses of the test.
#[derive(Default)]
pub struct Names(pub Mutex<HashMap<String, Vec<SocketAddr>>>, pub AtomicUsize);

impl Resolve for Names {
    fn resolve(&self, authority: &str) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let found = self.0.lock().get(authority).cloned();
        Box::pin(async move { found.ok_or_else(|| std::io::Error::other("no such name")) })
    }
}

/// A request as a pod of a peer got it.
#[derive(Clone, Debug)]
pub struct Got {
    pub version: Version,
    pub method: String,
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub type Script = Arc<dyn Fn(Got) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// A pod of a peer, served as a sidecar serves.
pub struct Pod {
    pub address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    stop: CancellationToken,
    connections: prometheus::Registry,
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Pod {
    pub async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Body>> + Send + 'static,
    {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let script: Script = Arc::new(move |g| Box::pin(script(g)));
        let notes = Arc::clone(&got);
        let app = Router::new().fallback(move |request: Request<Body>| {
            let (notes, script) = (Arc::clone(&notes), Arc::clone(&script));
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                let (method, uri) = (head.method.to_string(), head.uri.to_string());
                let got = Got { version: head.version, method, uri, headers: head.headers, body };
                notes.lock().push(got.clone());
                script(got).await
            }
        });
        let (stop, connections) = (CancellationToken::new(), prometheus::Registry::new());
        let listener = Listener { name: "a2a", socket, max_connections: 1000 };
        tokio::spawn(serve(listener, app, Metrics::new(&connections).unwrap(), stop.clone()));
        Self { address, got, stop, connections }
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    pub fn open_connections(&self) -> f64 {
        let families = self.connections.gather();
        let family = families.iter().find(|f| f.name() == "outrigger_connections");
        family.map_or(0.0, |f| f.get_metric()[0].get_gauge().get_value())
    }
}
