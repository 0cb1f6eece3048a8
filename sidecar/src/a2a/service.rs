//! What A2A asks for, on tasks: send, get, list, cancel, follow. Knows no HTTP.

use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::extensions::DELIVERY;
use outrigger_protocol::a2a::message::{UserMessage, notice};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::send::SendMessage;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::{self, Limits, OnDisconnect, Order};
use tokio::sync::watch;
use tracing::Instrument as _;

use super::SkillRef;
use super::call::Call;
use super::card::Card;
use super::drive;
use super::edge::Edge;
use super::executor::{Executor, Timing};
use super::gate::Gate;
use super::handover::Request;
use super::ids::{Trace, is_task_id, ordered, task_id, uuid};
use super::job::{Job, Kind as JobKind, Mode, Teller};
use super::keys::{self, Keys};
use super::lane::{Entry, Lanes};
use super::metrics::Metrics;
use super::probe::CONTAINER;
use super::push::Configs;
use super::recover;
use super::store::{KeyRecord, PushConfig, Query, Store, StoreError};
use super::turns::Turns;
use super::viewers::{Viewer, Viewers};
use crate::context::Context;

/// Seconds that a caller is told to wait when the agent is busy.
const RETRY_BUSY: u32 = 1;
/// Seconds that a caller is told to wait who has as many tasks as are kept.
const RETRY_KEPT: u32 = 60;
/// Seconds that a caller is told to wait when the pod is going: by then its endpoints have forgotten it.
const RETRY_DRAINING: u32 = 5;
/// Seconds that a caller is told to wait when the store is away.
const RETRY_AWAY: u32 = 2;

/// The tasks of the agent and everything they need.
pub struct Tasks {
    pub(super) ctx: Context,
    pub(super) store: Arc<dyn Store>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) gate: Arc<Gate>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) turns: Arc<Turns>,
    pub(super) viewers: Arc<Viewers>,
    pub(super) metrics: Metrics,
    pub(super) skills: Arc<dyn Fn() -> Vec<SkillRef> + Send + Sync>,
    pub(super) timing: Timing,
    /// Receivers of push notifications.
    pub(super) configs: Configs,
    pub(super) card: Arc<Card>,
    pub(super) edge: Arc<Edge>,
    /// Whether the lease of this process may be another's.
    pub(super) lost: watch::Sender<bool>,
}

/// What a message led to.
#[derive(Debug)]
pub enum Sent {
    /// A task.
    Task(Arc<Task>),
    /// A direct message.
    Message(Raw),
    /// What the same message led to when it came first.
    Again(Box<KeyRecord>),
}

/// What became of a message that begins a task.
enum Begun {
    New(Arc<Task>, Entry, JobKind),
    Again(Box<KeyRecord>),
}

impl Tasks {
    /// The limits in force.
    pub(super) fn limits(&self) -> Limits {
        self.ctx.live.borrow().limits.clone()
    }

    /// Whether new work is taken: the pod is not on its way out.
    pub(super) fn is_accepting(&self) -> bool {
        self.ctx.drain.accepting()
    }

    /// Takes a message on and waits until its work rests; with `returnImmediately` only until it is accepted, for a
    /// stream until its task may be shown. The work goes on when the caller goes. Gives the viewer of a stream.
    pub(super) async fn send(
        self: &Arc<Self>,
        params: SendMessage<'_>,
        text: &str,
        call: &Call,
        stream: bool,
    ) -> Result<(Sent, Option<Viewer>), Error> {
        if !self.is_accepting() {
            return Err(leaving());
        }
        let turn: Arc<str> = uuid().into();
        let keys = self.keys(&params, text, call, &turn)?;
        for key in &keys.0 {
            if let Some(record) = self.store.key(&key.id).await.map_err(|e| store_error(&e, ""))? {
                return Ok((Sent::Again(Box::new(checked(record, &key.hash)?)), None));
            }
        }
        let message = &params.message;
        self.check_modes(message)?;
        let before = match &message.task_id {
            Some(id) => Some(self.follow_up(id, message.context_id.as_deref(), call).await?),
            None => None,
        };
        let caller = &call.caller.key;
        let request = Request {
            identity: call.caller.identity.clone(),
            metadata: params.metadata.map(Raw::copy),
            accepted_output_modes: params.accepted_output_modes.iter().map(|m| m.as_ref().to_owned()).collect(),
            extensions: call.extensions.iter().filter(|e| *e != DELIVERY).cloned().collect(),
        };
        let limits = self.limits();
        let most = u64::from(limits.max_open_tasks_per_caller);
        if most > 0 && before.is_none() {
            let open = self.store.open_tasks(caller).await.map_err(|e| store_error(&e, ""))?;
            if open >= most {
                let error =
                    Error::new(Kind::RateLimited, format!("the caller has {open} open tasks, at most {most} may be"));
                return Err(error.retry_after(RETRY_BUSY));
            }
        }
        if before.is_none() {
            self.check_kept(caller, limits.max_tasks_per_caller).await?;
        }
        let id: Arc<str> = before.as_ref().map_or_else(|| task_id().into(), |t| Arc::clone(&t.id));
        tracing::Span::current().record("task", &*id);
        let mut viewer = self.viewer(&id, caller, stream, &limits)?;
        let place = self.gate.admit().ok_or_else(|| busy("as many messages wait as the agent takes"))?;
        let (task, lane, kind) = match before {
            Some(task) => self.go_on(task, &params, call).await?,
            None => match self.begin(&id, &params, call, &keys).await? {
                Begun::New(task, lane, kind) => (task, lane, kind),
                Begun::Again(record) => return Ok((Sent::Again(record), None)),
            },
        };
        let job = Job {
            tasks: Arc::clone(self),
            task: Arc::clone(&task),
            lane,
            place,
            work: self.work(),
            turn,
            trace: call.trace.clone(),
            request,
            used: call.used.clone(),
            keys,
            kind,
        };
        let is_new = matches!(job.kind, JobKind::New { .. });
        if params.return_immediately && is_new && !stream {
            if let Some(viewer) = &mut viewer {
                viewer.done();
            }
            tokio::spawn(drive::run(job, Teller::nobody(Arc::clone(&task))).in_current_span());
            return Ok((Sent::Task(task), None));
        }
        let mode = match (stream, params.return_immediately) {
            (true, _) => Mode::Stream,
            (false, true) => Mode::Start,
            (false, false) => Mode::Rest,
        };
        let (teller, told) = Teller::new(mode, task);
        tokio::spawn(drive::run(job, teller).in_current_span());
        let sent = told.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the turn ended without a result")))?;
        if let (false, Some(viewer)) = (stream, &mut viewer) {
            viewer.done();
        }
        Ok((sent, viewer.filter(|_| stream)))
    }

    /// Refuses a new task of a caller who has as many as it may, ended ones among them.
    async fn check_kept(&self, caller: &Arc<str>, most: u32) -> Result<(), Error> {
        if most == 0 {
            return Ok(());
        }
        let query = Query { caller: Arc::clone(caller), ..Query::default() };
        let kept = self.store.list(query).await.map_err(|e| store_error(&e, ""))?.total;
        if kept < u64::from(most) {
            return Ok(());
        }
        let what = format!("{kept} tasks of the caller are kept, at most {most} may be: old ones go with time");
        Err(Error::new(Kind::RateLimited, what).retry_after(RETRY_KEPT))
    }

    /// Refuses parts of a media type that the card does not name, where that is wanted.
    fn check_modes(&self, message: &UserMessage<'_>) -> Result<(), Error> {
        if !self.ctx.live.borrow().offer.check_input_modes {
            return Ok(());
        }
        message.check_modes(&self.card.input_modes())
    }

    fn keys(&self, params: &SendMessage<'_>, text: &str, call: &Call, turn: &Arc<str>) -> Result<Keys, Error> {
        let caller = &call.caller.key;
        if let Some(key) = &call.idempotency_key {
            return keys::given(caller, key, text, turn);
        }
        if !self.ctx.live.borrow().turns.dedupe_messages {
            return Ok(Keys::default());
        }
        let message = &params.message;
        let task = message.task_id.as_deref().unwrap_or_default();
        let now = jiff::Timestamp::now().as_second();
        Ok(keys::by_content(caller, task, &message.message_id, text, turn, now))
    }

    /// Counts a stream, or a request that waits where that matters.
    fn viewer(
        self: &Arc<Self>,
        task: &Arc<str>,
        caller: &Arc<str>,
        stream: bool,
        limits: &Limits,
    ) -> Result<Option<Viewer>, Error> {
        let cancels = self.ctx.live.borrow().turns.on_disconnect == OnDisconnect::Cancel;
        if stream {
            return self.stream_viewer(task, caller, limits).map(Some);
        }
        Ok(cancels.then(|| self.abandoning(self.viewers.waiting(task, caller), task)))
    }

    /// Counts a stream.
    pub(super) fn stream_viewer(
        self: &Arc<Self>,
        task: &Arc<str>,
        caller: &Arc<str>,
        limits: &Limits,
    ) -> Result<Viewer, Error> {
        let viewer = self.viewers.stream(task, caller, limits)?;
        Ok(self.abandoning(viewer, task))
    }

    /// A viewer that cancels the task when it goes as the last one, where that is wanted.
    fn abandoning(self: &Arc<Self>, mut viewer: Viewer, task: &Arc<str>) -> Viewer {
        if self.ctx.live.borrow().turns.on_disconnect == OnDisconnect::Cancel {
            let (tasks, id) = (Arc::clone(self), Arc::clone(task));
            let runtime = tokio::runtime::Handle::current();
            viewer.or_else(Box::new(move || {
                runtime.spawn(async move { tasks.abandon(&id).await });
            }));
        }
        viewer
    }

    /// A new task.
    async fn begin(
        self: &Arc<Self>,
        id: &Arc<str>,
        params: &SendMessage<'_>,
        call: &Call,
        keys: &Keys,
    ) -> Result<Begun, Error> {
        let (message, caller) = (&params.message, &call.caller.key);
        let context: Arc<str> = match &message.context_id {
            Some(id) => id.as_ref().into(),
            None => ordered().into(),
        };
        let lane = self.enter(id, &context, caller)?;
        let conversation = if message.context_id.is_some() {
            self.store.conversation(caller, &context).await.map_err(|e| store_error(&e, id))?
        } else {
            outrigger_protocol::a2a::conversation::Conversation::default()
        };
        let stored = message.stored(id, &context);
        let push = self.receiver(id, 0, params, call).await?;
        let now = jiff::Timestamp::now();
        let task = Task::new(Arc::clone(id), context, Arc::clone(caller), stored, params.return_immediately, now);
        let task = match self.store.create(task, keys.0.first().cloned(), push).await {
            Ok(task) => task,
            Err(StoreError::Duplicate(record)) => {
                let hash = keys.0.first().map_or_else(|| "".into(), |k| Arc::clone(&k.hash));
                return Ok(Begun::Again(Box::new(checked(*record, &hash)?)));
            }
            Err(e @ StoreError::Unavailable(_)) => {
                // It may be written all the same: then nobody would run it.
                recover::look_later(self, id);
                return Err(store_error(&e, id));
            }
            Err(e) => return Err(store_error(&e, id)),
        };
        let kind = JobKind::New { message: message.as_str().into(), text: message.text.as_ref().into(), conversation };
        Ok(Begun::New(task, lane, kind))
    }

    /// The next turn of a task.
    async fn go_on(
        &self,
        task: Arc<Task>,
        params: &SendMessage<'_>,
        call: &Call,
    ) -> Result<(Arc<Task>, Entry, JobKind), Error> {
        let message = &params.message;
        let lane = self.enter(&task.id, &task.context_id, &call.caller.key)?;
        if let Some(push) = self.receiver(&task.id, task.version, params, call).await? {
            self.store.put_push(push).await.map_err(|e| store_error(&e, &task.id))?;
        }
        let stored = message.stored(&task.id, &task.context_id);
        let kind = JobKind::FollowUp { message: message.as_str().into(), text: message.text.as_ref().into(), stored };
        Ok((task, lane, kind))
    }

    fn enter(&self, task: &Arc<str>, context: &str, caller: &str) -> Result<Entry, Error> {
        let lane = match self.ctx.live.borrow().turns.serialize {
            Order::Task => self.lanes.enter(task),
            Order::Context => self.lanes.enter(&format!("{caller}\n{context}").into()),
        };
        lane.ok_or_else(|| busy("as many messages wait for this task or context as the agent takes"))
    }

    /// A receiver of events that came with a message.
    async fn receiver(
        &self,
        task: &Arc<str>,
        version: u64,
        params: &SendMessage<'_>,
        call: &Call,
    ) -> Result<Option<PushConfig>, Error> {
        let Some(config) = &params.push else { return Ok(None) };
        self.configs.inline(config, task, version, call).await.map(Some)
    }

    /// The task that a message goes on with, if it may.
    async fn follow_up(&self, id: &str, context: Option<&str>, call: &Call) -> Result<Arc<Task>, Error> {
        let task = self.get(id, call).await?;
        if context.is_some_and(|c| c != &*task.context_id) {
            return Err(Error::invalid_field("message.contextId", "is not the context of the task"));
        }
        if task.state.is_terminal() {
            return Err(ended(&task));
        }
        Ok(task)
    }

    /// One task, as its caller may see it: one of another caller's is one that there is not.
    pub(super) async fn get(&self, id: &str, call: &Call) -> Result<Arc<Task>, Error> {
        match self.store.get(id).await {
            Ok(task) if task.revealed && task.caller == call.caller.key => Ok(task),
            Ok(_) => {
                self.metrics.absent.with_label_values(&["foreign"]).inc();
                Err(Error::task_not_found(id))
            }
            Err(StoreError::NotFound) => {
                let kind = if is_task_id(id) { "forgotten" } else { "unknown" };
                self.metrics.absent.with_label_values(&[kind]).inc();
                Err(Error::task_not_found(id))
            }
            Err(e) => Err(store_error(&e, id)),
        }
    }

    /// One task, as the agent may see it: before its caller does, too.
    pub async fn get_for_agent(&self, id: &str) -> Result<Arc<Task>, Error> {
        self.store.get(id).await.map_err(|e| store_error(&e, id))
    }

    /// Ends a task. A second cancel gives the canceled task again.
    pub(super) async fn cancel(&self, id: &str, call: &Call) -> Result<Arc<Task>, Error> {
        let task = self.get(id, call).await?;
        self.cancel_task(task, "canceled by the caller").await
    }

    async fn cancel_task(&self, mut task: Arc<Task>, why: &str) -> Result<Arc<Task>, Error> {
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
            let said = notice(&uuid(), &task.context_id, &task.id, why, "canceled");
            let change = Change { state: Some(State::Canceled), said: Some(said), ..Change::default() };
            match self.store.append(&task, change, None).await {
                // The turn follows its task and ends by itself.
                Ok(task) => return Ok(task),
                Err(StoreError::Conflict { current, .. }) => task = current,
                Err(e) => return Err(store_error(&e, &task.id)),
            }
        }
    }

    /// Ends a task whose caller has gone. Turns that rest by then are left alone.
    async fn abandon(&self, id: &str) {
        let Ok(task) = self.store.get(id).await else { return };
        if task.state.is_interrupted() || task.state.is_terminal() {
            return;
        }
        if let Err(error) = self.cancel_task(task, "canceled as its caller disconnected").await {
            tracing::debug!(target: "business", task = id, error = error.message, "a task without a caller goes on");
        }
    }

    /// What a message led to that came before: waits as long as its first caller would.
    pub(super) async fn again(&self, record: &KeyRecord, at_once: bool) -> Result<Sent, Error> {
        self.metrics.replays.inc();
        let limit = Duration::from_millis(self.limits().wait_timeout_ms);
        let until = tokio::time::Instant::now() + limit;
        loop {
            let task = match self.store.get(&record.task).await {
                Ok(task) => task,
                Err(StoreError::NotFound) => {
                    let known = self.store.key(&record.key.id).await.map_err(|e| store_error(&e, &record.task))?;
                    return known
                        .and_then(|k| k.message)
                        .map(Sent::Message)
                        .ok_or_else(|| Error::task_not_found(&record.task));
                }
                Err(e) => return Err(store_error(&e, &record.task)),
            };
            let its_turn = task.turn.as_ref().is_none_or(|t| t.id == record.key.turn);
            let rests = task.owner.is_none() || !its_turn;
            if task.revealed && (rests || at_once) {
                return Ok(Sent::Task(task));
            }
            let late = tokio::time::Instant::now() >= until;
            if late && task.revealed {
                return Ok(Sent::Task(task));
            }
            if (at_once || late) && !self.turns.show(&record.key.turn) {
                return Err(busy("the same message is at work: send again later"));
            }
            let mut follow = self.store.subscribe(&record.task).await.map_err(|e| store_error(&e, &record.task))?;
            let seen = task.version;
            let change = async { follow.wait_for(|h| h.version > seen).await.is_ok() };
            let limit = if at_once || late { Duration::from_millis(250) } else { Duration::from_secs(1) };
            let _ = tokio::time::timeout(limit, change).await;
        }
    }

    /// Counts a piece of work on the handler's container.
    pub(super) fn work(&self) -> crate::drain::Work {
        self.ctx.drain.work(CONTAINER)
    }

    /// Whether tasks are still there when this process is not.
    pub(super) fn outlives_this(&self) -> bool {
        self.ctx.boot.store != config::Store::Memory
    }

    /// Whether a turn at work is left for the next process at the end of this one. A container that was not asked to
    /// drain goes on: then only the sidecar is restarted, and events that come later find the next one.
    pub(super) fn leaves_behind(&self, redeliver: bool, later: bool) -> bool {
        self.outlives_this() && (redeliver || (later && !self.ctx.drain.asked(CONTAINER)))
    }

    /// The store is away.
    pub(super) fn away() -> Error {
        Error::new(Kind::Unavailable, "the task store is not available: send again").retry_after(RETRY_AWAY)
    }

    /// A trace for work that no caller waits for.
    pub(super) fn own_trace() -> Trace {
        Trace::of(&http::HeaderMap::new())
    }
}

/// What a caller reads of a failure of the store.
pub(super) fn store_error(error: &StoreError, id: &str) -> Error {
    match error {
        StoreError::NotFound => Error::task_not_found(id),
        StoreError::Unavailable(_) => Tasks::away(),
        StoreError::Full(why) => busy(why),
        error => {
            tracing::error!(target: "business", %error, "the task store failed");
            Error::new(Kind::Internal, "the task store failed")
        }
    }
}

/// The record of a key, if it was used with the same parameters.
pub(super) fn checked(record: KeyRecord, hash: &str) -> Result<KeyRecord, Error> {
    if *record.key.hash == *hash {
        return Ok(record);
    }
    Err(Error::new(Kind::Conflict, "Idempotency-Key was used before with other parameters"))
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
