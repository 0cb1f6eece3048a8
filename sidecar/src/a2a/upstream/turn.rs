//! One turn with an agent that speaks A2A: its message out, what becomes of it back.

use std::time::Duration;

use outrigger_protocol::a2a::answer::{DirectMessage, Rule};
use outrigger_protocol::a2a::errors::Kind;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::mirror::Mirror;
use outrigger_protocol::a2a::raw::{Raw, push_key, push_list, push_text};
use outrigger_protocol::a2a::response::{MessageView, Response, as_ours, as_theirs};
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::Change;
use outrigger_protocol::config::Limits;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::agent::Agent;
use super::client::{Client, With, millis};
use super::error::CallError;
use super::executor::{Ids, Stage};
use super::stream::EventStream;
use crate::a2a::executor::{Timing, TurnEvent, TurnInput};
use crate::a2a::ids::uuid;

/// First pause between two looks at a task; doubled each time nothing is new.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Longest such pause.
const MAX_LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Streams that broke off are taken up again so often in one turn; then the task is looked at again and again.
const MAX_SUBSCRIPTIONS: u32 = 5;

/// Whether the turn has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    GoesOn,
    Ended,
}

/// Hands a message over and follows what becomes of it.
pub async fn hand_over(
    agent: &Agent,
    timing: Timing,
    input: &TurnInput,
    stage: watch::Sender<Stage>,
    out: mpsc::Sender<TurnEvent>,
) -> Result<(), Fault> {
    let refused_until = Instant::now() + timing.refused;
    let mut ids = Ids::read(input.attachment.as_ref());
    if ids.context.is_none() {
        ids.context = Ids::read(input.conversation.memo.as_ref()).context;
    }
    let client = agent.ready(refused_until).await.map_err(|e| Fault::Unreachable(e.message))?;
    let mut flow = Flow { stage: Some(stage), ..Flow::new(input, ids, out) };
    if input.attempt > 1 && input.is_new && flow.ids.task.is_some() {
        // The agent may have the task still; if it forgot it, the message begins another one.
        match flow.look_once(&client).await {
            Ok(Turn::Ended) => return Ok(()),
            Ok(Turn::GoesOn) => {
                flow.tell(TurnEvent::Started).await?;
                return flow.go_on(&client).await;
            }
            Err(e) if e.is(Kind::TaskNotFound) => flow.ids.task = None,
            Err(e) => return Err(fault(e)),
        }
    }
    let answer = flow.send(&client, refused_until).await?;
    let turn = match answer {
        Sent::Stream(stream) => {
            flow.tell(TurnEvent::Started).await?;
            match flow.follow(stream).await {
                // The task may have ended all the same: its last status says how.
                Err(fault @ Fault::Agent { .. }) if flow.ids.task.is_some() => match flow.look_once(&client).await {
                    Ok(Turn::Ended) => Turn::Ended,
                    _ => return Err(fault),
                },
                followed => followed?,
            }
        }
        Sent::Answer(answer) => flow.take(answer).await?,
    };
    if turn == Turn::Ended { Ok(()) } else { flow.go_on(&client).await }
}

/// Follows a task that was handed over before.
pub async fn take_up(
    agent: &Agent,
    timing: Timing,
    input: &TurnInput,
    ids: Ids,
    out: mpsc::Sender<TurnEvent>,
) -> Result<(), Fault> {
    let client = agent.ready(Instant::now() + timing.refused).await.map_err(|e| Fault::Unreachable(e.message))?;
    let mut flow = Flow::new(input, ids, out);
    flow.told = true;
    flow.tell(TurnEvent::Started).await?;
    // It may have ended meanwhile, and there is no subscription to a task that has.
    if matches!(flow.look_once(&client).await, Ok(Turn::Ended)) { Ok(()) } else { flow.go_on(&client).await }
}

enum Sent {
    Stream(EventStream),
    Answer(Response),
}

struct Flow<'a> {
    input: &'a TurnInput,
    limits: &'a Limits,
    ids: Ids,
    /// Whether the service has the ids.
    told: bool,
    mirror: Mirror,
    out: mpsc::Sender<TurnEvent>,
    /// How far the turn is, for a cancel that comes early.
    stage: Option<watch::Sender<Stage>>,
}

impl<'a> Flow<'a> {
    fn new(input: &'a TurnInput, ids: Ids, out: mpsc::Sender<TurnEvent>) -> Self {
        let mirror = Mirror::new(&input.task, uuid);
        Self { input, limits: &input.limits, ids, told: false, mirror, out, stage: None }
    }

    fn with(&self) -> With<'a> {
        With {
            trace: Some(&self.input.trace),
            extensions: &self.input.extensions,
            caller: Some(&self.input.caller),
            used: Some(&self.input.used),
            limit: Duration::from_millis(self.limits.turn_timeout_ms),
            idle: Duration::from_millis(self.limits.stream_idle_timeout_ms),
            max_bytes: self.limits.max_answer_bytes,
        }
    }

    fn at(&self, stage: Stage) {
        // A task that is known is in the attachment, from the turn before.
        let news = self.ids.task.is_none() || matches!(stage, Stage::Known(_));
        if let Some(sender) = self.stage.as_ref().filter(|_| news) {
            sender.send_replace(stage);
        }
    }

    async fn tell(&self, event: TurnEvent) -> Result<(), Fault> {
        // Without a reader the turn is dropped anyway.
        self.out.send(event).await.map_err(|_| Fault::Stopped)
    }

    /// Sends the message; tries again what was not taken.
    async fn send(&self, client: &Client, refused_until: Instant) -> Result<Sent, Fault> {
        let mut streams = client.streams();
        let mut pause = Duration::from_millis(50);
        loop {
            let params = self.params(streams)?;
            self.at(Stage::Sent);
            let sent = if streams {
                client.stream(&params, &self.with()).await.map(Sent::Stream)
            } else {
                client.send(&params, &self.with()).await.map(Sent::Answer)
            };
            let (error, wait, until) = match sent {
                Ok(sent) => return Ok(sent),
                // Its card promises more than it has.
                Err(e) if streams && (e.is(Kind::UnsupportedOperation) || e.is(Kind::MethodNotFound)) => {
                    streams = false;
                    continue;
                }
                Err(e @ CallError::NotSent(_)) => {
                    let wait = pause;
                    pause = (pause * 2).min(Duration::from_millis(500));
                    (e, wait, refused_until)
                }
                Err(CallError::Busy { status, after }) => {
                    (CallError::Busy { status, after }, after, self.input.busy_until)
                }
                Err(e) => return Err(fault(e)),
            };
            self.at(Stage::Unsent);
            if Instant::now() + wait > until {
                return Err(fault(error));
            }
            sleep(wait).await;
        }
    }

    /// Parameters of `SendMessage`.
    fn params(&self, streams: bool) -> Result<String, Fault> {
        let known = |id: &str| {
            let found = self.input.references.iter().find(|r| *r.task == *id)?;
            Ids::read(found.attachment.as_ref()).task
        };
        let (task, context) = (self.ids.task.as_deref(), self.ids.context.as_deref());
        let message =
            as_theirs(&self.input.message, task, context, &known).map_err(|e| Fault::invalid(e.path, e.what))?;
        let mut out = String::with_capacity(message.len() + 128);
        out.push_str("{\"message\":");
        out.push_str(&message);
        out.push_str(",\"configuration\":{");
        if !self.input.accepted_output_modes.is_empty() {
            push_key(&mut out, "acceptedOutputModes");
            let modes = self.input.accepted_output_modes.iter().map(|mode| {
                let mut text = String::new();
                push_text(&mut text, mode);
                text
            });
            let modes: Vec<_> = modes.collect();
            push_list(&mut out, modes.iter().map(String::as_str));
        }
        if !streams {
            // The task is looked at until it rests: its id is known early, so that it can be cancelled and found again.
            push_key(&mut out, "returnImmediately");
            out.push_str("true");
        }
        out.push('}');
        if let Some(metadata) = &self.input.metadata {
            push_key(&mut out, "metadata");
            out.push_str(metadata.as_str());
        }
        out.push('}');
        Ok(out)
    }

    /// Notes the agent's ids; false for those of another task.
    async fn learn(&mut self, task: Option<&String>, context: Option<&String>) -> Result<bool, Fault> {
        match (&self.ids.task, task) {
            (Some(known), Some(seen)) if known != seen => {
                tracing::debug!(target: "protocol", task = seen, "an event of another task");
                return Ok(false);
            }
            (None, Some(seen)) => {
                self.ids.task = Some(seen.clone());
                self.at(Stage::Known(seen.clone()));
            }
            _ => {}
        }
        if let Some(context) = context
            && self.ids.context.as_ref() != Some(context)
        {
            self.ids.context = Some(context.clone());
            self.told = false;
        }
        if !self.told && self.ids.task.is_some() {
            self.told = true;
            let change = Change { attachment: self.ids.to_raw(), memo: self.memo(), ..Change::default() };
            self.tell(TurnEvent::Change(change)).await?;
        }
        Ok(true)
    }

    /// What the context remembers: the agent's context.
    fn memo(&self) -> Option<Raw> {
        let context = self.ids.context.clone()?;
        Ids { task: None, context: Some(context) }.to_raw()
    }

    /// Takes one answer or event.
    async fn take(&mut self, answer: Response) -> Result<Turn, Fault> {
        let change = match answer {
            Response::Message(message) => return self.message(message).await,
            Response::Task(task) => {
                if !self.learn(Some(&task.id), task.context.as_ref()).await? {
                    return Ok(Turn::GoesOn);
                }
                self.mirror.snapshot(&task)
            }
            Response::Status(view) => {
                if !self.learn(view.task.as_ref(), view.context.as_ref()).await? {
                    return Ok(Turn::GoesOn);
                }
                self.mirror.status(&view.status)
            }
            Response::Artifact { task, update } => {
                if !self.learn(task.as_ref(), None).await? {
                    return Ok(Turn::GoesOn);
                }
                Some(self.mirror.artifact(update))
            }
        };
        if self.mirror.size() as u64 > self.limits.max_task_bytes {
            return Err(Fault::TooLarge(self.limits.max_task_bytes));
        }
        if let Some(change) = change {
            self.tell(TurnEvent::Change(change)).await?;
        }
        Ok(self.turn())
    }

    fn turn(&self) -> Turn {
        let state = self.mirror.state();
        if state.is_terminal() || state.is_interrupted() { Turn::Ended } else { Turn::GoesOn }
    }

    /// A message: in place of a task, or, where there is one, its end.
    async fn message(&mut self, view: MessageView) -> Result<Turn, Fault> {
        if self.ids.task.is_some() {
            self.tell(TurnEvent::Repaired(Rule::MessageForTask)).await?;
            let task = &self.input.task;
            let said = as_ours(&view.message, &task.id, &task.context_id, &uuid);
            let change = Change { state: Some(State::Completed), said, ..Change::default() };
            self.tell(TurnEvent::Change(change)).await?;
            return Ok(Turn::Ended);
        }
        if view.context.is_some() {
            self.ids.context = view.context;
        }
        let message = DirectMessage::of(&view.message, &uuid)
            .ok_or_else(|| Fault::invalid("message", "is none that can be passed on"))?;
        self.tell(TurnEvent::Message { message, memo: self.memo() }).await?;
        Ok(Turn::Ended)
    }

    /// Follows a stream to its end. One that breaks off is no fault while the task is known.
    async fn follow(&mut self, mut stream: EventStream) -> Result<Turn, Fault> {
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    if self.take(event).await? == Turn::Ended {
                        return Ok(Turn::Ended);
                    }
                }
                Err(error) if self.ids.task.is_some() && is_outage(&error) => {
                    tracing::debug!(target: "transport", %error, "the agent's stream broke off");
                    return Ok(Turn::GoesOn);
                }
                Err(error) => return Err(fault(error)),
            }
        }
        if self.ids.task.is_none() {
            return Err(Fault::Incomplete("its stream ended without an event".into()));
        }
        Ok(Turn::GoesOn)
    }

    /// Goes on with a task that is at work: by its stream if there is one, else by looking at it.
    async fn go_on(&mut self, client: &Client) -> Result<(), Fault> {
        let Some(task) = self.ids.task.clone() else {
            return Err(Fault::Incomplete("it named no task".into()));
        };
        let mut subscriptions = if client.streams() { MAX_SUBSCRIPTIONS } else { 0 };
        while subscriptions > 0 {
            subscriptions -= 1;
            match client.subscribe(&task, &self.with()).await {
                Ok(stream) => match self.follow(stream).await {
                    Ok(Turn::Ended) => return Ok(()),
                    Ok(Turn::GoesOn) => {}
                    // As below, said by the first event.
                    Err(Fault::Agent { .. }) => break,
                    Err(fault) => return Err(fault),
                },
                // It has ended, or there are no subscriptions after all; a look will tell.
                Err(error) => {
                    tracing::debug!(target: "protocol", %error, "no subscription");
                    break;
                }
            }
        }
        self.look(client, &task).await
    }

    /// Looks at the task once.
    async fn look_once(&mut self, client: &Client) -> Result<Turn, CallError> {
        let Some(task) = self.ids.task.clone() else { return Ok(Turn::GoesOn) };
        let view = client.get(&task, &self.with()).await?;
        self.take(Response::Task(view)).await.map_err(|e| CallError::Unreadable(e.to_string()))
    }

    /// Looks at a task until it rests.
    async fn look(&mut self, client: &Client, task: &str) -> Result<(), Fault> {
        let idle = Duration::from_millis(self.limits.async_idle_timeout_ms);
        let total = Instant::now() + Duration::from_millis(self.limits.async_timeout_ms);
        let patience = Duration::from_millis(self.limits.stream_idle_timeout_ms);
        let (mut changed, mut answered) = (Instant::now(), Instant::now());
        let mut pause = LOOK_AGAIN;
        loop {
            match client.get(task, &self.with()).await {
                Ok(view) => {
                    answered = Instant::now();
                    let new = self.learn(Some(&view.id), view.context.as_ref()).await?;
                    let change = if new { self.mirror.snapshot(&view) } else { None };
                    if self.mirror.size() as u64 > self.limits.max_task_bytes {
                        return Err(Fault::TooLarge(self.limits.max_task_bytes));
                    }
                    if let Some(change) = change {
                        (changed, pause) = (answered, LOOK_AGAIN);
                        self.tell(TurnEvent::Change(change)).await?;
                    }
                    if self.turn() == Turn::Ended {
                        return Ok(());
                    }
                }
                Err(error) if is_outage(&error) && answered.elapsed() < patience => {
                    tracing::debug!(target: "transport", %error, "the agent does not say how the task is");
                }
                Err(error) => return Err(fault(error)),
            }
            if changed.elapsed() > idle {
                return Err(Fault::AsyncIdle(millis(idle)));
            }
            if Instant::now() > total {
                return Err(Fault::AsyncTimeout(self.limits.async_timeout_ms));
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_LOOK_AGAIN);
        }
    }
}

/// Whether the agent may answer better in a moment.
fn is_outage(error: &CallError) -> bool {
    match error {
        CallError::NotSent(_) | CallError::Broken(_) | CallError::Timeout(_) | CallError::Busy { .. } => true,
        CallError::Status(status) => *status >= 500,
        _ => false,
    }
}

/// What an error is to a turn.
fn fault(error: CallError) -> Fault {
    match error {
        CallError::NotSent(e) => Fault::Unreachable(e),
        CallError::Broken(e) => Fault::Incomplete(e),
        CallError::Timeout(ms) => Fault::Timeout(ms),
        CallError::Busy { status, .. } => Fault::Busy(status),
        CallError::Agent(e) => {
            let word = |r: &String| r.len() <= 64 && r.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let reason = e.reason.filter(word).or_else(|| e.kind.map(|k| k.reason().to_owned()));
            Fault::Agent { text: e.message, reason }
        }
        CallError::Status(status @ 300..=399) => Fault::Redirect(status),
        CallError::Status(status) => Fault::Status(status),
        CallError::Unreadable(e) => Fault::invalid("its A2A:", e),
        CallError::TooLarge(max) => Fault::TooLarge(max),
        CallError::NotOffered(what) => Fault::invalid("the card", format!("does not offer {what}")),
    }
}
