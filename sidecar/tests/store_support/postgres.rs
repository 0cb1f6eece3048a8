//! The store in PostgreSQL: a server of our own, or the one that `OUTRIGGER_TEST_POSTGRES` names by its URL.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::postgres::{MAX_CONNECTIONS, Place};
use outrigger_sidecar::a2a::store::{Postgres, Store};
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, NoTls};

use super::bed::{Bed, Death, process};

/// Where Debian puts the server's programs, by major version.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// For the server to start or stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server.
pub struct Server {
    url: String,
    own: Option<(Child, tempfile::TempDir)>,
}

/// The newest installed server's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(PROGRAMS).ok()?.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    versions.max().map(|v| Path::new(PROGRAMS).join(v.to_string()).join("bin"))
}

/// Who may run the server: it refuses root.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        let line = users.lines().find(|l| l.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|n| n.parse().ok());
        Some((ids.next()??, ids.next()??))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("a user that is not root"))
}

impl Server {
    /// Starts one, or says why the test is skipped.
    pub async fn start() -> Option<Self> {
        if let Ok(url) = std::env::var("OUTRIGGER_TEST_POSTGRES") {
            return Some(Self { url, own: None });
        }
        let Some(programs) = programs() else {
            println!("SKIPPED: no PostgreSQL: install Debian's postgresql, or set OUTRIGGER_TEST_POSTGRES to a URL");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let command = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()).env("LC_ALL", "C");
            if let Some((uid, gid)) = user() {
                command.uid(uid).gid(gid);
            }
            command
        };
        if let Some((uid, gid)) = user() {
            chown(&data, Some(uid), Some(gid)).unwrap();
        }
        let made = command("initdb")
            .args(["--username=tester", "--auth=trust", "--no-sync", "--encoding=UTF8", "-D"])
            .arg(&data)
            .status()
            .unwrap();
        assert!(made.success(), "initdb: {made}");
        let child = command("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200", "-c"])
            .arg(format!("unix_socket_directories={}", data.display()))
            .spawn()
            .unwrap();
        let socket = data.display().to_string().replace('/', "%2F");
        let server = Self { url: format!("postgres://tester@{socket}/postgres"), own: Some((child, folder)) };
        let deadline = Instant::now() + PATIENCE;
        while tokio_postgres::connect(&server.url, NoTls).await.is_err() {
            assert!(Instant::now() < deadline, "the server does not start");
            sleep(Duration::from_millis(20)).await;
        }
        Some(server)
    }

    /// A connection beside the store's.
    pub async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    /// Where a store finds it.
    pub fn place(&self, schema: &str, pod: usize) -> Place {
        Place { url: self.url.clone(), schema: schema.into(), ca_file: None, pod: format!("pod{pod}") }
    }
}

impl Server {
    /// Ends every session of the stores: what they see when the server is restarted.
    pub async fn cut(client: &Client) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outrigger'";
        client.execute(sql, &[]).await.expect("sessions are ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.own {
            let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a pid");
            // Immediate shutdown: it ends its own processes, and the folder goes anyway.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
            let _ = child.wait();
        }
    }
}

/// One schema of a server.
pub struct PostgresBed<'a> {
    server: &'a Server,
    schema: String,
    client: Client,
}

impl<'a> PostgresBed<'a> {
    /// A new schema, whose clock is a table.
    pub async fn new(server: &'a Server, schema: &str) -> Self {
        let client = server.connect().await;
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE")).await.unwrap();
        let (live, metrics) = process(Limits::default());
        // The first process makes the tables.
        let first = Postgres::open(server.place(schema, 9), live, metrics).unwrap();
        first.renew().await.expect("a lease");
        client
            .batch_execute(&format!(
                "CREATE TABLE \"{schema}\".hand (now bigint NOT NULL);
                 INSERT INTO \"{schema}\".hand VALUES (0);
                 CREATE OR REPLACE FUNCTION \"{schema}\".now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
                     'SELECT now FROM \"{schema}\".hand'"
            ))
            .await
            .unwrap();
        Self { server, schema: schema.into(), client }
    }
}

impl Bed for PostgresBed<'_> {
    fn death(&self) -> Death {
        Death::LeaseOrPod
    }

    fn start(&mut self, pod: usize) -> BoxFuture<'_, Arc<dyn Store>> {
        async move {
            let (live, metrics) = process(Limits::default());
            let store = Postgres::open(self.server.place(&self.schema, pod), live, metrics).unwrap();
            store.renew().await.expect("a lease");
            Arc::new(store) as Arc<dyn Store>
        }
        .boxed()
    }

    fn set(&mut self, now: Timestamp) -> BoxFuture<'_, ()> {
        async move {
            let sql = format!("UPDATE \"{}\".hand SET now = $1", self.schema);
            self.client.execute(&sql, &[&now.as_microsecond()]).await.unwrap();
        }
        .boxed()
    }

    fn settle<'a>(&'a mut self, process: &'a dyn Store) -> BoxFuture<'a, ()> {
        async move {
            // One statement on each connection: it comes after whatever is on its way there.
            for read in join_all((0..MAX_CONNECTIONS).map(|_| process.key("none"))).await {
                read.expect("a connection");
            }
        }
        .boxed()
    }
}
