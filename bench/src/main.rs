//! `make bench`: the sidecar against its peers, on one machine, in one run.
//!
//! Goals stand beside the numbers and are `met` or `missed`; only what breaks is an error.

mod a2a;
mod http;
mod load;
mod mcp;
mod peers;
mod postgres;
mod process;
mod procfs;
mod report;
mod sections;
mod settings;
mod sidecar;
mod space;
mod sse;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser as _;
use outrigger_protocol::config::{A2A_PORT, ADMIN_PORT, LOCAL_PORT};
use tokio::signal::unix::{SignalKind, signal};

use crate::report::Section;
use crate::settings::Settings;

/// The whole benchmark has this long, and each measured second of its loads a share of it.
const LIMIT: Duration = Duration::from_mins(20);
const LIMIT_PER_SECOND: u32 = 40;
/// Threads that still wait for a server which is gone have this long.
const LAST: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let settings = Settings::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("cannot start the runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(bounded(&settings));
    runtime.shutdown_timeout(LAST);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("the benchmark broke: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends early on a signal or when time is up; what was started ends with the future that holds it.
async fn bounded(settings: &Settings) -> Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let limit = LIMIT + Duration::from_secs(settings.seconds) * settings.rounds * LIMIT_PER_SECOND;
    tokio::select! {
        result = tokio::time::timeout(limit, bench(settings)) => {
            result.unwrap_or_else(|_| bail!("not done within {} s", limit.as_secs()))
        }
        _ = term.recv() => bail!("asked to end"),
        _ = int.recv() => bail!("interrupted"),
    }
}

async fn bench(settings: &Settings) -> Result<()> {
    for port in [A2A_PORT, LOCAL_PORT, ADMIN_PORT] {
        let free = std::net::TcpListener::bind(("0.0.0.0", port)).is_ok();
        ensure!(free, "port {port} is taken: another sidecar runs on this machine");
    }
    let load_before = procfs::load_average()?;
    let (mut sections, mut broken) = (Vec::<Section>::new(), Vec::new());
    for name in &settings.sections {
        eprintln!("bench: {name}");
        let section = match &**name {
            "mcp" => sections::mcp::section(settings).await,
            "a2a" => sections::a2a::section(settings).await,
            "streams" => sections::streams::section(settings).await,
            "events" => sections::events::section(settings).await,
            "latency" => sections::latency::section(settings).await,
            "kills" => sections::kills::section(settings).await,
            "memory" => sections::memory::section(settings).await,
            "start" => sections::start::section(settings).await,
            "big" => sections::big::section(settings).await,
            other => bail!("there is no section {other:?}"),
        };
        match section {
            Ok(section) => sections.push(section),
            Err(e) => {
                eprintln!("bench: {name} broke: {e:#}");
                broken.push(&**name);
            }
        }
    }
    let machine = format!(
        "{} cores of {}. Load average {load_before:.1} before and {:.1} after, of which the benchmark itself makes some; \
         medians of {} runs of {} s; clients and servers share the cores.",
        std::thread::available_parallelism()?,
        procfs::processor(),
        procfs::load_average()?,
        settings.rounds,
        settings.seconds,
    );
    let text = report::markdown(&machine, &sections);
    std::io::stdout().write_all(text.as_bytes())?;
    std::fs::write(&settings.output, text).with_context(|| format!("writing {}", settings.output.display()))?;
    ensure!(broken.is_empty(), "broken: {}", broken.join(", "));
    Ok(())
}
