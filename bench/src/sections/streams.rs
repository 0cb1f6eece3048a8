//! What a quiet stream costs in memory, each on a connection of its own and many over one.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_protocol::config::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::forced;
use crate::a2a::{self, Caller};
use crate::procfs;
use crate::report::{Goal, Section, Table, mb, ms, whole};
use crate::settings::Settings;
use crate::sidecar::{Options, Pod};
use crate::space::Place;
use crate::sse::{State, Stream};

/// Tasks that are followed, each by the same number of streams.
const TASKS: usize = 100;
/// Streams over one HTTP/2 connection: what a server of HTTP/2 usually allows, or a little more.
const PER_CONNECTION: usize = 1000;
/// Resident bytes that a stream may add, on a connection of its own and over a shared one.
const WANTED_H1: u64 = 16 << 10;
const WANTED_H2: u64 = 8 << 10;
/// Files that a process needs beside one for each stream.
const SPARE_FILES: u64 = 1000;
/// Between two signs of life on a quiet stream, as is the default.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Streams are quiet for so long before memory is read: each has had a sign of life by then.
const QUIET: Duration = Duration::from_secs(17);
/// For one stream to open, or to end.
const PATIENCE: Duration = Duration::from_mins(1);

/// What one way measured.
struct Measured {
    before: u64,
    open: u64,
    quiet: u64,
    took: Duration,
}

/// Opens the streams both ways, each with a fresh sidecar.
pub async fn section(settings: &Settings) -> Result<Section> {
    let count = usize::try_from(settings.streams)?;
    allow_files(u64::from(settings.streams) + SPARE_FILES)?;
    let mut killed = Vec::new();
    let mut table = Table::new(&[
        "streams",
        "RSS MB before",
        "all open",
        "after a heartbeat",
        "KiB a stream, all open",
        "after a heartbeat",
        "time to open, ms a stream",
    ]);
    let mut goals = Vec::new();
    for (name, shared, wanted) in [("HTTP/1.1", false, WANTED_H1), ("HTTP/2", true, WANTED_H2)] {
        let limits = Limits { heartbeat_ms: u64::try_from(HEARTBEAT.as_millis())?, ..Limits::default() };
        let pod = Pod::with(settings, Options { limits, ..Options::default() }).await?;
        let (place, pid) = (pod.a2a(), pod.sidecar.id());
        let measured = if shared { over_h2(&place, pid, count).await } else { over_h1(&place, pid, count).await };
        let m = measured.with_context(|| format!("streams over {name}"))?;
        killed.extend(pod.stop().await?);
        let each = |after: u64| after.saturating_sub(m.before) / count as u64;
        let kib = |bytes: u64| format!("{}.{}", bytes >> 10, ((bytes & 1023) * 10) >> 10);
        let ways = if shared { format!(", {} connections", count.div_ceil(PER_CONNECTION)) } else { String::new() };
        table.row([
            format!("{} over {name}{ways}", whole(f64::from(settings.streams))),
            mb(m.before),
            mb(m.open),
            mb(m.quiet),
            kib(each(m.open)),
            kib(each(m.quiet)),
            ms(m.took / settings.streams),
        ]);
        let most = each(m.open.max(m.quiet));
        goals.push(Goal {
            what: format!("A2A: RSS of an idle stream, {} over {name}", whole(f64::from(settings.streams))),
            measured: format!("{} KiB", kib(most)),
            wanted: format!("≤ {} KiB", wanted >> 10),
            met: most <= wanted,
        });
    }
    let notes = [format!(
        "{TASKS} tasks in memory, each followed by {} streams, which are quiet but for a heartbeat every {} s. In the end \
         the tasks are cancelled: each stream had a heartbeat and got the end of its task.",
        count / TASKS,
        HEARTBEAT.as_secs()
    )];
    let notes = notes.into_iter().chain(forced(&killed)).collect();
    Ok(Section { title: "A2A: memory of idle streams", table, notes, goals })
}

/// Lets this process, and what it starts, have so many files open.
fn allow_files(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|n| n >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|most| most.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .with_context(|| format!("{wanted} open files are needed, and the limit is {:?}", limit.maximum))
}

fn tasks(place: &Place) -> Result<Vec<String>> {
    let mut caller = Caller::new(place.clone());
    (0..TASKS).map(|_| caller.begin("hold")).collect()
}

fn cancel(place: &Place, tasks: &[String]) -> Result<()> {
    let mut caller = Caller::new(place.clone());
    tasks.iter().try_for_each(|task| caller.call("CancelTask", &json!({"id": task})).map(drop))
}

async fn over_h1(place: &Place, pid: u32, count: usize) -> Result<Measured> {
    let there = place.clone();
    let opened = tokio::task::spawn_blocking(move || open_h1(&there, pid, count)).await??;
    let (tasks, mut streams, mut measured) = opened;
    tokio::time::sleep(QUIET).await;
    measured.quiet = procfs::memory(pid)?.resident;
    let there = place.clone();
    let end = move || {
        cancel(&there, &tasks)?;
        for (number, stream) in streams.iter_mut().enumerate() {
            ended(stream).with_context(|| format!("stream {number} at its end"))?;
        }
        anyhow::Ok(())
    };
    tokio::task::spawn_blocking(end).await??;
    Ok(measured)
}

fn open_h1(place: &Place, pid: u32, count: usize) -> Result<(Vec<String>, Vec<Stream>, Measured)> {
    let tasks = tasks(place)?;
    let before = procfs::memory(pid)?.resident;
    let began = Instant::now();
    let mut streams = Vec::with_capacity(count);
    for number in 0..count {
        let mut stream = a2a::subscribe(place, &tasks[number % TASKS], None)?;
        let (mut waiting, what) = (VecDeque::new(), || format!("stream {number}"));
        let first = stream.next(&mut waiting).with_context(what)?.with_context(what)?;
        ensure!(first.data.contains("TASK_STATE_"), "no task: {}", first.data);
        streams.push(stream);
    }
    let (took, open) = (began.elapsed(), procfs::memory(pid)?.resident);
    Ok((tasks, streams, Measured { before, open, quiet: open, took }))
}

fn ended(stream: &mut Stream) -> Result<()> {
    let mut cancelled = 0;
    loop {
        let state = stream.read(|event| {
            cancelled += usize::from(event.data.contains("TASK_STATE_CANCELED"));
            Ok(())
        })?;
        match state {
            State::Open => {}
            State::Ended => break,
            State::Cut => bail!("it was cut"),
        }
    }
    ensure!(cancelled == 1, "the end of the task came {cancelled} times");
    ensure!(stream.comments() > 0, "no sign of life");
    Ok(())
}

async fn over_h2(place: &Place, pid: u32, count: usize) -> Result<Measured> {
    let there = place.clone();
    let tasks = tokio::task::spawn_blocking(move || tasks(&there)).await??;
    let before = procfs::memory(pid)?.resident;
    let began = Instant::now();
    let (mut streams, mut connections, mut sender) = (JoinSet::new(), JoinSet::new(), None);
    let (tell, mut told) = tokio::sync::mpsc::channel::<()>(count);
    for number in 0..count {
        if number % PER_CONNECTION == 0 {
            let socket = place.space.connect(place.address, PATIENCE)?;
            socket.set_nonblocking(true)?;
            let socket = TokioIo::new(tokio::net::TcpStream::from_std(socket)?);
            let (opened, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), socket).await?;
            connections.spawn(connection);
            sender = Some(opened);
        }
        let sender = sender.as_mut().context("no connection")?;
        let request =
            hyper::Request::get(format!("http://{}/tasks/{}:subscribe", place.address, tasks[number % TASKS]))
                .header("A2A-Version", "1.0")
                .body(Empty::<Bytes>::new())?;
        let response = timeout(PATIENCE, sender.send_request(request)).await.context("no answer in time")??;
        ensure!(response.status() == 200, "stream {number}: status {}", response.status());
        streams.spawn(follow(response.into_body(), tell.clone()));
        told.recv().await.context("a stream ended at once")?;
    }
    let (took, open) = (began.elapsed(), procfs::memory(pid)?.resident);
    tokio::time::sleep(QUIET).await;
    let quiet = procfs::memory(pid)?.resident;
    let there = place.clone();
    tokio::task::spawn_blocking(move || cancel(&there, &tasks)).await??;
    while let Some(stream) = timeout(PATIENCE, streams.join_next()).await.context("a stream does not end")? {
        stream??;
    }
    connections.shutdown().await;
    Ok(Measured { before, open, quiet, took })
}

/// Reads a stream to its end; tells when its first event has come.
async fn follow(mut body: Incoming, tell: tokio::sync::mpsc::Sender<()>) -> Result<()> {
    let (mut text, mut begun) = (String::new(), false);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            text.push_str(std::str::from_utf8(&data).context("a stream is not UTF-8")?);
        }
        if !begun && text.contains("\n\n") {
            ensure!(text.contains("TASK_STATE_"), "no task: {text}");
            begun = true;
            tell.send(()).await?;
        }
    }
    let (cancelled, alive) = (text.matches("TASK_STATE_CANCELED").count(), text.contains(": hb\n\n"));
    ensure!(cancelled == 1, "the end of the task came {cancelled} times");
    ensure!(alive, "no sign of life");
    Ok(())
}
