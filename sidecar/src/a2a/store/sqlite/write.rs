//! What is written for each operation. What must not be done is found out before the first row is written.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::stored::{read_list, write_list, write_task};
use outrigger_protocol::a2a::task::{Refused, Task};
use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::super::clock::later;
use super::super::{Event, KEY_RETENTION, Key, PushConfig, PushWork, StoreError};
use super::house::{Bounds, make_room, tasks_of};
use super::rows::{
    Fail, Head, MAX_VERSION, RECEIVER, event_number, int, key, len, newest, put_receiver, receiver, uint,
};
use super::writer::{Db, Moved, Told};

/// What an event takes beside its JSON, about.
pub(super) const EVENT_OVERHEAD: usize = 64;
/// A snapshot is written when the events after the last one outgrow it, and this.
const SNAPSHOT_BYTES: u64 = 64 << 10;
/// A task that ends has a snapshot when so many events came after the last one: a read needs fewer rows.
const SNAPSHOT_EVENTS: u64 = 16;
/// Most events that are kept of one task; those before its snapshot go.
const MAX_EVENTS: u64 = 16_384;
/// Most bytes of events that are kept of one task.
const MAX_EVENT_BYTES: u64 = 64 << 20;
/// Most keys that are kept; the oldest go first.
const MAX_KEYS: u64 = 1 << 18;

/// An event as it is written.
pub(super) struct Row {
    pub event: Event,
    pub json: String,
}

/// Since when keys count.
pub(super) fn key_limit(now: Timestamp) -> Timestamp {
    now.checked_sub(jiff::SignedDuration::try_from(KEY_RETENTION).unwrap_or_default()).unwrap_or(Timestamp::MIN)
}

fn unused(db: &Connection, used: Option<&Key>, now: Timestamp) -> Result<(), Fail> {
    let Some(used) = used else { return Ok(()) };
    match key(db, &used.id, key_limit(now))? {
        Some(record) => Err(StoreError::Duplicate(Box::new(record)).into()),
        None => Ok(()),
    }
}

fn use_key(db: &mut Db, key: Option<&Key>, task: &str, now: Timestamp) -> Result<(), Fail> {
    let Some(key) = key else { return Ok(()) };
    if db.counts.keys >= MAX_KEYS {
        db.sql.prepare_cached("DELETE FROM keys WHERE id IN (SELECT id FROM keys ORDER BY at LIMIT 1)")?.execute([])?;
        db.counts.keys -= 1;
    }
    let gone = db.sql.prepare_cached("DELETE FROM keys WHERE id = ?")?.execute([&key.id])?;
    db.sql.prepare_cached("INSERT INTO keys (id, hash, turn, task, at) VALUES (?, ?, ?, ?, ?)")?.execute(params![
        key.id,
        key.hash,
        key.turn,
        task,
        now.as_microsecond()
    ])?;
    db.counts.keys += u64::from(gone == 0);
    Ok(())
}

/// What a context remembers, and its row.
pub(super) fn context(db: &Connection, caller: &str, context: &str) -> Result<Option<(i64, Conversation)>, Fail> {
    let mut statement = db.prepare_cached("SELECT c, memo, messages FROM contexts WHERE caller = ? AND context = ?")?;
    let row = statement
        .query_row([caller, context], |r| Ok((r.get(0)?, r.get::<_, Option<String>>(1)?, r.get::<_, String>(2)?)));
    let Some((c, memo, messages)) = row.optional()? else { return Ok(None) };
    let memo = memo.map(|m| Raw::parse(&m)).transpose();
    let memo = memo.map_err(outrigger_protocol::a2a::stored::Damaged::from)?;
    Ok(Some((c, Conversation { memo, messages: read_list(&messages)? })))
}

fn remember(
    db: &Connection,
    task: &Task,
    message: Option<&Raw>,
    memo: Option<&Raw>,
    at: Timestamp,
) -> Result<(), Fail> {
    if message.is_none() && memo.is_none() {
        return Ok(());
    }
    let Some((c, mut conversation)) = context(db, &task.caller, &task.context_id)? else { return Ok(()) };
    if let Some(message) = message {
        conversation.push(message);
    }
    if let Some(memo) = memo {
        conversation.set_memo(memo);
    }
    write_context(db, c, &conversation, at)
}

fn write_context(db: &Connection, c: i64, conversation: &Conversation, at: Timestamp) -> Result<(), Fail> {
    let mut messages = String::with_capacity(conversation.size() + 32);
    write_list(&conversation.messages, &mut messages);
    let memo = conversation.memo.as_ref().map(Raw::as_str);
    db.prepare_cached("UPDATE contexts SET memo = ?, messages = ?, touched = ? WHERE c = ?")?.execute(params![
        memo,
        messages,
        at.as_microsecond(),
        c
    ])?;
    Ok(())
}

fn is_there(db: &Connection, task: &str) -> Result<bool, Fail> {
    Ok(db.prepare_cached("SELECT 1 FROM tasks WHERE id = ?")?.exists([task])?)
}

fn write_event(db: &Connection, n: i64, row: &Row, writer: Option<&Arc<str>>) -> Result<(), Fail> {
    db.prepare_cached("INSERT INTO events (e, at, writer, change) VALUES (?, ?, ?, ?)")?.execute(params![
        event_number(n, row.event.version),
        row.event.at.as_microsecond(),
        writer,
        row.json
    ])?;
    Ok(())
}

/// Writes a new task.
pub(super) fn create(
    db: &mut Db,
    task: &Arc<Task>,
    row: Row,
    key: Option<&Key>,
    push: Option<&PushConfig>,
    bounds: Bounds,
) -> Result<(Arc<Task>, Told), Fail> {
    let now = task.since;
    if is_there(&db.sql, &task.id)?
        && let Some(head) = Head::by_id(&db.sql, &task.id)?
    {
        let there = head.load(&db.sql, head.version)?;
        let mine = there.version == 1 && there.owner == task.owner;
        return if mine {
            Ok((there, Told::default()))
        } else {
            Err(StoreError::Conflict { expected: 0, current: there }.into())
        };
    }
    unused(&db.sql, key, now)?;
    let mut told = Told::default();
    let known = context(&db.sql, &task.caller, &task.context_id)?;
    make_room(db, bounds, now, known.as_ref().map(|k| k.0), &mut told)?;
    let message = task.history.first();
    let c = if let Some((c, mut conversation)) = known {
        if let Some(message) = message {
            conversation.push(message);
        }
        write_context(&db.sql, c, &conversation, now)?;
        let tasks = tasks_of(&db.sql, c)?.unwrap_or_default();
        db.sql.prepare_cached("UPDATE contexts SET tasks = ? WHERE c = ?")?.execute([tasks + 1, c])?;
        db.counts.idle = db.counts.idle.saturating_sub(u64::from(tasks == 0));
        c
    } else {
        let mut conversation = Conversation::default();
        if let Some(message) = message {
            conversation.push(message);
        }
        let mut messages = String::with_capacity(conversation.size() + 2);
        write_list(&conversation.messages, &mut messages);
        db.sql
            .prepare_cached("INSERT INTO contexts (caller, context, messages, touched, tasks) VALUES (?, ?, ?, ?, 1)")?
            .execute(params![task.caller, task.context_id, messages, now.as_microsecond()])?;
        db.sql.last_insert_rowid()
    };
    let bytes = row.json.len() + EVENT_OVERHEAD;
    db.sql
        .prepare_cached(
            "INSERT INTO tasks (id, c, caller, context, version, epoch, owner, state, since, revealed, key, receivers, logged, fresh)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12)",
        )?
        .execute(params![
            task.id,
            c,
            task.caller,
            task.context_id,
            int(task.epoch),
            task.owner,
            task.state as i64,
            now.as_microsecond(),
            task.revealed,
            key.map(|k| &k.id),
            i64::from(push.is_some()),
            len(bytes),
        ])?;
    let n = db.sql.last_insert_rowid();
    write_event(&db.sql, n, &row, task.owner.as_ref())?;
    use_key(db, key, &task.id, now)?;
    if let Some(push) = push {
        put_receiver(&db.sql, n, 1, push)?;
    }
    db.counts.tasks += 1;
    db.counts.bytes += bytes as u64;
    let (id, caller) = (Arc::clone(&task.id), Arc::clone(&task.caller));
    told.moved.push(Moved { task: id, caller, from: None, to: Some(task.state) });
    told.event = Some((Arc::clone(task), row.event));
    told.hint = push.is_some();
    Ok((Arc::clone(task), told))
}

/// What an append writes.
pub(super) struct Append {
    pub seen: Seen,
    /// The task after it, or why the rules forbid it.
    pub next: Result<Arc<Task>, Refused>,
    pub row: Row,
    pub memo: Option<Raw>,
    pub key: Option<Key>,
    /// Who writes, if it is not the owner that was seen.
    pub writer: Option<Arc<str>>,
    pub now: Timestamp,
}

/// A task as its writer saw it.
pub(super) struct Seen {
    pub id: Arc<str>,
    pub version: u64,
    pub epoch: u64,
    pub owner: Option<Arc<str>>,
    pub state: outrigger_protocol::a2a::state::State,
}

impl Seen {
    pub(super) fn of(task: &Task) -> Self {
        let (id, owner) = (Arc::clone(&task.id), task.owner.clone());
        Self { id, version: task.version, epoch: task.epoch, owner, state: task.state }
    }

    fn check(&self, db: &Connection) -> Result<Head, Fail> {
        let head = Head::by_id(db, &self.id)?.ok_or(StoreError::NotFound)?;
        if (head.version, head.epoch, &head.owner) == (self.version, self.epoch, &self.owner) {
            return Ok(head);
        }
        Err(StoreError::Conflict { expected: self.version, current: head.load(db, head.version)? }.into())
    }
}

/// Writes a change.
pub(super) fn append(db: &mut Db, a: Append) -> Result<(Arc<Task>, Told), Fail> {
    let Append { seen, next, row, memo, key, writer, now } = a;
    if key.is_some() || next.is_err() {
        seen.check(&db.sql)?;
        unused(&db.sql, key.as_ref(), now)?;
    }
    let next = next.map_err(StoreError::from)?;
    if next.version > MAX_VERSION {
        return Err(StoreError::Full(format!("a task has at most {MAX_VERSION} versions")).into());
    }
    let bytes = row.json.len() + EVENT_OVERHEAD;
    // Two statements and not one that returns what it changed: that would make a table of its own for it each time.
    let found = db
        .sql
        .prepare_cached(
            "SELECT n, receivers, snapshot, snapshot_bytes, first, logged, fresh FROM tasks
             WHERE id = ? AND version = ? AND epoch = ? AND owner IS ?",
        )?
        .query_row(params![seen.id, int(seen.version), int(seen.epoch), seen.owner], |r| {
            let n: i64 = r.get(0)?;
            Ok((
                n,
                r.get::<_, i64>(1)?,
                [uint(r.get(2)?), uint(r.get(3)?), uint(r.get(4)?)],
                uint(r.get(5)?) + bytes as u64,
                uint(r.get(6)?) + bytes as u64,
            ))
        })
        .optional()?;
    let Some((n, receivers, [snapshot, snapshot_bytes, first], logged, fresh)) = found else {
        seen.check(&db.sql)?;
        return Err(StoreError::Damaged(format!("task {} is and is not as it was seen", seen.id)).into());
    };
    db.sql
        .prepare_cached(
            "UPDATE tasks SET version = ?, epoch = ?, owner = ?, state = ?, since = ?, revealed = ?, logged = ?, fresh = ?
             WHERE n = ?",
        )?
        .execute(params![
            int(next.version),
            int(next.epoch),
            next.owner,
            next.state as i64,
            next.since.as_microsecond(),
            next.revealed,
            int(logged),
            int(fresh),
            n
        ])?;
    write_event(&db.sql, n, &row, writer.as_ref())?;
    remember(&db.sql, &next, row.event.change.message.as_ref(), memo.as_ref(), now)?;
    use_key(db, key.as_ref(), &next.id, now)?;
    if receivers > 0 {
        db.sql
            .prepare_cached(
                "UPDATE push SET due = next WHERE n = ? AND dead IS NULL AND due IS NULL AND delivered < ?",
            )?
            .execute(params![n, int(next.version)])?;
    }
    db.counts.bytes += bytes as u64;
    let trim = logged > MAX_EVENT_BYTES || next.version - first >= MAX_EVENTS;
    let outgrown = fresh > snapshot_bytes.max(SNAPSHOT_BYTES);
    if outgrown || (next.state.is_terminal() && next.version - snapshot > SNAPSHOT_EVENTS) {
        write_snapshot(&db.sql, n, &next)?;
    } else if trim && snapshot > first {
        db.counts.bytes -= drop_events(&db.sql, n, first, snapshot)?;
    }
    let (task, caller) = (Arc::clone(&next.id), Arc::clone(&next.caller));
    let moved = vec![Moved { task, caller, from: Some(seen.state), to: Some(next.state) }];
    let told = Told { moved, event: Some((Arc::clone(&next), row.event)), hint: receivers > 0 };
    Ok((next, told))
}

fn write_snapshot(db: &Connection, n: i64, task: &Task) -> Result<(), Fail> {
    let mut json = String::with_capacity(task.size() + 1_024);
    write_task(task, &mut json);
    db.prepare_cached("INSERT OR REPLACE INTO snapshots (n, task) VALUES (?, ?)")?.execute(params![n, json])?;
    db.prepare_cached("UPDATE tasks SET snapshot = ?, snapshot_bytes = ?, fresh = 0 WHERE n = ?")?.execute(params![
        int(task.version),
        len(json.len()),
        n
    ])?;
    Ok(())
}

/// Drops the events up to the snapshot; gives their bytes.
fn drop_events(db: &Connection, n: i64, first: u64, snapshot: u64) -> Result<u64, Fail> {
    let range = params![event_number(n, first), event_number(n, snapshot)];
    let bytes: i64 = db
        .prepare_cached("SELECT coalesce(sum(octet_length(change)), 0) FROM events WHERE e BETWEEN ? AND ?")?
        .query_row(range, |r| r.get(0))?;
    let gone = db.prepare_cached("DELETE FROM events WHERE e BETWEEN ? AND ?")?.execute(range)?;
    let bytes = uint(bytes) + (gone * EVENT_OVERHEAD) as u64;
    db.prepare_cached("UPDATE tasks SET first = ?, logged = logged - ? WHERE n = ?")?.execute(params![
        int(snapshot + 1),
        int(bytes),
        n
    ])?;
    Ok(bytes)
}

/// Forgets a task that no caller knows of.
pub(super) fn withdraw(
    db: &mut Db,
    seen: &Seen,
    memo: Option<&Raw>,
    message: &Raw,
    now: Timestamp,
) -> Result<((), Told), Fail> {
    let head = seen.check(&db.sql)?;
    if head.state.is_terminal() {
        return Err(StoreError::from(Refused::Ended(head.state)).into());
    }
    let task = newest(&db.sql, &seen.id)?;
    remember(&db.sql, &task, None, memo, now)?;
    if let Some(key) = &head.key {
        db.sql.prepare_cached("UPDATE keys SET message = ? WHERE id = ? AND task = ?")?.execute(params![
            message.as_str(),
            key,
            head.id
        ])?;
    }
    let mut told = Told::default();
    super::house::remove(db, &head, &mut told)?;
    Ok(((), told))
}

/// Writes a receiver.
pub(super) fn put_push(db: &Db, config: &PushConfig) -> Result<((), Told), Fail> {
    let head = Head::by_id(&db.sql, &config.task)?.ok_or(StoreError::NotFound)?;
    if put_receiver(&db.sql, head.n, head.version, config)? {
        db.sql.prepare_cached("UPDATE tasks SET receivers = receivers + 1 WHERE n = ?")?.execute([head.n])?;
    }
    Ok(((), Told { hint: true, ..Told::default() }))
}

/// Forgets a receiver.
pub(super) fn delete_push(db: &Db, task: &str, id: &str) -> Result<(bool, Told), Fail> {
    let head = Head::by_id(&db.sql, task)?.ok_or(StoreError::NotFound)?;
    let gone = db.sql.prepare_cached("DELETE FROM push WHERE n = ? AND id = ?")?.execute(params![head.n, id])?;
    if gone > 0 {
        db.sql.prepare_cached("UPDATE tasks SET receivers = receivers - 1 WHERE n = ?")?.execute([head.n])?;
    }
    Ok((gone > 0, Told::default()))
}

/// Claims receivers that are due.
pub(super) fn claim(db: &mut Db, limit: usize, hold: Duration, now: Timestamp) -> Result<(Vec<PushWork>, Told), Fail> {
    let mut found = Vec::new();
    {
        let mut statement = db.sql.prepare_cached(&format!(
            "SELECT p.n, p.claim, {RECEIVER} WHERE p.due IS NOT NULL AND p.due <= ? ORDER BY p.due, t.id, p.id LIMIT ?"
        ))?;
        let mut rows = statement.query(params![now.as_microsecond(), len(limit)])?;
        while let Some(row) = rows.next()? {
            found.push((row.get::<_, i64>(0)?, row.get::<_, i64>(1)? != 0, receiver(row)?));
        }
    }
    let until = later(now, hold).as_microsecond();
    let mut work = Vec::with_capacity(found.len());
    for (n, again, config) in found {
        db.counts.claims += 1;
        let claim = db.counts.claims;
        db.sql
            .prepare_cached("UPDATE push SET claim = ?, next = ?, due = ? WHERE n = ? AND id = ?")?
            .execute(params![int(claim), until, until, n, config.id])?;
        work.push(PushWork { config, claim, again });
    }
    Ok((work, Told::default()))
}

/// Ends a claim that holds.
pub(super) fn done(db: &Db, work: &PushWork) -> Result<((), Told), Fail> {
    let config = &work.config;
    db.sql
        .prepare_cached(
            "UPDATE push SET claim = 0, json = :json, delivered = :delivered, attempts = :attempts, next = :next, dead = :dead,
                 due = iif(:dead IS NULL AND t.version > :delivered, :next, NULL)
             FROM tasks t
             WHERE t.id = :task AND push.n = t.n AND push.id = :id AND push.claim = :claim",
        )?
        .execute(named_params! {
            ":json": config.json.as_str(), ":delivered": int(config.delivered), ":attempts": config.attempts,
            ":next": config.next.as_microsecond(), ":dead": config.dead, ":task": config.task, ":id": config.id, ":claim": int(work.claim),
        })?;
    Ok(((), Told::default()))
}
