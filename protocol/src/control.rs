//! The control API: what sidecars ask of the operator, over HTTPS.
//!
//! A sidecar proves itself with the token of its ServiceAccount ([`IDENTITY_FILE`](crate::config::IDENTITY_FILE)) in
//! `Authorization: Bearer`, and is told about its own Agent or MCPServer alone. Every replica of the operator serves it.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /v1/live` | The live document (`live.json`) as its author, the operator, wrote it; `ETag` is its SHA-256 in hex; 304 for `If-None-Match` |
//! | `GET /v1/watch` | Server-sent events, whose `id` is the `ETag` above: `live` with the document at once (unless `Last-Event-ID` is its id) and after each change, a comment every [`HEARTBEAT`] |
//! | `GET /v1/bundles/{digest}` | Bytes of a [bundle](crate::skill) whose tree digest the live document names |
//! | `POST /v1/proposals` | Makes a `SkillProposal` of the body ([`Proposal`]); 201 with [`Proposed`] |
//!
//! Errors are [`Refusal`] with 401 (who are you), 403 (not yours), 404, 409, 413, 422, 429 or 503 (both with `Retry-After`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Port of the control API.
pub const PORT: u16 = 8443;
/// The live document.
pub const LIVE: &str = "/v1/live";
/// Changes of the live document.
pub const WATCH: &str = "/v1/watch";
/// Bundles of skills: append `/{digest}`.
pub const BUNDLES: &str = "/v1/bundles";
/// Proposals of changes to skills.
pub const PROPOSALS: &str = "/v1/proposals";
/// Event with a live document.
pub const LIVE_EVENT: &str = "live";
/// Between two comments of a quiet stream.
pub const HEARTBEAT: Duration = Duration::from_secs(10);
/// A stream that is silent for this long is broken.
pub const SILENCE: Duration = Duration::from_secs(30);
/// Largest body of a proposal.
pub const MAX_PROPOSAL_BYTES: usize = 512 << 10;

/// A change to a skill, as an agent proposes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proposal {
    /// Name of the Skill, or of the one that is to be.
    pub skill: String,
    /// Tree digest of what the author read; empty for a new skill.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_digest: String,
    /// Why, at most 4 KiB.
    pub rationale: String,
    /// Tasks that show the need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// Texts to replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// Files to add or to replace whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<NewFile>,
    /// Paths to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// A proposal that this one answers after a review asked for changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revises: Option<String>,
    /// Context of the task that the agent is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
}

/// One text to replace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edit {
    /// Path from the skill's folder.
    pub path: String,
    /// Text that stands in the file exactly once.
    pub old: String,
    /// What takes its place.
    pub new: String,
}

/// One file to add or to replace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewFile {
    /// Path from the skill's folder.
    pub path: String,
    /// Text of the file.
    pub content: String,
    /// Whether it may be run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// What became of a proposal at its intake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposed {
    /// Name of the `SkillProposal`.
    pub name: String,
}

/// Why a request is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// One word in CamelCase.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}
