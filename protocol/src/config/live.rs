//! What may change under a running pod.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mcp::Mcp;
use super::skill::{self, ControlPlane, Disclosure, Skill};
use super::{CONFIG_VERSION, ConfigError, check, invalid};

/// What may change under a running pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Live {
    /// [`CONFIG_VERSION`].
    pub version: u32,
    /// The Agent Card (A2A 1.0, section 4.4.1) without what the sidecar adds: `supportedInterfaces`, `capabilities`
    /// (but `extensions`), `securitySchemes`, `securityRequirements`, `signatures`. `null` for a pod without an agent.
    pub card: Value,
    /// Members that replace or add to those of `card` for callers who are known: the extended card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_card: Option<Value>,
    /// Where and how the agent is offered.
    #[serde(default)]
    pub offer: Offer,
    /// Bounds of the A2A side.
    #[serde(default)]
    pub limits: Limits,
    /// How turns are treated.
    #[serde(default)]
    pub turns: Turns,
    /// Who may call.
    #[serde(default)]
    pub access: Access,
    /// Push notifications.
    #[serde(default)]
    pub push: Push,
    /// Agents that this one may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// What the agent may do with its MCP servers.
    #[serde(default)]
    pub mcp: Mcp,
    /// Skills of the agent, at their current revisions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<Skill>,
    /// How skills are disclosed.
    #[serde(default, skip_serializing_if = "Disclosure::is_usual")]
    pub disclosure: Disclosure,
    /// Where the operator is asked for newer documents and skills; without it there are only those of the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlPlane>,
}

/// Where and how the agent is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Offer {
    /// Base URL inside the cluster, such as `http://seller.shops.svc.cluster.local:8080`, without a slash at its end.
    pub url: String,
    /// `host:port` for gRPC inside the cluster; without it gRPC is not in the card.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub grpc: String,
    /// Base URL for callers outside, without a slash at its end; it comes first in the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// `host:port` for gRPC for callers outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_grpc: Option<String>,
    /// Networks (CIDR) of proxies whose `Forwarded` and `X-Forwarded-*` headers are believed when no public URL is set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<String>,
    /// Bindings that are served: `JSONRPC`, `HTTP+JSON`, `GRPC`; empty is all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bindings: Vec<String>,
    /// Versions that are served: `1.0`, `0.3`; empty is both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// Whether the card says that the agent streams, and streams are served.
    pub streaming: bool,
    /// Whether a part's media type must be one of the card's.
    pub check_input_modes: bool,
    /// Folder with private keys (PEM, one per file, its name is the key id) that sign the card; all of them sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_keys: Option<String>,
    /// Bytes of files from 0.3 clients over HTTP+JSON and gRPC are base64 text once more, as an old Python SDK sends.
    pub legacy_python_file_bytes: bool,
}

/// How turns are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Turns {
    /// After a crash on either side.
    pub recovery: Recovery,
    /// What comes one at a time.
    pub serialize: Order,
    /// Which streams end when the task waits for its caller.
    pub close_on_interrupted: CloseOn,
    /// What becomes of a turn whose caller disconnects.
    pub on_disconnect: OnDisconnect,
    /// Whether the same message again (same caller, task, messageId and parameters) within a minute is the same turn.
    pub dedupe_messages: bool,
}

/// What becomes of a turn that was handed over when one side crashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recovery {
    /// The task fails.
    #[default]
    Fail,
    /// The same turn is handed over again: the handler is idempotent by turn id.
    Redeliver,
}

/// What comes one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The turns of one task.
    #[default]
    Task,
    /// The turns of one context.
    Context,
}

/// Which streams end at `INPUT_REQUIRED`. At `AUTH_REQUIRED` only [`Self::Both`] ends any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseOn {
    /// Those of a message.
    #[default]
    Send,
    /// Those of a subscription.
    Subscribe,
    /// All, at `AUTH_REQUIRED` too.
    Both,
    /// None.
    None,
}

/// What becomes of a turn whose caller disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// It goes on.
    #[default]
    Continue,
    /// The task is cancelled when the last stream or waiting request of its caller is gone.
    Cancel,
}

/// Who may call. With no way to prove an identity everybody may, as the one anonymous caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Access {
    /// Whether callers without any credential are let in beside known ones.
    pub anonymous: bool,
    /// API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKeys>,
    /// Issuers of tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jwt: Vec<JwtIssuer>,
}

/// API keys from a mounted folder: one file per caller, its name is the caller's name, its content the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeys {
    /// Header that carries the key.
    pub header: String,
    /// The folder; read again when it changes.
    pub folder: String,
}

/// An issuer of JSON Web Tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtIssuer {
    /// Value of `iss`.
    pub issuer: String,
    /// Accepted values of `aud`: at least one.
    pub audiences: Vec<String>,
    /// Where its keys are; without it they are found by `{issuer}/.well-known/openid-configuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// File with its keys, in place of an URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<String>,
    /// PEM file with the authorities to trust for `jwksUrl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Scopes (`scope` or `scp`) that a token needs; else 403.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// Push notifications.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Push {
    /// Whether there are any.
    pub enabled: bool,
    /// Receivers beside public https ones: hosts, `*.suffix` or networks (CIDR), each with an optional `:port`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Folder with private keys (PEM, one per file, its name is the key id); the last by name signs a JWT for receivers,
    /// all of them are in `/.well-known/jwks.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_keys: Option<String>,
    /// PEM file with authorities to trust beside the public ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

/// An agent that this one may call, at `/agents/{name}` or `/agents/{name}.{namespace}` of the local API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// `host:port` of its headless Service: resolved anew, one address is one pod.
    pub authority: String,
}

/// Bounds of the A2A side and of turns. Times in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// From the start of a turn to the whole of its JSON answer.
    pub turn_timeout_ms: u64,
    /// Between two events of a turn that answers by a stream.
    pub stream_idle_timeout_ms: u64,
    /// Between two events of a turn that answered 202.
    pub async_idle_timeout_ms: u64,
    /// Of a turn that answered 202, in all.
    pub async_timeout_ms: u64,
    /// How long a message waits for its work to rest; then the task is given as it is.
    pub wait_timeout_ms: u64,
    /// Between two signs of life on a quiet stream.
    pub heartbeat_ms: u64,
    /// Turns at work at once; more wait.
    pub max_concurrent_turns: u32,
    /// Turns that may wait; more are refused with 429.
    pub max_queued_turns: u32,
    /// How long a turn may wait for its place, or for a handler that answers 429 or 503.
    pub queue_timeout_ms: u64,
    /// Largest A2A request body.
    pub max_request_bytes: u64,
    /// Largest answer of the handler, and largest event.
    pub max_answer_bytes: u64,
    /// Largest sum of a task's artifacts and history.
    pub max_task_bytes: u64,
    /// Tasks kept; the oldest ended one goes first.
    pub max_tasks: u32,
    /// How long an ended task is kept.
    pub task_retention_ms: u64,
    /// Tasks of one caller that have not ended; 0 is no bound.
    pub max_open_tasks_per_caller: u32,
    /// Tasks of one caller that are kept, ended ones among them; 0 is no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_tasks_per_caller: u32,
    /// Streams of one caller; 0 is no bound.
    pub max_streams_per_caller: u32,
    /// Streams of one task.
    pub max_streams_per_task: u32,
    /// Requests of one caller in a second, in the long run; 0 is no bound.
    pub max_requests_per_second: u32,
    /// Requests of one caller at once after a quiet time.
    pub request_burst: u32,
    /// Push notification configurations of one task.
    pub max_push_configs: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn_timeout_ms: 120_000,
            stream_idle_timeout_ms: 60_000,
            async_idle_timeout_ms: 5 * 60_000,
            async_timeout_ms: 24 * 3_600_000,
            wait_timeout_ms: 55_000,
            heartbeat_ms: 15_000,
            max_concurrent_turns: 16,
            max_queued_turns: 256,
            queue_timeout_ms: 60_000,
            max_request_bytes: 8 << 20,
            max_answer_bytes: 16 << 20,
            max_task_bytes: 64 << 20,
            max_tasks: 10_000,
            task_retention_ms: 24 * 3_600_000,
            max_open_tasks_per_caller: 0,
            max_tasks_per_caller: 0,
            max_streams_per_caller: 0,
            max_streams_per_task: 1_000,
            max_requests_per_second: 0,
            request_burst: 100,
            max_push_configs: 10,
        }
    }
}

impl Live {
    /// A document with a card and nothing else of its own.
    pub fn new(card: Value) -> Self {
        Self {
            version: CONFIG_VERSION,
            card,
            extended_card: None,
            offer: Offer::default(),
            limits: Limits::default(),
            turns: Turns::default(),
            access: Access::default(),
            push: Push::default(),
            peers: Vec::new(),
            mcp: Mcp::default(),
            skills: Vec::new(),
            disclosure: Disclosure::default(),
            control: None,
        }
    }

    /// Parses and checks a live document.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let live: Self = serde_json::from_slice(bytes).map_err(|e| ConfigError::Malformed(e.to_string()))?;
        if live.version != CONFIG_VERSION {
            return Err(ConfigError::UnsupportedVersion(live.version));
        }
        for field in ["name", "description", "version", "skills"] {
            if !live.card.is_null() && live.card.get(field).is_none() {
                return Err(invalid(&format!("card.{field}"), "is missing"));
            }
        }
        skill::check(&live.skills)?;
        let l = &live.limits;
        for (path, value) in [
            ("limits.turnTimeoutMs", l.turn_timeout_ms),
            ("limits.maxConcurrentTurns", u64::from(l.max_concurrent_turns)),
            ("limits.queueTimeoutMs", l.queue_timeout_ms),
            ("limits.maxRequestBytes", l.max_request_bytes),
            ("limits.maxAnswerBytes", l.max_answer_bytes),
            ("limits.maxTasks", u64::from(l.max_tasks)),
            ("limits.streamIdleTimeoutMs", l.stream_idle_timeout_ms),
            ("limits.asyncIdleTimeoutMs", l.async_idle_timeout_ms),
            ("limits.asyncTimeoutMs", l.async_timeout_ms),
            ("limits.waitTimeoutMs", l.wait_timeout_ms),
            ("limits.heartbeatMs", l.heartbeat_ms),
            ("limits.maxTaskBytes", l.max_task_bytes),
            ("limits.maxStreamsPerTask", u64::from(l.max_streams_per_task)),
        ] {
            if value == 0 {
                return Err(invalid(path, "must be at least 1"));
            }
        }
        check::live(&live)?;
        Ok(live)
    }
}
