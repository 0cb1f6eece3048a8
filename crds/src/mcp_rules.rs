//! What may be done with an MCP server: rules of its tools, who uses it, what it told.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolRules {
    /// Tools that are there; without any all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub allow: Vec<String>,
    /// Tools that are not there, whatever `allow` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 256)))]
    pub deny: Vec<String>,
    /// What happens when a tool is no longer as it was when the server was first seen. Default Allow.
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

/// What happens when a tool's definition changes.
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
    /// SHA-256 of their definitions, hex: another one is another set of tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}
