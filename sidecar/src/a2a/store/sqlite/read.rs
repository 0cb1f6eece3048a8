//! Reading: a few connections beside the writer's.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_protocol::a2a::task::Task;
use parking_lot::Mutex;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tokio::sync::Semaphore;

use super::super::{Page, PushConfig, Query, StoreError};
use super::rows::{Fail, Head, RECEIVER, len, receiver, uint};
use super::schema;

/// Reads at once; more wait.
const READERS: usize = 4;

/// The connections.
pub(super) struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, idle: Arc::default(), places: Arc::new(Semaphore::new(READERS)) }
    }

    /// Has something read, as it was at one moment.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fail> + Send + 'static,
    ) -> Result<T, StoreError> {
        let ended = || StoreError::Unavailable("the process ends".into());
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| ended())?;
        let (path, idle) = (self.path.clone(), Arc::clone(&self.idle));
        let reading = tokio::task::spawn_blocking(move || {
            let _place = place;
            let known = idle.lock().pop();
            let db = match known {
                Some(db) => db,
                None => schema::reader(&path)?,
            };
            // Several statements see one state of the database.
            let result = db.unchecked_transaction().map_err(Fail::from).and_then(|_tx| read(&db));
            if !matches!(result, Err(Fail::Sql(_))) {
                idle.lock().push(db);
            }
            result
        });
        Ok(reading.await.map_err(|_| ended())??)
    }
}

/// A part of a list.
pub(super) fn list(db: &Connection, query: &Query) -> Result<Page, Fail> {
    let mut filter = String::from("FROM tasks WHERE revealed = 1 AND caller = ?");
    let mut values = vec![Value::from(query.caller.to_string())];
    if let Some(context) = &query.context {
        filter.push_str(" AND context = ?");
        values.push(context.to_string().into());
    }
    if let Some(state) = query.state {
        filter.push_str(" AND state = ?");
        values.push((state as i64).into());
    }
    if let Some(since) = query.since {
        filter.push_str(" AND since >= ?");
        values.push(since.as_microsecond().into());
    }
    let total: i64 = db
        .prepare_cached(&format!("SELECT count(*) {filter}"))?
        .query_row(params_from_iter(values.iter()), |r| r.get(0))?;
    if let Some(after) = &query.after {
        filter.push_str(" AND since <= ? AND (since < ? OR id > ?)");
        let since = after.since.as_microsecond();
        values.extend([since.into(), since.into(), after.id.to_string().into()]);
    }
    values.push(len(query.limit.saturating_add(1)).into());
    let mut statement = db.prepare_cached(&format!("SELECT n {filter} ORDER BY since DESC, id LIMIT ?"))?;
    let numbers = statement.query_map(params_from_iter(values.iter()), |r| r.get(0))?;
    let numbers: Vec<i64> = numbers.collect::<Result<_, _>>()?;
    let mut tasks: Vec<Arc<Task>> = Vec::with_capacity(numbers.len().min(query.limit));
    for n in numbers.iter().take(query.limit) {
        let head = Head::by_number(db, *n)?.ok_or_else(|| StoreError::Damaged("a listed task is missing".into()))?;
        tasks.push(head.load(db, head.version)?);
    }
    Ok(Page { tasks, more: numbers.len() > query.limit, total: uint(total) })
}

/// Receivers of a task.
pub(super) fn push_configs(db: &Connection, task: &str) -> Result<Vec<PushConfig>, Fail> {
    let head = Head::by_id(db, task)?.ok_or(StoreError::NotFound)?;
    let mut statement = db.prepare_cached(&format!("SELECT {RECEIVER} WHERE p.n = ? ORDER BY p.id"))?;
    let mut rows = statement.query([head.n])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(receiver(row)?);
    }
    Ok(found)
}
