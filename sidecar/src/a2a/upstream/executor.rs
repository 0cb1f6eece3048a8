//! The executor for a container that speaks A2A itself (`runtime.a2a`).
//!
//! Ids are ours outside and the agent's inside: those of the agent stay in the task's attachment, and its context also in
//! the memo of ours, so that the next task of the context goes on there.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::raw::{Members, Raw, push_key, push_text, text_of};
use outrigger_protocol::config::Runtime;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, Found};
use super::client::With;
use super::turn;
use crate::a2a::executor::{Executor, NotReady, Timing, TurnEvent, TurnInput, TurnStream};

/// Events that wait for the service at most; then the agent waits.
const MAX_WAITING: usize = 16;

/// The executor for an agent that speaks A2A.
pub struct A2a {
    agent: Arc<Agent>,
    timing: Timing,
    /// How far turns are whose task the service may not know yet: a cancel may come before the agent's first word.
    early: Early,
}

type Early = Arc<Mutex<HashMap<Arc<str>, watch::Receiver<Stage>>>>;

/// How far a turn is on its way to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is with the agent.
    Unsent,
    /// The agent has the message and has not named a task.
    Sent,
    /// The agent's task.
    Known(String),
}

/// A runtime that is none of this executor.
#[derive(Debug, thiserror::Error)]
pub enum BadRuntime {
    /// Another one.
    #[error("the runtime is not a2a")]
    Other,
    /// A path that is none.
    #[error("runtime.a2a.path {0:?} is no path: it must begin with a slash and have neither query nor spaces")]
    Path(String),
}

/// The agent's ids of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Its task; none before it is known.
    pub task: Option<String>,
    /// Its context.
    pub context: Option<String>,
}

impl Ids {
    /// Reads an attachment or a memo.
    pub fn read(raw: Option<&Raw>) -> Self {
        let members = raw.and_then(|raw| Members::split(raw.as_str()).ok()).unwrap_or_default();
        let text = |key: &str| members.set(key).and_then(text_of).map(std::borrow::Cow::into_owned);
        Self { task: text("taskId"), context: text("contextId") }
    }

    /// As an attachment or a memo.
    pub fn to_raw(&self) -> Option<Raw> {
        let mut out = String::from("{");
        for (key, id) in [("taskId", &self.task), ("contextId", &self.context)] {
            if let Some(id) = id {
                push_key(&mut out, key);
                push_text(&mut out, id);
            }
        }
        out.push('}');
        Raw::parse(&out).ok()
    }
}

impl A2a {
    /// An executor for the configured agent. Nothing is asked yet.
    pub fn new(runtime: &Runtime, timing: Timing) -> Result<Self, BadRuntime> {
        let Runtime::A2a { port, path } = runtime else { return Err(BadRuntime::Other) };
        let good = path.starts_with('/') && !path.contains(['?', '#', ' ']) && path.parse::<http::Uri>().is_ok();
        if !good {
            return Err(BadRuntime::Path(path.clone()));
        }
        Ok(Self { agent: Arc::new(Agent::new(*port, path, timing)), timing, early: Early::default() })
    }

    /// Follows the agent's own card, in 1.0 form, as it was when its interfaces were tried; at first there is none.
    pub fn card(&self) -> impl Stream<Item = Arc<Value>> + Send + use<> {
        let found: watch::Receiver<Option<Found>> = self.agent.subscribe();
        futures::stream::unfold((found, true), |(mut found, first)| async move {
            loop {
                if !first {
                    found.changed().await.ok()?;
                }
                let card = found.borrow_and_update().as_ref().map(|f| Arc::clone(&f.card));
                match card {
                    Some(card) => return Some((card, (found, false))),
                    None => found.changed().await.ok()?,
                }
            }
        })
    }

    /// Binding and version that turns go over, once they are known.
    pub fn interface(&self) -> Option<String> {
        self.agent.client().map(|c| c.interface().describe())
    }

    /// Passes on the agent's own card, each time that it is a new one, until shutdown.
    pub fn follow_card<F>(&self, shutdown: CancellationToken, set: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Fn(Value) + Send + 'static,
    {
        let cards = self.card();
        async move {
            let mut cards = std::pin::pin!(cards.take_until(shutdown.cancelled_owned()));
            while let Some(card) = cards.next().await {
                set(Value::clone(&card));
            }
        }
    }

    /// The task of a turn that was sent and that the service does not know yet, as soon as the agent names it.
    async fn early_task(&self, turn: &str) -> Option<String> {
        let mut stage = self.early.lock().get(turn).cloned()?;
        let named = timeout(self.timing.cancel, stage.wait_for(|s| *s != Stage::Sent)).await.ok()?.ok()?;
        match &*named {
            Stage::Known(task) => Some(task.clone()),
            _ => None,
        }
    }

    fn drive<F, Fut>(run: F) -> Driven
    where
        F: FnOnce(mpsc::Sender<TurnEvent>) -> Fut,
        Fut: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let (out, events) = mpsc::channel(MAX_WAITING);
        let done = run(out.clone());
        let run = async move {
            if let Err(fault) = done.await {
                let _ = out.send(TurnEvent::Fault { fault, memo: None }).await;
            }
        };
        Driven { run: Some(run.boxed()), events, linger: None }
    }
}

impl Executor for A2a {
    fn turn(&self, input: TurnInput) -> TurnStream {
        let (agent, timing) = (Arc::clone(&self.agent), self.timing);
        let (stage, seen) = watch::channel(Stage::Unsent);
        let turn = Arc::clone(&input.id);
        self.early.lock().insert(Arc::clone(&turn), seen.clone());
        let linger = Linger { turn, stage: seen, early: Arc::clone(&self.early), limit: timing.cancel };
        let mut driven =
            Self::drive(move |out| async move { turn::hand_over(&agent, timing, &input, stage, out).await });
        driven.linger = Some(linger);
        driven.boxed()
    }

    fn wants_references(&self) -> bool {
        true
    }

    fn can_reattach(&self, _later: bool, attachment: Option<&Raw>) -> bool {
        Ids::read(attachment).task.is_some()
    }

    fn reattach(&self, input: TurnInput, _later: bool) -> Option<TurnStream> {
        let ids = Ids::read(input.attachment.as_ref());
        // Without an id there is nothing to find again.
        ids.task.as_ref()?;
        let (agent, timing) = (Arc::clone(&self.agent), self.timing);
        Some(Self::drive(move |out| async move { turn::take_up(&agent, timing, &input, ids, out).await }).boxed())
    }

    fn cancel<'a>(&'a self, turn: &'a str, attachment: Option<&'a Raw>) -> BoxFuture<'a, ()> {
        async move {
            let task = match Ids::read(attachment).task {
                Some(task) => Some(task),
                None => self.early_task(turn).await,
            };
            let (Some(task), Some(client)) = (task, self.agent.client()) else { return };
            if let Err(error) = client.cancel(&task, &With::limit(self.timing.cancel)).await {
                tracing::debug!(target: "transport", turn, %error, "the agent did not take the cancel");
            }
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), NotReady>> {
        async { self.agent.look().await.map(|_| ()) }.boxed()
    }
}

/// A turn that makes progress when its events are asked for, and ends when they are dropped.
struct Driven {
    run: Option<BoxFuture<'static, ()>>,
    events: mpsc::Receiver<TurnEvent>,
    linger: Option<Linger>,
}

/// What is left of a turn that nobody reads any more: if the agent has the message, its first word is waited for, so that a
/// cancel that comes this early has something to cancel.
struct Linger {
    turn: Arc<str>,
    stage: watch::Receiver<Stage>,
    early: Early,
    limit: Duration,
}

impl Drop for Driven {
    fn drop(&mut self) {
        let Some(Linger { turn, mut stage, early, limit }) = self.linger.take() else { return };
        let run = self.run.take();
        let now = stage.borrow().clone();
        let (Some(run), Ok(runtime), true) = (run, Handle::try_current(), now != Stage::Unsent) else {
            early.lock().remove(&turn);
            return;
        };
        let (_, nobody) = mpsc::channel(1);
        let mut events = std::mem::replace(&mut self.events, nobody);
        runtime.spawn(async move {
            if now == Stage::Sent {
                let unread = async { while events.recv().await.is_some() {} };
                let named = stage.wait_for(|s| *s != Stage::Sent);
                let _ = timeout(limit, async {
                    tokio::select! { () = run => {}, () = unread => {}, _ = named => {} }
                })
                .await;
            } else {
                drop(run);
            }
            // A cancel asks in a moment, if it comes at all.
            sleep(limit).await;
            early.lock().remove(&turn);
        });
    }
}

impl Stream for Driven {
    type Item = TurnEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TurnEvent>> {
        if let Poll::Ready(Some(event)) = self.events.poll_recv(cx) {
            return Poll::Ready(Some(event));
        }
        if let Some(run) = &mut self.run
            && run.poll_unpin(cx).is_ready()
        {
            self.run = None;
        }
        self.events.poll_recv(cx)
    }
}
