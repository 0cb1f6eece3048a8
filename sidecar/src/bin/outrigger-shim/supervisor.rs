//! The loop: one poll over the socket, the connections, the children and the signals.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use outrigger_protocol::mcp::shim::{FromShim, GRACE_MS, Hello, PROTOCOL, Reason, ToShim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions};

use super::args::{Config, PRIVATE};
use super::child::{Child, READ_BYTES, Staged};
use super::conn::{Conn, Incoming};
use super::log::Log;
use super::{listen, procfs};

/// The monotonic clock. The shim has no async runtime whose clock a test could pause.
#[allow(clippy::disallowed_types)]
pub type Clock = std::time::Instant;

/// Connections beyond those that can have a child: the sidecar watches the shim with one more.
const SPARE_CONNECTIONS: usize = 16;
/// Longest grace time that a sidecar may ask for.
const MAX_GRACE: Duration = Duration::from_secs(60);
/// After SIGTERM the shim ends by then, whatever its children do.
const MAX_SHUTDOWN: Duration = Duration::from_secs(10);

/// Everything the shim knows.
pub struct Supervisor {
    config: Config,
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
    generation: String,
    listener: UnixListener,
    signals: UnixStream,
    terminate: std::sync::Arc<std::sync::atomic::AtomicBool>,
    log: Log,
    conns: BTreeMap<u64, Conn>,
    children: BTreeMap<u64, Child>,
    next: u64,
    /// Set by SIGTERM: when to end at last.
    ending: Option<Clock>,
    buffer: Vec<u8>,
}

/// What a polled descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Conn(u64),
    Stage(u64),
    Stderr(u64),
}

impl Supervisor {
    /// Prepares everything and binds the socket last: who can connect is served.
    pub fn new(config: Config) -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (signals, writer) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let terminate = std::sync::Arc::default();
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, std::sync::Arc::clone(&terminate))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, writer)?;
        let env = std::env::vars_os().filter(|(k, _)| !k.as_bytes().starts_with(PRIVATE)).collect();
        let (program, generation, log) = (std::env::current_exe()?, generation()?, Log::start()?);
        let listener = listen::bind(&config.socket)
            .map_err(|e| io::Error::new(e.kind(), format!("can't bind {}: {e}", config.socket.display())))?;
        Ok(Self {
            program,
            env,
            generation,
            listener,
            signals,
            terminate,
            log,
            conns: BTreeMap::new(),
            children: BTreeMap::new(),
            next: 0,
            ending: None,
            buffer: vec![0; READ_BYTES],
            config,
        })
    }

    /// Serves until SIGTERM and the end of all children.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            for (source, flags) in self.wait()? {
                self.handle(source, flags);
            }
            let now = Clock::now();
            if self.terminate.load(std::sync::atomic::Ordering::Relaxed) && self.ending.is_none() {
                self.begin_end(now);
            }
            self.reap(now);
            for child in self.children.values_mut() {
                child.step(now);
            }
            self.children.retain(|_, c| !c.over());
            let done: Vec<u64> =
                self.conns.iter().filter(|(_, c)| c.closing && !c.unsent()).map(|(id, _)| *id).collect();
            for id in done {
                self.close(id);
            }
            if self.children.is_empty() {
                end_orphans();
            }
            if self.ending.is_some_and(|deadline| self.children.is_empty() || now >= deadline) {
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Signals];
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.ending.is_none() && self.conns.len() < self.config.max_processes + SPARE_CONNECTIONS {
            sources.push(Source::Listener);
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for (id, conn) in &self.conns {
            sources.push(Source::Conn(*id));
            let out = if conn.unsent() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(conn.stream(), PollFlags::IN | out));
        }
        for (id, child) in &self.children {
            if let Some(socket) = child.stage() {
                sources.push(Source::Stage(*id));
                fds.push(PollFd::new(socket, PollFlags::IN));
            }
            if let Some(fd) = child.stderr() {
                sources.push(Source::Stderr(*id));
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
            }
        }
        let due = self.children.values().filter_map(Child::due).chain(self.ending).min();
        let timeout = due.map(|d| {
            let left = d.saturating_duration_since(Clock::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        }
        let ready = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn handle(&mut self, source: Source, flags: PollFlags) {
        match source {
            Source::Signals => while matches!(self.signals.read(&mut self.buffer), Ok(1..)) {},
            Source::Listener => self.accept(),
            Source::Conn(id) => self.read_conn(id, flags),
            Source::Stage(id) => self.staged(id),
            Source::Stderr(id) => {
                if let Some(child) = self.children.get_mut(&id) {
                    child.drain_stderr(&mut self.log, &mut self.buffer);
                }
            }
        }
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let Ok(mut conn) = Conn::new(stream) else { return };
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            generation: self.generation.clone(),
        };
        if conn.send(&FromShim::Hello(hello)) {
            self.next += 1;
            self.conns.insert(self.next, conn);
        }
    }

    fn read_conn(&mut self, id: u64, flags: PollFlags) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if flags.contains(PollFlags::OUT) && !conn.flush() {
            return self.close(id);
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        match conn.read(&mut self.buffer) {
            Incoming::Closed => self.close(id),
            Incoming::Messages(messages) => {
                for message in messages {
                    match message {
                        Ok(message) => self.message(id, message),
                        Err(e) => self.refuse(id, Reason::BadMessage, format!("not a message of this protocol: {e}")),
                    }
                }
            }
        }
    }

    fn message(&mut self, id: u64, message: ToShim) {
        let Some(conn) = self.conns.get_mut(&id).filter(|c| !c.closing) else { return };
        match message {
            ToShim::Hello(hello) if hello.protocol != PROTOCOL => self.refuse(
                id,
                Reason::ShimVersionMismatch,
                format!("this shim speaks protocol {PROTOCOL}, the sidecar {} ({})", hello.protocol, hello.version),
            ),
            ToShim::Hello(_) => conn.greeted = true,
            _ if !conn.greeted => self.refuse(id, Reason::BadMessage, "say hello first".into()),
            ToShim::Spawn {} if conn.used => {
                self.refuse(id, Reason::BadMessage, "one connection is one child: open another one".into());
            }
            ToShim::Spawn {} => {
                conn.used = true;
                self.spawn(id);
            }
            ToShim::Stop { grace_ms } => {
                let grace = Duration::from_millis(grace_ms).min(MAX_GRACE);
                if let Some(child) = self.children.values_mut().find(|c| c.conn == Some(id)) {
                    child.stop(grace, Clock::now());
                }
            }
            ToShim::Stderr {} => {
                let tail = self.children.values_mut().find(|c| c.conn == Some(id)).map(Child::tail);
                self.send(id, &FromShim::Stderr { tail: tail.unwrap_or_default() });
            }
        }
    }

    fn spawn(&mut self, id: u64) {
        if self.ending.is_some() {
            return self.refuse(id, Reason::Stopping, "the tool container is being stopped".into());
        }
        if self.children.values().filter(|c| !c.failed()).count() >= self.config.max_processes {
            let most = self.config.max_processes;
            return self.refuse(
                id,
                Reason::TooManyProcesses,
                format!("{most} children are alive, no more are allowed"),
            );
        }
        match Child::spawn(&self.program, &self.config.command, &self.env, id) {
            Ok(child) => {
                self.next += 1;
                self.children.insert(self.next, child);
            }
            Err(e) => self.refuse(id, Reason::SpawnFailed, format!("can't start a process: {e}")),
        }
    }

    fn staged(&mut self, id: u64) {
        let Some(child) = self.children.get_mut(&id) else { return };
        let Some(staged) = child.staged() else { return };
        let Some(conn) = child.conn else { return };
        match staged {
            Staged::Failed(message) => {
                child.conn = None;
                self.refuse(conn, Reason::SpawnFailed, message);
            }
            Staged::Running(stdin, stdout) => {
                let pid = child.pid().as_raw_pid().unsigned_abs();
                let Some(peer) = self.conns.get_mut(&conn) else { return };
                if let Err(e) = peer.send_pipes(pid, &stdin, &stdout) {
                    child.conn = None;
                    child.stop(Duration::ZERO, Clock::now());
                    self.refuse(
                        conn,
                        Reason::FdPassingRefused,
                        format!("the kernel or the container runtime refused to pass file descriptors: {e}"),
                    );
                }
            }
        }
    }

    /// Waits for every process that has ended: children, and orphans that were handed to the shim.
    fn reap(&mut self, now: Clock) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Some(id) = self.children.iter().find(|(_, c)| c.pid() == pid && !c.over()).map(|(id, _)| *id) else {
                continue;
            };
            // A stage that failed says why before it ends, but poll may not have seen it yet.
            self.staged(id);
            let Some(child) = self.children.get_mut(&id) else { continue };
            child.drain_stderr(&mut self.log, &mut self.buffer);
            let exit = child.exited(status, now);
            if let Some(conn) = child.conn.take() {
                self.send(conn, &FromShim::Exit(exit));
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.closing = true;
                }
            }
        }
    }

    fn begin_end(&mut self, now: Clock) {
        self.ending = Some(now + MAX_SHUTDOWN);
        let _ = std::fs::remove_file(&self.config.socket);
        self.log.note("stopping");
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            self.send(id, &FromShim::Stopping {});
        }
        for child in self.children.values_mut() {
            child.stop(Duration::from_millis(GRACE_MS), now);
        }
    }

    fn send(&mut self, id: u64, message: &FromShim) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.send(message)
        {
            self.close(id);
        }
    }

    fn refuse(&mut self, id: u64, reason: Reason, message: String) {
        self.log.note(&message);
        self.send(id, &FromShim::Error { reason, message });
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.closing = true;
        }
    }

    fn close(&mut self, id: u64) {
        self.conns.remove(&id);
        for child in self.children.values_mut().filter(|c| c.conn == Some(id)) {
            child.conn = None;
            child.stop(Duration::from_millis(GRACE_MS), Clock::now());
        }
    }
}

/// Ends what children left behind in sessions of their own, once no child lives that could still need it.
fn end_orphans() {
    for pid in procfs::children() {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Sixteen random hexadecimal digits.
fn generation() -> io::Result<String> {
    let mut bytes = [0u8; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
