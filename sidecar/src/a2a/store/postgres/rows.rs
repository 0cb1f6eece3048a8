//! Reading rows.

use std::sync::Arc;

use deadpool_postgres::Object;
use futures::future::{join_all, try_join};
use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::stored::{Damaged, read_change, read_task};
use outrigger_protocol::a2a::task::Task;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::super::{Event, Head, KEY_RETENTION, Key, KeyRecord, Page, PushConfig, Query, StoreError};
use super::connect::Fail;

/// Dialects in the order of their numbers.
const DIALECTS: [Dialect; 3] = [Dialect::V10, Dialect::V03, Dialect::V03Proto];
/// A read that meets a task between two states of its log is tried again so often.
const TRIES: usize = 3;

pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn uint(n: i64) -> u64 {
    u64::try_from(n).unwrap_or_default()
}

pub(super) fn len(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

pub(super) fn key_retention() -> i64 {
    i64::try_from(KEY_RETENTION.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn dialect_number(dialect: Dialect) -> i16 {
    DIALECTS.iter().zip(0..).find(|(d, _)| **d == dialect).map_or(0, |(_, n)| n)
}

pub(super) fn state_number(state: State) -> i16 {
    State::ALL.iter().zip(0..).find(|(s, _)| **s == state).map_or(0, |(_, n)| n)
}

pub(super) fn state(n: i16) -> Result<State, StoreError> {
    let state = usize::try_from(n).ok().and_then(|n| State::ALL.get(n));
    state.copied().ok_or_else(|| StoreError::Damaged(format!("there is no state {n}")))
}

/// A cell, if it is of the type that the tables have.
fn cell<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Fail> {
    row.try_get(at).map_err(|e| StoreError::Damaged(e.to_string()).into())
}

fn shared(row: &Row, at: usize) -> Result<Arc<str>, Fail> {
    cell::<&str>(row, at).map(Arc::from)
}

/// Runs a prepared statement.
pub(super) async fn query(client: &Object, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fail> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, params).await?)
}

/// Row of a task with its snapshot, if that is needed for the version that is asked for.
struct Found {
    context: Arc<str>,
    caller: Arc<str>,
    head: Head,
    snapshot: u64,
    first: u64,
    task: Option<Task>,
}

const HEAD: &str = "SELECT t.context, t.caller, t.version, t.epoch, t.state, t.snapshot, t.first,
        CASE WHEN $2 >= t.snapshot THEN s.task END
    FROM tasks t LEFT JOIN snapshots s ON s.n = t.n WHERE t.id = $1";
const EVENTS_TO: &str = "SELECT e.version, e.at, e.writer, e.change FROM events e JOIN tasks t ON t.n = e.n
    WHERE t.id = $1 AND e.version <= $2 AND ($2 < t.snapshot OR e.version > t.snapshot) ORDER BY e.version";
const EVENTS_AFTER: &str = "SELECT e.version, e.at, e.writer, e.change FROM events e JOIN tasks t ON t.n = e.n
    WHERE t.id = $1 AND e.version > $2 ORDER BY e.version LIMIT $3";

fn found(rows: &[Row]) -> Result<Found, Fail> {
    let row = rows.first().ok_or(StoreError::NotFound)?;
    let task: Option<&str> = cell(row, 7)?;
    Ok(Found {
        context: shared(row, 0)?,
        caller: shared(row, 1)?,
        head: Head { version: uint(cell(row, 2)?), epoch: uint(cell(row, 3)?), state: state(cell(row, 4)?)? },
        snapshot: uint(cell(row, 5)?),
        first: uint(cell(row, 6)?),
        task: task.map(read_task).transpose()?,
    })
}

/// A task at a version, or at its newest.
pub(super) async fn load(client: &Object, id: &str, version: Option<u64>) -> Result<Arc<Task>, Fail> {
    for _ in 0..TRIES {
        let upto = version.map_or(i64::MAX, int);
        // Both are sent at once; the second may see a later state than the first.
        let params: [&(dyn ToSql + Sync); 2] = [&id, &upto];
        let (head, events) = try_join(query(client, HEAD, &params), query(client, EVENTS_TO, &params)).await?;
        let found = found(&head)?;
        let wanted = version.unwrap_or(found.head.version);
        if wanted > found.head.version || (wanted < found.snapshot && found.first > 1) {
            return Err(StoreError::Trimmed(found.snapshot.max(1)).into());
        }
        if let Some(task) = replay(id, found, &events, wanted)? {
            return Ok(Arc::new(task));
        }
    }
    Err(StoreError::Damaged(format!("task {id}: events are missing")).into())
}

/// The task at a version; nothing when events are missing on the way.
fn replay(id: &str, found: Found, events: &[Row], wanted: u64) -> Result<Option<Task>, Fail> {
    let damaged = |why: &str| Fail::from(StoreError::Damaged(format!("task {id}: {why}")));
    let Found { context, caller, mut task, .. } = found;
    for row in events {
        let version = uint(cell(row, 0)?);
        if version > wanted {
            break;
        }
        let at = time(cell(row, 1)?);
        let writer: Option<Arc<str>> = cell::<Option<&str>>(row, 2)?.map(Arc::from);
        let change = read_change(cell(row, 3)?)?;
        match &mut task {
            Some(task) if version <= task.version => {}
            Some(task) if version == task.version + 1 => {
                let writer = writer.or_else(|| task.owner.clone()).unwrap_or_default();
                task.change(&change, &writer, at).map_err(|e| damaged(&e.to_string()))?;
            }
            None if version == 1 => {
                let (context, caller) = (Arc::clone(&context), Arc::clone(&caller));
                let first = Task::first(id.into(), context, caller, &change, writer.unwrap_or_default(), at);
                task = Some(first.ok_or_else(|| damaged("its first event makes no task"))?);
            }
            _ => return Ok(None),
        }
    }
    Ok(task.filter(|t| t.version == wanted))
}

/// Head of a task, and events after a version.
pub(super) async fn events(client: &Object, id: &str, after: u64, limit: usize) -> Result<(Head, Vec<Event>), Fail> {
    let (after_number, limit, no_snapshot) = (int(after), len(limit), -1_i64);
    let head: [&(dyn ToSql + Sync); 2] = [&id, &no_snapshot];
    let params: [&(dyn ToSql + Sync); 3] = [&id, &after_number, &limit];
    let (head, rows) = try_join(query(client, HEAD, &head), query(client, EVENTS_AFTER, &params)).await?;
    let found = found(&head)?;
    if after + 1 < found.first {
        return Err(StoreError::Trimmed(found.first).into());
    }
    let mut events = Vec::with_capacity(rows.len());
    for (row, expected) in rows.iter().zip(after + 1..) {
        let version = uint(cell(row, 0)?);
        if version != expected {
            // They were dropped between the two reads.
            return Err(StoreError::Trimmed(version).into());
        }
        let change = Arc::new(read_change(cell(row, 3)?)?);
        events.push(Event { version, at: time(cell(row, 1)?), change });
    }
    Ok((found.head, events))
}

/// Who wrote an event and what it says, as they are written; nothing if there is none.
pub(super) async fn event_text(
    client: &Object,
    id: &str,
    version: u64,
) -> Result<Option<(Option<String>, String)>, Fail> {
    let sql = "SELECT e.writer, e.change FROM events e JOIN tasks t ON t.n = e.n WHERE t.id = $1 AND e.version = $2";
    let rows = query(client, sql, &[&id, &int(version)]).await?;
    rows.first().map(|row| Ok((cell(row, 0)?, cell(row, 1)?))).transpose()
}

/// What a context remembers.
pub(super) async fn conversation(client: &Object, caller: &str, context: &str) -> Result<Conversation, Fail> {
    let sql = "SELECT memo, messages FROM contexts WHERE caller = $1 AND context = $2";
    let rows = query(client, sql, &[&caller, &context]).await?;
    let mut conversation = Conversation::default();
    if let Some(row) = rows.first() {
        let memo: Option<&str> = cell(row, 0)?;
        conversation.memo = memo.map(Raw::parse).transpose().map_err(Damaged::from)?;
        for message in cell::<Vec<&str>>(row, 1)? {
            conversation.push(&Raw::parse(message).map_err(Damaged::from)?);
        }
    }
    Ok(conversation)
}

/// What is known of a key.
pub(super) async fn key(client: &Object, id: &str) -> Result<Option<KeyRecord>, Fail> {
    let sql = "SELECT hash, turn, task, message FROM keys WHERE id = $1 AND at >= now_us() - $2";
    let rows = query(client, sql, &[&id, &key_retention()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let message: Option<&str> = cell(row, 3)?;
    Ok(Some(KeyRecord {
        key: Key { id: id.into(), hash: shared(row, 0)?, turn: shared(row, 1)? },
        task: shared(row, 2)?,
        message: message.map(Raw::parse).transpose().map_err(Damaged::from)?,
    }))
}

/// A receiver from its columns: task, id, json, dialect, delivered, attempts, next, dead.
pub(super) fn receiver(row: &Row) -> Result<PushConfig, Fail> {
    let dialect = usize::try_from(cell::<i16>(row, 3)?).ok().and_then(|d| DIALECTS.get(d));
    Ok(PushConfig {
        task: shared(row, 0)?,
        id: shared(row, 1)?,
        json: Raw::parse(cell(row, 2)?).map_err(Damaged::from)?,
        dialect: *dialect.ok_or_else(|| StoreError::Damaged("there is no such dialect".into()))?,
        delivered: uint(cell(row, 4)?),
        attempts: u32::try_from(cell::<i64>(row, 5)?).unwrap_or(u32::MAX),
        next: time(cell(row, 6)?),
        dead: cell::<Option<&str>>(row, 7)?.map(Arc::from),
    })
}

/// A receiver that was just claimed, the claim, and whether the one before it ran out.
pub(super) fn claimed(row: &Row) -> Result<(PushConfig, u64, bool), Fail> {
    Ok((receiver(row)?, uint(cell(row, 8)?), cell(row, 9)?))
}

/// Receivers of a task.
pub(super) async fn push_configs(client: &Object, task: &str) -> Result<Vec<PushConfig>, Fail> {
    let sql = "SELECT t.id, p.id, p.json, p.dialect, p.delivered, p.attempts, p.next, p.dead
        FROM tasks t LEFT JOIN push p ON p.n = t.n WHERE t.id = $1 ORDER BY p.id";
    let rows = query(client, sql, &[&task]).await?;
    if rows.is_empty() {
        return Err(StoreError::NotFound.into());
    }
    let mut found = Vec::new();
    for row in &rows {
        if cell::<Option<&str>>(row, 1)?.is_some() {
            found.push(receiver(row)?);
        }
    }
    Ok(found)
}

/// A part of a list.
pub(super) async fn list(client: &Object, wanted: &Query) -> Result<Page, Fail> {
    let context = wanted.context.as_deref();
    let state = wanted.state.map(state_number);
    let since = wanted.since.map_or(i64::MIN, Timestamp::as_microsecond);
    let caller = &*wanted.caller;
    let filter = "FROM tasks WHERE revealed AND caller = $1 AND ($2::text IS NULL OR context = $2)
        AND ($3::smallint IS NULL OR state = $3) AND since >= $4";
    let count = format!("SELECT count(*) {filter}");
    let page = format!(
        "SELECT id {filter} AND ($5::bigint IS NULL OR (since <= $5 AND (since < $5 OR id > $6)))
         ORDER BY since DESC, id LIMIT $7"
    );
    let after = wanted.after.as_ref();
    let (after_since, after_id) = (after.map(|a| a.since.as_microsecond()), after.map(|a| &*a.id));
    let limit = len(wanted.limit.saturating_add(1));
    let filtered: [&(dyn ToSql + Sync); 4] = [&caller, &context, &state, &since];
    let paged: [&(dyn ToSql + Sync); 7] = [&caller, &context, &state, &since, &after_since, &after_id, &limit];
    let (count, rows) = try_join(query(client, &count, &filtered), query(client, &page, &paged)).await?;
    let ids = rows.iter().map(|r| cell(r, 0)).collect::<Result<Vec<&str>, _>>()?;
    let loads = join_all(ids.iter().take(wanted.limit).map(|id| load(client, id, None))).await;
    let mut tasks = Vec::with_capacity(loads.len());
    for loaded in loads {
        match loaded {
            Ok(task) => tasks.push(task),
            // It was forgotten since.
            Err(Fail::Store(StoreError::NotFound)) => {}
            Err(e) => return Err(e),
        }
    }
    let total = count.first().map_or(Ok(0), |row| cell(row, 0))?;
    Ok(Page { tasks, more: ids.len() > wanted.limit, total: uint(total) })
}

/// Tasks that another process works on, or would, whose lease has run out, and those of the pod's former process.
pub(super) async fn orphans(client: &Object, owner: &str, limit: usize) -> Result<Vec<String>, Fail> {
    let sql = "SELECT t.id FROM tasks t LEFT JOIN leases l ON l.owner = t.owner
        WHERE t.owner IS NOT NULL AND t.owner <> $1
            AND (l.until IS NULL OR l.until <= now_us() OR split_part(t.owner, '/', 1) = split_part($1, '/', 1))
        ORDER BY t.n LIMIT $2";
    let rows = query(client, sql, &[&owner, &len(limit)]).await?;
    rows.iter().map(|row| cell(row, 0)).collect()
}

/// Versions of tasks that are there.
pub(super) async fn versions(client: &Object, ids: &[&str]) -> Result<Vec<(String, u64)>, Fail> {
    let rows = query(client, "SELECT id, version FROM tasks WHERE id = ANY($1)", &[&ids]).await?;
    rows.iter().map(|row| Ok((cell(row, 0)?, uint(cell(row, 1)?)))).collect()
}

/// Tasks of a caller that have not ended.
pub(super) async fn open_tasks(client: &Object, caller: &str) -> Result<u64, Fail> {
    let rows = query(client, "SELECT count(*) FROM tasks WHERE caller = $1 AND state < 4", &[&caller]).await?;
    rows.first().map_or(Ok(0), |row| cell(row, 0).map(uint))
}

/// Tasks by state.
pub(super) async fn states(client: &Object) -> Result<Vec<(State, i64)>, Fail> {
    let rows = query(client, "SELECT state, count(*) FROM tasks GROUP BY state", &[]).await?;
    rows.iter().map(|row| Ok((state(cell(row, 0)?)?, cell(row, 1)?))).collect()
}
