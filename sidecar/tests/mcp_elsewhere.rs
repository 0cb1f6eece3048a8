//! A tool server that is not a process of this pod, as clients of the sidecar see it: like any other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp, jwk::Jwk};
use mcp_support::{Rig, Setup, call, eventually, init};
use outrigger_protocol::config::{IDENTITY_AUDIENCE, Live, Mcp, Reach, ToolAccess, ToolCaller};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::mcp::timing::Timing;
use outrigger_sidecar::tools;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

const ISSUER: &str = "https://issuer.example";

fn private() -> EncodingKey {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys/es256.pem");
    EncodingKey::from_ec_pem(&std::fs::read(path).unwrap()).unwrap()
}

fn token(subject: &str) -> String {
    let exp = get_current_timestamp() + 600;
    let claims = json!({"iss": ISSUER, "aud": [IDENTITY_AUDIENCE], "sub": subject, "exp": exp});
    let header = Header { kid: Some("k".into()), ..Header::new(Algorithm::ES256) };
    encode(&header, &claims, &private()).unwrap()
}

/// The pod of a Standalone server: the fixture behind a shim, and the front that lets one Agent in.
struct Pod {
    rig: Rig,
    port: u16,
    serving: tokio::task::JoinHandle<()>,
}

impl Pod {
    async fn start() -> Self {
        let rig = Rig::ready(&[]).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = Self::serve(&rig, listener);
        Self { rig, port, serving }
    }

    fn serve(rig: &Rig, listener: TcpListener) -> tokio::task::JoinHandle<()> {
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&private(), Algorithm::ES256).unwrap()).unwrap();
        jwk["kid"] = "k".into();
        let seller = ToolCaller { subject: "system:serviceaccount:shop:seller".into(), ..ToolCaller::default() };
        let access = ToolAccess {
            issuer: ISSUER.into(),
            audience: IDENTITY_AUDIENCE.into(),
            jwks: json!({"keys": [jwk]}),
            callers: vec![seller],
        };
        let live = Live { mcp: Mcp { access: Some(access), ..Mcp::default() }, ..Live::new(Value::Null) };
        let registry = prometheus::Registry::new();
        let context = Context { live: watch::channel(Arc::new(live)).1, registry, ..rig.context.clone() };
        let router = tools::router(&context, rig.servers.router()).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() })
    }
}

/// The sidecar of an Agent, which proves itself as `subject`.
async fn agent(port: u16, subject: &str, folder: &Path) -> Rig {
    std::fs::write(folder.join("Authorization"), format!("Bearer {}", token(subject))).unwrap();
    let ms = Duration::from_millis;
    let timing = Timing { ping_every: ms(50), restart: (ms(10), ms(50)), restart_grace: ms(0), ..Timing::default() };
    let reach = Reach::Remote {
        url: format!("http://127.0.0.1:{port}/mcp/fixture"),
        headers_dir: Some(folder.to_string_lossy().into_owned()),
        ca_file: None,
        allow: vec!["127.0.0.0/8".into()],
    };
    Rig::without_shim(Setup { timing, reach: Some(reach), ..Setup::default() }).await
}

#[tokio::test]
async fn an_agent_sees_no_difference() {
    let pod = Pod::start().await;
    let folder = tempfile::tempdir().unwrap();
    let rig = agent(pod.port, "system:serviceaccount:shop:seller", folder.path()).await;
    rig.until_ready().await;
    let status = rig.status();
    assert!(status.server_info.starts_with("fixture") && !status.tools.is_empty(), "{status:?}");
    let session = rig.session().await;
    let other = rig.session().await;
    let (mine, others) = (rig.pid(&session).await, rig.pid(&other).await);
    assert_eq!(mine, rig.pid(&session).await);
    assert_ne!(mine, others, "sessions that may ask their client something have processes of their own");
    let echo = rig.post(Some(&session), call("\u{e9}", "nosuch", json!({"big": 12_345_678_901_234_567_890_u64}))).await;
    assert_eq!(echo.last().await["id"], "\u{e9}");
    let ended = rig.http("DELETE", &[("mcp-session-id", &session)], "").await;
    assert_eq!(ended.status, StatusCode::NO_CONTENT);
    eventually("the process over there ends too", || !mcp_support::alive(mine)).await;
    assert!(mcp_support::alive(others));
}

#[tokio::test]
async fn one_that_is_not_let_in_is_told_so_in_its_status() {
    let pod = Pod::start().await;
    let folder = tempfile::tempdir().unwrap();
    let rig = agent(pod.port, "system:serviceaccount:shop:stranger", folder.path()).await;
    eventually("the refusal is seen", || rig.status().part.reason == "Unauthorized").await;
    let message = rig.status().part.message;
    assert!(message.contains("403"), "{message}");
    assert!(!rig.status().part.ready);
}

#[tokio::test]
async fn an_outage_is_seen_without_a_call_and_so_is_its_end() {
    let pod = Pod::start().await;
    let folder = tempfile::tempdir().unwrap();
    let rig = agent(pod.port, "system:serviceaccount:shop:seller", folder.path()).await;
    rig.until_ready().await;
    pod.serving.abort();
    assert!(pod.serving.await.unwrap_err().is_cancelled());
    eventually("the outage is seen", || rig.status().part.reason == "Unreachable").await;
    let again = TcpListener::bind(("127.0.0.1", pod.port)).await.unwrap();
    let _serving = Pod::serve(&pod.rig, again);
    rig.until_ready().await;
    let session = rig.session().await;
    rig.pid(&session).await;
}

#[tokio::test]
async fn a_call_to_a_server_that_went_away_fails_with_the_reason() {
    let pod = Pod::start().await;
    let folder = tempfile::tempdir().unwrap();
    let rig = agent(pod.port, "system:serviceaccount:shop:seller", folder.path()).await;
    rig.until_ready().await;
    let session = rig.session().await;
    std::fs::write(folder.path().join("Authorization"), "Bearer nonsense").unwrap();
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    let refused = loop {
        let reply = rig.post(Some(&session), call(9, "pid", json!({}))).await;
        let (status, body) = (reply.status, reply.last().await);
        if status != StatusCode::OK || body.get("error").is_some() {
            break body;
        }
        assert!(tokio::time::Instant::now() < deadline, "the file is read again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let text = refused.to_string();
    assert!(text.contains("401") || text.contains("session"), "{text}");
    let gone = rig.post(Some(&session), init(1).replace("initialize", "ping")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "the client has to begin again");
}
