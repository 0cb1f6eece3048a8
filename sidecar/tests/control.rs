//! The way to the operator, against a control API of the test's own: restarts, outages, other certificates.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod outbound_support;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outbound_support::{Names, until};
use outrigger_protocol::config::{ControlPlane, Live};
use outrigger_protocol::control::{Proposal, Proposed, Refusal};
use outrigger_protocol::digest::sha256;
use outrigger_sidecar::config::LiveConfig;
use outrigger_sidecar::control::{Control, ControlError, Pauses};
use outrigger_sidecar::metrics::Metrics;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const HOST: &str = "outrigger-operator.outrigger-system.svc.cluster.local";

/// An authority of the operator's.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { pem, issuer: Issuer::new(params, key) }
}

impl Authority {
    fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new([HOST.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        Arc::new(config).into()
    }
}

type Body = BoxBody<Bytes, std::convert::Infallible>;

/// What the operator of the test has and saw.
#[derive(Default)]
struct Operator {
    streams: Vec<mpsc::UnboundedSender<String>>,
    /// Head of each request: path, token, last event id.
    seen: Vec<(String, String, String)>,
    /// Answers to requests that are no streams, and to streams that are refused; in order.
    answers: VecDeque<(u16, String)>,
}

type Shared = Arc<Mutex<Operator>>;

/// One process of the operator; it ends when dropped.
struct Process(JoinHandle<()>);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn start(listener: TcpListener, acceptor: tokio_rustls::TlsAcceptor, operator: &Shared) -> Process {
    let operator = Arc::clone(operator);
    Process(tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, operator) = (acceptor.clone(), Arc::clone(&operator));
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    std::future::ready(Ok::<_, std::convert::Infallible>(answer(&request, &operator)))
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }))
}

fn answer(request: &Request<Incoming>, operator: &Shared) -> Response<Body> {
    let header = |name: &str| request.headers().get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
    let mut operator = operator.lock();
    let path = request.uri().path().to_owned();
    operator.seen.push((path.clone(), header("authorization"), header("last-event-id")));
    if let Some((status, body)) = operator.answers.pop_front() {
        let whole = Full::from(body).map_err(|e| match e {}).boxed();
        return Response::builder().status(status).header("retry-after", "1").body(whole).unwrap();
    }
    assert_eq!(path, "/v1/watch");
    let (sender, receiver) = mpsc::unbounded_channel::<String>();
    sender.send(": alive\n\n".into()).unwrap();
    operator.streams.push(sender);
    let pieces = futures::stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from(piece))), receiver))
    });
    Response::builder().header("content-type", "text/event-stream").body(BoxBody::new(StreamBody::new(pieces))).unwrap()
}

fn document(bytes: u64, port: u16, ca: &str) -> String {
    let card = json!({"name": "a", "description": "d", "version": "1", "supportedInterfaces": [], "skills": []});
    let mut live = Live::new(card);
    live.limits.max_request_bytes = bytes;
    live.control = Some(ControlPlane { url: format!("https://{HOST}:{port}"), ca: ca.into() });
    json!(live).to_string()
}

fn event(document: &str) -> String {
    format!("id: {}\nevent: live\ndata: {document}\n\n", sha256(document.as_bytes()))
}

/// A sidecar's part that is tested.
struct Sidecar {
    dir: tempfile::TempDir,
    config: Arc<LiveConfig>,
    control: Arc<Control>,
    registry: prometheus::Registry,
    shutdown: CancellationToken,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

const PAUSES: Pauses = Pauses {
    first: Duration::from_millis(20),
    longest: Duration::from_millis(100),
    stable: Duration::from_millis(50),
    silence: Duration::from_secs(10),
};

fn sidecar(document: &str, pauses: Pauses) -> Sidecar {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("live.json"), document).unwrap();
    std::fs::write(dir.path().join("token"), "first\n").unwrap();
    let registry = prometheus::Registry::new();
    let config = LiveConfig::start(&dir.path().join("live.json"), Metrics::new(&registry).unwrap()).unwrap();
    let names = Names::new(&[(HOST, &[&["127.0.0.1"]])]);
    let token: PathBuf = dir.path().join("token");
    let control = Control::new(config.subscribe(), token, names, pauses, &registry).unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(Arc::clone(&control).follow(Arc::clone(&config), shutdown.clone()));
    Sidecar { dir, config, control, registry, shutdown }
}

impl Sidecar {
    fn in_force(&self) -> u64 {
        self.config.subscribe().borrow().limits.max_request_bytes
    }

    fn connected(&self) -> bool {
        self.control.status().connected
    }

    fn write(&self, document: &str) {
        std::fs::write(self.dir.path().join("live.json"), document).unwrap();
        self.config.reload();
    }

    /// A gauge, rounded.
    fn metric(&self, name: &str) -> u64 {
        self.control.status();
        let families = self.registry.gather();
        families.iter().find(|f| f.name() == name).unwrap().get_metric()[0].get_gauge().get_value().round() as u64
    }
}

fn tell(operator: &Shared, text: &str) {
    operator.lock().streams.last().unwrap().send(text.to_owned()).unwrap();
}

#[tokio::test]
async fn changes_come_over_the_stream_and_the_volume_does_not_count_meanwhile() {
    let (listener, ca, operator) = (listen().await, authority("one"), Shared::default());
    let port = listener.local_addr().unwrap().port();
    let _process = start(listener, ca.acceptor(), &operator);
    let first = document(1024, port, &ca.pem);
    let sidecar = sidecar(&first, PAUSES);
    until("it is connected", || sidecar.connected()).await;
    assert_eq!(sidecar.metric("outrigger_control_connected"), 1);
    let head = operator.lock().seen[0].clone();
    assert_eq!(head, ("/v1/watch".into(), "Bearer first".into(), sha256(first.as_bytes())));

    let second = document(2048, port, &ca.pem);
    tell(&operator, &event(&second));
    until("the change is in force", || sidecar.in_force() == 2048).await;
    assert_eq!(sidecar.config.status().digest, sha256(second.as_bytes()));
    sidecar.write(&document(1536, port, &ca.pem));
    assert_eq!(sidecar.in_force(), 2048);
    // Events of other kinds are for newer sidecars.
    tell(&operator, "event: later\ndata: {}\n\n");
    tell(&operator, &event("{}"));
    until("a bad document is refused", || sidecar.config.status().error.is_some()).await;
    assert_eq!((sidecar.in_force(), sidecar.connected()), (2048, true));
    assert!(sidecar.control.status().part.ready);
}

#[tokio::test]
async fn an_operator_that_is_away_costs_freshness_alone() {
    let (listener, ca, operator) = (listen().await, authority("one"), Shared::default());
    let address = listener.local_addr().unwrap();
    let process = start(listener, ca.acceptor(), &operator);
    let sidecar = sidecar(&document(1024, address.port(), &ca.pem), PAUSES);
    until("it is connected", || sidecar.connected()).await;
    tell(&operator, &event(&document(2048, address.port(), &ca.pem)));
    until("the change is in force", || sidecar.in_force() == 2048).await;
    sidecar.write(&document(1536, address.port(), &ca.pem));

    drop(process);
    until("the loss is noticed", || !sidecar.connected()).await;
    assert_eq!(sidecar.metric("outrigger_control_connected"), 0);
    sidecar.config.reload();
    assert_eq!(sidecar.in_force(), 2048, "the volume has what it had before the loss");
    assert!(sidecar.control.status().part.ready, "a short absence is no fault");
    sidecar.write(&document(3072, address.port(), &ca.pem));
    assert_eq!(sidecar.in_force(), 3072, "what is written to the volume now counts");

    // It comes back, with a token that the kubelet has renewed.
    std::fs::write(sidecar.dir.path().join("token"), "second").unwrap();
    operator.lock().seen.clear();
    let _process = start(TcpListener::bind(address).await.unwrap(), ca.acceptor(), &operator);
    until("it is connected again", || sidecar.connected()).await;
    let (_, token, known) = operator.lock().seen.last().unwrap().clone();
    assert_eq!(token, "Bearer second");
    assert_eq!(known, sha256(document(3072, address.port(), &ca.pem).as_bytes()));
    tell(&operator, &event(&document(4096, address.port(), &ca.pem)));
    until("changes come again", || sidecar.in_force() == 4096).await;
}

#[tokio::test]
async fn a_stream_that_ends_or_falls_silent_is_opened_anew() {
    let (listener, ca, operator) = (listen().await, authority("one"), Shared::default());
    let port = listener.local_addr().unwrap().port();
    let _process = start(listener, ca.acceptor(), &operator);
    let pauses = Pauses { silence: Duration::from_millis(300), ..PAUSES };
    let _sidecar = sidecar(&document(1024, port, &ca.pem), pauses);
    until("it is connected", || operator.lock().streams.len() == 1).await;
    operator.lock().streams.clear();
    until("it came back after the end", || operator.lock().streams.len() == 1).await;
    until("it came back after silence", || operator.lock().streams.len() == 2).await;
}

#[tokio::test]
async fn another_authority_is_used_for_the_next_connection() {
    let (listener, old, new, operator) = (listen().await, authority("one"), authority("two"), Shared::default());
    let address = listener.local_addr().unwrap();
    let process = start(listener, old.acceptor(), &operator);
    let sidecar = sidecar(&document(1024, address.port(), &old.pem), PAUSES);
    until("it is connected", || sidecar.connected()).await;
    // Announced: both are trusted, the open stream goes on.
    let both = document(2048, address.port(), &format!("{}{}", old.pem, new.pem));
    tell(&operator, &event(&both));
    until("both are trusted", || sidecar.in_force() == 2048).await;
    assert!(sidecar.connected());
    // Switched.
    drop(process);
    until("the loss is noticed", || !sidecar.connected()).await;
    let process = start(TcpListener::bind(address).await.unwrap(), new.acceptor(), &operator);
    until("the new one is trusted", || sidecar.connected()).await;
    tell(&operator, &event(&document(3072, address.port(), &new.pem)));
    until("the old one is dropped", || sidecar.in_force() == 3072).await;
    drop(process);
    until("the loss is noticed", || !sidecar.connected()).await;
    // Somebody with the old authority's key is not the operator.
    let _process = start(TcpListener::bind(address).await.unwrap(), old.acceptor(), &operator);
    let error = sidecar.control.bundle(&"a".repeat(64)).await.unwrap_err();
    assert!(error.to_string().contains("TLS failed"), "{error}");
    assert!(!sidecar.connected());
}

#[tokio::test]
async fn bundles_and_proposals() {
    let (listener, ca, operator) = (listen().await, authority("one"), Shared::default());
    let port = listener.local_addr().unwrap().port();
    let _process = start(listener, ca.acceptor(), &operator);
    let sidecar = sidecar(&document(1024, port, &ca.pem), PAUSES);
    until("it is connected", || sidecar.connected()).await;
    let answer = |status: u16, body: String| operator.lock().answers.push_back((status, body));
    let digest = "a".repeat(64);

    answer(200, "bytes".into());
    assert_eq!(sidecar.control.bundle(&digest).await.unwrap(), "bytes");
    assert_eq!(operator.lock().seen.last().unwrap().0, format!("/v1/bundles/{digest}"));
    let refusal = Refusal { reason: "NotYours".into(), message: "no".into() };
    answer(403, json!(refusal).to_string());
    match sidecar.control.bundle(&digest).await.unwrap_err() {
        ControlError::Refused { status, reason, retry_after, .. } => {
            assert_eq!(
                (status, reason.as_str(), retry_after),
                (StatusCode::FORBIDDEN, "NotYours", Some(Duration::from_secs(1)))
            );
        }
        other => panic!("{other}"),
    }
    let asked = operator.lock().seen.len();
    assert!(matches!(sidecar.control.bundle("../live").await.unwrap_err(), ControlError::BadAddress(_)));
    assert_eq!(operator.lock().seen.len(), asked, "what is no digest is not asked for");

    answer(201, json!(Proposed { name: "menu-p1".into() }).to_string());
    let proposal = Proposal { skill: "menu".into(), rationale: "r".into(), ..Proposal::default() };
    assert_eq!(sidecar.control.propose(&proposal).await.unwrap().name, "menu-p1");
    answer(404, json!(Refusal { reason: "EvolutionDisabled".into(), message: "no".into() }).to_string());
    let refused = sidecar.control.propose(&proposal).await.unwrap_err();
    assert!(matches!(refused, ControlError::Refused { ref reason, .. } if reason == "EvolutionDisabled"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_absence_that_lasts_is_told() {
    let ca = authority("one");
    // Nobody listens there.
    let port = listen().await.local_addr().unwrap().port();
    let sidecar = sidecar(&document(1024, port, &ca.pem), Pauses::default());
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(sidecar.control.status().part.ready);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = sidecar.control.status();
    assert_eq!((status.connected, status.part.ready), (false, false));
    assert_eq!(status.part.reason, "ControlUnreachable");
    assert!(status.stale_seconds >= 60);
    assert!(sidecar.metric("outrigger_control_stale_seconds") >= 60);
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let port = listen().await.local_addr().unwrap().port();
    let plain = document(1024, port, "no certificate");
    let sidecar = sidecar(&plain, PAUSES);
    let error = sidecar.control.bundle(&"a".repeat(64)).await.unwrap_err();
    assert!(matches!(error, ControlError::BadAuthority(_)), "{error}");
    assert!(error.to_string().contains("control.ca"));
    sidecar.write(
        &plain
            .replace("https://", "http://")
            .replace("no certificate", authority("x").pem.replace('\n', "\\n").as_str()),
    );
    let error = sidecar.control.bundle(&"a".repeat(64)).await.unwrap_err();
    assert!(error.to_string().contains("not https"), "{error}");
    let mut without: serde_json::Value = serde_json::from_str(&plain).unwrap();
    without.as_object_mut().unwrap().remove("control");
    sidecar.write(&without.to_string());
    assert!(matches!(sidecar.control.bundle(&"a".repeat(64)).await, Err(ControlError::NotConfigured)));
    let status = sidecar.control.status();
    assert_eq!((status.part.ready, status.part.reason.as_str()), (false, ""), "neither well nor unwell");
    assert!(sidecar.shutdown.cancelled().now_or_never().is_none());
}
