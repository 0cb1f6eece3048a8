//! Tables, and the way from an older version of them.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::super::OpenError;

/// Marks a file as a task database of ours (`PRAGMA application_id`).
const APPLICATION: i64 = 0x4f55_5452;
/// Steps from an empty file to the tables of this version; `PRAGMA user_version` is how many were taken. A step never
/// changes once it was released.
const STEPS: &[&str] = &[include_str!("schema.sql")];
/// Pages in the write-ahead log before they are moved to the database: more of them are moved once for many changes.
const CHECKPOINT_PAGES: i64 = 4_000;
/// How long a connection waits for another one's lock: only the move of pages ever holds one.
const BUSY: Duration = Duration::from_secs(5);
/// Memory for pages of the writing connection, in KiB: as many as are written again and again fit in.
const CACHE_KIB: i64 = 4 << 10;
/// Prepared statements of one connection.
const STATEMENTS: usize = 64;

/// Holds the database for this process, for as long as it lives.
#[derive(Debug)]
pub(super) struct Hold {
    _file: File,
}

/// Takes the database at a path for this process, opens it, and brings its tables up to date.
pub(super) fn open(path: &Path) -> Result<(Hold, Connection), OpenError> {
    let lock = PathBuf::from(format!("{}.lock", path.display()));
    let unusable = |e: &dyn std::fmt::Display| OpenError::File { path: path.to_owned(), why: e.to_string() };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock)
        .map_err(|e| OpenError::File { path: lock.clone(), why: e.to_string() })?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(e)) => return Err(OpenError::File { path: lock, why: e.to_string() }),
    }
    let mut db = Connection::open(path).map_err(|e| unusable(&e))?;
    prepare(&db).map_err(|e| unusable(&e))?;
    migrate(&mut db, path)?;
    Ok((Hold { _file: file }, db))
}

/// A connection that only reads.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(db)
}

fn prepare(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.pragma_update(None, "journal_mode", "WAL")?;
    // A process that ends loses nothing; only a machine that does may lose the last moments.
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "cache_size", -CACHE_KIB)?;
    db.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)
}

fn migrate(db: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let unusable = |e: rusqlite::Error| OpenError::File { path: path.to_owned(), why: e.to_string() };
    let number = |db: &Connection, name: &str| db.pragma_query_value(None, name, |r| r.get::<_, i64>(0));
    let version = number(db, "user_version").map_err(unusable)?;
    let application = number(db, "application_id").map_err(unusable)?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0)).map_err(unusable)?;
    if application != APPLICATION && (tables > 0 || version > 0) {
        return Err(OpenError::Foreign(path.display().to_string()));
    }
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(OpenError::Newer { what: path.display().to_string(), found: version, known });
    }
    if version == known {
        return Ok(());
    }
    let tx = db.transaction().map_err(unusable)?;
    for step in STEPS.iter().skip(usize::try_from(version).unwrap_or_default()) {
        tx.execute_batch(step).map_err(unusable)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION).map_err(unusable)?;
    tx.pragma_update(None, "user_version", known).map_err(unusable)?;
    tx.commit().map_err(unusable)
}
