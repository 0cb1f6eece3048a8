//! What is written for each operation: one statement each, so that a connection that breaks leaves all or nothing.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use jiff::Timestamp;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::stored::{write_change, write_task};
use outrigger_protocol::a2a::task::{Change, Refused, Task};
use tokio_postgres::error::SqlState;

use super::super::{Event, Key, PushConfig, PushWork, StoreError};
use super::connect::Fail;
use super::rows::{
    claimed, dialect_number, event_text, int, key, key_retention, len, load, query, state_number, time, uint,
};

/// What an event takes beside its JSON, about.
const EVENT_OVERHEAD: usize = 64;
/// A snapshot is written when the events after the last one outgrow it, and this.
const SNAPSHOT_BYTES: u64 = 64 << 10;
/// A task that ends has a snapshot when so many events came after the last one.
const SNAPSHOT_EVENTS: u64 = 16;
/// Most events that are kept of one task; those before its snapshot go.
const MAX_EVENTS: u64 = 16_384;
/// Most bytes of events that are kept of one task.
const MAX_EVENT_BYTES: u64 = 64 << 20;
/// Raised by the database for a change that the rules of tasks forbid.
const REFUSED: &str = "OR001";

/// How a function of the schema went.
const DONE: i32 = 0;
const CONFLICT: i32 = 1;
const DUPLICATE: i32 = 2;
const MISSING: i32 = 3;
const ENDED: i32 = 4;

fn unexpected(outcome: i32) -> Fail {
    StoreError::Damaged(format!("the database's functions answer {outcome}, which nobody knows")).into()
}

async fn used(client: &Object, used: Option<&Key>) -> Fail {
    let Some(used) = used else { return unexpected(DUPLICATE) };
    match key(client, &used.id).await {
        Ok(Some(record)) => StoreError::Duplicate(Box::new(record)).into(),
        Ok(None) => StoreError::Unavailable("the idempotency key has just run out".into()).into(),
        Err(e) => e,
    }
}

async fn conflict(client: &Object, expected: u64, id: &str) -> Fail {
    match load(client, id, None).await {
        Ok(current) => StoreError::Conflict { expected, current }.into(),
        Err(e) => e,
    }
}

/// Writes a new task; its owner is set.
pub(super) async fn create(
    client: &Object,
    mut task: Task,
    key: Option<&Key>,
    push: Option<&PushConfig>,
) -> Result<(Arc<Task>, Event), Fail> {
    let change = task.first_change();
    let mut json = String::with_capacity(change.size() + 256);
    write_change(&change, &mut json);
    let create = client
        .prepare_cached(
            "SELECT outcome, at FROM create_task($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
        )
        .await?;
    let row = client
        .query_one(
            &create,
            &[
                &&*task.id,
                &&*task.caller,
                &&*task.context_id,
                &int(task.epoch),
                &task.owner.as_deref(),
                &state_number(task.state),
                &task.revealed,
                &json,
                &len(json.len() + EVENT_OVERHEAD),
                &task.history.first().map(Raw::as_str),
                &key.map(|k| &*k.id),
                &key.map(|k| &*k.hash),
                &key.map(|k| &*k.turn),
                &key_retention(),
                &push.map(|p| &*p.id),
                &push.map(|p| p.json.as_str()),
                &push.map(|p| dialect_number(p.dialect)),
                &push.map(|p| int(p.delivered)),
                &push.map(|p| p.next.as_microsecond()),
            ],
        )
        .await?;
    match row.get(0) {
        DONE => {
            task.since = time(row.get(1));
            let event = Event { version: 1, at: task.since, change: Arc::new(change) };
            Ok((Arc::new(task), event))
        }
        CONFLICT => {
            let there = load(client, &task.id, None).await?;
            if there.version == 1 && there.owner == task.owner {
                let event = Event { version: 1, at: there.since, change: Arc::new(change) };
                return Ok((there, event));
            }
            Err(StoreError::Conflict { expected: 0, current: there }.into())
        }
        DUPLICATE => Err(used(client, key).await),
        other => Err(unexpected(other)),
    }
}

/// A change to be written, with its text.
pub(super) struct Append<'a> {
    pub seen: &'a Task,
    /// The task after it, at another time than the database's.
    pub next: Result<Task, Refused>,
    pub change: Arc<Change>,
    pub json: String,
    pub memo: Option<Raw>,
    pub key: Option<Key>,
    /// Who writes.
    pub owner: &'a Arc<str>,
    pub channel: &'a str,
}

impl<'a> Append<'a> {
    pub(super) fn new(
        seen: &'a Task,
        mut change: Change,
        key: Option<Key>,
        owner: &'a Arc<str>,
        channel: &'a str,
    ) -> Self {
        let next = seen.apply(&change, owner, Timestamp::UNIX_EPOCH);
        let memo = change.memo.take();
        let mut json = String::with_capacity(change.size() + 256);
        write_change(&change, &mut json);
        Self { seen, next, change: Arc::new(change), json, memo, key, owner, channel }
    }

    /// The writer, if it is not the owner that was seen.
    fn writer(&self) -> Option<&str> {
        (self.seen.owner.as_ref() != Some(self.owner)).then_some(&**self.owner)
    }

    /// Writes it; says whether there may be something to push.
    pub(super) async fn write(&self, client: &Object) -> Result<(Arc<Task>, Event, bool), Fail> {
        let (seen, key) = (self.seen, self.key.as_ref());
        let after = self.next.as_ref().unwrap_or(seen);
        let append = client
            .prepare_cached(
                "SELECT outcome, at, row_n, has_receivers, was_snapshot, was_snapshot_bytes, was_first, is_logged, is_fresh
                 FROM append_task($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
            )
            .await?;
        let row = client
            .query_one(
                &append,
                &[
                    &&*seen.id,
                    &int(seen.version),
                    &int(seen.epoch),
                    &seen.owner.as_deref(),
                    &int(after.epoch),
                    &after.owner.as_deref(),
                    &state_number(after.state),
                    &self.change.state.is_some(),
                    &after.revealed,
                    &self.writer(),
                    &self.next.is_ok().then_some(&*self.json),
                    &len(self.json.len() + EVENT_OVERHEAD),
                    &self.change.message.as_ref().map(Raw::as_str),
                    &self.memo.as_ref().map(Raw::as_str),
                    &key.map(|k| &*k.id),
                    &key.map(|k| &*k.hash),
                    &key.map(|k| &*k.turn),
                    &key_retention(),
                    &self.channel,
                ],
            )
            .await;
        let row = match (row, &self.next) {
            (Err(e), Err(refused)) if e.code().map(SqlState::code) == Some(REFUSED) => {
                return Err(StoreError::from(*refused).into());
            }
            (row, _) => row?,
        };
        match row.get(0) {
            DONE => {}
            CONFLICT => return Err(conflict(client, seen.version, &seen.id).await),
            DUPLICATE => return Err(used(client, key).await),
            MISSING => return Err(StoreError::NotFound.into()),
            other => return Err(unexpected(other)),
        }
        let at = time(row.get(1));
        let mut next = after.clone();
        if self.change.state.is_some() {
            next.since = at;
        }
        let event = Event { version: next.version, at, change: Arc::clone(&self.change) };
        let [snapshot, snapshot_bytes, first, logged, fresh] = [4, 5, 6, 7, 8].map(|i| uint(row.get(i)));
        let outgrown = fresh > snapshot_bytes.max(SNAPSHOT_BYTES);
        let trim = logged > MAX_EVENT_BYTES || next.version - first >= MAX_EVENTS;
        let tidied = if outgrown || (next.state.is_terminal() && next.version - snapshot > SNAPSHOT_EVENTS) {
            write_snapshot(client, row.get(2), &next).await
        } else if trim && snapshot > first {
            drop_events(client, row.get(2), snapshot).await
        } else {
            Ok(())
        };
        if let Err(error) = tidied {
            // The change is written; the next one tries again.
            let error = StoreError::from(error);
            tracing::warn!(target: "business", task = &*next.id, %error, "a task's log was not tidied");
        }
        Ok((Arc::new(next), event, row.get(3)))
    }

    /// After an error that tells nothing: the task as the change left it, if it was written.
    pub(super) async fn written(&self, client: &Object) -> Result<Option<(Arc<Task>, Event, bool)>, Fail> {
        let version = self.seen.version + 1;
        let Some((writer, json)) = event_text(client, &self.seen.id, version).await? else { return Ok(None) };
        if json != self.json || writer.as_deref() != self.writer() {
            return Ok(None);
        }
        let task = load(client, &self.seen.id, Some(version)).await?;
        let at = super::rows::events(client, &self.seen.id, self.seen.version, 1).await?.1.first().map(|e| e.at);
        let event = Event { version, at: at.unwrap_or(task.since), change: Arc::clone(&self.change) };
        Ok(Some((task, event, true)))
    }
}

async fn write_snapshot(client: &Object, n: i64, task: &Task) -> Result<(), Fail> {
    let mut json = String::with_capacity(task.size() + 1_024);
    write_task(task, &mut json);
    let bytes = len(json.len());
    query(
        client,
        "WITH moved AS (
             UPDATE tasks SET snapshot = $2, snapshot_bytes = $3, fresh = 0
             WHERE n = $1 AND snapshot < $2 AND version = $2 RETURNING n
         )
         INSERT INTO snapshots (n, task) SELECT n, $4 FROM moved
         ON CONFLICT (n) DO UPDATE SET task = excluded.task",
        &[&n, &int(task.version), &bytes, &json],
    )
    .await?;
    Ok(())
}

/// Drops the events up to the snapshot.
async fn drop_events(client: &Object, n: i64, snapshot: u64) -> Result<(), Fail> {
    query(
        client,
        "WITH gone AS (DELETE FROM events WHERE n = $1 AND version <= $2 RETURNING octet_length(change) + $3 AS bytes)
         UPDATE tasks SET first = $2 + 1, logged = logged - (SELECT coalesce(sum(bytes), 0) FROM gone)::bigint
         WHERE n = $1 AND snapshot >= $2",
        &[&n, &int(snapshot), &i32::try_from(EVENT_OVERHEAD).unwrap_or_default()],
    )
    .await?;
    Ok(())
}

/// Forgets a task that no caller knows of.
pub(super) async fn withdraw(
    client: &Object,
    seen: &Task,
    memo: Option<&Raw>,
    message: &Raw,
    channel: &str,
) -> Result<(), Fail> {
    let withdraw = client.prepare_cached("SELECT withdraw_task($1, $2, $3, $4, $5, $6, $7)").await?;
    let row = client
        .query_one(
            &withdraw,
            &[
                &&*seen.id,
                &int(seen.version),
                &int(seen.epoch),
                &seen.owner.as_deref(),
                &memo.map(Raw::as_str),
                &message.as_str(),
                &channel,
            ],
        )
        .await?;
    match row.get(0) {
        DONE => Ok(()),
        CONFLICT => Err(conflict(client, seen.version, &seen.id).await),
        MISSING => Err(StoreError::NotFound.into()),
        // It was as it was seen, so this is its state.
        ENDED => Err(StoreError::from(Refused::Ended(seen.state)).into()),
        other => Err(unexpected(other)),
    }
}

/// Writes a receiver.
pub(super) async fn put_push(client: &Object, config: &PushConfig) -> Result<(), Fail> {
    let put = client.prepare_cached("SELECT put_receiver($1, $2, $3, $4, $5, $6, $7, $8)").await?;
    let row = client
        .query_one(
            &put,
            &[
                &&*config.task,
                &&*config.id,
                &config.json.as_str(),
                &dialect_number(config.dialect),
                &int(config.delivered),
                &i64::from(config.attempts),
                &config.next.as_microsecond(),
                &config.dead.as_deref(),
            ],
        )
        .await?;
    match row.get(0) {
        DONE => Ok(()),
        MISSING => Err(StoreError::NotFound.into()),
        other => Err(unexpected(other)),
    }
}

/// Forgets a receiver.
pub(super) async fn delete_push(client: &Object, task: &str, id: &str) -> Result<bool, Fail> {
    let delete = client.prepare_cached("SELECT delete_receiver($1, $2)").await?;
    match client.query_one(&delete, &[&task, &id]).await?.get(0) {
        DONE => Ok(true),
        CONFLICT => Ok(false),
        MISSING => Err(StoreError::NotFound.into()),
        other => Err(unexpected(other)),
    }
}

/// Claims receivers that are due.
pub(super) async fn claim(client: &Object, limit: usize, hold: Duration) -> Result<Vec<PushWork>, Fail> {
    let hold = i64::try_from(hold.as_micros()).unwrap_or(i64::MAX);
    let rows = query(client, "SELECT * FROM claim_receivers($1, $2)", &[&len(limit), &hold]).await?;
    let mut work = Vec::with_capacity(rows.len());
    for row in &rows {
        let (config, claim, again) = claimed(row)?;
        work.push(PushWork { config, claim, again });
    }
    Ok(work)
}

/// Ends a claim that holds.
pub(super) async fn done(client: &Object, work: &PushWork) -> Result<(), Fail> {
    let config = &work.config;
    query(
        client,
        "UPDATE push p SET claim = 0, delivered = $4, attempts = $5, next = $6, dead = $7, json = $8,
             due = CASE WHEN $7::text IS NULL AND t.version > $4 THEN $6::bigint END
         FROM tasks t WHERE t.id = $1 AND p.n = t.n AND p.id = $2 AND p.claim = $3",
        &[
            &&*config.task,
            &&*config.id,
            &int(work.claim),
            &int(config.delivered),
            &i64::from(config.attempts),
            &config.next.as_microsecond(),
            &config.dead.as_deref(),
            &config.json.as_str(),
        ],
    )
    .await?;
    Ok(())
}

/// Forgets ended tasks, at most `limit`, the oldest end first; says how many, and how many of them were young.
pub(super) async fn forget_ended(
    client: &Object,
    before: Option<Duration>,
    retention: Duration,
    limit: usize,
) -> Result<(u64, u64), Fail> {
    let micros = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX / 2);
    let rows = query(
        client,
        "SELECT f.gone, f.early FROM (SELECT now_us() AS now) n,
             forget_ended(CASE WHEN $1::bigint IS NULL THEN 9223372036854775807 ELSE n.now - $1 END, $2, n.now - $3) f",
        &[&before.map(micros), &len(limit), &micros(retention)],
    )
    .await?;
    Ok(rows.first().map_or((0, 0), |row| (uint(row.get(0)), uint(row.get(1)))))
}

/// Forgets contexts without a task, keys and leases that are past their retention.
pub(super) async fn forget_rest(client: &Object, retention: Duration, contexts: u64) -> Result<(), Fail> {
    let retention = i64::try_from(retention.as_micros()).unwrap_or(i64::MAX / 2);
    query(client, "DELETE FROM contexts WHERE tasks = 0 AND touched < now_us() - $1", &[&retention]).await?;
    query(
        client,
        "DELETE FROM contexts WHERE c IN
             (SELECT c FROM contexts WHERE tasks = 0 ORDER BY touched DESC OFFSET $1 FOR UPDATE SKIP LOCKED)
             AND tasks = 0",
        &[&int(contexts)],
    )
    .await?;
    query(client, "DELETE FROM keys WHERE at < now_us() - $1", &[&key_retention()]).await?;
    // A lease that has run out says no more than one that is not there.
    query(client, "DELETE FROM leases WHERE until < now_us() - $1", &[&key_retention()]).await?;
    Ok(())
}

/// Gives up a lease.
pub(super) async fn release(client: &Object, owner: &str) -> Result<(), Fail> {
    query(client, "DELETE FROM leases WHERE owner = $1", &[&owner]).await.map(|_| ())
}

/// Tasks that are there.
pub(super) async fn count(client: &Object) -> Result<u64, Fail> {
    let rows = query(client, "SELECT count(*) FROM tasks", &[]).await?;
    Ok(rows.first().map_or(0, |row| uint(row.get(0))))
}
