//! From exec to ready, and the size of what is started.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::Instant;

use crate::load::median;
use crate::process::Process;
use crate::report::{Goal, Section, Table, mb, ms};
use crate::settings::Settings;
use crate::sidecar::{A2A, Layout, Options, accepts};

/// Starts of each program.
const STARTS: usize = 20;
/// Until it is ready.
const LIMIT: Duration = Duration::from_secs(10);
/// Median time from exec to ready.
const WANTED: Duration = Duration::from_millis(50);

/// Starts the shim and the sidecar again and again.
pub async fn section(settings: &Settings) -> Result<Section> {
    let layout = Layout::write(Options::default())?;
    let socket = layout.socket();
    let shim = times(|| layout.shim(settings), move || accepts(&socket)).await?;
    let sidecar = times(|| layout.sidecar(settings), || TcpStream::connect(A2A).is_ok()).await?;
    let mut table = Table::new(&["program", "size MB", "exec to ready, median ms", "slowest ms", "ready means"]);
    let mut goals = Vec::new();
    for (name, program, times, ready) in [
        ("shim", "outrigger-shim", shim, "its socket accepts"),
        ("sidecar", "outrigger", sidecar, "its A2A port accepts"),
    ] {
        let size = std::fs::metadata(settings.program(program))?.len();
        let middle = median(times.iter().copied());
        let slowest = times.iter().copied().max().unwrap_or_default();
        table.row([name.to_owned(), mb(size), ms(middle), ms(slowest), ready.to_owned()]);
        goals.push(Goal {
            what: format!("{name}: exec to ready"),
            measured: format!("{} ms", ms(middle)),
            wanted: format!("≤ {} ms", ms(WANTED)),
            met: middle <= WANTED,
        });
    }
    let notes = vec![format!("{STARTS} starts each, static release binaries, files in the page cache.")];
    Ok(Section { title: "Size and start", table, notes, goals })
}

async fn times(
    start: impl Fn() -> Result<Process>,
    ready: impl Fn() -> bool + Clone + Send + 'static,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        ensure!(!ready(), "something else answers already");
        let began = Instant::now();
        let mut process = start()?;
        // Looked at without a pause: 20 ms between two looks would be most of what is measured.
        let look = ready.clone();
        let wait = move || {
            while !look() && began.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            began.elapsed()
        };
        let took = tokio::task::spawn_blocking(wait).await?;
        process.check()?;
        ensure!(took < LIMIT, "not ready within {} s", LIMIT.as_secs());
        times.push(took);
        process.stop().await?;
    }
    Ok(times)
}
