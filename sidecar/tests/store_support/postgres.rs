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
        Self::start_on(None).await
    }

    /// Starts one on loopback that lets in who speaks TLS, with the certificate of the fixtures; its port beside it.
    pub async fn start_tls(fixtures: &Path) -> Option<(Self, u16)> {
        // Free a moment ago; who takes it meanwhile makes the start fail, not the test pass.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if programs().is_none() {
            println!("SKIPPED: no PostgreSQL: install Debian's postgresql");
            return None;
        }
        Some((Self::start_on(Some((fixtures, port))).await?, port))
    }

    async fn start_on(tls: Option<(&Path, u16)>) -> Option<Self> {
        if let (Ok(url), None) = (std::env::var("OUTRIGGER_TEST_POSTGRES"), tls) {
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
        let mut server = command("postgres");
        server.arg("-D").arg(&data);
        match tls {
            None => {
                server.args(["-c", "listen_addresses="]);
            }
            Some((fixtures, port)) => {
                for name in ["server.pem", "server.key"] {
                    let copy = data.join(name);
                    fs::copy(fixtures.join(name), &copy).unwrap();
                    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
                    if let Some((uid, gid)) = user() {
                        chown(&copy, Some(uid), Some(gid)).unwrap();
                    }
                }
                fs::write(data.join("pg_hba.conf"), "local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
                    .unwrap();
                server.args(["-c", "listen_addresses=127.0.0.1", "-c", "ssl=on"]);
                server.args(["-c", "ssl_cert_file=server.pem", "-c", "ssl_key_file=server.key", "-c"]);
                server.arg(format!("port={port}"));
            }
        }
        let child = server
            .args(["-c", "fsync=off", "-c", "max_connections=200", "-c"])
            .arg(format!("unix_socket_directories={}", data.display()))
            .spawn()
            .unwrap();
        let socket = data.display().to_string().replace('/', "%2F");
        let port = tls.map_or(5432, |(_, port)| port);
        let server = Self { url: format!("postgres://tester@{socket}:{port}/postgres"), own: Some((child, folder)) };
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
