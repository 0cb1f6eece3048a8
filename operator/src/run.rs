//! Wiring: caches, watches and controllers of one scope (a namespace, or all).

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use kube::api::ListParams;
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::reflector::{Lookup, Store, store, store::Writer};
use kube::{Api, Client, Resource};
use outrigger_crds::{Agent, MCPServer, Skill};
use outrigger_protocol::config::ADMIN_PORT;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::apply::Applier;
use crate::caches::{Caches, Guarded, our_objects, strip_deployment, strip_meta, strip_pod};
use crate::control_api::keeper::Plane;
use crate::controller::{self, Context};
use crate::facts::{self, Facts, Touch};
use crate::http::Health;
use crate::issuer::Issuers;
use crate::metrics::Metrics;
use crate::plan::ChildKind;
use crate::report::Reporter;
use crate::scopes::{Scope, Scopes};
use crate::settings::Settings;
use crate::status::write::StatusWriter;
use crate::triggers::{self, Mapper, Senders};
use crate::watch::{self, Change};

/// Between two looks for the resource definitions.
const DEFINITIONS_PERIOD: Duration = Duration::from_secs(2);
/// Longest time for one look.
const DEFINITIONS_TIMEOUT: Duration = Duration::from_secs(10);

/// What a scope is run with.
#[derive(Clone)]
pub struct Run {
    /// Client of the API server.
    pub client: Client,
    /// What the installation says.
    pub settings: Arc<Settings>,
    /// Counts.
    pub metrics: Metrics,
    /// Tells of outcomes.
    pub reporter: Reporter,
    /// What is waited for.
    pub health: Health,
    /// All scopes; each adds itself.
    pub scopes: Scopes,
    /// Who signs the tokens of the cluster.
    pub issuers: Issuers,
    /// What sidecars are told of the control API.
    pub control: Plane,
    /// Reconciliations of one kind at once.
    pub concurrency: u16,
}

/// Waits until the API server serves our resources; `false` on shutdown. An operator that is started before the
/// definitions waits here, in words, and does not crash.
pub async fn definitions(
    client: &Client,
    namespaces: &[String],
    health: &Health,
    shutdown: &CancellationToken,
) -> bool {
    let mut said = String::new();
    loop {
        let missing = match tokio::time::timeout(DEFINITIONS_TIMEOUT, missing(client, namespaces.first())).await {
            Ok(missing) => missing,
            Err(_) => Some("the API server does not answer".into()),
        };
        let Some(missing) = missing else {
            health.end(&said);
            return true;
        };
        if said != missing {
            warn!("waiting: {missing}");
            health.end(&said);
            health.begin(&missing);
            said = missing;
        }
        tokio::select! {
            () = shutdown.cancelled() => return false,
            () = tokio::time::sleep(DEFINITIONS_PERIOD) => {}
        }
    }
}

async fn missing(client: &Client, namespace: Option<&String>) -> Option<String> {
    if let Some(why) = unserved::<Agent>(client, namespace).await {
        return Some(why);
    }
    if let Some(why) = unserved::<MCPServer>(client, namespace).await {
        return Some(why);
    }
    unserved::<Skill>(client, namespace).await
}

async fn unserved<K>(client: &Client, namespace: Option<&String>) -> Option<String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<PartialObjectMeta<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    match api.list(&ListParams::default().limit(1)).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Some(format!("the CustomResourceDefinition {name} is not established: install the CRDs"))
        }
        Err(kube::Error::Api(status)) => Some(format!("{name} cannot be listed: {}", status.message)),
        Err(error) => Some(format!("the API server cannot be reached: {error}")),
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope>,
    <K as Resource>::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

struct Watched {
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
    metrics: Metrics,
    client: Client,
    namespace: Option<String>,
}

impl Watched {
    fn add<K, F, Fut>(&mut self, labels: Option<&'static str>, writer: Writer<K>, strip: fn(&mut K), on: F)
    where
        K: Resource<Scope = NamespaceResourceScope> + Lookup + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        <K as Resource>::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
        <K as Lookup>::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
        F: FnMut(Change<K>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let api = api::<K>(&self.client, self.namespace.as_deref());
        self.tasks.spawn(watch::run(api, labels, writer, strip, self.metrics.clone(), self.shutdown.clone(), on));
    }
}

fn context(run: &Run, caches: &Caches, facts: &Facts, touches: &tokio::sync::mpsc::Sender<Touch>) -> Context {
    Context {
        client: run.client.clone(),
        scopes: run.scopes.clone(),
        issuers: run.issuers.clone(),
        control: run.control.clone(),
        settings: run.settings.clone(),
        caches: caches.clone(),
        facts: facts.clone(),
        touches: touches.clone(),
        applier: Applier::new(run.client.clone(), run.metrics.clone()),
        statuses: StatusWriter::new(run.client.clone(), run.metrics.clone()),
        reporter: run.reporter.clone(),
        failures: controller::Failures::default(),
        metrics: run.metrics.clone(),
    }
}

/// Runs one scope until `shutdown`.
pub async fn scope(run: Run, namespace: Option<String>, shutdown: CancellationToken) {
    let (agents, agents_writer) = store::<Guarded<Agent>>();
    let (servers, servers_writer) = store::<Guarded<MCPServer>>();
    let (skills, skills_writer) = store::<Guarded<Skill>>();
    let (deployments, deployments_writer) = store::<Deployment>();
    let (pods, pods_writer) = store::<Pod>();
    let (config_maps, config_maps_writer) = store::<PartialObjectMeta<ConfigMap>>();
    let (services, services_writer) = store::<PartialObjectMeta<Service>>();
    let (service_accounts, service_accounts_writer) = store::<PartialObjectMeta<ServiceAccount>>();
    let caches = Caches { agents, servers, skills, deployments, pods, config_maps, services, service_accounts };
    let mapper = Arc::new(Mapper::new(caches.clone(), run.scopes.clone()));
    let (senders, receivers) = triggers::channels();
    run.scopes.add(Scope {
        namespace: namespace.clone(),
        agents: caches.agents.clone(),
        servers: caches.servers.clone(),
        agent_queue: senders.agents.clone(),
        server_queue: senders.servers.clone(),
    });
    let (touches, pods_touched) = facts::channel();
    let facts = Facts::default();
    let context = Arc::new(context(&run, &caches, &facts, &touches));

    let mut watched = Watched {
        tasks: JoinSet::new(),
        shutdown: shutdown.clone(),
        metrics: run.metrics.clone(),
        client: run.client.clone(),
        namespace: namespace.clone(),
    };
    let (m, s, c) = (mapper.clone(), senders.clone(), context.clone());
    watched.add(None, agents_writer, strip_meta, move |change| {
        let (object, gone) = split(change);
        let (m, s, c) = (m.clone(), s.clone(), c.clone());
        async move {
            if gone {
                c.forget(object.meta());
            }
            s.send(m.agent(&object, gone)).await;
        }
    });
    let (m, s, c) = (mapper.clone(), senders.clone(), context.clone());
    watched.add(None, servers_writer, strip_meta, move |change| {
        let (object, gone) = split(change);
        let (m, s, c) = (m.clone(), s.clone(), c.clone());
        async move {
            if gone {
                c.forget(object.meta());
            }
            s.send(m.server(&object, gone)).await;
        }
    });
    let (m, s, c) = (mapper.clone(), senders.clone(), context.clone());
    watched.add(None, skills_writer, strip_meta, move |change| {
        let (object, gone) = split(change);
        let (m, s, c) = (m.clone(), s.clone(), c.clone());
        async move {
            if gone {
                c.forget(object.meta());
            }
            s.send(m.skill(&object, gone)).await;
        }
    });
    let child = |kind| Child { kind, mapper: mapper.clone(), senders: senders.clone(), context: context.clone() };
    let ours = Some(our_objects());
    let on = child(ChildKind::Deployment);
    watched.add(ours, deployments_writer, strip_deployment, move |change| on.clone().changed(change));
    let on = child(ChildKind::ConfigMap);
    watched.add(ours, config_maps_writer, strip_meta, move |change| on.clone().changed(change));
    let on = child(ChildKind::Service);
    watched.add(ours, services_writer, strip_meta, move |change| on.clone().changed(change));
    let on = child(ChildKind::ServiceAccount);
    watched.add(ours, service_accounts_writer, strip_meta, move |change| on.clone().changed(change));
    let (m, s) = (mapper.clone(), senders.clone());
    watched.add(ours, pods_writer, strip_pod, move |change| {
        let (pod, gone) = split(change);
        let (m, s, touches) = (m.clone(), s.clone(), touches.clone());
        async move {
            let triggers = m.pod(&pod.metadata);
            let touch = if gone { Touch::Gone(pod) } else { Touch::Read(pod) };
            // A closed queue means shutdown.
            let _ = touches.send(touch).await;
            s.send(triggers).await;
        }
    });

    let filling = format!("the caches of {} are being filled", namespace.as_deref().unwrap_or("all namespaces"));
    run.health.begin(&filling);
    tokio::select! {
        () = shutdown.cancelled() => {}
        ready = synced(&caches) => if ready {
            run.health.end(&filling);
            info!(namespace, "caches are filled; controllers start");
            work(&run, context, receivers, mapper, senders, facts, pods_touched, &shutdown).await;
        }
    }
    watched.tasks.join_all().await;
}

#[allow(clippy::too_many_arguments)]
async fn work(
    run: &Run,
    context: Arc<Context>,
    receivers: triggers::Receivers,
    mapper: Arc<Mapper>,
    senders: Senders,
    facts: Facts,
    touched: tokio::sync::mpsc::Receiver<Touch>,
    shutdown: &CancellationToken,
) {
    let (tell, mut changes) = tokio::sync::mpsc::channel::<Arc<Pod>>(1024);
    let on_change: facts::OnChange = Arc::new(move |pod| {
        // A full queue is no harm: the pod is read again, and every Agent has a look regularly.
        let _ = tell.try_send(pod);
    });
    let forward = async {
        while let Some(pod) = changes.recv().await {
            senders.send(mapper.pod(&pod.metadata)).await;
        }
    };
    let caches = context.caches.clone();
    let (n, stop) = (run.concurrency, || shutdown.clone());
    tokio::join!(
        controller::run(caches.agents, receivers.agents, context.clone(), n, stop(), controller::agent::reconcile),
        controller::run(
            caches.servers,
            receivers.servers,
            context.clone(),
            n,
            stop(),
            controller::mcp_server::reconcile
        ),
        controller::run(caches.skills, receivers.skills, context.clone(), n, stop(), controller::skill::reconcile),
        facts::run(facts, touched, run.metrics.clone(), stop(), on_change, ADMIN_PORT),
        async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = forward => {}
            }
        },
    );
}

fn split<K>(change: Change<K>) -> (Arc<K>, bool) {
    match change {
        Change::Seen(object) => (object, false),
        Change::Gone(object) => (object, true),
    }
}

#[derive(Clone)]
struct Child {
    kind: ChildKind,
    mapper: Arc<Mapper>,
    senders: Senders,
    context: Arc<Context>,
}

impl Child {
    async fn changed<K: Resource>(self, change: Change<K>) {
        let (object, gone) = split(change);
        let meta = object.meta();
        if gone {
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            self.context.applier.forget(self.kind, namespace.unwrap_or_default(), name.unwrap_or_default());
        }
        self.senders.send(self.mapper.child(meta)).await;
    }
}

/// Waits until every cache has its first list: before that, what is there would look as if it was missing.
async fn synced(caches: &Caches) -> bool {
    async fn one<K: Clone + Lookup + 'static>(store: &Store<K>) -> bool
    where
        <K as Lookup>::DynamicType: Eq + Hash + Clone,
    {
        store.wait_until_ready().await.is_ok()
    }
    one(&caches.agents).await
        && one(&caches.servers).await
        && one(&caches.skills).await
        && one(&caches.deployments).await
        && one(&caches.pods).await
        && one(&caches.config_maps).await
        && one(&caches.services).await
        && one(&caches.service_accounts).await
}
