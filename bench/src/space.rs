//! Network namespaces: each pod has a loopback of its own, so several sidecars have the same ports at one time.
//!
//! A socket stays in the namespace of the thread that made it; so a thread goes in, makes it, and ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace, or the one that the benchmark runs in.
#[derive(Clone, Debug, Default)]
pub struct Space(Option<Arc<File>>);

impl Space {
    /// A new one with its loopback up. Only where the benchmark is in namespaces of its own already.
    pub fn new() -> Result<Self> {
        ensure!(
            Self::possible(),
            "several pods at one time need network namespaces: run as root, or allow user namespaces"
        );
        // It says when it is done, and stays until its input ends; the namespace stays as long as somebody holds it.
        let mut maker = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting unshare")?;
        let mut line = String::new();
        BufReader::new(maker.stdout.take().context("no output")?).read_line(&mut line)?;
        let space = File::open(format!("/proc/{}/ns/net", maker.id())).context("opening a network namespace");
        drop(maker.stdin.take());
        maker.wait()?;
        ensure!(line.trim() == "up", "unshare gave no network namespace with a loopback");
        Ok(Self(Some(Arc::new(space?))))
    }

    /// Whether there can be more than one: the benchmark is the first process of a namespace of its own.
    pub fn possible() -> bool {
        std::process::id() == 1
    }

    /// Does something inside.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let Some(space) = &self.0 else { return work() };
        let entered = || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                .context("entering a network namespace")?;
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(entered).join());
        done.map_err(|_| anyhow::anyhow!("a thread in a network namespace broke"))?
    }

    /// Connects to an address inside.
    pub fn connect(&self, address: SocketAddr, limit: Duration) -> Result<TcpStream> {
        self.inside(|| TcpStream::connect_timeout(&address, limit).with_context(|| format!("connecting to {address}")))
    }
}

/// An address in a namespace.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address.
    pub address: SocketAddr,
    /// Where it is one.
    pub space: Space,
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self { address, space: Space::default() }
    }
}
