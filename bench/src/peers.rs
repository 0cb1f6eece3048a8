//! The peers: other proxies and servers for the same work, as their own documentation starts them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::mcp::Endpoint;
use crate::process::Process;
use crate::settings::Settings;

/// Until a peer's port accepts.
const START: Duration = Duration::from_mins(1);

/// A proxy from streamable HTTP to the echo server on stdio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// npm supergateway: Node, a child for each session.
    Supergateway,
    /// `PyPI` mcp-proxy: Python, one child for all.
    McpProxy,
}

impl Proxy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Supergateway, Self::McpProxy];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supergateway => "supergateway",
            Self::McpProxy => "mcp-proxy",
        }
    }

    /// Starts it and waits for its port.
    pub async fn start(self, settings: &Settings) -> Result<(Process, Endpoint)> {
        let port = free_port()?;
        let echo = settings.program("bench-echo");
        let mut command = match self {
            Self::Supergateway => {
                let mut c = Command::new(settings.peers.join("supergateway/node_modules/.bin/supergateway"));
                c.arg("--stdio").arg(echo).args(["--outputTransport", "streamableHttp", "--stateful"]);
                c.args(["--port", &port.to_string(), "--logLevel", "none"]);
                c.env("NODE_ENV", "production");
                c
            }
            Self::McpProxy => {
                let mut c = python(settings, "mcp-proxy");
                c.args([
                    "-m",
                    "mcp_proxy",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port.to_string(),
                    "--log-level",
                    "CRITICAL",
                    "--",
                ])
                .arg(echo);
                c
            }
        };
        let mut process = Process::start(self.name(), &settings.logs, &mut command)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        process.until("open its port", START, || TcpStream::connect(address).is_ok()).await?;
        Ok((process, Endpoint { address, path: "/mcp".into() }))
    }
}

/// Starts an agent on a2a-sdk's own server and waits for its port.
pub async fn a2a_sdk(settings: &Settings) -> Result<(Process, SocketAddr)> {
    let port = free_port()?;
    let mut command = python(settings, "a2a-sdk");
    command.arg(settings.sources.join("peers/a2a_server.py")).arg(port.to_string());
    let mut process = Process::start("a2a-sdk", &settings.logs, &mut command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    process.until("open its port", START, || TcpStream::connect(address).is_ok()).await?;
    Ok((process, address))
}

/// Starts an agent on the server crate of the A2A project and waits for its port.
pub async fn a2a_server(settings: &Settings) -> Result<(Process, SocketAddr)> {
    let port = free_port()?;
    let mut command = Command::new(settings.peers.join("a2a-server/a2a-server-peer"));
    command.arg(port.to_string());
    let mut process = Process::start("a2a-server", &settings.logs, &mut command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    process.until("open its port", START, || TcpStream::connect(address).is_ok()).await?;
    Ok((process, address))
}

/// Python with the packages of a peer and no others.
fn python(settings: &Settings, peer: &str) -> Command {
    let mut command = Command::new(&settings.python);
    command.arg("-sS").env("PYTHONPATH", settings.peers.join(peer)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A port of 127.0.0.1 that nobody has at this time.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
