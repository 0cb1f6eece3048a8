//! What binds to the pod template.

use serde::{Deserialize, Serialize};

use super::mcp::Server;
use super::{CONFIG_VERSION, ConfigError, check, invalid};

/// What binds to the pod template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Boot {
    /// [`CONFIG_VERSION`].
    pub version: u32,
    /// The Agent this pod belongs to; with [`Runtime::Tools`] the MCPServer.
    pub agent: AgentRef,
    /// How the sidecar reaches the user's container.
    pub runtime: Runtime,
    /// Containers with a drain hook, the agent's first if there is one.
    pub containers: Vec<String>,
    /// Tool servers, in this pod and elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Server>,
    /// Skills of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillMount>,
    /// Where tasks live.
    #[serde(default)]
    pub store: Store,
    /// Shutdown.
    pub drain: Drain,
}

/// Where tasks live: exactly one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Store {
    /// The sidecar's memory: gone with its container.
    #[default]
    Memory,
    /// One file.
    #[serde(rename_all = "camelCase")]
    Sqlite {
        /// Path of the database; its folder is there and writable.
        path: String,
        /// Whether the folder outlives the pod.
        durable: bool,
    },
    /// A database that all replicas share.
    #[serde(rename_all = "camelCase")]
    Postgres {
        /// Environment variable of the sidecar that holds the connection URL.
        url_env: String,
        /// Schema of our tables, one per Agent: a letter, then letters, digits and `_`.
        schema: String,
        /// PEM file with the authorities to trust, in place of the public ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<String>,
    },
}

/// Name and namespace of an Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentRef {
    /// Name of the Agent.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// How the sidecar reaches the user's container: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Runtime {
    /// The executor contract over HTTP on loopback.
    #[serde(rename_all = "camelCase")]
    Http {
        /// TCP port on 127.0.0.1.
        port: u16,
        /// Path that takes the turns.
        path: String,
        /// Path that answers 2xx when the handler is ready; without it any HTTP answer to `GET path` counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ready_path: Option<String>,
    },
    /// The container speaks A2A itself, 0.3 or 1.0, in any binding: found out by its card.
    #[serde(rename_all = "camelCase")]
    A2a {
        /// TCP port on 127.0.0.1.
        port: u16,
        /// Path of its JSON-RPC endpoint and prefix of everything else, its card included.
        path: String,
    },
    /// There is no agent: the pod serves its tool server to the sidecars of Agents.
    Tools {},
}

/// One skill of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SkillMount {
    /// Name of the Skill; also its folder under [`SKILLS_DIR`](super::SKILLS_DIR).
    pub name: String,
    /// Whether the pod starts only when its files are there.
    pub required: bool,
}

/// Shutdown of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// Value of [`DRAIN_HEADER`](super::DRAIN_HEADER) that a drain hook must carry.
    pub token: String,
    /// The pod's `terminationGracePeriodSeconds`.
    pub grace_seconds: u32,
}

impl Boot {
    /// Parses and checks a boot document.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let boot: Self = serde_json::from_slice(bytes).map_err(|e| ConfigError::Malformed(e.to_string()))?;
        if boot.version != CONFIG_VERSION {
            return Err(ConfigError::UnsupportedVersion(boot.version));
        }
        if boot.containers.is_empty() {
            return Err(invalid("containers", "needs at least one container"));
        }
        if boot.drain.token.len() < 16 {
            return Err(invalid("drain.token", "needs at least 16 characters"));
        }
        let mut names = std::collections::BTreeSet::new();
        for (i, server) in boot.servers.iter().enumerate() {
            if !names.insert(&server.name) {
                return Err(invalid(&format!("servers[{i}].name"), format!("{} stands twice", server.name)));
            }
            if boot.runtime == (Runtime::Tools {}) && server.container().is_none() {
                return Err(invalid(
                    &format!("servers[{i}].reach"),
                    "must be a container of this pod, as there is no agent that could use another",
                ));
            }
            check::reach(&server.reach, &format!("servers[{i}].reach"))?;
            if server.process.max_processes == 0 {
                return Err(invalid(&format!("servers[{i}].process.maxProcesses"), "must be at least 1"));
            }
        }
        Ok(boot)
    }
}
