//! Who is let in: tokens, keys, nobody in particular, and how often.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod outbound_support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp, jwk::Jwk};
use outbound_support::{Names, Server, fixture, status, text};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::config::{Access, ApiKeys, JwtIssuer, Limits, Live};
use outrigger_sidecar::a2a::call::Caller;
use outrigger_sidecar::a2a::edge::{Edge, Metrics, Timing};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

struct Key {
    id: &'static str,
    algorithm: Algorithm,
    private: EncodingKey,
}

fn key(id: &'static str) -> Key {
    let pem = std::fs::read(fixture(&format!("keys/{id}.pem"))).unwrap();
    let (key, algorithm) = match id {
        "es256" => (EncodingKey::from_ec_pem(&pem), Algorithm::ES256),
        "es384" => (EncodingKey::from_ec_pem(&pem), Algorithm::ES384),
        "ed25519" => (EncodingKey::from_ed_pem(&pem), Algorithm::EdDSA),
        _ => (EncodingKey::from_rsa_pem(&pem), Algorithm::RS256),
    };
    Key { id, algorithm, private: key.unwrap() }
}

impl Key {
    fn jwk(&self) -> Value {
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&self.private, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = self.id.into();
        jwk
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.into()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.private).unwrap()
    }
}

const ISSUER: &str = "https://issuer.example";

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": ["other", "agent"], "sub": "alice", "exp": get_current_timestamp() + 600,
           "scope": "call read"})
}

fn changed(member: &str, value: Value) -> Value {
    let mut all = claims();
    all[member] = value;
    all
}

fn without(member: &str) -> Value {
    let mut all = claims();
    all.as_object_mut().unwrap().remove(member);
    all
}

fn key_set(keys: &[&Key]) -> String {
    let mut list: Vec<Value> = keys.iter().map(|k| k.jwk()).collect();
    // Kinds of a later day are passed over.
    list.push(json!({"kty": "AKP", "alg": "ML-DSA-44", "kid": "pq", "pub": "AAAA"}));
    json!({"keys": list}).to_string()
}

fn issuer() -> JwtIssuer {
    JwtIssuer {
        issuer: ISSUER.into(),
        audiences: vec!["agent".into()],
        jwks_url: None,
        jwks_file: None,
        ca_file: None,
        scopes: vec!["call".into()],
    }
}

struct Under {
    edge: Arc<Edge>,
    live: watch::Sender<Arc<Live>>,
    metrics: Metrics,
}

impl Under {
    fn test(access: Access, limits: Limits, names: &[(&str, &[&[&str]])], timing: Timing) -> Self {
        let live = Live { access, limits, ..Live::new(Value::Null) };
        let (live, rx) = watch::channel(Arc::new(live));
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let edge = Edge::with(rx, metrics.clone(), Names::new(names), timing);
        Self { edge, live, metrics }
    }

    fn tokens(jwt: JwtIssuer) -> Self {
        let access = Access { jwt: vec![jwt], ..Access::default() };
        Self::test(access, Limits::default(), &[], Timing::default())
    }

    async fn bearer(&self, token: &str) -> Result<Caller, Error> {
        self.with("authorization", &format!("Bearer {token}")).await
    }

    async fn with(&self, name: &'static str, value: &str) -> Result<Caller, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        self.edge.admit(&headers, None).await
    }

    async fn nobody(&self) -> Result<Caller, Error> {
        self.edge.admit(&HeaderMap::new(), None).await
    }

    fn refreshes(&self, outcome: &str) -> u64 {
        self.metrics.jwks.with_label_values(&[outcome]).get()
    }
}

fn challenge(error: &Error) -> &str {
    error.headers.iter().find(|(name, _)| *name == "www-authenticate").map_or("", |(_, value)| value)
}

fn file(dir: &Path, content: &str) -> JwtIssuer {
    let path = dir.join("jwks.json");
    std::fs::write(&path, content).unwrap();
    JwtIssuer { jwks_file: Some(path.to_string_lossy().into_owned()), ..issuer() }
}

#[tokio::test]
async fn without_any_way_to_prove_it_everybody_is_anonymous() {
    let under = Under::test(Access::default(), Limits::default(), &[], Timing::default());
    assert_eq!(under.nobody().await.unwrap(), Caller::anonymous());
    let spoofed = under.with("authorization", "Bearer whatever").await.unwrap();
    assert_eq!(spoofed.identity, None, "nothing in a request is believed");
    let tenant = under.edge.admit(&HeaderMap::new(), Some("t")).await.unwrap();
    assert!(!tenant.key.is_empty() && tenant.identity.is_none());
}

#[tokio::test]
async fn a_token_of_each_kind_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let keys = ["es256", "es384", "ed25519", "rs256"].map(key);
    let under = Under::tokens(file(dir.path(), &key_set(&keys.iter().collect::<Vec<_>>())));
    for key in &keys {
        let token = key.sign(&claims());
        for _ in 0..2 {
            let caller = under.bearer(&token).await.unwrap();
            let identity = caller.identity.unwrap();
            assert_eq!((identity.subject.as_str(), identity.issuer.as_str()), ("alice", ISSUER), "{}", key.id);
            assert_eq!(identity.scopes, ["call", "read"]);
        }
    }
    let scp = keys[0].sign(&{
        let mut c = without("scope");
        c["scp"] = json!(["call"]);
        c
    });
    under.bearer(&scp).await.unwrap();
    let service = keys[0].sign(&{
        let mut c = without("sub");
        c["client_id"] = json!("robot");
        c
    });
    assert_eq!(under.bearer(&service).await.unwrap().identity.unwrap().subject, "robot");
    let other = under.bearer(&keys[0].sign(&changed("sub", json!("bob")))).await.unwrap();
    let alice = under.bearer(&keys[0].sign(&claims())).await.unwrap();
    assert_ne!(other.key, alice.key);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("bearer {}", keys[0].sign(&claims())).parse().unwrap());
    let tenant = under.edge.admit(&headers, Some("shop")).await.unwrap();
    assert_ne!(tenant.key, alice.key, "each tenant has its own tasks");
}

#[tokio::test]
async fn a_token_that_is_not_good_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (good, stranger) = (key("es256"), key("ed25519"));
    let under = Under::tokens(file(dir.path(), &key_set(&[&good])));
    let now = get_current_timestamp();
    let public = good.jwk().to_string();
    let confused = {
        // The public key as the secret of an HMAC, the classic.
        let header = Header { kid: Some("es256".into()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims(), &EncodingKey::from_secret(public.as_bytes()).unwrap()).unwrap()
    };
    let unsigned = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIn0.";
    let mut tampered = good.sign(&claims());
    tampered.replace_range(tampered.len() - 4.., "AAAA");
    for (token, why) in [
        (String::new(), "malformed"),
        ("a.b".into(), "malformed"),
        (unsigned.into(), "malformed"),
        (confused, "algorithm is not accepted"),
        (tampered, "signature is wrong"),
        (stranger.sign(&claims()), "key is not known"),
        (good.sign(&changed("iss", json!("https://evil.example"))), "issuer is not accepted"),
        (good.sign(&without("iss")), "issuer is not accepted"),
        (good.sign(&changed("aud", json!("elsewhere"))), "another audience"),
        (good.sign(&without("aud")), "lacks exp, iss or aud"),
        (good.sign(&changed("exp", json!(now - 31))), "has expired"),
        (good.sign(&without("exp")), "lacks exp, iss or aud"),
        (good.sign(&changed("nbf", json!(now + 60))), "not valid yet"),
        (good.sign(&without("sub")), "names no subject"),
        (good.sign(&changed("sub", json!("x".repeat(1000)))), "names no subject"),
        ("x".repeat(20_000), "too long"),
    ] {
        let error = under.bearer(&token).await.unwrap_err();
        assert_eq!(error.kind, Kind::Unauthenticated, "{why}");
        assert!(error.message.contains(why), "{} should say {why}", error.message);
        assert!(challenge(&error).starts_with("Bearer error=\"invalid_token\""), "{}", challenge(&error));
        assert!(token.len() < 10 || !error.message.contains(&token), "no token in an error");
    }
    // Clocks differ a little.
    under.bearer(&good.sign(&changed("exp", json!(now - 10)))).await.unwrap();
    under.bearer(&good.sign(&changed("nbf", json!(now + 10)))).await.unwrap();
    let error = under.bearer(&good.sign(&changed("scope", json!("read")))).await.unwrap_err();
    assert_eq!(error.kind, Kind::Forbidden);
    assert_eq!(challenge(&error), "Bearer error=\"insufficient_scope\", scope=\"call\"");
    let error = under.nobody().await.unwrap_err();
    assert_eq!((error.kind, challenge(&error)), (Kind::Unauthenticated, "Bearer"));
    assert_eq!(under.with("authorization", "Basic YTpi").await.unwrap_err().kind, Kind::Unauthenticated);
}

#[tokio::test]
async fn keys_are_found_by_the_issuer_over_tls_rotated_and_used_while_it_is_down() {
    let (first, second) = (key("es256"), key("ed25519"));
    let keys = Arc::new(Mutex::new(Some(key_set(&[&first]))));
    let served = Arc::clone(&keys);
    let issuer_server = Server::https(move |got| {
        let served = Arc::clone(&served);
        async move {
            let port = got.header("host").rsplit(':').next().unwrap().to_owned();
            let base = format!("https://issuer.example:{port}");
            match (got.path.as_str(), served.lock().clone()) {
                (_, None) => status(500),
                ("/.well-known/openid-configuration", _) => {
                    text(json!({"issuer": base, "jwks_uri": format!("{base}/keys")}).to_string())
                }
                ("/keys", Some(keys)) => text(keys),
                _ => status(404),
            }
        }
    })
    .await;
    let name = format!("https://issuer.example:{}", issuer_server.port);
    let config = JwtIssuer {
        issuer: name.clone(),
        ca_file: Some(fixture("tls/ca.pem").to_string_lossy().into_owned()),
        ..issuer()
    };
    let timing =
        Timing { refresh_gap: Duration::from_millis(200), fresh_for: Duration::from_millis(300), ..Timing::default() };
    let access = Access { jwt: vec![config.clone()], ..Access::default() };
    let under = Under::test(access, Limits::default(), &[("issuer.example", &[&["127.0.0.1"]])], timing);
    let of = |key: &Key| key.sign(&changed("iss", json!(name)));
    let (old, new) = (of(&first), of(&second));

    // Many at once are one reading: discovery and keys.
    let all = (0..20).map(|_| under.bearer(&old));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!((issuer_server.count(), under.refreshes("read")), (2, 1));

    // A key that is not there is looked for, but not again and again.
    *keys.lock() = Some(key_set(&[&second]));
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    while under.bearer(&new).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the rotated key never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(under.bearer(&old).await.unwrap_err().kind, Kind::Unauthenticated, "the old key is gone");

    // The issuer is down: what is known is used.
    *keys.lock() = None;
    let mut number = 0;
    while under.refreshes("failed") == 0 {
        assert!(tokio::time::Instant::now() < deadline, "no reading fails");
        number += 1;
        let token = second
            .sign(&json!({"iss": name, "aud": "agent", "sub": format!("caller {number}"), "scope": "call",
                                        "exp": get_current_timestamp() + 600}));
        under.bearer(&token).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    under.bearer(&new).await.unwrap();
    let fresh = second.sign(&{
        let mut c = changed("iss", json!(name));
        c["sub"] = json!("carol");
        c
    });
    under.bearer(&fresh).await.unwrap();

    // A change of something else keeps the keys.
    let before = issuer_server.count();
    let live = Live { limits: Limits { request_burst: 7, ..Limits::default() }, ..Live::clone(&under.live.borrow()) };
    under.live.send_replace(Arc::new(live));
    under.bearer(&fresh).await.unwrap();
    assert!(issuer_server.count() <= before + 2);

    // Never seen at all: come again, and not "your token is bad".
    let access = Access { jwt: vec![config], ..Access::default() };
    let cold = Under::test(access, Limits::default(), &[("issuer.example", &[&["127.0.0.1"]])], timing);
    let error = cold.bearer(&new).await.unwrap_err();
    assert_eq!((error.kind, error.retry_after), (Kind::Unavailable, Some(10)));
}

#[tokio::test]
async fn unknown_keys_do_not_hammer_the_issuer() {
    let first = key("es256");
    let body = key_set(&[&first]);
    let server = Server::http(move |_| {
        let body = body.clone();
        async move { text(body) }
    })
    .await;
    let config = JwtIssuer { jwks_url: Some(format!("http://127.0.0.1:{}/keys", server.port)), ..issuer() };
    let under = Under::tokens(config);
    under.bearer(&first.sign(&claims())).await.unwrap();
    for i in 0..50 {
        let header = Header { kid: Some(format!("made-up-{i}")), ..Header::new(Algorithm::ES256) };
        let token = encode(&header, &claims(), &first.private).unwrap();
        assert_eq!(under.bearer(&token).await.unwrap_err().kind, Kind::Unauthenticated);
    }
    assert_eq!(server.count(), 1, "the gap is not over");
}

#[tokio::test]
async fn a_file_of_keys_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (key("es256"), key("rs256"));
    let under = Under::tokens(file(dir.path(), &key_set(&[&first])));
    under.bearer(&first.sign(&claims())).await.unwrap();
    assert!(under.bearer(&second.sign(&claims())).await.is_err());
    file(dir.path(), &key_set(&[&second]));
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    while under.bearer(&second.sign(&claims())).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the new file is not read");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(under.bearer(&first.sign(&claims())).await.is_err(), "a token that was good before is checked anew");
}

#[tokio::test]
async fn api_keys_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("alice"), "0123456789abcdef-alice\n").unwrap();
    std::fs::write(dir.path().join("short"), "0123").unwrap();
    let keys = ApiKeys { header: "X-Shop-Key".into(), folder: dir.path().to_string_lossy().into_owned() };
    let access = Access { api_key: Some(keys), ..Access::default() };
    let under = Under::test(access.clone(), Limits::default(), &[], Timing::default());
    let alice = under.with("x-shop-key", "0123456789abcdef-alice").await.unwrap();
    let identity = alice.identity.unwrap();
    assert_eq!((identity.subject.as_str(), identity.issuer.as_str()), ("alice", "api-key"));
    for wrong in ["0123456789abcdef-alicf", "0123456789abcdef-alice2", "", "0123"] {
        let error = under.with("x-shop-key", wrong).await.unwrap_err();
        assert_eq!((error.kind, challenge(&error)), (Kind::Unauthenticated, "ApiKey header=\"X-Shop-Key\""));
    }
    assert_eq!(under.nobody().await.unwrap_err().kind, Kind::Unauthenticated);

    std::fs::write(dir.path().join("bob"), "0123456789abcdef-bob").unwrap();
    std::fs::remove_file(dir.path().join("alice")).unwrap();
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    while under.with("x-shop-key", "0123456789abcdef-bob").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the new key is not taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(under.with("x-shop-key", "0123456789abcdef-alice").await.is_err());

    // Beside callers without any: but a wrong key is not nobody.
    let open = Access { anonymous: true, ..access };
    under.live.send_replace(Arc::new(Live { access: open, ..Live::new(Value::Null) }));
    assert_eq!(under.nobody().await.unwrap().identity, None);
    assert!(under.with("x-shop-key", "wrong").await.is_err());
}

#[tokio::test]
async fn a_caller_that_asks_too_often_waits() {
    let dir = tempfile::tempdir().unwrap();
    let key = key("es256");
    let access = Access { anonymous: true, jwt: vec![file(dir.path(), &key_set(&[&key]))], ..Access::default() };
    let limits = Limits { max_requests_per_second: 1, request_burst: 2, ..Limits::default() };
    let under = Under::test(access, limits, &[], Timing::default());
    under.nobody().await.unwrap();
    under.nobody().await.unwrap();
    let error = under.nobody().await.unwrap_err();
    assert_eq!((error.kind, error.retry_after), (Kind::RateLimited, Some(1)));
    let made_up = under.edge.admit(&HeaderMap::new(), Some("made-up")).await.unwrap_err();
    assert_eq!(made_up.kind, Kind::RateLimited, "a tenant is no way round");
    under.bearer(&key.sign(&claims())).await.unwrap();
}
