//! What a caller sees when a sidecar is killed in the middle of a task: nothing lost, nothing twice, one end.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use outrigger_protocol::config::Recovery;
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

use super::forced;
use crate::a2a::{self, Caller};
use crate::load::median;
use crate::postgres;
use crate::report::{Goal, Section, Table, ms, whole};
use crate::settings::Settings;
use crate::sidecar::{Keep, Options, Pod};
use crate::space::{Place, Space};
use crate::sse::{Event, Stream};

/// Rounds of a case that run at one time, each with pods of its own.
const LANES: u32 = 5;
/// Lines of a task, and lines in a second.
const LINES: u64 = 60;
const RATE: u32 = 50;
/// The kill comes after one of the first lines, another one in each round.
const FIRST_KILL: u64 = 2;
const LAST_KILL: u64 = LINES - 10;
/// A task goes on, or ends, within this time: the lease of a process that is gone must run out first.
const PATIENCE: Duration = Duration::from_secs(45);

/// What is killed, and what is to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// With one database: the sidecar that serves the stream, and does not work on the task.
    Serving,
    /// With one database: the one that works on the task, which fails.
    OwnerFails,
    /// The same, and the turn is delivered again.
    OwnerAgain,
    /// With a file: the only one, which comes back.
    AloneFails,
    /// The same, and the turn is delivered again.
    AloneAgain,
}

impl Case {
    const ALL: [Self; 5] = [Self::Serving, Self::OwnerFails, Self::OwnerAgain, Self::AloneFails, Self::AloneAgain];

    fn title(self) -> &'static str {
        match self {
            Self::Serving => "PostgreSQL, the serving one: resumed at the other",
            Self::OwnerFails => "PostgreSQL, the owner: FAILED once",
            Self::OwnerAgain => "PostgreSQL, the owner, Redeliver: goes on",
            Self::AloneFails => "SQLite, the only one: FAILED once",
            Self::AloneAgain => "SQLite, the only one, Redeliver: goes on",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::OwnerFails => "ownerfails",
            Self::OwnerAgain => "owneragain",
            Self::AloneFails => "alonefails",
            Self::AloneAgain => "aloneagain",
        }
    }

    fn alone(self) -> bool {
        matches!(self, Self::AloneFails | Self::AloneAgain)
    }

    fn fails(self) -> bool {
        matches!(self, Self::OwnerFails | Self::AloneFails)
    }

    fn recovery(self) -> Recovery {
        if matches!(self, Self::OwnerAgain | Self::AloneAgain) { Recovery::Redeliver } else { Recovery::Fail }
    }
}

/// Runs all cases, one after the other.
pub async fn section(settings: &Settings) -> Result<Section> {
    let (mut table, mut goals, mut notes) = (
        Table::new(&["killed with SIGKILL", "rounds", "next event after, median ms", "most ms"]),
        Vec::new(),
        Vec::new(),
    );
    let missing = postgres::missing();
    if let Some(why) = &missing {
        notes.push(format!("The cases with PostgreSQL are left out: {why}."));
    }
    let database = if missing.is_none() { Some(postgres::Server::start(settings).await?) } else { None };
    let (mut killed, mut done) = (Vec::new(), 0);
    for case in Case::ALL {
        let url = database.as_ref().map(postgres::Server::url);
        if !case.alone() && url.is_none() {
            continue;
        }
        let mut lanes = JoinSet::new();
        for lane in 0..LANES.min(settings.kills) {
            lanes.spawn(rounds(settings.clone(), case, lane, url.clone().unwrap_or_default()));
        }
        let mut pauses = Vec::new();
        while let Some(lane) = lanes.join_next().await {
            let (times, names) = lane?.with_context(|| case.title())?;
            pauses.extend(times);
            killed.extend(names);
        }
        done += pauses.len();
        table.row([
            case.title().to_owned(),
            pauses.len().to_string(),
            ms(median(pauses.iter().copied())),
            ms(pauses.iter().copied().max().unwrap_or_default()),
        ]);
    }
    if let Some(database) = database {
        database.stop().await?;
    }
    goals.push(Goal {
        what: "A2A: kills of a sidecar in the middle of a task with nothing lost, nothing twice, one end".into(),
        measured: done.to_string(),
        wanted: "all".into(),
        // A round that is not so breaks the section.
        met: done > 0,
    });
    notes.push(format!(
        "A task streams {LINES} lines, {} in a second; the kill comes after one of the first {LAST_KILL}. The caller resumes by \
         Last-Event-ID at what is left. In each round: lines in order, each once; none that was shown anywhere is missing; one \
         end, the last event; the task and a replay of its events agree with the stream at every sidecar.",
        whole(f64::from(RATE))
    ));
    notes.extend(forced(&killed));
    Ok(Section { title: "A2A: sidecars that are killed", table, notes, goals })
}

/// One lane's rounds, with the same pods; gives the time from each kill to the next event.
async fn rounds(settings: Settings, case: Case, lane: u32, url: String) -> Result<(Vec<Duration>, Vec<&'static str>)> {
    let mut pods = Vec::new();
    for number in 0..(if case.alone() { 1 } else { 2 }) {
        let keep = if case.alone() {
            Keep::Sqlite
        } else {
            Keep::Postgres { url: url.clone(), schema: format!("{}{lane}", case.word()) }
        };
        let (name, space) = (format!("{}-{lane}-{number}", case.word()), Space::new()?);
        let options = Options { name, keep, space, recovery: case.recovery(), bare: true, ..Options::default() };
        pods.push(Pod::with(&settings, options).await?);
    }
    let mut pauses = Vec::new();
    for round in (lane..settings.kills).step_by(usize::try_from(LANES)?) {
        let at = FIRST_KILL + u64::from(round * 17) % (LAST_KILL - FIRST_KILL);
        let pause = self::round(&settings, case, &mut pods, at);
        pauses.push(pause.await.with_context(|| format!("round {}, killed after line {at}", round + 1))?);
    }
    let mut forced = Vec::new();
    for pod in pods {
        forced.extend(pod.stop().await?);
    }
    Ok((pauses, forced))
}

async fn round(settings: &Settings, case: Case, pods: &mut [Pod], at: u64) -> Result<Duration> {
    let places: Vec<Place> = pods.iter().map(Pod::a2a).collect();
    let (owner, reader) = (places[0].clone(), places[places.len() - 1].clone());
    // The first stream is the witness of what the owner has shown.
    let begin = move || {
        let mut witness = Follower::new(a2a::stream(&owner, &format!("stream {RATE} {LINES}"))?);
        let first = witness.next()?.context("no event")?;
        let whole: Value = serde_json::from_str(&first.data)?;
        let task = whole.pointer("/result/task/id").and_then(Value::as_str).context("no task")?.to_owned();
        let mut follower = Follower::new(a2a::subscribe(&reader, &task, None)?);
        while follower.seen < at {
            follower.next()?.context("the stream ended before the kill")?;
        }
        anyhow::Ok((witness, follower, task))
    };
    let (mut witness, mut follower, task) = spawn_blocking(begin).await??;

    let dead = usize::from(case == Case::Serving);
    pods[dead].sidecar.kill()?;
    let killed = Instant::now();
    if case.alone() {
        pods[dead].restart(settings).await?;
    }
    let left = if case == Case::Serving { places[0].clone() } else { places[places.len() - 1].clone() };
    let id = task.clone();
    let go_on = move || {
        let resumes = matches!(case, Case::Serving | Case::AloneFails | Case::AloneAgain);
        if resumes {
            follower.drain()?;
            follower.resume(a2a::subscribe(&left, &id, Some(&follower.last.clone()))?);
        }
        follower.stream.patience(PATIENCE)?;
        let mut pause = None;
        while let Some(event) = follower.next()? {
            if !event.data.starts_with("{\"task\":") {
                pause.get_or_insert_with(|| killed.elapsed());
            }
        }
        let wanted = if case.fails() { "TASK_STATE_FAILED" } else { "TASK_STATE_COMPLETED" };
        ensure!(follower.ends == [wanted], "the ends are {:?}, not one {wanted}", follower.ends);
        ensure!(case.fails() || follower.seen == LINES, "it ended after {} of {LINES} lines", follower.seen);
        witness.drain()?;
        ensure!(witness.seen <= follower.seen, "line {} was shown and is lost after {}", witness.seen, follower.seen);
        anyhow::Ok((follower, pause.context("no event after the kill")?))
    };
    let (follower, pause) = spawn_blocking(go_on).await??;
    if !case.alone() {
        pods[dead].restart(settings).await?;
    }
    spawn_blocking(move || places.iter().try_for_each(|place| agrees(place, &task, &follower))).await??;
    Ok(pause)
}

/// One reader of a task's events over several connections.
struct Follower {
    stream: Stream,
    waiting: VecDeque<Event>,
    /// Nothing of this connection has come yet.
    fresh: bool,
    /// Lines so far: all up to this one.
    seen: u64,
    /// Lines of the first event, a whole task.
    at_first: u64,
    /// Id of the first event, and of the last one.
    first: String,
    last: String,
    /// Ids of all events but whole tasks.
    ids: Vec<String>,
    /// States that end a task, as they came.
    ends: Vec<&'static str>,
}

impl Follower {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            waiting: VecDeque::new(),
            fresh: true,
            seen: 0,
            at_first: 0,
            first: String::new(),
            last: String::new(),
            ids: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Goes on with another connection.
    fn resume(&mut self, stream: Stream) {
        self.stream = stream;
        self.waiting.clear();
        self.fresh = true;
    }

    /// The next event, once it is known to be the right one; none when the stream has ended or was cut.
    fn next(&mut self) -> Result<Option<Event>> {
        let Some(event) = self.stream.next(&mut self.waiting)? else { return Ok(None) };
        ensure!(self.ends.is_empty(), "an event after the end: {}", event.data);
        ensure!(!event.id.is_empty(), "an event without an id: {}", event.data);
        let lines: Vec<u64> = a2a::lines(&event.data).map(|(number, _)| number).collect();
        if std::mem::take(&mut self.fresh) {
            ensure!(event.data.contains("\"task\":"), "the first event is no task: {}", event.data);
            let count = lines.len() as u64;
            ensure!(lines.iter().copied().eq(1..=count), "the task's lines are {lines:?}");
            if self.first.is_empty() {
                (self.first, self.seen, self.at_first) = (event.id.clone(), count, count);
            }
            ensure!(count == self.seen, "the task has {count} lines where the stream had {}", self.seen);
        } else {
            for number in lines {
                ensure!(number == self.seen + 1, "line {number} after line {}", self.seen);
                self.seen = number;
            }
            ensure!(!self.ids.contains(&event.id), "the event {} came twice", event.id);
            self.ids.push(event.id.clone());
        }
        for end in ["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"] {
            if event.data.contains(end) {
                self.ends.push(end);
            }
        }
        self.last.clone_from(&event.id);
        Ok(Some(event))
    }

    /// Takes what is there until the connection ends.
    fn drain(&mut self) -> Result<()> {
        while self.next()?.is_some() {}
        Ok(())
    }
}

/// Whether the task at a sidecar, and a replay of its events, are what the follower saw.
fn agrees(place: &Place, task: &str, seen: &Follower) -> Result<()> {
    let whole = Caller::new(place.clone()).call("GetTask", &json!({"id": task}))?.to_string();
    let Some(end) = seen.ends.first() else { bail!("no end") };
    ensure!(whole.contains(end), "the task is not {end}: {whole}");
    ensure!(a2a::lines(&whole).map(|(n, _)| n).eq(1..=seen.seen), "the task has other lines: {whole}");
    let mut replay = Follower::new(a2a::subscribe(place, task, Some(&seen.first))?);
    replay.drain().context("in a replay")?;
    ensure!(replay.at_first == seen.at_first, "a replay begins with {} lines, not {}", replay.at_first, seen.at_first);
    ensure!(replay.ids == seen.ids, "a replay has the events {:?}, not {:?}", replay.ids, seen.ids);
    ensure!(replay.seen == seen.seen && replay.ends == seen.ends, "a replay ends in another way");
    Ok(())
}
