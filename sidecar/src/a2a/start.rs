//! The first write of a turn: its task is at work from then on. And the requests with events that come after 202.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::answer::{Event, Events, Outcome, Scope, split_batch};
use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::message::UserMessage;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use tokio::time::Instant;

use super::drive::{Driver, Met, Wait, join};
use super::executor::TurnEvent;
use super::handover;
use super::ids::uuid;
use super::job::Kind;
use super::keys::Keys;
use super::service::{Sent, Tasks, busy, ended, leaving};
use super::store::StoreError;
use super::turns::{Post, Posted};
use super::write::Stop;

/// How long a caller waits for a store that is away.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at a task that another process works on.
const LOOK: Duration = Duration::from_millis(500);

impl Driver {
    /// Marks the task as at work; a follow-up's message enters the history now. `None` when the turn does not begin;
    /// the caller was told then. Says too whether the turn is gone on with and not handed over.
    pub async fn start(&mut self, kind: Kind, keys: &Keys, until: Instant) -> Option<(Met, bool)> {
        let reattach = matches!(kind, Kind::Again { reattach: true, .. });
        if !reattach {
            self.mark.attempt += 1;
        }
        let began = Instant::now();
        let message = match &kind {
            Kind::FollowUp { stored, .. } => Some(stored.clone()),
            Kind::New { .. } | Kind::Again { .. } => None,
        };
        let met = loop {
            if message.is_some() && self.is_anothers() && !self.rested(until).await {
                return None;
            }
            let change = Change {
                turn: Some(self.mark.clone()),
                state: self.state_at_start().or(message.as_ref().map(|_| State::Working)),
                message: message.clone(),
                attachment: handover::write(&self.request, self.own.as_ref(), self.task.attachment.as_ref()),
                reveal: self.task.revealed,
                ..Change::default()
            };
            let key = message.as_ref().and_then(|_| keys.0.first()).cloned();
            let error = match self.tasks.store.append(&self.task, change, key).await {
                Ok(task) => break std::mem::replace(&mut self.task, task),
                Err(StoreError::Conflict { current, .. }) => {
                    let written = current.turn.as_ref() == Some(&self.mark) && current.state == State::Working;
                    let lost = if message.is_some() { current.state.is_terminal() } else { !self.is_mine(&current) };
                    if written {
                        // Before an answer of the store was lost.
                        break std::mem::replace(&mut self.task, current);
                    }
                    self.task = current;
                    if lost {
                        self.over(message.is_some());
                        return None;
                    }
                    continue;
                }
                Err(StoreError::Duplicate(record)) => {
                    self.teller.tell(Ok(Sent::Again(record)));
                    return None;
                }
                Err(StoreError::Refused(_)) => {
                    self.over(message.is_some());
                    return None;
                }
                Err(StoreError::NotFound) => {
                    let error = Error::task_not_found(&self.task.id);
                    self.teller.tell(Err(error));
                    return None;
                }
                Err(StoreError::Full(why)) => {
                    self.teller.tell(Err(busy(&why)));
                    return None;
                }
                Err(error) => error,
            };
            // The message may be written or not: the next try finds out.
            if began.elapsed() > STORE_PATIENCE {
                self.teller.tell(Err(Tasks::away()));
            }
            if Instant::now() >= until || self.tasks.ctx.shutdown.is_cancelled() {
                tracing::error!(target: "business", task = &*self.task.id, %error, "a turn could not begin");
                if message.is_none() {
                    self.fail(&Fault::QueueTimeout, None).await;
                }
                return None;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        Some((self.met(met, kind).await, reattach))
    }

    fn over(&mut self, follow_up: bool) {
        let task = Arc::clone(&self.task);
        if follow_up {
            self.teller.tell(Err(ended(&task)));
        } else {
            self.teller.tell_task(&task);
        }
    }

    fn is_anothers(&self) -> bool {
        self.task.owner.as_ref().is_some_and(|o| *o != self.tasks.store.owner())
    }

    /// Waits until a task that another process works on rests; the caller is told when it does not in time.
    async fn rested(&mut self, until: Instant) -> bool {
        let (tasks, id) = (Arc::clone(&self.tasks), Arc::clone(&self.task.id));
        let rest = pin!(async move {
            loop {
                match tasks.store.get(&id).await {
                    Ok(task) if task.owner.is_none() || task.owner.as_ref() == Some(&tasks.store.owner()) => {
                        return task;
                    }
                    _ => tokio::time::sleep(LOOK).await,
                }
            }
        });
        match self.wait(until, rest).await {
            Wait::Done(task) => {
                self.task = task;
                return true;
            }
            Wait::Over(task) => self.teller.tell(Err(ended(&task))),
            Wait::Stopped => self.teller.tell(Err(leaving())),
            Wait::Late | Wait::Lost => self.teller.tell(Err(busy("the turn before this one did not end in time"))),
        }
        false
    }

    /// The message of the turn and the task as it met it.
    async fn met(&self, before: Arc<Task>, kind: Kind) -> Met {
        match kind {
            Kind::New { message, text, conversation } => {
                Met { task: before, is_new: true, message, text, conversation }
            }
            Kind::FollowUp { message, text, stored } => {
                let conversation = self.conversation_before(&stored).await;
                Met { task: before, is_new: false, message, text, conversation }
            }
            Kind::Again { .. } => {
                let at = self.task.history.iter().rposition(is_callers).unwrap_or(0);
                let stored = self.task.history.get(at).cloned();
                let text = stored.as_ref().map(text_of_message).unwrap_or_default();
                let message = stored.as_ref().map_or("{}", Raw::as_str).into();
                let conversation = match &stored {
                    Some(stored) => self.conversation_before(stored).await,
                    None => Conversation::default(),
                };
                let mut task = Task::clone(&self.task);
                task.history.truncate(at);
                task.said = None;
                task.state = if at == 0 { State::Submitted } else { State::Working };
                Met { task: Arc::new(task), is_new: at == 0, message, text: text.into(), conversation }
            }
        }
    }

    /// What the context remembered before the message that just entered it.
    async fn conversation_before(&self, message: &Raw) -> Conversation {
        let (caller, context) = (&self.task.caller, &self.task.context_id);
        let mut conversation = self.tasks.store.conversation(caller, context).await.unwrap_or_default();
        if let Some(at) = conversation.messages.iter().rposition(|m| m == message) {
            conversation.messages.remove(at);
        }
        conversation
    }

    /// Takes the events of one request, in order, and answers it. Says whether the turn ended with one.
    pub async fn take_post(&mut self, post: Post, events: &mut Events) -> Result<bool, Stop> {
        let Post { body, reply } = post;
        let (task, context) = (Arc::clone(&self.task.id), Arc::clone(&self.task.context_id));
        let list = std::str::from_utf8(&body)
            .map_err(|e| Fault::NotJson(format!("invalid UTF-8 after byte {}", e.valid_up_to())))
            .and_then(split_batch);
        let (mut bad, mut gathered) = (None, None::<Change>);
        let list = list.unwrap_or_else(|fault| {
            bad = Some(Posted::Bad(fault));
            Vec::new()
        });
        let mut ended = false;
        for raw in list {
            if ended {
                self.tasks.metrics.late.inc();
                continue;
            }
            let mut repairs = Vec::new();
            let read = {
                let scope = Scope { task: &task, context: &context, new_id: &uuid };
                events.read(raw.get(), &scope, &mut repairs)
            };
            let Event { seq, outcome, memo } = match read {
                Ok(event) => event,
                Err(fault) => {
                    bad = Some(Posted::Bad(fault));
                    break;
                }
            };
            let Some(seq) = seq else {
                bad = Some(Posted::Bad(Fault::invalid("seq", "is missing")));
                break;
            };
            if seq <= self.mark.seq {
                continue;
            }
            if seq != self.mark.seq + 1 {
                bad = Some(Posted::Gap(self.mark.seq + 1));
                break;
            }
            for rule in repairs {
                self.count(rule);
            }
            let change = match outcome {
                Outcome::Change(change) => Change { memo, ..change },
                Outcome::Message(message) => {
                    self.flush(&mut gathered).await?;
                    self.mark.seq = seq;
                    self.end(TurnEvent::Message { message, memo }).await;
                    ended = true;
                    continue;
                }
                Outcome::Error(fault) => {
                    self.flush(&mut gathered).await?;
                    self.mark.seq = seq;
                    self.end(TurnEvent::Fault { fault, memo }).await;
                    ended = true;
                    continue;
                }
            };
            if gathered.as_ref().is_some_and(|g| g.state.is_some()) {
                self.flush(&mut gathered).await?;
            }
            self.mark.seq = seq;
            match &mut gathered {
                Some(gathered) => join(gathered, change),
                None => gathered = Some(change),
            }
            if gathered.as_ref().and_then(|g| g.state).is_some_and(|s| s.is_terminal() || s.is_interrupted()) {
                self.end(TurnEvent::Change(gathered.take().unwrap_or_default())).await;
                ended = true;
            }
        }
        self.flush(&mut gathered).await?;
        let _ = reply.send(bad.unwrap_or(Posted::Kept(self.mark.seq)));
        Ok(ended)
    }

    async fn flush(&mut self, gathered: &mut Option<Change>) -> Result<(), Stop> {
        match gathered.take() {
            Some(change) => self.progress(change).await,
            None => Ok(()),
        }
    }
}

fn is_callers(message: &Raw) -> bool {
    parsed(message).is_some()
}

fn parsed(message: &Raw) -> Option<UserMessage<'_>> {
    UserMessage::parse(serde_json::from_str(message.as_str()).ok()?, &mut Vec::new())
}

fn text_of_message(message: &Raw) -> String {
    parsed(message).map(|m| m.text.into_owned()).unwrap_or_default()
}
