//! What `SendMessage` costs the server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{forced, load};
use crate::a2a::{Answer, Sender};
use crate::load::{Run, Summary, noise};
use crate::peers;
use crate::procfs;
use crate::report::{Goal, Section, Table, mb, ms, whole};
use crate::settings::Settings;
use crate::sidecar::{A2A, Pod};

/// Keep-alive clients.
const CLIENTS: usize = 16;
/// Time of the processor that a request may take.
const WANTED_CPU: Duration = Duration::from_micros(50);
/// The answers, with their names in the table.
const ANSWERS: [(Answer, &str); 2] = [(Answer::Task, "task with an artifact"), (Answer::Message, "message")];

struct System {
    name: &'static str,
    address: SocketAddr,
    pid: u32,
    runs: [Vec<Run>; ANSWERS.len()],
}

impl System {
    async fn run(&mut self, settings: &Settings, index: usize) -> Result<()> {
        let (address, pid, answer) = (self.address, self.pid, ANSWERS[index].0);
        let open = move || Ok((0..CLIENTS).map(|i| Sender::new(address, i, answer)).collect());
        let (run, _) = load(open, settings.phases(), move |_: &[Sender]| pid).await?;
        self.runs[index].push(run);
        Ok(())
    }
}

/// Runs both servers in turn.
pub async fn section(settings: &Settings) -> Result<Section> {
    let pod = Pod::start(settings).await?;
    let ours = System { name: "outrigger", address: A2A, pid: pod.sidecar.id(), runs: Default::default() };
    let mut systems = vec![ours];
    let mut peer = None;
    if !settings.alone {
        let (process, address) = peers::a2a_sdk(settings).await?;
        systems.push(System { name: "a2a-sdk", address, pid: process.id(), runs: Default::default() });
        peer = Some(process);
    }
    for round in 0..settings.rounds {
        for (index, (_, answer)) in ANSWERS.iter().enumerate() {
            for system in &mut systems {
                system
                    .run(settings, index)
                    .await
                    .with_context(|| format!("{}, {answer}, round {}", system.name, round + 1))?;
            }
        }
    }
    let memory = systems.iter().map(|s| procfs::memory(s.pid)).collect::<Result<Vec<_>>>()?;
    let mut table = Table::new(&[
        "server",
        "answer",
        "CPU ms/request",
        "requests/s",
        "slowest to fastest run",
        "p50 ms",
        "p99 ms",
        "RSS MB at the end",
    ]);
    let mut goals = Vec::new();
    for (index, (answer, name)) in ANSWERS.into_iter().enumerate() {
        for (system, memory) in systems.iter().zip(&memory) {
            let summary = Summary::of(&system.runs[index])?;
            table.row([
                system.name.to_owned(),
                name.to_owned(),
                ms(summary.cpu),
                whole(summary.rate),
                format!("{} to {}", whole(summary.range.0), whole(summary.range.1)),
                ms(summary.p50),
                ms(summary.p99),
                mb(memory.resident),
            ]);
            if (system.name, answer) == ("outrigger", Answer::Task) {
                goals.push(Goal {
                    what: format!("A2A: CPU of a SendMessage, {CLIENTS} clients"),
                    measured: format!("{} ms", ms(summary.cpu)),
                    wanted: format!("≤ {} ms", ms(WANTED_CPU)),
                    met: summary.cpu <= WANTED_CPU,
                });
            }
        }
    }
    let mut killed = pod.stop().await?;
    if let Some(peer) = peer
        && peer.stop().await?
    {
        killed.push("a2a-sdk");
    }
    let notes = [
        "CPU is user and system time of the server's process. outrigger calls an agent in another process, which is not \
         counted; a2a-sdk has its agent inside, which does nothing but answer. Both keep tasks in memory: outrigger the \
         newest 10 000, a2a-sdk all."
            .to_owned(),
    ];
    let noise = noise(systems.iter().flat_map(|s| s.runs.iter().flatten()));
    let notes = notes.into_iter().chain(noise).chain(forced(&killed)).collect();
    Ok(Section { title: "A2A: SendMessage over JSON-RPC", table, notes, goals })
}
