//! A context without a cluster.

use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::config::{self, AgentRef, Boot, Limits, Live, LocalUrls, Runtime};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::drain::Drain;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub const TOKEN: &str = "local-token-of-the-test";

/// The card of an agent that is served at a URL, as the operator writes it.
pub fn card(url: &str) -> Value {
    json!({
        "name": "burger-seller",
        "description": "Sells burgers",
        "version": "0.1.0",
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": false, "pushNotifications": false},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "order", "name": "Order", "description": "Takes an order", "tags": ["food"]}]
    })
}

/// A context for a handler on a port. The sender changes the live configuration.
pub fn context(port: u16, ready_path: Option<&str>, url: &str, limits: Limits) -> (Context, watch::Sender<Arc<Live>>) {
    let boot = Boot {
        version: 1,
        agent: AgentRef { name: "burger-seller".into(), namespace: "shop".into() },
        runtime: Runtime::Http { port, path: "/".into(), ready_path: ready_path.map(Into::into) },
        containers: vec!["agent".into()],
        servers: vec![],
        skills: vec![],
        store: outrigger_protocol::config::Store::default(),
        drain: config::Drain { token: "0123456789abcdef".into(), grace_seconds: 150 },
    };
    let (live, rx) = watch::channel(Arc::new(Live { limits, ..Live::new(card(url)) }));
    let local = format!("http://127.0.0.1:19900/t/{TOKEN}");
    let urls = LocalUrls {
        mcp: [("time".to_owned(), format!("{local}/mcp/time"))].into(),
        tasks: format!("{local}/tasks"),
        turns: format!("{local}/turns"),
        agents: format!("{local}/agents"),
    };
    let ctx = Context {
        drain: Drain::new(&boot.containers, Duration::from_secs(150)),
        boot: Arc::new(boot),
        live: rx,
        urls: Arc::new(urls),
        token: TOKEN.into(),
        registry: prometheus::Registry::new(),
        shutdown: CancellationToken::new(),
    };
    (ctx, live)
}
