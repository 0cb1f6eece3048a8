//! The sidecar's end of the control channel to a shim.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use outrigger_protocol::mcp::shim::{FromShim, Hello, MAX_LINE, PROTOCOL, SPAWNED_FDS, ToShim, line};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::mcp::error::Error;

/// Read at once.
const READ_BYTES: usize = 4096;

/// One connection: at most one child.
#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A child's pipes as they came from the shim.
#[derive(Debug)]
pub struct Pipes {
    /// Process id in the tool container.
    pub pid: u32,
    /// Writing end of its stdin.
    pub stdin: pipe::Sender,
    /// Reading end of its stdout.
    pub stdout: pipe::Receiver,
}

impl Control {
    /// Connects and exchanges hellos.
    pub async fn connect(socket: &str, limit: Duration) -> Result<(Self, Hello), Error> {
        tokio::time::timeout(limit, Self::greet(socket))
            .await
            .unwrap_or_else(|_| Err(Error::ShimUnreachable("the shim does not say hello".into())))
    }

    async fn greet(socket: &str) -> Result<(Self, Hello), Error> {
        let stream = UnixStream::connect(socket).await.map_err(|e| unreachable(&e))?;
        let mut control = Self { stream, buffer: Vec::new(), fds: Vec::new() };
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            generation: String::new(),
        };
        control.send(&ToShim::Hello(hello)).await?;
        match control.receive().await? {
            FromShim::Hello(hello) if hello.protocol == PROTOCOL => Ok((control, hello)),
            FromShim::Hello(hello) => Err(Error::ShimVersionMismatch(format!(
                "the sidecar speaks protocol {PROTOCOL}, the shim {} ({})",
                hello.protocol, hello.version
            ))),
            FromShim::Error { reason, message } => Err((reason, message).into()),
            _ => Err(Error::ShimUnreachable("the shim did not say hello first".into())),
        }
    }

    /// Starts the child of this connection.
    pub async fn spawn(&mut self, limit: Duration) -> Result<Pipes, Error> {
        tokio::time::timeout(limit, async {
            self.send(&ToShim::Spawn {}).await?;
            loop {
                match self.receive().await? {
                    FromShim::Spawned { pid } => return self.pipes(pid),
                    FromShim::Error { reason, message } => return Err((reason, message).into()),
                    FromShim::Stopping {} => {
                        return Err(Error::ShimUnreachable("the tool container is being stopped".into()));
                    }
                    FromShim::Hello(_) | FromShim::Exit(_) | FromShim::Stderr { .. } => {}
                }
            }
        })
        .await
        .unwrap_or_else(|_| Err(Error::SpawnFailed("the shim did not start the process in time".into())))
    }

    /// A hostile or broken shim could send anything: tokio checks that these are pipes with the right direction.
    fn pipes(&mut self, pid: u32) -> Result<Pipes, Error> {
        let count = self.fds.len();
        let mut fds = self.fds.drain(..);
        let (Some(stdin), Some(stdout), SPAWNED_FDS) = (fds.next(), fds.next(), count) else {
            return Err(Error::FdPassingRefused(format!("{count} of {SPAWNED_FDS} descriptors arrived")));
        };
        let wrong = |e: io::Error| Error::FdPassingRefused(e.to_string());
        Ok(Pipes {
            pid,
            stdin: pipe::Sender::from_owned_fd(stdin).map_err(wrong)?,
            stdout: pipe::Receiver::from_owned_fd(stdout).map_err(wrong)?,
        })
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &ToShim) -> Result<(), Error> {
        self.stream.write_all(&line(message)).await.map_err(|_| Error::ShimLost)
    }

    /// The next message. Cancel-safe: what was read stays in the connection.
    pub async fn receive(&mut self) -> Result<FromShim, Error> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer) {
                let text: Vec<u8> = self.buffer.drain(..=end).collect();
                // A later shim may say things that this sidecar does not know.
                match serde_json::from_slice(&text) {
                    Ok(message) => return Ok(message),
                    Err(error) => tracing::debug!(target: "transport", %error, "unknown message of a shim"),
                }
                continue;
            }
            if self.buffer.len() > MAX_LINE {
                return Err(Error::ShimLost);
            }
            match self.stream.async_io(Interest::READABLE, || read(&self.stream, &mut self.buffer, &mut self.fds)).await
            {
                Ok(0) | Err(_) => return Err(Error::ShimLost),
                Ok(_) => {}
            }
        }
    }
}

fn read(stream: &UnixStream, buffer: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut chunk = [0u8; READ_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SPAWNED_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut chunk)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            // More than these are never asked for; a peer that sends more gets them closed.
            fds.extend(rights.take(SPAWNED_FDS + 1));
            fds.truncate(SPAWNED_FDS + 1);
        }
    }
    buffer.extend_from_slice(&chunk[..got.bytes]);
    Ok(got.bytes)
}

fn unreachable(error: &io::Error) -> Error {
    Error::ShimUnreachable(match error.kind() {
        io::ErrorKind::NotFound => "its socket is not there yet".into(),
        io::ErrorKind::ConnectionRefused => "nobody listens on its socket".into(),
        io::ErrorKind::PermissionDenied => {
            "permission denied on its socket: fsGroup of the pod and group of the sidecar must agree".into()
        }
        _ => error.to_string(),
    })
}
