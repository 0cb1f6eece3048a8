//! What `SendMessage` costs the server.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{forced, load};
use crate::a2a::{Answer, Sender};
use crate::load::{Run, Summary, noise};
use crate::peers;
use crate::postgres;
use crate::process::Process;
use crate::procfs;
use crate::report::{Goal, Section, Table, mb, ms, whole};
use crate::settings::Settings;
use crate::sidecar::{Keep, Options, Pod};
use crate::space::{Place, Space};

/// Keep-alive clients.
const CLIENTS: usize = 16;
/// Time of the processor that a request may take with tasks in memory, and in a file.
const WANTED_MEMORY: Duration = Duration::from_micros(50);
const WANTED_SQLITE: Duration = Duration::from_micros(100);
/// Times the processor's time that a2a-sdk's server takes.
const WANTED_RATIO: f64 = 40.0;
/// The answers, with their names in the table.
const ANSWERS: [(Answer, &str); 2] = [(Answer::Task, "task with an artifact"), (Answer::Message, "message")];
/// Names of the systems.
const MEMORY: &str = "outrigger, memory";
const SQLITE: &str = "outrigger, SQLite";
const POSTGRES: &str = "outrigger, PostgreSQL";
const SDK: &str = "a2a-sdk";
const CRATE: &str = "a2a-server-lf";

struct System {
    name: &'static str,
    place: Place,
    pid: u32,
    runs: [Vec<Run>; ANSWERS.len()],
    part: Part,
}

enum Part {
    Pod(Box<Pod>),
    Peer(Process),
}

impl System {
    async fn pod(settings: &Settings, name: &'static str, keep: Keep) -> Result<Self> {
        let log = name.rsplit(' ').next().unwrap_or_default().to_lowercase();
        let space = if Space::possible() { Space::new()? } else { Space::default() };
        let pod = Pod::with(settings, Options { name: log, keep, space, ..Options::default() }).await?;
        let (place, pid) = (pod.a2a(), pod.sidecar.id());
        Ok(Self { name, place, pid, runs: Default::default(), part: Part::Pod(Box::new(pod)) })
    }

    fn peer(name: &'static str, (process, address): (Process, std::net::SocketAddr)) -> Self {
        let pid = process.id();
        Self { name, place: address.into(), pid, runs: Default::default(), part: Part::Peer(process) }
    }

    async fn run(&mut self, settings: &Settings, index: usize) -> Result<()> {
        let (place, pid, answer) = (self.place.clone(), self.pid, ANSWERS[index].0);
        let open = move || Ok((0..CLIENTS).map(|i| Sender::new(place.clone(), i, answer)).collect());
        let (run, _) = load(open, settings.phases(), move |_: &[Sender]| pid).await?;
        self.runs[index].push(run);
        Ok(())
    }

    async fn stop(self) -> Result<Vec<&'static str>> {
        match self.part {
            Part::Pod(pod) => pod.stop().await,
            Part::Peer(process) => Ok(if process.stop().await? { vec![self.name] } else { Vec::new() }),
        }
    }
}

/// Runs all servers in turn.
pub async fn section(settings: &Settings) -> Result<Section> {
    let mut notes = vec![format!(
        "CPU is user and system time of the server's process, {CLIENTS} clients. outrigger calls an agent in another process, \
         which is not counted, nor is the database's server; {SDK} (uvloop, httptools) and {CRATE} have their agent inside, \
         which does nothing but answer. outrigger keeps the newest 10 000 tasks, the peers keep all, in memory."
    )];
    let (mut systems, mut database) = (Vec::new(), None);
    for store in &settings.stores {
        let (name, keep) = match &**store {
            "memory" => (MEMORY, Keep::Memory),
            "sqlite" => (SQLITE, Keep::Sqlite),
            "postgres" => (POSTGRES, Keep::Postgres { url: String::new(), schema: "bench".into() }),
            other => bail!("there is no task store {other:?}"),
        };
        if !systems.is_empty() && !Space::possible() {
            notes.push(format!("{name} is left out: without network namespaces only one sidecar runs at a time."));
            continue;
        }
        let keep = match keep {
            Keep::Postgres { schema, .. } => {
                if let Some(why) = postgres::missing() {
                    notes.push(format!("{name} is left out: {why}."));
                    continue;
                }
                let server = postgres::Server::start(settings).await?;
                let url = server.url();
                database = Some(server);
                Keep::Postgres { url, schema }
            }
            keep => keep,
        };
        systems.push(System::pod(settings, name, keep).await?);
    }
    if !settings.alone {
        systems.push(System::peer(SDK, peers::a2a_sdk(settings).await?));
        systems.push(System::peer(CRATE, peers::a2a_server(settings).await?));
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
    let (table, goals) = judge(&systems)?;
    notes.extend(noise(systems.iter().flat_map(|s| s.runs.iter().flatten())));
    let mut killed = Vec::new();
    for system in systems {
        killed.extend(system.stop().await?);
    }
    if let Some(database) = database {
        database.stop().await?;
    }
    notes.extend(forced(&killed));
    Ok(Section { title: "A2A: SendMessage over JSON-RPC", table, notes, goals })
}

fn judge(systems: &[System]) -> Result<(Table, Vec<Goal>)> {
    let mut table = Table::new(&[
        "server",
        "answer",
        "CPU ms/request",
        "least",
        "requests/s",
        "slowest to fastest run",
        "p50 ms",
        "p99 ms",
        "RSS MB at the end",
    ]);
    let mut costs = Vec::new();
    for (index, (answer, title)) in ANSWERS.into_iter().enumerate() {
        for system in systems {
            let summary = Summary::of(&system.runs[index])?;
            table.row([
                system.name.to_owned(),
                title.to_owned(),
                ms(summary.cpu),
                ms(summary.least_cpu),
                whole(summary.rate),
                format!("{} to {}", whole(summary.range.0), whole(summary.range.1)),
                ms(summary.p50),
                ms(summary.p99),
                mb(procfs::memory(system.pid)?.resident),
            ]);
            if answer == Answer::Task {
                costs.push((system.name, summary.cpu));
            }
        }
    }
    let cost = |name: &str| costs.iter().find(|(n, _)| *n == name).map(|(_, cpu)| *cpu);
    let mut goals = Vec::new();
    for (name, wanted) in [(MEMORY, WANTED_MEMORY), (SQLITE, WANTED_SQLITE)] {
        if let Some(cpu) = cost(name) {
            goals.push(Goal {
                what: format!("A2A: CPU of a SendMessage, {CLIENTS} clients, {name}"),
                measured: format!("{} ms", ms(cpu)),
                wanted: format!("≤ {} ms", ms(wanted)),
                met: cpu <= wanted,
            });
        }
    }
    if let (Some(ours), Some(theirs)) = (cost(MEMORY), cost(SDK)) {
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        goals.push(Goal {
            what: format!("A2A: CPU of a SendMessage, {SDK} to {MEMORY}"),
            measured: format!("{ratio:.0}×"),
            wanted: format!("≥ {WANTED_RATIO:.0}×"),
            met: ratio >= WANTED_RATIO,
        });
    }
    Ok((table, goals))
}
