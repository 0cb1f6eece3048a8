//! MCP servers of a pod, and what may be done with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One MCP server that this pod offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Server {
    /// Name of the MCPServer; also the last segment of its URL.
    pub name: String,
    /// Where it is.
    pub reach: Reach,
    /// Whether the pod is ready only when this server is.
    pub required: bool,
    /// Time limits and bounds.
    pub process: Process,
    /// Which of the two ways of the protocol it speaks.
    #[serde(default)]
    pub era: Era,
}

/// Where an MCP server is: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    /// A process behind the shim of a container of this pod, over its standard input and output.
    #[serde(rename_all = "camelCase")]
    Stdio {
        /// Name of its container.
        container: String,
        /// Path of the shim's socket in the sidecar.
        socket: String,
    },
    /// Streamable HTTP in a container of this pod.
    #[serde(rename_all = "camelCase")]
    Http {
        /// Name of its container.
        container: String,
        /// TCP port on 127.0.0.1.
        port: u16,
        /// Path of the endpoint.
        path: String,
    },
    /// A pod of its own, behind a Service of this cluster; the caller proves itself with its projected token.
    #[serde(rename_all = "camelCase")]
    Service {
        /// URL of the endpoint, such as `http://time-mcp.shops.svc.cluster.local:8080/mcp/time`.
        url: String,
    },
    /// Anywhere else.
    #[serde(rename_all = "camelCase")]
    Remote {
        /// URL of the endpoint.
        url: String,
        /// Folder with a file per header: its name is the header's, its content the value. Re-read when it changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        headers_dir: Option<String>,
        /// PEM file with the authorities to trust, in place of the public ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<String>,
        /// Names, Services and networks that may be reached although they are not public, as for push notifications.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allow: Vec<String>,
    },
    /// A part of the sidecar itself. No document says so.
    #[serde(skip)]
    BuiltIn,
}

impl Server {
    /// The container of this pod that it runs in, if it does.
    pub fn container(&self) -> Option<&str> {
        match &self.reach {
            Reach::Stdio { container, .. } | Reach::Http { container, .. } => Some(container),
            Reach::Service { .. } | Reach::Remote { .. } | Reach::BuiltIn => None,
        }
    }

    /// Path of the shim's socket in the sidecar, for a server over standard input and output.
    pub fn socket(&self) -> Option<&str> {
        match &self.reach {
            Reach::Stdio { socket, .. } => Some(socket),
            _ => None,
        }
    }
}

/// Which of the two ways of the protocol a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Era {
    /// Found out on a connection that is thrown away.
    #[default]
    Auto,
    /// Revisions up to 2025-11-25, which begin with `initialize`.
    Legacy,
    /// 2026-07-28 and later, where each request carries all it needs.
    Modern,
}

/// Whether clients share a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    /// Those that declare no capabilities share one, as nothing in it needs to be told apart; others have their own.
    #[default]
    Auto,
    /// All share; what a shared process asks of its client is refused.
    Shared,
    /// Each session has its own, as do calls of the stateless revision.
    PerSession,
}

/// Bounds of a server's processes or connections. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Process {
    /// Whether clients share a process.
    pub sharing: Sharing,
    /// Children alive at once in this pod.
    pub max_processes: u32,
    /// From spawn to the answer of `initialize`.
    pub start_timeout_ms: u64,
    /// From a request to its response; progress restarts it, up to ten times this value in all.
    pub request_timeout_ms: u64,
    /// A session without request or stream for this long ends.
    pub idle_timeout_ms: u64,
    /// Longest message in either direction, in bytes.
    pub max_line_bytes: u64,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            sharing: Sharing::Auto,
            max_processes: 16,
            start_timeout_ms: 60_000,
            request_timeout_ms: 60_000,
            idle_timeout_ms: 30 * 60_000,
            max_line_bytes: 16 << 20,
        }
    }
}

/// What the agent may do with its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mcp {
    /// By the name of the server; one that is not here has no rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, ToolPolicy>,
    /// Names behind the endpoint of all servers.
    pub prefix: Prefix,
    /// Who may use the servers of a pod without an agent; without it nobody may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<ToolAccess>,
}

/// Callers of a pod without an agent: sidecars that prove themselves with the token of their ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolAccess {
    /// Value of `iss` in tokens of the cluster.
    pub issuer: String,
    /// Value that `aud` must have.
    pub audience: String,
    /// Keys of the issuer (a JWK Set, RFC 7517).
    pub jwks: Value,
    /// Those that are let in; another one that proves itself is refused with 403.
    #[serde(default)]
    pub callers: Vec<ToolCaller>,
}

/// One that is let in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCaller {
    /// Value of `sub`, such as `system:serviceaccount:shops:seller`.
    pub subject: String,
    /// What it may use beside what the policy of the server says.
    #[serde(default, skip_serializing_if = "Filter::is_open")]
    pub filter: Filter,
}

/// When the endpoint of all servers puts the server's name before that of a tool or prompt. It never depends on which
/// servers there are, so that a name stays when another server comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prefix {
    /// `server__tool`.
    #[default]
    Always,
    /// As they are; of two with one name, the server that comes first by name keeps it.
    Never,
}

/// Rules for the tools of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolPolicy {
    /// A tool is there when each of these lets it through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
    /// What happens when a tool is not as it was pinned.
    pub drift: Drift,
    /// SHA-256 (hex) of the definition of each tool, as RFC 8785 writes it; without any, nothing is pinned.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, String>,
    /// Longest description of a tool in bytes; a longer one is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_description_bytes: Option<u32>,
    /// Largest arguments of a call in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_argument_bytes: Option<u64>,
    /// Calls of one tool at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Calls of one tool in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_minute: Option<u32>,
}

/// Patterns with `*` for any number of characters and `?` for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Filter {
    /// Tools that pass; empty is all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Tools that do not pass, whatever `allow` says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl Filter {
    /// Whether everything passes.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// What happens when a tool's definition is not the pinned one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Drift {
    /// Nothing.
    #[default]
    Allow,
    /// It is counted and logged.
    Warn,
    /// The tool is not there.
    Block,
}
