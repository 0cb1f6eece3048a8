//! The skill.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An Agent Skills folder: `SKILL.md` and the files beside it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "outrigger.dev",
    version = "v1alpha1",
    kind = "Skill",
    plural = "skills",
    shortname = "oskill",
    category = "outrigger",
    namespaced,
    status = "SkillStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Files", type_ = "integer", json_path = ".status.files"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.bytes"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents"),
    printcolumn(name = "Description", type_ = "string", json_path = ".status.description", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 57").message("metadata.name may have at most 57 characters: the name of its ConfigMap adds to it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && !self.metadata.name.contains('--')").message("metadata.name must be a skill's name: a-z, 0-9 and single '-'")
)]
#[serde(rename_all = "camelCase")]
pub struct SkillSpec {
    /// Where the files come from: exactly one member.
    pub source: SkillSource,
}

/// Where the files of a skill come from.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.inline)").message("set source.inline: the files of the skill"))]
pub struct SkillSource {
    /// Files written into the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<InlineSource>,
}

/// Files written into the resource.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InlineSource {
    /// The files; one of them is `SKILL.md`.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["path".into()]),
        validation = Rule::new("self.exists(f, f.path == 'SKILL.md')").message("add a file with the path SKILL.md: it is the skill")
    )]
    pub files: Vec<SkillFile>,
}

/// One file of a skill.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.content) != has(self.contentBase64)").message("set exactly one of content and contentBase64"))]
pub struct SkillFile {
    /// Path from the skill's folder, with `/` between its parts.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[^/\\\\\\x00-\\x1f]+(/[^/\\\\\\x00-\\x1f]+)*$"))]
    #[x_kube(validation = Rule::new("!self.split('/').exists(p, p == '.' || p == '..')").message("the path may not have the parts \".\" and \"..\": give it from the skill's folder"))]
    pub path: String,
    /// Text of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524_288))]
    pub content: Option<String>,
    /// Bytes of the file in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 700_000), regex(pattern = "^[A-Za-z0-9+/]*={0,2}$"))]
    pub content_base64: Option<String>,
    /// Whether the file may be run.
    #[serde(default)]
    pub executable: bool,
}

/// What is seen of a skill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillStatus {
    /// Generation that the rest speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// SHA-256 over paths, modes and contents, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Number of files.
    #[serde(default)]
    pub files: i32,
    /// Their sizes together.
    #[serde(default)]
    pub bytes: i64,
    /// Description in the front matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Agents that use it.
    #[serde(default)]
    pub agents: i32,
    /// What holds: accepted, ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
