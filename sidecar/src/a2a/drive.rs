//! Drives one turn from its acceptance to its end. Owned by the sidecar, not by the request that brought it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use outrigger_protocol::a2a::answer::Events;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::message::UserMessage;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task, TurnMark};
use outrigger_protocol::config::Recovery;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::executor::{Reference, TurnEvent, TurnInput, TurnStream};
use super::handover::{self, Request};
use super::ids::Trace;
use super::job::{Held, Job, Kind, Mode, Teller, take_place};
use super::recover;
use super::service::{Tasks, busy, ended, leaving};
use super::store::Head;
use super::turns::{Post, Registered};
use super::write::Stop;

/// Most tasks that a message refers to and that are looked up.
const MAX_REFERENCES: usize = 32;
/// Nothing takes longer than this.
const FAR: Duration = Duration::from_hours(24 * 365);
/// Most artifacts and chunks that are written in one change, and most bytes.
const MAX_GATHERED: (usize, usize) = (128, 1 << 20);
/// What a stream says after its turn has ended is looked at for this long, to count it.
const AFTERWORD: Duration = Duration::from_millis(250);

/// One turn at work, or on its way there.
pub(super) struct Driver {
    pub tasks: Arc<Tasks>,
    /// The task as this turn last saw it.
    pub task: Arc<Task>,
    /// The turn as it is written next.
    pub mark: TurnMark,
    pub trace: Trace,
    pub request: Request,
    /// What the executor wants to know later.
    pub own: Option<Raw>,
    pub teller: Teller,
    pub lost: watch::Receiver<bool>,
    pub inbox: Arc<Registered>,
    follow: watch::Receiver<Head>,
    /// When the task is shown, whatever has happened by then.
    show_at: Option<Instant>,
    /// When a caller has waited long enough and gets the task as it is.
    tell_at: Option<Instant>,
    /// Whether the turn was handed over: only then can it be somebody else's.
    at_work: bool,
}

/// How a wait ended.
pub(super) enum Wait<T> {
    Done(T),
    /// The task ended meanwhile, by a cancel, or it is another's.
    Over(Arc<Task>),
    /// The process ends.
    Stopped,
    /// The lease may be another's.
    Lost,
    /// Not in time.
    Late,
}

enum Woke {
    Head(bool),
    Show,
    Time,
}

enum Got {
    Event(Option<TurnEvent>),
    Post(Post),
}

/// How the work on a turn ended.
enum End {
    /// Its end is written.
    Rested,
    /// It has none, for a reason.
    Failed(Fault),
    Over(Arc<Task>),
    Stopped,
    Lost,
}

/// Runs a job to its end.
pub(super) async fn run(job: Job, teller: Teller) {
    let Job { tasks, task, lane, place, work, turn, trace, request, used, keys, kind } = job;
    let mut teller = teller;
    let Ok(follow) = tasks.store.subscribe(&task.id).await else {
        return teller.tell(Err(Error::task_not_found(&task.id)));
    };
    let now = Instant::now();
    let limits = Arc::new(tasks.limits());
    let until = now + Duration::from_millis(limits.queue_timeout_ms);
    let mark = match &kind {
        Kind::Again { mark, .. } => mark.clone(),
        _ => TurnMark { id: turn, began: jiff::Timestamp::now(), ..TurnMark::default() },
    };
    let show_at = (teller.mode == Mode::Stream && !task.revealed).then(|| now + tasks.timing.reveal);
    let patient = teller.mode == Mode::Rest && teller.waits();
    let tell_at = patient.then(|| now + Duration::from_millis(limits.wait_timeout_ms));
    let (_, own) = handover::read(task.attachment.as_ref());
    let mut driver = Driver {
        inbox: Arc::new(tasks.turns.register(&mark.id)),
        lost: tasks.lost.subscribe(),
        tasks: Arc::clone(&tasks),
        task,
        mark,
        trace,
        request,
        own,
        teller,
        follow,
        show_at,
        tell_at,
        at_work: false,
    };
    let is_follow_up = matches!(kind, Kind::FollowUp { .. });
    if driver.teller.mode == Mode::Stream && driver.task.revealed && !is_follow_up {
        driver.teller_shows();
    }
    let placed = pin!(take_place(Arc::clone(&tasks), lane, place, work));
    let held = match driver.wait(until, placed).await {
        Wait::Done(Some(held)) => held,
        Wait::Over(task) if is_follow_up => return driver.teller.tell(Err(ended(&task))),
        Wait::Over(task) => return driver.teller.tell_task(&task),
        // The task of a follow-up stays as it was: nobody has seen the message.
        Wait::Stopped if is_follow_up => return driver.teller.tell(Err(leaving())),
        _ if is_follow_up => return driver.teller.tell(Err(busy("there was no place for this message in time"))),
        // Nobody has seen it, and another process will hand it over.
        Wait::Stopped if tasks.outlives_this() => return driver.teller.tell(Err(leaving())),
        Wait::Stopped => return driver.fail(&Fault::Stopped, None).await,
        Wait::Done(None) | Wait::Late | Wait::Lost => return driver.fail(&Fault::QueueTimeout, None).await,
    };
    let Some((met, reattach)) = driver.start(kind, &keys, until).await else { return };
    if driver.teller.mode == Mode::Start || is_follow_up && driver.teller.mode == Mode::Stream {
        driver.teller.first = Arc::clone(&driver.task);
        let task = Arc::clone(&driver.task);
        driver.teller.tell_task(&task);
    }
    let began = Instant::now();
    let references = if tasks.executor.wants_references() { driver.references(&met.message).await } else { Vec::new() };
    let skills = (tasks.skills)();
    // The executor may be done with its input long before the turn is.
    let pins: Vec<_> = skills.iter().filter_map(|s| s.pin.clone()).collect();
    let input = TurnInput {
        id: Arc::clone(&driver.mark.id),
        attempt: driver.mark.attempt,
        last_seq: driver.mark.seq,
        message: met.message,
        text: met.text,
        is_new: met.is_new,
        task: met.task,
        conversation: met.conversation,
        caller: driver.request.caller(&driver.task.caller),
        metadata: driver.request.metadata.clone(),
        accepted_output_modes: driver.request.accepted_output_modes.clone(),
        extensions: driver.request.extensions.clone(),
        used,
        references,
        skills,
        attachment: driver.own.clone(),
        trace: driver.trace.clone(),
        limits,
        busy_until: until,
    };
    let mut stream = Some(if reattach {
        let lost = || stream::once(async { TurnEvent::Fault { fault: Fault::Restarted, memo: None } }).boxed();
        tasks.executor.reattach(input, driver.mark.asynchronous).unwrap_or_else(lost)
    } else {
        tasks.executor.turn(input)
    });
    let Held { running, lane, work } = held;
    let mut running = Some(running);
    let end = driver.work(&mut stream, &mut running).await;
    tasks.metrics.turn_seconds.observe(began.elapsed().as_secs_f64());
    let cancel = driver.finish(end).await;
    let Driver { mark, own, .. } = driver;
    drop((running, lane, pins));
    match stream {
        Some(stream) if !cancel => count_afterword(&tasks, stream).await,
        stream => drop(stream),
    }
    if cancel {
        tasks.executor.cancel(&mark.id, own.as_ref()).await;
    }
    drop(work);
}

/// The message of a turn, and its task as the message met it.
pub(super) struct Met {
    pub task: Arc<Task>,
    pub is_new: bool,
    pub message: Arc<str>,
    pub text: Arc<str>,
    pub conversation: outrigger_protocol::a2a::conversation::Conversation,
}

impl Driver {
    /// What the executor keeps for the tasks that a message refers to, as far as they are the caller's own.
    async fn references(&self, message: &str) -> Vec<Reference> {
        let message = serde_json::from_str(message).ok().and_then(|m| UserMessage::parse(m, &mut Vec::new()));
        let mut found = Vec::new();
        for id in message.map(|m| m.references(MAX_REFERENCES)).unwrap_or_default() {
            // One that cannot be read now is one that the agent does not get to know of.
            if let Ok(task) = self.tasks.store.get(&id).await
                && task.revealed
                && task.caller == self.task.caller
            {
                let (_, attachment) = handover::read(task.attachment.as_ref());
                found.push(Reference { task: Arc::clone(&task.id), attachment });
            }
        }
        found
    }

    /// A task that is shown now; a stream begins.
    pub fn teller_shows(&mut self) {
        if self.teller.mode == Mode::Stream && self.teller.waits() {
            let task = Arc::clone(&self.task);
            self.teller.tell_task(&task);
        }
    }

    /// Shows the task, and gives it to a caller that has waited long enough.
    async fn show(&mut self, waited: bool) {
        if !self.task.revealed && self.put(Change { reveal: true, ..Change::default() }, false).await.is_err() {
            // Whatever it is: the turn meets it again.
            return;
        }
        if waited || self.teller.mode == Mode::Stream {
            let task = Arc::clone(&self.task);
            self.teller.tell_task(&task);
        }
    }

    /// Looks at the task; gives it if this turn has nothing to do with it any more.
    async fn look(&mut self) -> Option<Arc<Task>> {
        let current = self.tasks.store.get(&self.task.id).await.ok()?;
        let mine = if self.at_work { self.is_mine(&current) } else { !current.state.is_terminal() };
        if !mine {
            return Some(current);
        }
        self.task = current;
        None
    }

    pub(super) async fn wait<T>(&mut self, until: Instant, work: Pin<&mut impl Future<Output = T>>) -> Wait<T> {
        let mut work = work;
        loop {
            let epoch = self.task.epoch;
            let wake_at = [self.show_at, self.tell_at].into_iter().flatten().fold(until, Instant::min);
            let woke = {
                let Self { follow, lost, inbox, tasks, at_work, .. } = self;
                tokio::select! {
                    biased;
                    alive = async {
                        follow.wait_for(|h| h.state.is_terminal() || h.epoch > epoch).await.is_ok()
                    } => Woke::Head(alive),
                    done = &mut work => return Wait::Done(done),
                    () = tasks.ctx.shutdown.cancelled() => return Wait::Stopped,
                    _ = lost.wait_for(|l| *l), if *at_work => return Wait::Lost,
                    () = inbox.shown() => Woke::Show,
                    () = sleep_until(wake_at) => Woke::Time,
                }
            };
            match woke {
                Woke::Head(alive) => {
                    if let Some(over) = self.look().await {
                        return Wait::Over(over);
                    }
                    if !alive && let Ok(follow) = self.tasks.store.subscribe(&self.task.id).await {
                        self.follow = follow;
                    }
                    // A store that is away, or a head that is newer than what can be read yet.
                    if self.task.epoch == epoch {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                Woke::Show => self.show(false).await,
                Woke::Time if wake_at >= until => return Wait::Late,
                Woke::Time => {
                    let waited = self.tell_at.is_some_and(|at| at <= wake_at);
                    self.show_at = None;
                    if waited {
                        self.tell_at = None;
                    }
                    self.show(waited).await;
                }
            }
        }
    }

    /// Takes events until the turn ends. `running` is given back when the agent answers later.
    async fn work<R>(&mut self, stream: &mut Option<TurnStream>, running: &mut Option<R>) -> End {
        self.at_work = true;
        let mut next: Option<TurnEvent> = None;
        let mut events: Option<Events> = None;
        let (mut idle_at, mut last_at) = (Instant::now() + FAR, Instant::now() + FAR);
        loop {
            let event = if let Some(event) = next.take() {
                event
            } else {
                let inbox = Arc::clone(&self.inbox);
                let got = async {
                    match stream.as_mut().filter(|_| events.is_none()) {
                        Some(stream) => Got::Event(stream.next().await),
                        None => Got::Post(inbox.next().await),
                    }
                };
                let got = match self.wait(idle_at.min(last_at), pin!(got)).await {
                    Wait::Done(got) => got,
                    Wait::Over(task) => return End::Over(task),
                    Wait::Stopped => return End::Stopped,
                    Wait::Lost => return End::Lost,
                    Wait::Late => {
                        let limits = self.tasks.limits();
                        let idle = Fault::AsyncIdle(limits.async_idle_timeout_ms);
                        let last = Fault::AsyncTimeout(limits.async_timeout_ms);
                        return End::Failed(if Instant::now() >= last_at { last } else { idle });
                    }
                };
                match (got, &mut events) {
                    (Got::Event(Some(event)), _) => event,
                    (Got::Event(None), _) => {
                        *stream = None;
                        return End::Failed(no_end());
                    }
                    (Got::Post(post), Some(events)) => {
                        idle_at = Instant::now() + Duration::from_millis(self.tasks.limits().async_idle_timeout_ms);
                        match self.take_post(post, events).await {
                            Ok(true) => return End::Rested,
                            Ok(false) => continue,
                            Err(stop) => return self.stopped(stop),
                        }
                    }
                    (Got::Post(_), None) => continue,
                }
            };
            match event {
                TurnEvent::Started => self.show_soon(),
                TurnEvent::Repaired(rule) => self.count(rule),
                TurnEvent::Later => {
                    let limits = self.tasks.limits();
                    idle_at = Instant::now() + Duration::from_millis(limits.async_idle_timeout_ms);
                    let gone = jiff::Timestamp::now().duration_since(self.mark.began).unsigned_abs();
                    last_at = Instant::now() + Duration::from_millis(limits.async_timeout_ms).saturating_sub(gone);
                    events = Some(Events::new(Arc::clone(&self.mark.id), &self.task.artifacts));
                    self.mark.asynchronous = true;
                    if let Err(stop) = self.put(Change { reveal: true, ..Change::default() }, false).await {
                        return self.stopped(stop);
                    }
                    self.teller_shows();
                    *stream = None;
                    *running = None;
                }
                TurnEvent::Change(change) => {
                    let (change, after) = self.gather(change, stream);
                    next = after;
                    if change.state.is_some_and(|s| s.is_terminal() || s.is_interrupted()) {
                        self.end(TurnEvent::Change(change)).await;
                        return End::Rested;
                    }
                    if let Err(stop) = self.progress(change).await {
                        return self.stopped(stop);
                    }
                }
                TurnEvent::Fault { fault, memo: None } => return End::Failed(fault),
                end => {
                    self.end(end).await;
                    return End::Rested;
                }
            }
        }
    }

    /// A stream of the agent's began: its task is not hidden for long.
    fn show_soon(&mut self) {
        if !self.task.revealed {
            let at = Instant::now() + self.tasks.timing.reveal;
            self.show_at = Some(self.show_at.map_or(at, |before| before.min(at)));
        }
    }

    /// Joins a change with those that are there already, as long as the order of what is seen stays.
    fn gather(&mut self, first: Change, source: &mut Option<TurnStream>) -> (Change, Option<TurnEvent>) {
        self.mark.seq += 1;
        let mut change = first;
        let Some(stream) = source.as_mut() else { return (change, None) };
        let (mut updates, mut bytes) = (change.artifacts.len(), change.size());
        while change.state.is_none() && updates < MAX_GATHERED.0 && bytes < MAX_GATHERED.1 {
            match stream.next().now_or_never() {
                Some(Some(TurnEvent::Change(more))) => {
                    self.mark.seq += 1;
                    updates += more.artifacts.len();
                    bytes += more.size();
                    join(&mut change, more);
                }
                Some(Some(TurnEvent::Repaired(rule))) => self.count(rule),
                Some(Some(other)) => return (change, Some(other)),
                Some(None) => {
                    *source = None;
                    return (change, Some(TurnEvent::Fault { fault: no_end(), memo: None }));
                }
                None => break,
            }
        }
        (change, None)
    }

    fn stopped(&self, stop: Stop) -> End {
        match stop {
            Stop::Over(task) => End::Over(task),
            Stop::Gone => End::Over(Arc::clone(&self.task)),
            Stop::Lost => End::Lost,
            Stop::Refused(why) => End::Failed(Fault::Store(why)),
        }
    }

    /// Writes and tells how it ended; says whether the agent should be told to stop.
    async fn finish(&mut self, end: End) -> bool {
        let redeliver = self.tasks.ctx.live.borrow().turns.recovery == Recovery::Redeliver;
        match end {
            End::Rested => false,
            End::Failed(fault) => {
                self.fail(&fault, None).await;
                fault.is_late() || matches!(fault, Fault::Store(_))
            }
            End::Over(task) => {
                self.teller.tell_task(&task);
                true
            }
            End::Stopped if self.tasks.leaves_behind(redeliver, self.mark.asynchronous) => {
                self.teller.tell(Err(leaving()));
                !self.mark.asynchronous
            }
            End::Stopped => {
                self.fail(&Fault::Stopped, None).await;
                true
            }
            End::Lost if redeliver => {
                self.teller.tell(Err(Tasks::away()));
                let (tasks, task) = (Arc::clone(&self.tasks), Arc::clone(&self.task));
                tokio::spawn(recover::after_outage(tasks, task));
                true
            }
            End::Lost => {
                let fault = Fault::StoreLost;
                self.teller.tell(Err(Tasks::away()));
                self.fail(&fault, None).await;
                true
            }
        }
    }

    pub(super) fn state_at_start(&self) -> Option<State> {
        (self.task.state != State::Working).then_some(State::Working)
    }
}

/// Follows a change by another one: artifacts before the state, the newer memo and attachment win.
pub(super) fn join(change: &mut Change, more: Change) {
    change.artifacts.extend(more.artifacts);
    change.state = more.state;
    change.said = more.said;
    change.memo = more.memo.or(change.memo.take());
    change.attachment = more.attachment.or(change.attachment.take());
}

fn no_end() -> Fault {
    Fault::Incomplete("there was no event that ends the turn".into())
}

async fn count_afterword(tasks: &Tasks, mut stream: TurnStream) {
    let rest = async {
        while let Some(event) = stream.next().await {
            if matches!(event, TurnEvent::Change(_) | TurnEvent::Message { .. }) {
                tasks.metrics.late.inc();
            }
        }
    };
    let _ = timeout(AFTERWORD, rest).await;
}
