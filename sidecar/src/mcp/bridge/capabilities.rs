//! What a client declares, as far as it decides whether it can share a process.

use std::borrow::Cow;

use outrigger_protocol::jsonrpc::Slice;
use outrigger_protocol::mcp::capability::Client;
use outrigger_protocol::mcp::object::{Edits, Object};

/// Capabilities by which a server may ask its client something; nothing in such a question tells clients apart.
const QUESTIONS: [&str; 3] = ["sampling", "elicitation", "roots"];
/// Declares which questions may be tasks; of no use without questions.
const TASKS: &str = "tasks";

/// The capabilities of a client.
pub struct Declared<'a> {
    raw: &'a str,
    object: Option<Object<'a>>,
}

impl<'a> Declared<'a> {
    /// Reads them; what is no object declares nothing.
    pub fn read(raw: &'a str) -> Self {
        Self { raw, object: Object::read(Slice { raw, at: 0 }) }
    }

    /// Whether a server may ask this client something.
    pub fn answers_questions(&self) -> bool {
        !Client::read(self.raw).asks_nothing()
    }

    /// The same without those by which a server may ask something.
    pub fn without_questions(&self) -> Cow<'a, str> {
        let Some(object) = &self.object else { return Cow::Borrowed("{}") };
        let asks = |key: &str| QUESTIONS.contains(&key) || key == TASKS;
        if !object.members().iter().any(|m| asks(&m.key)) {
            return Cow::Borrowed(self.raw);
        }
        let mut edits = Edits::default();
        edits.members(object, asks, "");
        String::from_utf8(edits.apply(self.raw)).map_or(Cow::Borrowed("{}"), |s| Cow::Owned(s.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_decide() {
        for (raw, asks, without) in [
            ("{}", false, "{}"),
            (r#"{"roots":{"listChanged":true}}"#, true, "{}"),
            (r#"{"experimental":{"x":{}}}"#, false, r#"{"experimental":{"x":{}}}"#),
            (r#"{"sampling":{},"extensions":{"a":1},"tasks":{}}"#, true, r#"{"extensions":{"a":1}}"#),
            (r#"{"elicitation":null}"#, false, "{}"),
            (r#"{"tasks":{}}"#, false, "{}"),
            ("[]", false, "{}"),
        ] {
            let declared = Declared::read(raw);
            assert_eq!(declared.answers_questions(), asks, "{raw}");
            assert_eq!(declared.without_questions(), without, "{raw}");
        }
    }
}
