//! Serves one stdio MCP server over streamable HTTP, without a cluster:
//!
//! ```text
//! cargo run --example mcp_proxy -- 8931 /tmp/dir/shim.sock
//! OUTRIGGER_SOCKET=/tmp/dir/shim.sock outrigger-shim -- COMMAND ARGS...
//! ```
//!
//! The endpoint is then `http://127.0.0.1:8931/mcp/server`, its state `/status` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use outrigger_protocol::config::{
    AgentRef, Boot, Drain as DrainConfig, Era, Live, LocalUrls, Process, Reach, Runtime, Server,
};
use outrigger_sidecar::context::Context;
use outrigger_sidecar::drain::Drain;
use outrigger_sidecar::mcp::Servers;
use tokio::sync::watch;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().ok_or_else(|| anyhow::anyhow!("usage: mcp_proxy PORT SOCKET"))?.parse()?;
    let socket = args.next().ok_or_else(|| anyhow::anyhow!("usage: mcp_proxy PORT SOCKET"))?;
    let server = Server {
        name: "server".into(),
        reach: Reach::Stdio { container: "tool-server".into(), socket },
        required: true,
        era: Era::Auto,
        process: Process { max_processes: 64, ..Process::default() },
    };
    let containers = vec!["agent".to_owned(), "tool-server".to_owned()];
    let boot = Boot {
        version: 1,
        agent: AgentRef { name: "agent".into(), namespace: "default".into() },
        runtime: Runtime::Http { port: 1, path: "/".into(), ready_path: None },
        containers: containers.clone(),
        servers: vec![server],
        skills: Vec::new(),
        store: outrigger_protocol::config::Store::default(),
        drain: DrainConfig { token: "0123456789abcdef".into(), grace_seconds: 30 },
    };
    let live = Live::new(serde_json::Value::Null);
    let (_keep, live) = watch::channel(Arc::new(live));
    let context = Context {
        boot: Arc::new(boot),
        live,
        urls: Arc::new(LocalUrls::default()),
        token: "local".into(),
        drain: Drain::new(&containers, Duration::from_secs(30)),
        registry: prometheus::Registry::new(),
        shutdown: tokio_util::sync::CancellationToken::new(),
    };
    let servers = Servers::start(&context);
    let status = Arc::clone(&servers);
    let registry = context.registry.clone();
    let router =
        servers.router().route("/status", get(move || async move { axum::Json(status.status()) })).route(
            "/metrics",
            get(move || async move {
                prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default()
            }),
        );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(axum::serve::ListenerExt::tap_io(listener, |tcp| drop(tcp.set_nodelay(true))), router).await?;
    Ok(())
}
