//! What stands between the service and the agent's container: a turn goes in, events come out.
//!
//! An executor knows its agent and nothing of the store, of tasks' states in it or of subscribers: the service writes
//! each event, decides whether it is legal, and ends the turn.

pub mod http;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use outrigger_protocol::a2a::answer::{DirectMessage, Rule};
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::Limits;
use tokio::time::Instant;

use super::SkillRef;
use super::call::{Caller, Used};
use super::ids::Trace;

pub use http::BadPath;

/// Reason of a probe that was taken and not answered.
pub const NO_ANSWER: &str = "NoAnswer";

/// One turn as an executor gets it.
#[derive(Clone, Debug)]
pub struct TurnInput {
    /// Id of the turn, a UUID; the same when it is handed over again.
    pub id: Arc<str>,
    /// How often it was handed over, this time included.
    pub attempt: u32,
    /// `seq` of the last event of an earlier attempt that was written; 0 if there is none.
    pub last_seq: u64,
    /// The caller's message as 1.0 JSON, as it was sent: without our ids.
    pub message: Arc<str>,
    /// The text of its text parts.
    pub text: Arc<str>,
    /// The task as the message met it: its ids, state, history before the message and artifacts are what counts.
    pub task: Arc<Task>,
    /// Whether the message began the task.
    pub is_new: bool,
    /// What the context remembers from before the message.
    pub conversation: Conversation,
    /// Who sent it.
    pub caller: Caller,
    /// `metadata` of the request (not of the message).
    pub metadata: Option<Raw>,
    /// Media types that the caller can use; empty is any.
    pub accepted_output_modes: Vec<String>,
    /// Extensions that the caller asked for.
    pub extensions: Vec<String>,
    /// Takes those that the agent puts to use.
    pub used: Used,
    /// Tasks of the caller that the message refers to; only for an executor that [wants](Executor::wants_references) them.
    pub references: Vec<Reference>,
    /// Skills of the pod as they are for this turn.
    pub skills: Vec<SkillRef>,
    /// What this executor last gave as a change's `attachment` for this task.
    pub attachment: Option<Raw>,
    /// The caller's trace.
    pub trace: Trace,
    /// Limits in force. An executor keeps to the time limits by itself.
    pub limits: Arc<Limits>,
    /// Until when an agent that is busy is asked again.
    pub busy_until: Instant,
}

/// A task that a message refers to.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Its id.
    pub task: Arc<str>,
    /// What the executor last gave as a change's `attachment` for it.
    pub attachment: Option<Raw>,
}

/// One thing that happens in a turn.
#[derive(Debug, PartialEq)]
pub enum TurnEvent {
    /// The agent took the turn and its answer is no direct message at once: a stream began, say.
    Started,
    /// The agent answers later, over the local API, under the turn's id. The stream ends after it, the turn does not.
    Later,
    /// The task changes. A state that ends or interrupts the task ends the turn. Of a change only `state`, `said`,
    /// `artifacts`, `memo` and `attachment` are looked at. Messages in it carry the ids of the turn's task.
    Change(Change),
    /// A message in place of a task; ends the turn.
    Message {
        /// The message.
        message: DirectMessage,
        /// The new memo.
        memo: Option<Raw>,
    },
    /// The turn failed; ends it.
    Fault {
        /// How.
        fault: Fault,
        /// The new memo.
        memo: Option<Raw>,
    },
    /// A clear mistake of the agent was put right: counted.
    Repaired(Rule),
}

/// The events of one turn. Nothing is done before it is polled; dropping it closes what it holds, the connection to
/// the agent above all. One that ends without an event that ends the turn, or [`TurnEvent::Later`], is
/// [`Fault::Incomplete`].
pub type TurnStream = BoxStream<'static, TurnEvent>;

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// How turns reach the agent and its events come back.
pub trait Executor: Send + Sync + 'static {
    /// Hands a turn over.
    fn turn(&self, input: TurnInput) -> TurnStream;

    /// Whether [`Self::reattach`] can go on with a turn; `attachment` is what the executor last gave for the task.
    fn can_reattach(&self, later: bool, attachment: Option<&Raw>) -> bool {
        let _ = attachment;
        later
    }

    /// Goes on with a turn that a sidecar before this one, in the same pod, had handed over, without handing it over
    /// again; `None` if that cannot be done for this turn. `later`: the agent had answered [`TurnEvent::Later`].
    fn reattach(&self, input: TurnInput, later: bool) -> Option<TurnStream>;

    /// Whether [`TurnInput::references`] are to be looked up.
    fn wants_references(&self) -> bool {
        false
    }

    /// Tells the agent that nobody waits for a turn any more; bounded, and what it answers does not matter. The turn's
    /// stream is gone by then. `attachment` is what the executor last gave for the task.
    fn cancel<'a>(&'a self, turn: &'a str, attachment: Option<&'a Raw>) -> BoxFuture<'a, ()>;

    /// Asks whether the agent is there; bounded.
    fn probe(&self) -> BoxFuture<'_, Result<(), NotReady>>;
}

/// Waits that are part of the contract and not of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// To open a connection.
    pub connect: Duration,
    /// How long a refused connection is tried again.
    pub refused: Duration,
    /// For the answer to a cancel.
    pub cancel: Duration,
    /// For the answer to a probe.
    pub probe: Duration,
    /// Between two probes while the handler is not ready.
    pub probe_unready: Duration,
    /// Between two probes while it is.
    pub probe_ready: Duration,
    /// How long a task stays hidden after its turn began to stream: a direct message may still take its place.
    pub reveal: Duration,
    /// Between two renewals of the store's lease.
    pub renew: Duration,
    /// Without a renewal for this long turns stop: the lease may be another's soon.
    pub lost: Duration,
    /// Between two looks for tasks whose process is gone.
    pub reap: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            connect: s(5),
            refused: s(10),
            cancel: s(5),
            probe: s(2),
            probe_unready: s(1),
            probe_ready: s(5),
            reveal: s(10),
            renew: s(5),
            lost: s(10),
            reap: s(3),
        }
    }
}
