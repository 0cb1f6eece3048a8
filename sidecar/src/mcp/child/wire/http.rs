//! A server over streamable HTTP: in a container of this pod, behind a Service, or anywhere else.

use std::sync::Arc;

use outrigger_protocol::config::Reach;
use tokio::sync::mpsc;

use super::stdin::Refused;
use crate::mcp::child::Child;
use crate::mcp::child::lines::Line;
use crate::mcp::error::Error;
use crate::mcp::pool::Shared;
use crate::mcp::wire_http::{self, Incoming, Upstream, Wire};
use crate::outbound::resolve::System;

/// Messages that came and were not taken up yet.
const WAITING: usize = 64;

/// The sending half.
#[derive(Clone)]
pub struct Sender(Arc<Wire>);

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct Driver {
    sender: Sender,
    incoming: mpsc::Receiver<Incoming>,
}

/// Opens a connection; the server hears of it with the first message.
pub fn open(shared: &Shared) -> Result<(Sender, Driver), Error> {
    let upstream = shared.upstream(|| {
        let conf = &shared.conf;
        debug_assert!(!matches!(conf.reach, Reach::Stdio { .. }));
        Upstream::new(&conf.reach, &conf.process, Arc::new(System)).map_err(|e| Error::Unreachable(e.to_string()))
    })?;
    let (tx, incoming) = mpsc::channel(WAITING);
    let sender = Sender(Arc::new(Wire::open(upstream, tx)));
    Ok((sender.clone(), Driver { sender, incoming }))
}

impl Sender {
    pub(super) fn send(&self, line: Vec<u8>) -> Result<(), Refused> {
        self.0.send(line.into()).map_err(|e| match e {
            wire_http::Error::Overloaded => Refused::Full,
            _ => Refused::Closed,
        })
    }

    pub(super) fn close(&self) {
        self.0.stop();
    }
}

impl Driver {
    /// Hands on what comes until the server cannot be reached, or the child is asked to end.
    pub async fn run(mut self, child: &Arc<Child>) -> Error {
        loop {
            tokio::select! {
                grace = child.stop_asked() => {
                    let _ = tokio::time::timeout(grace, self.sender.0.close()).await;
                    return Error::SessionEnded;
                }
                incoming = self.incoming.recv() => match incoming {
                    Some(Incoming::Message(text)) => child.line(Line::Whole(text.as_bytes())),
                    Some(Incoming::Failed { id, error }) => {
                        let gone = error.is_gone();
                        let error = Error::Http(error);
                        if let Ok(id) = id.parse() {
                            child.fail_request(id, &error);
                        }
                        if gone {
                            return error;
                        }
                    }
                    Some(Incoming::Renewed) => child.renewed(),
                    None => return Error::SessionEnded,
                }
            }
        }
    }
}
