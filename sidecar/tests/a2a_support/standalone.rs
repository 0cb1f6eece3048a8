//! The A2A side alone, in front of any handler: `a2a-standalone HANDLER_PORT PORT`. For trying out clients and for
//! measurements; a pod runs the whole sidecar.
#![allow(missing_docs, dead_code)]

mod context;

use std::sync::Arc;

use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::{Service, SkillRef};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut ports = std::env::args().skip(1).map(|a| a.parse::<u16>());
    let (Some(handler), Some(port)) = (ports.next().transpose()?, ports.next().transpose()?) else {
        anyhow::bail!("usage: a2a-standalone HANDLER_PORT PORT");
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = format!("http://127.0.0.1:{port}/");
    let (ctx, _live) = context::context(handler, None, &url, Limits::default());
    let skills = Arc::new(|| vec![SkillRef { name: "menu".into(), path: "/skills/menu".into(), pin: None }]);
    let service = Service::start(&ctx, skills)?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    tracing::info!(url, handler, "serving");
    axum::serve(listener, service.router()).await?;
    Ok(())
}
