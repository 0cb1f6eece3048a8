//! The load generator: one thread that serves all clients as their answers come, each with one call in flight.
//!
//! A thread for each client would sleep in each call, and the kernel would charge the server for waking it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::Instant;

use crate::procfs;

/// Most calls in one phase.
const MOST_CALLS: usize = 5_000_000;
/// Nothing at all comes for this long: a broken run.
const SILENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// One client: makes one call after the other and fails when an answer is not what it should be.
pub trait Client: Send {
    /// Begins a call.
    fn send(&mut self) -> Result<()>;

    /// Waits for the answer and judges it.
    fn receive(&mut self) -> Result<()>;

    /// What gets readable when the answer comes.
    fn source(&self) -> Option<BorrowedFd<'_>>;

    /// Makes one call.
    fn call(&mut self) -> Result<()> {
        self.send()?;
        self.receive()
    }
}

/// How long the phases of a run last.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// Not measured.
    pub warm: Duration,
    /// Measured.
    pub measured: Duration,
}

/// What one run measured.
#[derive(Clone, Debug)]
pub struct Run {
    /// Calls in a second.
    pub rate: f64,
    /// Median latency.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// User and system time that the watched process took for a call.
    pub cpu: Duration,
    /// Share of all processors that other work of the machine took, if known.
    pub foreign: Option<f64>,
}

/// Runs the clients at once: warm-up, then the measured phase, in which the CPU time of process `watched` is counted.
pub fn run<C: Client>(clients: &mut [C], phases: Phases, watched: u32) -> Result<Run> {
    if !phases.warm.is_zero() {
        phase(clients, phases.warm)?;
    }
    let (cpu, work) = (procfs::cpu(watched)?, procfs::work()?);
    let began = Instant::now();
    let mut latencies = phase(clients, phases.measured)?;
    let took = began.elapsed();
    let cpu = procfs::cpu(watched)?.saturating_sub(cpu);
    let foreign = procfs::work()?.zip(work).and_then(|(after, before)| after.foreign_since(before, took));
    latencies.sort_unstable();
    let calls = latencies.len();
    let (p50, p99) = percentile(&latencies, 50).zip(percentile(&latencies, 99)).context("no call was made")?;
    let per_call = u32::try_from(calls).context("too many calls")?;
    Ok(Run { rate: f64::from(per_call) / took.as_secs_f64(), p50, p99, cpu: cpu / per_call, foreign })
}

fn phase<C: Client>(clients: &mut [C], time: Duration) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut began = Instant::now();
    let deadline = began + time;
    // When the call in flight of each client began; none when the client is done.
    let mut calls: Vec<Option<Instant>> = Vec::with_capacity(clients.len());
    for client in clients.iter_mut() {
        client.send()?;
        calls.push(Some(began));
        began = Instant::now();
    }
    let mut ready = Vec::new();
    loop {
        answered(clients, &calls, &mut ready)?;
        if ready.is_empty() {
            return Ok(latencies);
        }
        for index in ready.drain(..) {
            clients[index].receive()?;
            let now = Instant::now();
            latencies.extend(calls[index].map(|began| now - began));
            let more = now < deadline && latencies.len() < MOST_CALLS;
            calls[index] = more.then_some(now);
            if more {
                clients[index].send()?;
            }
        }
    }
}

/// The clients whose answers begin to come; none when no call is in flight.
fn answered<C: Client>(clients: &[C], calls: &[Option<Instant>], ready: &mut Vec<usize>) -> Result<()> {
    let busy = || clients.iter().enumerate().filter(|(index, _)| calls[*index].is_some());
    // Alone, a client may just wait for its answer.
    if clients.len() == 1 {
        ready.extend(busy().map(|(index, _)| index));
        return Ok(());
    }
    let mut fds = Vec::with_capacity(clients.len());
    for (_, client) in busy() {
        fds.push(PollFd::from_borrowed_fd(client.source().context("a call without a source")?, PollFlags::IN));
    }
    if fds.is_empty() {
        return Ok(());
    }
    let count = poll(&mut fds, Some(&SILENCE))?;
    ensure!(count > 0, "no answer within {} s", SILENCE.tv_sec);
    ready.extend(busy().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|((index, _), _)| index));
    Ok(())
}

/// Several runs of one system, as they stand in the table.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Calls in a second: median of the runs.
    pub rate: f64,
    /// Slowest and fastest run.
    pub range: (f64, f64),
    /// Median of the runs' medians.
    pub p50: Duration,
    /// Median of the runs' 99th percentiles.
    pub p99: Duration,
    /// CPU time of a call: median of the runs.
    pub cpu: Duration,
    /// The same: least of the runs, the one that other work disturbed least.
    pub least_cpu: Duration,
}

impl Summary {
    /// Sums up at least one run.
    pub fn of(runs: &[Run]) -> Result<Self> {
        let mut rates: Vec<f64> = runs.iter().map(|r| r.rate).collect();
        rates.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (rates.first(), rates.last()) else { anyhow::bail!("no run") };
        Ok(Self {
            rate: rates[rates.len() / 2],
            range: (*low, *high),
            p50: median(runs.iter().map(|r| r.p50)),
            p99: median(runs.iter().map(|r| r.p99)),
            cpu: median(runs.iter().map(|r| r.cpu)),
            least_cpu: runs.iter().map(|r| r.cpu).min().unwrap_or_default(),
        })
    }
}

/// What to say of other work on the machine while the runs were measured.
pub fn noise<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let mut shares: Vec<f64> = runs.filter_map(|r| r.foreign).collect();
    shares.sort_by(f64::total_cmp);
    let (middle, most) = (shares.get(shares.len() / 2)?, shares.last()?);
    Some(format!(
        "Other work took {:.0} % of the processors while this was measured (median of the runs), {:.0} % at most.",
        middle * 100.0,
        most * 100.0
    ))
}

/// A percentile of what is sorted.
pub fn percentile(sorted: &[Duration], share: usize) -> Option<Duration> {
    sorted.get((sorted.len() * share / 100).min(sorted.len().saturating_sub(1))).copied()
}

/// The median; nothing at all has the median zero.
pub fn median(values: impl Iterator<Item = Duration>) -> Duration {
    let mut values: Vec<Duration> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    /// Answers itself through a socket, until it has done so `left` times.
    struct Own {
        ends: (UnixStream, UnixStream),
        left: usize,
    }

    impl Own {
        fn new(left: usize) -> Self {
            Self { ends: UnixStream::pair().unwrap(), left }
        }
    }

    impl Client for Own {
        fn send(&mut self) -> Result<()> {
            Ok(self.ends.0.write_all(b"x")?)
        }

        fn receive(&mut self) -> Result<()> {
            self.ends.1.read_exact(&mut [0])?;
            self.left = self.left.checked_sub(1).context("enough")?;
            Ok(())
        }

        fn source(&self) -> Option<BorrowedFd<'_>> {
            Some(self.ends.1.as_fd())
        }
    }

    #[test]
    fn every_call_is_counted_once_and_a_failure_fails_the_run() {
        const MANY: usize = 1 << 40;
        for count in [1, 3] {
            let mut clients: Vec<Own> = (0..count).map(|_| Own::new(MANY)).collect();
            let latencies = phase(&mut clients, Duration::from_millis(20)).unwrap();
            assert_eq!(latencies.len(), clients.iter().map(|c| MANY - c.left).sum::<usize>());
            assert!(clients.iter().all(|c| c.left < MANY));
            clients[0].left = 100;
            let phases = Phases { warm: Duration::ZERO, measured: Duration::from_mins(1) };
            let error = run(&mut clients, phases, std::process::id()).unwrap_err();
            assert_eq!(error.to_string(), "enough");
        }
    }

    #[test]
    fn medians_and_ranges() {
        let run = |rate, ms| Run {
            rate,
            p50: Duration::from_millis(ms),
            p99: Duration::from_millis(2 * ms),
            cpu: Duration::from_micros(ms),
            foreign: None,
        };
        let summary = Summary::of(&[run(5.0, 1), run(1.0, 9), run(3.0, 4)]).unwrap();
        assert_eq!((summary.rate, summary.range), (3.0, (1.0, 5.0)));
        assert_eq!((summary.p50, summary.p99), (Duration::from_millis(4), Duration::from_millis(8)));
        assert_eq!((summary.cpu, summary.least_cpu), (Duration::from_micros(4), Duration::from_micros(1)));
        assert!(Summary::of(&[]).is_err());
    }
}
