//! A PostgreSQL server of the benchmark's own: Debian's, with its defaults, on a socket in a folder that goes with it.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::process::Process;
use crate::settings::Settings;

/// Where Debian puts the server's programs, by major version.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// Until it takes connections.
const START: Duration = Duration::from_secs(30);
/// Where it writes how it stands, in its folder.
const STATUS: &str = "postmaster.pid";
/// Users that may run it where the benchmark is root: it refuses root.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A server.
pub struct Server {
    process: Process,
    folder: TempDir,
}

/// Why there is none.
pub fn missing() -> Option<String> {
    match tools().and_then(|_| user()) {
        Ok(_) => None,
        Err(e) => Some(format!("{e:#}")),
    }
}

fn tools() -> Result<PathBuf> {
    let versions = fs::read_dir(PROGRAMS).ok().into_iter().flatten();
    let versions = versions.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let newest = versions.max().context("PostgreSQL is not installed (Debian's package postgresql)")?;
    Ok(Path::new(PROGRAMS).join(newest.to_string()).join("bin"))
}

/// Ids of the user that runs it; none where the benchmark's own will do.
fn user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    // In a user namespace with one user there is nobody else to be.
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let ids: u64 = map.split_ascii_whitespace().nth(2).and_then(|n| n.parse().ok()).context("/proc/self/uid_map")?;
    ensure!(ids > 1, "PostgreSQL does not run as root, and this namespace has no other user");
    let users = fs::read_to_string("/etc/passwd")?;
    let find = |name: &&str| {
        let line = users.lines().find(|l| l.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|n| n.parse().ok());
        Some((ids.next()??, ids.next()??))
    };
    Ok(Some(USERS.iter().find_map(find).context("PostgreSQL needs a user that is not root")?))
}

impl Server {
    /// Makes a database and starts its server.
    pub async fn start(settings: &Settings) -> Result<Self> {
        let (tools, user) = (tools()?, user()?);
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let data = folder.path().join("data");
        fs::create_dir(&data)?;
        let command = |program: &str| {
            let mut command = Command::new(tools.join(program));
            command.current_dir("/").env("LC_ALL", "C").arg("-D").arg(&data);
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        if let Some((uid, gid)) = user {
            chown(&data, Some(uid), Some(gid))?;
        }
        let log = settings.logs.join("initdb.log");
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let made = command("initdb")
            .args(["--username=bench", "--auth=trust", "--encoding=UTF8"])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .context("starting initdb")?;
        ensure!(made.success(), "initdb ended with {made}: see {}", log.display());
        let mut server = command("postgres");
        server.args(["-c", "listen_addresses=", "-c", "max_connections=300", "-c"]);
        server.arg(format!("unix_socket_directories={}", data.display()));
        let mut process = Process::start("postgres", &settings.logs, &mut server)?;
        // Its socket takes connections before it does: it says here when it is ready.
        let says = data.join(STATUS);
        let ready = || fs::read_to_string(&says).is_ok_and(|text| text.lines().any(|line| line.trim() == "ready"));
        process.until("get ready", START, ready).await?;
        Ok(Self { process, folder })
    }

    /// URL for clients on this machine, in whatever network namespace.
    pub fn url(&self) -> String {
        let socket = self.folder.path().join("data").display().to_string().replace('/', "%2F");
        format!("postgres://bench@{socket}/postgres")
    }

    /// Ends it: fast shutdown, which cuts clients off.
    pub async fn stop(self) -> Result<()> {
        self.process.end(rustix::process::Signal::INT).await?;
        Ok(())
    }
}
