//! What a server said last of its tools, so that a call of a tool that was pinned can be judged.

use std::collections::{BTreeMap, HashMap};

use outrigger_protocol::jsonrpc::{Slice, member};
use outrigger_protocol::mcp::annotation::{self, Param};
use outrigger_protocol::mcp::pin::{self, Pinned};
use parking_lot::Mutex;

/// Definitions of one server that are kept.
pub const MAX_DEFINITIONS: usize = 4096;

/// What a server said of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// SHA-256 of the definition in the form of RFC 8785, hex; `None` when it has no such form.
    pub digest: Option<String>,
    /// The arguments that stateless clients repeat in headers; none when its schema names them in a way that clients
    /// must not follow.
    pub params: Vec<Param>,
}

impl Definition {
    /// Of a raw definition.
    pub fn of(name: &str, raw: &str) -> Self {
        let schema = member(Slice { raw, at: 0 }, "inputSchema");
        let params = schema.and_then(|s| annotation::params(s.raw).ok()).unwrap_or_default();
        Self { name: name.into(), digest: pin::digest(raw).ok(), params }
    }

    /// How it stands to the pins of its server.
    pub fn standing(&self, pins: &BTreeMap<String, String>) -> Pinned {
        pin::compare_digest(pins, &self.name, || self.digest.clone())
    }
}

/// See the module.
#[derive(Default)]
pub struct Definitions {
    state: Mutex<State>,
    /// Held while the server is asked: one asks, the others wait for its answer.
    pub asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Definition>,
    /// Whether there are no others.
    fresh: bool,
}

/// What is known of one tool.
pub enum Known {
    /// This.
    As(Definition),
    /// That there is none.
    Absent,
    /// Nothing: the server has to be asked.
    Unknown,
}

impl Definitions {
    /// Keeps what the server said; `all`: there are no others.
    pub fn learn(&self, tools: &[Definition], all: bool) {
        let mut state = self.state.lock();
        if all {
            state.known.clear();
        }
        for tool in tools {
            if state.known.len() >= MAX_DEFINITIONS && !state.known.contains_key(&tool.name) {
                break;
            }
            state.known.insert(tool.name.clone(), tool.clone());
        }
        state.fresh |= all;
    }

    /// What is known may be wrong.
    pub fn stale(&self) {
        let mut state = self.state.lock();
        state.known.clear();
        state.fresh = false;
    }

    /// What is known of a tool.
    pub fn get(&self, name: &str) -> Known {
        let state = self.state.lock();
        match state.known.get(name) {
            Some(tool) => Known::As(tool.clone()),
            None if state.fresh => Known::Absent,
            None => Known::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_forgotten_when_the_server_says_so() {
        let tools = Definitions::default();
        assert!(matches!(tools.get("a"), Known::Unknown));
        let a = Definition::of("a", r#"{"name":"a"}"#);
        tools.learn(std::slice::from_ref(&a), false);
        assert!(matches!(tools.get("a"), Known::As(d) if d == a));
        assert!(matches!(tools.get("b"), Known::Unknown));
        tools.learn(&[Definition::of("b", r#"{"name":"b"}"#)], true);
        assert!(matches!(tools.get("a"), Known::Absent), "the whole list is the truth");
        tools.stale();
        assert!(matches!(tools.get("b"), Known::Unknown));
    }

    #[test]
    fn definitions_are_held_against_pins_as_lists_are() {
        let raw = r#"{"name":"a"}"#;
        let a = Definition::of("a", raw);
        let pins = BTreeMap::from([("a".to_owned(), a.digest.clone().unwrap().to_uppercase())]);
        assert_eq!(a.standing(&BTreeMap::new()), Pinned::Free);
        for (name, raw) in [("a", raw), ("a", r#"{"name":"a","x":1}"#), ("b", r#"{"name":"b"}"#)] {
            assert_eq!(Definition::of(name, raw).standing(&pins), pin::compare(&pins, name, raw));
        }
    }
}
