//! Programs under test: started with a log, ended by their id whatever happens.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::Instant;

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(8);
/// Bytes of a log that an error shows.
const LOG_TAIL: usize = 2000;

/// A program that runs in a process group of its own; killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it prints goes to a log named after it.
    pub fn start(name: &str, logs: &Path, command: &mut Command) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error when it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}; its log ends with:\n{}", self.name, self.tail()),
        }
    }

    /// Waits until `condition` holds. Fails at the deadline, or as soon as the program ends.
    pub async fn until(&mut self, what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !condition() {
            self.check()?;
            if Instant::now() > deadline {
                let tail = self.tail();
                bail!("{} did not {what} within {} s; its log ends with:\n{tail}", self.name, limit.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends it: politely, then by force. Says whether it took force.
    pub async fn stop(self) -> Result<bool> {
        self.end(Signal::TERM).await
    }

    /// Kills it, as a machine does that runs out of memory, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.check()?;
        self.child.kill().context("killing")?;
        self.child.wait().map(drop).context("waiting for what was killed")
    }

    /// Ends it by a signal, then by force. Says whether it took force.
    pub async fn end(mut self, signal: Signal) -> Result<bool> {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal);
        }
        let deadline = Instant::now() + GRACE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Ok(true);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(false)
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL)..]).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The whole group: a proxy that is killed cannot end its children.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
