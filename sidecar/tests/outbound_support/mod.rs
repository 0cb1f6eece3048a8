//! Servers on loopback for requests that leave the pod, and names that lead where a test wants.
#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outrigger_sidecar::outbound::resolve::Resolver;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

/// Longest any test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Got {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: tokio::time::Instant,
}

impl Got {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

type Script = dyn Fn(Got) -> BoxFuture<'static, Response<Full<Bytes>>> + Send + Sync;

/// A server that runs a script for each request and writes down what it got.
pub struct Server {
    pub port: u16,
    got: Arc<Mutex<Vec<Got>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn http<F, Fut>(script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::start(TcpListener::bind("127.0.0.1:0").await.unwrap(), false, script)
    }

    pub async fn https<F, Fut>(script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::start(TcpListener::bind("127.0.0.1:0").await.unwrap(), true, script)
    }

    pub fn start<F, Fut>(listener: TcpListener, tls: bool, script: F) -> Self
    where
        F: Fn(Got) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let port = listener.local_addr().unwrap().port();
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let notes = Arc::clone(&got);
        let script: Arc<Script> = Arc::new(move |g| script(g).boxed());
        let acceptor = tls.then(acceptor);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (notes, script, acceptor) = (Arc::clone(&notes), Arc::clone(&script), acceptor.clone());
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(request, Arc::clone(&notes), Arc::clone(&script)));
                    let server = hyper::server::conn::http1::Builder::new();
                    match acceptor {
                        None => drop(server.serve_connection(TokioIo::new(stream), service).await),
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                drop(server.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
        Self { port, got, task }
    }

    /// Requests so far.
    pub fn got(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.got.lock().len()
    }
}

async fn answer(
    request: Request<Incoming>,
    notes: Arc<Mutex<Vec<Got>>>,
    script: Arc<Script>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let got = Got {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers,
        body: body.collect().await?.to_bytes(),
        at: tokio::time::Instant::now(),
    };
    notes.lock().push(got.clone());
    Ok(script(got).await)
}

fn acceptor() -> tokio_rustls::TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_file(fixture("tls/server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(fixture("tls/server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config).into()
}

pub fn status(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

pub fn text(body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(body.into()))
}

/// Names with their addresses; each look-up takes the next answer, the last one stays.
#[derive(Default)]
pub struct Names {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    pub fn new(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |list: &&[&str]| list.iter().map(|a| a.parse().unwrap()).collect();
        let answers = names.iter().map(|(n, all)| ((*n).to_owned(), all.iter().map(parse).collect())).collect();
        Arc::new(Self { answers: Mutex::new(answers), asked: Mutex::default() })
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        self.asked.lock().push(host.to_owned());
        let mut answers = self.answers.lock();
        let answer = match answers.get_mut(host) {
            Some(list) if list.len() > 1 => Ok(list.remove(0)),
            Some(list) => Ok(list[0].clone()),
            None => Err(std::io::Error::other("no such name")),
        };
        std::future::ready(answer).boxed()
    }
}

/// Waits for a condition.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
