//! A server that is part of the sidecar.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::stdin::Refused;
use crate::mcp::builtin::{BuiltIn, Conversation};
use crate::mcp::child::Child;
use crate::mcp::child::lines::Line;
use crate::mcp::error::Error;

/// Messages that may wait for the server.
const MAX_QUEUED: usize = 256;

/// The sending half.
#[derive(Clone, Debug)]
pub struct Sender(mpsc::Sender<Vec<u8>>);

/// The half that answers.
pub struct Driver {
    incoming: mpsc::Receiver<Vec<u8>>,
    conversation: Box<dyn Conversation>,
    changes: watch::Receiver<u64>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Begins a conversation.
pub fn open(server: &dyn BuiltIn) -> (Sender, Driver) {
    let (tx, incoming) = mpsc::channel(MAX_QUEUED);
    // Before the conversation begins: a change in between is told twice and not missed.
    let changes = server.changes();
    (Sender(tx), Driver { incoming, conversation: server.open(), changes })
}

impl Sender {
    pub(super) fn send(&self, line: Vec<u8>) -> Result<(), Refused> {
        self.0.try_send(line).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Refused::Full,
            mpsc::error::TrySendError::Closed(_) => Refused::Closed,
        })
    }
}

impl Driver {
    /// Answers until the child is asked to end.
    pub async fn run(self, child: &Arc<Child>) -> Error {
        let Self { mut incoming, mut conversation, mut changes } = self;
        loop {
            let heard = tokio::select! {
                _ = child.stop_asked() => return Error::SessionEnded,
                line = incoming.recv() => match line {
                    Some(line) => Some(line),
                    None => return Error::SessionEnded,
                },
                changed = changes.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => return Error::SessionEnded,
                },
            };
            // Files are read there.
            let said = tokio::task::spawn_blocking(move || {
                let said = match heard {
                    Some(line) => conversation.hear(&line),
                    None => conversation.news(),
                };
                (conversation, said)
            });
            let Ok((kept, said)) = said.await else { return Error::SessionEnded };
            conversation = kept;
            for line in said {
                child.line(Line::Whole(line.as_bytes()));
            }
        }
    }
}
