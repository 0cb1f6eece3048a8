//! From resources and settings to the objects of Kubernetes: pure, no client, no clock, no I/O.
//!
//! Objects are raw JSON. What a user wrote in a template is carried and merged, never lost.

mod card;
mod check;
mod config;
mod containers;
mod deployment;
mod files;
mod identity;
mod live;
mod merge;
mod pod;
mod policy;
mod quantity;
mod security;
mod server;
mod service;
mod skill;
mod standalone;
mod store;
mod validate;

use outrigger_crds::{Agent, MCPServerSpec, ToolFilter};
use outrigger_protocol::config::ControlPlane;
use serde_json::Value;

use crate::hash;
use crate::settings::Settings;

pub use files::{Source, sources};
pub use server::{Checked, Launch, Place, ServerError, check_server, place};
pub use skill::{SkillPlan, skill};
pub use standalone::{Caller, StandaloneInput, StandalonePlan, may_use, server_reference, server_selector, standalone};
pub use store::{Lifetime, lifetime};

/// Kinds of the objects that we write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// `v1 ServiceAccount`
    ServiceAccount,
    /// `v1 ConfigMap`
    ConfigMap,
    /// `v1 Service`
    Service,
    /// `apps/v1 Deployment`
    Deployment,
}

impl ChildKind {
    /// All of them, in the order of writing.
    pub const ALL: [Self; 4] = [Self::ServiceAccount, Self::ConfigMap, Self::Service, Self::Deployment];

    /// The kind as it stands in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::ConfigMap => "ConfigMap",
            Self::Service => "Service",
            Self::Deployment => "Deployment",
        }
    }

    /// Its `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment => "apps/v1",
            _ => "v1",
        }
    }
}

/// One object as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name.
    pub name: String,
    /// The whole manifest, without the annotation that carries [`Planned::hash`].
    pub body: Value,
    /// Hash of `body`: changes exactly when it does.
    pub hash: String,
}

impl Planned {
    fn new(kind: ChildKind, name: impl Into<String>, mut body: Value) -> Self {
        merge::without_nulls(&mut body);
        let hash = hash::short(body.to_string().as_bytes(), 16);
        Self { kind, name: name.into(), body, hash }
    }
}

/// A tool server of the Agent that was found and accepted.
#[derive(Clone, Debug)]
pub struct ServerInput<'a> {
    /// Name of the `MCPServer`.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Whether the Agent is ready only when this server is.
    pub required: bool,
    /// Its specification.
    pub spec: &'a MCPServerSpec,
    /// What [`check_server`] found.
    pub checked: Checked,
    /// Which of its tools the Agent asks for.
    pub tools: Option<&'a ToolFilter>,
    /// Whether its container is in the pods that are planned.
    pub here: bool,
}

impl ServerInput<'_> {
    /// Whether the shim starts it.
    fn has_shim(&self) -> bool {
        self.here && self.spec.transport.stdio.is_some()
    }

    /// What its container in the planned pods runs, if there is one.
    fn launch_in_pod(&self) -> Option<&Launch> {
        self.checked.launch.as_ref().filter(|_| self.here)
    }
}

/// All that a plan of an Agent is made from.
#[derive(Clone, Debug)]
pub struct AgentInput<'a> {
    /// The Agent; its name, namespace and uid are set.
    pub agent: &'a Agent,
    /// Its tool servers, in the order of its specification.
    pub servers: Vec<ServerInput<'a>>,
    /// What the installation says.
    pub settings: &'a Settings,
    /// Where its sidecars ask the operator; none until the operator has a certificate.
    pub control: Option<&'a ControlPlane>,
}

/// The objects of an Agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentPlan {
    /// ServiceAccount, boot and live `ConfigMap`, the two Services, Deployment, in this order.
    pub objects: Vec<Planned>,
    /// Name of the boot `ConfigMap`.
    pub boot_config_map: String,
    /// SHA-256 of what the manifest says of the Agent Card, hex.
    pub card_digest: String,
    /// SHA-256 of the live document, hex; pods report the one in force.
    pub live_digest: String,
    /// A2A endpoint inside the cluster.
    pub url: String,
    /// Secrets and `ConfigMap`s of the user's that the sidecar mounts.
    pub sources: Vec<Source>,
}

/// Why there is no plan. The variant is the reason of the condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A value that the schema let through.
    #[error("{path}: {message}")]
    InvalidSpec {
        /// Path of the value.
        path: String,
        /// What to do.
        message: String,
    },
    /// Part of the template that would break the pod.
    #[error("spec.template.{path}: {message}")]
    InvalidTemplate {
        /// Path below `spec.template`.
        path: String,
        /// What to do.
        message: String,
    },
    /// Two containers want one port.
    #[error(
        "port {port} is wanted by the containers {first} and {second}: all containers of a pod share its ports; let one listen elsewhere"
    )]
    PortConflict {
        /// The port.
        port: i64,
        /// One container.
        first: String,
        /// The other.
        second: String,
    },
}

impl PlanError {
    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidSpec { .. } => "InvalidSpec",
            Self::InvalidTemplate { .. } => "InvalidTemplate",
            Self::PortConflict { .. } => "PortConflict",
        }
    }
}

/// Plans the objects of an Agent.
pub fn agent(input: &AgentInput<'_>) -> Result<AgentPlan, PlanError> {
    let spec = &input.agent.spec;
    let identity = identity::Identity::of(input.agent)?;
    let runtime = validate::runtime(spec)?;
    validate::template(spec, &runtime, &input.servers)?;
    store::check(spec)?;
    let limits = config::limits(spec)?;
    let grace = pod::grace_seconds(spec, limits.turn_timeout_ms);
    let domain = &input.settings.cluster_domain;
    let boot = config::boot(input, &identity, runtime, grace)?;
    let live = live::live(&identity, input, limits, policy::of_agent(&input.servers))?;
    let boot_config_map = format!("{}-boot-{}", identity.name, hash::short(boot.as_bytes(), 10));
    let template = pod::template(input, &identity, &boot_config_map, grace);
    let objects = vec![
        identity::service_account(&identity, Some(spec)),
        config::boot_config_map(&identity, &boot_config_map, &boot),
        config::live_config_map(&identity, &live.text),
        service::service(&identity, spec),
        service::peers(&identity),
        deployment::deployment(&identity, spec, &template),
    ];
    Ok(AgentPlan {
        objects,
        boot_config_map,
        card_digest: live.card_digest,
        live_digest: hash::hex(live.text.as_bytes()),
        url: format!("{}/", live::url(&identity, domain)),
        sources: files::all_sources(input),
    })
}

/// Reference by which an object belongs to an Agent.
pub fn owner_reference(agent: &str, uid: &str) -> Value {
    identity::owner::<Agent>(agent, uid)
}

/// Label selector of an Agent's pods, as autoscalers want it.
pub fn selector(agent: &str) -> String {
    format!("{}={agent}", crate::names::AGENT_LABEL)
}
