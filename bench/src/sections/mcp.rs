//! Calls of a tool through HTTP and a proxy to a child on stdio.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{forced, load};
use crate::load::{Run, Summary, noise};
use crate::mcp::{Endpoint, Pipe, Session};
use crate::procfs::{self, Memory};
use crate::report::{Goal, Section, Table, mb, ms, whole};
use crate::settings::Settings;
use crate::sidecar::Pod;

/// Numbers of clients, each with a session of its own.
const CLIENTS: [usize; 2] = [1, 8];
/// Times the calls per second of either peer at the most clients.
const WANTED_RATIO: f64 = 15.0;
/// Median latency that the way through the sidecar may add to the bare pipe's at one client.
const WANTED_ADDED: Duration = Duration::from_micros(100);

/// What is measured: where it is, and what was measured so far.
struct System {
    name: &'static str,
    /// None: the bare pipe.
    endpoint: Option<Endpoint>,
    pid: u32,
    runs: [Vec<Run>; CLIENTS.len()],
    memory: Memory,
}

impl System {
    fn new(name: &'static str, endpoint: Option<Endpoint>, pid: u32) -> Self {
        Self { name, endpoint, pid, runs: Default::default(), memory: Memory::default() }
    }

    async fn run(&mut self, settings: &Settings, index: usize) -> Result<()> {
        let (count, phases) = (CLIENTS[index], settings.phases());
        let run = if let Some(endpoint) = self.endpoint.clone() {
            let pid = self.pid;
            let open = move || (0..count).map(|_| Session::open(&endpoint)).collect::<Result<Vec<_>>>();
            let (run, sessions) = load(open, phases, move |_| pid).await?;
            let memory = procfs::memory(pid)?;
            self.memory = if memory.resident > self.memory.resident { memory } else { self.memory };
            tokio::task::spawn_blocking(|| sessions.into_iter().try_for_each(Session::close)).await??;
            run
        } else {
            let program = settings.program("bench-echo");
            let open = move || (0..count).map(|_| Pipe::open(&program)).collect::<Result<Vec<_>>>();
            load(open, phases, |pipes: &[Pipe]| pipes.first().map_or(0, Pipe::id)).await?.0
        };
        self.runs[index].push(run);
        Ok(())
    }
}

/// Runs all systems in turn, so that a busy moment of the machine meets them alike.
pub async fn section(settings: &Settings) -> Result<Section> {
    let pod = Pod::start(settings).await?;
    let mut systems =
        vec![System::new("bare pipe", None, 0), System::new("outrigger", Some(pod.tool.clone()), pod.sidecar.id())];
    let mut peers = Vec::new();
    for proxy in settings.proxies() {
        let (process, endpoint) = proxy.start(settings).await?;
        systems.push(System::new(proxy.name(), Some(endpoint), process.id()));
        peers.push((proxy.name(), process));
    }
    for round in 0..settings.rounds {
        for (index, clients) in CLIENTS.iter().enumerate() {
            for system in &mut systems {
                system
                    .run(settings, index)
                    .await
                    .with_context(|| format!("{} with {clients} clients, round {}", system.name, round + 1))?;
            }
        }
    }
    let shim = procfs::memory(pod.shim.as_ref().context("no shim")?.id())?;
    let mut killed = pod.stop().await?;
    for (name, process) in peers {
        if process.stop().await? {
            killed.push(name);
        }
    }
    let mut section = report(&systems)?;
    section.notes.push(format!(
        "RSS is the proxy's own, children excluded; outrigger's shim has {} MB more in the tool's container. \
         CPU is user and system time of the proxy alone. The bare pipe is the floor: the same client code and the \
         same child, a process for each client.",
        mb(shim.resident)
    ));
    section.notes.extend(noise(systems.iter().flat_map(|s| s.runs.iter().flatten())));
    section.notes.extend(forced(&killed));
    Ok(section)
}

fn report(systems: &[System]) -> Result<Section> {
    let mut table = Table::new(&[
        "path",
        "clients",
        "calls/s",
        "slowest to fastest run",
        "p50 ms",
        "p99 ms",
        "CPU ms/call",
        "RSS MB",
        "outrigger is",
    ]);
    let mut goals = Vec::new();
    for (index, clients) in CLIENTS.iter().enumerate() {
        let summaries: Vec<(&System, Summary)> =
            systems.iter().map(|s| Ok((s, Summary::of(&s.runs[index])?))).collect::<Result<_>>()?;
        let [(_, pipe), (own, ours), peers @ ..] = &*summaries else { anyhow::bail!("no systems") };
        for (system, summary) in &summaries {
            let ratio = ours.rate / summary.rate;
            let peer = system.endpoint.is_some();
            table.row([
                system.name.to_owned(),
                clients.to_string(),
                whole(summary.rate),
                format!("{} to {}", whole(summary.range.0), whole(summary.range.1)),
                ms(summary.p50),
                ms(summary.p99),
                if peer { ms(summary.cpu) } else { "-".to_owned() },
                if peer { mb(system.memory.resident) } else { "-".to_owned() },
                if peer && system.name != own.name { format!("{ratio:.1}×") } else { "-".to_owned() },
            ]);
        }
        if index == 0 {
            let added = ours.p50.saturating_sub(pipe.p50);
            goals.push(Goal {
                what: "MCP: p50 added over the bare pipe, 1 client".into(),
                measured: format!("{} ms", ms(added)),
                wanted: format!("≤ {} ms", ms(WANTED_ADDED)),
                met: added <= WANTED_ADDED,
            });
        } else {
            goals.extend(peers.iter().map(|(peer, summary)| Goal {
                what: format!("MCP: calls/s over {}, {clients} clients", peer.name),
                measured: format!("{:.1}×", ours.rate / summary.rate),
                wanted: format!("≥ {WANTED_RATIO:.0}×"),
                met: ours.rate / summary.rate >= WANTED_RATIO,
            }));
        }
    }
    Ok(Section {
        title: "MCP: tools/call through HTTP and a proxy to a child on stdio",
        table,
        notes: Vec::new(),
        goals,
    })
}
