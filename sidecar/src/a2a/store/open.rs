//! Opening the store that the configuration names.

use std::path::PathBuf;

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
