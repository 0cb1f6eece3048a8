//! Connections: where to, how many, and the schema that they find.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Transaction};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::{LEASE, OpenError, StoreError};
use super::tls::{Verify, connector};

/// Connections of one process, beside the one that listens.
pub const MAX_CONNECTIONS: usize = 8;
/// For a new connection, and for a free one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For one statement at the database, in milliseconds.
const STATEMENT_TIMEOUT_MS: u32 = 5_000;
/// After a connection failed the next operations fail at once for so long.
const HOLD_OFF: Duration = Duration::from_millis(250);
/// Steps from an empty schema to the tables of this version. A step never changes once it was released.
const STEPS: &[&str] = &[include_str!("schema.sql")];

/// The way to the database.
pub(super) struct Link {
    pool: Pool,
    config: Config,
    tls: MakeRustlsConnect,
    schema: String,
    /// Whether tables and lease are there.
    prepared: OnceCell<()>,
    owner: Arc<str>,
    /// Why the last operation failed.
    failure: Mutex<Option<String>>,
    down: Mutex<Option<(Instant, String)>>,
}

/// Why an operation on the database was not done.
#[derive(Debug)]
pub(super) enum Fail {
    /// Surely not.
    Store(StoreError),
    /// Nobody knows whether it was.
    Unknown(String),
}

impl From<StoreError> for Fail {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<outrigger_protocol::a2a::stored::Damaged> for Fail {
    fn from(e: outrigger_protocol::a2a::stored::Damaged) -> Self {
        Self::Store(StoreError::Damaged(e.to_string()))
    }
}

impl From<tokio_postgres::Error> for Fail {
    fn from(e: tokio_postgres::Error) -> Self {
        let Some(said) = e.as_db_error() else { return Self::Unknown(describe(&e)) };
        match *said.code() {
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => Self::Unknown(said.message().to_owned()),
            SqlState::DISK_FULL => Self::Store(StoreError::Full("the database's disk is full".into())),
            _ => Self::Store(StoreError::Unavailable(format!("{} ({})", said.message(), said.code().code()))),
        }
    }
}

impl From<Fail> for StoreError {
    fn from(e: Fail) -> Self {
        match e {
            Fail::Store(e) => e,
            Fail::Unknown(why) => Self::Unavailable(why),
        }
    }
}

/// An error with what caused it; the texts of these two crates name no secret.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Reads a connection URL: what libpq knows of `sslmode` and `sslrootcert`, and what the driver knows of the rest.
fn parse(url: &str, ca_file: Option<PathBuf>) -> Result<(Config, Verify, Option<PathBuf>), OpenError> {
    let wrong = |why: String| OpenError::Url(why);
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(wrong("it must begin with postgres:// or postgresql://".into()));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut root, mut rest) = (None, None, Vec::new());
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value),
            Some(("sslrootcert", value)) => root = Some(PathBuf::from(value)),
            _ => rest.push(pair),
        }
    }
    let authorities = ca_file.or(root);
    let (ssl, verify) = match (mode, authorities.is_some()) {
        (Some("disable"), _) => (SslMode::Disable, Verify::Nothing),
        (Some("allow" | "prefer") | None, false) => (SslMode::Prefer, Verify::Nothing),
        (Some("allow" | "prefer"), true) => (SslMode::Prefer, Verify::Authority),
        (Some("require"), false) => (SslMode::Require, Verify::Nothing),
        (Some("require"), true) | (Some("verify-ca"), _) => (SslMode::Require, Verify::Authority),
        // Who names authorities and no mode wants them to be asked.
        (Some("verify-full"), _) | (None, true) => (SslMode::Require, Verify::Name),
        (Some(other), _) => return Err(wrong(format!("there is no sslmode {other:?}"))),
    };
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    let mut config: Config = format!("{base}{query}").parse().map_err(|e| wrong(describe(&e)))?;
    config.ssl_mode(ssl);
    Ok((config, verify, authorities))
}

impl Link {
    /// Finds out where to; connects later.
    pub(super) fn new(url: &str, schema: &str, ca_file: Option<PathBuf>, owner: Arc<str>) -> Result<Self, OpenError> {
        let named = schema.starts_with(|c: char| c.is_ascii_alphabetic())
            && schema.len() <= 63
            && schema.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !named {
            return Err(OpenError::Schema(schema.to_owned()));
        }
        let (mut config, verify, authorities) = parse(url, ca_file)?;
        let tls = connector(verify, authorities.as_deref())?;
        let given = config.get_options().map(|o| format!("{o} ")).unwrap_or_default();
        config
            .options(format!("{given}-c search_path=\"{schema}\" -c statement_timeout={STATEMENT_TIMEOUT_MS}"))
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(Duration::from_secs(10))
            .keepalives_idle(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("outrigger");
        }
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config.clone(), tls.clone(), manager);
        let pool = Pool::builder(manager)
            .max_size(MAX_CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .build()
            .map_err(|e| OpenError::Url(e.to_string()))?;
        let failure = Mutex::new(Some("not connected yet".into()));
        let schema = schema.to_owned();
        Ok(Self { pool, config, tls, schema, prepared: OnceCell::new(), owner, failure, down: Mutex::default() })
    }

    /// Channel of notices about tasks.
    pub(super) fn channel(&self) -> &str {
        &self.schema
    }

    /// A connection, to a database that has our tables.
    pub(super) async fn client(&self) -> Result<Object, Fail> {
        if let Some((since, why)) = &*self.down.lock()
            && since.elapsed() < HOLD_OFF
        {
            return Err(StoreError::Unavailable(why.clone()).into());
        }
        if !self.prepared.initialized() {
            self.prepared.get_or_try_init(|| self.prepare()).await?;
        }
        self.pooled().await
    }

    async fn pooled(&self) -> Result<Object, Fail> {
        self.pool.get().await.map_err(|e| {
            let why = describe(&e);
            *self.down.lock() = Some((Instant::now(), why.clone()));
            StoreError::Unavailable(why).into()
        })
    }

    /// A connection of its own, for notices.
    pub(super) async fn listener(
        &self,
    ) -> Result<
        (
            tokio_postgres::Client,
            tokio_postgres::Connection<
                tokio_postgres::Socket,
                <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream,
            >,
        ),
        tokio_postgres::Error,
    > {
        self.config.connect(self.tls.clone()).await
    }

    /// Notes how an operation went.
    pub(super) fn note(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    /// Why the database cannot be used now.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Brings the tables up to date: one process at a time, the others wait.
    async fn prepare(&self) -> Result<(), Fail> {
        let mut client = self.pooled().await?;
        // Dropped, it is rolled back.
        let transaction = client.transaction().await?;
        self.migrate(&transaction).await?;
        transaction.commit().await?;
        self.renew(&client).await
    }

    async fn migrate(&self, client: &Transaction<'_>) -> Result<(), Fail> {
        let schema = &self.schema;
        client.execute("SELECT pg_advisory_xact_lock(hashtextextended('outrigger ' || $1, 0))", &[schema]).await?;
        let there = client.query_one("SELECT to_regnamespace($1) IS NOT NULL", &[&format!("\"{schema}\"")]).await?;
        if !there.get::<_, bool>(0) {
            client.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await?;
        }
        client
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS migrations
                     (version bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())",
            )
            .await?;
        let found: i64 = client.query_one("SELECT coalesce(max(version), 0) FROM migrations", &[]).await?.get(0);
        let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
        if found > known {
            let what = format!("the database's schema {schema:?}");
            return Err(StoreError::Unavailable(OpenError::Newer { what, found, known }.to_string()).into());
        }
        for (step, version) in STEPS.iter().zip(1_i64..).filter(|(_, v)| *v > found) {
            client.batch_execute(step).await?;
            client.execute("INSERT INTO migrations (version) VALUES ($1)", &[&version]).await?;
        }
        Ok(())
    }

    /// Renews this process's lease.
    pub(super) async fn renew(&self, client: &Object) -> Result<(), Fail> {
        let lease = i64::try_from(LEASE.as_micros()).unwrap_or(i64::MAX);
        let renew = client
            .prepare_cached(
                "INSERT INTO leases (owner, until) VALUES ($1, now_us() + $2)
                 ON CONFLICT (owner) DO UPDATE SET until = excluded.until",
            )
            .await?;
        client.execute(&renew, &[&&*self.owner, &lease]).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(query: &str, ca: bool) -> Result<(SslMode, Verify), String> {
        let ca = ca.then(|| PathBuf::from("/ca.pem"));
        let parsed = parse(&format!("postgres://me:secret@db:5433/tasks{query}"), ca);
        parsed.map(|(c, v, _)| (c.get_ssl_mode(), v)).map_err(|e| e.to_string())
    }

    #[test]
    fn ssl_modes_are_those_of_libpq() {
        assert_eq!(mode("", false), Ok((SslMode::Prefer, Verify::Nothing)));
        assert_eq!(mode("", true), Ok((SslMode::Require, Verify::Name)));
        assert_eq!(mode("?sslmode=disable", true), Ok((SslMode::Disable, Verify::Nothing)));
        assert_eq!(mode("?sslmode=require", false), Ok((SslMode::Require, Verify::Nothing)));
        assert_eq!(mode("?sslmode=require", true), Ok((SslMode::Require, Verify::Authority)));
        assert_eq!(mode("?connect_timeout=3&sslmode=verify-ca", false), Ok((SslMode::Require, Verify::Authority)));
        assert_eq!(mode("?sslmode=verify-full&sslrootcert=/x", false), Ok((SslMode::Require, Verify::Name)));
        assert!(mode("?sslmode=maybe", false).unwrap_err().contains("maybe"));
    }

    #[test]
    fn a_bad_url_is_named_without_its_secrets() {
        for url in ["mysql://me:secret@db/x", "postgres://me:secret@db:port/x", "postgres://me:secret@db/x?what=1"] {
            let error = parse(url, None).unwrap_err().to_string();
            assert!(!error.contains("secret") && error.starts_with("the task store's database URL"), "{error}");
        }
        let owner: Arc<str> = "o".into();
        for schema in ["", "1a", "a-b", "a\"b"] {
            let link = Link::new("postgres://db/x", schema, None, Arc::clone(&owner));
            assert!(matches!(link, Err(OpenError::Schema(_))), "{schema}");
        }
        let missing = Link::new("postgres://db/x", "a", Some("/no/such/file".into()), owner);
        assert!(matches!(missing, Err(OpenError::File { .. })));
    }
}
