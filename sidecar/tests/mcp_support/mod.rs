//! A shim with a server of the tests' own behind it, the MCP part of the sidecar in front, and an HTTP client.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `json!({..})` reads best where it is passed.
#![allow(clippy::needless_pass_by_value)]

mod reply;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use outrigger_protocol::config::{self, AgentRef, Boot, Live, LocalUrls, Process, Runtime, Sharing, ToolPolicy};
use outrigger_protocol::status::ServerStatus;
use outrigger_sidecar::context::Context;
use outrigger_sidecar::drain::Drain;
use outrigger_sidecar::mcp::Servers;
use outrigger_sidecar::mcp::timing::Timing;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use reply::Reply;

/// Any wait for a condition fails after this long.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const SHIM: &str = env!("CARGO_BIN_EXE_outrigger-shim");
pub const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mcp_fixture.py");
pub const CONTAINER: &str = "tool-fixture";

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process lives (a zombie does not).
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat[stat.rfind(')').unwrap() + 1..].trim_start().as_bytes()[0] != b'Z')
}

/// A shim process; killed with its children when dropped.
pub struct Shim {
    pub process: Child,
    pub socket: PathBuf,
}

impl Shim {
    pub fn start(socket: &Path, max: u32, command: &[&str]) -> Self {
        let process = Command::new(SHIM)
            .env("OUTRIGGER_SOCKET", socket)
            .env("OUTRIGGER_MAX_PROCESSES", max.to_string())
            .env("FIXTURE_ENV", "kept")
            .arg("--")
            .args(command)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, socket: socket.into() }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sidecar part and shim.
pub struct Rig {
    pub dir: tempfile::TempDir,
    pub shim: Option<Shim>,
    pub servers: Arc<Servers>,
    pub context: Context,
    pub live: watch::Sender<Arc<Live>>,
    pub base: String,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
    }
}

/// Sessions with processes of their own in front of a server that has a handshake, if not said otherwise.
pub struct Setup {
    pub era: config::Era,
    pub process: Process,
    pub timing: Timing,
    pub shim_max: Option<u32>,
    /// Where the server is, if not behind a shim.
    pub reach: Option<config::Reach>,
    /// Rules for its tools.
    pub rules: Option<ToolPolicy>,
}

impl Default for Setup {
    fn default() -> Self {
        let process = Process { sharing: Sharing::PerSession, ..Process::default() };
        Self { era: config::Era::Legacy, process, timing: Timing::default(), shim_max: None, reach: None, rules: None }
    }
}

pub fn fixture(args: &[&str]) -> Vec<String> {
    ["python3", FIXTURE].iter().chain(args).map(ToString::to_string).collect()
}

impl Rig {
    /// The fixture with these arguments behind a shim, defaults otherwise.
    pub async fn fixture(args: &[&str]) -> Self {
        Self::with(args, Setup::default()).await
    }

    /// As above, and ready.
    pub async fn ready(args: &[&str]) -> Self {
        let rig = Self::fixture(args).await;
        rig.until_ready().await;
        rig
    }

    pub async fn with(args: &[&str], setup: Setup) -> Self {
        let command = fixture(args);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let max = setup.shim_max.unwrap_or(setup.process.max_processes);
        let mut rig = Self::without_shim(setup).await;
        rig.shim = Some(Shim::start(&rig.socket(), max, &command));
        rig
    }

    pub async fn without_shim(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = config::Server {
            name: "fixture".into(),
            reach: setup.reach.unwrap_or_else(|| config::Reach::Stdio {
                container: CONTAINER.into(),
                socket: dir.path().join("shim.sock").to_str().unwrap().into(),
            }),
            required: true,
            process: setup.process,
            era: setup.era,
        };
        let containers = vec!["agent".to_owned(), CONTAINER.to_owned()];
        let boot = Boot {
            version: 1,
            agent: AgentRef { name: "a".into(), namespace: "n".into() },
            runtime: Runtime::Http { port: 1, path: "/".into(), ready_path: None },
            containers: containers.clone(),
            servers: vec![server],
            skills: Vec::new(),
            store: outrigger_protocol::config::Store::default(),
            drain: config::Drain { token: "0123456789abcdef".into(), grace_seconds: 60 },
        };
        let live = watch::Sender::new(Arc::new(with_rules(setup.rules)));
        let context = Context {
            boot: Arc::new(boot),
            live: live.subscribe(),
            urls: Arc::new(LocalUrls::default()),
            token: "t".into(),
            drain: Drain::new(&containers, Duration::from_secs(60)),
            registry: prometheus::Registry::new(),
            shutdown: CancellationToken::new(),
        };
        let servers = Servers::start_with(&context, &setup.timing);
        // Nested as in the real program: the path has a parameter of somebody else's.
        let router = axum::Router::new().nest("/t/{token}", servers.router());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/t/secret/mcp/fixture", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { dir, shim: None, servers, context, live, base, client }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("shim.sock")
    }

    pub fn shim(&self) -> &Shim {
        self.shim.as_ref().unwrap()
    }

    /// Other rules from now on.
    pub fn rule(&self, rules: ToolPolicy) {
        self.live.send_replace(Arc::new(with_rules(Some(rules))));
    }

    pub fn status(&self) -> ServerStatus {
        self.servers.status().remove(0)
    }

    pub async fn until_ready(&self) {
        eventually("ready", || self.status().part.ready).await;
    }

    /// Value of a counter or gauge whose labels include these; 0 if it is not there.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let families = self.context.registry.gather();
        let Some(family) = families.iter().find(|f| f.name() == name) else { return 0.0 };
        family
            .get_metric()
            .iter()
            .filter(|m| labels.iter().all(|(k, v)| m.get_label().iter().any(|l| l.name() == *k && l.value() == *v)))
            .map(|m| m.get_counter().get_value() + m.get_gauge().get_value())
            .sum()
    }

    pub async fn http(&self, method: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let mut request = Request::builder().method(method).uri(&self.base);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::new(self.client.request(request.body(Full::new(body.into())).unwrap()).await.unwrap())
    }

    /// A POST as a client makes it.
    pub async fn post(&self, session: Option<&str>, body: impl Into<Bytes>) -> Reply {
        let mut headers = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        headers.extend(session.map(|s| ("mcp-session-id", s)));
        self.http("POST", &headers, body).await
    }

    /// A POST that goes on by itself.
    pub fn start_post(&self, session: &str, body: String) -> impl Future<Output = Reply> + Send + use<> {
        let request = Request::builder()
            .method("POST")
            .uri(&self.base)
            .header("content-type", "application/json")
            .header("mcp-session-id", session)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = self.client.request(request);
        async move { Reply::new(response.await.unwrap()) }
    }

    /// A session after its handshake.
    pub async fn session(&self) -> String {
        self.open(&init(1)).await
    }

    /// A session that begins with this message.
    pub async fn open(&self, initialize: &str) -> String {
        let reply = self.post(None, initialize.to_owned()).await;
        assert_eq!(reply.status, StatusCode::OK);
        let id = reply.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let body = reply.last().await;
        assert_eq!(body["result"]["serverInfo"]["name"], "fixture", "{body}");
        let initialized = self.post(Some(&id), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        assert_eq!(initialized.status, StatusCode::ACCEPTED);
        id
    }

    /// The answer to `tools/call`.
    pub async fn call(&self, session: &str, tool: &str, arguments: Value) -> Value {
        self.post(Some(session), call(7, tool, arguments)).await.last().await
    }

    /// The text of a successful `tools/call`.
    pub async fn text(&self, session: &str, tool: &str, arguments: Value) -> String {
        let answer = self.call(session, tool, arguments).await;
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub async fn pid(&self, session: &str) -> u32 {
        self.text(session, "pid", json!({})).await.parse().unwrap()
    }

    /// A request of the stateless revision, with the headers that belong to it.
    pub async fn modern(&self, method: &str, params: Value) -> Reply {
        self.modern_as(json!(7), method, params).await
    }

    pub async fn modern_as(&self, id: Value, method: &str, params: Value) -> Reply {
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
        ];
        let name = params.get("name").or(params.get("uri")).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !name.is_empty() {
            headers.push(("mcp-name", &name));
        }
        self.http("POST", &headers, modern(id, method, params)).await
    }

    /// The session's stream.
    pub async fn listen(&self, session: &str) -> Reply {
        self.http("GET", &[("accept", "text/event-stream"), ("mcp-session-id", session)], "").await
    }
}

/// A live document with rules for the tools of the fixture.
fn with_rules(rules: Option<ToolPolicy>) -> Live {
    let mut live = Live::new(Value::Null);
    live.mcp.servers.extend(rules.map(|r| ("fixture".to_owned(), r)));
    live
}

/// The first message of a client of a revision with these capabilities.
pub fn initialize(revision: &str, capabilities: Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}})
    .to_string()
}

pub fn init(id: u32) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize",
           "params": {"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}, "roots": {}}, "clientInfo": {"name": "t", "version": "1"}}})
    .to_string()
}

pub fn call(id: impl Into<Value>, tool: &str, arguments: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        .to_string()
}

/// A message of the stateless revision; members of `_meta` in `params` stay and come before others.
pub fn modern(id: impl Into<Value>, method: &str, mut params: Value) -> String {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let Value::Object(mut meta) = meta else { unreachable!() };
    if let Some(Value::Object(given)) = params.get("_meta") {
        meta.extend(given.clone());
    }
    params["_meta"] = Value::Object(meta);
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}
