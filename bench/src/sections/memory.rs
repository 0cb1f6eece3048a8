//! Memory of the sidecar, idle and with sessions and tasks.

use anyhow::{Context as _, Result, ensure};

use super::forced;
use crate::a2a::{Answer, Sender};
use crate::load::Client as _;
use crate::mcp::{Endpoint, Session};
use crate::procfs;
use crate::report::{Goal, Section, Table, mb};
use crate::settings::Settings;
use crate::sidecar::{A2A, MOST_SESSIONS, Pod};

/// Tasks that are kept.
const TASKS: usize = 1000;
/// Bytes of text in the artifact of each.
const TASK_BYTES: usize = 2 << 10;
/// Resident bytes when ready.
const WANTED_IDLE: u64 = 10_000_000;
/// Resident bytes with sessions and tasks.
const WANTED_LOADED: u64 = 30_000_000;

/// Measures a fresh sidecar, fills it, and measures it again.
pub async fn section(settings: &Settings) -> Result<Section> {
    let pod = Pod::start(settings).await?;
    let (sidecar, shim) = (pod.sidecar.id(), pod.shim.as_ref().context("no shim")?.id());
    let idle = [procfs::memory(sidecar)?, procfs::memory(shim)?];
    let endpoint = pod.tool.clone();
    let sessions = tokio::task::spawn_blocking(move || fill(&endpoint)).await??;
    let loaded = [procfs::memory(sidecar)?, procfs::memory(shim)?];
    tokio::task::spawn_blocking(|| sessions.into_iter().try_for_each(Session::close)).await??;
    let closed = [procfs::memory(sidecar)?, procfs::memory(shim)?];
    let killed = pod.stop().await?;

    let mut table = Table::new(&["moment", "sidecar RSS MB", "sidecar peak MB", "shim RSS MB"]);
    let with = format!("{MOST_SESSIONS} MCP sessions, {TASKS} tasks of {TASK_BYTES} B");
    for (name, [sidecar, shim]) in [("ready, idle", idle), (&*with, loaded), ("sessions closed", closed)] {
        table.row([name.to_owned(), mb(sidecar.resident), mb(sidecar.peak), mb(shim.resident)]);
    }
    let goal = |what: &str, bytes: u64, wanted: u64| Goal {
        what: format!("sidecar: RSS {what}"),
        measured: format!("{} MB", mb(bytes)),
        wanted: format!("≤ {} MB", mb(wanted)),
        met: bytes <= wanted,
    };
    let goals = vec![
        goal("idle", idle[0].resident, WANTED_IDLE),
        goal(&format!("with {with}"), loaded[0].resident, WANTED_LOADED),
    ];
    let notes = ["The tasks' texts alone are 2 MB. Pages of the program itself are part of RSS.".to_owned()];
    let notes = notes.into_iter().chain(forced(&killed)).collect();
    Ok(Section { title: "Memory of the sidecar", table, notes, goals })
}

/// Opens the sessions, each of which has made a call, and makes the tasks.
fn fill(endpoint: &Endpoint) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for number in 0..MOST_SESSIONS {
        let mut session = Session::open(endpoint).with_context(|| format!("session {number}"))?;
        session.call()?;
        sessions.push(session);
    }
    let mut sender = Sender::new(A2A, 0, Answer::Task);
    let first = sender.task_of(TASK_BYTES)?;
    for _ in 1..TASKS {
        sender.task_of(TASK_BYTES)?;
    }
    let size = sender.size_of(&first)?;
    ensure!(size >= TASK_BYTES, "the first task has only {size} bytes");
    Ok(sessions)
}
