//! A big answer of a tool.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::forced;
use crate::http::PATIENCE;
use crate::load::{Client as _, median};
use crate::mcp::{Endpoint, Pipe, Session};
use crate::procfs;
use crate::report::{Goal, Section, Table, mb, ms};
use crate::settings::Settings;
use crate::sidecar::Pod;

/// Bytes of text in the answer.
const BYTES: usize = 12 << 20;
/// Answers of the pipe and of the sidecar.
const CALLS: usize = 5;
/// Answers of a peer, which takes its time.
const PEER_CALLS: usize = 2;
/// Time for one.
const WANTED: Duration = Duration::from_millis(300);

/// What became of one system.
struct Outcome {
    times: Vec<Duration>,
    /// Why a call failed.
    error: Option<String>,
    /// Whether a new session gets an answer afterwards.
    alive: bool,
}

/// Asks each system for the answer.
pub async fn section(settings: &Settings) -> Result<Section> {
    let mut table =
        Table::new(&["path", "median ms", "slowest ms", "answers", "proxy's peak RSS MB", "a new session afterwards"]);
    let program = settings.program("bench-echo");
    let pipe = move || {
        let mut pipe = Pipe::open(&program)?;
        (0..CALLS).map(|_| timed(|| pipe.big(BYTES))).collect::<Result<Vec<_>>>()
    };
    let times = tokio::task::spawn_blocking(pipe).await??;
    let outcome = Outcome { times, error: None, alive: true };
    table.row(row("bare pipe", &outcome, "-".into()));

    let pod = Pod::start(settings).await?;
    let ours = ask(pod.tool.clone(), CALLS).await?;
    table.row(row("outrigger", &ours, mb(procfs::memory(pod.sidecar.id())?.peak)));
    let mut killed = pod.stop().await?;
    for proxy in settings.proxies() {
        let (process, endpoint) = proxy.start(settings).await?;
        let outcome = ask(endpoint, PEER_CALLS).await?;
        let memory = procfs::memory(process.id()).map_or_else(|_| "gone".to_owned(), |m| mb(m.peak));
        table.row(row(proxy.name(), &outcome, memory));
        if process.stop().await? {
            killed.push(proxy.name());
        }
    }
    if let Some(error) = ours.error {
        anyhow::bail!("outrigger, an answer of {BYTES} bytes: {error}");
    }
    let time = median(ours.times.into_iter());
    let goals = vec![Goal {
        what: "MCP: an answer of 12 MiB".into(),
        measured: format!("{} ms", ms(time)),
        wanted: format!("≤ {} ms", ms(WANTED)),
        met: time <= WANTED,
    }];
    let notes = [format!("A text of {BYTES} bytes; a call has {} s.", PATIENCE.as_secs())];
    let notes = notes.into_iter().chain(forced(&killed)).collect();
    Ok(Section { title: "MCP: an answer of 12 MiB", table, notes, goals })
}

async fn ask(endpoint: Endpoint, calls: usize) -> Result<Outcome> {
    let work = move || {
        let mut times = Vec::new();
        let mut call_all = || {
            let mut session = Session::open(&endpoint)?;
            for _ in 0..calls {
                times.push(timed(|| session.big(BYTES))?);
            }
            session.close()
        };
        let error = call_all().err().map(|e| format!("{e:#}"));
        let again = || Session::open(&endpoint)?.call();
        Outcome { times, error, alive: again().is_ok() }
    };
    Ok(tokio::task::spawn_blocking(work).await?)
}

fn timed(call: impl FnOnce() -> Result<usize>) -> Result<Duration> {
    let began = Instant::now();
    call()?;
    Ok(began.elapsed())
}

fn row(name: &str, outcome: &Outcome, memory: String) -> [String; 6] {
    let slowest = outcome.times.iter().copied().max();
    let middle = slowest.map_or("-".to_owned(), |_| ms(median(outcome.times.iter().copied())));
    let answers = match &outcome.error {
        None => outcome.times.len().to_string(),
        Some(error) => format!("{}, then: {}", outcome.times.len(), error.replace(['|', '\n', '\r'], " ")),
    };
    let alive = if outcome.alive { "works" } else { "gets no answer" };
    [name.to_owned(), middle, slowest.map_or("-".to_owned(), ms), answers, memory, alive.to_owned()]
}
