//! Calls to other agents through the local API: `/agents/{name}[.{namespace}]/…`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod a2a_support;
mod peers_support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use a2a_support::{PATIENCE, context, until};
use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use outrigger_protocol::config::{Limits, Live, Peer};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::local_api::TokenGate;
use outrigger_sidecar::mesh::resolve::Resolve;
use outrigger_sidecar::mesh::{Peers, Timing};
use parking_lot::Mutex;
use peers_support::{Got, Names, Pod};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::ServiceExt;

/// The local API of an agent with peers.
struct Local {
    router: Router,
    ctx: Context,
    live: watch::Sender<Arc<Live>>,
    names: Arc<Names>,
}

fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing { connect: ms(400), eject: ms(200), resolve: ms(50), ..Timing::default() }
}

impl Local {
    fn new(timing: Timing) -> Self {
        let (ctx, live) = context::context(1, None, "http://concierge.shop:8080/", Limits::default());
        let names = Arc::new(Names::default());
        let peers = Peers::start_with(&ctx, Arc::clone(&names) as Arc<dyn Resolve>, timing).unwrap();
        let router = TokenGate::router(Arc::clone(&ctx.token), peers.router());
        Self { router, ctx, live, names }
    }

    fn to(pods: &[&Pod], timing: Timing) -> Self {
        let local = Self::new(timing);
        local.peer("seller", "shop", "seller-peers.shop:8080");
        local.names("seller-peers.shop:8080", pods.iter().map(|p| p.address));
        local
    }

    fn peer(&self, name: &str, namespace: &str, authority: &str) {
        let mut live = Live::clone(&self.live.borrow());
        live.peers.push(Peer { name: name.into(), namespace: namespace.into(), authority: authority.into() });
        self.live.send_replace(Arc::new(live));
    }

    fn names(&self, authority: &str, addresses: impl Iterator<Item = SocketAddr>) {
        self.names.0.lock().insert(authority.into(), addresses.collect());
    }

    fn at(path: &str) -> String {
        format!("/t/{}{path}", context::TOKEN)
    }

    async fn raw(&self, request: Request<Body>) -> Response<Body> {
        tokio::time::timeout(PATIENCE, self.router.clone().oneshot(request)).await.unwrap().unwrap()
    }

    async fn call(&self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        let (head, body) = self.raw(request).await.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.unwrap().unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (StatusCode, HeaderMap, String) {
        self.call(Request::get(Self::at(path)).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &'static str) -> (StatusCode, String) {
        let mut request = Request::post(Self::at(path));
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        let (status, _, body) = self.call(request.body(Body::from(body)).unwrap()).await;
        (status, body)
    }

    fn requests(&self, peer: &str, outcome: &str) -> f64 {
        let families = self.ctx.registry.gather();
        let Some(family) = families.iter().find(|f| f.name() == "outrigger_peer_requests_total") else { return 0.0 };
        let has = |m: &prometheus::proto::Metric, k: &str, v: &str| {
            m.get_label().iter().any(|l| l.name() == k && l.value() == v)
        };
        let of = family.get_metric().iter().filter(|m| has(m, "peer", peer) && has(m, "outcome", outcome));
        of.map(|m| m.get_counter().get_value()).sum()
    }
}

fn echo(got: &Got) -> Response<Body> {
    ([("content-type", "application/json"), ("x-pod", "yes"), ("keep-alive", "timeout=5")], got.body.clone())
        .into_response()
}

fn reason(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["error"]["reason"].as_str().unwrap().to_owned()
}

/// A port where nobody listens.
async fn dead() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_request_passes_through_and_so_does_its_answer() {
    let pod = Pod::start(|got| async move { echo(&got) }).await;
    let local = Local::to(&[&pod], quick());
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("traceparent", parent),
        ("authorization", "Bearer of-the-agent"),
        ("a2a-version", "1.0"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
    ];
    for segment in ["seller", "seller.shop"] {
        let path = format!("/agents/{segment}/message:send?x=%2F");
        let (status, body) = local.post(&path, &headers, r#"{"n": 12345678901234567890}"#).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, r#"{"n": 12345678901234567890}"#));
    }
    let got = &pod.got()[0];
    assert_eq!((got.method.as_str(), got.uri.as_str()), ("POST", "/message:send?x=%2F"));
    assert_eq!(got.version, Version::HTTP_11);
    assert_eq!(got.headers["host"], "seller-peers.shop:8080");
    assert_eq!(
        (&got.headers["authorization"], &got.headers["a2a-version"]),
        (&headers[1].1.parse().unwrap(), &"1.0".parse().unwrap())
    );
    let trace = got.headers["traceparent"].to_str().unwrap();
    assert!(trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && trace != parent, "the same trace, our span");
    assert!(!got.headers.contains_key("x-hop") && !got.headers.contains_key("connection"));
    let (status, headers, _) = local.get("/agents/seller").await;
    assert_eq!((status, pod.got()[2].uri.as_str()), (StatusCode::OK, "/"));
    assert!(headers.contains_key("x-pod") && !headers.contains_key("keep-alive"));
    assert!(pod.got()[2].headers["traceparent"].len() == 55, "a trace begins when there is none");
    assert!((local.requests("seller.shop", "2xx") - 3.0).abs() < f64::EPSILON);
    assert!((pod.open_connections() - 1.0).abs() < f64::EPSILON, "one connection, used again");
}

#[tokio::test]
async fn unknown_peers_are_named_with_those_there_are() {
    let local = Local::new(quick());
    let (status, _, body) = local.get("/agents/seller/").await;
    assert_eq!((status, reason(&body).as_str()), (StatusCode::NOT_FOUND, "UnknownPeer"));
    assert!(body.contains("it has: none"));
    local.peer("seller", "east", "a:1");
    local.peer("seller", "west", "b:1");
    for path in ["/agents/seller", "/agents/seller.north/", "/agents/cook.east/x"] {
        let (status, _, body) = local.get(path).await;
        let known: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &known["error"]["known"]),
            (StatusCode::NOT_FOUND, &json!(["seller.east", "seller.west"])),
            "{path}"
        );
    }
    let (status, _, body) = local.get("/agents").await;
    let list: Value = serde_json::from_str(&body).unwrap();
    let url = format!("http://127.0.0.1:19900/t/{}/agents/seller.east", context::TOKEN);
    assert_eq!(
        (status, &list["agents"][0]),
        (StatusCode::OK, &json!({"name": "seller", "namespace": "east", "url": url}))
    );
    let outside = local.call(Request::get("/agents/seller").body(Body::empty()).unwrap()).await;
    assert_eq!(outside.0, StatusCode::UNAUTHORIZED, "only behind the token");
    assert!(local.requests("", "unknown_peer") > 3.0);
}

#[tokio::test]
async fn requests_spread_over_pods_in_both_versions_of_http() {
    let mut pods = Vec::new();
    for _ in 0..3 {
        pods.push(Pod::start(|got| async move { echo(&got) }).await);
    }
    let local = Local::to(&pods.iter().collect::<Vec<_>>(), quick());
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for _ in 0..9 {
            let request = Request::get(Local::at("/agents/seller/x")).version(version).body(Body::empty()).unwrap();
            assert_eq!(local.call(request).await.0, StatusCode::OK);
        }
        for pod in &pods {
            let got: Vec<_> = pod.got().into_iter().filter(|g| g.version == version).collect();
            assert_eq!(got.len(), 3, "{version:?}");
        }
    }
    let gone = pods.remove(0);
    local.names("seller-peers.shop:8080", pods.iter().map(|p| p.address));
    until("the old address is forgotten", || local.names.1.load(Ordering::Relaxed) > 0).await;
    tokio::time::timeout(PATIENCE, async {
        // Resolved anew after a short while: no request goes to the pod that left any more.
        loop {
            let before = gone.got().len();
            for _ in 0..6 {
                assert_eq!(local.get("/agents/seller/y").await.0, StatusCode::OK);
            }
            if gone.got().len() == before {
                break;
            }
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn dead_addresses_are_left_alone_and_a_peer_without_pods_is_unreachable() {
    let pod = Pod::start(|got| async move { echo(&got) }).await;
    let local = Local::to(&[&pod], quick());
    let nobody = dead().await;
    local.names("seller-peers.shop:8080", [nobody, pod.address].into_iter());
    for i in 0..20 {
        let (status, body) = local.post("/agents/seller/", &[], "not lost").await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "not lost"), "{i}");
    }
    let families = local.ctx.registry.gather();
    let ejections = families.iter().find(|f| f.name() == "outrigger_peer_ejections_total").unwrap();
    let ejections = ejections.get_metric()[0].get_counter().get_value();
    assert!((1.0..10.0).contains(&ejections), "tried seldom: {ejections}");

    for addresses in [vec![nobody], vec![]] {
        let local = Local::to(&[], quick());
        local.names("seller-peers.shop:8080", addresses.into_iter());
        let (status, headers, body) = local.get("/agents/seller/").await;
        assert_eq!((status, reason(&body).as_str()), (StatusCode::BAD_GATEWAY, "PeerUnreachable"));
        assert_eq!(headers["retry-after"], "1");
    }
    let local = Local::new(quick());
    local.peer("seller", "shop", "nowhere:8080");
    let (status, _, body) = local.get("/agents/seller/").await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(body.contains("nowhere:8080 does not resolve"), "{body}");
    assert!((local.requests("seller.shop", "unreachable") - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_pod_that_comes_back_in_time_gets_the_request() {
    let local = Local::to(&[], Timing { connect: Duration::from_secs(10), ..quick() });
    let call = local.post("/agents/seller/", &[], "patient");
    let start = async {
        until("it was looked for", || local.names.1.load(Ordering::Relaxed) > 1).await;
        let pod = Pod::start(|got| async move { echo(&got) }).await;
        local.names("seller-peers.shop:8080", [pod.address].into_iter());
        pod
    };
    let ((status, body), pod) = tokio::join!(call, start);
    assert_eq!((status, body.as_str(), pod.got().len()), (StatusCode::OK, "patient", 1));
}

/// A server that reads a request and closes without an answer for the first `times` connections; then it echoes `OK`.
async fn closes(times: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = socket.accept().await.unwrap();
            let mut buffer = vec![0; 65536];
            let _ = stream.read(&mut buffer).await;
            if seen.fetch_add(1, Ordering::SeqCst) >= times {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nOK").await;
            }
        }
    });
    (address, count)
}

#[tokio::test]
async fn what_was_sent_is_sent_again_only_when_that_is_safe() {
    for (request, headers, safe) in [
        ("GET", vec![], true),
        ("POST", vec![], false),
        ("POST", vec![("content-type", "application/json")], false),
        ("POST", vec![("idempotency-key", "k")], true),
    ] {
        let (address, count) = closes(1).await;
        let local = Local::to(&[], quick());
        local.names("seller-peers.shop:8080", [address].into_iter());
        let mut asked = Request::builder().method(request).uri(Local::at("/agents/seller/"));
        for (key, value) in &headers {
            asked = asked.header(*key, *value);
        }
        let body = if request == "POST" { r#"{"a":1}"# } else { "" };
        let asked = asked.header("content-length", body.len()).body(Body::from(body)).unwrap();
        let (status, _, body) = local.call(asked).await;
        if safe {
            assert_eq!((status, body.as_str(), count.load(Ordering::SeqCst)), (StatusCode::OK, "OK", 2), "{headers:?}");
        } else {
            assert_eq!((status, reason(&body).as_str()), (StatusCode::BAD_GATEWAY, "PeerBroken"), "{headers:?}");
            assert_eq!(count.load(Ordering::SeqCst), 1, "sent once");
        }
    }
    let (address, count) = closes(usize::MAX).await;
    let local = Local::to(&[], quick());
    local.names("seller-peers.shop:8080", [address].into_iter());
    assert_eq!(reason(&local.get("/agents/seller/").await.2), "PeerBroken");
    assert_eq!(count.load(Ordering::SeqCst), 3, "a bound");
}

#[tokio::test]
async fn time_limits() {
    let ms = Duration::from_millis;
    let timing = Timing { first_byte: ms(300), unary: ms(600), stream_idle: ms(300), ..quick() };
    let pod = Pod::start(move |got| async move {
        let piece = |wait| async move {
            tokio::time::sleep(wait).await;
            Ok::<_, std::io::Error>(Bytes::from_static(b": hb\n\n"))
        };
        let (media, times) = match got.uri.as_str() {
            "/never" => std::future::pending().await,
            "/late" => ("application/json", vec![ms(250); 20]),
            "/stream" => ("text/event-stream", vec![ms(100); 8]),
            _ => ("text/event-stream", vec![ms(1), ms(5000)]),
        };
        let body = Body::from_stream(futures::StreamExt::then(stream::iter(times), piece));
        ([("content-type", media)], body).into_response()
    })
    .await;
    let local = Local::to(&[&pod], timing);
    let (status, _, body) = local.get("/agents/seller/never").await;
    assert_eq!((status, reason(&body).as_str()), (StatusCode::GATEWAY_TIMEOUT, "PeerTimeout"));
    for (path, why) in [("late", "not complete within"), ("quiet", "quiet for")] {
        let request = Request::get(Local::at(&format!("/agents/seller/{path}"))).body(Body::empty()).unwrap();
        let response = local.raw(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        let error = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(why), "{path}: {error}");
    }
    assert!((local.requests("seller.shop", "timeout") - 3.0).abs() < f64::EPSILON);
    let (status, _, body) = local.get("/agents/seller/stream").await;
    assert_eq!((status, body.matches(": hb").count()), (StatusCode::OK, 8), "longer than any limit, but never quiet");
}

#[tokio::test]
async fn a_stream_comes_in_pieces_and_its_end_reaches_the_other_side() {
    let (send, receive) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let receive = Arc::new(Mutex::new(Some(receive)));
    let pod = Pod::start(move |_| {
        let mut receive = receive.lock().take().unwrap();
        async move {
            let body = Body::from_stream(stream::poll_fn(move |cx| receive.poll_recv(cx)));
            ([("content-type", "text/event-stream")], body).into_response()
        }
    })
    .await;
    let local = Local::to(&[&pod], quick());
    let request = Request::get(Local::at("/agents/seller/")).version(Version::HTTP_2).body(Body::empty()).unwrap();
    let mut body = local.raw(request).await.into_body();
    for text in ["data: 1\n\n", "data: 2\n\n"] {
        send.send(Ok(Bytes::from_static(text.as_bytes()))).await.unwrap();
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), text, "each piece before the next is made");
    }
    drop(body);
    tokio::time::timeout(PATIENCE, send.closed()).await.expect("the peer learns that nobody reads");
    until("counted", || (local.requests("seller.shop", "cancelled") - 1.0).abs() < f64::EPSILON).await;
}

#[tokio::test]
async fn grpc_passes_with_its_trailers() {
    let pod = Pod::start(|got| async move {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames = [http_body::Frame::data(got.body), http_body::Frame::trailers(trailers)];
        let body = http_body_util::StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>)));
        ([("content-type", "application/grpc")], Body::new(body)).into_response()
    })
    .await;
    let local = Local::to(&[&pod], quick());
    let request = Request::post(Local::at("/agents/seller/lf.a2a.v1.A2AService/GetTask"))
        .version(Version::HTTP_2)
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(Body::from(&b"\0\0\0\0\x01x"[..]))
        .unwrap();
    let body = local.raw(request).await.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), &b"\0\0\0\0\x01x"[..]);
    let got = &pod.got()[0];
    assert_eq!((got.version, &got.headers["te"]), (Version::HTTP_2, &"trailers".parse().unwrap()));
    assert_eq!(got.uri, "http://seller-peers.shop:8080/lf.a2a.v1.A2AService/GetTask");
}

#[tokio::test]
async fn cards_lead_back_here() {
    let card = json!({"name": "Seller", "url": "https://agents.example.com/burger/", "preferredTransport": "JSONRPC",
        "supportedInterfaces": [
            {"url": "http://seller.shop.svc.cluster.local:8080/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": "seller.shop.svc.cluster.local:8081", "protocolBinding": "GRPC", "protocolVersion": "1.0"}],
        "signatures": [{"protected": "p", "signature": "s"}]});
    let whole = card.clone();
    let pod = Pod::start(move |got| {
        let card = card.clone();
        async move {
            let tag = [("etag", "W/\"theirs\""), ("content-type", "application/json"), ("x-pod", "yes")];
            match (got.method.as_str(), got.uri.as_str()) {
                ("POST", _) => (tag, json!({"jsonrpc": "2.0", "id": 1, "result": card}).to_string()).into_response(),
                (_, "/extendedAgentCard") => (StatusCode::UNAUTHORIZED, tag, "{}").into_response(),
                (_, "/.well-known/agent.json") => (tag, "no card").into_response(),
                (_, "/t/.well-known/agent-card.json") => (tag, "x".repeat(2 << 20)).into_response(),
                _ => (tag, card.to_string()).into_response(),
            }
        }
    })
    .await;
    let local = Local::to(&[&pod], quick());
    let base = format!("http://127.0.0.1:19900/t/{}/agents/seller.shop", context::TOKEN);
    let want = json!([{"url": format!("{base}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    let (status, headers, body) = local.get("/agents/seller.shop/.well-known/agent-card.json").await;
    let got: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &got["supportedInterfaces"], got["url"].as_str()),
        (StatusCode::OK, &want, Some(&*format!("{base}/")))
    );
    assert_eq!((got.get("signatures"), &got["name"]), (None, &whole["name"]));
    let tag = headers["etag"].to_str().unwrap().to_owned();
    assert!(tag != "W/\"theirs\"" && headers.contains_key("x-pod"));

    let ask = |tag: String| {
        Request::get(Local::at("/agents/seller.shop/.well-known/agent-card.json")).header("if-none-match", tag)
    };
    let (status, headers, body) = local.call(ask(format!("\"x\", {tag}")).body(Body::empty()).unwrap()).await;
    assert_eq!((status, body.as_str(), &headers["etag"]), (StatusCode::NOT_MODIFIED, "", &tag.parse().unwrap()));
    let (status, _, _) = local.call(ask("W/\"theirs\"".into()).body(Body::empty()).unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(pod.got().iter().all(|g| !g.headers.contains_key("if-none-match")));

    let rpc = r#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#;
    let request = Request::post(Local::at("/agents/seller.shop"))
        .header("content-type", "application/json")
        .header("content-length", rpc.len());
    let (status, _, body) = local.call(request.body(Body::from(rpc)).unwrap()).await;
    let got: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &got["result"]["supportedInterfaces"], &got["id"]), (StatusCode::OK, &want, &json!(1)));

    assert_eq!(local.get("/agents/seller/extendedAgentCard").await.0, StatusCode::UNAUTHORIZED, "their refusal");
    for path in ["/agents/seller/.well-known/agent.json", "/agents/seller/t/.well-known/agent-card.json"] {
        let (status, _, body) = local.get(path).await;
        assert_eq!((status, reason(&body).as_str()), (StatusCode::BAD_GATEWAY, "BadCard"), "{path}");
    }
    let head = Request::head(Local::at("/agents/seller.shop/.well-known/agent-card.json")).body(Body::empty()).unwrap();
    assert_eq!(local.call(head).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bodies_have_a_bound() {
    let pod = Pod::start(|got| async move { echo(&got) }).await;
    let local = Local::to(&[&pod], quick());
    let max = outrigger_sidecar::mesh::MAX_REQUEST;
    let request = Request::post(Local::at("/agents/seller/")).header("content-length", max + 1).body(Body::from("x"));
    let (status, _, body) = local.call(request.unwrap()).await;
    assert_eq!((status, reason(&body).as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLarge"));
    // Without a length it is noticed on the way.
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    let pieces = stream::iter((0..=max >> 20).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let request = Request::post(Local::at("/agents/seller/")).body(Body::from_stream(pieces)).unwrap();
    let (status, _, body) = local.call(request).await;
    assert_eq!((status, reason(&body).as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLarge"));
    // A caller that breaks off is no fault of the peer.
    let pieces = stream::iter([Ok(Bytes::from_static(b"x")), Err(std::io::Error::other("gone"))]);
    let request = Request::post(Local::at("/agents/seller/")).body(Body::from_stream(pieces)).unwrap();
    let (status, _, body) = local.call(request).await;
    assert_eq!((status, reason(&body).as_str()), (StatusCode::BAD_REQUEST, "BadRequest"));
}

#[tokio::test]
async fn peers_change_under_way() {
    let (one, two) =
        (Pod::start(|_| async { "one".into_response() }).await, Pod::start(|_| async { "two".into_response() }).await);
    let local = Local::to(&[&one], quick());
    local.names("elsewhere:8080", [two.address].into_iter());
    assert_eq!(local.get("/agents/seller/").await.2, "one");
    let mut live = Live::clone(&local.live.borrow());
    live.peers[0].authority = "elsewhere:8080".into();
    local.live.send_replace(Arc::new(live.clone()));
    assert_eq!(local.get("/agents/seller/").await.2, "two");
    live.peers.clear();
    local.live.send_replace(Arc::new(live));
    assert_eq!(local.get("/agents/seller/").await.0, StatusCode::NOT_FOUND);
}
