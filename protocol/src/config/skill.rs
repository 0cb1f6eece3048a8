//! Skills of an Agent as its sidecars deliver and disclose them, and where they are fetched from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ConfigError, invalid};

/// Most skills of one Agent.
pub const MAX_AGENT_SKILLS: usize = 512;

/// One skill, at the revision that is current for the Agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Skill {
    /// Name of the Skill; also its folder under [`SKILLS_DIR`](super::SKILLS_DIR).
    pub name: String,
    /// Name of its `SkillRevision`, such as `pdf-forms-7`.
    pub revision: String,
    /// ConfigMaps that hold the bundle: `{revision}-0` and on.
    pub slices: u32,
    /// [`tree_digest`](crate::skill::tree_digest) of its files, 64 hex digits.
    pub digest: String,
    /// Version of its content, such as `1.3.0`.
    pub version: String,
    /// Size of its files together.
    pub bytes: u64,
    /// Whether the pod starts only when its files are there.
    #[serde(default)]
    pub required: bool,
    /// How the agent gets it.
    #[serde(default)]
    pub delivery: Delivery,
    /// Place in the catalogue: a higher one comes first.
    #[serde(default)]
    pub priority: u8,
    /// Who may start to use it.
    #[serde(default)]
    pub visibility: Visibility,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Names of skills that go with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub related: Vec<String>,
    /// What it is good for, as hints for a search; never a reason to load it unasked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    /// JSON Schema (2020-12, type `object`) of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// What it cannot work without.
    #[serde(default, skip_serializing_if = "Requires::is_empty")]
    pub requires: Requires,
    /// What is done with its scripts.
    #[serde(default)]
    pub execution: Execution,
    /// Whether the agent may propose changes to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evolves: bool,
}

/// How the agent gets a skill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// As files and over MCP.
    #[default]
    Both,
    /// As files alone.
    Files,
    /// Over MCP alone.
    #[serde(rename = "MCP")]
    Mcp,
}

impl Delivery {
    /// Whether there are files.
    pub fn files(self) -> bool {
        self != Self::Mcp
    }

    /// Whether it is served over MCP.
    pub fn mcp(self) -> bool {
        self != Self::Files
    }
}

/// Who may start to use a skill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Visibility {
    /// The model and the user.
    #[default]
    Auto,
    /// The user alone: it is a prompt and not in the catalogue.
    UserOnly,
    /// Nobody: it serves other skills that name it.
    Hidden,
}

/// What is done with the scripts of a skill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Execution {
    /// They are not offered.
    #[default]
    None,
    /// The agent's own container runs them.
    AgentContainer,
}

/// What a skill is good for; each member that is there adds to its rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Trigger {
    /// Words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keywords: Vec<String>,
    /// Patterns of paths, such as `**/*.pdf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// What a skill cannot work without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Requires {
    /// Tools by the name of their MCPServer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, Vec<String>>,
    /// Other skills: name, and range of versions such as `>=1.0` (empty is any).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub skills: BTreeMap<String, String>,
    /// Variables of the agent's container that its template does not set: known when the document is written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_env: Vec<String>,
}

impl Requires {
    /// Whether it needs nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How skills are disclosed to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Disclosure {
    /// Tokens that the catalogue may cost, at four bytes each.
    pub catalogue_tokens: u32,
    /// Whether the agent may propose skills that there are not yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub new_skills: bool,
}

impl Disclosure {
    /// Whether nothing was said of it.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Disclosure {
    fn default() -> Self {
        Self { catalogue_tokens: 2_000, new_skills: false }
    }
}

/// Where the operator is asked for newer documents and for the bytes of skills ([`control`](crate::control)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlane {
    /// Base URL, such as `https://outrigger-operator.outrigger-system.svc.cluster.local:8443`.
    pub url: String,
    /// Certificates (PEM) of the authorities to trust: more than one while they change.
    pub ca: String,
}

pub(super) fn check(skills: &[Skill]) -> Result<(), ConfigError> {
    if skills.len() > MAX_AGENT_SKILLS {
        return Err(invalid("skills", format!("has {} entries, at most {MAX_AGENT_SKILLS}", skills.len())));
    }
    let mut names = std::collections::BTreeSet::new();
    for (i, skill) in skills.iter().enumerate() {
        if !names.insert(&skill.name) {
            return Err(invalid(&format!("skills[{i}].name"), format!("{} stands twice", skill.name)));
        }
        // The name becomes a folder, the digest another one.
        if skill.name.is_empty() || skill.name.starts_with('.') || skill.name.contains(['/', '\0']) {
            return Err(invalid(&format!("skills[{i}].name"), "is no name of a folder"));
        }
        if skill.digest.len() != 64 || !skill.digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(invalid(&format!("skills[{i}].digest"), "is not 64 hex digits"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str) -> Skill {
        Skill { name: name.into(), digest: "0".repeat(64), ..Skill::default() }
    }

    #[test]
    fn names_and_digests_that_are_no_folders_are_refused() {
        assert_eq!(check(&[skill("pdf-forms"), skill("docx")]), Ok(()));
        for name in ["", "..", ".rev", "a/b"] {
            assert!(check(&[skill(name)]).is_err(), "{name}");
        }
        assert!(check(&[skill("a"), skill("a")]).is_err());
        let short = Skill { digest: "../..".into(), ..skill("a") };
        assert!(check(&[short]).is_err());
    }

    #[test]
    fn what_is_not_said_is_not_written() {
        let text = serde_json::to_value(skill("a")).unwrap();
        assert!(text.get("requires").is_none() && text.get("evolves").is_none());
        assert_eq!(serde_json::from_value::<Skill>(text).unwrap(), skill("a"));
    }
}
