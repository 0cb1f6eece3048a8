//! One connection of a sidecar: lines in, lines out, never blocking.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use outrigger_protocol::mcp::shim::{FromShim, MAX_LINE, SPAWNED_FDS, ToShim, line};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Bytes that may wait for a peer that does not read; beyond it the connection is closed.
const MAX_UNSENT: usize = 2 * MAX_LINE;

/// One connection.
pub struct Conn {
    stream: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// The peer's hello was good.
    pub greeted: bool,
    /// A child was asked for; another one needs another connection.
    pub used: bool,
    /// Close when everything is sent.
    pub closing: bool,
}

/// What a connection had to say.
pub enum Incoming {
    /// Whole messages; the connection stays.
    Messages(Vec<Result<ToShim, String>>),
    /// The peer is gone, or broke the rules of the channel.
    Closed,
}

impl Conn {
    /// Takes over an accepted stream.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: Vec::new(), outgoing: Vec::new(), greeted: false, used: false, closing: false })
    }

    /// The stream, to be polled.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether something waits to be sent.
    pub fn unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads what is there.
    pub fn read(&mut self, buffer: &mut [u8]) -> Incoming {
        match self.stream.read(buffer) {
            Ok(0) => return Incoming::Closed,
            Ok(n) => self.incoming.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Incoming::Closed,
        }
        let mut messages = Vec::new();
        while let Some(end) = self.incoming.iter().position(|b| *b == b'\n') {
            let text: Vec<u8> = self.incoming.drain(..=end).collect();
            if !text.trim_ascii().is_empty() {
                messages.push(serde_json::from_slice(&text).map_err(|e| e.to_string()));
            }
        }
        if self.incoming.len() > MAX_LINE { Incoming::Closed } else { Incoming::Messages(messages) }
    }

    /// Queues a message and sends what goes. `false`: the connection is of no use any more.
    pub fn send(&mut self, message: &FromShim) -> bool {
        self.outgoing.extend(line(message));
        self.flush()
    }

    /// Sends what goes. `false`: the connection is of no use any more.
    pub fn flush(&mut self) -> bool {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return false,
                Ok(n) => {
                    self.outgoing.drain(..n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        self.outgoing.len() <= MAX_UNSENT
    }

    /// Sends the pipes of a child. The queue is empty then, as the peer waits for this message.
    pub fn send_pipes(&mut self, pid: u32, stdin: &OwnedFd, stdout: &OwnedFd) -> io::Result<()> {
        let text = line(&FromShim::Spawned { pid });
        let fds = [stdin.as_fd(), stdout.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SPAWNED_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
        self.outgoing.extend_from_slice(&text[sent..]);
        Ok(())
    }
}
