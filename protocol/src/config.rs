//! The configuration that the operator writes for a pod and the sidecar reads.
//!
//! Two documents, both JSON, each in a ConfigMap of its own:
//! - [`Boot`] binds to the pod template (servers, sockets, ports, skills). Its ConfigMap is named by its hash and
//!   immutable, so a pod never sees the tools of a newer one.
//! - [`Live`] holds what may change under a running pod (card, limits). It is re-read without a restart; a document
//!   that does not parse or validate is refused as a whole and the last good one stays.

mod boot;
mod check;
mod live;
mod mcp;
mod skill;

use serde::{Deserialize, Serialize};

pub use boot::*;
pub use live::*;
pub use mcp::*;
pub use skill::*;

/// The only version of both documents so far; another one is refused.
pub const CONFIG_VERSION: u32 = 1;

/// Port of the A2A endpoint, on every address of the pod.
pub const A2A_PORT: u16 = 19080;
/// Port of health, metrics, status and drain, on every address of the pod.
pub const ADMIN_PORT: u16 = 19464;
/// Port of the local API (MCP, task details), on 127.0.0.1 only.
pub const LOCAL_PORT: u16 = 19900;
/// First and last port that a user's container may not take.
pub const RESERVED_PORTS: (u16, u16) = (19000, 19999);

/// File of the boot document in the sidecar.
pub const BOOT_FILE: &str = "/etc/outrigger/boot/boot.json";
/// File of the live document in the sidecar.
pub const LIVE_FILE: &str = "/etc/outrigger/live/live.json";
/// Folder with one sub-folder per skill, as the ConfigMap volumes present them to the sidecar.
pub const SKILL_SOURCES: &str = "/etc/outrigger/skills";
/// Folder of the materialised skills, writable in the sidecar, read-only in the agent container.
pub const SKILLS_DIR: &str = "/skills";
/// Folder in the sidecar with one sub-folder per tool, each shared with that tool's container alone.
pub const TOOLS_DIR: &str = "/run/outrigger/tools";
/// Folder shared with the agent container alone: the local token and the local URLs.
pub const AGENT_DIR: &str = "/run/outrigger/agent";
/// File in [`AGENT_DIR`] with the local token, one line.
pub const TOKEN_FILE: &str = "token";
/// File in [`AGENT_DIR`] with the local URLs as JSON ([`LocalUrls`]).
pub const URLS_FILE: &str = "urls.json";
/// Name of the shim's socket in a tool's folder.
pub const SHIM_SOCKET: &str = "shim.sock";
/// Header that carries [`Drain::token`] on `/drain/{container}` of the admin port.
pub const DRAIN_HEADER: &str = "Outrigger-Drain";

/// File in the sidecar with the token of its ServiceAccount, for [`IDENTITY_AUDIENCE`]; the kubelet renews it.
pub const IDENTITY_FILE: &str = "/etc/outrigger/identity/token";
/// Audience of that token: it proves who a sidecar is to another one and to the operator, and opens nothing else.
pub const IDENTITY_AUDIENCE: &str = "outrigger.dev";

/// Contents of [`URLS_FILE`]: what the agent container may call on this pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalUrls {
    /// Streamable HTTP endpoint of each MCP server, by name.
    pub mcp: std::collections::BTreeMap<String, String>,
    /// Base URL of whole tasks: append `/{taskId}`.
    pub tasks: String,
    /// Base URL of events of turns that answered 202: append `/{turnId}/events`.
    pub turns: String,
    /// Base URL of other agents: append `/{name}` or `/{name}.{namespace}`.
    pub agents: String,
}

/// A document that is refused, with the reason its author should read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Not JSON, or not of this shape.
    #[error("configuration does not parse: {0}")]
    Malformed(String),
    /// A version this sidecar does not know.
    #[error("configuration version {0} is not supported, want {CONFIG_VERSION}")]
    UnsupportedVersion(u32),
    /// A value that makes no sense.
    #[error("configuration is invalid at {path}: {message}")]
    Invalid {
        /// Dotted path of the value.
        path: String,
        /// What is wrong with it.
        message: String,
    },
}

fn invalid(path: &str, message: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { path: path.into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn boot() -> Value {
        json!({"version": 1, "agent": {"name": "a", "namespace": "n"}, "runtime": {"http": {"port": 8000, "path": "/"}},
               "containers": ["agent"], "drain": {"token": "0123456789abcdef", "graceSeconds": 150}})
    }

    #[test]
    fn boot_round_trips() {
        let b = Boot::parse(boot().to_string().as_bytes()).unwrap();
        assert_eq!(b.runtime, Runtime::Http { port: 8000, path: "/".into(), ready_path: None });
        assert_eq!(Boot::parse(&serde_json::to_vec(&b).unwrap()).unwrap(), b);
    }

    #[test]
    fn boot_refuses_unknown_fields_versions_and_twins() {
        let mut v = boot();
        v["sockets"] = json!([]);
        assert!(
            matches!(Boot::parse(v.to_string().as_bytes()), Err(ConfigError::Malformed(m)) if m.contains("sockets"))
        );
        let mut v = boot();
        v["version"] = json!(2);
        assert_eq!(Boot::parse(v.to_string().as_bytes()), Err(ConfigError::UnsupportedVersion(2)));
        let mut v = boot();
        let s = json!({"name": "t", "reach": {"stdio": {"container": "tool-t", "socket": "/s"}}, "required": true, "process": {}});
        v["servers"] = json!([s, s]);
        assert!(
            matches!(Boot::parse(v.to_string().as_bytes()), Err(ConfigError::Invalid { path, .. }) if path == "servers[1].name")
        );
    }

    #[test]
    fn live_names_the_bad_value() {
        let card = json!({"name": "a", "description": "d", "version": "1", "supportedInterfaces": [], "skills": []});
        let ok = json!({"version": 1, "card": card});
        assert_eq!(Live::parse(ok.to_string().as_bytes()).unwrap().limits, Limits::default());
        let bad = json!({"version": 1, "card": card, "limits": {"maxRequestBytes": 0}});
        assert!(
            matches!(Live::parse(bad.to_string().as_bytes()), Err(ConfigError::Invalid { path, .. }) if path == "limits.maxRequestBytes")
        );
        let bad = json!({"version": 1, "card": {"name": "a"}});
        assert!(
            matches!(Live::parse(bad.to_string().as_bytes()), Err(ConfigError::Invalid { path, .. }) if path == "card.description")
        );
    }
}
