//! Questions to a client: who wants to know, and by when.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Session;
use crate::mcp::child::Child;
use crate::mcp::error::Error;

/// A question that awaits the client's answer.
pub struct Asked {
    from: From,
    /// Refused by then.
    pub deadline: Instant,
    /// Whether a client got it.
    pub delivered: bool,
}

enum From {
    /// A child, under its raw id.
    Child(Weak<Child>, Box<str>),
    /// The proxy.
    Us(oneshot::Sender<Result<Bytes, Error>>),
}

impl Asked {
    /// A question of a child's.
    pub fn of_child(child: &Arc<Child>, child_id: &str) -> Self {
        Self::new(From::Child(Arc::downgrade(child), child_id.into()))
    }

    /// A question of the proxy's, and where its answer comes.
    pub fn waiting() -> (Self, oneshot::Receiver<Result<Bytes, Error>>) {
        let (tx, rx) = oneshot::channel();
        (Self::new(From::Us(tx)), rx)
    }

    fn new(from: From) -> Self {
        Self { from, deadline: Instant::now(), delivered: false }
    }

    /// Whether a child asked it under a raw id.
    pub fn is(&self, child: &Arc<Child>, child_id: &str) -> bool {
        matches!(&self.from, From::Child(c, id) if &**id == child_id && std::ptr::eq(c.as_ptr(), Arc::as_ptr(child)))
    }

    /// A client got it.
    pub fn deliver(&mut self, limit: Duration) {
        self.delivered = true;
        self.deadline = Instant::now() + limit;
    }

    /// Brings the answer to who asked.
    pub fn answer(self, envelope: &Envelope<'_>) -> Result<(), Error> {
        match self.from {
            From::Child(child, id) => child.upgrade().map_or(Err(Error::SessionEnded), |c| c.reply(&id, envelope)),
            From::Us(tx) => {
                let _ = tx.send(Ok(outrigger_protocol::jsonrpc::splice(envelope.text, &[]).into()));
                Ok(())
            }
        }
    }

    /// There will be no answer.
    pub fn refuse(self, why: &str) {
        match self.from {
            From::Child(child, id) => {
                if let Some(child) = child.upgrade() {
                    child.refuse(&id, INTERNAL_ERROR, why);
                }
            }
            From::Us(tx) => {
                let _ = tx.send(Err(Error::Unanswered(why.into())));
            }
        }
    }
}

/// Refuses a question when its time is over.
pub async fn watch(session: Weak<Session>, number: u64, first: Duration) {
    let mut wait = Instant::now() + first;
    loop {
        tokio::time::sleep_until(wait).await;
        let Some(session) = session.upgrade() else { return };
        let over = session.mail.lock().overdue(number);
        match over {
            None => return,
            Some(Ok(asked)) => {
                let why =
                    if asked.delivered { "the client did not answer in time" } else { "no client could be asked" };
                return asked.refuse(why);
            }
            Some(Err(later)) => wait = later,
        }
    }
}
