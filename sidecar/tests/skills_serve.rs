//! Skills over MCP, through the sidecar's own front: both eras, the extension, tools, prompts, what it all costs.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, clippy::cast_precision_loss)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use outrigger_protocol::config::{
    self, AgentRef, Boot, Delivery, Execution, Live, LocalUrls, Requires, Runtime, Skill, Trigger, Visibility,
};
use outrigger_protocol::digest::sha256;
use outrigger_sidecar::context::Context;
use outrigger_sidecar::drain::Drain;
use outrigger_sidecar::mcp::Servers;
use outrigger_sidecar::mcp::builtin::BuiltIn;
use outrigger_sidecar::mcp::timing::Timing;
use outrigger_sidecar::skills::serve::{self, Disclosure};
use outrigger_sidecar::skills::{File, Metrics, Skills, Source, digest_of};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const PATIENCE: Duration = Duration::from_secs(30);

/// Revisions by digest.
#[derive(Default)]
struct Shop(Mutex<BTreeMap<String, Vec<File>>>);

impl Source for Shop {
    fn files<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Vec<File>, String>> {
        let files = self.0.lock().get(digest).cloned().ok_or_else(|| "no such revision".to_owned());
        Box::pin(async { files })
    }
}

struct Bed {
    dir: tempfile::TempDir,
    shop: Arc<Shop>,
    live: watch::Sender<Arc<Live>>,
    skills: Arc<Skills>,
    router: axum::Router,
    context: Context,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
    }
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("skills")).unwrap();
        let boot = Boot {
            version: 1,
            agent: AgentRef { name: "a".into(), namespace: "shops".into() },
            runtime: Runtime::Http { port: 1, path: "/".into(), ready_path: None },
            containers: vec!["agent".into()],
            servers: Vec::new(),
            skills: Vec::new(),
            store: config::Store::default(),
            drain: config::Drain { token: "0123456789abcdef".into(), grace_seconds: 60 },
        };
        let (live, rx) = watch::channel(Arc::new(Live::new(json!({}))));
        let context = Context {
            boot: Arc::new(boot),
            live: rx.clone(),
            urls: Arc::new(LocalUrls::default()),
            token: "t".into(),
            drain: Drain::new(&["agent".to_owned()], Duration::from_secs(60)),
            registry: prometheus::Registry::new(),
            shutdown: CancellationToken::new(),
        };
        let shop = Arc::new(Shop::default());
        let metrics = Metrics::register(&context.registry).unwrap();
        let source: Arc<dyn Source> = Arc::clone(&shop) as _;
        let target = dir.path().join("skills");
        let skills = Skills::start(&dir.path().join("none"), &target, Vec::new(), rx.clone(), Some(source), metrics);
        let disclosure = Disclosure::new(&skills, rx, "shops");
        let built_in: Arc<dyn BuiltIn> = Arc::clone(&disclosure) as _;
        let servers = Servers::start_beside(&context, &Timing::default(), &[(serve::NAME, built_in)]);
        let tools: Arc<dyn serve::Tools> = Arc::clone(&servers) as _;
        disclosure.know(Arc::downgrade(&tools));
        Self { dir, shop, live, skills, router: servers.router(), context }
    }

    /// Puts a revision in the shop; the skill as the document names it.
    fn skill(&self, name: &str, description: &str, body: &str, more: &[(&str, &[u8])]) -> Skill {
        let text = format!("---\nname: {name}\ndescription: {description}\nmetadata:\n  team: shops\n---\n{body}");
        let mut files = vec![file("SKILL.md", text.as_bytes())];
        files.extend(more.iter().map(|(path, content)| file(path, content)));
        let digest = digest_of(&files);
        self.shop.0.lock().insert(digest.clone(), files);
        let revision = format!("{name}-1");
        Skill { name: name.into(), revision, digest, version: "1.0.0".into(), ..Skill::default() }
    }

    async fn give(&self, skills: Vec<Skill>) {
        self.live.send_replace(Arc::new(Live { skills, ..Live::new(json!({})) }));
        self.skills.fetch().await;
        assert!(self.skills.status().iter().all(|s| s.part.ready), "{:?}", self.skills.status());
    }

    async fn post(&self, session: Option<&str>, body: Value) -> Response<Body> {
        let mut request = Request::post("/mcp/skills")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25");
        }
        self.router.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap()
    }

    /// A session, and what the server said of itself.
    async fn open(&self) -> (String, Value) {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let response = self.post(None, body).await;
        assert_eq!(response.status(), StatusCode::OK);
        let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = last(response).await;
        self.post(Some(&session), json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        (session, answer["result"].clone())
    }

    async fn ask(&self, session: &str, method: &str, params: Value) -> Value {
        last(self.post(Some(session), json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})).await)
            .await
    }

    /// The texts of a tool's answer.
    async fn call(&self, session: &str, tool: &str, arguments: Value) -> (bool, String) {
        let answer = self.ask(session, "tools/call", json!({"name": tool, "arguments": arguments})).await;
        let content = answer["result"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let text = content.iter().filter_map(|c| c["text"].as_str()).collect();
        (answer["result"]["isError"] != true, text)
    }

    /// A request of the stateless revision.
    async fn modern(&self, method: &str, mut params: Value) -> (StatusCode, Response<Body>) {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                                 "io.modelcontextprotocol/clientCapabilities": {}});
        let mut request = Request::post("/mcp/skills")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method);
        if let Some(name) = params.get("name").or(params.get("uri")).and_then(Value::as_str) {
            request = request.header("mcp-name", name);
        }
        let body = json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params}).to_string();
        let response = self.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        (response.status(), response)
    }

    async fn modern_result(&self, method: &str, params: Value) -> Value {
        last(self.modern(method, params).await.1).await
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let families = self.context.registry.gather();
        let Some(family) = families.iter().find(|f| f.name() == name) else { return 0.0 };
        let fits = |m: &&prometheus::proto::Metric| {
            labels.iter().all(|(k, v)| m.get_label().iter().any(|l| l.name() == *k && l.value() == *v))
        };
        family.get_metric().iter().filter(fits).map(|m| m.get_counter().get_value() + m.get_gauge().get_value()).sum()
    }
}

fn file(path: &str, content: &[u8]) -> File {
    File { path: path.into(), executable: false, sha256: sha256(content), content: content.to_vec() }
}

/// The last message of a response, whether it is JSON or a stream.
async fn last(response: Response<Body>) -> Value {
    let bytes = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let line = text.lines().rev().find_map(|l| l.strip_prefix("data: ").or(l.strip_prefix("data:")));
    serde_json::from_str(line.unwrap_or(&text)).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The next message of a stream.
async fn next(stream: &mut axum::body::BodyDataStream, buffer: &mut String) -> Value {
    let read = async {
        loop {
            while let Some(end) = buffer.find('\n') {
                let line: String = buffer.drain(..=end).collect();
                if let Some(data) = line.trim().strip_prefix("data:")
                    && let Ok(message) = serde_json::from_str(data)
                {
                    return message;
                }
            }
            let chunk = stream.next().await.expect("the stream goes on").unwrap();
            buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

#[tokio::test]
async fn without_a_skill_there_is_no_endpoint() {
    let bed = Bed::new();
    assert_eq!(bed.post(None, json!({})).await.status(), StatusCode::NOT_FOUND);
    let only_files = Skill { delivery: Delivery::Files, ..bed.skill("menu", "Knows the menu", "Read it.", &[]) };
    bed.give(vec![only_files]).await;
    assert_eq!(bed.post(None, json!({})).await.status(), StatusCode::NOT_FOUND);
    bed.give(vec![bed.skill("menu", "Knows the menu", "Read it.", &[])]).await;
    assert_ne!(bed.post(None, json!({})).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_extension_lists_and_gives_whole_entries() {
    let bed = Bed::new();
    let files: &[(&str, &[u8])] =
        &[("references/a b.md", b"# A"), ("references/deep/c.md", b"# C"), ("logo.png", b"\x89PNG\xff")];
    bed.give(vec![bed.skill("menu", "Knows the menu", "Read it.", files)]).await;
    let root = "skill://shops/menu";
    let discovered = bed.modern_result("server/discover", json!({})).await;
    let said = &discovered["result"];
    assert_eq!(said["capabilities"]["extensions"]["io.modelcontextprotocol/skills"], json!({"directoryRead": true}));
    assert!(said["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")));
    let listed = bed.modern_result("skills/list", json!({})).await["result"].clone();
    assert_eq!((&listed["resultType"], &listed["cacheScope"]), (&json!("complete"), &json!("private")));
    assert!(listed["ttlMs"].as_u64().is_some());
    let entry = &listed["skills"][0];
    let front = json!({"name": "menu", "description": "Knows the menu", "metadata": {"team": "shops"}});
    assert_eq!((&entry["frontmatter"], entry["uri"].as_str()), (&front, Some("skill://shops/menu/SKILL.md")));
    assert_eq!(entry["_meta"]["outrigger.dev/revision"], "menu-1");
    let resources = entry["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 4);
    for resource in resources {
        let uri = resource["uri"].as_str().unwrap();
        let answer = bed.modern_result("resources/read", json!({"uri": uri})).await;
        let content = &answer["result"]["contents"][0];
        let bytes = match content["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => base64::Engine::decode(
                &base64::engine::general_purpose::STANDARD,
                content["blob"].as_str().unwrap_or_else(|| panic!("{answer}")),
            )
            .unwrap(),
        };
        assert_eq!(resource["digest"], format!("sha256:{}", sha256(&bytes)), "{uri}");
        assert_eq!(resource["size"], bytes.len(), "{uri}");
    }
    let got = bed.modern_result("skills/get", json!({"uri": format!("{root}/SKILL.md")})).await;
    assert_eq!(&got["result"]["skill"], entry);
    for (method, uri) in [
        ("skills/get", "skill://shops/other/SKILL.md"),
        ("skills/get", "skill://shops/menu"),
        ("resources/read", "skill://shops/menu/none.md"),
        ("resources/directory/read", "skill://shops/menu/SKILL.md"),
        ("resources/directory/read", "skill://shops/menu/references/"),
        ("resources/directory/read", "skill://shops"),
    ] {
        let answer = bed.modern_result(method, json!({"uri": uri})).await;
        assert_eq!(answer["error"]["code"], -32602, "{method} {uri}: {answer}");
    }
    let children = async |uri: &str| -> Vec<(String, String)> {
        let answer = bed.modern_result("resources/directory/read", json!({"uri": uri})).await;
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        answer["result"]["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| (text(&r["uri"]), text(&r["mimeType"])))
            .collect()
    };
    let expected = [("SKILL.md", "text/markdown"), ("logo.png", "image/png"), ("references", "inode/directory")];
    let expected: Vec<_> = expected.iter().map(|(p, m)| (format!("{root}/{p}"), (*m).to_owned())).collect();
    assert_eq!(children(root).await, expected);
    let below = children(&format!("{root}/references")).await;
    assert_eq!(
        below,
        [
            (format!("{root}/references/a%20b.md"), "text/markdown".to_owned()),
            (format!("{root}/references/deep"), "inode/directory".to_owned())
        ]
    );
    // The same for a client that has a handshake.
    let (session, _) = bed.open().await;
    assert_eq!(bed.ask(&session, "skills/list", json!({})).await["result"]["skills"][0], *entry);
    assert_eq!(bed.ask(&session, "resources/read", json!({"uri": "x:y"})).await["error"]["code"], -32002);
}

#[tokio::test]
async fn many_skills_cost_their_catalogue_and_one_costs_its_body() {
    let bed = Bed::new();
    let long = "Explains in great detail how this part of the shop works. ".repeat(8);
    let skills = (0..344)
        .map(|i| bed.skill(&format!("skill-{i:03}"), long.trim(), &format!("Body {i}. {}", "x".repeat(3000)), &[]));
    let mut skills: Vec<Skill> = skills.collect();
    skills[343].priority = 9;
    bed.give(skills).await;
    let (session, hello) = bed.open().await;
    let instructions = hello["instructions"].as_str().unwrap();
    let budget = 8000;
    assert!(instructions.len() <= budget && instructions.len() > budget / 2, "{} bytes", instructions.len());
    assert!(instructions.lines().nth(1).unwrap().starts_with("- skill-343"), "the highest priority is first");
    let states: f64 = ["full", "short", "name", "omitted"]
        .iter()
        .map(|s| bed.metric("outrigger_skill_catalogue_entries", &[("state", s)]))
        .sum();
    assert!((states - 344.0).abs() < 0.5);
    assert!(bed.metric("outrigger_skill_catalogue_tokens", &[]) <= 2000.0);
    let (ok, text) = bed.call(&session, "skill_load", json!({"name": "skill-007"})).await;
    let body = format!("Body 7. {}", "x".repeat(3000));
    assert!(ok && text.ends_with(&body));
    assert!(text.len() < body.len() + 400, "{} bytes for {}", text.len(), body.len());
    let labels = [("skill", "skill-007"), ("level", "body"), ("surface", "tools")];
    assert!((bed.metric("outrigger_skill_disclosed_bytes_total", &labels) - text.len() as f64).abs() < 0.5);
    assert!(bed.metric("outrigger_skill_disclosed_bytes_total", &[]) < 4000.0, "nothing else was given");
    // All of them, page by page, none twice.
    let mut names = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..4 {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = bed.ask(&session, "skills/list", params).await["result"].clone();
        let skills = page["skills"].as_array().unwrap();
        assert!(skills.len() <= 100);
        names.extend(skills.iter().map(|s| s["frontmatter"]["name"].as_str().unwrap().to_owned()));
        cursor = page["nextCursor"].clone();
    }
    assert!(cursor.is_null());
    let expected: Vec<String> = (0..344).map(|i| format!("skill-{i:03}")).collect();
    assert_eq!(names, expected);
}

#[tokio::test]
async fn tools_say_once_what_a_skill_says() {
    let bed = Bed::new();
    let guide = "ä".repeat(10_000);
    let files: &[(&str, &[u8])] =
        &[("guide.md", guide.as_bytes()), ("scripts/run.sh", b"#!/bin/sh"), ("a.bin", b"\xff\xfe")];
    let menu = Skill {
        tags: vec!["food".into()],
        related: vec!["wine".into()],
        ..bed.skill("menu", "Knows dishes", "Be kind.", files)
    };
    let triggers = vec![Trigger { keywords: vec!["tasting".into()], ..Trigger::default() }];
    let wine = Skill { triggers, ..bed.skill("wine", "Knows bottles", "Pour.", &[]) };
    bed.give(vec![menu.clone(), wine.clone()]).await;
    let (session, _) = bed.open().await;
    let tools = bed.ask(&session, "tools/list", json!({})).await["result"]["tools"].clone();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["skills_list", "skill_load", "skill_read"]);
    assert_eq!(tools[1]["inputSchema"]["properties"]["name"]["enum"], json!(["menu", "wine"]));
    assert_eq!(bed.call(&session, "skills_list", json!({"query": "bottles"})).await.1, "- wine: Knows bottles\n");
    assert_eq!(bed.call(&session, "skills_list", json!({"tags": ["food"]})).await.1, "- menu: Knows dishes\n");
    assert_eq!(bed.call(&session, "skills_list", json!({"query": "Tasting"})).await.1, "- wine: Knows bottles\n");
    assert_eq!(bed.call(&session, "skills_list", json!({"query": "cars"})).await.1, "No skill matches.\n");
    let (ok, text) = bed.call(&session, "skill_load", json!({"name": "menu"})).await;
    assert!(ok && text.ends_with("Be kind.") && !text.contains("description:"), "{text}");
    assert!(text.contains("skill://shops/menu, revision menu-1") && text.contains(&menu.digest));
    assert!(
        text.contains("Files: a.bin, guide.md.") && text.contains("1 scripts are not offered") && text.contains("wine")
    );
    let (_, again) = bed.call(&session, "skill_load", json!({"name": "menu"})).await;
    assert!(again.starts_with("Already loaded") && again.contains(&menu.digest));
    assert!(bed.call(&session, "skill_load", json!({"name": "menu", "force": true})).await.1.ends_with("Be kind."));
    let (other, _) = bed.open().await;
    assert!(bed.call(&other, "skill_load", json!({"name": "menu"})).await.1.ends_with("Be kind."), "per session");
    // Pages end between characters, and together are the file.
    let mut read = String::new();
    while read.len() < guide.len() {
        let arguments = json!({"name": "menu", "path": "guide.md", "offset": read.len()});
        let answer = bed.ask(&session, "tools/call", json!({"name": "skill_read", "arguments": arguments})).await;
        let part = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(!part.is_empty() && part.len() <= 16 << 10);
        read.push_str(part);
    }
    assert_eq!(read, guide);
    let link = bed
        .ask(&session, "tools/call", json!({"name": "skill_read", "arguments": {"name": "menu", "path": "a.bin"}}))
        .await;
    assert_eq!(link["result"]["content"][0]["type"], "resource_link");
    for (name, path) in [("menu", "none"), ("menu", "../x"), ("none", "SKILL.md"), ("menu", "scripts/run.sh")] {
        assert!(!bed.call(&session, "skill_read", json!({"name": name, "path": path})).await.0, "{name} {path}");
    }
    // With somebody to run them, scripts are offered.
    bed.give(vec![Skill { execution: Execution::AgentContainer, ..menu }, wine]).await;
    let (_, text) = bed.call(&session, "skill_load", json!({"name": "menu", "force": true})).await;
    assert!(text.contains("Files: a.bin, guide.md, scripts/run.sh."), "{text}");
}

#[tokio::test]
async fn visibility_requirements_and_parameters_hold() {
    let bed = Bed::new();
    let schema = json!({"type": "object", "required": ["table"], "properties": {"table": {"type": "integer", "description": "Its number"}}});
    let user = Skill { visibility: Visibility::UserOnly, ..bed.skill("bill", "Writes bills", "Add up.", &[]) };
    let hidden = Skill { visibility: Visibility::Hidden, ..bed.skill("tax", "Knows taxes", "Ten percent.", &[]) };
    let with = Skill { parameters: Some(schema), ..bed.skill("seat", "Seats guests", "Smile.", &[]) };
    let requires = Requires {
        tools: [("till".to_owned(), vec!["open".to_owned()])].into(),
        skills: [("seat".to_owned(), ">=2".to_owned())].into(),
        missing_env: vec!["TILL_KEY".into()],
    };
    let needy = Skill { requires, ..bed.skill("till", "Opens the till", "Open.", &[]) };
    bed.give(vec![user, hidden, with, needy]).await;
    let (session, hello) = bed.open().await;
    let instructions = hello["instructions"].as_str().unwrap();
    assert!(instructions.contains("- seat:") && !instructions.contains("bill") && !instructions.contains("tax"));
    assert!(!instructions.contains("- till"));
    let (_, list) = bed.call(&session, "skills_list", json!({})).await;
    let why = "(cannot be used: the agent has no MCP server till; the skill seat has version 1.0.0, not >=2; \
               the agent's container has no variable TILL_KEY)";
    assert_eq!(list, format!("- seat: Seats guests\n- till: Opens the till {why}\n"));
    assert!(!bed.call(&session, "skill_load", json!({"name": "till"})).await.0);
    assert!(!bed.call(&session, "skill_load", json!({"name": "bill"})).await.0, "the user alone starts it");
    assert!(bed.call(&session, "skill_load", json!({"name": "tax"})).await.0, "another skill may name it");
    let (ok, text) = bed.call(&session, "skill_load", json!({"name": "seat"})).await;
    assert!(!ok && text.contains("missing table") && !text.contains("Smile"));
    let (ok, text) = bed.call(&session, "skill_load", json!({"name": "seat", "arguments": {"table": 4}})).await;
    assert!(ok && text.contains(r#"Arguments: {"table":4}"#) && text.ends_with("Smile."));
    let prompts = bed.ask(&session, "prompts/list", json!({})).await["result"]["prompts"].clone();
    let expected = json!([
        {"name": "skill/bill", "description": "Writes bills", "arguments": []},
        {"name": "skill/seat", "description": "Seats guests",
         "arguments": [{"name": "table", "description": "Its number", "required": true}]}]);
    assert_eq!(prompts, expected);
    let prompt = bed.ask(&session, "prompts/get", json!({"name": "skill/bill"})).await;
    assert!(prompt["result"]["messages"][0]["content"]["text"].as_str().unwrap().ends_with("Add up."));
    for name in ["skill/tax", "skill/none", "bill"] {
        assert_eq!(bed.ask(&session, "prompts/get", json!({"name": name})).await["error"]["code"], -32602, "{name}");
    }
    assert_eq!(bed.ask(&session, "skills/list", json!({})).await["result"]["skills"].as_array().unwrap().len(), 1);
    let unlisted = bed.ask(&session, "skills/get", json!({"uri": "skill://shops/tax/SKILL.md"})).await;
    assert_eq!(unlisted["result"]["skill"]["frontmatter"]["name"], "tax");
}

#[tokio::test]
async fn changes_are_told_to_clients_of_both_eras() {
    let bed = Bed::new();
    let wine = bed.skill("wine", "Knows bottles", "Pour.", &[]);
    bed.give(vec![bed.skill("menu", "Knows dishes", "One.", &[]), wine.clone()]).await;
    let (session, _) = bed.open().await;
    let uri = "skill://shops/menu/SKILL.md";
    assert!(bed.ask(&session, "resources/subscribe", json!({"uri": uri})).await["error"].is_null());
    let request = Request::get("/mcp/skills")
        .header("host", "localhost")
        .header("accept", "text/event-stream")
        .header("mcp-session-id", &session)
        .header("mcp-protocol-version", "2025-11-25");
    let stream = bed.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let (mut legacy, mut legacy_text) = (stream.into_body().into_data_stream(), String::new());
    let wanted = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": [uri]}});
    let (status, stream) = bed.modern("subscriptions/listen", wanted).await;
    assert_eq!(status, StatusCode::OK);
    let (mut modern, mut modern_text) = (stream.into_body().into_data_stream(), String::new());
    let first = next(&mut modern, &mut modern_text).await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    bed.give(vec![bed.skill("menu", "Knows dishes", "Two.", &[]), wine]).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(next(&mut legacy, &mut legacy_text).await["method"].as_str().unwrap().to_owned());
    }
    let of = |what: &str| format!("notifications/{what}");
    let expected =
        [of("tools/list_changed"), of("prompts/list_changed"), of("resources/list_changed"), of("resources/updated")];
    assert_eq!(told, expected);
    for method in ["notifications/tools/list_changed", "notifications/resources/updated"] {
        let message = next(&mut modern, &mut modern_text).await;
        assert_eq!(message["method"], method);
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 9);
    }
    let (_, text) = bed.call(&session, "skill_load", json!({"name": "menu"})).await;
    assert!(text.ends_with("Two."));
}

#[tokio::test]
async fn a_file_that_was_changed_is_not_given_out() {
    let bed = Bed::new();
    let menu = bed.skill("menu", "Knows dishes", "One.", &[("guide.md", b"good")]);
    bed.give(vec![menu.clone()]).await;
    let path = bed.dir.path().join("skills/.rev").join(&menu.digest).join("menu/guide.md");
    std::fs::remove_file(&path).unwrap_or_else(|_| {
        let folder = path.parent().unwrap();
        std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::remove_file(&path).unwrap();
    });
    std::fs::write(&path, "evil").unwrap();
    let (session, _) = bed.open().await;
    let (ok, text) = bed.call(&session, "skill_read", json!({"name": "menu", "path": "guide.md"})).await;
    assert!(!ok && text.contains("digest"), "{text}");
    let answer = bed.ask(&session, "resources/read", json!({"uri": "skill://shops/menu/guide.md"})).await;
    assert_eq!(answer["error"]["code"], -32603);
    let failures = bed.metric("outrigger_skill_verify_failures_total", &[("skill", "menu"), ("reason", "digest")]);
    assert!((failures - 2.0).abs() < 0.1);
}
