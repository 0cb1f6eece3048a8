//! The objects of a server that has pods of its own.

use std::collections::BTreeSet;

use outrigger_crds::{MCPServer, ToolFilter};
use outrigger_protocol::config::{ControlPlane, IDENTITY_AUDIENCE, Live, Mcp, ToolAccess, ToolCaller, ToolPolicy};
use serde_json::{Map, Value, json};

use super::identity::{self, Identity};
use super::merge::{put_list, take_list, take_object};
use super::server::Checked;
use super::service::{front, port};
use super::{PlanError, Planned, ServerInput, config, containers, deployment, pod, policy, security};
use crate::hash;
use crate::issuer::Issuer;
use crate::names::{self, SERVICE_PORT};
use crate::settings::Settings;

/// Time beyond the longest call that a pod has for its end.
const GRACE_BEYOND_CALL_SECONDS: u64 = 30;

/// An Agent that may use the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub agent: String,
    /// Which tools it asks for.
    pub tools: Option<ToolFilter>,
}

/// All that a plan of a Standalone server is made from.
#[derive(Clone, Debug)]
pub struct StandaloneInput<'a> {
    /// The server; its name, namespace and uid are set.
    pub server: &'a MCPServer,
    /// What [`super::check_server`] found.
    pub checked: Checked,
    /// What the installation says.
    pub settings: &'a Settings,
    /// Who signs the tokens of the cluster.
    pub issuer: &'a Issuer,
    /// Where its sidecars ask the operator; none until the operator has a certificate.
    pub control: Option<&'a ControlPlane>,
    /// The Agents that may use it, in any order.
    pub callers: Vec<Caller>,
}

/// The objects of a Standalone server.
#[derive(Clone, Debug, PartialEq)]
pub struct StandalonePlan {
    /// ServiceAccount, boot and live `ConfigMap`, Service, Deployment, in this order.
    pub objects: Vec<Planned>,
    /// Name of the boot `ConfigMap`.
    pub boot_config_map: String,
    /// SHA-256 of the live document, hex; pods report the one in force.
    pub live_digest: String,
}

/// Plans the objects of a Standalone server.
pub fn standalone(input: &StandaloneInput<'_>) -> Result<StandalonePlan, PlanError> {
    let identity = Identity::of_server(input.server)?;
    let spec = &input.server.spec;
    let server = ServerInput {
        name: &identity.resource,
        namespace: &identity.namespace,
        required: true,
        spec,
        checked: input.checked.clone(),
        tools: None,
        here: true,
    };
    let grace = grace_seconds(input);
    let boot = config::tools_boot(&identity, &server, input.settings, grace)?;
    let live = json!(live(input, &identity)).to_string();
    let boot_config_map = format!("{}-boot-{}", identity.name, hash::short(boot.as_bytes(), 10));
    let template = template(input, &identity, &server, &boot_config_map, grace);
    let objects = vec![
        identity::service_account(&identity, None),
        config::boot_config_map(&identity, &boot_config_map, &boot),
        config::live_config_map(&identity, &live),
        service(&identity),
        deployment::rolling(&identity, spec.replicas, &template),
    ];
    Ok(StandalonePlan { objects, boot_config_map, live_digest: hash::hex(live.as_bytes()) })
}

/// Whether an Agent may use a server: those of its own namespace may, others as the server says.
pub fn may_use(server: &MCPServer, namespace: &str, agent: &str) -> bool {
    if server.metadata.namespace.as_deref() == Some(namespace) {
        return true;
    }
    let from = server.spec.access.as_ref().map(|a| a.from.as_slice()).unwrap_or_default();
    from.iter().any(|f| f.namespace == namespace && f.agent.as_deref().is_none_or(|a| a == agent))
}

/// Label selector of a Standalone server's pods, as autoscalers want it.
pub fn server_selector(server: &str) -> String {
    format!("{}={server}", names::SERVER_LABEL)
}

fn grace_seconds(input: &StandaloneInput<'_>) -> u32 {
    let template = input.server.spec.pod_template.as_ref();
    let own = template.and_then(|t| t.pointer("/spec/terminationGracePeriodSeconds")).and_then(Value::as_u64);
    let call = input.checked.process.request_timeout_ms.div_ceil(1000);
    u32::try_from(own.unwrap_or(call + GRACE_BEYOND_CALL_SECONDS)).unwrap_or(u32::MAX)
}

/// The document that says who may call, and what.
fn live(input: &StandaloneInput<'_>, identity: &Identity) -> Live {
    let mut callers: Vec<ToolCaller> = input
        .callers
        .iter()
        .map(|c| ToolCaller {
            subject: names::subject(&c.namespace, &c.agent),
            filter: policy::filter(c.tools.as_ref()),
        })
        .collect();
    callers.sort_by(|a, b| a.subject.cmp(&b.subject));
    let policy = policy::of_server(&input.server.spec);
    let has_policy = policy != ToolPolicy::default();
    let access = ToolAccess {
        issuer: input.issuer.url.clone(),
        audience: IDENTITY_AUDIENCE.into(),
        jwks: input.issuer.jwks.clone(),
        callers,
    };
    Live {
        mcp: Mcp {
            servers: has_policy.then(|| (identity.resource.clone(), policy)).into_iter().collect(),
            access: Some(access),
            ..Mcp::default()
        },
        control: input.control.cloned(),
        ..Live::new(Value::Null)
    }
}

fn template(
    input: &StandaloneInput<'_>,
    identity: &Identity,
    server: &ServerInput<'_>,
    boot_config_map: &str,
    grace: u32,
) -> Value {
    let settings = input.settings;
    let mut template = match &input.server.spec.pod_template {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    let container = names::tool_container(server.name);
    let metadata = pod::metadata(take_object(&mut template, "metadata"), identity, &container);
    let mut spec = take_object(&mut template, "spec");
    let mut volumes = Vec::new();
    pod::config_volumes(identity, boot_config_map, &mut volumes);
    let servers = std::slice::from_ref(server);
    pod::shim_volumes(servers, &mut volumes);
    let mut taken = BTreeSet::new();
    let tool = pod::tool(server, settings, &identity.drain_token(), &mut taken, &mut volumes);
    let mut init = Vec::new();
    let mut mounts = Vec::new();
    if server.has_shim() {
        init.push(containers::install(settings));
        mounts.push(containers::socket_mount(server.name));
    }
    init.push(containers::sidecar(settings, None, Vec::new(), mounts, &mut volumes));
    security::pod(&mut spec);
    spec.insert("serviceAccountName".into(), json!(identity.name));
    spec.insert("automountServiceAccountToken".into(), json!(false));
    spec.insert("terminationGracePeriodSeconds".into(), json!(grace));
    let secrets = pod::pull_secrets(settings, servers, take_list(&mut spec, "imagePullSecrets"));
    put_list(&mut spec, "imagePullSecrets", secrets);
    pod::canonical(&mut volumes);
    spec.insert("volumes".into(), Value::Array(volumes));
    spec.insert("initContainers".into(), Value::Array(init));
    spec.insert("containers".into(), Value::Array(tool.into_iter().collect()));
    template.insert("metadata".into(), metadata);
    template.insert("spec".into(), Value::Object(spec));
    Value::Object(template)
}

/// The Service that the sidecars of Agents call. A session lives in one pod, so a caller stays with the pod it came to.
fn service(identity: &Identity) -> Planned {
    front(identity, "ClientIP", &[port("http", SERVICE_PORT, "http")])
}

/// Reference by which an object belongs to a server.
pub fn server_reference(server: &str, uid: &str) -> Value {
    identity::owner::<MCPServer>(server, uid)
}
