//! A sidecar outside a pod, with an agent and a shim, as they would stand in one.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use outrigger_protocol::config::{
    A2A_PORT, ADMIN_PORT, AGENT_DIR, AgentRef, BOOT_FILE, Boot, CONFIG_VERSION, Drain, Era, LIVE_FILE, LOCAL_PORT,
    Limits, Live, Process as Bounds, Reach, Recovery, Runtime, SHIM_SOCKET, Server, Store, TOKEN_FILE, TOOLS_DIR,
};
use serde_json::json;
use tempfile::TempDir;

use crate::http::Connection;
use crate::mcp::Endpoint;
use crate::peers::free_port;
use crate::process::Process;
use crate::settings::Settings;
use crate::space::{Place, Space};

/// Name of the tool server.
const TOOL: &str = "echo";
/// Children of the tool at once; health checks of the sidecar need some besides the sessions.
pub const MOST_SESSIONS: u32 = 64;
const MOST_PROCESSES: u32 = MOST_SESSIONS + 4;
/// Until everything is ready.
const START: Duration = Duration::from_secs(30);

/// Environment variable with the URL of the task store's database.
const STORE_URL: &str = "BENCH_STORE_URL";
/// File of the SQLite store.
const DATABASE: &str = "data/tasks.db";

/// Where a pod keeps its tasks.
#[derive(Clone, Debug, Default)]
pub enum Keep {
    /// In memory.
    #[default]
    Memory,
    /// In a file of its own.
    Sqlite,
    /// In a database, with the pods that have the same schema.
    Postgres {
        /// URL of the database.
        url: String,
        /// The schema.
        schema: String,
    },
}

/// What pods differ in.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its name: that of its logs, and its UID, which tells pods with one database apart.
    pub name: String,
    /// Its tasks.
    pub keep: Keep,
    /// Its network.
    pub space: Space,
    /// Bounds.
    pub limits: Limits,
    /// What becomes of a turn when the sidecar crashed.
    pub recovery: Recovery,
    /// Whether it has no tool.
    pub bare: bool,
}

/// The parts of one pod.
pub struct Pod {
    /// The sidecar.
    pub sidecar: Process,
    /// The shim with the echo server.
    pub shim: Option<Process>,
    /// The agent.
    pub agent: Process,
    /// Where the tool is served.
    pub tool: Endpoint,
    layout: Layout,
}

/// Where A2A is served.
pub const A2A: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), A2A_PORT);

/// Files of a pod in a folder.
pub struct Layout {
    root: TempDir,
    agent_port: u16,
    options: Options,
}

impl Layout {
    /// Writes both configuration documents.
    pub fn write(options: Options) -> Result<Self> {
        let agent_port = options.space.inside(free_port)?;
        // A socket's path has room for about a hundred bytes, so not below the cache.
        let layout = Self { root: tempfile::tempdir()?, agent_port, options };
        let options = &layout.options;
        let process = Bounds { max_processes: MOST_PROCESSES, ..Bounds::default() };
        let boot = Boot {
            version: CONFIG_VERSION,
            agent: AgentRef { name: "bench".into(), namespace: "default".into() },
            runtime: Runtime::Http { port: layout.agent_port, path: "/".into(), ready_path: None },
            containers: vec!["agent".into(), format!("tool-{TOOL}")],
            servers: (!options.bare)
                .then(|| Server {
                    name: TOOL.into(),
                    reach: Reach::Stdio {
                        container: format!("tool-{TOOL}"),
                        socket: layout.socket().to_string_lossy().into_owned(),
                    },
                    required: true,
                    process,
                    era: Era::Auto,
                })
                .into_iter()
                .collect(),
            skills: Vec::new(),
            store: layout.store(),
            drain: Drain { token: "benchmark-benchmark".into(), grace_seconds: 10 },
        };
        let card = json!({
            "name": "bench", "description": "Sells burgers", "version": "1.0.0", "capabilities": {},
            "supportedInterfaces": [{"url": format!("http://{A2A}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "sell", "name": "Sell", "description": "Sells a burger", "tags": ["food"]}],
        });
        let mut live = Live::new(card);
        live.offer.streaming = true;
        live.limits = options.limits.clone();
        live.turns.recovery = options.recovery;
        for (file, text) in [(BOOT_FILE, serde_json::to_vec(&boot)?), (LIVE_FILE, serde_json::to_vec(&live)?)] {
            let path = layout.below(file);
            std::fs::create_dir_all(path.parent().context("a file at the root")?)?;
            std::fs::write(path, text)?;
        }
        for folder in [AGENT_DIR.into(), format!("{TOOLS_DIR}/{TOOL}"), "/skills".into(), "/data".into()] {
            std::fs::create_dir_all(layout.below(&folder))?;
        }
        Ok(layout)
    }

    fn store(&self) -> Store {
        match &self.options.keep {
            Keep::Memory => Store::Memory,
            Keep::Sqlite => Store::Sqlite { path: self.below(DATABASE).to_string_lossy().into_owned(), durable: true },
            Keep::Postgres { schema, .. } => {
                Store::Postgres { url_env: STORE_URL.into(), schema: schema.clone(), ca_file: None }
            }
        }
    }

    /// Name of the log of a part.
    fn log(&self, part: &str) -> String {
        if self.options.name.is_empty() { part.to_owned() } else { format!("{part}-{}", self.options.name) }
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
            &self.log("shim"),
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
        let mut command = Command::new(settings.program("outrigger"));
        command.arg("run").arg("--root").arg(self.root.path());
        if !self.options.name.is_empty() {
            command.env("POD_UID", &self.options.name);
        }
        if let Keep::Postgres { url, .. } = &self.options.keep {
            command.env(STORE_URL, url);
        }
        self.options.space.inside(|| Process::start(&self.log("sidecar"), &settings.logs, &mut command))
    }

    fn agent(&self, settings: &Settings) -> Result<Process> {
        let mut command = Command::new(settings.program("bench-agent"));
        command.arg(self.agent_port.to_string());
        self.options.space.inside(|| Process::start(&self.log("agent"), &settings.logs, &mut command))
    }

    async fn ready_sidecar(&self, settings: &Settings) -> Result<Process> {
        let mut sidecar = self.sidecar(settings)?;
        let space = self.options.space.clone();
        sidecar.until("get ready", START, || healthy(&space, "/readyz")).await?;
        Ok(sidecar)
    }
}

/// Whether the socket accepts.
pub fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Whether a path of the admin port answers 200.
pub fn healthy(space: &Space, path: &str) -> bool {
    let mut body = Vec::new();
    let place = Place { address: (Ipv4Addr::LOCALHOST, ADMIN_PORT).into(), space: space.clone() };
    let head = Connection::new(place).request("GET", path, "", b"", &mut body);
    head.is_ok_and(|h| h.status == 200)
}

impl Pod {
    /// Starts everything and waits until the sidecar is ready.
    pub async fn start(settings: &Settings) -> Result<Self> {
        Self::with(settings, Options::default()).await
    }

    /// The same with options.
    pub async fn with(settings: &Settings, options: Options) -> Result<Self> {
        let layout = Layout::write(options)?;
        let agent = layout.agent(settings)?;
        let mut shim = None;
        if !layout.options.bare {
            let mut started = layout.shim(settings)?;
            let socket = layout.socket();
            started.until("open its socket", START, || accepts(&socket)).await?;
            shim = Some(started);
        }
        let sidecar = layout.ready_sidecar(settings).await?;
        let token = std::fs::read_to_string(layout.below(AGENT_DIR).join(TOKEN_FILE)).context("the local token")?;
        let tool = Endpoint {
            address: (Ipv4Addr::LOCALHOST, LOCAL_PORT).into(),
            path: format!("/t/{}/mcp/{TOOL}", token.trim()),
        };
        Ok(Self { sidecar, shim, agent, tool, layout })
    }

    /// Where A2A is served.
    pub fn a2a(&self) -> Place {
        Place { address: A2A, space: self.layout.options.space.clone() }
    }

    /// Where the agent itself is.
    pub fn handler(&self) -> Place {
        Place {
            address: (Ipv4Addr::LOCALHOST, self.layout.agent_port).into(),
            space: self.layout.options.space.clone(),
        }
    }

    /// The same pod with a new sidecar, when the old one is gone.
    pub async fn restart(&mut self, settings: &Settings) -> Result<()> {
        self.sidecar = self.layout.ready_sidecar(settings).await?;
        Ok(())
    }

    /// Ends everything; says when a part took force.
    pub async fn stop(self) -> Result<Vec<&'static str>> {
        let mut forced = Vec::new();
        let parts = [("sidecar", Some(self.sidecar)), ("shim", self.shim), ("agent", Some(self.agent))];
        for (name, process) in parts {
            if let Some(process) = process
                && process.stop().await?
            {
                forced.push(name);
            }
        }
        Ok(forced)
    }
}
