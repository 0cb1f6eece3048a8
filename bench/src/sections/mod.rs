//! The parts of the benchmark.

pub mod a2a;
pub mod big;
pub mod events;
pub mod kills;
pub mod latency;
pub mod mcp;
pub mod memory;
pub mod start;
pub mod streams;

use anyhow::Result;

use crate::load::{Client, Phases, Run, run};

/// Makes the clients and runs them away from the driver's own thread; gives the run, and the clients for what follows.
async fn load<C: Client + 'static>(
    open: impl FnOnce() -> Result<Vec<C>> + Send + 'static,
    phases: Phases,
    watched: impl FnOnce(&[C]) -> u32 + Send + 'static,
) -> Result<(Run, Vec<C>)> {
    let work = move || {
        let mut clients = open()?;
        let watched = watched(&clients);
        let run = run(&mut clients, phases, watched)?;
        anyhow::Ok((run, clients))
    };
    tokio::task::spawn_blocking(work).await?
}

/// What to say of parts that did not end when asked.
fn forced(names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("Did not end within 8 s of SIGTERM and were killed: {}.", names.join(", ")))
}
