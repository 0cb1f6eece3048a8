//! What A2A asks for, on tasks: send, get, cancel. Knows no HTTP.

use std::sync::Arc;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::message::notice;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::send::SendMessage;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::Limits;
use tokio::sync::oneshot;

use super::SkillRef;
use super::drive::{self, Job};
use super::executor::http::Http;
use super::gate::Gate;
use super::ids::{Trace, uuid};
use super::lane::{Entry, Lanes};
use super::metrics::Metrics;
use super::probe::CONTAINER;
use super::store::{Store, StoreError};
use crate::context::Context;

/// Seconds that a caller is told to wait when the agent is busy.
const RETRY_BUSY: u32 = 1;
/// Seconds that a caller is told to wait when the pod is going: by then its endpoints have forgotten it.
const RETRY_DRAINING: u32 = 5;

/// The tasks of the agent and everything they need.
pub struct Tasks {
    pub(super) ctx: Context,
    pub(super) store: Arc<dyn Store>,
    pub(super) executor: Arc<Http>,
    pub(super) gate: Arc<Gate>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) metrics: Metrics,
    pub(super) skills: Arc<dyn Fn() -> Vec<SkillRef> + Send + Sync>,
    pub(super) urls: String,
}

/// What a message led to.
#[derive(Debug)]
pub enum Sent {
    /// A task.
    Task(Arc<Task>),
    /// A direct message.
    Message(Raw),
}

impl Tasks {
    /// The limits in force.
    pub(super) fn limits(&self) -> Limits {
        self.ctx.live.borrow().limits.clone()
    }

    /// Takes a message on and waits until its work rests; with `return_immediately` only until it is accepted.
    /// The work goes on when the caller goes.
    pub async fn send(self: &Arc<Self>, params: SendMessage<'_>, trace: Trace) -> Result<Sent, Error> {
        if params.push.is_some() {
            return Err(Error::new(
                Kind::PushNotificationNotSupported,
                "this agent sends no push notifications: send without configuration.taskPushNotificationConfig",
            ));
        }
        if !self.ctx.drain.accepting() {
            return Err(leaving());
        }
        let before = match &params.message.task_id {
            Some(id) => Some(self.follow_up(id, params.message.context_id.as_deref()).await?),
            None => None,
        };
        let place = self.gate.admit().ok_or_else(|| busy("as many messages wait as the agent takes"))?;
        let message = &params.message;
        let job = if let Some(task) = before {
            let lane = self
                .lanes
                .enter(&task.id)
                .ok_or_else(|| busy("as many messages wait for this task as the agent takes"))?;
            let stored = message.stored(&task.id, &task.context_id);
            Job::new(self, task, lane, place, message, trace).follow_up(stored)
        } else {
            let context: Arc<str> = match &message.context_id {
                Some(id) => id.as_ref().into(),
                None => uuid().into(),
            };
            let id: Arc<str> = uuid().into();
            let lane =
                self.lanes.enter(&id).ok_or_else(|| Error::new(Kind::Internal, "a new task has a turn already"))?;
            let conversation = self.store.conversation("", &context).await.map_err(|e| internal(&e))?;
            let stored = message.stored(&id, &context);
            let task = Task::new(id, context, "".into(), stored, params.return_immediately, jiff::Timestamp::now());
            let task = self.store.create(task, None, None).await.map_err(|e| match e {
                StoreError::Full(_) => busy(&e.to_string()),
                other => internal(&other),
            })?;
            Job::new(self, task, lane, place, message, trace).new_task(conversation)
        };
        if params.return_immediately && job.is_new() {
            let task = Arc::clone(job.task());
            tokio::spawn(drive::run(job, None, false));
            return Ok(Sent::Task(task));
        }
        let (tx, rx) = oneshot::channel();
        tokio::spawn(drive::run(job, Some(tx), params.return_immediately));
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the turn ended without a result")))
    }

    /// The task that a message goes on with, if it may.
    async fn follow_up(&self, id: &str, context: Option<&str>) -> Result<Arc<Task>, Error> {
        let task = self.get(id).await?;
        if context.is_some_and(|c| c != &*task.context_id) {
            return Err(Error::invalid_field("message.contextId", "is not the context of the task"));
        }
        if task.state.is_terminal() {
            return Err(ended(&task));
        }
        Ok(task)
    }

    /// One task, as a caller may see it.
    pub async fn get(&self, id: &str) -> Result<Arc<Task>, Error> {
        match self.store.get(id).await {
            Ok(task) if task.revealed => Ok(task),
            Ok(_) | Err(StoreError::NotFound) => Err(Error::task_not_found(id)),
            Err(e) => Err(internal(&e)),
        }
    }

    /// One task, as the agent may see it: before its caller does, too.
    pub async fn get_for_agent(&self, id: &str) -> Result<Arc<Task>, Error> {
        self.store.get(id).await.map_err(|e| match e {
            StoreError::NotFound => Error::task_not_found(id),
            other => internal(&other),
        })
    }

    /// Ends a task. A second cancel gives the canceled task again.
    pub async fn cancel(&self, id: &str) -> Result<Arc<Task>, Error> {
        let mut task = self.get(id).await?;
        loop {
            match task.state {
                State::Canceled => return Ok(task),
                state if state.is_terminal() => {
                    return Err(Error::new(Kind::TaskNotCancelable, format!("the task is {} already", state.wire()))
                        .with("taskId", &*task.id)
                        .with("state", state.wire()));
                }
                _ => {}
            }
            let said = notice(&uuid(), &task.context_id, &task.id, "canceled by the caller", "canceled");
            let change = Change { state: Some(State::Canceled), said: Some(said), ..Change::default() };
            match self.store.append(&task, change, None).await {
                // The turn follows its task and ends by itself.
                Ok(task) => return Ok(task),
                Err(StoreError::Conflict { current, .. }) => task = current,
                Err(StoreError::NotFound) => return Err(Error::task_not_found(id)),
                Err(e) => return Err(internal(&e)),
            }
        }
    }

    /// Counts a piece of work on the handler's container.
    pub(super) fn work(&self) -> crate::drain::Work {
        self.ctx.drain.work(CONTAINER)
    }
}

/// More than the agent takes; come again.
pub(super) fn busy(why: &str) -> Error {
    Error::new(Kind::Busy, format!("the agent is busy: {why}")).retry_after(RETRY_BUSY)
}

/// The pod is on its way out.
pub(super) fn leaving() -> Error {
    Error::new(Kind::Unavailable, "the agent is shutting down: send again, to another instance")
        .retry_after(RETRY_DRAINING)
}

/// A message for a task that takes none.
pub(super) fn ended(task: &Task) -> Error {
    Error::new(Kind::UnsupportedOperation, format!("the task is {} and takes no message", task.state.wire()))
        .with("taskId", &*task.id)
        .with("state", task.state.wire())
}

fn internal(error: &StoreError) -> Error {
    tracing::error!(target: "business", %error, "the task store failed");
    Error::new(Kind::Internal, "the task store failed")
}

/// The lane of a job.
pub(super) type LaneEntry = Entry;
