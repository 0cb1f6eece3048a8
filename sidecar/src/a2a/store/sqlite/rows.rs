//! Rows and what they stand for.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::stored::{Damaged, read_change, read_task};
use outrigger_protocol::a2a::task::Task;
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};

use super::super::{Event, Key, KeyRecord, PushConfig, StoreError};

/// Bits of an event's number that are its version.
const VERSION_BITS: u32 = 24;
/// Last version that a task can have.
pub(super) const MAX_VERSION: u64 = (1 << VERSION_BITS) - 1;
/// Dialects in the order of their numbers.
const DIALECTS: [Dialect; 3] = [Dialect::V10, Dialect::V03, Dialect::V03Proto];

/// Why an operation on the database was not done.
#[derive(Debug)]
pub(super) enum Fail {
    /// The database failed.
    Sql(rusqlite::Error),
    /// Before anything was written it turned out that it must not be done.
    Store(StoreError),
}

impl From<rusqlite::Error> for Fail {
    fn from(e: rusqlite::Error) -> Self {
        Self::Sql(e)
    }
}

impl From<StoreError> for Fail {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<Damaged> for Fail {
    fn from(e: Damaged) -> Self {
        Self::Store(StoreError::Damaged(e.to_string()))
    }
}

impl Fail {
    /// What it means for writes of the same transaction.
    pub(super) fn for_others(&self) -> StoreError {
        match self {
            Self::Sql(e) => match sql(e) {
                StoreError::Full(why) => StoreError::Full(why),
                other => StoreError::Unavailable(other.to_string()),
            },
            Self::Store(e @ StoreError::Full(_)) => StoreError::Full(e.to_string()),
            Self::Store(e) => StoreError::Unavailable(e.to_string()),
        }
    }
}

impl From<Fail> for StoreError {
    fn from(e: Fail) -> Self {
        match e {
            Fail::Sql(e) => sql(&e),
            Fail::Store(e) => e,
        }
    }
}

/// What an error of the database means.
pub(super) fn sql(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => StoreError::Full("the disk is full".into()),
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            StoreError::Damaged(error.to_string())
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// A number that fits: versions, sizes and counts are far below its end.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The other way; what is below zero is damaged and becomes zero.
pub(super) fn uint(n: i64) -> u64 {
    u64::try_from(n).unwrap_or_default()
}

/// Bytes as a number.
pub(super) fn len(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Number of an event.
pub(super) fn event_number(n: i64, version: u64) -> i64 {
    (n << VERSION_BITS) | int(version.min(MAX_VERSION))
}

fn version_of(e: i64) -> u64 {
    uint(e) & MAX_VERSION
}

pub(super) fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

fn state(n: i64) -> Result<State, StoreError> {
    let state = usize::try_from(n).ok().and_then(|n| State::ALL.get(n));
    state.copied().ok_or_else(|| StoreError::Damaged(format!("there is no state {n}")))
}

pub(super) fn dialect_number(dialect: Dialect) -> i64 {
    DIALECTS.iter().position(|d| *d == dialect).map_or(0, len)
}

/// The row of a task.
pub(super) struct Head {
    pub n: i64,
    pub c: i64,
    pub id: Arc<str>,
    pub caller: Arc<str>,
    pub context: Arc<str>,
    pub version: u64,
    pub epoch: u64,
    pub owner: Option<Arc<str>>,
    pub state: State,
    pub receivers: i64,
    pub key: Option<String>,
    pub snapshot: u64,
    pub first: u64,
    pub logged: u64,
}

impl Head {
    fn read(row: &Row<'_>) -> rusqlite::Result<(Self, i64)> {
        let head = Self {
            n: row.get("n")?,
            c: row.get("c")?,
            id: row.get("id")?,
            caller: row.get("caller")?,
            context: row.get("context")?,
            version: uint(row.get("version")?),
            epoch: uint(row.get("epoch")?),
            owner: row.get("owner")?,
            state: State::Submitted,
            receivers: row.get("receivers")?,
            key: row.get("key")?,
            snapshot: uint(row.get("snapshot")?),
            first: uint(row.get("first")?),
            logged: uint(row.get("logged")?),
        };
        Ok((head, row.get("state")?))
    }

    /// The row of a task by its id.
    pub(super) fn by_id(db: &Connection, id: &str) -> Result<Option<Self>, Fail> {
        let mut statement = db.prepare_cached("SELECT * FROM tasks WHERE id = ?")?;
        Self::finish(statement.query_row([id], Self::read).optional()?)
    }

    /// The row of a task by its number.
    pub(super) fn by_number(db: &Connection, n: i64) -> Result<Option<Self>, Fail> {
        let mut statement = db.prepare_cached("SELECT * FROM tasks WHERE n = ?")?;
        Self::finish(statement.query_row([n], Self::read).optional()?)
    }

    fn finish(found: Option<(Self, i64)>) -> Result<Option<Self>, Fail> {
        let Some((head, number)) = found else { return Ok(None) };
        Ok(Some(Self { state: state(number)?, ..head }))
    }

    /// The task at a version.
    pub(super) fn load(&self, db: &Connection, version: u64) -> Result<Arc<Task>, Fail> {
        let damaged = |why: &str| StoreError::Damaged(format!("task {}: {why}", self.id));
        if version > self.version || (version < self.snapshot && self.first > 1) {
            return Err(StoreError::Trimmed(self.snapshot.max(1)).into());
        }
        let mut task = None;
        if self.snapshot > 0 && version >= self.snapshot {
            let mut statement = db.prepare_cached("SELECT task FROM snapshots WHERE n = ?")?;
            let json: Option<String> = statement.query_row([self.n], |r| r.get(0)).optional()?;
            task = Some(read_task(&json.ok_or_else(|| damaged("its snapshot is missing"))?)?);
        }
        let from = task.as_ref().map_or(1, |t: &Task| t.version + 1);
        let mut statement = db.prepare_cached("SELECT at, writer, change FROM events WHERE e BETWEEN ? AND ?")?;
        let mut rows = statement.query([event_number(self.n, from), event_number(self.n, version)])?;
        while let Some(row) = rows.next()? {
            let at = time(row.get(0)?);
            let writer: Option<Arc<str>> = row.get(1)?;
            let change = read_change(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?;
            if let Some(task) = &mut task {
                let writer = writer.or_else(|| task.owner.clone()).unwrap_or_default();
                task.change(&change, &writer, at).map_err(|e| damaged(&e.to_string()))?;
            } else {
                let ids = (Arc::clone(&self.id), Arc::clone(&self.context), Arc::clone(&self.caller));
                let first = Task::first(ids.0, ids.1, ids.2, &change, writer.unwrap_or_default(), at);
                task = Some(first.ok_or_else(|| damaged("its first event makes no task"))?);
            }
        }
        match task {
            Some(task) if task.version == version => Ok(Arc::new(task)),
            _ => Err(damaged("events are missing").into()),
        }
    }

    /// Events after a version.
    pub(super) fn events(&self, db: &Connection, after: u64, limit: usize) -> Result<Vec<Event>, Fail> {
        if after + 1 < self.first {
            return Err(StoreError::Trimmed(self.first).into());
        }
        if after >= self.version {
            return Ok(Vec::new());
        }
        let mut statement =
            db.prepare_cached("SELECT e, at, change FROM events WHERE e BETWEEN ? AND ? ORDER BY e LIMIT ?")?;
        let range = (event_number(self.n, after + 1), event_number(self.n, self.version));
        let mut rows = statement.query(params![range.0, range.1, len(limit)])?;
        let mut events = Vec::new();
        while let Some(row) = rows.next()? {
            let change = read_change(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?;
            events.push(Event { version: version_of(row.get(0)?), at: time(row.get(1)?), change: Arc::new(change) });
        }
        Ok(events)
    }
}

/// The newest version of a task.
pub(super) fn newest(db: &Connection, id: &str) -> Result<Arc<Task>, Fail> {
    let head = Head::by_id(db, id)?.ok_or(StoreError::NotFound)?;
    head.load(db, head.version)
}

/// What is known of a key that was used at `since` or later.
pub(super) fn key(db: &Connection, id: &str, since: Timestamp) -> Result<Option<KeyRecord>, Fail> {
    let mut statement = db.prepare_cached("SELECT hash, turn, task, message FROM keys WHERE id = ? AND at >= ?")?;
    let row = statement.query_row(params![id, since.as_microsecond()], |r| {
        let key = Key { id: id.into(), hash: r.get(0)?, turn: r.get(1)? };
        Ok((key, r.get(2)?, r.get::<_, Option<String>>(3)?))
    });
    let Some((key, task, message)) = row.optional()? else { return Ok(None) };
    let message = message.map(|m| Raw::parse(&m)).transpose().map_err(Damaged::from)?;
    Ok(Some(KeyRecord { key, task, message }))
}

/// Columns of a receiver, its task's id first.
pub(super) const RECEIVER: &str =
    "t.id AS task, p.id, p.json, p.dialect, p.delivered, p.attempts, p.next, p.dead FROM push p JOIN tasks t USING (n)";

/// A receiver from [`RECEIVER`].
pub(super) fn receiver(row: &Row<'_>) -> Result<PushConfig, Fail> {
    let json: String = row.get("json")?;
    let dialect: i64 = row.get("dialect")?;
    let dialect = usize::try_from(dialect).ok().and_then(|d| DIALECTS.get(d));
    Ok(PushConfig {
        task: row.get("task")?,
        id: row.get("id")?,
        json: Raw::parse(&json).map_err(Damaged::from)?,
        dialect: *dialect.ok_or_else(|| StoreError::Damaged("there is no such dialect".into()))?,
        delivered: uint(row.get("delivered")?),
        attempts: row.get("attempts")?,
        next: time(row.get("next")?),
        dead: row.get("dead")?,
    })
}

/// Writes a receiver in place of its namesake; says whether it is a new one.
pub(super) fn put_receiver(db: &Connection, n: i64, version: u64, config: &PushConfig) -> Result<bool, Fail> {
    let there = db.prepare_cached("SELECT 1 FROM push WHERE n = ? AND id = ?")?.exists(params![n, config.id])?;
    let due = (config.dead.is_none() && version > config.delivered).then_some(config.next.as_microsecond());
    db.prepare_cached(
        "INSERT OR REPLACE INTO push (n, id, json, dialect, delivered, attempts, next, dead, claim, due)
         VALUES (:n, :id, :json, :dialect, :delivered, :attempts, :next, :dead, 0, :due)",
    )?
    .execute(named_params! {
        ":n": n, ":id": config.id, ":json": config.json.as_str(), ":dialect": dialect_number(config.dialect),
        ":delivered": int(config.delivered), ":attempts": config.attempts, ":next": config.next.as_microsecond(),
        ":dead": config.dead, ":due": due,
    })?;
    Ok(!there)
}
