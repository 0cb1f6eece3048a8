//! Objects that differ in the names of members only: tables of them, and what walks the tables.

use std::fmt;

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::{Quirks, part};
use crate::a2a::errors::{Error, Kind as ErrorKind};
use crate::a2a::raw::{self, Kind, Members, elements, push_key, push_text, text_of};
use crate::a2a::state::State;

/// Which way a text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From 0.3 to 1.0.
    In,
    /// From 1.0 to 0.3.
    Out,
}

/// Which form of 0.3, and which way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Whether 0.3 is `ProtoJSON`.
    pub proto: bool,
    pub way: Way,
    pub quirks: Quirks,
    /// Whether the stream is closed after the event.
    pub last: bool,
}

/// What cannot be translated, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad {
    path: String,
    what: String,
}

impl Bad {
    pub fn new(what: impl Into<String>) -> Self {
        Self { path: String::new(), what: what.into() }
    }

    /// The same, one member or element further down.
    pub fn under(mut self, name: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{name}{dot}{}", self.path);
        self
    }

    pub fn into_params(self) -> Error {
        let path = if self.path.is_empty() { "params".into() } else { self.path };
        Error::invalid_field(path, self.what)
    }

    pub fn into_answer(self) -> Error {
        Error::new(ErrorKind::InvalidAgentResponse, format!("the agent's answer is no A2A 0.3: {self}"))
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.what) } else { write!(f, "{} {}", self.path, self.what) }
    }
}

/// What becomes of a member's value.
pub(super) enum Rule {
    /// The member is not in the other version.
    Drop,
    Object(&'static Node),
    List(&'static Node),
    Parts,
    State,
    Role,
    Time,
}

/// A member under its three names.
pub(super) struct Field {
    pub v10: &'static str,
    pub v03: &'static str,
    pub proto: &'static str,
    /// Its name in the proto where that is not the JSON name; readers of `ProtoJSON` take both.
    pub alias: &'static str,
    pub rule: Rule,
}

/// An object.
pub(super) struct Node {
    /// Its `kind` in the JSON-RPC of 0.3.
    pub kind: &'static str,
    pub fields: &'static [Field],
    /// Members of 0.3 and 1.0 under the same name, for their `snake_case` spelling.
    pub same: &'static [&'static str],
    /// Whether it has `final` in 0.3.
    pub has_final: bool,
}

const fn field(name: &'static str, rule: Rule) -> Field {
    Field { v10: name, v03: name, proto: name, alias: name, rule }
}

const KIND: Field = field("kind", Rule::Drop);
const FINAL: Field = field("final", Rule::Drop);

pub(super) const MESSAGE: Node = Node {
    kind: "message",
    fields: &[
        KIND,
        field("role", Rule::Role),
        Field { v10: "parts", v03: "parts", proto: "content", alias: "parts", rule: Rule::Parts },
    ],
    same: &["messageId", "contextId", "taskId", "referenceTaskIds"],
    has_final: false,
};

const STATUS: Node = Node {
    kind: "",
    fields: &[
        field("state", Rule::State),
        Field { v10: "message", v03: "message", proto: "message", alias: "update", rule: Rule::Object(&MESSAGE) },
        field("timestamp", Rule::Time),
    ],
    same: &[],
    has_final: false,
};

pub(super) const ARTIFACT: Node =
    Node { kind: "", fields: &[field("parts", Rule::Parts)], same: &["artifactId"], has_final: false };

pub(super) const TASK: Node = Node {
    kind: "task",
    fields: &[
        KIND,
        field("status", Rule::Object(&STATUS)),
        field("history", Rule::List(&MESSAGE)),
        field("artifacts", Rule::List(&ARTIFACT)),
    ],
    same: &["contextId"],
    has_final: false,
};

pub(super) const STATUS_UPDATE: Node = Node {
    kind: "status-update",
    fields: &[KIND, FINAL, field("status", Rule::Object(&STATUS))],
    same: &["taskId", "contextId"],
    has_final: true,
};

pub(super) const ARTIFACT_UPDATE: Node = Node {
    kind: "artifact-update",
    fields: &[KIND, field("artifact", Rule::Object(&ARTIFACT))],
    same: &["taskId", "contextId", "lastChunk"],
    has_final: false,
};

impl Field {
    fn from(&self, form: Form) -> &'static str {
        match form.way {
            Way::Out => self.v10,
            Way::In if form.proto => self.proto,
            Way::In => self.v03,
        }
    }

    fn to(&self, form: Form) -> &'static str {
        match form.way {
            Way::In => self.v10,
            Way::Out if form.proto => self.proto,
            Way::Out => self.v03,
        }
    }

    fn is(&self, key: &str) -> bool {
        [self.v10, self.v03, self.proto, self.alias].contains(&key)
    }
}

/// Splits an object, its members in the usual spelling.
pub(super) fn split<'a>(value: &'a RawValue, names: &[&'static str]) -> Result<Members<'a>, Bad> {
    Members::split(value.get()).and_then(|mut m| m.camel(names).map(|_| m)).map_err(|e| Bad::new(e.to_string()))
}

/// Appends an object in the other version.
pub(super) fn object(value: &RawValue, node: &Node, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, node.same)?;
    out.push('{');
    if form.way == Way::Out && !form.proto && !node.kind.is_empty() {
        push_key(out, "kind");
        push_text(out, node.kind);
    }
    for (key, value) in members.iter() {
        // A name of another version is taken only where the right one is missing: nothing may stand twice.
        let field = node.fields.iter().find(|f| f.from(form) == key).or_else(|| {
            let other = node.fields.iter().find(|f| f.is(key))?;
            (form.way == Way::In && members.get(other.from(form)).is_none()).then_some(other)
        });
        let field = match field {
            Some(field) => field,
            None if node.fields.iter().any(|f| f.is(key)) => continue,
            None => {
                push_key(out, key);
                out.push_str(value.get());
                continue;
            }
        };
        if matches!(field.rule, Rule::Drop) {
            continue;
        }
        let before = out.len();
        push_key(out, field.to(form));
        let written = apply(&field.rule, value, form, out).map_err(|b| b.under(field.from(form)))?;
        if !written {
            out.truncate(before);
        }
    }
    if form.way == Way::Out && node.has_final {
        let last = form.last || members.set("status").is_some_and(|s| ends(s, form));
        out.push_str(if last { ",\"final\":true" } else { ",\"final\":false" });
    }
    out.push('}');
    Ok(())
}

/// Whether a status of 1.0 ends its task.
fn ends(status: &RawValue, form: Form) -> bool {
    let Ok(members) = split(status, STATUS.same) else { return false };
    members.set("state").and_then(|s| state_of(s, form).ok()?).is_some_and(State::is_terminal)
}

fn apply(rule: &Rule, value: &RawValue, form: Form, out: &mut String) -> Result<bool, Bad> {
    if raw::kind(value.get()) == Kind::Null && !matches!(rule, Rule::State | Rule::Role) {
        out.push_str("null");
        return Ok(true);
    }
    match rule {
        Rule::Drop => return Ok(false),
        Rule::Object(node) => object(value, node, form, out)?,
        Rule::List(node) => list(value, form, out, |v, form, out| object(v, node, form, out))?,
        Rule::Parts => list(value, form, out, part::part)?,
        Rule::State => push_text(out, state_name(state_of(value, form)?, form)),
        Rule::Role => push_text(out, role(value, form)?),
        Rule::Time => match form.way {
            Way::Out => out.push_str(value.get()),
            // 1.0 knows no other offset; what is no time at all is worth nothing to a reader.
            Way::In => match text_of(value).and_then(|t| t.parse::<Timestamp>().ok().map(|at| (t, at))) {
                Some((text, _)) if text.ends_with('Z') => out.push_str(value.get()),
                Some((_, at)) => push_text(out, &at.to_string()),
                None => return Ok(false),
            },
        },
    }
    Ok(true)
}

/// Appends a list, element by element.
pub(super) fn list(
    value: &RawValue,
    form: Form,
    out: &mut String,
    each: impl Fn(&RawValue, Form, &mut String) -> Result<(), Bad>,
) -> Result<(), Bad> {
    out.push('[');
    for (i, element) in elements(value.get()).map_err(|e| Bad::new(e.to_string()))?.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(element, form, out).map_err(|b| b.under(&format!("[{i}]")))?;
    }
    out.push(']');
    Ok(())
}

/// Reads a state in any spelling; `None` is the one of no meaning.
fn state_of(value: &RawValue, form: Form) -> Result<Option<State>, Bad> {
    let unknown = || {
        Bad::new(if form.way == Way::In && !form.proto {
            "must be one of submitted, working, input-required, completed, canceled, failed, rejected, auth-required, unknown"
        } else {
            "must be a TASK_STATE_ name"
        })
    };
    match raw::kind(value.get()) {
        Kind::Null => Ok(None),
        Kind::Number => value.get().parse().ok().and_then(State::numbered).ok_or_else(unknown),
        _ => {
            let name = text_of(value).ok_or_else(unknown)?;
            if matches!(&*name, "unknown" | "TASK_STATE_UNSPECIFIED" | "") {
                return Ok(None);
            }
            State::lenient(&name).map(Some).ok_or_else(unknown)
        }
    }
}

fn state_name(state: Option<State>, form: Form) -> &'static str {
    match (state, form.way, form.proto) {
        (None, Way::Out, false) => "unknown",
        (None, ..) => "TASK_STATE_UNSPECIFIED",
        (Some(state), Way::Out, false) => state.short(),
        (Some(State::Canceled), Way::Out, true) => "TASK_STATE_CANCELLED",
        (Some(state), ..) => state.wire(),
    }
}

fn role(value: &RawValue, form: Form) -> Result<&'static str, Bad> {
    let user = match value.get() {
        "\"user\"" | "\"ROLE_USER\"" | "1" => true,
        "\"agent\"" | "\"ROLE_AGENT\"" | "2" => false,
        _ if form.way == Way::In && !form.proto => return Err(Bad::new("must be \"user\" or \"agent\"")),
        _ => return Err(Bad::new("must be \"ROLE_USER\" or \"ROLE_AGENT\"")),
    };
    Ok(match (user, form.way == Way::Out && !form.proto) {
        (true, true) => "user",
        (false, true) => "agent",
        (true, false) => "ROLE_USER",
        (false, false) => "ROLE_AGENT",
    })
}
