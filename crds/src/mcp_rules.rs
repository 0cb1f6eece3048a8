//! What may be done with an MCP server: rules of its tools, who uses it, what it told.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Which way of the protocol a server speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpProtocolSpec {
    /// Default Auto: found out on a connection that is thrown away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
}

/// Which of the two ways of the protocol a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Era {
    /// Found out.
    #[default]
    Auto,
    /// Revisions up to 2025-11-25, which begin with `initialize`.
    Legacy,
    /// 2026-07-28 and later, where each request carries all it needs.
    Modern,
}

/// Which tools of a server there are, and how they may be called. In patterns `*` stands for any number of characters
/// and `?` for one.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.driftPolicy) || self.driftPolicy == 'Allow' || has(self.pins)").message("driftPolicy needs pins to hold tools against: copy them from status.tools.digests"))]
pub struct ToolRules {
    /// Tools that are there; without any all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub allow: Vec<String>,
    /// Tools that are not there, whatever `allow` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub deny: Vec<String>,
    /// SHA-256 (hex) of the definition of each tool as somebody looked at it, by its name; those of the running server
    /// are in `status.tools.digests`. A tool that is not here counts as changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "pins")]
    pub pins: BTreeMap<String, String>,
    /// What happens when the definition of a tool is not the one in `pins`. Default Allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_policy: Option<DriftPolicy>,
    /// Longest description of a tool in bytes; a longer one is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 1_048_576))]
    pub max_description_bytes: Option<i32>,
    /// Largest arguments of a call in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 268_435_456))]
    pub max_argument_bytes: Option<i64>,
    /// Calls of one tool at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrent: Option<i32>,
    /// Calls of one tool in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_per_minute: Option<i32>,
}

fn pins(_: &mut SchemaGenerator) -> Schema {
    let digest = json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$", "maxLength": 64});
    json_schema!({"type": "object", "minProperties": 1, "maxProperties": 256, "additionalProperties": digest})
}

/// What happens when a tool's definition is not the pinned one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Nothing.
    #[default]
    Allow,
    /// It is counted and logged.
    Warn,
    /// The tool is not there.
    Block,
}

/// Which tools of a server an Agent has, among those that the server's own rules leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolFilter {
    /// Tools that are there; without any all are. `*` stands for any number of characters and `?` for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub allow: Vec<String>,
    /// Tools that are not there, whatever `allow` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub deny: Vec<String>,
}

/// Agents of another namespace that may use a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpAccessFrom {
    /// The namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the one Agent; without it all of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 52), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub agent: Option<String>,
}

/// Which ways of the protocol a server speaks, as it was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerProtocol {
    /// `legacy`, `modern` or `dual`.
    pub era: String,
    /// Revisions it speaks, as far as it tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub versions: Vec<String>,
    /// When this was seen first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed_at: Option<Time>,
}

/// Tools that a server lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerTools {
    /// How many there are.
    pub count: i32,
    /// Their names, at most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub names: Vec<String>,
    /// SHA-256 (hex) of the definition of each, as RFC 8785 writes it: what `spec.tools.pins` takes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digests: BTreeMap<String, String>,
    /// SHA-256 of their definitions, hex: another one is another set of tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}
