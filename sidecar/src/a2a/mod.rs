//! A2A: a request walks binding → service → executor → store and back.

pub mod binding;
pub mod call;
pub mod card;
mod client;
mod dispatch;
mod drive;
pub mod edge;
pub mod executor;
mod exposed;
mod gate;
mod handover;
pub mod ids;
mod job;
mod keys;
mod lane;
mod lease;
pub mod metrics;
mod probe;
pub mod push;
mod recover;
mod service;
pub mod signer;
mod start;
pub mod store;
mod stream;
mod turns;
pub mod upstream;
mod viewers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{any, get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use outrigger_protocol::a2a::errors::Kind;
use outrigger_protocol::config::Runtime;
use outrigger_protocol::status::{CardStatus, InterfaceStatus, PartStatus};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::outbound::Waits;
use crate::outbound::resolve::System;
use crate::skills::held::Pin;
use binding::meter::Meter;
use binding::{Direct, Front};
use card::Card;
use card::truth::Checker;
use edge::Edge;
use executor::http::Http;
use executor::{BadPath, Executor, Timing};
use exposed::Exposed;
use gate::Gate;
use metrics::Metrics;
use service::Tasks;
use store::{OpenError, Store};
use turns::Turns;
use upstream::executor::{A2a, BadRuntime};

/// When the process ends, the ends of turns are waited for this long before streams are closed.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// How often what is past its retention is forgotten.
const SWEEP_EVERY: Duration = Duration::from_mins(1);

/// A skill as a turn shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkillRef {
    /// Name of the Skill.
    pub name: String,
    /// Its folder in the agent container.
    pub path: String,
    /// Keeps the folder there until the turn ends.
    #[serde(skip)]
    pub pin: Option<Pin>,
}

/// Why the A2A side does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A path of the configuration is none.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// The same of an agent that speaks A2A.
    #[error(transparent)]
    Runtime(#[from] BadRuntime),
    /// The store that the configuration names cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Two parts use one metric's name.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// `urls` of the context is no JSON.
    #[error("local URLs: {0}")]
    Urls(#[from] serde_json::Error),
    /// The pod has none.
    #[error("there is no agent in this pod")]
    NoAgent,
}

/// The A2A side of the sidecar.
pub struct Service {
    tasks: Arc<Tasks>,
    front: Arc<Front<Tasks>>,
    card: Arc<Card>,
    checker: Arc<Checker>,
    outlet: Arc<push::Outlet>,
    sender: Arc<push::Sender>,
    exposed: Arc<Exposed>,
    agent: watch::Receiver<PartStatus>,
}

impl Service {
    /// Starts it: with the store that the configuration names, and a probe of the handler that runs until shutdown.
    pub fn start(ctx: &Context, skills: Arc<dyn Fn() -> Vec<SkillRef> + Send + Sync>) -> Result<Arc<Self>, StartError> {
        Self::start_with(ctx, skills, Timing::default())
    }

    /// With other waits than the contract's; for tests.
    pub fn start_with(
        ctx: &Context,
        skills: Arc<dyn Fn() -> Vec<SkillRef> + Send + Sync>,
        timing: Timing,
    ) -> Result<Arc<Self>, StartError> {
        let metrics = Metrics::register(&ctx.registry)?;
        let store = store::open(&ctx.boot.store, ctx.live.clone(), metrics.clone())?;
        Self::start_on(ctx, skills, timing, store, metrics)
    }

    /// On a store that is there already.
    pub fn start_on(
        ctx: &Context,
        skills: Arc<dyn Fn() -> Vec<SkillRef> + Send + Sync>,
        timing: Timing,
        store: Arc<dyn Store>,
        metrics: Metrics,
    ) -> Result<Arc<Self>, StartError> {
        let edge = Edge::new(ctx.live.clone(), edge::Metrics::register(&ctx.registry)?);
        let checker = Checker::new(ctx.live.clone(), edge.secret(), &ctx.registry)?;
        let card = Arc::new(Card::new(ctx.live.clone(), checker.facts()));
        let outlet = Arc::new(push::Outlet::new(ctx.live.clone(), Arc::new(System), Waits::default()));
        let executor: Arc<dyn Executor> = match &ctx.boot.runtime {
            runtime @ Runtime::Http { .. } => {
                let urls = serde_json::to_string(&*ctx.urls)?;
                Arc::new(Http::new(runtime, &ctx.token, urls, timing, metrics.clone())?)
            }
            runtime @ Runtime::A2a { .. } => {
                let (agent, ours) = (A2a::new(runtime, timing)?, Arc::clone(&card));
                tokio::spawn(agent.follow_card(ctx.shutdown.clone(), move |card| ours.set_agent_card(card)));
                Arc::new(agent)
            }
            Runtime::Tools {} => return Err(StartError::NoAgent),
        };
        let gate = Gate::new(ctx.live.clone(), metrics.clone());
        let tasks = Arc::new(Tasks {
            ctx: ctx.clone(),
            store: Arc::clone(&store),
            executor: Arc::clone(&executor),
            gate: Arc::clone(&gate),
            lanes: Arc::default(),
            turns: Arc::new(Turns::default()),
            viewers: Arc::default(),
            metrics: metrics.clone(),
            skills,
            timing,
            configs: push::Configs::new(Arc::clone(&outlet), Arc::clone(&store)),
            card: Arc::clone(&card),
            edge: Arc::clone(&edge),
            lost: watch::Sender::new(false),
        });
        let (status, agent) = watch::channel(probe::unknown());
        tokio::spawn(probe::watch_handler(ctx.clone(), executor, timing, Arc::clone(&gate), metrics, status));
        tokio::spawn(lease::keep(Arc::clone(&store), timing, tasks.lost.clone(), ctx.shutdown.clone()));
        tokio::spawn(recover::watch(Arc::clone(&tasks)));
        tokio::spawn(keep_house(ctx.clone(), Arc::clone(&store), gate));
        let exposed = Arc::new(Exposed::default());
        {
            let (exposed, ctx) = (Arc::clone(&exposed), ctx.clone());
            tokio::spawn(async move { exposed.watch(&ctx.boot.runtime, ctx.shutdown.clone()).await });
        }
        let sender = push::Sender::start(
            Arc::clone(&outlet),
            store,
            push::Metrics::register(&ctx.registry)?,
            push::Timing::default(),
            ctx.shutdown.clone(),
        );
        let meter = Arc::new(Meter::register(&ctx.registry)?);
        let front = Front::new(Arc::clone(&tasks), edge, ctx.live.clone(), streams_end(ctx), meter);
        Ok(Arc::new(Self { tasks, front, card, checker, outlet, sender, exposed, agent }))
    }

    /// From now on the card names only what passes calls of our own to a port that is about to be served. Ends at
    /// shutdown.
    pub fn prove(&self, port: u16, shutdown: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        self.checker.begin();
        Arc::clone(&self.checker).run(port, shutdown)
    }

    /// What is served on [`outrigger_protocol::config::A2A_PORT`]: all bindings, the card and the public keys, the last
    /// two below the path of a tenant or a proxy too.
    pub fn router(&self) -> axum::Router {
        let mut router = self.front.router();
        for prefix in ["", "/{a}", "/{a}/{b}", "/{a}/{b}/{c}"] {
            for path in card::PATHS {
                let card = Arc::clone(&self.card);
                let serve = any(move |request: Request<Body>| async move {
                    card.respond(request.method(), request.headers(), request.extensions()).await
                });
                router = router.route(&format!("{prefix}{path}"), serve);
            }
            let (card, outlet) = (Arc::clone(&self.card), Arc::clone(&self.outlet));
            let serve = any(move |request: Request<Body>| {
                let keys = [card.keys(), outlet.keys()];
                let set = card::key_set(keys.iter().flatten().map(|k| &**k));
                std::future::ready(card::answer_keys(request.method(), &set))
            });
            router = router.route(&format!("{prefix}{}", card::KEYS_PATH), serve);
        }
        router
    }

    /// The same as a service that is quick for JSON-RPC.
    pub fn served(&self) -> Direct<Tasks> {
        Direct::new(Arc::clone(&self.front), self.router())
    }

    /// What is served on the local API, under the token: `/tasks/{id}`, the whole of a task, and
    /// `/turns/{id}/events`, the events of a turn that is answered later.
    pub fn local_router(&self) -> axum::Router {
        axum::Router::new()
            .route("/tasks/{id}", get(whole_task))
            .route("/turns/{turn}/events", post(turns::post_events))
            .with_state(Arc::clone(&self.tasks))
    }

    /// Whether the task store can be used now.
    pub fn store_status(&self) -> PartStatus {
        self.tasks.store.status()
    }

    /// Gives up what this process holds in the store; when its work has ended.
    pub async fn release(&self) {
        let limit = Duration::from_secs(2);
        match tokio::time::timeout(limit, self.tasks.store.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(target: "business", %error, "the lease was not given up"),
            Err(_) => tracing::warn!(target: "business", "the lease was not given up in time"),
        }
    }

    /// Whether the handler is there, by the last probe.
    pub fn agent_status(&self) -> PartStatus {
        self.agent.borrow().clone()
    }

    /// Follows [`Self::agent_status`].
    pub fn watch_agent(&self) -> watch::Receiver<PartStatus> {
        self.agent.clone()
    }

    /// The card as served.
    pub fn card_status(&self) -> CardStatus {
        self.card.status()
    }

    /// The card, for what else is known of the agent.
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// What calls of our own found; empty while nothing is known.
    pub fn interfaces(&self) -> Vec<InterfaceStatus> {
        self.checker.facts().borrow().status()
    }

    /// Whether the agent was reached at the pod's address, so that access control can be gone round.
    pub fn agent_exposed(&self) -> bool {
        self.exposed.get()
    }

    /// Receivers of push notifications that were given up.
    pub fn push_dead_letters(&self) -> u64 {
        self.sender.dead_letters()
    }
}

async fn whole_task(State(tasks): State<Arc<Tasks>>, Path(id): Path<String>) -> Response<Body> {
    let mut text = String::new();
    let status = match tasks.get_for_agent(&id).await {
        Ok(task) => {
            task.write(None, &mut text);
            StatusCode::OK
        }
        Err(error) => {
            text.push_str("{\"error\":");
            error.write(&mut text);
            text.push('}');
            match error.kind {
                Kind::TaskNotFound => StatusCode::NOT_FOUND,
                Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            }
        }
    };
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.status_mut() = status;
    response
}

/// Cancelled when streams to callers end: after shutdown, and when turns that were cut have written their ends.
fn streams_end(ctx: &Context) -> CancellationToken {
    let (ctx, end) = (ctx.clone(), CancellationToken::new());
    let cancel = end.clone();
    tokio::spawn(async move {
        ctx.shutdown.cancelled().await;
        let _ = tokio::time::timeout(LAST_EVENTS, ctx.drain.idle()).await;
        cancel.cancel();
    });
    end
}

/// Forgets what is old, and lets waiting turns in when a limit was raised.
async fn keep_house(ctx: Context, store: Arc<dyn Store>, gate: Arc<Gate>) {
    let mut live = ctx.live.clone();
    let mut gone = false;
    loop {
        tokio::select! {
            () = ctx.shutdown.cancelled() => return,
            () = tokio::time::sleep(SWEEP_EVERY) => if let Err(error) = store.sweep().await {
                tracing::warn!(target: "business", %error, "old tasks were not swept");
            },
            changed = live.changed(), if !gone => {
                gone = changed.is_err();
                gate.pump();
            }
        }
    }
}
