//! The MCP server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ToolsStatus, carried, duration};

/// A tool server that speaks the Model Context Protocol. Every pod of every Agent that uses it gets a container of it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "outrigger.dev",
    version = "v1alpha1",
    kind = "MCPServer",
    plural = "mcpservers",
    singular = "mcpserver",
    shortname = "omcp",
    category = "outrigger",
    namespaced,
    status = "MCPServerStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents"),
    printcolumn(name = "Instances", type_ = "integer", json_path = ".status.instances"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.readyInstances"),
    printcolumn(name = "Tools", type_ = "integer", json_path = ".status.tools.count"),
    printcolumn(name = "Server", type_ = "string", json_path = ".status.serverInfo", priority = 1),
    printcolumn(name = "Protocol", type_ = "string", json_path = ".status.protocolVersion", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 52").message("metadata.name may have at most 52 characters: the names of its containers add to it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name may have only a-z, 0-9 and '-': it becomes the name of a container")
)]
#[serde(rename_all = "camelCase")]
pub struct MCPServerSpec {
    /// How the server is spoken to: exactly one member, for good.
    pub transport: Transport,
    /// Image of the server.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Command of the server. The image's own entrypoint cannot be read, so it has to be said here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub command: Vec<String>,
    /// Arguments of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "carried::env")]
    pub env: Vec<Value>,
    /// Sources of environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "carried::env_from")]
    pub env_from: Vec<Value>,
    /// Volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "carried::volumes")]
    pub volumes: Vec<Value>,
    /// Mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "carried::volume_mounts")]
    pub volume_mounts: Vec<Value>,
    /// Requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::resources")]
    pub resources: Option<Value>,
    /// Security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::security_context")]
    pub security_context: Option<Value>,
    /// Liveness probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::probe")]
    pub liveness_probe: Option<Value>,
    /// Pull secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "carried::pull_secrets")]
    pub image_pull_secrets: Vec<Value>,
    /// Bounds of its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSpec>,
}

/// How a server is spoken to.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.stdio)").message("set transport.stdio: {} for a server that speaks over its standard input and output"),
    validation = Rule::new("self == oldSelf").message("transport cannot change: make another MCPServer")
)]
pub struct Transport {
    /// Standard input and output of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdio: Option<StdioTransport>,
}

/// Standard input and output of a process; nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StdioTransport {}

/// Bounds of a server's processes in one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSpec {
    /// Processes at once; each MCP session has one. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_processes: Option<i32>,
    /// From the start of a process to its answer to `initialize`. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub start_timeout: Option<String>,
    /// From a request to its answer; progress restarts it. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub request_timeout: Option<String>,
    /// A session without any request or stream for this long ends. Default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub idle_timeout: Option<String>,
    /// Longest line on standard output in bytes. Default 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_line_bytes: Option<i64>,
}

/// What is seen of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MCPServerStatus {
    /// Generation that the rest speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Agents that use it.
    #[serde(default)]
    pub agents: i32,
    /// Containers of it in running pods.
    #[serde(default)]
    pub instances: i32,
    /// Those that are ready.
    #[serde(default)]
    pub ready_instances: i32,
    /// Protocol revision it answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Name and version it gives of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_info: Option<String>,
    /// Its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsStatus>,
    /// What holds: accepted, ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
