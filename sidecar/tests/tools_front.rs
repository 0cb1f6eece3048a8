//! The front of a pod without an agent: who is let in to its tool server, and as whom.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::{Extension, Router, routing::any};
use http::{HeaderMap, Request, StatusCode};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp, jwk::Jwk};
use outrigger_protocol::config::{
    AgentRef, Boot, Drain, Filter, IDENTITY_AUDIENCE, Live, LocalUrls, Mcp, Runtime, Store, ToolAccess, ToolCaller,
};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::tools::{self, Caller};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const ISSUER: &str = "https://issuer.example";
const SELLER: &str = "system:serviceaccount:shop:seller";

fn private(id: &str) -> EncodingKey {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/keys/{id}.pem"));
    EncodingKey::from_ec_pem(&std::fs::read(path).unwrap()).unwrap()
}

fn algorithm(id: &str) -> Algorithm {
    if id == "es384" { Algorithm::ES384 } else { Algorithm::ES256 }
}

fn jwks(id: &str) -> Value {
    let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&private(id), algorithm(id)).unwrap()).unwrap();
    jwk["kid"] = id.into();
    json!({"keys": [jwk]})
}

fn token(id: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut claims =
        json!({"iss": ISSUER, "aud": [IDENTITY_AUDIENCE], "sub": SELLER, "exp": get_current_timestamp() + 600});
    change(&mut claims);
    let header = Header { kid: Some(id.into()), ..Header::new(algorithm(id)) };
    encode(&header, &claims, &private(id)).unwrap()
}

fn live(keys: Value, callers: &[&str]) -> Live {
    let caller = |subject: &&str| ToolCaller {
        subject: (*subject).into(),
        filter: Filter { allow: vec!["search_*".into()], deny: vec![] },
    };
    let access = ToolAccess {
        issuer: ISSUER.into(),
        audience: IDENTITY_AUDIENCE.into(),
        jwks: keys,
        callers: callers.iter().map(caller).collect(),
    };
    Live { mcp: Mcp { access: Some(access), ..Mcp::default() }, ..Live::new(Value::Null) }
}

struct Under {
    router: Router,
    live: watch::Sender<Arc<Live>>,
    registry: prometheus::Registry,
}

fn test(document: Live) -> Under {
    let boot = Boot {
        version: 1,
        agent: AgentRef { name: "news".into(), namespace: "tools".into() },
        runtime: Runtime::Tools {},
        containers: vec!["tool-news".into()],
        servers: vec![],
        skills: vec![],
        store: Store::Memory,
        drain: Drain { token: "0123456789abcdef".into(), grace_seconds: 90 },
    };
    let (live, rx) = watch::channel(Arc::new(document));
    let registry = prometheus::Registry::new();
    let context = Context {
        drain: outrigger_sidecar::drain::Drain::new(&boot.containers, Duration::from_secs(90)),
        boot: Arc::new(boot),
        live: rx,
        urls: Arc::new(LocalUrls::default()),
        token: "".into(),
        registry: registry.clone(),
        shutdown: CancellationToken::new(),
    };
    let tell = async |Extension(caller): Extension<Caller>, headers: HeaderMap| {
        assert!(!headers.contains_key("authorization"), "the token goes no further");
        format!("{} {:?} {:?}", caller.subject, caller.filter.allow, headers["host"])
    };
    let servers = Router::new().route("/mcp/news", any(tell));
    Under { router: tools::router(&context, servers).unwrap(), live, registry }
}

impl Under {
    async fn call(&self, path: &str, token: Option<&str>) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::post(path).header("host", "news-mcp.tools.svc.cluster.local:8080");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, headers, String::from_utf8(body.to_vec()).unwrap())
    }

    fn admissions(&self, outcome: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|f| f.name() == "outrigger_mcp_admissions_total").unwrap();
        let of = |m: &&prometheus::proto::Metric| m.get_label()[0].value() == outcome;
        family.get_metric().iter().find(of).unwrap().get_counter().get_value()
    }
}

#[tokio::test]
async fn an_agent_that_is_named_is_let_in_as_itself() {
    let under = test(live(jwks("es256"), &[SELLER]));
    let (status, _, body) = under.call("/mcp/news", Some(&token("es256", |_| {}))).await;
    assert_eq!(
        (status, body.as_str()),
        (StatusCode::OK, r#"system:serviceaccount:shop:seller ["search_*"] "localhost""#)
    );
    assert!((under.admissions("ok") - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn whoever_does_not_prove_itself_is_refused() {
    let under = test(live(jwks("es256"), &[SELLER]));
    let forged = token("es384", |_| {});
    let expired = token("es256", |c| c["exp"] = json!(get_current_timestamp() - 600));
    let elsewhere = token("es256", |c| c["aud"] = json!(["https://kubernetes.default.svc"]));
    let other_cluster = token("es256", |c| c["iss"] = json!("https://other.example"));
    let refused = [
        (None, "a token of their own"),
        (Some("nonsense"), "malformed"),
        (Some(&forged), "key is not known"),
        (Some(&expired), "expired"),
        (Some(&elsewhere), "another audience"),
        (Some(&other_cluster), "issuer is not accepted"),
    ];
    for (token, why) in refused {
        let (status, headers, body) = under.call("/mcp/news", token).await;
        assert_eq!(
            (status, headers["www-authenticate"].to_str().unwrap()),
            (StatusCode::UNAUTHORIZED, "Bearer"),
            "{why}"
        );
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains(why), "{body} has {why}");
        assert_eq!(body["error"]["data"]["reason"], "Unauthenticated");
    }
    assert!((under.admissions("unauthenticated") - 6.0).abs() < 0.1);
}

#[tokio::test]
async fn an_agent_that_is_not_named_is_forbidden_until_it_is() {
    let under = test(live(jwks("es256"), &["system:serviceaccount:shop:buyer"]));
    let token = token("es256", |_| {});
    let (status, _, body) = under.call("/mcp/news", Some(&token)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(body.contains(SELLER) && body.contains("spec.access.from"), "{body}");
    under.live.send_replace(Arc::new(live(jwks("es256"), &[SELLER])));
    assert_eq!(under.call("/mcp/news", Some(&token)).await.0, StatusCode::OK);
    under.live.send_replace(Arc::new(live(jwks("es384"), &[SELLER])));
    assert_eq!(under.call("/mcp/news", Some(&token)).await.0, StatusCode::UNAUTHORIZED, "that key is gone");
    assert!((under.admissions("forbidden") - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn without_keys_nobody_is_let_in() {
    let nothing = Live::new(Value::Null);
    for document in [nothing, live(json!({"keys": []}), &[SELLER]), live(Value::Null, &[SELLER])] {
        let under = test(document);
        let (status, headers, _) = under.call("/mcp/news", Some(&token("es256", |_| {}))).await;
        assert_eq!((status, headers["retry-after"].to_str().unwrap()), (StatusCode::SERVICE_UNAVAILABLE, "10"));
    }
}

#[tokio::test]
async fn nothing_else_is_served_and_nothing_is_told_to_strangers() {
    let under = test(live(jwks("es256"), &[SELLER]));
    assert_eq!(under.call("/.well-known/agent-card.json", None).await.0, StatusCode::UNAUTHORIZED);
    let (status, _, body) = under.call("/mcp", Some(&token("es256", |_| {}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("/mcp/{server}"), "{body}");
}
