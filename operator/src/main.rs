//! The operator's program: wiring only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use outrigger_operator::check;
use outrigger_operator::client::{Watches, connect};
use outrigger_operator::control_api;
use outrigger_operator::control_api::keeper::{Place, Plane};
use outrigger_operator::election::Elector;
use outrigger_operator::http::{self, Health};
use outrigger_operator::issuer::{self, Issuers};
use outrigger_operator::metrics::Metrics;
use outrigger_operator::report::Reporter;
use outrigger_operator::run::{self, Run};
use outrigger_operator::scopes::Scopes;
use outrigger_operator::settings::{self, Settings};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A new leader waits so long for the authority of the control API before it goes on without.
const AUTHORITY_WAIT: Duration = Duration::from_secs(15);

/// Reconciles Agent, MCPServer and Skill.
#[derive(Parser)]
#[command(name = "outrigger-operator", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Program {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    arguments: Option<Arguments>,
}

#[derive(Subcommand)]
enum Command {
    /// Checks an installation with the operator's own rights; ends with one line per fault.
    Check {
        /// Address of the operator's health, such as `http://outrigger-operator.outrigger-system.svc:19465`.
        #[arg(long)]
        url: String,
        /// Namespaces that the operator watches, with commas between them; none means all.
        #[arg(long, default_value = "")]
        watch_namespaces: String,
    },
}

#[derive(Args)]
struct Arguments {
    /// Image of sidecar and shim.
    #[arg(long, env = "OUTRIGGER_SIDECAR_IMAGE")]
    sidecar_image: String,
    /// Namespace of the operator: its Lease is there.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Name of this replica.
    #[arg(long, env = "POD_NAME", default_value = "outrigger-operator")]
    pod_name: String,
    /// Namespaces to watch, with commas between them; none means all.
    #[arg(long, env = "OUTRIGGER_WATCH_NAMESPACES", default_value = "")]
    watch_namespaces: String,
    /// DNS domain of the cluster.
    #[arg(long, env = "OUTRIGGER_CLUSTER_DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// Names of pull secrets for the sidecar's image, with commas between them.
    #[arg(long, env = "OUTRIGGER_IMAGE_PULL_SECRETS", default_value = "")]
    image_pull_secrets: String,
    /// Requests and limits of the sidecar, as JSON.
    #[arg(long, env = "OUTRIGGER_SIDECAR_RESOURCES", value_parser = resources)]
    sidecar_resources: Option<Value>,
    /// Requests and limits of the init container that brings the shim, as JSON.
    #[arg(long, env = "OUTRIGGER_INSTALL_RESOURCES", value_parser = resources)]
    install_resources: Option<Value>,
    /// Requests and limits of tools that give none, as JSON.
    #[arg(long, env = "OUTRIGGER_TOOL_RESOURCES", value_parser = resources)]
    tool_resources: Option<Value>,
    /// Image for packages of the npm registry.
    #[arg(long, env = "OUTRIGGER_NPM_RUNNER", default_value = "")]
    npm_runner: String,
    /// Image for packages of the Python Package Index.
    #[arg(long, env = "OUTRIGGER_PYPI_RUNNER", default_value = "")]
    pypi_runner: String,
    /// Address of metrics and health.
    #[arg(long, env = "OUTRIGGER_METRICS_ADDRESS", default_value = "[::]:19465")]
    metrics_address: SocketAddr,
    /// Address of the control API.
    #[arg(long, env = "OUTRIGGER_CONTROL_ADDRESS", default_value = "[::]:8443")]
    control_address: SocketAddr,
    /// Name of the Service, in the operator's namespace, by which sidecars reach the control API at port 8443.
    #[arg(long, env = "OUTRIGGER_CONTROL_SERVICE", default_value = "outrigger-operator")]
    control_service: String,
    /// Name of the Lease.
    #[arg(long, env = "OUTRIGGER_LEASE_NAME", default_value = "outrigger-operator")]
    lease_name: String,
    /// Reconciliations of one kind at once.
    #[arg(long, env = "OUTRIGGER_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    concurrency: u16,
}

fn resources(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("want an object with requests and limits".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(Into::into).collect()
}

impl Arguments {
    fn settings(&self) -> Settings {
        Settings {
            sidecar_image: self.sidecar_image.clone(),
            cluster_domain: self.cluster_domain.clone(),
            image_pull_secrets: names(&self.image_pull_secrets),
            sidecar_resources: self.sidecar_resources.clone().unwrap_or_else(settings::default_sidecar_resources),
            install_resources: self.install_resources.clone().unwrap_or_else(settings::default_install_resources),
            tool_resources: self.tool_resources.clone().unwrap_or_else(settings::default_tool_resources),
            npm_runner: self.npm_runner.clone(),
            pypi_runner: self.pypi_runner.clone(),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The only error is that there is one already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let program = Program::parse();
    if let Some(Command::Check { url, watch_namespaces }) = program.command {
        let client = kube::Client::try_default().await.context("no way to the API server")?;
        let faults = check::check(&client, &names(&watch_namespaces), &url).await;
        anyhow::ensure!(faults.is_empty(), "{}", faults.join("\n"));
        eprintln!("the kinds are served, they may be listed, the operator is ready");
        return Ok(());
    }
    let arguments = program.arguments.context("no arguments")?;
    operate(arguments).await
}

async fn operate(arguments: Arguments) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();

    let (metrics, watches) = (Metrics::new()?, Watches::default());
    let health = Health::new(metrics.clone(), watches.clone());
    let shutdown = CancellationToken::new();
    tokio::spawn(signals(shutdown.clone()));
    let listener = http::bind(arguments.metrics_address).await.context("metrics address")?;
    let server = tokio::spawn(http::serve(listener, health.clone(), shutdown.clone()));

    let config = kube::Config::infer().await.context("no way to the API server")?;
    let client = connect(config, &metrics, &watches)?;
    let namespaces = names(&arguments.watch_namespaces);
    let (leading, plane) = (watch::Sender::new(false), Plane::default());
    let control = control_api::Parts {
        client: client.clone(),
        place: Place {
            namespace: arguments.namespace.clone(),
            service: arguments.control_service.clone(),
            domain: arguments.cluster_domain.clone(),
            port: outrigger_protocol::control::PORT,
        },
        listener: http::bind(arguments.control_address).await.context("control address")?,
        namespaces: namespaces.clone(),
        leading: leading.subscribe(),
        plane: plane.clone(),
        metrics: metrics.clone(),
        health: health.clone(),
    };
    let control = tokio::spawn(control_api::run(control, shutdown.clone()));
    // Names of pods come again; two processes never have one identity.
    let me = format!("{}_{:08x}", arguments.pod_name, rand::random::<u32>());
    let mut elector = Elector::new(client.clone(), &arguments.namespace, &arguments.lease_name, &me);
    let mut lost = false;
    if run::definitions(&client, &namespaces, &health, &shutdown).await && elector.win(&shutdown).await {
        metrics.leader.set(1);
        leading.send_replace(true);
        let stop = shutdown.child_token();
        // Documents without it would be written twice.
        if !plane.known_within(AUTHORITY_WAIT).await {
            tracing::warn!("the control API has no authority yet: pods are told of it later");
        }
        let (reporter, publisher) = Reporter::new(client.clone(), me, metrics.clone(), stop.clone());
        let (scopes, issuers) = (Scopes::default(), Issuers::default());
        let issuer = issuer::follow(client.clone(), issuers.clone(), scopes.clone(), metrics.clone(), stop.clone());
        let run = Run {
            client,
            settings: Arc::new(arguments.settings()),
            metrics: metrics.clone(),
            reporter,
            health: health.clone(),
            scopes,
            issuers,
            control: plane.clone(),
            concurrency: arguments.concurrency,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(publisher);
        tasks.spawn(issuer);
        tasks.spawn(control_api::tell(plane, run.scopes.clone(), stop.clone()));
        let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.into_iter().map(Some).collect() };
        for namespace in scopes {
            tasks.spawn(run::scope(run.clone(), namespace, stop.clone()));
        }
        tokio::select! {
            () = elector.keep(&shutdown) => {}
            // Only shutdown ends a task; anything else is a fault, and another replica takes over.
            _ = tasks.join_next() => {}
        }
        lost = !shutdown.is_cancelled();
        stop.cancel();
        metrics.leader.set(0);
        leading.send_replace(false);
        // What is at work now still belongs to this leader.
        let _ =
            tokio::time::timeout(Duration::from_secs(5), async { while tasks.join_next().await.is_some() {} }).await;
        tasks.shutdown().await;
        elector.release().await;
    }
    shutdown.cancel();
    server.await??;
    control.await??;
    anyhow::ensure!(!lost, "the lease is lost");
    Ok(())
}

async fn signals(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    shutdown.cancel();
}
