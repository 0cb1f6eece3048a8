//! The load generator: a thread for each client, each with one call in flight.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use crate::procfs;

/// Most calls of one client in one phase.
const MOST_CALLS: usize = 1_000_000;

/// One client: makes one call after the other and fails when an answer is not what it should be.
pub trait Client: Send {
    /// Makes one call and judges its answer.
    fn call(&mut self) -> Result<()>;
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
    let at = |share: usize| latencies.get((calls * share / 100).min(calls.saturating_sub(1))).copied();
    let (p50, p99) = at(50).zip(at(99)).context("no call was made")?;
    let per_call = u32::try_from(calls).context("too many calls")?;
    Ok(Run { rate: f64::from(per_call) / took.as_secs_f64(), p50, p99, cpu: cpu / per_call, foreign })
}

fn phase<C: Client>(clients: &mut [C], time: Duration) -> Result<Vec<Duration>> {
    let deadline = Instant::now() + time;
    let each: Vec<Result<Vec<Duration>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|c| scope.spawn(move || repeat(c, deadline))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))).collect()
    });
    let mut all = Vec::new();
    for latencies in each {
        let latencies = latencies?;
        ensure!(!latencies.is_empty(), "a client made no call in {} s", time.as_secs_f64());
        all.extend(latencies);
    }
    Ok(all)
}

fn repeat(client: &mut impl Client, deadline: Instant) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut before = Instant::now();
    while before < deadline && latencies.len() < MOST_CALLS {
        client.call()?;
        let after = Instant::now();
        latencies.push(after - before);
        before = after;
    }
    Ok(latencies)
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

/// The median; nothing at all has the median zero.
pub fn median(values: impl Iterator<Item = Duration>) -> Duration {
    let mut values: Vec<Duration> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(usize);

    impl Client for Counter {
        fn call(&mut self) -> Result<()> {
            self.0 += 1;
            ensure!(self.0 < 1000, "enough");
            std::thread::yield_now();
            Ok(())
        }
    }

    #[test]
    fn a_client_that_fails_fails_the_run() {
        let phases = Phases { warm: Duration::ZERO, measured: Duration::from_secs(20) };
        let error = run(&mut [Counter(0), Counter(500)], phases, std::process::id()).unwrap_err();
        assert_eq!(error.to_string(), "enough");
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
        assert!(Summary::of(&[]).is_err());
    }
}
