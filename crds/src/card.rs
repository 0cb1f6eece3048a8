//! What an Agent's card says, and where it is offered.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{SecretFolder, carried, yes};

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
    /// What it can do. Without any: those of the container's own card with `runtime.a2a`, else one made from the Agent's
    /// name and description.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub skills: Vec<CardSkill>,
    /// Media types it takes. Default `text/plain`, or with `runtime.a2a` those of the container's own card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    pub default_input_modes: Vec<String>,
    /// Media types it gives. Default as for `defaultInputModes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    pub default_output_modes: Vec<String>,
    /// Whether a part's media type must be one of `defaultInputModes`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check_input_modes: bool,
    /// Extensions of A2A that it supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub extensions: Vec<Extension>,
    /// What callers who are known see on top (`GetExtendedAgentCard`); asks for `spec.access`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended: Option<ExtendedCard>,
    /// Where callers outside the cluster reach the agent; comes first in the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<PublicAddress>,
    /// Networks (CIDR) of proxies whose `Forwarded` and `X-Forwarded-*` headers are believed when `public` is not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 2, max = 64)))]
    pub trusted_proxies: Vec<String>,
    /// Private keys that sign the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_keys: Option<SecretFolder>,
    /// Bindings that are served. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bindings")]
    pub bindings: Vec<String>,
    /// Versions of A2A that are served. Default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "versions")]
    pub versions: Vec<String>,
    /// Whether the agent is offered with streams.
    #[serde(default = "yes")]
    pub streaming: bool,
    /// Bytes of files from 0.3 clients over HTTP+JSON and gRPC are base64 text once more, as an old Python SDK sends them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub legacy_python_file_bytes: bool,
}

impl Default for CardSpec {
    fn default() -> Self {
        Self {
            version: first_version(),
            provider: None,
            documentation_url: None,
            icon_url: None,
            skills: Vec::new(),
            default_input_modes: Vec::new(),
            default_output_modes: Vec::new(),
            check_input_modes: false,
            extensions: Vec::new(),
            extended: None,
            public: None,
            trusted_proxies: Vec::new(),
            signing_keys: None,
            bindings: Vec::new(),
            versions: Vec::new(),
            streaming: true,
            legacy_python_file_bytes: false,
        }
    }
}

fn first_version() -> String {
    "0.1.0".into()
}

// The signature is serde's.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

fn bindings(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    carried::some_of("Bindings that are served. Default all.", &["JSONRPC", "HTTP+JSON", "GRPC"])
}

fn versions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    carried::some_of("Versions of A2A that are served. Default all.", &["1.0", "0.3"])
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

/// An extension of A2A (1.0, section 4.4.4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Extension {
    /// Its URI.
    #[schemars(length(min = 1, max = 2048))]
    pub uri: String,
    /// How the agent uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
    /// Whether callers have to ask for it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub required: bool,
    /// Settings of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::any_object")]
    pub params: Option<Value>,
}

/// What callers who are known see on top of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedCard {
    /// In place of `spec.description`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub description: Option<String>,
    /// In place of the card's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub documentation_url: Option<String>,
    /// Abilities beside those of the card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub skills: Vec<CardSkill>,
}

/// Where callers outside the cluster reach the agent.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) || has(self.grpc)").message("set public.url, public.grpc or both"))]
pub struct PublicAddress {
    /// Base URL, such as `https://agents.example.com/burger`: the path that is routed to the Agent's Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = "^https?://[^/?#\\s]+(/[^?#\\s]*)?$"))]
    pub url: Option<String>,
    /// `host:port` for gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 261), regex(pattern = "^([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$"))]
    pub grpc: Option<String>,
}
