//! A server of either era behind the sidecar, and clients of either era in front of it.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value)]

use http::StatusCode;
use outrigger_protocol::config::{Era, Process, Sharing};
use serde_json::{Value, json};

use crate::mcp_support::{Reply, Rig, Setup, Shim};

pub const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mcp_eras.py");
pub const MODERN: &str = "2026-07-28";
const PREFIX: &str = "io.modelcontextprotocol";

/// The sidecar with a server of an era behind it, ready.
pub struct Bed {
    pub rig: Rig,
}

impl Bed {
    pub async fn new(era: &str) -> Self {
        Self::sharing(era, Sharing::Auto).await
    }

    pub async fn sharing(era: &str, sharing: Sharing) -> Self {
        Self::with(&["--era", era], sharing).await
    }

    pub async fn with(args: &[&str], sharing: Sharing) -> Self {
        let process = Process { sharing, ..Process::default() };
        Self::set_up(args, Setup { era: Era::Auto, process, ..Setup::default() }).await
    }

    pub async fn set_up(args: &[&str], setup: Setup) -> Self {
        let max = setup.process.max_processes;
        let mut rig = Rig::without_shim(setup).await;
        let command: Vec<&str> = ["python3", SERVER].iter().chain(args).copied().collect();
        rig.shim = Some(Shim::start(&rig.socket(), max, &command));
        rig.until_ready().await;
        Self { rig }
    }

    pub async fn http(&self, method: &str, headers: &[(&str, &str)], body: String) -> Reply {
        self.rig.http(method, headers, body).await
    }

    /// A legacy session of a client with these capabilities.
    pub async fn session(&self, capabilities: Value) -> Session<'_> {
        self.session_of("2025-11-25", capabilities).await
    }

    pub async fn session_of(&self, revision: &'static str, capabilities: Value) -> Session<'_> {
        let mut session = Session { bed: self, id: String::new(), revision };
        let params = json!({"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}});
        let reply = session.post(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})).await;
        assert_eq!(reply.status, StatusCode::OK);
        session.id = reply.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = reply.last().await;
        assert_eq!(answer["id"], 1, "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], revision, "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "eras", "{answer}");
        let reply = session.post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assert_eq!(reply.status, StatusCode::ACCEPTED);
        session
    }

    /// A modern request with right headers.
    pub async fn modern(&self, id: impl Into<Value>, method: &str, params: Value, capabilities: Value) -> Reply {
        let body = modern(id, method, params, capabilities);
        self.http("POST", &borrowed(&headers_of(&body)), body.to_string()).await
    }

    /// The response to a modern `tools/call`.
    pub async fn tool(&self, name: &str, arguments: Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        self.modern(1, "tools/call", params, json!({})).await.last().await
    }

    /// What the process of shared modern calls knows.
    pub async fn modern_state(&self) -> Value {
        serde_json::from_str(&text(&self.tool("state", json!({})).await)).unwrap()
    }
}

/// A modern request.
pub fn modern(id: impl Into<Value>, method: &str, mut params: Value, capabilities: Value) -> Value {
    let meta = params.as_object_mut().unwrap().entry("_meta").or_insert_with(|| json!({}));
    meta[format!("{PREFIX}/protocolVersion")] = MODERN.into();
    meta[format!("{PREFIX}/clientCapabilities")] = capabilities;
    meta[format!("{PREFIX}/clientInfo")] = json!({"name": "test", "version": "1"});
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

/// The headers that go with a modern message.
pub fn headers_of(body: &Value) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("accept", "application/json, text/event-stream".to_owned()),
        ("mcp-protocol-version", MODERN.to_owned()),
        ("mcp-method", body["method"].as_str().unwrap().to_owned()),
    ];
    let name = body["params"]["name"].as_str().or(body["params"]["uri"].as_str());
    headers.extend(name.map(|n| ("mcp-name", n.to_owned())));
    headers
}

pub fn borrowed<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    headers.iter().map(|(n, v)| (*n, v.as_str())).collect()
}

/// The text of a successful call.
pub fn text(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// A legacy client.
pub struct Session<'a> {
    pub bed: &'a Bed,
    pub id: String,
    pub revision: &'static str,
}

impl Session<'_> {
    pub async fn post(&self, body: Value) -> Reply {
        let mut headers = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        if !self.id.is_empty() {
            headers.extend([("mcp-session-id", self.id.as_str()), ("mcp-protocol-version", self.revision)]);
        }
        self.bed.http("POST", &headers, body.to_string()).await
    }

    pub async fn request(&self, id: impl Into<Value>, method: &str, params: Value) -> Reply {
        self.post(json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})).await
    }

    pub async fn call(&self, name: &str, arguments: Value) -> Reply {
        self.request(1, "tools/call", json!({"name": name, "arguments": arguments})).await
    }

    pub async fn text(&self, name: &str, arguments: Value) -> String {
        text(&self.call(name, arguments).await.last().await)
    }

    /// The session's stream, from after an event on.
    pub async fn listen(&self, after: Option<&str>) -> Reply {
        let mut headers = vec![
            ("accept", "text/event-stream"),
            ("mcp-session-id", self.id.as_str()),
            ("mcp-protocol-version", self.revision),
        ];
        headers.extend(after.map(|a| ("last-event-id", a)));
        let reply = self.bed.http("GET", &headers, String::new()).await;
        assert_eq!(reply.status, StatusCode::OK);
        reply
    }

    /// What its process knows.
    pub async fn state(&self) -> Value {
        serde_json::from_str(&self.text("state", json!({})).await).unwrap()
    }

    pub async fn end(&self) -> StatusCode {
        self.bed.http("DELETE", &[("mcp-session-id", self.id.as_str())], String::new()).await.status
    }
}
