//! A process behind the shim: its pipes, which the shim passed, and the control channel that starts and ends it.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::mcp::shim::{FromShim, ToShim};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::control::Control;
use super::stdin::Stdin;
use crate::mcp::child::Child;
use crate::mcp::child::lines::Lines;
use crate::mcp::error::Error;
use crate::mcp::timing::Timing;

/// Read at once, into a buffer that all children of a thread share.
const READ_BYTES: usize = 64 << 10;
/// Reads before other tasks get their turn.
const READS_PER_TURN: usize = 32;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Where the process stands.
enum Phase {
    Running,
    /// Its stdout is closed; its exit should follow by then.
    Exiting(Instant),
    /// It was told to end, and is given up by then.
    Stopping(Instant),
}

impl Phase {
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Exiting(until) | Self::Stopping(until) => Some(*until),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Driver {
    control: Control,
    pid: u32,
    stdin: Stdin,
    stdout: pipe::Receiver,
}

/// Starts a process on a connection of its own.
pub async fn open(socket: &str, timing: &Timing) -> Result<(Stdin, Driver), Error> {
    let (mut control, _) = Control::connect(socket, timing.shim).await?;
    let pipes = control.spawn(timing.shim).await?;
    let stdin = Stdin::start(pipes.stdin);
    Ok((stdin.clone(), Driver { control, pid: pipes.pid, stdin, stdout: pipes.stdout }))
}

impl Driver {
    /// Process id in the tool container.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads stdout and watches the channel until the process is gone.
    pub async fn run(self, child: &Arc<Child>) -> Error {
        let Self { mut control, stdin, stdout, .. } = self;
        let timing = child.shared.timing.clone();
        // A task of its own: a child that is blocked on a full pipe does not read either.
        let mut reader = tokio::spawn(read(Arc::clone(child), stdout));
        let mut stdout_open = true;
        let mut stdout_closed = false;
        let mut phase = Phase::Running;
        let exit = loop {
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                message = control.receive() => match message {
                    Ok(FromShim::Exit(exit)) => break Some(Error::ChildExited(exit)),
                    Ok(FromShim::Stopping {}) => child.stop("shutdown", timing.grace),
                    Ok(_) => {}
                    Err(_) => break None,
                },
                _ = &mut reader, if stdout_open => {
                    stdout_open = false;
                    stdin.close();
                    if matches!(phase, Phase::Running) {
                        phase = Phase::Exiting(Instant::now() + timing.last_words);
                    }
                }
                grace = child.stop_asked(), if !matches!(phase, Phase::Stopping(_)) => {
                    phase = descend(&stdin, &mut control, grace, &timing).await;
                }
                () = tokio::time::sleep_until(phase.until().unwrap_or(far)) => match phase {
                    Phase::Stopping(until) if until <= Instant::now() => break None,
                    Phase::Exiting(until) if until <= Instant::now() => {
                        // Alive without stdout: of no use to anybody.
                        stdout_closed = true;
                        child.close(&Error::StdoutClosed);
                        phase = descend(&stdin, &mut control, timing.grace, &timing).await;
                    }
                    _ => {}
                }
            }
        };
        // Replies that were written before the exit still count.
        if stdout_open && exit.is_some() {
            let _ = tokio::time::timeout(timing.last_words, &mut reader).await;
        }
        reader.abort();
        if stdout_closed { Error::StdoutClosed } else { exit.unwrap_or(Error::ShimLost) }
    }
}

/// Closes stdin and has the shim begin the stop ladder.
async fn descend(stdin: &Stdin, control: &mut Control, grace: Duration, timing: &Timing) -> Phase {
    stdin.close();
    let until = Instant::now() + grace * 2 + timing.shim;
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    // A shim that can't be told is a shim that is gone, which the next read says.
    let _ = tokio::time::timeout_at(until, control.send(&ToShim::Stop { grace_ms })).await;
    Phase::Stopping(until)
}

/// Reads a child's stdout until it is closed.
async fn read(child: Arc<Child>, stdout: pipe::Receiver) {
    let max = usize::try_from(child.shared.conf.process.max_line_bytes).unwrap_or(usize::MAX);
    let mut lines = Lines::new(max);
    loop {
        if stdout.readable().await.is_err() {
            break;
        }
        let open = BUFFER.with_borrow_mut(|buffer| {
            for _ in 0..READS_PER_TURN {
                match stdout.try_read(buffer) {
                    Ok(0) => return false,
                    Ok(n) => lines.feed(&buffer[..n], |line| child.line(line)),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(_) => return false,
                }
            }
            true
        });
        if !open {
            break;
        }
        tokio::task::consume_budget().await;
    }
    // A last line without a newline counts too.
    lines.finish(|line| child.line(line));
}
