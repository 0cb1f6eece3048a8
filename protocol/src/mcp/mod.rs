//! Model Context Protocol: revisions, known methods, the edits that a proxy makes to messages, and the control channel
//! between the sidecar and the shim of a tool container.

pub mod edit;
pub mod salvage;
pub mod shim;

/// Revisions whose connections begin with `initialize`, newest first.
pub const HANDSHAKE_REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// What a request without `MCP-Protocol-Version` speaks if its session does not say (2025-11-25, transports).
pub const ASSUMED_REVISION: &str = "2025-03-26";
/// Names the session; given by the answer of `initialize`, required from then on.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// Names the revision that a request speaks.
pub const REVISION_HEADER: &str = "mcp-protocol-version";

/// Whether a revision begins with `initialize`.
pub fn is_handshake_revision(revision: &str) -> bool {
    HANDSHAKE_REVISIONS.contains(&revision)
}

/// A method as a metric label: itself when the protocol names it, else `other`.
pub fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 24] = [
        "tools/call",
        "tools/list",
        "initialize",
        "ping",
        "resources/read",
        "resources/list",
        "resources/templates/list",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/get",
        "prompts/list",
        "completion/complete",
        "logging/setLevel",
        "server/discover",
        "subscriptions/listen",
        "tasks/get",
        "tasks/result",
        "tasks/list",
        "tasks/cancel",
        "tasks/update",
        "skills/list",
        "skills/get",
        "resources/directory/read",
        "notifications/initialized",
    ];
    KNOWN.iter().find(|k| **k == method).copied().unwrap_or("other")
}
