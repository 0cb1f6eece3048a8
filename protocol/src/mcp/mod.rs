//! Model Context Protocol: revisions of both eras, which of them a request speaks, the edits that a proxy makes to
//! messages, and the control channel between the sidecar and the shim of a tool container.
//!
//! *Legacy* are the revisions up to 2025-11-25, which begin with `initialize`; *modern* is 2026-07-28, where each
//! request carries all it needs in its `_meta`.

pub mod annotation;
pub mod bridge;
pub mod capability;
pub mod cursor;
pub mod edit;
pub mod era;
pub mod filter;
pub mod handshake;
pub mod header;
pub mod input;
pub mod listen;
pub mod listing;
pub mod meta;
pub mod names;
pub mod object;
pub mod pin;
pub mod salvage;
pub mod shim;
pub mod trace;
pub mod union;
pub mod uri;

/// Revisions whose connections begin with `initialize`, newest first.
pub const HANDSHAKE_REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Revisions whose requests carry their revision and the client's capabilities, newest first.
pub const MODERN_REVISIONS: [&str; 1] = ["2026-07-28"];
/// What a request without `MCP-Protocol-Version` speaks if its session does not say (2025-11-25, transports).
pub const ASSUMED_REVISION: &str = "2025-03-26";
/// Names the session; given by the answer of `initialize`, required from then on.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// Names the revision that a request speaks.
pub const REVISION_HEADER: &str = "mcp-protocol-version";

/// Names the method of a modern message.
pub const METHOD_HEADER: &str = "mcp-method";
/// Names what a modern request is about: a tool, a prompt, a resource or a task.
pub const NAME_HEADER: &str = "mcp-name";
/// Begins the name of a header that repeats an argument of a tool (`x-mcp-header` in the tool's schema).
pub const PARAM_HEADER_PREFIX: &str = "mcp-param-";

/// Header and body of a modern request disagree.
pub const HEADER_MISMATCH: i32 = -32020;
/// A modern request would need a capability that the client did not declare for it.
pub const MISSING_CAPABILITY: i32 = -32021;
/// The revision that a request names is not served.
pub const UNSUPPORTED_REVISION: i32 = -32022;
/// Legacy: there is no such resource.
pub const RESOURCE_NOT_FOUND: i32 = -32002;
/// Legacy: a URL must be visited first.
pub const URL_ELICITATION_REQUIRED: i32 = -32042;

/// All revisions: stateless ones first, then the others, newest first.
pub fn revisions() -> Vec<&'static str> {
    MODERN_REVISIONS.into_iter().chain(HANDSHAKE_REVISIONS).collect()
}

/// The revision of a session whose client asked for this one: that, or the newest.
pub fn negotiated(requested: Option<&str>) -> &'static str {
    HANDSHAKE_REVISIONS.into_iter().find(|r| Some(*r) == requested).unwrap_or(HANDSHAKE_REVISIONS[0])
}

/// Whether a revision is stateless.
pub fn is_modern_revision(revision: &str) -> bool {
    MODERN_REVISIONS.contains(&revision)
}

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
