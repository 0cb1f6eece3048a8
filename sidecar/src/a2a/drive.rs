//! Drives one turn from its acceptance to its end. Owned by the sidecar, not by the request that brought it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outrigger_protocol::a2a::answer::{self, Answer, Outcome, Rule, Scope};
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::message::{UserMessage, notice};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task, TurnMark};
use outrigger_protocol::a2a::turn::Turn;
use outrigger_protocol::config::Limits;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::executor::http::Reply;
use super::gate::{Place, Running};
use super::ids::{Trace, uuid};
use super::lane::{Entry, Lane};
use super::probe::CONTAINER;
use super::service::{LaneEntry, Sent, Tasks, busy, ended, leaving};
use super::store::{Head, StoreError};
use crate::drain::Work;

/// How often a turn that waits looks whether its container is about to be restarted.
const HELD_CHECK: Duration = Duration::from_millis(250);

/// Where the result of a turn goes.
type Caller = oneshot::Sender<Result<Sent, Error>>;

/// One accepted message.
pub struct Job {
    tasks: Arc<Tasks>,
    task: Arc<Task>,
    lane: LaneEntry,
    place: Place,
    work: Work,
    message: String,
    text: String,
    trace: Trace,
    turn: Arc<str>,
    kind: Kind,
}

enum Kind {
    New(Conversation),
    FollowUp(Raw),
}

impl Job {
    /// A job for a message; counts as work from now on.
    pub(super) fn new(
        tasks: &Arc<Tasks>,
        task: Arc<Task>,
        lane: LaneEntry,
        place: Place,
        message: &UserMessage<'_>,
        trace: Trace,
    ) -> Self {
        Self {
            tasks: Arc::clone(tasks),
            task,
            lane,
            place,
            work: tasks.work(),
            message: message.as_str().to_owned(),
            text: message.text.clone().into_owned(),
            trace,
            turn: uuid().into(),
            kind: Kind::New(Conversation::default()),
        }
    }

    /// The message began the task.
    pub(super) fn new_task(self, conversation: Conversation) -> Self {
        Self { kind: Kind::New(conversation), ..self }
    }

    /// The message goes on with the task; `stored` is its form for the history.
    pub(super) fn follow_up(self, stored: Raw) -> Self {
        Self { kind: Kind::FollowUp(stored), ..self }
    }

    /// Whether the message began the task.
    pub fn is_new(&self) -> bool {
        matches!(self.kind, Kind::New(_))
    }

    /// The task as it was when the message came.
    pub fn task(&self) -> &Arc<Task> {
        &self.task
    }
}

/// What a turn holds while it is at work.
struct Held {
    running: Running,
    lane: Lane,
    work: Work,
}

/// How a wait ended.
enum Wait<T> {
    Done(T),
    /// The task ended meanwhile, by a cancel.
    Ended(Arc<Task>),
    /// The process ends.
    Stopped,
    /// Not in time.
    Late,
}

/// Runs a job to its end. `at_start`: reply when the turn is at work, not when it is done.
pub async fn run(job: Job, reply: Option<Caller>, at_start: bool) {
    let Job { tasks, task, lane, place, work, message, text, trace, turn, kind } = job;
    let mut reply = reply;
    let mut tell = |result| {
        if let Some(reply) = reply.take() {
            // A caller that went away is no reason to stop.
            let _ = reply.send(result);
        }
    };
    let mut driver = Driver { tasks: &tasks, turn: &turn, attempt: 1, trace: &trace };
    let Ok(mut follow) = tasks.store.subscribe(&task.id).await else {
        return tell(Err(Error::task_not_found(&task.id)));
    };
    let queue_limit = Duration::from_millis(tasks.limits().queue_timeout_ms);
    let until = Instant::now() + queue_limit;
    let is_new = matches!(kind, Kind::New(_));

    let placed = pin!(take_place(&tasks, lane, place, work));
    let held = match driver.wait(&task.id, &mut follow, until, placed).await {
        Wait::Done(Some(held)) => held,
        Wait::Ended(task) if is_new => return tell(Ok(Sent::Task(task))),
        Wait::Ended(task) => return tell(Err(ended(&task))),
        // The task of a follow-up stays as it was: nobody has seen the message.
        Wait::Stopped if !is_new => return tell(Err(leaving())),
        _ if !is_new => return tell(Err(busy("there was no place for this message in time"))),
        Wait::Stopped => return tell(Ok(driver.fail(task, &Fault::Stopped, None).await)),
        Wait::Done(None) | Wait::Late => return tell(Ok(driver.fail(task, &Fault::QueueTimeout, None).await)),
    };

    let (met, started) = match driver.start(&task, &kind).await {
        Ok(started) => started,
        Err(error) => return tell(Err(error)),
    };
    if at_start {
        tell(Ok(Sent::Task(Arc::clone(&started))));
    }
    let conversation = match kind {
        Kind::New(conversation) => conversation,
        Kind::FollowUp(_) => driver.conversation_before(&started).await,
    };
    let began = Instant::now();
    let limits = tasks.limits();
    let body = driver.turn_json(&met, is_new, &message, &text, &conversation);
    drop((message, text, conversation));
    let asked = pin!(tasks.executor.turn(&turn, body, &trace, &limits, until));
    let answered = driver.wait(&started.id, &mut follow, far_away(&limits, queue_limit), asked).await;
    tasks.metrics.turn_seconds.observe(began.elapsed().as_secs_f64());
    let cancel = match answered {
        Wait::Done(Ok(answer)) => {
            tell(Ok(driver.finish(started, answer).await));
            false
        }
        Wait::Done(Err(fault)) => {
            tell(Ok(driver.fail(started, &fault, None).await));
            matches!(fault, Fault::Timeout(_))
        }
        Wait::Ended(task) => {
            tell(Ok(Sent::Task(task)));
            true
        }
        Wait::Stopped => {
            tell(Ok(driver.fail(started, &Fault::Stopped, None).await));
            true
        }
        Wait::Late => {
            tell(Ok(driver.fail(started, &Fault::Timeout(limits.turn_timeout_ms), None).await));
            true
        }
    };
    let Held { running, lane, work } = held;
    drop((running, lane));
    if cancel {
        tasks.executor.cancel(&turn).await;
    }
    drop(work);
}

/// The executor bounds itself; this is the bound of the bound.
fn far_away(limits: &Limits, queue_limit: Duration) -> Instant {
    Instant::now() + Duration::from_millis(limits.turn_timeout_ms) * 2 + queue_limit + Duration::from_mins(1)
}

/// First the task's lane, then a place at work, then a container that is not about to be restarted.
///
/// A turn that waits counts as work, but not against a container that waits for its work to end before it restarts:
/// each would wait for the other.
async fn take_place(tasks: &Tasks, lane: LaneEntry, place: Place, work: Work) -> Option<Held> {
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

struct Driver<'a> {
    tasks: &'a Tasks,
    turn: &'a Arc<str>,
    attempt: u32,
    trace: &'a Trace,
}

impl Driver<'_> {
    async fn wait<T>(
        &self,
        id: &Arc<str>,
        follow: &mut watch::Receiver<Head>,
        until: Instant,
        work: Pin<&mut impl Future<Output = T>>,
    ) -> Wait<T> {
        let id = Arc::clone(id);
        let end = async {
            let ended = follow.wait_for(|t| t.state.is_terminal()).await.is_ok();
            match self.tasks.store.get(&id).await {
                Ok(task) if ended => task,
                // The store never forgets a task that lives.
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            task = end => Wait::Ended(task),
            done = timeout_at(until, work) => done.map_or(Wait::Late, Wait::Done),
            () = self.tasks.ctx.shutdown.cancelled() => Wait::Stopped,
        }
    }

    /// Marks the task as at work; a follow-up's message enters the history now. Gives the task as the message met it,
    /// and as it is.
    async fn start(&mut self, task: &Arc<Task>, kind: &Kind) -> Result<(Arc<Task>, Arc<Task>), Error> {
        let mut met = Arc::clone(task);
        loop {
            let message = match kind {
                Kind::New(_) => None,
                Kind::FollowUp(stored) => Some(stored.clone()),
            };
            let change = Change { state: Some(State::Working), message, ..self.change() };
            match self.tasks.store.append(&met, change, None).await {
                Ok(started) => return Ok((met, started)),
                Err(StoreError::Conflict { current, .. }) => met = current,
                Err(StoreError::Refused(_)) => return Err(ended(&met)),
                Err(StoreError::NotFound) => return Err(Error::task_not_found(&met.id)),
                Err(e) => return Err(busy(&e.to_string())),
            }
        }
    }

    fn change(&mut self) -> Change {
        let turn = TurnMark { id: Arc::clone(self.turn), attempt: self.attempt, ..TurnMark::default() };
        Change { turn: Some(turn), ..Change::default() }
    }

    /// What the context remembered before the message that just entered it.
    async fn conversation_before(&self, task: &Task) -> Conversation {
        let mut conversation = self.tasks.store.conversation(&task.caller, &task.context_id).await.unwrap_or_default();
        if let Some(newest) = task.history.last()
            && let Some(at) = conversation.messages.iter().rposition(|m| m == newest)
        {
            conversation.messages.remove(at);
        }
        conversation
    }

    fn turn_json(&self, met: &Task, is_new: bool, message: &str, text: &str, conversation: &Conversation) -> Bytes {
        let skills = (self.tasks.skills)();
        let skills =
            if skills.is_empty() { "[]".to_owned() } else { serde_json::to_string(&skills).unwrap_or_default() };
        let turn = Turn {
            id: self.turn,
            message,
            text,
            task: &met.id,
            state: met.state,
            // The history of a new task is the message itself.
            history: if is_new { &[] } else { &met.history },
            said: met.said.as_ref(),
            artifacts: &met.artifacts,
            context: &met.context_id,
            conversation,
            skills: &skills,
            urls: &self.tasks.urls,
        };
        Bytes::from(turn.to_json())
    }

    /// Takes the handler's answer.
    async fn finish(&mut self, task: Arc<Task>, reply: Reply) -> Sent {
        let Reply { form, body, mut repairs } = reply;
        let read = {
            let scope = Scope { task: &task.id, context: &task.context_id, new_id: &uuid };
            answer::read(&form, &body, &scope, &mut repairs)
        };
        drop(body);
        self.count(&repairs);
        let Answer { outcome, memo } = match read {
            Ok(answer) => answer,
            Err(fault) => return self.fail(task, &fault, None).await,
        };
        match outcome {
            Outcome::Change(change) => {
                let Change { turn, .. } = self.change();
                self.commit(task, Change { turn, memo, reveal: true, ..change }).await
            }
            Outcome::Error(fault) => self.fail(task, &fault, memo).await,
            Outcome::Message(message) if !task.revealed => {
                let direct = message.to_raw(&task.context_id, None);
                match self.tasks.store.withdraw(&task, memo, &direct).await {
                    Ok(()) => Sent::Message(direct),
                    Err(e) => self.fail(task, &Fault::Store(e.to_string()), None).await,
                }
            }
            Outcome::Message(message) => {
                self.count(&[Rule::MessageForTask]);
                let said = message.to_raw(&task.context_id, Some(&task.id));
                let end =
                    Change { state: Some(State::Completed), said: Some(said), memo, reveal: true, ..self.change() };
                self.commit(task, end).await
            }
        }
    }

    fn count(&self, repairs: &[Rule]) {
        for rule in repairs {
            self.tasks.metrics.repairs.with_label_values(&[rule.label()]).inc();
            let (turn, trace) = (&**self.turn, self.trace.id());
            tracing::debug!(target: "protocol", rule = rule.label(), turn, trace, "the agent's answer was repaired");
        }
    }

    /// Writes the end of the turn. A task that ended meanwhile stays as it is.
    async fn commit(&mut self, task: Arc<Task>, change: Change) -> Sent {
        let mut task = task;
        loop {
            match self.tasks.store.append(&task, change.clone(), None).await {
                Ok(task) => return Sent::Task(task),
                Err(StoreError::Conflict { current, .. }) if current.state.is_terminal() => {
                    self.tasks.metrics.late.inc();
                    return Sent::Task(current);
                }
                Err(StoreError::Conflict { current, .. }) => task = current,
                Err(StoreError::NotFound) => return Sent::Task(task),
                Err(e) => return Box::pin(self.fail(task, &Fault::Store(e.to_string()), None)).await,
            }
        }
    }

    /// Ends the task with a fault.
    async fn fail(&mut self, task: Arc<Task>, fault: &Fault, memo: Option<Raw>) -> Sent {
        self.tasks.metrics.failures.with_label_values(&[fault.reason()]).inc();
        let (id, turn, trace, reason) = (&*task.id, &**self.turn, self.trace.id(), fault.reason());
        if matches!(fault, Fault::Agent { .. }) {
            tracing::info!(target: "business", task = id, turn, trace, reason, "the agent failed the task");
        } else {
            tracing::warn!(target: "business", task = id, turn, trace, reason, %fault, "turn without an answer");
        }
        let state = if fault.rejects() { State::Rejected } else { State::Failed };
        let said = notice(&uuid(), &task.context_id, &task.id, &fault.to_string(), fault.shown_reason());
        let change = Change { state: Some(state), said: Some(said), memo, reveal: true, ..self.change() };
        let mut task = task;
        loop {
            match self.tasks.store.append(&task, change.clone(), None).await {
                Ok(task) => return Sent::Task(task),
                Err(StoreError::Conflict { current, .. }) if !current.state.is_terminal() => task = current,
                Err(StoreError::Conflict { current, .. }) => return Sent::Task(current),
                Err(e) => {
                    tracing::error!(target: "business", task = &*task.id, error = %e, "the end of a task was not stored");
                    return Sent::Task(task);
                }
            }
        }
    }
}
