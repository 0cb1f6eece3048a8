//! The MCP server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ConfigMapSource, McpAccessFrom, McpProtocolSpec, SecretFolder, ServerProtocol, ServerTools, ToolRules, carried,
    duration,
};

/// A tool server that speaks the Model Context Protocol: a container in the pods of the Agents that use it, pods of its
/// own, or a URL elsewhere.
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
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Placement", type_ = "string", json_path = ".spec.placement"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents"),
    printcolumn(name = "Instances", type_ = "integer", json_path = ".status.instances"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.readyInstances"),
    printcolumn(name = "Tools", type_ = "integer", json_path = ".status.tools.count"),
    printcolumn(name = "Server", type_ = "string", json_path = ".status.serverInfo", priority = 1),
    printcolumn(name = "Protocol", type_ = "string", json_path = ".status.protocolVersion", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 52").message("metadata.name may have at most 52 characters: the names of its containers add to it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name may have only a-z, 0-9 and '-': it becomes the name of a container"),
    validation = Rule::new("!has(self.spec.placement) || self.spec.placement != 'Standalone' || self.metadata.name.matches('^[a-z]')").message("metadata.name must begin with a letter for placement: Standalone: it becomes the name of a Service")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.transport.remote) || has(self.image) != has(self.package)").message("set image or package, and not both: what runs the server"),
    validation = Rule::new("!has(self.transport.remote) || !(has(self.image) || has(self.package) || has(self.command) || has(self.args) || has(self.env) || has(self.envFrom) || has(self.volumes) || has(self.volumeMounts) || has(self.resources) || has(self.securityContext) || has(self.livenessProbe) || has(self.imagePullSecrets))").message("a remote server has no container: remove image, package, command, args, env, envFrom, volumes, volumeMounts, resources, securityContext, livenessProbe and imagePullSecrets"),
    validation = Rule::new("!has(self.transport.remote) || !has(self.placement)").message("remove placement: a remote server runs elsewhere").field_path(".placement"),
    validation = Rule::new("!has(self.package) || has(self.transport.stdio)").message("package needs transport.stdio: published servers that npx or uvx start speak over standard input and output").field_path(".package"),
    validation = Rule::new("self.replicas == 1 || (has(self.placement) && self.placement == 'Standalone')").message("replicas is for placement: Standalone; an InPod server has as many instances as its Agents have pods").field_path(".replicas"),
    validation = Rule::new("!has(self.podTemplate) || (has(self.placement) && self.placement == 'Standalone')").message("podTemplate is for placement: Standalone; an InPod server runs in the pods of its Agents").field_path(".podTemplate"),
    validation = Rule::new("!has(self.access) || (has(self.placement) && self.placement == 'Standalone')").message("access is for placement: Standalone; only such a server can be used from another namespace").field_path(".access"),
    validation = Rule::new("(has(self.placement) ? self.placement : 'InPod') == (has(oldSelf.placement) ? oldSelf.placement : 'InPod')").message("placement cannot change: make another MCPServer")
)]
pub struct MCPServerSpec {
    /// How the server is spoken to: exactly one member, for good.
    pub transport: Transport,
    /// Where it runs, for good: a container in each pod of each Agent that uses it (default), or pods of its own that
    /// Agents share. Absent for a remote server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Pods of a Standalone server. `kubectl scale`, an HPA or KEDA may own it; aim them at the `MCPServer`.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// Image of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// A published package in place of an image: it runs in the runner image of the chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<PackageSpec>,
    /// Command of the server. Needed with image and transport.stdio, as the image's own entrypoint cannot be read; with
    /// package it is the program in it, by default the one with the package's name.
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
    /// Scheduling and the like of a Standalone server's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::server_template")]
    pub pod_template: Option<Value>,
    /// Bounds of its processes or connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSpec>,
    /// Which way of the protocol it speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<McpProtocolSpec>,
    /// Which of its tools there are, and how they may be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolRules>,
    /// Who may use a Standalone server beside the Agents of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<McpAccessSpec>,
}

fn one() -> i32 {
    1
}

/// Where a server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// A container in each pod of each Agent that uses it.
    #[default]
    InPod,
    /// Pods of its own, behind a Service.
    Standalone,
}

/// A published package: exactly one member.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.npm) != has(self.pypi)").message("set package.npm or package.pypi, and not both")
)]
pub struct PackageSpec {
    /// A package of the npm registry, started as `npx` would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub npm: Option<NpmPackage>,
    /// A package of the Python Package Index, started as `uvx` would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pypi: Option<PypiPackage>,
}

/// A package of the npm registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NpmPackage {
    /// Its name, such as `@modelcontextprotocol/server-filesystem`.
    #[schemars(length(min = 1, max = 214), regex(pattern = "^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*$"))]
    pub name: String,
    /// Its exact version, such as `1.2.3`.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[0-9]+\\.[0-9]+\\.[0-9]+([-+][0-9A-Za-z.+-]+)?$"))]
    pub version: String,
}

/// A package of the Python Package Index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PypiPackage {
    /// Its name, such as `mcp-server-time`.
    #[schemars(length(min = 1, max = 214), regex(pattern = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// Its exact version, such as `2026.1.0`.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = "^[0-9]+(\\.[0-9]+)*((a|b|rc)[0-9]+)?(\\.(post|dev)[0-9]+)*$")
    )]
    pub version: String,
}

/// How a server is spoken to.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.stdio), has(self.http), has(self.remote)].filter(x, x).size() == 1").message("set exactly one of transport.stdio, transport.http and transport.remote: how the server is spoken to"),
    validation = Rule::new("has(self.stdio) == has(oldSelf.stdio) && has(self.http) == has(oldSelf.http) && has(self.remote) == has(oldSelf.remote)").message("transport cannot change to another kind: make another MCPServer")
)]
pub struct Transport {
    /// Standard input and output of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdio: Option<StdioTransport>,
    /// Streamable HTTP of the server's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTransport>,
    /// Streamable HTTP somewhere else; there is no container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteTransport>,
}

/// Streamable HTTP of a container.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpTransport {
    /// Port it listens on; 127.0.0.1 is enough.
    #[schemars(range(min = 1, max = 65535))]
    #[x_kube(validation = Rule::new("self < 19000 || self > 19999").message("ports 19000 to 19999 are Outrigger's own: let the server listen elsewhere"))]
    pub port: i32,
    /// Path of its endpoint.
    #[serde(default = "mcp_path")]
    #[schemars(length(max = 1024), regex(pattern = "^/[^?#\\s]*$"))]
    pub path: String,
}

fn mcp_path() -> String {
    "/mcp".into()
}

/// A server somewhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteTransport {
    /// URL of its endpoint.
    #[schemars(length(min = 8, max = 2048), regex(pattern = "^https?://[^/?#\\s@]+(/[^#\\s]*)?$"))]
    pub url: String,
    /// Secret of the Agent's namespace with one key per header: its name is the header's, its content the value. Mounted
    /// in the sidecar alone and read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers_from: Option<SecretFolder>,
    /// PEM file with the authorities to trust, in place of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<ConfigMapSource>,
    /// What may be reached although it is not public: hosts, `*.suffix` or networks (CIDR), each with an optional
    /// `:port`. Without it only public https addresses are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 261)))]
    pub allow: Vec<String>,
}

/// Who may use a Standalone server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpAccessSpec {
    /// Namespaces, or Agents of them. The Agents of the server's own namespace need not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub from: Vec<McpAccessFrom>,
}

/// Standard input and output of a process; nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StdioTransport {}

/// Bounds of a server's processes in one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSpec {
    /// Whether clients share a process. Default Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Processes at once. Default 16.
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

/// Whether clients share a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Sharing {
    /// Those that declare no capabilities share one, as nothing in it needs to be told apart; others have their own.
    #[default]
    Auto,
    /// All share; what a shared process asks of its client is refused.
    Shared,
    /// Each session has its own, as do calls of the stateless revision.
    PerSession,
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
    /// Pods of a Standalone server.
    #[serde(default)]
    pub replicas: i32,
    /// Those that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of its pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Containers of it in running pods; for a remote server, pods that use it.
    #[serde(default)]
    pub instances: i32,
    /// Those that are ready.
    #[serde(default)]
    pub ready_instances: i32,
    /// Protocol revision it answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Which ways of the protocol it speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ServerProtocol>,
    /// Name and version it gives of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_info: Option<String>,
    /// Its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ServerTools>,
    /// Times that a process, connection or container of it ended without being asked to, in all running pods.
    #[serde(default)]
    pub restarts: i64,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub last_error: Option<String>,
    /// What holds: accepted, ready, tools as they were pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
