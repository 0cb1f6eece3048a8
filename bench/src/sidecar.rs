//! A sidecar outside a pod, with an agent and a shim, as they would stand in one.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use outrigger_protocol::config::{
    A2A_PORT, ADMIN_PORT, AGENT_DIR, AgentRef, BOOT_FILE, Boot, CONFIG_VERSION, Drain, Era, LIVE_FILE, LOCAL_PORT,
    Live, Process as Bounds, Reach, Runtime, SHIM_SOCKET, Server, TOKEN_FILE, TOOLS_DIR,
};
use serde_json::json;
use tempfile::TempDir;

use crate::http::Connection;
use crate::mcp::Endpoint;
use crate::peers::free_port;
use crate::process::Process;
use crate::settings::Settings;

/// Name of the tool server.
const TOOL: &str = "echo";
/// Children of the tool at once; health checks of the sidecar need some besides the sessions.
pub const MOST_SESSIONS: u32 = 64;
const MOST_PROCESSES: u32 = MOST_SESSIONS + 4;
/// Until everything is ready.
const START: Duration = Duration::from_secs(30);

/// The parts of one pod.
pub struct Pod {
    /// The sidecar.
    pub sidecar: Process,
    /// The shim with the echo server.
    pub shim: Process,
    /// The agent.
    pub agent: Process,
    /// Where the tool is served.
    pub tool: Endpoint,
    _root: TempDir,
}

/// Where A2A is served.
pub const A2A: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), A2A_PORT);

/// Files of a pod in a folder.
pub struct Layout {
    root: TempDir,
    agent_port: u16,
}

impl Layout {
    /// Writes both configuration documents.
    pub fn write() -> Result<Self> {
        // A socket's path has room for about a hundred bytes, so not below the cache.
        let layout = Self { root: tempfile::tempdir()?, agent_port: free_port()? };
        let process = Bounds { max_processes: MOST_PROCESSES, ..Bounds::default() };
        let boot = Boot {
            version: CONFIG_VERSION,
            agent: AgentRef { name: "bench".into(), namespace: "default".into() },
            runtime: Runtime::Http { port: layout.agent_port, path: "/".into(), ready_path: None },
            containers: vec!["agent".into(), format!("tool-{TOOL}")],
            servers: vec![Server {
                name: TOOL.into(),
                reach: Reach::Stdio {
                    container: format!("tool-{TOOL}"),
                    socket: layout.socket().to_string_lossy().into_owned(),
                },
                required: true,
                process,
                era: Era::Auto,
            }],
            skills: Vec::new(),
            store: outrigger_protocol::config::Store::default(),
            drain: Drain { token: "benchmark-benchmark".into(), grace_seconds: 10 },
        };
        let card = json!({
            "name": "bench", "description": "Sells burgers", "version": "1.0.0", "capabilities": {},
            "supportedInterfaces": [{"url": format!("http://{A2A}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "sell", "name": "Sell", "description": "Sells a burger", "tags": ["food"]}],
        });
        let live = Live::new(card);
        for (file, text) in [(BOOT_FILE, serde_json::to_vec(&boot)?), (LIVE_FILE, serde_json::to_vec(&live)?)] {
            let path = layout.below(file);
            std::fs::create_dir_all(path.parent().context("a file at the root")?)?;
            std::fs::write(path, text)?;
        }
        for folder in [AGENT_DIR.into(), format!("{TOOLS_DIR}/{TOOL}"), "/skills".into()] {
            std::fs::create_dir_all(layout.below(&folder))?;
        }
        Ok(layout)
    }

    fn below(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// The shim's socket.
    pub fn socket(&self) -> PathBuf {
        self.below(&format!("{TOOLS_DIR}/{TOOL}")).join(SHIM_SOCKET)
    }

    /// Starts the shim; it is ready when its socket accepts.
    pub fn shim(&self, settings: &Settings) -> Result<Process> {
        Process::start(
            "shim",
            &settings.logs,
            Command::new(settings.program("outrigger-shim"))
                .env("OUTRIGGER_SOCKET", self.socket())
                .env("OUTRIGGER_MAX_PROCESSES", MOST_PROCESSES.to_string())
                .arg("--")
                .arg(settings.program("bench-echo")),
        )
    }

    /// Starts the sidecar; it is ready when `/readyz` says so.
    pub fn sidecar(&self, settings: &Settings) -> Result<Process> {
        Process::start(
            "sidecar",
            &settings.logs,
            Command::new(settings.program("outrigger")).arg("run").arg("--root").arg(self.root.path()),
        )
    }

    fn agent(&self, settings: &Settings) -> Result<Process> {
        let program = settings.program("bench-agent");
        Process::start("agent", &settings.logs, Command::new(program).arg(self.agent_port.to_string()))
    }
}

/// Whether the socket accepts.
pub fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Whether a path of the admin port answers 200.
pub fn healthy(path: &str) -> bool {
    let mut body = Vec::new();
    let head = Connection::new((Ipv4Addr::LOCALHOST, ADMIN_PORT).into()).request("GET", path, "", b"", &mut body);
    head.is_ok_and(|h| h.status == 200)
}

impl Pod {
    /// Starts everything and waits until the sidecar is ready.
    pub async fn start(settings: &Settings) -> Result<Self> {
        let layout = Layout::write()?;
        let agent = layout.agent(settings)?;
        let mut shim = layout.shim(settings)?;
        let socket = layout.socket();
        shim.until("open its socket", START, || accepts(&socket)).await?;
        let mut sidecar = layout.sidecar(settings)?;
        sidecar.until("get ready", START, || healthy("/readyz")).await?;
        let token = std::fs::read_to_string(layout.below(AGENT_DIR).join(TOKEN_FILE)).context("the local token")?;
        let tool = Endpoint {
            address: (Ipv4Addr::LOCALHOST, LOCAL_PORT).into(),
            path: format!("/t/{}/mcp/{TOOL}", token.trim()),
        };
        Ok(Self { sidecar, shim, agent, tool, _root: layout.root })
    }

    /// Ends everything; says when a part took force.
    pub async fn stop(self) -> Result<Vec<&'static str>> {
        let mut forced = Vec::new();
        for (name, process) in [("sidecar", self.sidecar), ("shim", self.shim), ("agent", self.agent)] {
            if process.stop().await? {
                forced.push(name);
            }
        }
        Ok(forced)
    }
}
