//! The card: what it says, to whom, under which URLs, with whose signature, and that it is true.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;
mod outbound_support;

use std::path::Path;
use std::sync::Arc;

use a2a_support::{Front, Handler, answer, context, until};
use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use jsonwebtoken::{Algorithm, DecodingKey, crypto, jwk::Jwk};
use outbound_support::fixture;
use outrigger_protocol::a2a::card::canonical;
use outrigger_protocol::config::{Access, ApiKeys, JwtIssuer, Live, Offer, Push};
use outrigger_sidecar::a2a::card::truth::Checker;
use outrigger_sidecar::a2a::card::{Card, peer};
use outrigger_sidecar::metrics::Metrics;
use outrigger_sidecar::serve::{Listener, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const CARD: &str = "/.well-known/agent-card.json";
const URL: &str = "http://burger-seller.shop:8080";

async fn echo() -> (Handler, Front) {
    let handler = Handler::start(|got| async move { answer(json!({"text": got.json()["text"]})) }).await;
    let front = Front::to(&handler);
    set(&front, |_| {});
    (handler, front)
}

fn set(front: &Front, change: impl FnOnce(&mut Live)) {
    let mut live = Live::clone(&front.live.borrow());
    live.offer = Offer { url: URL.into(), ..live.offer };
    change(&mut live);
    front.live.send_replace(Arc::new(live));
}

async fn get(front: &Front, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::get(path);
    for (k, v) in headers {
        request = request.header(*k, *v);
    }
    front.request(request.body(Body::empty()).unwrap()).await
}

async fn card(front: &Front, headers: &[(&str, &str)]) -> Value {
    serde_json::from_str(&get(front, CARD, headers).await.2).unwrap()
}

fn interfaces(card: &Value) -> Vec<String> {
    let list = card["supportedInterfaces"].as_array().unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    list.iter()
        .map(|i| format!("{} {} {}", text(&i["protocolVersion"]), text(&i["protocolBinding"]), text(&i["url"])))
        .collect()
}

#[tokio::test]
async fn one_document_for_readers_of_both_versions() {
    let (_handler, front) = echo().await;
    set(&front, |live| {
        live.offer.grpc = "burger-seller.shop:8081".into();
        live.offer.streaming = true;
        live.push.enabled = true;
        live.extended_card = Some(json!({"name": "more"}));
        live.access = access();
        live.access.anonymous = false;
    });
    insta::assert_json_snapshot!(card(&front, &[]).await);
    assert_eq!(card(&front, &[("a2a-version", "1.0")]).await, card(&front, &[]).await, "it needs no negotiation");
    set(&front, |live| live.access.anonymous = true);
    let open = card(&front, &[]).await;
    assert!(open.get("securityRequirements").is_none() && open["securitySchemes"].as_object().unwrap().len() == 3);
}

fn access() -> Access {
    let issuer = |issuer: &str, url: Option<&str>, scopes: &[&str]| JwtIssuer {
        issuer: issuer.into(),
        audiences: vec!["seller".into()],
        jwks_url: url.map(Into::into),
        jwks_file: None,
        ca_file: None,
        scopes: scopes.iter().map(|&s| s.into()).collect(),
    };
    Access {
        anonymous: false,
        api_key: Some(ApiKeys { header: "X-Shop-Key".into(), folder: "/nowhere".into() }),
        jwt: vec![
            issuer("https://login.example.com/", None, &["order"]),
            issuer("https://other.example.com", Some("https://other.example.com/keys"), &[]),
        ],
    }
}

#[tokio::test]
async fn validators_other_origins_and_all_its_paths() {
    let (_handler, front) = echo().await;
    let (status, headers, text) = get(&front, CARD, &[]).await;
    assert_eq!(status, StatusCode::OK);
    for path in ["/.well-known/agent.json", "/burger/.well-known/agent-card.json", "/a/b/c/.well-known/agent.json"] {
        assert_eq!(get(&front, path, &[]).await.2, text, "{path}");
    }
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert!(headers["cache-control"].to_str().unwrap().contains("max-age="));
    assert!(headers.get("vary").is_none(), "it is the same for everybody");
    let etag = headers["etag"].to_str().unwrap().to_owned();
    let modified = headers["last-modified"].to_str().unwrap().to_owned();
    assert!(modified.ends_with(" GMT"), "{modified}");
    let digest = front.service.card_status().digest;
    assert!(digest.len() == 64 && etag.starts_with("W/\""));
    for tags in [etag.clone(), etag.trim_start_matches("W/").to_owned(), format!("\"other\", {etag}"), "*".into()] {
        let (status, headers, text) = get(&front, CARD, &[("if-none-match", &tags)]).await;
        assert_eq!((status, text.as_str()), (StatusCode::NOT_MODIFIED, ""), "{tags}");
        assert_eq!(headers["etag"], etag);
    }
    let old = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (headers, want) in [
        (vec![("if-none-match", "\"other\"")], StatusCode::OK),
        (vec![("if-modified-since", modified.as_str())], StatusCode::NOT_MODIFIED),
        (vec![("if-modified-since", old)], StatusCode::OK),
        (vec![("if-modified-since", "yesterday")], StatusCode::OK),
        (vec![("if-modified-since", modified.as_str()), ("if-none-match", "\"other\"")], StatusCode::OK),
        (vec![("if-modified-since", old), ("if-none-match", etag.as_str())], StatusCode::NOT_MODIFIED),
    ] {
        assert_eq!(get(&front, CARD, &headers).await.0, want, "{headers:?}");
    }
    let options = Request::options(CARD).body(Body::empty()).unwrap();
    assert_eq!(front.request(options).await.0, StatusCode::NO_CONTENT);
    let post = Request::post(CARD).body(Body::empty()).unwrap();
    let (status, headers, _) = front.request(post).await;
    assert_eq!((status, &headers["allow"]), (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD, OPTIONS".parse().unwrap()));
    // Only the card is open to web pages.
    let (_, headers, _) = front.post("{}", &[("origin", "https://example.com")]).await;
    assert!(headers.get("access-control-allow-origin").is_none());

    set(&front, |live| live.limits.max_tasks = 7);
    let (status, headers, _) = get(&front, CARD, &[("if-none-match", &etag)]).await;
    assert_eq!((status, headers["last-modified"].to_str().unwrap()), (StatusCode::NOT_MODIFIED, modified.as_str()));
    set(&front, |live| live.card["description"] = json!("Sells more burgers"));
    let (status, headers, text) = get(&front, CARD, &[("if-none-match", &etag)]).await;
    assert_eq!((status, headers["etag"] == etag), (StatusCode::OK, false));
    assert!(text.contains("more burgers"));
    assert_ne!(front.service.card_status().digest, digest);
}

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    let (_handler, front) = echo().await;
    let length = get(&front, CARD, &[]).await.2.len();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = front.service.router();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("HEAD {CARD} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    stream.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
    assert!(got.to_lowercase().contains(&format!("content-length: {length}\r\n")), "{got}");
    assert!(got.ends_with("\r\n\r\n"), "{got}");
    server.abort();
}

#[tokio::test]
async fn urls_are_those_of_the_reader() {
    let (_handler, front) = echo().await;
    assert_eq!(
        interfaces(&card(&front, &[]).await),
        ["1.0 JSONRPC", "1.0 HTTP+JSON", "0.3 JSONRPC", "0.3 HTTP+JSON"].map(|i| format!("{i} {URL}"))
    );
    // Nobody is believed without being named.
    let lies = [
        ("host", "evil.example"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "host=evil.example;proto=https"),
    ];
    assert!(!get(&front, CARD, &lies).await.2.contains("evil"));

    set(&front, |live| {
        live.offer.trusted_proxies = vec!["10.0.0.0/8".into()];
        live.offer.versions = vec!["1.0".into()];
        live.offer.bindings = vec!["JSONRPC".into()];
    });
    let ask = |from: &str, prefix: &str| {
        let mut request = Request::get(CARD)
            .header("x-forwarded-host", "agents.example.com")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-prefix", prefix)
            .body(Body::empty())
            .unwrap();
        request.extensions_mut().insert(peer(from.parse().unwrap()));
        front.request(request)
    };
    let (_, headers, text) = ask("10.1.1.1", "/burger").await;
    assert!(headers["vary"].to_str().unwrap().contains("X-Forwarded-Host"));
    let told: Value = serde_json::from_str(&text).unwrap();
    let both = ["1.0 JSONRPC https://agents.example.com/burger".to_owned(), format!("1.0 JSONRPC {URL}")];
    assert_eq!(interfaces(&told), both);
    assert!(told.get("url").is_none(), "without 0.3 it is a plain card of 1.0");
    assert!(!ask("11.1.1.1", "/burger").await.2.contains("agents.example.com"));
    // However many prefixes are made up, few are kept; and each gets its own.
    for i in 0..200 {
        assert!(ask("10.1.1.1", &format!("/p{i}")).await.2.contains(&format!("https://agents.example.com/p{i}\"")));
    }

    set(&front, |live| {
        live.offer.public_url = Some("https://burgers.example.com/".into());
        live.offer.public_grpc = Some("burgers.example.com:443".into());
        live.offer.grpc = "burger-seller.shop:8081".into();
        live.offer.versions = vec!["0.3".into(), "1.0".into()];
        live.offer.bindings = vec!["GRPC".into(), "JSONRPC".into()];
    });
    let (_, _, text) = ask("10.1.1.1", "/burger").await;
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        interfaces(&told),
        [
            "1.0 JSONRPC https://burgers.example.com",
            "1.0 JSONRPC http://burger-seller.shop:8080",
            "1.0 GRPC burgers.example.com:443",
            "1.0 GRPC burger-seller.shop:8081",
            "0.3 JSONRPC https://burgers.example.com",
            "0.3 JSONRPC http://burger-seller.shop:8080",
            "0.3 GRPC burgers.example.com:443",
            "0.3 GRPC burger-seller.shop:8081",
        ]
    );
    assert_eq!(
        (told["url"].as_str(), told["preferredTransport"].as_str()),
        (Some("https://burgers.example.com"), Some("JSONRPC"))
    );
}

/// Checks a card as a verifier does that takes it by the letter; gives the ids of the keys that fit.
fn verified(card: &Value, keys: &Value, stripped: bool) -> Vec<String> {
    let mut plain = card.clone();
    let signatures = plain.as_object_mut().unwrap().remove("signatures").unwrap();
    if stripped {
        strip(&mut plain);
    }
    let payload = URL_SAFE_NO_PAD.encode(canonical(&plain).unwrap());
    let mut good = Vec::new();
    for signature in signatures.as_array().unwrap() {
        let protected = signature["protected"].as_str().unwrap();
        let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected).unwrap()).unwrap();
        assert_eq!(header["typ"], "JOSE");
        let jwk = keys["keys"].as_array().unwrap().iter().find(|k| k["kid"] == header["kid"]).unwrap();
        let jwk: Jwk = serde_json::from_value(jwk.clone()).unwrap();
        let algorithm: Algorithm = header["alg"].as_str().unwrap().parse().unwrap();
        let message = format!("{protected}.{payload}");
        let key = DecodingKey::from_jwk(&jwk).unwrap();
        if crypto::verify(signature["signature"].as_str().unwrap(), message.as_bytes(), &key, algorithm).unwrap() {
            good.push(header["kid"].as_str().unwrap().to_owned());
        }
    }
    good
}

/// What some verifiers do before they look: nothing that is empty counts.
fn strip(value: &mut Value) {
    let empty = |v: &Value| match v {
        Value::Array(l) => l.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::String(s) => s.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(list) => {
            list.iter_mut().for_each(strip);
            list.retain(|v| !empty(v));
        }
        Value::Object(object) => {
            object.values_mut().for_each(strip);
            object.retain(|_, v| !empty(v));
        }
        _ => {}
    }
}

fn copy_key(dir: &Path, key: &str, name: &str) {
    std::fs::copy(fixture(&format!("keys/{key}.pem")), dir.join(name)).unwrap();
}

#[tokio::test]
async fn a_signed_card_verifies_while_keys_rotate() {
    let (_handler, front) = echo().await;
    let dir = tempfile::tempdir().unwrap();
    copy_key(dir.path(), "es256", "2026-01");
    set(&front, |live| {
        live.offer.signing_keys = Some(dir.path().to_string_lossy().into_owned());
        live.offer.public_url = Some("https://burgers.example.com".into());
    });
    let keys = || async { serde_json::from_str::<Value>(&get(&front, "/.well-known/jwks.json", &[]).await.2).unwrap() };
    let (_, headers, text) = get(&front, CARD, &[("a2a-version", "1.0")]).await;
    assert_eq!(headers["vary"], "A2A-Version");
    let signed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(verified(&signed, &keys().await, false), ["2026-01"]);
    assert!(signed.get("url").is_none(), "nothing of 0.3 is in a signed card");
    let protected = signed["signatures"][0]["protected"].as_str().unwrap();
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected).unwrap()).unwrap();
    assert_eq!(header["jku"], "https://burgers.example.com/.well-known/jwks.json");
    let (_, old_headers, old) = get(&front, CARD, &[]).await;
    let old: Value = serde_json::from_str(&old).unwrap();
    assert!(old.get("signatures").is_none() && old["url"] == "https://burgers.example.com");
    assert_ne!(old_headers["etag"], headers["etag"]);
    assert_eq!(front.service.card_status().unsigned, None);

    let wait = |want: &'static [&'static str]| {
        let front = &front;
        async move {
            let deadline = tokio::time::Instant::now() + a2a_support::PATIENCE;
            loop {
                let signed = card(front, &[("a2a-version", "1.0")]).await;
                if verified(&signed, &keys().await, false) == want {
                    return;
                }
                assert!(tokio::time::Instant::now() < deadline, "{want:?}");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    };
    copy_key(dir.path(), "ed25519", "2026-02");
    wait(&["2026-01", "2026-02"]).await;
    std::fs::remove_file(dir.path().join("2026-01")).unwrap();
    wait(&["2026-02"]).await;

    // Scopes that are empty are read in two ways, so there is a signature for each.
    set(&front, |live| live.access = access());
    let signed = card(&front, &[("a2a-version", "1.0")]).await;
    assert_eq!(signed["signatures"].as_array().unwrap().len(), 2);
    assert_eq!(verified(&signed, &keys().await, false), ["2026-02"]);
    assert_eq!(verified(&signed, &keys().await, true), ["2026-02"]);

    // A card that verifiers would read differently is not signed, and that is said.
    set(&front, |live| live.card["skills"][0]["tags"] = json!([]));
    let unsigned = card(&front, &[("a2a-version", "1.0")]).await;
    assert!(unsigned.get("signatures").is_none());
    assert!(front.service.card_status().unsigned.unwrap().contains("skills[0].tags"));
}

#[tokio::test]
async fn keys_that_cannot_sign_are_told() {
    let (_handler, front) = echo().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_string_lossy().into_owned();
    set(&front, |live| live.offer.signing_keys = Some(path.clone()));
    assert!(front.service.card_status().unsigned.unwrap().contains("no key"));
    std::fs::write(dir.path().join("bad.pem"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        .unwrap();
    for (key, name) in [("rs256", "a"), ("es384", "b")] {
        copy_key(dir.path(), key, name);
    }
    until("the keys are read", || front.service.card_status().unsigned.is_some_and(|u| u.contains("bad.pem"))).await;
    let signed = card(&front, &[("a2a-version", "1.0")]).await;
    let keys: Value = serde_json::from_str(&get(&front, "/a/.well-known/jwks.json", &[]).await.2).unwrap();
    assert_eq!(verified(&signed, &keys, false), ["a", "b"]);
    assert!(!keys.to_string().contains("\"d\""), "no private part leaves");
}

#[tokio::test]
async fn the_extended_card_is_for_known_callers() {
    let (_handler, front) = echo().await;
    let ask = |key: &'static str| {
        let front = &front;
        async move {
            let body = r#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#;
            let headers = [("a2a-version", "1.0"), ("x-shop-key", key)];
            let headers = if key.is_empty() { &headers[..1] } else { &headers[..] };
            let (status, headers, text) = front.post(body, headers).await;
            (status, headers, serde_json::from_str::<Value>(&text).unwrap())
        }
    };
    assert_eq!(ask("").await.2["error"]["code"], -32004, "there is none");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("alice"), "0123456789abcdef").unwrap();
    set(&front, |live| {
        live.extended_card = Some(json!({"description": "And secret burgers", "skills": [{"id": "secret",
        "name": "Secret", "description": "s", "tags": ["x"]}]}));
    });
    assert_eq!(ask("").await.2["error"]["code"], -32004, "nobody could get it");
    set(&front, |live| {
        live.access = Access {
            anonymous: true,
            api_key: Some(ApiKeys { header: "X-Shop-Key".into(), folder: dir.path().to_string_lossy().into_owned() }),
            jwt: vec![],
        };
    });
    let public = card(&front, &[]).await;
    assert_eq!(public["capabilities"]["extendedAgentCard"], true);
    assert_eq!(public["supportsAuthenticatedExtendedCard"], true);
    assert!(!public.to_string().contains("ecret burgers"));
    let (status, headers, body) = ask("").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
    assert_eq!(headers["www-authenticate"], "ApiKey header=\"X-Shop-Key\"");
    assert_eq!(ask("wrong").await.0, StatusCode::UNAUTHORIZED);
    let (_, _, body) = ask("0123456789abcdef").await;
    let extended = &body["result"];
    assert_eq!(
        (extended["description"].as_str(), extended["skills"][0]["id"].as_str()),
        (Some("And secret burgers"), Some("secret"))
    );
    assert_eq!(
        (&extended["name"], &extended["supportedInterfaces"]),
        (&public["name"], &public["supportedInterfaces"])
    );
    let (status, _, text) =
        get(&front, "/extendedAgentCard", &[("x-shop-key", "0123456789abcdef"), ("a2a-version", "1.0")]).await;
    assert_eq!((status, text.contains("And secret burgers")), (StatusCode::OK, true));
}

#[tokio::test]
async fn an_agents_own_card_counts_where_the_configuration_is_silent() {
    let (_handler, front) = echo().await;
    front
        .service
        .card()
        .set_agent_card(json!({"name": "own", "documentationUrl": "https://d.example", "url": "http://127.0.0.1:8000",
        "skills": [{"id": "own"}], "capabilities": {"streaming": true, "extensions": [{"uri": "urn:x"}]}}));
    set(&front, |live| live.card["skills"] = json!([]));
    let card = card(&front, &[]).await;
    assert_eq!(
        (card["name"].as_str(), card["documentationUrl"].as_str()),
        (Some("burger-seller"), Some("https://d.example"))
    );
    assert_eq!((card["skills"][0]["id"].as_str(), card["url"].as_str()), (Some("own"), Some(URL)));
    assert_eq!(card["capabilities"]["streaming"], false, "what is served is what counts");
}

#[tokio::test]
async fn what_the_sidecar_serves_passes_its_own_calls() {
    let (_handler, front) = echo().await;
    let dir = tempfile::tempdir().unwrap();
    set(&front, |live| {
        live.offer.grpc = "burger-seller.shop:8081".into();
        live.offer.streaming = true;
        // Calls of our own need no credentials.
        live.access.api_key =
            Some(ApiKeys { header: "X-Shop-Key".into(), folder: dir.path().to_string_lossy().into_owned() });
        live.limits.max_requests_per_second = 1;
        live.limits.request_burst = 1;
        // And name what is required of every caller.
        live.card["capabilities"] = json!({"extensions": [{"uri": "urn:example:needed", "required": true}]});
    });
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let proof = tokio::spawn(front.service.prove(port, stop.clone()));
    assert!(front.service.interfaces().is_empty());
    let early = get(&front, CARD, &[]);
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let listener = Listener { name: "a2a", socket, max_connections: 64 };
    let server = tokio::spawn(serve(listener, front.service.router(), metrics, stop.clone()));
    let (status, _, text) = early.await;
    assert_eq!(status, StatusCode::OK, "a reader that is early waits for the truth");
    let found = front.service.interfaces();
    let failed: Vec<_> = found.iter().filter(|i| !i.part.ready).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(found.len(), 6);
    assert_eq!(front.metric("outrigger_a2a_interface_up", &[]), 6);
    let card: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((interfaces(&card).len(), card["capabilities"]["streaming"].as_bool()), (6, Some(true)));
    // Somebody else does not get in that way.
    let (status, _, _) = front.post("{}", &[("outrigger-self", "0123")]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    set(&front, |live| live.offer.versions = vec!["1.0".into()]);
    until("the change is called", || front.service.interfaces().len() == 3).await;
    stop.cancel();
    proof.await.unwrap();
    server.await.unwrap();
}

#[tokio::test]
async fn what_fails_is_not_in_the_card() {
    // Knows 1.0 over JSON-RPC alone, and answers streams with something else.
    let app = axum::Router::new().fallback(|request: Request<Body>| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let method = serde_json::from_slice::<Value>(&body).unwrap_or_default()["method"].clone();
        let code = match (head.uri.path(), method.as_str()) {
            ("/", Some("GetTask")) => -32001,
            ("/", _) => -32601,
            _ => return (StatusCode::NOT_FOUND, "<html>no</html>".to_owned()),
        };
        (StatusCode::OK, json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "m"}}).to_string())
    });
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let server = tokio::spawn(async move { axum::serve(socket, app).await });
    let offer = Offer { url: URL.into(), grpc: "g:1".into(), streaming: true, ..Offer::default() };
    let (_live, rx) = watch::channel(Arc::new(Live { offer, push: Push::default(), ..Live::new(context::card(URL)) }));
    let registry = prometheus::Registry::new();
    let checker = Checker::new(rx.clone(), "secret".into(), &registry).unwrap();
    checker.begin();
    let facts = checker.facts();
    let card = Card::new(rx, facts.clone());
    let stop = CancellationToken::new();
    // All early tries are over quickly: there is nothing to wait for but the answers.
    let run = tokio::spawn(Arc::clone(&checker).run(port, stop.clone()));
    until("the calls are over", || facts.borrow().known()).await;
    let response = card.respond(&http::Method::GET, &HeaderMap::new(), &http::Extensions::new()).await;
    let body: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(interfaces(&body), [format!("1.0 JSONRPC {URL}")]);
    assert_eq!((body.get("url"), body["capabilities"]["streaming"].as_bool()), (None, Some(false)));
    let status = facts.borrow().status();
    let shown: Vec<_> = status.iter().map(|s| format!("{} {} {}", s.binding, s.version, s.part.ready)).collect();
    assert_eq!(
        shown,
        [
            "JSONRPC 1.0 false",
            "HTTP+JSON 1.0 false",
            "GRPC 1.0 false",
            "JSONRPC 0.3 false",
            "HTTP+JSON 0.3 false",
            "GRPC 0.3 false"
        ]
    );
    assert!(status[0].part.message.contains("streams do not") && status[0].part.reason == "SelfCallFailed");
    assert!(status[3].part.message.contains("-32601"), "{}", status[3].part.message);
    stop.cancel();
    run.await.unwrap();
    server.abort();
}
