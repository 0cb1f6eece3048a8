//! What is served at one moment.

use outrigger_protocol::config::{Live, Skill, Visibility};
use outrigger_protocol::mcp::filter::passes_all;
use outrigger_protocol::skill::SKILL_FILE;

use crate::percent;
use crate::skills::Metrics;
use crate::skills::held::{Held, Item, Unreadable};

/// What is known of a tool server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The Agent has no such server.
    NoServer,
    /// It has not told its tools.
    Unknown,
    /// Its tools.
    Tools(Vec<String>),
}

/// The tools that the agent has.
pub trait Tools: Send + Sync {
    /// What is known of a server.
    fn find(&self, server: &str) -> Found;
}

/// One skill.
pub struct Shown {
    /// The skill and its files.
    pub held: Held,
    /// What it cannot work without and is not there; a sentence each.
    pub unmet: Vec<String>,
    /// URI of its folder.
    pub root: String,
}

/// See the module.
pub struct View {
    /// Skills by name.
    pub skills: Vec<Shown>,
    /// Bytes that the catalogue may have.
    pub budget: usize,
}

/// Whether a skill is served over MCP at all.
pub fn served(held: &Held) -> bool {
    held.skill.delivery.mcp() && !held.tree.text("name").is_empty() && !held.tree.text("description").is_empty()
}

impl View {
    /// Of the skills in place, under the rules of a document.
    pub fn new(held: &[Held], live: &Live, namespace: &str, tools: Option<&dyn Tools>) -> Self {
        let mut skills: Vec<Shown> = held
            .iter()
            .filter(|h| served(h))
            .map(|h| Shown { unmet: unmet(&h.skill, held, live, tools), root: root(h, namespace), held: h.clone() })
            .collect();
        skills.sort_by(|a, b| a.name().cmp(b.name()));
        let budget = usize::try_from(live.disclosure.catalogue_tokens).unwrap_or(usize::MAX).saturating_mul(4);
        Self { skills, budget }
    }

    /// A skill by its name.
    pub fn get(&self, name: &str) -> Option<&Shown> {
        self.skills.iter().find(|s| s.name() == name)
    }

    /// Skills that the model may start to use, by name.
    pub fn usable(&self) -> impl Iterator<Item = &Shown> {
        self.skills.iter().filter(|s| s.unmet.is_empty() && s.held.skill.visibility == Visibility::Auto)
    }

    /// Skills that the user may start to use, by name.
    pub fn startable(&self) -> impl Iterator<Item = &Shown> {
        self.skills.iter().filter(|s| s.unmet.is_empty() && s.held.skill.visibility != Visibility::Hidden)
    }

    /// The skill whose `SKILL.md` has this URI.
    pub fn by_uri(&self, uri: &str) -> Option<&Shown> {
        self.skills.iter().find(|s| s.uri(SKILL_FILE) == uri)
    }

    /// The file with this URI.
    pub fn file(&self, uri: &str) -> Option<(&Shown, &Item)> {
        let skill = self.skills.iter().find(|s| uri.strip_prefix(&s.root).is_some_and(|rest| rest.starts_with('/')))?;
        skill.held.tree.items.iter().find(|i| skill.uri(&i.path) == uri).map(|item| (skill, item))
    }
}

impl Shown {
    /// Name of the Skill.
    pub fn name(&self) -> &str {
        &self.held.skill.name
    }

    /// Content of one of its files, with the level of disclosure that it is; what is not given out is counted.
    pub fn read(&self, item: &Item, metrics: &Metrics) -> Result<(Vec<u8>, &'static str), Unreadable> {
        let content = item.read().inspect_err(|why| {
            metrics.verify_failures.with_label_values(&[self.name(), why.label()]).inc();
        })?;
        Ok((content, if item.path == SKILL_FILE { "body" } else { "file" }))
    }

    /// URI of one of its files.
    pub fn uri(&self, path: &str) -> String {
        format!("{}/{}", self.root, escape(path))
    }
}

/// URI of the folder: its last segment is the name that the skill gives itself.
fn root(held: &Held, namespace: &str) -> String {
    let (name, own) = (held.skill.name.as_str(), held.tree.text("name"));
    if name == own {
        format!("skill://{namespace}/{name}")
    } else {
        format!("skill://{namespace}/{name}/{}", escape(own))
    }
}

/// A path in a URI (RFC 3986, section 3.3).
fn escape(path: &str) -> String {
    percent::encoded(path, |byte| percent::unreserved(byte) || b"!$&'()*+,;=:@/".contains(&byte))
}

fn unmet(skill: &Skill, held: &[Held], live: &Live, tools: Option<&dyn Tools>) -> Vec<String> {
    let mut unmet = Vec::new();
    for (server, wanted) in &skill.requires.tools {
        let policy = live.mcp.servers.get(server);
        let found = tools.map_or(Found::Unknown, |t| t.find(server));
        if found == Found::NoServer {
            unmet.push(format!("the agent has no MCP server {server}"));
            continue;
        }
        for tool in wanted {
            let there = !matches!(&found, Found::Tools(tools) if !tools.contains(tool));
            if !there || policy.is_some_and(|p| !passes_all(&p.filters, tool)) {
                unmet.push(format!("the tool {tool} of {server} is not there for this agent"));
            }
        }
    }
    for (name, range) in &skill.requires.skills {
        match held.iter().find(|h| h.skill.name == *name) {
            None => unmet.push(format!("the agent has no skill {name}")),
            Some(other) if !within(&other.skill.version, range) => {
                unmet.push(format!("the skill {name} has version {}, not {range}", other.skill.version));
            }
            Some(_) => {}
        }
    }
    unmet.extend(skill.requires.missing_env.iter().map(|v| format!("the agent's container has no variable {v}")));
    unmet
}

/// Whether a version is in a range: conditions such as `>=1.2`, separated by commas or spaces; all must hold. A condition
/// that is none never holds.
fn within(version: &str, range: &str) -> bool {
    let parts = |text: &str| -> Option<[u64; 3]> {
        let core = text.trim().trim_start_matches('v').split(['-', '+']).next()?;
        let mut numbers = [0; 3];
        for (i, part) in core.split('.').enumerate() {
            *numbers.get_mut(i)? = part.parse().ok()?;
        }
        Some(numbers)
    };
    let holds = |condition: &str| {
        let operator: String = condition.chars().take_while(|c| "<>=^~".contains(*c)).collect();
        let (Some(have), Some(want)) = (parts(version), parts(&condition[operator.len()..])) else { return false };
        match operator.as_str() {
            ">=" => have >= want,
            ">" => have > want,
            "<=" => have <= want,
            "<" => have < want,
            "" | "=" => have == want,
            "^" if want[0] == 0 => have >= want && have[..2] == want[..2],
            "^" => have >= want && have[0] == want[0],
            "~" => have >= want && have[..2] == want[..2],
            _ => false,
        }
    };
    range.split([',', ' ']).filter(|c| !c.is_empty()).all(holds)
}

#[cfg(test)]
mod tests {
    use outrigger_protocol::config::{Filter, Requires, ToolPolicy};

    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (version, range) in [
            ("1.10.0", ">=1.9"),
            ("1.2.3", ""),
            ("1.2.3", ">=1.0, <2"),
            ("1.2.3", "^1.1"),
            ("0.2.3", "^0.2.1"),
            ("1.2.3", "~1.2"),
            ("1.2.3", "1.2.3"),
        ] {
            assert!(within(version, range), "{version} {range}");
        }
        for (version, range) in
            [("1.2.3", ">=1.3"), ("2.0.0", "^1.1"), ("0.3.0", "^0.2"), ("1", ">1"), ("", ">=1"), ("1", "x")]
        {
            assert!(!within(version, range), "{version} {range}");
        }
    }

    struct Pool;

    impl Tools for Pool {
        fn find(&self, server: &str) -> Found {
            match server {
                "till" => Found::Tools(vec!["open".into(), "close".into()]),
                "slow" => Found::Unknown,
                _ => Found::NoServer,
            }
        }
    }

    #[test]
    fn a_tool_is_missing_when_that_is_known() {
        let mut live = Live::new(serde_json::Value::Null);
        let policy = ToolPolicy {
            filters: vec![Filter { deny: vec!["close".into()], ..Filter::default() }],
            ..ToolPolicy::default()
        };
        live.mcp.servers.insert("till".into(), policy);
        let of = |server: &str, tool: &str, tools: Option<&dyn Tools>| {
            let requires =
                Requires { tools: [(server.to_owned(), vec![tool.to_owned()])].into(), ..Requires::default() };
            unmet(&Skill { requires, ..Skill::default() }, &[], &live, tools)
        };
        assert_eq!(of("till", "open", Some(&Pool)), [""; 0]);
        assert_eq!(of("slow", "open", Some(&Pool)), [""; 0], "a server that starts has not lost its tools");
        assert_eq!(of("none", "open", None), [""; 0]);
        assert_eq!(of("till", "burn", Some(&Pool)), ["the tool burn of till is not there for this agent"]);
        assert_eq!(of("till", "close", Some(&Pool)), ["the tool close of till is not there for this agent"]);
        assert_eq!(of("none", "open", Some(&Pool)), ["the agent has no MCP server none"]);
    }

    #[test]
    fn paths_stay_readable_in_uris() {
        assert_eq!(escape("a b/ü#?.md"), "a%20b/%C3%BC%23%3F.md");
    }
}
