//! The Agent.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AccessSpec, CardSpec, LimitsSpec, PeerRef, PushSpec, TasksSpec, ToolFilter, ToolsStatus, TurnsSpec, carried, yes,
};

/// An A2A agent: a container of the user's, its tools and skills, and the sidecar that speaks A2A for it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "outrigger.dev",
    version = "v1alpha1",
    kind = "Agent",
    plural = "agents",
    shortname = "oagent",
    category = "outrigger",
    namespaced,
    status = "AgentStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Tools", type_ = "integer", json_path = ".status.tools.count"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 52").message("metadata.name may have at most 52 characters: the names of the Agent's objects add to it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must begin with a letter and have only a-z, 0-9 and '-': it becomes the name of a Service"),
    validation = Rule::new("self.metadata.name != 'default'").message("metadata.name may not be \"default\": the namespace's own ServiceAccount has that name"),
    validation = Rule::new("!has(self.spec.tasks) || !has(self.spec.tasks.store) || !has(self.spec.tasks.store.sqlite) || !has(self.spec.tasks.store.sqlite.volume) || !(has(self.spec.tasks.store.sqlite.volume.persistentVolumeClaim) || has(self.spec.tasks.store.sqlite.volume.hostPath)) || self.spec.replicas <= 1").message("spec.replicas may be at most 1 with tasks.store.sqlite on a volume that outlives the pod: two pods may not write one file; use tasks.store.postgres for more").field_path(".spec.replicas"),
    validation = Rule::new("!has(self.spec.card) || !has(self.spec.card.extended) || has(self.spec.access)").message("set spec.access too: card.extended is for callers who are known").field_path(".spec.card.extended")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpec {
    /// What the agent does, for people and for other agents; stands in its Agent Card.
    #[schemars(length(min = 1, max = 1024))]
    pub description: String,
    /// Number of pods. `kubectl scale`, an HPA or KEDA may own it; aim them at the Agent.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// How the container takes its work: exactly one member.
    pub runtime: Runtime,
    /// Template of the Agent's pods.
    #[schemars(schema_with = "carried::agent_template")]
    pub template: Value,
    /// Tool servers: containers of the Agent's pods, or elsewhere, as each `MCPServer` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub mcp_servers: Vec<McpServerUse>,
    /// Skills, delivered as files below `/skills` in the container named "agent".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub skills: Vec<SkillUse>,
    /// What the Agent Card says beyond name and description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardSpec>,
    /// Bounds of requests, turns and streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// How tasks are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TasksSpec>,
    /// How turns are treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsSpec>,
    /// Who may call. Without it everybody may who reaches the Agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessSpec>,
    /// Push notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushSpec>,
    /// Agents that this one may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub peers: Vec<PeerRef>,
    /// The sidecar's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<SidecarSpec>,
    /// The Agent's ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountSpec>,
}

fn one() -> i32 {
    1
}

/// How the container takes its work.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.http) != has(self.a2a)").message("set runtime.http or runtime.a2a, and not both: how the container takes its work"))]
pub struct Runtime {
    /// Turns as HTTP requests (the executor contract).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpRuntime>,
    /// The container speaks A2A itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a2a: Option<A2aRuntime>,
}

/// Turns as HTTP requests on loopback.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRuntime {
    /// Port the handler listens on; 127.0.0.1 is enough.
    #[schemars(range(min = 1, max = 65535))]
    #[x_kube(validation = Rule::new("self < 19000 || self > 19999").message("ports 19000 to 19999 are Outrigger's own: let the handler listen elsewhere"))]
    pub port: i32,
    /// Path that takes the turns.
    #[serde(default = "root")]
    #[schemars(length(max = 1024), regex(pattern = "^/[^?#\\s]*$"))]
    pub path: String,
    /// Path that answers 2xx once the handler is ready. Without it any HTTP answer to `GET path` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = "^/[^?#\\s]*$"))]
    pub ready_path: Option<String>,
}

/// A2A on loopback, version 0.3 or 1.0, in any binding: found out by its card.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct A2aRuntime {
    /// Port the container listens on; 127.0.0.1 is enough.
    #[schemars(range(min = 1, max = 65535))]
    #[x_kube(validation = Rule::new("self < 19000 || self > 19999").message("ports 19000 to 19999 are Outrigger's own: let the container listen elsewhere"))]
    pub port: i32,
    /// Path of its JSON-RPC endpoint and prefix of everything else, its card included.
    #[serde(default = "root")]
    #[schemars(length(max = 1024), regex(pattern = "^/[^?#\\s]*$"))]
    pub path: String,
}

fn root() -> String {
    "/".into()
}

/// One tool server of an Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpServerUse {
    /// Name of an `MCPServer`; also the last segment of its URL, so it stands once.
    #[schemars(length(min = 1, max = 52))]
    pub name: String,
    /// Its namespace, for a Standalone server that lists this Agent in `access.from`. Default this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Whether the Agent is rolled out only when this server is accepted, and, for one in its pods, ready only when the
    /// server is. An outage of a server elsewhere takes no Agent down.
    #[serde(default = "yes")]
    pub required: bool,
    /// Which of its tools the Agent has, among those that the server's own rules leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolFilter>,
}

/// One skill of an Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillUse {
    /// Name of a Skill in the same namespace.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Whether the Agent's containers start only when its files are there.
    #[serde(default = "yes")]
    pub required: bool,
}

/// The sidecar's container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSpec {
    /// Requests and limits; the chart has defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::resources")]
    pub resources: Option<Value>,
}

/// The Agent's ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountSpec {
    /// Annotations, such as those of a cloud's workload identity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What is seen of an Agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Generation that the rest speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods there are.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// A2A endpoint inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What the manifest says of the Agent Card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardDigest>,
    /// Tools of all its servers, as `server/tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsStatus>,
    /// Version of the sidecar in the newest ready pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_version: Option<String>,
    /// What holds; all types are in `docs/conditions.md`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What the manifest says of the Agent Card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardDigest {
    /// SHA-256 of it, hex: another one is another card.
    pub digest: String,
}
