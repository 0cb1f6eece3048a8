//! Who may call an Agent, whom it may tell, and whom it may call.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyRef, yes};

/// Who may call. Without `spec.access` everybody may, as the one anonymous caller.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.apiKeys) || (has(self.jwt) && self.jwt.size() > 0)").message("name access.apiKeys or access.jwt: without a way to prove an identity everybody may call; leave spec.access out if that is meant"))]
pub struct AccessSpec {
    /// Whether callers without any credential are let in beside known ones.
    #[serde(default)]
    pub anonymous: bool,
    /// API keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_keys: Option<ApiKeysSpec>,
    /// Issuers of JSON Web Tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["issuer".into()]))]
    pub jwt: Vec<JwtSpec>,
}

/// API keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeysSpec {
    /// Header that carries the key.
    #[serde(default = "api_key_header")]
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9-]+$"))]
    pub header: String,
    /// Secret in the Agent's namespace: each key of it is a caller's name, its value the caller's API key.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
}

fn api_key_header() -> String {
    "X-API-Key".into()
}

/// An issuer of JSON Web Tokens. Without `jwksUrl` and `jwksFrom` its keys are found by
/// `{issuer}/.well-known/openid-configuration`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.jwksUrl) && has(self.jwksFrom))").message("set jwksUrl or jwksFrom, not both"),
    validation = Rule::new("has(self.jwksUrl) || has(self.jwksFrom) || self.issuer.startsWith('https://') || self.issuer.startsWith('http://')").message("set jwksUrl or jwksFrom: the issuer is no URL at which its keys could be found"),
    validation = Rule::new("!(has(self.caFrom) && has(self.jwksFrom))").message("remove caFrom: nothing is fetched with jwksFrom")
)]
pub struct JwtSpec {
    /// Value of `iss`.
    #[schemars(length(min = 1, max = 2048))]
    pub issuer: String,
    /// Accepted values of `aud`.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 2048)))]
    pub audiences: Vec<String>,
    /// Where its keys (JWKS) are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = "^https?://[^/?#\\s]+[^#\\s]*$"))]
    pub jwks_url: Option<String>,
    /// Its keys (JWKS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_from: Option<ConfigMapSource>,
    /// PEM file of the authorities to trust where its keys are fetched, in place of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<ConfigMapSource>,
    /// Scopes (`scope` or `scp`) that a token needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub scopes: Vec<String>,
}

/// A value in a `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSource {
    /// Which one.
    pub config_map_key_ref: KeyRef,
}

/// Files in a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretFolder {
    /// Secret in the Agent's namespace: each key of it is a key id, its value a private key (PEM).
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
}

/// Push notifications. Without `spec.push` there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PushSpec {
    /// Whether there are any.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Receivers beside public https ones: hosts, `*.suffix` or networks (CIDR), each with an optional `:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 261)))]
    pub allow: Vec<String>,
    /// Private keys that prove to receivers who sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_keys: Option<SecretFolder>,
    /// PEM file of authorities to trust beside the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<ConfigMapSource>,
}

/// An Agent that this one may call, at `/agents/{name}` of the sidecar's local API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerRef {
    /// Name of the Agent.
    #[schemars(length(min = 1, max = 52), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its namespace. Default this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}
