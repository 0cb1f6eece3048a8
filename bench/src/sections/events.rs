//! How long an event is under way from the agent to the caller, with many tasks that stream at once.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use outrigger_protocol::config::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::forced;
use crate::a2a;
use crate::load::{median, percentile};
use crate::procfs;
use crate::report::{Goal, Section, Table, ms, whole};
use crate::settings::Settings;
use crate::sidecar::{Options, Pod};
use crate::space::Place;
use crate::sse::{State, Stream};

/// Tasks at work, each with one reader.
const TASKS: u32 = 100;
/// Events of one task in a second.
const RATE: u32 = 100;
/// The 99th percentile of the delay.
const WANTED: Duration = Duration::from_millis(2);
/// Share of the events that must come in the time in which they were to be sent; else it is another load.
const ENOUGH: f64 = 0.98;
/// Nothing at all comes for this long: a broken run.
const SILENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// What one run measured.
struct Run {
    rate: f64,
    p50: Duration,
    p99: Duration,
    most: Duration,
    /// Time of the sidecar's processor for an event.
    cpu: Duration,
    foreign: Option<f64>,
}

/// One task's stream.
struct Reader {
    stream: Stream,
    /// Lines so far.
    seen: u64,
    completed: bool,
    over: bool,
}

/// Runs the load again and again.
pub async fn section(settings: &Settings) -> Result<Section> {
    let limits = Limits { max_concurrent_turns: TASKS, ..Limits::default() };
    let pod = Pod::with(settings, Options { limits, ..Options::default() }).await?;
    let (place, pid, rounds, seconds) = (pod.a2a(), pod.sidecar.id(), settings.rounds, settings.seconds);
    let work = move || (0..rounds).map(|_| run(&place, pid, seconds)).collect::<Result<Vec<_>>>();
    let runs = tokio::task::spawn_blocking(work).await??;
    let killed = pod.stop().await?;

    let middle = |of: fn(&Run) -> Duration| median(runs.iter().map(of));
    let p99 = middle(|r| r.p99);
    let mut rates: Vec<f64> = runs.iter().map(|r| r.rate).collect();
    rates.sort_by(f64::total_cmp);
    let rate = rates.get(rates.len() / 2).copied().unwrap_or_default();
    let wanted_rate = f64::from(TASKS * RATE);
    let mut table = Table::new(&["events/s", "p50 ms", "p99 ms", "p99 ms, best run", "most ms", "CPU ms/event"]);
    table.row([
        whole(rate),
        ms(middle(|r| r.p50)),
        ms(p99),
        ms(runs.iter().map(|r| r.p99).min().unwrap_or_default()),
        ms(runs.iter().map(|r| r.most).max().unwrap_or_default()),
        ms(middle(|r| r.cpu)),
    ]);
    let goals = vec![Goal {
        what: format!("A2A: delay of an event, p99, at {} events/s", whole(wanted_rate)),
        measured: format!("{} ms at {} events/s", ms(p99), whole(rate)),
        wanted: format!("≤ {} ms", ms(WANTED)),
        met: p99 <= WANTED && rate >= ENOUGH * wanted_rate,
    }];
    let mut notes = vec![format!(
        "{TASKS} tasks in memory, each streams {RATE} events in a second to one reader over HTTP/1.1. The delay is from the \
         agent's clock when it sends an event to the reader's when it has parsed it; each event came once, in order. CPU \
         is the sidecar's."
    )];
    let foreign =
        runs.iter().filter_map(|r| r.foreign).fold(None, |most: Option<f64>, f| Some(most.unwrap_or(f).max(f)));
    notes.extend(foreign.map(|f| format!("Other work took {:.0} % of the processors at most.", f * 100.0)));
    notes.extend(forced(&killed));
    Ok(Section { title: "A2A: delay of events", table, notes, goals })
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

fn run(place: &Place, pid: u32, seconds: u64) -> Result<Run> {
    // The first second is not measured.
    let (skipped, count) = (u64::from(RATE), u64::from(RATE) * (seconds + 1));
    let text = format!("stream {RATE} {count}");
    let (cpu, work, began) = (procfs::cpu(pid)?, procfs::work()?, tokio::time::Instant::now());
    let open = |_| Ok(Reader { stream: a2a::stream(place, &text)?, seen: 0, completed: false, over: false });
    let mut readers = (0..TASKS).map(open).collect::<Result<Vec<_>>>()?;
    let (mut delays, mut first, mut last) = (Vec::new(), u64::MAX, 0);
    while readers.iter().any(|r| !r.over) {
        let open: Vec<usize> = (0..readers.len()).filter(|i| !readers[*i].over).collect();
        let ready: Vec<usize> = {
            let mut fds: Vec<_> =
                open.iter().map(|i| PollFd::from_borrowed_fd(readers[*i].stream.socket(), PollFlags::IN)).collect();
            ensure!(poll(&mut fds, Some(&SILENCE))? > 0, "no event within {} s", SILENCE.tv_sec);
            open.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(i, _)| *i).collect()
        };
        for index in ready {
            let Reader { stream, seen, completed, over } = &mut readers[index];
            let state = stream.read(|event| {
                let came = now();
                ensure!(!*completed, "an event after the end of the task: {}", event.data);
                for (number, time) in a2a::lines(&event.data) {
                    ensure!(number == *seen + 1, "event {number} after event {seen}: {}", event.data);
                    *seen = number;
                    if number > skipped {
                        delays.push(Duration::from_nanos(came.saturating_sub(time)));
                        (first, last) = (first.min(time), last.max(came));
                    }
                }
                *completed = event.data.contains("TASK_STATE_COMPLETED");
                Ok(())
            })?;
            match state {
                State::Open => {}
                State::Ended => {
                    ensure!(*completed && *seen == count, "a stream ended after {seen} of {count} events");
                    *over = true;
                }
                State::Cut => bail!("a stream was cut after {seen} of {count} events"),
            }
        }
    }
    let events = u32::try_from(count)? * TASKS;
    let foreign = procfs::work()?.zip(work).and_then(|(after, before)| after.foreign_since(before, began.elapsed()));
    delays.sort_unstable();
    let (p50, p99) = percentile(&delays, 50).zip(percentile(&delays, 99)).context("no event came")?;
    let time = Duration::from_nanos(last - first).as_secs_f64();
    Ok(Run {
        rate: f64::from(u32::try_from(delays.len())?) / time,
        p50,
        p99,
        most: delays.last().copied().unwrap_or_default(),
        cpu: procfs::cpu(pid)?.saturating_sub(cpu) / events,
        foreign,
    })
}
