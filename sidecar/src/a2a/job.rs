//! One accepted message on its way to the agent: what it holds, and the places it waits in.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Task, TurnMark};
use tokio::sync::oneshot;

use super::call::Used;
use super::gate::{Place, Running};
use super::handover::Request;
use super::ids::Trace;
use super::keys::Keys;
use super::lane::{Entry, Lane};
use super::probe::CONTAINER;
use super::service::{Sent, Tasks};
use crate::drain::Work;

/// How often a turn that waits looks whether its container is about to be restarted.
const HELD_CHECK: Duration = Duration::from_millis(250);

/// One accepted message.
pub(super) struct Job {
    pub tasks: Arc<Tasks>,
    /// The task as it was when the message came.
    pub task: Arc<Task>,
    pub lane: Entry,
    pub place: Place,
    pub work: Work,
    pub turn: Arc<str>,
    pub trace: Trace,
    pub request: Request,
    pub used: Used,
    pub keys: Keys,
    pub kind: Kind,
}

/// What the message is to its task.
pub(super) enum Kind {
    /// It began the task.
    New { message: Arc<str>, text: Arc<str>, conversation: Conversation },
    /// It goes on with the task; `stored` is its form for the history.
    FollowUp { message: Arc<str>, text: Arc<str>, stored: Raw },
    /// It was accepted by another process, which is gone; the task is this one's now.
    Again {
        /// The turn as that process left it.
        mark: TurnMark,
        /// Whether it is gone on with and not handed over again.
        reattach: bool,
    },
}

/// When the caller gets to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// When the task rests.
    Rest,
    /// When the turn is at work.
    Start,
    /// As soon as the task may be shown; then it follows the log.
    Stream,
}

/// Who waits for a turn; perhaps nobody.
pub(super) struct Teller {
    reply: Option<oneshot::Sender<Result<Sent, Error>>>,
    /// When to tell.
    pub mode: Mode,
    /// The task before anything of the turn is seen: where a stream begins.
    pub first: Arc<Task>,
}

impl Teller {
    /// Tells through a channel.
    pub fn new(mode: Mode, first: Arc<Task>) -> (Self, oneshot::Receiver<Result<Sent, Error>>) {
        let (tx, rx) = oneshot::channel();
        (Self { reply: Some(tx), mode, first }, rx)
    }

    /// Tells nobody.
    pub fn nobody(first: Arc<Task>) -> Self {
        Self { reply: None, mode: Mode::Rest, first }
    }

    /// Whether somebody still waits.
    pub fn waits(&self) -> bool {
        self.reply.is_some()
    }

    /// Tells, once.
    pub fn tell(&mut self, result: Result<Sent, Error>) {
        if let Some(reply) = self.reply.take() {
            // A caller that went away is no reason to stop.
            let _ = reply.send(result);
        }
    }

    /// Tells of a task: where its stream begins, or the task as it is.
    pub fn tell_task(&mut self, task: &Arc<Task>) {
        let told = if self.mode == Mode::Stream { &self.first } else { task };
        self.tell(Ok(Sent::Task(Arc::clone(told))));
    }
}

/// What a turn holds while it is at work.
pub(super) struct Held {
    pub running: Running,
    pub lane: Lane,
    pub work: Work,
}

/// First the lane, then a place at work, then a container that is not about to be restarted.
///
/// A turn that waits counts as work, but not against a container that waits for its work to end before it restarts:
/// each would wait for the other.
pub(super) async fn take_place(tasks: Arc<Tasks>, lane: Entry, place: Place, work: Work) -> Option<Held> {
    let drain = &tasks.ctx.drain;
    let mut work = Some(work);
    let mut queue = pin!(async {
        let lane = match lane {
            Entry::Free(lane) => lane,
            Entry::Wait(rx) => rx.await.ok()?,
        };
        Some((place.run().await?, lane))
    });
    let (running, lane) = loop {
        tokio::select! {
            biased;
            placed = &mut queue => break placed?,
            () = tokio::time::sleep(HELD_CHECK) => {
                if drain.held(CONTAINER) {
                    work = None;
                } else if work.is_none() {
                    work = Some(tasks.work());
                }
            }
        }
    };
    loop {
        let counted = work.take().unwrap_or_else(|| tasks.work());
        // In this order: a hook that comes after the look finds the work.
        if !drain.held(CONTAINER) {
            return Some(Held { running, lane, work: counted });
        }
        drop(counted);
        drain.opened(CONTAINER).await;
    }
}
