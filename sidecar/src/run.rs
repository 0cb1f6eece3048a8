//! The sidecar's life: read, start the parts, serve, drain, end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::config::{
    A2A_PORT, ADMIN_PORT, AGENT_DIR, BOOT_FILE, IDENTITY_FILE, LIVE_FILE, LOCAL_PORT, LocalUrls, Runtime,
    SKILL_SOURCES, SKILLS_DIR,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{LiveConfig, StartError};
use crate::context::Context;
use crate::control::{Control, Pauses};
use crate::drain::Drain;
use crate::health::Health;
use crate::mcp::builtin::BuiltIn;
use crate::metrics::Metrics;
use crate::outbound::resolve;
use crate::serve::{GRACEFUL, Listener, bind_any, serve};
use crate::skills::Skills;
use crate::skills::serve::{self as disclose, Disclosure};
use crate::{a2a, admin, config, local_api, mcp, mesh, skills, tools};

/// Connections at once on the A2A port: ten thousand of them may be streams that are quiet.
pub const MAX_A2A_CONNECTIONS: usize = 16_384;
/// Connections at once on the local API.
pub const MAX_LOCAL_CONNECTIONS: usize = 2048;
/// Connections at once on the admin port.
pub const MAX_ADMIN_CONNECTIONS: usize = 256;
/// After TERM work in flight has this long at most: the containers it needs have ended before.
pub const LAST_WORK: Duration = Duration::from_secs(10);

/// Folders and files, as they are in a pod.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Boot document.
    pub boot: PathBuf,
    /// Live document.
    pub live: PathBuf,
    /// Sources of the skills.
    pub skill_sources: PathBuf,
    /// Materialised skills.
    pub skills: PathBuf,
    /// Token and URLs for the agent.
    pub agent: PathBuf,
    /// Token of the pod's ServiceAccount.
    pub identity: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            boot: BOOT_FILE.into(),
            live: LIVE_FILE.into(),
            skill_sources: SKILL_SOURCES.into(),
            skills: SKILLS_DIR.into(),
            agent: AGENT_DIR.into(),
            identity: IDENTITY_FILE.into(),
        }
    }
}

impl Paths {
    /// The same layout below another folder, to run a sidecar outside a pod.
    pub fn under(root: &Path) -> Self {
        let below = |path: PathBuf| root.join(path.strip_prefix("/").unwrap_or(&path));
        let Self { boot, live, skill_sources, skills, agent, identity } = Self::default();
        Self {
            boot: below(boot),
            live: below(live),
            skill_sources: below(skill_sources),
            skills: below(skills),
            agent: below(agent),
            identity: below(identity),
        }
    }
}

/// Why the sidecar ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used: exit code 64.
    #[error(transparent)]
    Configuration(#[from] StartError),
    /// A file that the sidecar writes cannot be written.
    #[error("cannot write {path}: {source}")]
    Unwritable {
        /// Folder of the file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A port cannot be bound.
    #[error("cannot listen on port {port}: {source}")]
    PortTaken {
        /// The port.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// A part did not start.
    #[error("{0}")]
    Part(String),
}

async fn listen(name: &'static str, port: u16, max_connections: usize) -> Result<Listener, RunError> {
    let bound = if port == LOCAL_PORT { TcpListener::bind(("127.0.0.1", port)).await } else { bind_any(port).await };
    let socket = bound.map_err(|source| RunError::PortTaken { port, source })?;
    Ok(Listener { name, socket, max_connections })
}

/// Runs until TERM or INT.
pub async fn run(paths: &Paths) -> Result<(), RunError> {
    let mut term = signal(SignalKind::terminate()).map_err(|e| part(&e))?;
    let mut int = signal(SignalKind::interrupt()).map_err(|e| part(&e))?;
    let registry = prometheus::Registry::new();
    let metrics = Metrics::new(&registry).map_err(|e| part(&e))?;
    let boot = Arc::new(config::boot(&paths.boot)?);
    let has_agent = boot.runtime != Runtime::Tools {};
    let live = if has_agent { LiveConfig::start } else { LiveConfig::start_without_card };
    let live = live(&paths.live, metrics.clone())?;
    // Nobody in a pod without an agent calls the local API.
    let (token, urls) = if has_agent {
        // The path of the skills is there whenever the Agent has one; one that comes later needs no restart.
        let skilled = !boot.skills.is_empty() || !live.subscribe().borrow().skills.is_empty();
        let inner = skilled.then(|| disclose::NAME.to_owned());
        local_api::prepare(&paths.agent, boot.servers.iter().map(|s| s.name.clone()).chain(inner))
            .map_err(|source| RunError::Unwritable { path: paths.agent.clone(), source })?
    } else {
        ("".into(), LocalUrls::default())
    };
    let grace = Duration::from_secs(u64::from(boot.drain.grace_seconds));
    let context = Context {
        drain: Drain::new(&boot.containers, grace),
        live: live.subscribe(),
        urls: Arc::new(urls),
        token,
        registry,
        shutdown: CancellationToken::new(),
        boot,
    };
    let control = Control::new(
        context.live.clone(),
        paths.identity.clone(),
        Arc::new(resolve::System),
        Pauses::default(),
        &context.registry,
    )
    .map_err(|e| part(&e))?;
    let admin_listener = listen("admin", ADMIN_PORT, MAX_ADMIN_CONNECTIONS).await?;
    let public_listener = listen("a2a", A2A_PORT, MAX_A2A_CONNECTIONS).await?;

    let skill_metrics = skills::Metrics::register(&context.registry).map_err(|e| part(&e))?;
    let skills = Skills::start(
        Path::new(&paths.skill_sources),
        Path::new(&paths.skills),
        context.boot.skills.clone(),
        context.live.clone(),
        None,
        skill_metrics,
    );
    let disclosure = Disclosure::new(&skills, context.live.clone(), &context.boot.agent.namespace);
    // Without an agent there is nobody to disclose skills to.
    let built_in: &[(&str, Arc<dyn BuiltIn>)] =
        if has_agent { &[(disclose::NAME, Arc::clone(&disclosure) as _)] } else { &[] };
    let servers = mcp::Servers::start_beside(&context, &mcp::timing::Timing::default(), built_in);
    let tools: Arc<dyn disclose::Tools> = Arc::clone(&servers) as _;
    disclosure.know(Arc::downgrade(&tools));
    let tasks = TaskTracker::new();
    let stop = context.shutdown.clone();
    let service = if has_agent { Some(agent(&context, &skills, &servers, &metrics, &tasks).await?) } else { None };
    let health = Health::new(
        context.clone(),
        Arc::clone(&live),
        Arc::clone(&skills),
        Arc::clone(&servers),
        service.clone(),
        Arc::clone(&control),
        metrics.clone(),
    );
    tasks.spawn(Arc::clone(&live).follow(stop.clone()));
    tasks.spawn(control.follow(live, stop.clone()));
    tasks.spawn(skills.follow(stop.clone()));
    if let Some(service) = &service {
        tasks.spawn(serve(public_listener, service.served(), metrics.clone(), stop));
    } else {
        let public = tools::router(&context, servers.router()).map_err(|e| part(&e))?;
        tasks.spawn(serve(public_listener, public, metrics.clone(), stop));
    }
    // The admin port outlives the others: probes and drain hooks need it to the end.
    let admin_stop = CancellationToken::new();
    let admin_router = admin::router(context.clone(), health);
    let admin = tokio::spawn(serve(admin_listener, admin_router, metrics, admin_stop.clone()));
    tasks.close();
    tracing::info!(target: "business", agent = context.boot.agent.name, version = env!("CARGO_PKG_VERSION"), "sidecar runs");

    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    tracing::info!(target: "business", "asked to end");
    context.drain.start();
    if tokio::time::timeout(LAST_WORK.min(grace), context.drain.idle()).await.is_err() {
        tracing::warn!(target: "business", "work was in flight at the end");
    }
    context.shutdown.cancel();
    // Turns that were cut say so to callers that still wait.
    let _ = tokio::time::timeout(GRACEFUL, context.drain.idle()).await;
    if let Some(service) = service {
        service.release().await;
    }
    tasks.wait().await;
    admin_stop.cancel();
    let _ = admin.await;
    Ok(())
}

/// Starts what an agent needs: A2A to the outside, the local API for its container.
async fn agent(
    context: &Context,
    skills: &Arc<Skills>,
    servers: &Arc<mcp::Servers>,
    metrics: &Metrics,
    tasks: &TaskTracker,
) -> Result<Arc<a2a::Service>, RunError> {
    let local_listener = listen("local", LOCAL_PORT, MAX_LOCAL_CONNECTIONS).await?;
    let for_turns = {
        let skills = Arc::clone(skills);
        Arc::new(move || {
            skills
                .published()
                .into_iter()
                .map(|s| a2a::SkillRef { name: s.name, path: s.path.to_string_lossy().into_owned(), pin: Some(s.pin) })
                .collect::<Vec<_>>()
        })
    };
    let service = a2a::Service::start(context, for_turns).map_err(|e| part(&e))?;
    let peers = mesh::Peers::start(context).map_err(|e| part(&e))?;
    let local = servers.router().merge(service.local_router()).merge(peers.router());
    let local = local_api::TokenGate::router(Arc::clone(&context.token), local);
    let stop = context.shutdown.clone();
    tasks.spawn(Arc::clone(&service).prove(A2A_PORT, stop.clone()));
    tasks.spawn(serve(local_listener, local, metrics.clone(), stop));
    Ok(service)
}

fn part(error: &dyn std::fmt::Display) -> RunError {
    RunError::Part(error.to_string())
}
