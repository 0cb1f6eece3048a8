//! Making room and forgetting what is old.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::super::StoreError;
use super::super::clock::later;
use super::rows::{Fail, Head, event_number, len, time, uint};
use super::write::key_limit;
use super::writer::{Counts, Db, Moved, Told};

/// Most bytes of events of all tasks.
pub const MAX_BYTES: u64 = 1 << 30;
/// Most rows that one write forgets because they are old, so that others need not wait for long.
pub(super) const SWEEP: usize = 256;

/// Bounds in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub tasks: u64,
    pub retention: Duration,
}

/// Counts what is there.
pub(super) fn count(db: &rusqlite::Connection) -> rusqlite::Result<Counts> {
    let one = |sql: &str| db.query_row(sql, [], |r| r.get(0)).map(uint);
    Ok(Counts {
        tasks: one("SELECT count(*) FROM tasks")?,
        idle: one("SELECT count(*) FROM contexts WHERE tasks = 0")?,
        keys: one("SELECT count(*) FROM keys")?,
        bytes: one("SELECT coalesce(sum(logged), 0) FROM tasks")?,
        // Claims of an earlier process have other numbers.
        claims: u64::from(rand::random::<u32>() >> 1) << 32,
    })
}

/// How many tasks a context has; nothing if it is no more.
pub(super) fn tasks_of(db: &rusqlite::Connection, c: i64) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT tasks FROM contexts WHERE c = ?")?.query_row([c], |r| r.get(0)).optional()
}

/// Forgets a task as `head` says that it is; its context stays.
pub(super) fn remove(db: &mut Db, head: &Head, told: &mut Told) -> Result<(), Fail> {
    let sql = &db.sql;
    sql.prepare_cached("DELETE FROM tasks WHERE n = ?")?.execute([head.n])?;
    sql.prepare_cached("DELETE FROM events WHERE e BETWEEN ? AND ?")?
        .execute([event_number(head.n, 0), event_number(head.n, u64::MAX)])?;
    if head.snapshot > 0 {
        sql.prepare_cached("DELETE FROM snapshots WHERE n = ?")?.execute([head.n])?;
    }
    if head.receivers > 0 {
        sql.prepare_cached("DELETE FROM push WHERE n = ?")?.execute([head.n])?;
    }
    if let Some(tasks) = tasks_of(sql, head.c)? {
        sql.prepare_cached("UPDATE contexts SET tasks = ? WHERE c = ?")?.execute([tasks - 1, head.c])?;
        db.counts.idle += u64::from(tasks == 1);
    }
    db.counts.tasks = db.counts.tasks.saturating_sub(1);
    db.counts.bytes = db.counts.bytes.saturating_sub(head.logged);
    let (task, caller) = (Arc::clone(&head.id), Arc::clone(&head.caller));
    told.moved.push(Moved { task, caller, from: Some(head.state), to: None });
    Ok(())
}

/// Numbers of ended tasks, the oldest end first, and since when they have ended.
fn ended(db: &Db, before: Option<Timestamp>, limit: usize) -> Result<Vec<(i64, Timestamp)>, Fail> {
    let before = before.map_or(i64::MAX, Timestamp::as_microsecond);
    let mut statement =
        db.sql.prepare_cached("SELECT n, since FROM tasks WHERE state >= 4 AND since < ? ORDER BY since, n LIMIT ?")?;
    let rows = statement.query_map(params![before, len(limit)], |r| Ok((r.get(0)?, time(r.get(1)?))))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Makes room for a new task. `keep` is the row of its context.
pub(super) fn make_room(
    db: &mut Db,
    bounds: Bounds,
    now: Timestamp,
    keep: Option<i64>,
    told: &mut Told,
) -> Result<(), Fail> {
    let most = bounds.tasks.saturating_sub(1);
    // Some at once: what lies together goes together.
    let more = (bounds.tasks / 64).min(63);
    if db.counts.tasks > most || db.counts.bytes > MAX_BYTES {
        let over = db.counts.tasks.saturating_sub(most).max(1) + more;
        let ended = ended(db, None, usize::try_from(over).unwrap_or(usize::MAX))?;
        // What must not be done is found out before anything is written.
        if db.counts.tasks.saturating_sub(ended.len() as u64) > most {
            return Err(StoreError::Full(format!("all of its {} tasks are still alive", db.counts.tasks)).into());
        }
        if ended.is_empty() {
            let why = format!("its {MAX_BYTES} bytes are taken by tasks that are still alive");
            return Err(StoreError::Full(why).into());
        }
        for (n, since) in ended {
            let Some(head) = Head::by_number(&db.sql, n)? else { continue };
            remove(db, &head, told)?;
            if later(since, bounds.retention) >= now {
                db.shared.metrics.evicted.inc();
            }
        }
    }
    let over = db.counts.idle.saturating_sub(bounds.tasks);
    if over > 0 {
        forget_contexts(db, i64::MAX, keep, usize::try_from(over + more).unwrap_or(usize::MAX).min(SWEEP))?;
    }
    Ok(())
}

fn forget_contexts(db: &mut Db, before: i64, keep: Option<i64>, limit: usize) -> Result<usize, Fail> {
    let gone = db
        .sql
        .prepare_cached(
            "DELETE FROM contexts WHERE c IN
                 (SELECT c FROM contexts WHERE tasks = 0 AND touched < ? AND c IS NOT ? ORDER BY touched LIMIT ?)",
        )?
        .execute(params![before, keep, len(limit)])?;
    db.counts.idle = db.counts.idle.saturating_sub(gone as u64);
    Ok(gone)
}

/// Forgets some of what is past its retention; says whether there may be more.
pub(super) fn sweep(db: &mut Db, bounds: Bounds, now: Timestamp) -> Result<(bool, Told), Fail> {
    let retention = jiff::SignedDuration::try_from(bounds.retention).unwrap_or(jiff::SignedDuration::MAX);
    let old = now.checked_sub(retention).unwrap_or(Timestamp::MIN);
    let mut told = Told::default();
    let tasks = ended(db, Some(old), SWEEP)?;
    for (n, _) in &tasks {
        if let Some(head) = Head::by_number(&db.sql, *n)? {
            remove(db, &head, &mut told)?;
        }
    }
    let contexts = forget_contexts(db, old.as_microsecond(), None, SWEEP)?;
    let keys = db
        .sql
        .prepare_cached("DELETE FROM keys WHERE id IN (SELECT id FROM keys WHERE at < ? ORDER BY at LIMIT ?)")?
        .execute(params![key_limit(now).as_microsecond(), len(SWEEP)])?;
    db.counts.keys = db.counts.keys.saturating_sub(keys as u64);
    Ok((tasks.len() == SWEEP || contexts == SWEEP || keys == SWEEP, told))
}
