//! What a pod says of itself on `/status` of the admin port, as JSON. The operator's leader reads it; it is the one
//! way facts from inside a pod reach the status of a resource.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Version of the sidecar, such as `0.1.0`.
    pub version: String,
    /// Life of the pod as the sidecar sees it.
    pub phase: PodPhase,
    /// The live configuration in force.
    pub config: ConfigStatus,
    /// The served card.
    pub card: CardStatus,
    /// The user's container.
    pub agent: PartStatus,
    /// Tool servers, in the order of the boot document.
    #[serde(default)]
    pub servers: Vec<ServerStatus>,
    /// Skills, in the order of the boot document.
    #[serde(default)]
    pub skills: Vec<SkillStatus>,
    /// The task store.
    #[serde(default)]
    pub store: PartStatus,
    /// Each interface that was asked for: whether it passed a call of its own and is in the card.
    #[serde(default)]
    pub interfaces: Vec<InterfaceStatus>,
    /// Push notifications that were given up, since the sidecar started.
    #[serde(default)]
    pub push_dead_letters: u64,
    /// Whether the agent also listens on the pod's address, so that access control can be gone round.
    #[serde(default)]
    pub agent_exposed: bool,
    /// The way to the operator.
    #[serde(default)]
    pub control: ControlStatus,
}

/// The way to the operator ([`control`](crate::control)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlStatus {
    /// Whether the operator is connected.
    pub connected: bool,
    /// Time since it was, or since the start.
    pub stale_seconds: u64,
    /// Whether that is well: a short absence is. Neither well nor unwell (no reason) where no operator is named.
    #[serde(flatten)]
    pub part: PartStatus,
}

/// One interface of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// `JSONRPC`, `HTTP+JSON` or `GRPC`.
    pub binding: String,
    /// `1.0` or `0.3`.
    pub version: String,
    /// Whether it passed.
    #[serde(flatten)]
    pub part: PartStatus,
}

/// Life of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not everything that readiness asks for has been seen yet.
    Starting,
    /// Ready for work.
    Ready,
    /// Was or could be ready, but a required part is not.
    NotReady,
    /// On its way out: no new work.
    Draining,
}

/// The live configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStatus {
    /// SHA-256 of the live document in force, hex.
    pub digest: String,
    /// Why a newer document was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The served card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CardStatus {
    /// SHA-256 of the card as served, hex.
    pub digest: String,
    /// Why the card is not signed although there are to be keys, or not by all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsigned: Option<String>,
}

/// A part that is ready or says why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartStatus {
    /// Whether the part can work.
    pub ready: bool,
    /// One word in CamelCase; empty when ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people; empty when ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Where a tool server stands between the start of its container and work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerPhase {
    /// The shim's socket is not there or refuses.
    #[default]
    Connect,
    /// The shim is there, the child is being started.
    Spawn,
    /// The child runs and has not answered `initialize`.
    Initialize,
    /// A handshake was done.
    Ready,
    /// Children end again and again; the next try waits.
    CrashLoop,
}

impl ServerPhase {
    /// The phase as it stands in conditions and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Spawn => "spawn",
            Self::Initialize => "initialize",
            Self::Ready => "ready",
            Self::CrashLoop => "crashLoop",
        }
    }
}

/// One tool server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Name of the MCPServer.
    pub name: String,
    /// Whether the pod's readiness asks for it.
    pub required: bool,
    /// Where it stands.
    pub phase: ServerPhase,
    /// Whether it can work.
    #[serde(flatten)]
    pub part: PartStatus,
    /// Protocol revision the server answered with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol_version: String,
    /// `name version` of the server's own `serverInfo`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_info: String,
    /// Names of its tools, at most 128, in the server's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// SHA-256 (hex) of their definitions in the form of RFC 8785, by name; one without such a form is not here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_digests: BTreeMap<String, String>,
    /// Children alive.
    pub processes: u32,
    /// Children that ended without being asked to, since the sidecar started.
    pub crashes: u64,
    /// How the last child ended that was not asked to, such as `exit code 3` or `signal 9`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_exit: String,
    /// `legacy` (revisions that begin with `initialize`), `modern` (those where each request stands alone) or `dual`;
    /// empty while it is not known whether the server speaks each of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub era: String,
    /// Revisions that the server has named, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// The last failure of a process or handshake, a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// Times that the tool container came back, since the sidecar started.
    #[serde(default)]
    pub restarts: u64,
}

/// One skill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillStatus {
    /// Name of the Skill.
    pub name: String,
    /// Whether the pod's start asks for it.
    pub required: bool,
    /// Digest of the materialised tree, as the operator computed it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Whether its files are there.
    #[serde(flatten)]
    pub part: PartStatus,
}
