//! One conversation: JSON-RPC in, JSON-RPC out, in either era.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Slice, plain_error};
use outrigger_protocol::mcp::listen::{Change, Listen, stamped};
use outrigger_protocol::mcp::meta::{PROTOCOL_VERSION, SERVER_INFO};
use outrigger_protocol::mcp::{RESOURCE_NOT_FOUND, negotiated, revisions};
use serde_json::{Value, json};

use super::Disclosure;
use super::catalogue::{LEVELS, catalogue};
use super::resources::{self, entry};
use super::tools::{self, Loaded};
use super::view::View;
use crate::mcp::builtin::Conversation;

/// How long what was read may be kept, in milliseconds: changes are told, but not to those who do not listen.
const TTL_MS: u64 = 30_000;
/// Resources that one session may watch.
const MAX_WATCHED: usize = 1024;
/// Subscriptions of one conversation.
const MAX_LISTENING: usize = 64;

/// See the module.
pub struct Talk {
    server: Option<Arc<Disclosure>>,
    loaded: Loaded,
    /// Whether there was a handshake.
    greeted: bool,
    watched: BTreeSet<String>,
    /// Subscriptions by the raw id of their request.
    listening: BTreeMap<String, Listen>,
    /// Digests that were told of, by URI of `SKILL.md`.
    digests: BTreeMap<String, String>,
}

/// An error of the protocol.
struct Refusal(i32, String);

type Answer = Result<Value, Refusal>;

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal(INVALID_PARAMS, message.into())
}

impl Talk {
    /// With the skills of a server.
    pub fn new(server: Option<Arc<Disclosure>>) -> Self {
        let digests = server.as_ref().map(|s| digests(&s.view())).unwrap_or_default();
        Self {
            server,
            loaded: Loaded::new(),
            greeted: false,
            watched: BTreeSet::new(),
            listening: BTreeMap::new(),
            digests,
        }
    }

    fn answer(&mut self, server: &Disclosure, method: &str, params: &Value, modern: bool) -> Answer {
        let view = server.view();
        let cursor = params.get("cursor").and_then(Value::as_str);
        let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
        match method {
            "initialize" => {
                self.greeted = true;
                let mut hello = hello(server, &view);
                hello["protocolVersion"] = negotiated(params.get("protocolVersion").and_then(Value::as_str)).into();
                hello["serverInfo"] = info();
                Ok(hello)
            }
            "server/discover" => {
                let mut hello = hello(server, &view);
                hello["supportedVersions"] = revisions().into();
                Ok(hello)
            }
            "ping" => Ok(json!({})),
            "skills/list" => Ok(resources::skills(&view, cursor)),
            "skills/get" => {
                let skill = view.by_uri(uri).ok_or_else(|| invalid(format!("no skill is served at {uri}")))?;
                Ok(json!({"skill": entry(skill)}))
            }
            "resources/list" => Ok(resources::list(&view, cursor)),
            "resources/templates/list" => Ok(json!({"resourceTemplates": []})),
            "resources/read" => {
                let code = if modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
                let missing = || Refusal(code, format!("no resource is served at {uri}"));
                resources::read(&view, uri, server.metrics())
                    .ok_or_else(missing)?
                    .map_err(|why| Refusal(INTERNAL_ERROR, why))
            }
            "resources/directory/read" => resources::directory(&view, uri, cursor)
                .ok_or_else(|| invalid(format!("{uri} is not a directory resource"))),
            "resources/subscribe" if !modern => {
                if view.file(uri).is_none() {
                    return Err(Refusal(RESOURCE_NOT_FOUND, format!("no resource is served at {uri}")));
                }
                if self.watched.len() >= MAX_WATCHED {
                    return Err(invalid(format!("a session may watch {MAX_WATCHED} resources")));
                }
                self.watched.insert(uri.into());
                Ok(json!({}))
            }
            "resources/unsubscribe" if !modern => {
                self.watched.remove(uri);
                Ok(json!({}))
            }
            "tools/list" => Ok(tools::list(&view)),
            "tools/call" => tools::call(&view, &mut self.loaded, params, server.metrics())
                .ok_or_else(|| invalid("there is no such tool: skills_list, skill_load and skill_read are there")),
            "prompts/list" => Ok(tools::prompts(&view, cursor)),
            "prompts/get" => tools::prompt(&view, params, server.metrics()).map_err(invalid),
            _ => Err(Refusal(METHOD_NOT_FOUND, format!("there is no method {method}"))),
        }
    }

    /// The first message of a subscription, or why there is none.
    fn listen(&mut self, id: &str, params: Option<Slice<'_>>) -> String {
        match Listen::read(params) {
            Ok(_) if self.listening.len() >= MAX_LISTENING => error(id, INVALID_PARAMS, "too many subscriptions"),
            Ok(wanted) => {
                let said = String::from_utf8(wanted.acknowledged(id)).unwrap_or_default();
                self.listening.insert(id.into(), wanted);
                said
            }
            Err(why) => error(id, INVALID_PARAMS, &why.to_string()),
        }
    }
}

impl Conversation for Talk {
    fn hear(&mut self, line: &[u8]) -> Vec<String> {
        let Ok(text) = std::str::from_utf8(line) else { return Vec::new() };
        let Ok(envelope) = Envelope::parse(text, usize::MAX) else { return Vec::new() };
        let params: Value = envelope.params.and_then(|p| serde_json::from_str(p.raw).ok()).unwrap_or_else(|| json!({}));
        let Some(id) = envelope.id.map(|i| i.raw) else {
            if envelope.method == "notifications/cancelled" {
                let id = params.get("requestId").map(ToString::to_string).unwrap_or_default();
                self.listening.remove(&id);
            }
            return Vec::new();
        };
        // An answer, although nothing was asked.
        if envelope.method.is_empty() {
            return Vec::new();
        }
        if envelope.method == "subscriptions/listen" {
            return vec![self.listen(id, envelope.params)];
        }
        let modern = params.get("_meta").is_some_and(|m| m.get(PROTOCOL_VERSION).is_some());
        let Some(server) = self.server.clone() else {
            return vec![error(id, INTERNAL_ERROR, "the pod is being stopped")];
        };
        vec![match self.answer(&server, &envelope.method, &params, modern) {
            Ok(mut result) => {
                if modern || envelope.method == "server/discover" {
                    stamp(&envelope.method, &mut result);
                } else if envelope.method.starts_with("skills/") {
                    caching(&mut result);
                }
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
            }
            Err(Refusal(code, message)) => error(id, code, &message),
        }]
    }

    fn news(&mut self) -> Vec<String> {
        let Some(server) = self.server.clone() else { return Vec::new() };
        let digests = digests(&server.view());
        let all: BTreeSet<&String> = self.digests.keys().chain(digests.keys()).collect();
        let changed: Vec<&str> =
            all.into_iter().filter(|uri| self.digests.get(*uri) != digests.get(*uri)).map(String::as_str).collect();
        let plain = |method: &str| json!({"jsonrpc": "2.0", "method": method}).to_string();
        let mut news: Vec<String> = ["tools", "prompts", "resources"]
            .iter()
            .map(|of| plain(&format!("notifications/{of}/list_changed")))
            .collect();
        // All files of a skill change with its revision, as far as anybody can tell.
        let below = |watched: &str, skill: &str| {
            skill
                .strip_suffix("SKILL.md")
                .is_some_and(|root| watched.starts_with(root) || root.starts_with(&format!("{watched}/")))
        };
        let wanted = self.watched.iter().chain(self.listening.values().flat_map(|l| &l.uris));
        let updated: BTreeSet<&String> = wanted.filter(|w| changed.iter().any(|c| below(w, c))).collect();
        news.extend(updated.into_iter().map(|uri| {
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}).to_string()
        }));
        let mut said = Vec::new();
        for line in &news {
            let Ok(envelope) = Envelope::parse(line, usize::MAX) else { continue };
            let Some(change) = Change::of(&envelope) else { continue };
            for (id, listen) in &self.listening {
                if listen.wants(&change) {
                    said.push(String::from_utf8(stamped(&envelope, id)).unwrap_or_default());
                }
            }
        }
        self.digests = digests;
        if self.greeted {
            said.extend(news);
        }
        said
    }
}

/// Digests by URI of `SKILL.md`.
fn digests(view: &View) -> BTreeMap<String, String> {
    view.skills.iter().map(|s| (s.uri(outrigger_protocol::skill::SKILL_FILE), s.held.tree.digest.clone())).collect()
}

fn info() -> Value {
    json!({"name": "outrigger-skills", "version": env!("CARGO_PKG_VERSION")})
}

/// What the server says of itself, with the catalogue.
fn hello(server: &Disclosure, view: &View) -> Value {
    let catalogue = catalogue(view);
    let metrics = server.metrics();
    metrics.catalogue_tokens.set(i64::try_from(catalogue.text.len().div_ceil(4)).unwrap_or(i64::MAX));
    for (level, count) in LEVELS.iter().zip(catalogue.counts) {
        metrics.catalogue_entries.with_label_values(&[level]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let mut hello = json!({"capabilities": {
        "tools": {"listChanged": true}, "prompts": {"listChanged": true},
        "resources": {"listChanged": true, "subscribe": true},
        "extensions": {"io.modelcontextprotocol/skills": {"directoryRead": true}}}});
    if !catalogue.text.is_empty() {
        hello["instructions"] = catalogue.text.into();
    }
    hello
}

fn caching(result: &mut Value) {
    result["ttlMs"] = TTL_MS.into();
    // Which skills an agent has is nobody else's business.
    result["cacheScope"] = "private".into();
}

/// What each result of the stateless revision has.
fn stamp(method: &str, result: &mut Value) {
    result["resultType"] = "complete".into();
    result["_meta"] = json!({SERVER_INFO: info()});
    if !matches!(method, "tools/call" | "prompts/get") {
        caching(result);
    }
}

fn error(id: &str, code: i32, message: &str) -> String {
    String::from_utf8(plain_error(Some(id), code, message)).unwrap_or_default()
}
