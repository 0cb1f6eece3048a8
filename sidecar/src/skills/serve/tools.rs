//! Skills as tools and prompts, for agents that do not know the extension.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outrigger_protocol::config::{Execution, SKILLS_DIR, Visibility};
use outrigger_protocol::skill::SKILL_FILE;
use serde_json::{Map, Value, json};

use super::resources::{media_type, page, with_next};
use super::view::{Shown, View};
use crate::skills::Metrics;

/// Most skills of one page of `skills_list`.
const LISTED: usize = 50;
/// Most files that `skill_load` names.
const NAMED_FILES: usize = 50;
/// Bytes of one page of `skill_read`.
const READ_BYTES: usize = 16 << 10;
/// Prompts of skills begin with this.
const PROMPT: &str = "skill/";

/// What was loaded in a conversation: digests by name.
pub type Loaded = BTreeMap<String, String>;

/// `tools/list`.
pub fn list(view: &View) -> Value {
    let names: Vec<&str> = view.usable().map(Shown::name).collect();
    if names.is_empty() {
        return json!({"tools": []});
    }
    let readable: Vec<&str> = view.skills.iter().map(Shown::name).collect();
    let read_only = json!({"readOnlyHint": true, "openWorldHint": false});
    json!({"tools": [
        {"name": "skills_list", "title": "List skills", "annotations": read_only,
         "description": "Lists skills by name, with what each is for. Narrow it with words to look for or with tags.",
         "inputSchema": {"type": "object", "additionalProperties": false, "properties": {
            "query": {"type": "string", "description": "Words that name, description, tags or triggers should have"},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags that a skill must have, all of them"},
            "cursor": {"type": "string", "description": "The cursor that the page before ended with"}}}},
        {"name": "skill_load", "title": "Load a skill", "annotations": read_only,
         "description": "Gives the instructions of a skill. Load it before you begin a task that it is for.",
         "inputSchema": {"type": "object", "additionalProperties": false, "required": ["name"], "properties": {
            "name": {"type": "string", "enum": names},
            "arguments": {"type": "object", "description": "Values of the skill's parameters, if it has any"},
            "force": {"type": "boolean", "description": "Give the instructions again although they were given before"}}}},
        {"name": "skill_read", "title": "Read a file of a skill", "annotations": read_only,
         "description": "Gives a file of a skill, in pages of 16 KiB at most.",
         "inputSchema": {"type": "object", "additionalProperties": false, "required": ["name", "path"], "properties": {
            "name": {"type": "string", "enum": readable},
            "path": {"type": "string", "description": "Path from the skill's folder"},
            "offset": {"type": "integer", "minimum": 0, "description": "Byte to begin at"},
            "limit": {"type": "integer", "minimum": 1, "maximum": READ_BYTES}}}}]})
}

/// `tools/call`; `None` for a tool that there is not.
pub fn call(view: &View, loaded: &mut Loaded, params: &Value, metrics: &Metrics) -> Option<Value> {
    let empty = Map::new();
    let arguments = params.get("arguments").and_then(Value::as_object).unwrap_or(&empty);
    let result = match params.get("name").and_then(Value::as_str)? {
        "skills_list" => Ok(found(view, arguments)),
        "skill_load" => load(view, loaded, arguments, metrics),
        "skill_read" => read(view, arguments, metrics),
        _ => return None,
    };
    Some(match result {
        Ok(content) => content,
        Err(message) => json!({"content": [{"type": "text", "text": message}], "isError": true}),
    })
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn found(view: &View, arguments: &Map<String, Value>) -> Value {
    let words: Vec<String> = arguments
        .get("query")
        .and_then(Value::as_str)
        .map(|q| q.split_whitespace().map(str::to_lowercase).collect())
        .unwrap_or_default();
    let tags: Vec<&str> =
        arguments.get("tags").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let listed = view.skills.iter().filter(|s| s.held.skill.visibility == Visibility::Auto);
    let mut hits: Vec<(usize, &Shown)> = listed
        .filter(|s| tags.iter().all(|t| s.held.skill.tags.iter().any(|have| have == t)))
        .filter_map(|s| Some((rank(s, &words)?, s)))
        .collect();
    // Without words all rank the same: by name.
    hits.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.name().cmp(y.name())));
    let cursor = arguments.get("cursor").and_then(Value::as_str);
    let from = cursor.and_then(|c| c.parse::<usize>().ok()).unwrap_or_default();
    let mut out = String::new();
    for (_, skill) in hits.iter().skip(from).take(LISTED) {
        let _ = write!(out, "- {}: {}", skill.name(), skill.held.tree.description());
        if !skill.unmet.is_empty() {
            let _ = write!(out, " (cannot be used: {})", skill.unmet.join("; "));
        }
        out.push('\n');
    }
    if hits.is_empty() {
        out.push_str("No skill matches.\n");
    }
    if hits.len() > from.saturating_add(LISTED) {
        let _ = writeln!(out, "{} more: cursor \"{}\".", hits.len() - from - LISTED, from + LISTED);
    }
    text(&out)
}

/// How well a skill fits: for each word, the best place that has it. `None` when a word is nowhere.
fn rank(skill: &Shown, words: &[String]) -> Option<usize> {
    let has = |text: &str, word: &str| text.to_lowercase().contains(word);
    let (name, description) = (skill.name(), skill.held.tree.description());
    let of = &skill.held.skill;
    let keywords = || of.triggers.iter().flat_map(|t| &t.keywords);
    words
        .iter()
        .map(|word| {
            if has(name, word) {
                Some(4)
            } else if of.tags.iter().any(|t| has(t, word)) || keywords().any(|k| has(k, word)) {
                Some(3)
            } else if has(&description, word) {
                Some(1)
            } else {
                None
            }
        })
        .sum()
}

fn load(view: &View, loaded: &mut Loaded, arguments: &Map<String, Value>, metrics: &Metrics) -> Result<Value, String> {
    let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
    let skill = view
        .get(name)
        .filter(|s| s.held.skill.visibility != Visibility::UserOnly)
        .ok_or_else(|| format!("there is no skill {name:?} to load: skills_list says which there are"))?;
    let given = arguments.get("arguments").and_then(Value::as_object);
    let body = given_out(skill, given, metrics)?;
    let digest = &skill.held.tree.digest;
    let force = arguments.get("force").and_then(Value::as_bool).unwrap_or_default();
    if !force && loaded.get(name) == Some(digest) && given.is_none() {
        metrics.loads.with_label_values(&[name, "already"]).inc();
        return Ok(text(&format!(
            "Already loaded in this session: {name}, digest {digest}. If its text is not in your context any more, load it with force."
        )));
    }
    loaded.insert(name.to_owned(), digest.clone());
    metrics.loads.with_label_values(&[name, "loaded"]).inc();
    metrics.disclosed(name, "body", "tools", body.len());
    Ok(text(&body))
}

/// The [`instructions`]; a refusal is counted.
fn given_out(skill: &Shown, arguments: Option<&Map<String, Value>>, metrics: &Metrics) -> Result<String, String> {
    instructions(skill, arguments).inspect_err(|_| metrics.loads.with_label_values(&[skill.name(), "refused"]).inc())
}

/// The instructions of a skill with what belongs to them.
fn instructions(skill: &Shown, arguments: Option<&Map<String, Value>>) -> Result<String, String> {
    let (of, tree) = (&skill.held.skill, &skill.held.tree);
    if !skill.unmet.is_empty() {
        return Err(format!("the skill {} cannot be used: {}", of.name, skill.unmet.join("; ")));
    }
    required(of.parameters.as_ref(), arguments)?;
    let mut out = format!("Skill {} of {}, revision {}, digest {}.\n", of.name, skill.root, of.revision, tree.digest);
    if tree.on_disk {
        let _ = writeln!(out, "Its files are in {SKILLS_DIR}/{}; paths in it are from there.", of.name);
    } else {
        out.push_str("Its files are given by skill_read; paths in it are from its folder.\n");
    }
    let hidden = tree.items.iter().filter(|i| !offered(skill, &i.path)).count();
    let files: Vec<&str> =
        tree.items.iter().map(|i| i.path.as_str()).filter(|p| *p != SKILL_FILE && offered(skill, p)).collect();
    if !files.is_empty() {
        let shown = files.len().min(NAMED_FILES);
        let _ = write!(out, "Files: {}", files[..shown].join(", "));
        let more = files.len() - shown;
        if more > 0 {
            let _ = write!(out, ", and {more} more");
        }
        out.push_str(".\n");
    }
    if hidden > 0 {
        let _ = writeln!(out, "Its {hidden} scripts are not offered, as nothing here runs them: do not retype them.");
    }
    if !of.related.is_empty() {
        let _ = writeln!(out, "Related skills: {}.", of.related.join(", "));
    }
    if let Some(arguments) = arguments.filter(|a| !a.is_empty()) {
        let _ = writeln!(out, "Arguments: {}", Value::Object(arguments.clone()));
    }
    out.push('\n');
    out.push_str(tree.body.trim_start());
    Ok(out)
}

/// Names of the parameters that a skill cannot do without.
fn needed(schema: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = schema.and_then(|s| s.get("required")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Whether the parameters that a skill cannot do without are given.
fn required(schema: Option<&Value>, arguments: Option<&Map<String, Value>>) -> Result<(), String> {
    let missing: Vec<&str> = needed(schema).filter(|name| arguments.is_none_or(|a| !a.contains_key(*name))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let schema = schema.map(ToString::to_string).unwrap_or_default();
    Err(format!("arguments is missing {}; the skill's parameters are {schema}", missing.join(", ")))
}

/// Whether a file is offered to the model: scripts are not where nothing runs them.
fn offered(skill: &Shown, path: &str) -> bool {
    skill.held.skill.execution == Execution::AgentContainer || !path.starts_with("scripts/")
}

fn read(view: &View, arguments: &Map<String, Value>, metrics: &Metrics) -> Result<Value, String> {
    let member = |key| arguments.get(key).and_then(Value::as_str).unwrap_or_default();
    let (name, path) = (member("name"), member("path"));
    let skill = view.get(name).ok_or_else(|| format!("there is no skill {name:?}"))?;
    if !offered(skill, path) {
        return Err(format!("{path} is a script, which this agent is not to run"));
    }
    let item = skill.held.tree.item(path).ok_or_else(|| format!("the skill {name} has no file {path:?}"))?;
    let (content, level) = skill.read(item, metrics).map_err(|why| format!("{path}: {why}"))?;
    let Ok(content) = String::from_utf8(content) else {
        return Ok(json!({"content": [{"type": "resource_link", "uri": skill.uri(path), "name": path,
                         "mimeType": media_type(path), "size": item.size}]}));
    };
    let number = |key| arguments.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let from = content.floor_char_boundary(number("offset").unwrap_or_default());
    let limit = number("limit").unwrap_or(READ_BYTES).clamp(1, READ_BYTES);
    let mut to = content.floor_char_boundary(from.saturating_add(limit));
    if to == from {
        to = content.ceil_char_boundary(from + 1);
    }
    let part = &content[from..to];
    metrics.disclosed(name, level, "tools", part.len());
    let mut parts = vec![json!({"type": "text", "text": part})];
    if to < content.len() {
        let note = format!("Bytes {from} to {to} of {}: go on with offset {to}.", content.len());
        parts.push(json!({"type": "text", "text": note}));
    }
    Ok(json!({"content": parts}))
}

/// `prompts/list`.
pub fn prompts(view: &View, cursor: Option<&str>) -> Value {
    let (page, next) = page(view.startable(), cursor, |s| s.name().to_owned(), super::PAGE);
    let prompts: Vec<Value> = page
        .into_iter()
        .map(|s| {
            let parameters = s.held.skill.parameters.as_ref();
            let properties = parameters.and_then(|p| p.get("properties")).and_then(Value::as_object);
            let arguments: Vec<Value> = properties
                .into_iter()
                .flatten()
                .map(|(name, schema)| {
                    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
                    json!({"name": name, "description": description, "required": needed(parameters).any(|n| n == name)})
                })
                .collect();
            json!({"name": format!("{PROMPT}{}", s.name()), "description": s.held.tree.description(),
                   "arguments": arguments})
        })
        .collect();
    with_next(json!({"prompts": prompts}), next)
}

/// `prompts/get`: the error is a sentence.
pub fn prompt(view: &View, params: &Value, metrics: &Metrics) -> Result<Value, String> {
    let asked = params.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = asked.strip_prefix(PROMPT).unwrap_or_default();
    let skill = view.startable().find(|s| s.name() == name).ok_or_else(|| format!("there is no prompt {asked:?}"))?;
    let given = params.get("arguments").and_then(Value::as_object);
    let body = given_out(skill, given, metrics)?;
    metrics.loads.with_label_values(&[name, "loaded"]).inc();
    metrics.disclosed(name, "body", "prompts", body.len());
    Ok(json!({"description": skill.held.tree.description(),
              "messages": [{"role": "user", "content": {"type": "text", "text": body}}]}))
}
