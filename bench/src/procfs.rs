//! What the kernel says of a process and of the machine.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// Most that was resident at once.
    pub peak: u64,
}

/// Resident memory of a process, file pages of its program included.
pub fn memory(pid: u32) -> Result<Memory> {
    parse_memory(&read(&format!("/proc/{pid}/status"))?)
}

fn parse_memory(status: &str) -> Result<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).with_context(|| format!("no {name} in status"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().with_context(|| format!("{name} {line}"))?;
        anyhow::Ok(kib << 10)
    };
    Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
}

/// User and system time of all threads of a process so far, in steps of a clock tick (10 ms).
pub fn cpu(pid: u32) -> Result<Duration> {
    let ticks = parse_ticks(&read(&format!("/proc/{pid}/stat"))?)?;
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100))
}

fn parse_ticks(stat: &str) -> Result<u64> {
    // The name may contain blanks and parentheses; the fields start behind the last one.
    let (_, rest) = stat.rsplit_once(')').context("stat has no name")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next().and_then(|f| f.parse::<u64>().ok()).context("stat has no times");
    Ok(next()? + next()?)
}

/// Work that all processors have done so far, and the part of it that this process can see as done by processes.
/// Only the first process of a namespace of its own sees no process but those of the benchmark; else nothing is known.
pub fn work() -> Result<Option<Work>> {
    if std::process::id() != 1 {
        return Ok(None);
    }
    let stat = read("/proc/stat")?;
    let mut own = 0;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        // It may have ended since.
        own += read(&format!("/proc/{pid}/stat")).and_then(|s| parse_ticks(&s)).unwrap_or(0);
    }
    Ok(Some(Work { all: parse_busy(&stat)?, own }))
}

/// Clock ticks that processors were busy.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    all: u64,
    own: u64,
}

impl Work {
    /// Share of all processors that other work took since an earlier moment, from 0 to 1.
    pub fn foreign_since(self, before: Self, time: Duration) -> Option<f64> {
        let ticks = (self.all - before.all).saturating_sub(self.own.saturating_sub(before.own));
        let cores = std::thread::available_parallelism().ok()?.get();
        let (ticks, cores) = (f64::from(u32::try_from(ticks).ok()?), f64::from(u32::try_from(cores).ok()?));
        let all = time.as_secs_f64() * f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).ok()?) * cores;
        (all > 0.0).then(|| (ticks / all).min(1.0))
    }
}

/// The first line of `/proc/stat`: user, nice, system, idle, waiting for I/O, interrupts, soft interrupts, stolen.
fn parse_busy(stat: &str) -> Result<u64> {
    let line = stat.lines().next().and_then(|l| l.strip_prefix("cpu ")).context("/proc/stat")?;
    let fields: Vec<u64> = line.split_ascii_whitespace().filter_map(|f| f.parse().ok()).take(8).collect();
    let idle = fields.iter().skip(3).take(2).sum::<u64>();
    Ok(fields.iter().sum::<u64>() - idle)
}

/// The machine's load average over one minute.
pub fn load_average() -> Result<f64> {
    let text = read("/proc/loadavg")?;
    text.split(' ').next().and_then(|f| f.parse().ok()).context("/proc/loadavg")
}

/// Name of the processor.
pub fn processor() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
    name.map_or("unknown processor", |(_, name)| name.trim()).to_owned()
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_memory(status).unwrap(), Memory { resident: 1 << 20, peak: 2 << 20 });
        assert!(parse_memory("Name:\tx\n").is_err());
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 10 0 0 0 30 12 0 0 20 0 1 0 5 1 1";
        assert_eq!(parse_ticks(stat).unwrap(), 42);
        assert!(parse_ticks("7 (a) S 1").is_err());
        assert_eq!(parse_busy("cpu  1 2 4 100 100 8 16 32 64 64\ncpu0 9\n").unwrap(), 63);
        assert!(parse_busy("intr 1").is_err());
    }

    #[test]
    fn foreign_work_is_what_is_not_our_own() {
        let before = Work { all: 1000, own: 100 };
        let cores = std::thread::available_parallelism().unwrap().get() as u64;
        let after = Work { all: 1000 + 100 * cores, own: 100 + 75 * cores };
        let share = after.foreign_since(before, Duration::from_secs(1)).unwrap();
        let ticks = f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).unwrap());
        assert!((share * ticks - 25.0).abs() < 1e-6, "{share}");
    }

    #[test]
    fn this_process_has_memory_and_time() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.resident > 0 && memory.peak >= memory.resident);
        cpu(std::process::id()).unwrap();
        assert!(load_average().unwrap() >= 0.0);
    }
}
