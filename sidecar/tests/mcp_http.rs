//! Connections to tool servers over streamable HTTP.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::too_many_lines)]

mod outbound_support;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::stream;
use http::{HeaderMap, Method, StatusCode};
use outbound_support::{Names, PATIENCE};
use outrigger_protocol::config::{Process, Reach};
use outrigger_sidecar::mcp::wire_http::{Error, Incoming, Timing, Upstream, Wire};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// One request as it came.
#[derive(Clone, Debug)]
struct Got {
    /// The client's port: another connection has another one.
    peer: u16,
    method: Method,
    headers: HeaderMap,
    body: Value,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    fn called(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }
}

type Script = dyn Fn(&Got, usize) -> Response + Send + Sync;

/// A server that answers by a script, which also gets the number of the request.
#[derive(Clone)]
struct Fixture {
    got: Arc<Mutex<Vec<Got>>>,
    script: Arc<Script>,
    port: u16,
}

impl Fixture {
    async fn start(script: impl Fn(&Got, usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let fixture = Self { got: Arc::default(), script: Arc::new(script), port };
        let answer = async |State(fixture): State<Self>,
                            ConnectInfo(peer): ConnectInfo<SocketAddr>,
                            method: Method,
                            headers: HeaderMap,
                            body: Bytes| {
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let got = Got { peer: peer.port(), method, headers, body };
            let number = {
                let mut all = fixture.got.lock();
                all.push(got.clone());
                all.len() - 1
            };
            (fixture.script)(&got, number)
        };
        let router = Router::new().route("/mcp", any(answer)).with_state(fixture.clone());
        tokio::spawn(async move {
            axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
        });
        fixture
    }

    fn all(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    fn calls(&self, called: &str) -> Vec<Got> {
        self.all().into_iter().filter(|g| g.called() == called).collect()
    }

    fn here(&self) -> Reach {
        Reach::Http { container: "tool-x".into(), port: self.port, path: "/mcp".into() }
    }
}

fn timing() -> Timing {
    let soon = Duration::from_millis(20);
    Timing { connect: PATIENCE, exchange: PATIENCE, retry: soon, longest_retry: soon, close: PATIENCE }
}

struct Client {
    wire: Wire,
    incoming: mpsc::Receiver<Incoming>,
}

fn connect_as(reach: &Reach, process: &Process, identity: &Path) -> Client {
    let names = Names::new(&[("server.example", &[&["127.0.0.1"]])]);
    let upstream = Upstream::with(reach, process, names, identity, timing()).unwrap();
    let (sender, incoming) = mpsc::channel(64);
    Client { wire: Wire::open(Arc::new(upstream), sender), incoming }
}

fn connect(reach: &Reach) -> Client {
    connect_as(reach, &Process::default(), Path::new("/nowhere"))
}

impl Client {
    fn send(&self, message: &Value) {
        self.wire.send(message.to_string().into()).unwrap();
    }

    async fn next(&mut self) -> Incoming {
        tokio::time::timeout(PATIENCE, self.incoming.recv()).await.unwrap().unwrap()
    }

    async fn message(&mut self) -> Value {
        match self.next().await {
            Incoming::Message(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn failure(&mut self) -> (String, Error) {
        match self.next().await {
            Incoming::Failed { id, error } => (id.into(), error),
            other => panic!("{other:?}"),
        }
    }

    async fn call(&mut self, id: u64) -> Value {
        self.send(&request(id, "tools/call"));
        self.message().await
    }

    async fn initialize(&mut self) {
        self.send(
            &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}),
        );
        assert_eq!(self.message().await["result"]["protocolVersion"], "2025-06-18");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }
}

fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "t"}})
}

fn json_body(value: &Value) -> Response {
    ([("content-type", "application/json; charset=utf-8")], value.to_string()).into_response()
}

fn result(got: &Got, value: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": got.body["id"], "result": value})
}

/// A stream of these pieces, which stays open afterwards if asked for.
fn events(pieces: &[String], stays: bool) -> Response {
    let pieces: Vec<_> = pieces.iter().map(|p| Ok::<_, Infallible>(Bytes::from(p.clone()))).collect();
    let mut response = if stays {
        Response::new(Body::from_stream(futures::StreamExt::chain(stream::iter(pieces), stream::pending())))
    } else {
        Response::new(Body::from_stream(stream::iter(pieces)))
    };
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// What a server with sessions answers to all but calls; `session` is the id of the next one.
fn with_session(got: &Got, session: &str) -> Option<Response> {
    match (got.method.as_str(), got.called()) {
        ("POST", "initialize") => {
            let mut response = json_body(&result(got, &json!({"protocolVersion": "2025-06-18", "capabilities": {}})));
            response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
            Some(response)
        }
        ("POST", "notifications/initialized") => Some(StatusCode::ACCEPTED.into_response()),
        ("GET", _) => Some(StatusCode::METHOD_NOT_ALLOWED.into_response()),
        ("DELETE", _) => Some(StatusCode::NO_CONTENT.into_response()),
        _ => None,
    }
}

#[tokio::test]
async fn a_session_is_named_in_every_later_request_and_ended() {
    let fixture = Fixture::start(|got, _| {
        with_session(got, "s-1").unwrap_or_else(|| json_body(&result(got, &json!({"ok": true}))))
    })
    .await;
    let mut client = connect(&fixture.here());
    client.initialize().await;
    assert_eq!(client.call(2).await, json!({"jsonrpc": "2.0", "id": 2, "result": {"ok": true}}));
    client.wire.close().await;
    let all = fixture.all();
    assert_eq!((all[0].header("mcp-session-id"), all[0].header("mcp-protocol-version")), ("", ""));
    assert_eq!(all[0].header("accept"), "application/json, text/event-stream");
    assert_eq!(all[1].called(), "notifications/initialized", "the server knows that the client is ready before a call");
    for later in &all[1..] {
        assert_eq!((later.header("mcp-session-id"), later.header("mcp-protocol-version")), ("s-1", "2025-06-18"));
    }
    assert_eq!(all.last().unwrap().method, Method::DELETE);
}

#[tokio::test]
async fn what_comes_before_the_response_on_its_stream_is_handed_on() {
    let fixture = Fixture::start(|got, _| {
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"n": 12_345_678_901_234_567_890_u64}});
        let pieces = [": hello\n\n".into(), "id: 1\ndata:\n\n".into(), event(&progress), event(&result(got, &json!({})))];
        events(&pieces, true)
    })
    .await;
    let mut client = connect(&fixture.here());
    client.send(&request(5, "tools/call"));
    assert_eq!(client.message().await["params"]["n"], 12_345_678_901_234_567_890_u64);
    assert_eq!(client.message().await["id"], 5);
}

#[tokio::test]
async fn a_server_speaks_of_its_own_accord_on_its_stream() {
    let fixture = Fixture::start(|got, _| {
        if got.method != Method::GET {
            return with_session(got, "s").unwrap();
        }
        if got.header("last-event-id").is_empty() {
            let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            return events(&[format!("id: e7\nretry: 1\n{}", event(&changed))], false);
        }
        let asked = json!({"jsonrpc": "2.0", "id": "r", "method": "roots/list"});
        events(&[event(&asked)], true)
    })
    .await;
    let mut client = connect(&fixture.here());
    client.initialize().await;
    assert_eq!(client.message().await["method"], "notifications/tools/list_changed");
    assert_eq!(client.message().await["method"], "roots/list", "the stream ended and was taken up");
    let gets: Vec<_> = fixture.all().into_iter().filter(|g| g.method == Method::GET).collect();
    assert_eq!(gets[1].header("last-event-id"), "e7");
}

#[tokio::test]
async fn a_forgotten_session_is_made_anew_once_for_all_that_wait() {
    let sessions = Arc::new(Mutex::new(0));
    let made = Arc::clone(&sessions);
    let fixture = Fixture::start(move |got, _| {
        if got.called() == "initialize" {
            *made.lock() += 1;
        }
        let name = format!("s-{}", made.lock());
        if let Some(response) = with_session(got, &name) {
            return response;
        }
        if got.header("mcp-session-id") == "s-1" {
            return StatusCode::NOT_FOUND.into_response();
        }
        json_body(&result(got, &json!(got.header("mcp-session-id"))))
    })
    .await;
    let mut client = connect(&fixture.here());
    client.initialize().await;
    for id in 10..14 {
        client.send(&request(id, "tools/call"));
    }
    let (mut renewed, mut answered) = (0, Vec::new());
    while renewed + answered.len() < 5 {
        match client.next().await {
            Incoming::Renewed => renewed += 1,
            Incoming::Message(text) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(message["result"], "s-2");
                answered.push(message["id"].as_u64().unwrap());
            }
            Incoming::Failed { error, .. } => panic!("{error}"),
        }
    }
    answered.sort_unstable();
    assert_eq!((renewed, answered), (1, vec![10, 11, 12, 13]));
    assert_eq!(*sessions.lock(), 2, "one new session for all");
    assert_eq!(fixture.calls("notifications/initialized").len(), 2);
}

#[tokio::test]
async fn a_session_that_cannot_be_made_anew_fails_the_call() {
    let fixture = Fixture::start(|got, number| {
        if number == 0 {
            return with_session(got, "s-1").unwrap();
        }
        StatusCode::NOT_FOUND.into_response()
    })
    .await;
    let mut client = connect(&fixture.here());
    client.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}));
    client.message().await;
    client.send(&request(2, "tools/call"));
    let (id, error) = client.failure().await;
    assert_eq!((id.as_str(), error.reason()), ("2", "SessionLost"));
    assert_eq!(fixture.calls("initialize").len(), 2);
}

#[tokio::test]
async fn a_broken_stream_is_taken_up_where_it_was_and_the_call_is_not_repeated() {
    let fixture = Fixture::start(|got, _| {
        if let ("POST", "initialize" | "notifications/initialized") = (got.method.as_str(), got.called()) {
            return with_session(got, "s").unwrap();
        }
        if got.method == Method::POST {
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}});
            return events(&[format!("retry: 1\nid: 4-1\n{}", event(&progress))], false);
        }
        match got.header("last-event-id") {
            "4-1" => {
                events(&[format!("id: 4-2\n{}", event(&json!({"jsonrpc": "2.0", "id": 3, "result": "late"})))], false)
            }
            _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        }
    })
    .await;
    let mut client = connect(&fixture.here());
    client.initialize().await;
    client.send(&request(3, "tools/call"));
    assert_eq!(client.message().await["method"], "notifications/progress");
    assert_eq!(client.message().await["result"], "late");
    assert_eq!(fixture.calls("tools/call").len(), 1);
}

#[tokio::test]
async fn a_stream_that_ends_without_a_response_fails_the_call_alone() {
    let fixture = Fixture::start(|got, _| match got.body["id"].as_u64() {
        Some(1) => events(&[": nothing\n\n".into()], false),
        _ => json_body(&result(got, &json!("fine"))),
    })
    .await;
    let mut client = connect(&fixture.here());
    client.send(&request(1, "tools/call"));
    let (id, error) = client.failure().await;
    assert_eq!((id.as_str(), error.reason()), ("1", "ConnectionBroken"));
    assert_eq!(client.call(2).await["result"], "fine");
    assert_eq!(fixture.calls("tools/call").len(), 2, "nothing is sent twice");
}

#[tokio::test]
async fn requests_without_a_handshake_carry_their_headers_and_no_session() {
    let fixture = Fixture::start(|got, _| {
        if got.called() == "tools/call" {
            return json_body(&result(got, &json!({"resultType": "complete"})));
        }
        let error = json!({"jsonrpc": "2.0", "id": got.body["id"], "error": {"code": -32601, "message": "no"}});
        (StatusCode::NOT_FOUND, json_body(&error)).into_response()
    })
    .await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let mut client = connect(&fixture.here());
    client
        .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "größe", "_meta": meta}}));
    assert_eq!(client.message().await["result"]["resultType"], "complete");
    let got = &fixture.all()[0];
    let headers = ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"].map(|h| got.header(h));
    assert_eq!(headers, ["2026-07-28", "tools/call", "=?base64?Z3LDtsOfZQ==?=", ""]);
    client.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "vendor/x", "params": {"_meta": meta}}));
    assert_eq!(client.message().await["error"]["code"], -32601, "the server's own words for a status of 404");
}

/// Name, answer, reason, words of the message.
type Refusal = (&'static str, fn() -> Response, &'static str, &'static str);

#[tokio::test]
async fn refusals_explain() {
    let cases: [Refusal; 6] = [
        (
            "redirect",
            || (StatusCode::FOUND, [("location", "https://elsewhere/")]).into_response(),
            "Redirected",
            "https://elsewhere/",
        ),
        ("401", || StatusCode::UNAUTHORIZED.into_response(), "Unauthorized", "headersFrom"),
        ("500", || (StatusCode::INTERNAL_SERVER_ERROR, "oh no").into_response(), "BadStatus", "500: oh no"),
        ("html", || ([("content-type", "text/html")], "<p>").into_response(), "NotMcp", "text/html"),
        ("nonsense", || ([("content-type", "application/json")], "{").into_response(), "NotMcp", "message that"),
        ("other id", || json_body(&json!({"jsonrpc": "2.0", "id": 99, "result": 1})), "ConnectionBroken", "response"),
    ];
    for (name, response, reason, words) in cases {
        let fixture = Fixture::start(move |_, _| response()).await;
        let mut client = connect(&fixture.here());
        client.send(&request(1, "tools/call"));
        let error = loop {
            if let Incoming::Failed { error, .. } = client.next().await {
                break error;
            }
        };
        assert_eq!(error.reason(), reason, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_and_the_next_one_passes() {
    let fixture = Fixture::start(|got, _| {
        let text = "x".repeat(if got.body["id"] == 3 { 10 } else { 5000 });
        let answer = result(got, &json!(text));
        if got.body["id"] == 2 { events(&[event(&answer)], false) } else { json_body(&answer) }
    })
    .await;
    let process = Process { max_line_bytes: 2048, ..Process::default() };
    let mut client = connect_as(&fixture.here(), &process, Path::new("/nowhere"));
    for id in [1, 2] {
        client.send(&request(id, "tools/call"));
        assert_eq!(client.failure().await.1, Error::TooLarge(2048));
    }
    assert_eq!(client.call(3).await["result"], "x".repeat(10));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut client = connect(&Reach::Http { container: "c".into(), port, path: "/mcp".into() });
    client.send(&request(1, "tools/call"));
    let error = client.failure().await.1;
    assert_eq!(error.reason(), "Unreachable");
    assert!(error.is_gone());
}

fn remote(port: u16, host: &str, allow: &[&str], headers_dir: Option<&Path>) -> Reach {
    Reach::Remote {
        url: format!("http://{host}:{port}/mcp"),
        headers_dir: headers_dir.map(|d| d.to_string_lossy().into_owned()),
        ca_file: None,
        allow: allow.iter().map(|a| (*a).to_owned()).collect(),
    }
}

#[tokio::test]
async fn a_remote_server_gets_the_headers_of_the_files_if_its_address_is_allowed() {
    let fixture = Fixture::start(|got, _| json_body(&result(got, &json!(got.header("x-key"))))).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("X-Key"), "one\n").unwrap();
    let mut refused = connect(&remote(fixture.port, "server.example", &[], Some(folder.path())));
    refused.send(&request(1, "tools/call"));
    let error = refused.failure().await.1;
    assert_eq!(error.reason(), "AddressRefused");
    assert!(error.to_string().contains("transport.remote.allow"), "{error}");
    assert_eq!(fixture.all().len(), 0, "nothing was sent");

    let mut client = connect(&remote(fixture.port, "127.0.0.1", &["127.0.0.0/8"], Some(folder.path())));
    assert_eq!(client.call(1).await["result"], "one");
    std::fs::write(folder.path().join("X-Key"), "two, longer\n").unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut id = 2;
    while client.call(id).await["result"] != "two, longer" {
        assert!(tokio::time::Instant::now() < deadline, "a changed file is read again");
        id += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_standalone_server_gets_the_token_and_its_refusal_is_told() {
    let fixture = Fixture::start(|got, _| {
        if got.header("authorization") == "Bearer good" {
            return json_body(&result(got, &json!("in")));
        }
        let error =
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "you may not use this server"}});
        (StatusCode::FORBIDDEN, json_body(&error)).into_response()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let reach = Reach::Service { url: format!("http://server.example:{}/mcp", fixture.port) };
    let token = folder.path().join("token");
    let as_token = |path: &Path| connect_as(&reach, &Process::default(), path);
    let mut nobody = as_token(&token);
    nobody.send(&request(1, "tools/call"));
    assert!(nobody.failure().await.1.to_string().contains("token of this pod's ServiceAccount"));
    std::fs::write(&token, "bad\n").unwrap();
    let mut bad = as_token(&token);
    bad.send(&request(1, "tools/call"));
    let error = bad.failure().await.1;
    assert_eq!(error, Error::Forbidden(403, "you may not use this server".into()));
    std::fs::write(&token, "good\n").unwrap();
    assert_eq!(as_token(&token).call(1).await["result"], "in");
}

#[tokio::test]
async fn an_abandoned_request_closes_its_answer_and_says_nothing() {
    let fixture = Fixture::start(|got, _| match got.body["id"].as_u64() {
        Some(1) => events(&[": wait\n\n".into()], true),
        _ => json_body(&result(got, &json!("fine"))),
    })
    .await;
    let mut client = connect(&fixture.here());
    client.send(&request(1, "tools/call"));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while fixture.all().is_empty() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    client.wire.abandon("1");
    assert_eq!(client.call(2).await["id"], 2, "the next word is that of the next call");
    client.wire.close().await;
}

#[tokio::test]
async fn kept_connections_are_used_again() {
    let fixture = Fixture::start(|got, _| json_body(&result(got, &json!("x".repeat(100_000))))).await;
    let mut client = connect(&fixture.here());
    for id in 1..20 {
        assert_eq!(client.call(id).await["id"], id);
    }
    let connections: std::collections::BTreeSet<_> = fixture.all().iter().map(|g| g.peer).collect();
    assert_eq!((fixture.all().len(), connections.len()), (19, 1), "{connections:?}");
}
