//! One child: started through the second stage, watched, and brought to its end step by step.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use outrigger_protocol::mcp::shim::{Exit, GRACE_MS, STDERR_TAIL};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitStatus, kill_process, kill_process_group, test_kill_process_group};

use super::log::Log;
use super::supervisor::Clock;
use super::{args, procfs, stage};

/// How much of stderr is read at once.
pub const READ_BYTES: usize = 16 << 10;
/// Capacity of a child's stdout. The kernel bounds the sum per user.
const STDOUT_PIPE_BYTES: usize = 256 << 10;
/// How much of stderr is read before other work gets its turn.
const READS_PER_TURN: usize = 16;
/// How often a group that was killed is looked at until it is gone.
const RECHECK: Duration = Duration::from_millis(20);
/// Longest message of a stage.
const MAX_STAGE_MESSAGE: u64 = 4096;

/// Where a child stands.
enum State {
    /// The second stage has not executed the command yet.
    Staging { socket: UnixStream, pipes: (OwnedFd, OwnedFd) },
    /// The command runs.
    Running,
    /// The command could not be executed; the second stage is about to end.
    Failed,
}

/// Steps towards the end, each at its time.
#[derive(Clone, Copy)]
struct Ladder {
    grace: Duration,
    next: Clock,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Term,
    Kill,
    Gone,
}

/// What became of a stage.
pub enum Staged {
    /// The command runs; stdin's write end and stdout's read end.
    Running(OwnedFd, OwnedFd),
    /// It could not be executed.
    Failed(String),
}

/// One child and what it left behind.
pub struct Child {
    pid: Pid,
    /// The connection it belongs to, until that closes.
    pub conn: Option<u64>,
    state: State,
    stderr: Option<OwnedFd>,
    tail: VecDeque<u8>,
    exit: Option<WaitStatus>,
    ladder: Option<Ladder>,
}

impl Child {
    /// Starts the second stage. Call on the main thread only: the child ends with the thread that started it.
    pub fn spawn(program: &Path, command: &[OsString], env: &[(OsString, OsString)], conn: u64) -> io::Result<Self> {
        let (stdin_r, stdin_w) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout_r, stdout_w) = pipe_with(PipeFlags::CLOEXEC)?;
        // Best effort: a large response takes fewer turns of the two processes.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout_r, STDOUT_PIPE_BYTES);
        let (stderr_r, stderr_w) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&stderr_r, true)?;
        let (ours, theirs) = UnixStream::pair()?;
        stage::pass(&ours, [stdin_r.as_fd(), stdout_w.as_fd(), stderr_w.as_fd()])?;
        ours.set_nonblocking(true)?;
        let pid = rustix::process::getpid().as_raw_pid().to_string();
        let stage = Command::new(program)
            .arg(args::STAGE)
            .arg(pid)
            .args(command)
            .env_clear()
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let pid =
            i32::try_from(stage.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(Self {
            pid,
            conn: Some(conn),
            state: State::Staging { socket: ours, pipes: (stdin_w, stdout_r) },
            stderr: Some(stderr_r),
            tail: VecDeque::new(),
            exit: None,
            ladder: None,
        })
    }

    /// Its process id, which is also its process group's.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The socket to the stage, to be polled for reading.
    pub fn stage(&self) -> Option<&UnixStream> {
        match &self.state {
            State::Staging { socket, .. } => Some(socket),
            State::Running | State::Failed => None,
        }
    }

    /// Whether the command could not be executed: it does not count as a child.
    pub fn failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Its stderr, to be polled for reading.
    pub fn stderr(&self) -> Option<&OwnedFd> {
        self.stderr.as_ref()
    }

    /// Looks whether the stage is over. `None`: not yet.
    pub fn staged(&mut self) -> Option<Staged> {
        let State::Staging { socket, .. } = &mut self.state else { return None };
        let mut message = Vec::new();
        match socket.take(MAX_STAGE_MESSAGE).read_to_end(&mut message) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && message.is_empty() => return None,
            _ => {}
        }
        let State::Staging { pipes, .. } = std::mem::replace(&mut self.state, State::Running) else { return None };
        Some(if message.is_empty() {
            Staged::Running(pipes.0, pipes.1)
        } else {
            self.state = State::Failed;
            Staged::Failed(String::from_utf8_lossy(&message).into_owned())
        })
    }

    /// Copies what stands in stderr to the log and the tail.
    pub fn drain_stderr(&mut self, log: &mut Log, buffer: &mut [u8]) {
        for _ in 0..READS_PER_TURN {
            let Some(fd) = &self.stderr else { return };
            match rustix::io::read(fd, &mut *buffer) {
                Ok(0) => self.stderr = None,
                Ok(n) => {
                    log.write(&buffer[..n]);
                    let chunk = &buffer[n.saturating_sub(STDERR_TAIL)..n];
                    let excess = (self.tail.len() + chunk.len()).saturating_sub(STDERR_TAIL);
                    self.tail.drain(..excess);
                    self.tail.extend(chunk);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.stderr = None,
            }
        }
    }

    /// Last bytes of stderr as text.
    pub fn tail(&mut self) -> String {
        let bytes = self.tail.make_contiguous();
        // The cut may stand inside a character.
        let start = bytes.iter().position(|b| b & 0xC0 != 0x80).unwrap_or(0);
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    /// The process was waited for. What is left of its group gets the rest of the ladder at once.
    pub fn exited(&mut self, status: WaitStatus, now: Clock) -> Exit {
        self.exit = Some(status);
        let grace = self.ladder.map_or(Duration::from_millis(GRACE_MS), |l| l.grace);
        if self.ladder.is_none_or(|l| l.step == Step::Term) {
            self.ladder = Some(Ladder { grace, next: now, step: Step::Term });
        }
        Exit { code: status.exit_status(), signal: status.terminating_signal(), tail: self.tail() }
    }

    /// Begins to end the child: its stdin is expected to close now, SIGTERM comes after the grace time.
    pub fn stop(&mut self, grace: Duration, now: Clock) {
        if self.ladder.is_none() {
            self.ladder = Some(Ladder { grace, next: now + grace, step: Step::Term });
        }
    }

    /// When the next step is due.
    pub fn due(&self) -> Option<Clock> {
        self.ladder.map(|l| l.next)
    }

    /// Takes the steps that are due.
    pub fn step(&mut self, now: Clock) {
        let Some(mut ladder) = self.ladder else { return };
        if ladder.next > now {
            return;
        }
        match ladder.step {
            Step::Term => {
                self.signal(Signal::TERM);
                ladder.step = Step::Kill;
                ladder.next = now + ladder.grace;
            }
            Step::Kill | Step::Gone => {
                self.signal(Signal::KILL);
                ladder.step = Step::Gone;
                ladder.next = now + RECHECK;
            }
        }
        self.ladder = Some(ladder);
    }

    /// Whether the process was waited for and nothing of its group lives.
    pub fn over(&self) -> bool {
        self.exit.is_some() && !self.group_lives()
    }

    fn group_lives(&self) -> bool {
        test_kill_process_group(self.pid).is_ok()
    }

    /// Signals the group, and what descends from the child but has left the group.
    fn signal(&self, signal: Signal) {
        let strays = if self.exit.is_none() { procfs::descendants(self.pid) } else { Vec::new() };
        let _ = kill_process_group(self.pid, signal);
        if self.exit.is_none() {
            // Before the stage has a session of its own there is no group to signal.
            let _ = kill_process(self.pid, signal);
        }
        for pid in strays {
            let _ = kill_process(pid, signal);
        }
    }
}
