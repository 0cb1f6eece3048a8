//! Opening the store that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_protocol::config::{Live, Store as Place};
use tokio::sync::watch;

use super::measured::Measured;
use super::{Clock, Memory, Postgres, Sqlite, Store, postgres};
use crate::a2a::metrics::Metrics;

/// Why a store cannot be opened. The texts are for people.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file cannot be used.
    #[error("the task store's file {path} cannot be used: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system or the database said.
        why: String,
    },
    /// Another process has the database.
    #[error("the task database {0} is in use by another process: a database on a volume is for one replica")]
    InUse(PathBuf),
    /// Another program's database.
    #[error("{0} is a database, but no task store of Outrigger: it stays untouched")]
    Foreign(String),
    /// A connection URL that is none.
    #[error("the task store's database URL cannot be used: {0}")]
    Url(String),
    /// A schema that cannot have this name.
    #[error("{0:?} cannot be the name of a schema: a letter, then at most 62 letters, digits and underscores")]
    Schema(String),
    /// Nothing is trusted, or TLS cannot be set up.
    #[error("TLS to the task store's database cannot be set up: {0}")]
    Tls(String),
    /// The variable with the URL is not there.
    #[error("the environment variable {0}, which holds the URL of the task store's database, is not set")]
    NoUrl(String),
    /// Written by a later version.
    #[error(
        "{what} was written by a later version (schema {found}, known is {known}): use that version, or another place"
    )]
    Newer {
        /// Which database.
        what: String,
        /// Its schema.
        found: i64,
        /// The newest schema that is known here.
        known: i64,
    },
}

/// Opens the store that the configuration names. Needs a runtime. A file must be usable now; a database need not be
/// there yet: the store then says that it is not available, and tries again.
pub fn open(place: &Place, live: watch::Receiver<Arc<Live>>, metrics: Metrics) -> Result<Arc<dyn Store>, OpenError> {
    match place {
        Place::Memory => Ok(Arc::new(Memory::new(live, metrics))),
        Place::Sqlite { path, .. } => {
            let store = Sqlite::open(Path::new(path), live, metrics.clone(), Clock::system())?;
            Ok(Arc::new(Measured::new(store, &metrics)))
        }
        Place::Postgres { url_env, schema, ca_file } => {
            let url = std::env::var(url_env).map_err(|_| OpenError::NoUrl(url_env.clone()))?;
            let pod = crate::a2a::ids::pod().unwrap_or_else(crate::a2a::ids::uuid);
            let place =
                postgres::Place { url, schema: schema.clone(), ca_file: ca_file.clone().map(PathBuf::from), pod };
            let store = Postgres::open(place, live, metrics.clone())?;
            Ok(Arc::new(Measured::new(store, &metrics)))
        }
    }
}
