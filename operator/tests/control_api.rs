//! The control API as sidecars see it: over TLS, with an API server in memory behind it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use outrigger_operator::client::Watches;
use outrigger_operator::control_api::bundles::{Bundles, SLICE_BYTES};
use outrigger_operator::control_api::documents::Documents;
use outrigger_operator::control_api::keeper::{Keeper, Place, Plane};
use outrigger_operator::control_api::review::{Account, Reviewer};
use outrigger_operator::control_api::routes::{self, Served};
use outrigger_operator::control_api::stream::Streams;
use outrigger_operator::control_api::tls::{self, Certificates};
use outrigger_operator::control_api::{authority, now, serve};
use outrigger_operator::http::Health;
use outrigger_operator::metrics::Metrics;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use support::Server;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "/api/v1/namespaces/outrigger-system/secrets/outrigger-ca";
const HOST: &str = "outrigger-operator.outrigger-system.svc.cluster.local";
const PATIENCE: Duration = Duration::from_secs(20);

/// One replica.
struct Replica {
    address: SocketAddr,
    documents: Documents,
    plane: Plane,
    leading: watch::Sender<bool>,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn replica(server: &Server, leads: bool, clock: fn() -> i64, documents: Documents) -> Replica {
    let (metrics, shutdown) = (Metrics::new().unwrap(), CancellationToken::new());
    let (leading, plane, certificates) =
        (watch::Sender::new(leads), Plane::default(), Arc::new(Certificates::default()));
    let keeper = Keeper {
        client: server.client(),
        place: Place {
            namespace: "outrigger-system".into(),
            service: "outrigger-operator".into(),
            domain: "cluster.local".into(),
            port: 8443,
        },
        leading: leading.subscribe(),
        plane: plane.clone(),
        certificates: Arc::clone(&certificates),
        metrics: metrics.clone(),
        health: Health::new(metrics.clone(), Watches::default()),
        clock,
    };
    tokio::spawn(keeper.run(shutdown.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let parts = Served {
        reviewer: Reviewer::new(server.client(), metrics.clone(), now),
        documents: documents.clone(),
        bundles: Bundles::new(server.client(), metrics.clone()),
        streams: Streams::new(metrics.clone()),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
        clock: now,
    };
    let router = routes::router(Arc::new(parts));
    tokio::spawn(serve::serve(listener, tls::config(certificates).unwrap(), router, metrics.clone(), shutdown.clone()));
    Replica { address, documents, plane, leading, metrics, shutdown }
}

/// A replica that leads, with an authority.
async fn leader(server: &Server) -> Replica {
    let replica = replica(server, true, now, Documents::default()).await;
    assert!(replica.plane.known_within(PATIENCE).await);
    replica
}

fn payload(sub: &str, audience: &str, expires: i64) -> String {
    let payload = json!({"sub": sub, "aud": [audience], "exp": expires}).to_string();
    format!("h.{}.s", URL_SAFE_NO_PAD.encode(payload))
}

/// A token that the API server knows.
fn token(server: &Server, account: &str) -> String {
    let sub = format!("system:serviceaccount:{account}");
    let token = payload(&sub, "outrigger.dev", now() + 3600);
    server.sign(&token, &sub, "outrigger.dev");
    token
}

fn account(name: &str) -> Account {
    Account { namespace: "shop".into(), name: name.into() }
}

/// Connects as a sidecar that trusts `ca` does.
async fn connect(
    address: SocketAddr,
    ca: &str,
    alpn: &[u8],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(address).await?;
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(HOST).unwrap(), stream).await
}

impl Replica {
    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let ca = self.plane.get().unwrap().ca.clone();
        let stream = connect(self.address, &ca, b"http/1.1").await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    async fn get(&self, path: &str, token: &str) -> (StatusCode, Bytes) {
        let response = self.send(get(path, token)).await;
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }

    /// Status and reason of a refusal, and that it is counted.
    async fn refused(&self, path: &str, token: &str, operation: &str, label: &str) -> (u16, String) {
        let counter = self.metrics.control.requests.with_label_values(&[operation, label]);
        let before = counter.get();
        let (status, body) = self.get(path, token).await;
        assert_eq!(counter.get(), before + 1, "{operation} {label}");
        let refusal: Value = serde_json::from_slice(&body).unwrap();
        assert!(refusal["message"].as_str().is_some_and(|m| !m.is_empty()));
        (status.as_u16(), refusal["reason"].as_str().unwrap().to_owned())
    }
}

fn get(path: &str, token: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", HOST);
    let request = if token.is_empty() { request } else { request.header("authorization", format!("Bearer {token}")) };
    request.body(Full::default()).unwrap()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn who_has_no_good_token_is_refused_and_counted() {
    let server = Server::default();
    let replica = leader(&server).await;
    replica.documents.put(account("seller"), "{}".into());
    let ours = "system:serviceaccount:shop:seller";
    for (token, label, want) in [
        (String::new(), "no_token", (401, "NoToken")),
        ("abc".into(), "malformed_token", (401, "MalformedToken")),
        (payload(ours, "https://kubernetes.default.svc", now() + 60), "wrong_audience", (401, "WrongAudience")),
        (payload(ours, "outrigger.dev", now() - 1), "expired_token", (401, "ExpiredToken")),
        (payload("system:node:n1", "outrigger.dev", now() + 60), "malformed_token", (401, "MalformedToken")),
    ] {
        let (status, reason) = replica.refused("/v1/live", &token, "live", label).await;
        assert_eq!((status, reason.as_str()), want);
    }
    assert_eq!(server.reviews(), 0, "nobody is asked about a token that speaks against itself");
    // Forged: it says the right things.
    let forged = payload(ours, "outrigger.dev", now() + 60);
    let refused = replica.refused("/v1/live", &forged, "live", "not_authenticated").await;
    assert_eq!(refused, (401, "NotAuthenticated".into()));
    replica.refused("/v1/watch", &forged, "watch", "not_authenticated").await;
    assert_eq!(server.reviews(), 1, "a bad answer is remembered too");
    let stranger = token(&server, "shop:default");
    assert_eq!(replica.refused("/v1/live", &stranger, "live", "not_yours").await, (403, "NotYours".into()));
    let good = token(&server, "shop:seller");
    assert_eq!(replica.get("/v1/live", &good).await.0, StatusCode::OK);
    assert_eq!(replica.refused("/v2/live", &good, "other", "not_found").await.0, 404);
}

#[tokio::test]
async fn a_caller_is_told_of_its_own_document_alone() {
    let server = Server::default();
    let replica = leader(&server).await;
    replica.documents.put(account("seller"), r#"{"a":1}"#.into());
    replica.documents.put(account("rival"), r#"{"b":1}"#.into());
    replica.documents.put(Account { namespace: "other".into(), name: "seller".into() }, r#"{"c":1}"#.into());
    let (seller, rival) = (token(&server, "shop:seller"), token(&server, "shop:rival"));
    assert_eq!(replica.get("/v1/live", &seller).await.1, r#"{"a":1}"#);
    assert_eq!(replica.get("/v1/live", &rival).await.1, r#"{"b":1}"#);

    let response = replica.send(get("/v1/live", &seller)).await;
    let tag = response.headers()["etag"].clone();
    assert_eq!(tag.to_str().unwrap().trim_matches('"'), outrigger_operator::hash::hex(br#"{"a":1}"#));
    let mut again = get("/v1/live", &seller);
    again.headers_mut().insert("if-none-match", tag.clone());
    let response = replica.send(again).await;
    assert_eq!((response.status(), &response.headers()["etag"]), (StatusCode::NOT_MODIFIED, &tag));
    assert_eq!(server.reviews(), 2, "one question for each token");
}

#[tokio::test]
async fn a_hundred_requests_with_one_token_are_one_question() {
    let server = Server::default();
    let replica = leader(&server).await;
    replica.documents.put(account("seller"), "{}".into());
    let good = token(&server, "shop:seller");
    let all = futures::future::join_all((0..100).map(|_| replica.get("/v1/live", &good))).await;
    assert!(all.iter().all(|(status, _)| *status == StatusCode::OK));
    assert_eq!(server.reviews(), 1);
}

#[tokio::test]
async fn a_stream_tells_of_changes_over_both_versions_of_http() {
    let server = Server::default();
    let replica = leader(&server).await;
    replica.documents.put(account("seller"), "{}".into());
    let good = token(&server, "shop:seller");
    let mut first = replica.send(get("/v1/watch", &good)).await;
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    let ca = replica.plane.get().unwrap().ca.clone();
    let stream = connect(replica.address, &ca, b"h2").await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(format!("https://{HOST}:8443/v1/watch"))
        .header("authorization", format!("Bearer {good}"))
        .header("last-event-id", outrigger_operator::hash::hex(b"{}"))
        .body(Full::<Bytes>::default())
        .unwrap();
    let mut second = sender.send_request(request).await.unwrap();
    until("both streams are open", || replica.metrics.control.streams.get() == 2).await;

    let mut text = read_until(first.body_mut(), "data: {}\n\n").await;
    assert!(text.contains("event: live\n"), "{text}");
    replica.documents.put(account("seller"), "[1]".into());
    text = read_until(first.body_mut(), "data: [1]\n\n").await;
    assert_eq!(text.matches("data: ").count(), 1);
    text = read_until(second.body_mut(), "data: [1]\n\n").await;
    assert!(!text.contains("data: {}"), "what the reader has is not sent again: {text}");
    // An Agent that is deleted, and an operator that goes, end the streams.
    replica.documents.remove(&account("seller"));
    while first.body_mut().frame().await.is_some_and(|f| f.is_ok()) {}
    until("the streams are closed", || replica.metrics.control.streams.get() == 0).await;
}

async fn read_until(body: &mut Incoming, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    text
}

fn put_slice(server: &Server, name: &str, bytes: &[u8]) {
    let path = format!("/api/v1/namespaces/shop/configmaps/{name}");
    let labels = json!({"app.kubernetes.io/managed-by": "outrigger"});
    server.put(
        &path,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop", "labels": labels},
               "binaryData": {"bundle": STANDARD.encode(bytes)}}),
    );
}

fn document(skills: &[(&str, &str, u32)]) -> String {
    let skill = |(revision, digest, slices): &(&str, &str, u32)| json!({"name": "menu", "revision": revision, "slices": slices, "digest": digest});
    json!({"skills": skills.iter().map(skill).collect::<Vec<_>>()}).to_string()
}

#[tokio::test]
async fn bundles_are_put_together_and_kept_for_those_whose_they_are() {
    let server = Server::default();
    let replica = leader(&server).await;
    let (own, others, cut, gone) = ("a".repeat(64), "b".repeat(64), "c".repeat(64), "d".repeat(64));
    let whole: Vec<u8> = (0..SLICE_BYTES + 1000).map(|i| u8::try_from(i % 251).unwrap()).collect();
    put_slice(&server, "menu-7-0", &whole[..SLICE_BYTES]);
    put_slice(&server, "menu-7-1", &whole[SLICE_BYTES..]);
    put_slice(&server, "menu-8-0", b"short");
    put_slice(&server, "menu-8-1", b"short");
    let ours = [("menu-7", own.as_str(), 2), ("menu-8", cut.as_str(), 2), ("menu-9", gone.as_str(), 1)];
    replica.documents.put(account("seller"), document(&ours));
    replica.documents.put(account("rival"), document(&[("menu-7", others.as_str(), 2)]));
    let (seller, rival) = (token(&server, "shop:seller"), token(&server, "shop:rival"));
    let path = |digest: &str| format!("/v1/bundles/{digest}");

    // Ten at once are one reading.
    let own_path = path(&own);
    let all = futures::future::join_all((0..10).map(|_| replica.get(&own_path, &seller))).await;
    assert!(all.iter().all(|(status, body)| *status == StatusCode::OK && *body == whole));
    assert_eq!(server.reads("/configmaps/menu-7-"), 2);
    let response = replica.send(get(&path(&own), &seller)).await;
    assert!(response.headers()["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(response.headers()["etag"], format!("\"{own}\""));

    assert_eq!(replica.refused(&path(&own), &rival, "bundle", "not_yours").await, (403, "NotYours".into()));
    assert_eq!(replica.refused(&path(&others), &seller, "bundle", "not_yours").await.0, 403);
    assert_eq!(replica.refused(&path(&cut), &seller, "bundle", "damaged").await, (503, "Damaged".into()));
    assert_eq!(replica.refused(&path(&gone), &seller, "bundle", "not_found").await, (404, "NotFound".into()));
    // A ConfigMap of somebody else's is no slice.
    put_slice(&server, "menu-9-0", b"bytes");
    server.edit("/api/v1/namespaces/shop/configmaps/menu-9-0", |o| o["metadata"]["labels"] = json!({}));
    assert_eq!(replica.refused(&path(&gone), &seller, "bundle", "not_found").await.0, 404);
    put_slice(&server, "menu-9-0", b"bytes");
    assert_eq!(replica.get(&path(&gone), &seller).await.1, b"bytes".as_slice(), "a failure is not kept");
}

#[tokio::test]
async fn an_api_server_that_is_away_is_no_refusal_of_the_caller() {
    let server = Server::default();
    let replica = leader(&server).await;
    replica.documents.put(account("seller"), "{}".into());
    let good = token(&server, "shop:seller");
    server.refuse("/tokenreviews", 500, "etcdserver: request timed out");
    let response = replica.send(get("/v1/live", &good)).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    server.accept_all();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while replica.get("/v1/live", &good).await.0 != StatusCode::OK {
        assert!(tokio::time::Instant::now() < deadline, "it is asked again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_replica_that_has_not_read_the_documents_says_so() {
    let server = Server::default();
    let replica = replica(&server, true, now, Documents::of_scopes(1)).await;
    assert!(replica.plane.known_within(PATIENCE).await);
    let good = token(&server, "shop:seller");
    assert_eq!(replica.refused("/v1/live", &good, "live", "starting").await, (503, "Starting".into()));
}

#[tokio::test]
async fn proposals_are_for_skills_that_evolve() {
    let server = Server::default();
    let replica = leader(&server).await;
    let text = json!({"skills": [
        {"name": "menu", "revision": "menu-1", "slices": 1, "digest": "a", "evolves": true},
        {"name": "prices", "revision": "prices-1", "slices": 1, "digest": "b"},
    ]});
    replica.documents.put(account("seller"), text.to_string());
    let good = token(&server, "shop:seller");
    let propose = async |body: String| {
        let mut request = get("/v1/proposals", &good);
        *request.method_mut() = http::Method::POST;
        *request.body_mut() = Full::from(body);
        let response = replica.send(request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let refusal: Value = serde_json::from_slice(&body).unwrap();
        (status, refusal["reason"].as_str().unwrap().to_owned())
    };
    let to = |skill: &str| json!({"skill": skill, "baseDigest": "b", "rationale": "r"}).to_string();
    assert_eq!(propose(to("prices")).await, (404, "EvolutionDisabled".into()));
    let new = json!({"skill": "new", "rationale": "r"}).to_string();
    assert_eq!(propose(new).await, (404, "EvolutionDisabled".into()));
    assert_eq!(propose("{".into()).await, (422, "Malformed".into()));
    assert_eq!(propose(" ".repeat((512 << 10) + 1)).await, (413, "TooLarge".into()));
    assert_eq!(propose(to("menu")).await, (501, "Unsupported".into()));
}

static CLOCK: AtomicI64 = AtomicI64::new(0);

fn moved_clock() -> i64 {
    CLOCK.load(Ordering::SeqCst)
}

fn certificates(plane: &Plane) -> usize {
    plane.get().map_or(0, |p| p.ca.matches("BEGIN CERTIFICATE").count())
}

#[tokio::test]
async fn an_authority_is_changed_without_a_moment_in_which_nobody_can_connect() {
    // The last step is now, as clients check certificates by the real clock.
    let step = authority::SETTLE;
    let start = now() - authority::ROTATE_AFTER - 2 * step;
    CLOCK.store(start, Ordering::SeqCst);
    let server = Server::default();
    let first = replica(&server, true, moved_clock, Documents::default()).await;
    assert!(first.plane.known_within(PATIENCE).await);
    let second = replica(&server, false, moved_clock, Documents::default()).await;
    assert!(second.plane.known_within(PATIENCE).await);
    assert_eq!(first.plane.get(), second.plane.get(), "one authority for both");
    let writes = |server: &Server| server.changes().iter().filter(|c| c.path == SECRET).count();
    assert_eq!(writes(&server), 1, "the one that leads made it");

    let mut trusted = vec![first.plane.get().unwrap().ca.clone()];
    for (when, want) in [(2 * step, 2), (step, 2), (0, 1)] {
        CLOCK.store(now() - when, Ordering::SeqCst);
        first.leading.send_replace(true);
        let before = trusted.last().unwrap().clone();
        until("the step is taken", || first.plane.get().unwrap().ca != before).await;
        assert_eq!(certificates(&first.plane), want);
        second.leading.send_replace(false);
        until("the other one has it", || second.plane.get() == first.plane.get()).await;
        // Who has read this document or the one before is let in by both.
        let now = first.plane.get().unwrap().ca.clone();
        for ca in [&before, &now] {
            for replica in [&first, &second] {
                connect(replica.address, ca, b"http/1.1").await.unwrap();
            }
        }
        trusted.push(now);
    }
    assert_eq!(writes(&server), 3);
    assert!(connect(first.address, &trusted[0], b"http/1.1").await.is_err(), "the former one is trusted no more");
    let secret = server.get(SECRET).unwrap();
    let bundle = STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap();
    assert_eq!(bundle, trusted[3].as_bytes());
    for step in ["made", "announced", "switched", "dropped"] {
        assert_eq!(first.metrics.control.authority_steps.with_label_values(&[step]).get(), 1, "{step}");
        assert_eq!(second.metrics.control.authority_steps.with_label_values(&[step]).get(), 0, "{step}");
    }
    // A leader that nothing is due for writes nothing.
    let before = first.metrics.control.authority_reads.with_label_values(&["ok"]).get();
    first.leading.send_replace(true);
    until("it looked", || first.metrics.control.authority_reads.with_label_values(&["ok"]).get() > before).await;
    assert_eq!(writes(&server), 0);
}

#[tokio::test]
async fn a_leader_without_the_right_says_so_and_goes_on_trying() {
    let server = Server::default();
    server.refuse("/secrets/", 403, "secrets is forbidden");
    let replica = replica(&server, true, now, Documents::default()).await;
    let forbidden = replica.metrics.control.authority_reads.with_label_values(&["forbidden"]);
    until("it is told", || forbidden.get() > 0).await;
    assert_eq!(replica.plane.get(), None);
    server.accept_all();
    replica.leading.send_replace(true);
    assert!(replica.plane.known_within(PATIENCE).await);
}
