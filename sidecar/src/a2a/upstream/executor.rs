//! The executor for a container that speaks A2A itself (`runtime.a2a`).
//!
//! Ids are ours outside and the agent's inside: those of the agent stay in the task's attachment, and its context also in
//! the memo of ours, so that the next task of the context goes on there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::raw::{Members, Raw, push_key, push_text, text_of};
use outrigger_protocol::config::Runtime;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
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
        Ok(Self { agent: Arc::new(Agent::new(*port, path, timing)), timing })
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

    fn drive<F, Fut>(run: F) -> TurnStream
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
        Driven { run: Some(run.boxed()), events }.boxed()
    }
}

impl Executor for A2a {
    fn turn(&self, input: TurnInput) -> TurnStream {
        let (agent, timing) = (Arc::clone(&self.agent), self.timing);
        Self::drive(move |out| async move { turn::hand_over(&agent, timing, &input, out).await })
    }

    fn can_reattach(&self, _later: bool, attachment: Option<&Raw>) -> bool {
        Ids::read(attachment).task.is_some()
    }

    fn reattach(&self, input: TurnInput, _later: bool) -> Option<TurnStream> {
        let ids = Ids::read(input.attachment.as_ref());
        // Without an id there is nothing to find again.
        ids.task.as_ref()?;
        let (agent, timing) = (Arc::clone(&self.agent), self.timing);
        Some(Self::drive(move |out| async move { turn::take_up(&agent, timing, &input, ids, out).await }))
    }

    fn cancel<'a>(&'a self, turn: &'a str, attachment: Option<&'a Raw>) -> BoxFuture<'a, ()> {
        async move {
            let (Some(task), Some(client)) = (Ids::read(attachment).task, self.agent.client()) else { return };
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
