//! The Agent.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ToolsStatus, carried, duration, yes};

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
    validation = Rule::new("self.metadata.name != 'default'").message("metadata.name may not be \"default\": the namespace's own ServiceAccount has that name")
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
    /// Tool servers, each one container in every pod of the Agent.
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
    /// Bounds of requests and turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// How tasks are kept. They live in the memory of the pod that took them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TasksSpec>,
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
#[x_kube(validation = Rule::new("has(self.http)").message("set runtime.http: the container takes its turns over HTTP"))]
pub struct Runtime {
    /// Turns as HTTP requests (the executor contract).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpRuntime>,
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

fn root() -> String {
    "/".into()
}

/// One tool server of an Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpServerUse {
    /// Name of an `MCPServer` in the same namespace.
    #[schemars(length(min = 1, max = 52))]
    pub name: String,
    /// Whether the Agent is ready only when this server is.
    #[serde(default = "yes")]
    pub required: bool,
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

/// What the Agent Card says beyond name and description (A2A 1.0, section 4.4.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardSpec {
    /// Version of the agent.
    #[serde(default = "first_version")]
    #[schemars(length(min = 1, max = 64))]
    pub version: String,
    /// Who offers the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// Where its documentation is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub documentation_url: Option<String>,
    /// Where its icon is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub icon_url: Option<String>,
    /// What it can do. Without any, one is made from the Agent's name and description.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub skills: Vec<CardSkill>,
    /// Media types it takes.
    #[serde(default = "text", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    pub default_input_modes: Vec<String>,
    /// Media types it gives.
    #[serde(default = "text", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    pub default_output_modes: Vec<String>,
}

impl Default for CardSpec {
    fn default() -> Self {
        Self {
            version: first_version(),
            provider: None,
            documentation_url: None,
            icon_url: None,
            skills: Vec::new(),
            default_input_modes: text(),
            default_output_modes: text(),
        }
    }
}

fn first_version() -> String {
    "0.1.0".into()
}

fn text() -> Vec<String> {
    vec!["text/plain".into()]
}

/// Who offers the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// Name of the organization.
    #[schemars(length(min = 1, max = 256))]
    pub organization: String,
    /// Its address.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
}

/// One ability in the Agent Card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardSkill {
    /// Unique in the card.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    /// For people.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// What it does and when to ask for it.
    #[schemars(length(min = 1, max = 1024))]
    pub description: String,
    /// Words to find it by.
    #[schemars(length(min = 1, max = 32))]
    pub tags: Vec<String>,
    /// Requests it answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub examples: Vec<String>,
    /// Media types it takes, if not the card's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub input_modes: Vec<String>,
    /// Media types it gives, if not the card's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub output_modes: Vec<String>,
}

/// Bounds of requests and turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitsSpec {
    /// From the start of a turn to its whole answer. Default 120s. The pods' grace period is 30 s longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub turn_timeout: Option<String>,
    /// Turns at work at once in one pod. Default 16; use 1 for a handler with a single thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_concurrent_turns: Option<i32>,
    /// Turns that may wait in one pod; more are refused with 429. Default 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_queued_turns: Option<i32>,
    /// How long a turn may wait. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub queue_timeout: Option<String>,
    /// Largest request body in bytes. Default 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_request_bytes: Option<i64>,
    /// Largest answer of the handler in bytes. Default 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_answer_bytes: Option<i64>,
}

/// How tasks are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TasksSpec {
    /// Tasks kept in one pod; the oldest ended one goes first. Default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: Option<i32>,
    /// How long an ended task is kept. Default 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub retention: Option<String>,
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
    /// The Agent Card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardDigest>,
    /// Tools of all its servers, as `server/tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsStatus>,
    /// Version of the sidecar in the newest ready pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_version: Option<String>,
    /// What holds: accepted, ready, progressing, tools, skills, card, task store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The Agent Card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardDigest {
    /// SHA-256 of the card, hex.
    pub digest: String,
}
