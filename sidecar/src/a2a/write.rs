//! How a turn writes: every event once, in order, through outages of the store, and never over what ended it.

use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::answer::Rule;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::message::notice;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use tokio::time::Instant;

use super::drive::Driver;
use super::executor::TurnEvent;
use super::handover;
use super::ids::uuid;
use super::service::Sent;
use super::store::StoreError;

/// How long a result is kept in hand while the store is away.
const RESULT_LIMIT: Duration = Duration::from_mins(10);
/// The same when the process ends.
const RESULT_LIMIT_AT_END: Duration = Duration::from_secs(3);
/// First and longest pause between two tries.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why something was not written.
#[derive(Debug)]
pub(super) enum Stop {
    /// The task ended meanwhile, or is another's now.
    Over(Arc<Task>),
    /// The task is forgotten.
    Gone,
    /// The lease may be another's.
    Lost,
    /// It cannot be stored.
    Refused(String),
}

impl Driver {
    /// Whether the task is still this turn's.
    pub fn is_mine(&self, task: &Task) -> bool {
        let me = self.tasks.store.owner();
        let mine = task.turn.as_ref().is_none_or(|t| t.id == self.mark.id);
        !task.state.is_terminal() && task.owner.as_ref() == Some(&me) && mine
    }

    /// Whether a change that may have been written was.
    fn is_written(&self, task: &Task, change: &Change) -> bool {
        let rests = change.state.is_some_and(|s| s.is_terminal() || s.is_interrupted());
        if rests {
            return Some(task.state) == change.state && task.said == change.said;
        }
        task.version > self.task.version && task.turn == change.turn && change.state.is_none_or(|s| s == task.state)
    }

    /// Writes a change. `last`: it is the turn's result, which is kept in hand longer than the lease holds.
    pub async fn put(&mut self, mut change: Change, last: bool) -> Result<(), Stop> {
        let max = self.tasks.ctx.live.borrow().limits.max_task_bytes;
        if (self.task.size() + change.size()) as u64 > max && !change.artifacts.is_empty() {
            return Err(Stop::Refused(format!("the task would be larger than {max} bytes")));
        }
        change.turn = Some(self.mark.clone());
        change.reveal |= self.task.revealed;
        if let Some(own) = change.attachment.take() {
            change.attachment = handover::write(&self.request, Some(&own), self.task.attachment.as_ref());
            self.own = Some(own);
        }
        let began = Instant::now();
        let mut pause = BACK_OFF.0;
        let mut unsure = false;
        loop {
            let error = match self.tasks.store.append(&self.task, change.clone(), None).await {
                Ok(task) => {
                    self.task = task;
                    return Ok(());
                }
                Err(StoreError::Conflict { current, .. }) => {
                    if unsure && self.is_written(&current, &change) {
                        self.task = current;
                        return Ok(());
                    }
                    if !self.is_mine(&current) {
                        return Err(Stop::Over(current));
                    }
                    self.task = current;
                    continue;
                }
                Err(StoreError::NotFound) => return Err(Stop::Gone),
                Err(e @ (StoreError::Unavailable(_) | StoreError::Damaged(_))) => e,
                Err(e) => return Err(Stop::Refused(e.to_string())),
            };
            unsure = true;
            let limit = if self.tasks.ctx.shutdown.is_cancelled() { RESULT_LIMIT_AT_END } else { RESULT_LIMIT };
            if began.elapsed() >= limit {
                self.tasks.metrics.results_lost.inc();
                return Err(Stop::Refused(error.to_string()));
            }
            if !last && *self.lost.borrow() {
                return Err(Stop::Lost);
            }
            tracing::warn!(target: "business", task = &*self.task.id, turn = &*self.mark.id, %error, "an event waits to be written");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF.1);
        }
    }

    /// Counts what was put right.
    pub fn count(&self, rule: Rule) {
        self.tasks.metrics.repairs.with_label_values(&[rule.label()]).inc();
        let (turn, trace) = (&*self.mark.id, self.trace.id());
        tracing::debug!(target: "protocol", rule = rule.label(), turn, trace, "the agent's answer was repaired");
    }

    /// A chunk for an artifact that is not there begins it.
    fn mend(&self, change: &mut Change) {
        for at in 0..change.artifacts.len() {
            let (before, rest) = change.artifacts.split_at_mut(at);
            let Some(update) = rest.first_mut().filter(|u| u.append) else { continue };
            let id = &update.artifact.id;
            let there = self.task.artifacts.iter().any(|a| a.id == *id) || before.iter().any(|u| u.artifact.id == *id);
            if !there {
                update.append = false;
                self.count(Rule::AppendToNothing);
            }
        }
    }

    /// Writes what the turn goes on after, and shows the task.
    pub async fn progress(&mut self, mut change: Change) -> Result<(), Stop> {
        let silent = change.state.is_none() && change.artifacts.is_empty();
        if silent && change.memo.is_none() && change.attachment.is_none() && !self.mark.asynchronous {
            // A sign of life. Its number is written with the next event.
            return Ok(());
        }
        self.mend(&mut change);
        change.reveal = !silent;
        self.put(change, false).await?;
        if !silent {
            self.teller_shows();
        }
        Ok(())
    }

    /// Writes the end of the turn and tells of it.
    pub async fn end(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Message { message, memo } if !self.task.revealed => {
                let direct = message.to_raw(&self.task.context_id, None);
                if let Some(memo) = self.withdraw(memo, &direct).await {
                    let said = message.to_raw(&self.task.context_id, Some(&self.task.id));
                    self.complete_with(said, memo).await;
                }
            }
            TurnEvent::Message { message, memo } => {
                let said = message.to_raw(&self.task.context_id, Some(&self.task.id));
                self.complete_with(said, memo).await;
            }
            TurnEvent::Fault { fault, memo } => self.fail(&fault, memo).await,
            TurnEvent::Change(change) => self.rest(change).await,
            TurnEvent::Started | TurnEvent::Later | TurnEvent::Repaired(_) => {}
        }
    }

    /// Puts a direct message in place of the task; gives the memo back when a caller knows of the task by now.
    async fn withdraw(&mut self, memo: Option<Raw>, direct: &Raw) -> Option<Option<Raw>> {
        let began = Instant::now();
        let mut pause = BACK_OFF.0;
        loop {
            match self.tasks.store.withdraw(&self.task, memo.clone(), direct).await {
                // Not there: it was written before an answer was lost.
                Ok(()) | Err(StoreError::NotFound) => break,
                Err(StoreError::Conflict { current, .. }) if self.is_mine(&current) && !current.revealed => {
                    self.task = current;
                }
                Err(StoreError::Conflict { current, .. }) => {
                    self.task = current;
                    return Some(memo);
                }
                Err(StoreError::Unavailable(_)) if began.elapsed() < RESULT_LIMIT => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACK_OFF.1);
                }
                Err(e) => {
                    self.fail(&Fault::Store(e.to_string()), None).await;
                    return None;
                }
            }
        }
        self.teller.tell(Ok(Sent::Message(direct.clone())));
        None
    }

    async fn complete_with(&mut self, said: Raw, memo: Option<Raw>) {
        self.count(Rule::MessageForTask);
        self.rest(Change { state: Some(State::Completed), said: Some(said), memo, ..Change::default() }).await;
    }

    async fn rest(&mut self, mut change: Change) {
        self.mend(&mut change);
        match self.put(Change { reveal: true, ..change }, true).await {
            Err(Stop::Over(task)) => {
                self.tasks.metrics.late.inc();
                self.teller.tell_task(&task);
            }
            Ok(()) | Err(Stop::Gone | Stop::Lost) => {
                let task = Arc::clone(&self.task);
                self.teller.tell_task(&task);
            }
            Err(Stop::Refused(why)) => Box::pin(self.fail(&Fault::Store(why), None)).await,
        }
    }

    /// Ends the task with a fault.
    pub async fn fail(&mut self, fault: &Fault, memo: Option<Raw>) {
        self.tasks.metrics.failures.with_label_values(&[fault.reason()]).inc();
        let (id, turn, trace, reason) = (&*self.task.id, &*self.mark.id, self.trace.id(), fault.reason());
        if matches!(fault, Fault::Agent { .. }) {
            tracing::info!(target: "business", task = id, turn, trace, reason, "the agent failed the task");
        } else {
            tracing::warn!(target: "business", task = id, turn, trace, reason, %fault, "turn without an answer");
        }
        let change = Change { memo, reveal: true, ..failed(&self.task, fault) };
        let task = match self.put(change, true).await {
            Ok(()) | Err(Stop::Gone | Stop::Lost) => Arc::clone(&self.task),
            Err(Stop::Over(task)) => task,
            Err(Stop::Refused(error)) => {
                tracing::error!(target: "business", task = &*self.task.id, error, "the end of a task was not stored");
                Arc::clone(&self.task)
            }
        };
        self.teller.tell_task(&task);
    }
}

/// The change that ends a task with a fault.
pub(super) fn failed(task: &Task, fault: &Fault) -> Change {
    let state = if fault.rejects() { State::Rejected } else { State::Failed };
    let said = notice(&uuid(), &task.context_id, &task.id, &fault.to_string(), fault.shown_reason());
    Change { state: Some(state), said: Some(said), reveal: true, ..Change::default() }
}
