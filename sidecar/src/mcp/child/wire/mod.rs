//! The way between a [`Child`] and the server behind it.
//!
//! What a wire does, whatever it is made of:
//! - [`Wire::open`] starts or reaches the server and says nothing to it yet. It gives two halves.
//! - [`Wire::send`] takes one message, a line of JSON without its newline, and never waits: what was taken is sent
//!   whole and in order, or the wire ends. Requests carry the child's own ids (unsigned numbers), so a wire that has to
//!   tell requests apart can read them.
//! - [`Driver::run`] hands each message that comes back to [`Child::line`], and nothing else: ids, tokens and routes are
//!   the business of the dispatch behind it. A single request that is lost is failed with [`Child::fail_request`];
//!   the others go on.
//! - The driver returns when the server is gone, with the reason. It awaits [`Child::stop_asked`] meanwhile: after that
//!   it ends the server, and returns within twice the grace time and [`Timing::shim`](crate::mcp::timing::Timing).
//! - [`Wire::close`] takes no more messages; what waits is lost.

pub mod control;
pub mod http;
pub mod inner;
pub mod pipes;
pub mod stdin;

use std::sync::Arc;

use outrigger_protocol::config::Reach;

use super::Child;
use crate::mcp::error::Error;
use crate::mcp::pool::Shared;
use stdin::{Refused, Stdin};

/// The sending half.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The stdin of a process.
    Pipes(Stdin),
    /// Requests over HTTP.
    Http(http::Sender),
    /// A part of the sidecar.
    Inner(inner::Sender),
}

/// The half that receives and knows when it is over.
#[derive(Debug)]
pub enum Driver {
    /// Stdout and the control channel of a process.
    Pipes(pipes::Driver),
    /// Answers and streams over HTTP.
    Http(http::Driver),
    /// A part of the sidecar.
    Inner(inner::Driver),
}

impl Wire {
    /// Opens a way to the server: for one behind a shim, starts a process.
    pub async fn open(shared: &Arc<Shared>) -> Result<(Self, Driver), Error> {
        match &shared.conf.reach {
            Reach::Stdio { socket, .. } => {
                let (stdin, driver) = pipes::open(socket, &shared.timing).await?;
                Ok((Self::Pipes(stdin), Driver::Pipes(driver)))
            }
            Reach::Http { .. } | Reach::Service { .. } | Reach::Remote { .. } => {
                let (sender, driver) = http::open(shared)?;
                Ok((Self::Http(sender), Driver::Http(driver)))
            }
            Reach::BuiltIn => {
                let server = shared.built_in.as_deref().ok_or(Error::ShimLost)?;
                let (sender, driver) = inner::open(server);
                Ok((Self::Inner(sender), Driver::Inner(driver)))
            }
        }
    }

    /// Takes one message.
    pub fn send(&self, line: Vec<u8>) -> Result<(), Refused> {
        match self {
            Self::Pipes(stdin) => stdin.send(line),
            Self::Http(sender) => sender.send(line),
            Self::Inner(sender) => sender.send(line),
        }
    }

    /// Whether the server has left something unread that was sent long ago, as far as that can be told.
    pub fn unread(&self) -> bool {
        match self {
            Self::Pipes(stdin) => stdin.unread(),
            Self::Http(_) | Self::Inner(_) => false,
        }
    }

    /// Takes no more messages.
    pub fn close(&self) {
        match self {
            Self::Pipes(stdin) => stdin.close(),
            Self::Http(sender) => sender.close(),
            // It ends with its driver.
            Self::Inner(_) => {}
        }
    }
}

impl Driver {
    /// Process id of the server in its container; 0 when it is no process of this pod.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Pipes(driver) => driver.pid(),
            Self::Http(_) | Self::Inner(_) => 0,
        }
    }

    /// Receives until the server is gone. The reason is what the server did by itself; a stop that was asked for stands
    /// above it.
    pub async fn run(self, child: &Arc<Child>) -> Error {
        match self {
            Self::Pipes(driver) => driver.run(child).await,
            Self::Http(driver) => driver.run(child).await,
            Self::Inner(driver) => driver.run(child).await,
        }
    }
}
