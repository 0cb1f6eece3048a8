//! The second stage: this program again, between fork and the server's command.
//!
//! What must happen in the child before the command starts (own session, death with the parent, memory score) can only
//! be done by the child itself. So the shim starts itself with a socket as stdin; the stage takes the three standard
//! streams from that socket, prepares the process and executes the command. Success closes the socket without a byte;
//! failure leaves a message on it.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::Signal;

/// The three standard streams.
const STREAMS: usize = 3;
/// Added to the child's memory score, so that the kernel ends it before the shim.
const OOM_SCORE_ADD: i32 = 300;
const OOM_SCORE_MOST: i32 = 1000;
/// Conventional exit code of a command that can't be executed; nobody sees it but for a race with the shim's end.
const EXIT_EXEC: u8 = 126;

/// Passes the streams to a stage.
pub fn pass(socket: &UnixStream, streams: [BorrowedFd<'_>; STREAMS]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&streams));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"s")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Becomes the command. Returns only on failure.
pub fn run(parent: i32, command: &[OsString]) -> ExitCode {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::from(EXIT_EXEC) };
    let error = become_command(&socket, parent, command);
    let _ = UnixStream::from(socket).write_all(error.as_bytes());
    ExitCode::from(EXIT_EXEC)
}

fn become_command(socket: &OwnedFd, parent: i32, command: &[OsString]) -> String {
    let streams = match receive(socket) {
        Ok(streams) => streams,
        Err(e) => return format!("the standard streams did not arrive: {e}"),
    };
    let [stdin, stdout, stderr] = streams;
    let Some((program, args)) = command.split_first() else { return "no command".into() };
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("can't ask to end with the shim: {e}");
    }
    // The shim may have ended before the request above took effect.
    if rustix::process::getppid().map(rustix::process::Pid::as_raw_pid) != Some(parent) {
        return "the shim has ended".into();
    }
    if let Err(e) = rustix::process::setsid() {
        return format!("can't start a session: {e}");
    }
    raise_oom_score();
    let error = Command::new(program).args(args).stdin(Stdio::from(stdin)).stdout(stdout).stderr(stderr).exec();
    explain(program, &error)
}

fn receive(socket: &OwnedFd) -> io::Result<[OwnedFd; STREAMS]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    fds.try_into().map_err(|_| io::Error::other("wrong number"))
}

/// Best effort: raising needs no privilege, but `/proc` may be read-only.
fn raise_oom_score() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let now = std::fs::read_to_string(FILE).ok().and_then(|s| s.trim().parse::<i32>().ok()).unwrap_or(0);
    let _ = std::fs::write(FILE, (now + OOM_SCORE_ADD).min(OOM_SCORE_MOST).to_string());
}

/// What the author of an MCPServer needs to know.
fn explain(program: &OsString, error: &io::Error) -> String {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("command not found: {program} (or the interpreter or loader that it names is not in the image)")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "permission denied: {program} is not executable for this user, or its file system forbids execution"
            )
        }
        _ => format!("can't execute {program}: {error}"),
    }
}
