//! What the way through the sidecar adds for one client that waits for each answer.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use super::forced;
use crate::a2a::{Answer, Sender};
use crate::http::Connection;
use crate::load::{Client as _, median, percentile};
use crate::report::{Goal, Section, Table, ms};
use crate::settings::Settings;
use crate::sidecar::Pod;
use crate::space::Place;

/// Pairs of calls that are not measured.
const WARM: usize = 500;
/// What the median, and the 99th percentile, may be more than those of the agent itself.
const WANTED: (Duration, Duration) = (Duration::from_micros(150), Duration::from_millis(1));
/// A turn as the handler gets it, as far as it looks.
const TURN: &[u8] = br#"{"contract":"outrigger/v1","turn":"t","attempt":1,"text":"task"}"#;

/// Percentiles of one run.
#[derive(Clone, Copy)]
struct Run {
    direct: (Duration, Duration),
    through: (Duration, Duration),
    calls: usize,
}

/// Calls the agent and the sidecar in front of it by turns, so that whatever disturbs the one disturbs the other.
pub async fn section(settings: &Settings) -> Result<Section> {
    let pod = Pod::start(settings).await?;
    let (handler, a2a) = (pod.handler(), pod.a2a());
    let (rounds, time) = (settings.rounds, settings.phases().measured);
    let work = move || (0..rounds).map(|_| run(&handler, &a2a, time)).collect::<Result<Vec<_>>>();
    let runs = tokio::task::spawn_blocking(work).await??;
    let killed = pod.stop().await?;

    let middle = |of: fn(&Run) -> Duration| median(runs.iter().map(of));
    let (direct, through) =
        ((middle(|r| r.direct.0), middle(|r| r.direct.1)), (middle(|r| r.through.0), middle(|r| r.through.1)));
    let added = (
        median(runs.iter().map(|r| r.through.0.saturating_sub(r.direct.0))),
        median(runs.iter().map(|r| r.through.1.saturating_sub(r.direct.1))),
    );
    let mut table = Table::new(&["way", "p50 ms", "p99 ms"]);
    for (name, (p50, p99)) in [("the agent itself", direct), ("SendMessage to outrigger", through), ("added", added)] {
        table.row([name.to_owned(), ms(p50), ms(p99)]);
    }
    let goal = |what: &str, added: Duration, wanted: Duration| Goal {
        what: format!("A2A: latency that is added for one client, {what}"),
        measured: format!("{} ms", ms(added)),
        wanted: format!("≤ {} ms", ms(wanted)),
        met: added <= wanted,
    };
    let goals = vec![goal("p50", added.0, WANTED.0), goal("p99", added.1, WANTED.1)];
    let notes = [format!(
        "Calls go to the agent and to outrigger by turns, {} pairs in a run; added is the difference of the percentiles.",
        median_count(&runs)
    )];
    let notes = notes.into_iter().chain(forced(&killed)).collect();
    Ok(Section { title: "A2A: latency for one client, tasks in memory", table, notes, goals })
}

fn median_count(runs: &[Run]) -> usize {
    let mut counts: Vec<usize> = runs.iter().map(|r| r.calls).collect();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or_default()
}

fn run(handler: &Place, a2a: &Place, time: Duration) -> Result<Run> {
    let (mut direct, mut through) = (Connection::new(handler.clone()), Sender::new(a2a.clone(), 0, Answer::Task));
    let (mut times, mut body) = ((Vec::new(), Vec::new()), Vec::new());
    let mut end = None;
    for number in 0.. {
        if number == WARM {
            times.0.clear();
            times.1.clear();
            end = Some(Instant::now() + time);
        }
        let began = Instant::now();
        if end.is_some_and(|end| began > end) {
            break;
        }
        let head = direct.request("POST", "/", "Content-Type: application/json\r\n", TURN, &mut body)?;
        let answered = Instant::now();
        ensure!(head.status == 200 && body.starts_with(b"{\"text\":"), "the agent answered {head:?}");
        times.0.push(answered - began);
        let began = Instant::now();
        through.call()?;
        times.1.push(began.elapsed());
    }
    let percentiles = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        percentile(times, 50).zip(percentile(times, 99)).context("no call was made")
    };
    let calls = times.0.len();
    Ok(Run { direct: percentiles(&mut times.0)?, through: percentiles(&mut times.1)?, calls })
}
