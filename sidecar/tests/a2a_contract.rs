//! The contract document, its schema and its examples hold for what the sidecar does.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use a2a_support::schema::Schema;
use a2a_support::{Front, Handler, PATIENCE, answer_text, follow_up, message, state, until};
use axum::response::IntoResponse;
use outrigger_protocol::a2a::answer::Rule;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::config::Limits;
use serde_json::{Value, json};

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repo(path)).unwrap()
}

fn schema() -> Schema {
    Schema::new(serde_json::from_str(&read("docs/executor-contract.schema.json")).unwrap())
}

/// Code blocks of the document with one label.
fn blocks(label: &str) -> Vec<String> {
    let text = read("docs/executor-contract.md");
    let open = format!("```{label}\n");
    text.split(&open).skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_schema_refuses() {
    let s = schema();
    for (of, bad) in [
        ("answer", json!({"txt": "hi"})),
        ("answer", json!({"text": 7})),
        ("answer", json!({"state": "working"})),
        ("answer", json!({"parts": [{"text": "a", "data": 1}]})),
        ("answer", json!({"parts": [{}]})),
        ("answer", json!({"message": {"parts": [{"text": "a"}]}, "text": "b"})),
        ("answer", json!({"error": {"reason": "x"}})),
        ("answer", json!({"artifacts": [{"name": "x"}]})),
        ("answer", json!([])),
        ("turn", json!({"contract": "outrigger/v2"})),
        ("event", json!({"seq": 0})),
        ("event", json!({"status": "a", "text": "b"})),
        ("event", json!({"append": true})),
        ("event", json!({"state": "submitted"})),
        ("event", json!({"message": {"parts": [{"text": "a"}]}, "state": "completed"})),
    ] {
        assert!(s.check(of, &bad).is_err(), "{of} {bad}");
    }
}

#[tokio::test]
async fn every_turn_matches_the_schema() {
    let s = schema();
    let shown = blocks("json turn");
    assert_eq!(shown.len(), 1);
    s.check("turn", &serde_json::from_str(&shown[0]).unwrap()).unwrap();
    let handler = Handler::start(|g| async move {
        let ask = g.json()["task"]["history"] == json!([]);
        answer_text(if ask {
            r#"{"state":"auth-required","artifacts":[{"name":"N","parts":[{"url":"https://e.example"}]}],"memo":[1]}"#
        } else {
            r#"{"text":"done"}"#
        })
    })
    .await;
    let front = Front::to(&handler);
    let task = front.send("one").await["result"]["task"].clone();
    front.call("SendMessage", follow_up(&task, "two")).await;
    let turns = handler.turns();
    assert_eq!(turns.len(), 2);
    for turn in turns {
        s.check("turn", &turn.json()).unwrap();
    }
    // The document's turn and a real one have the same members.
    let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (told, real) = (serde_json::from_str::<Value>(&shown[0]).unwrap(), handler.turns()[1].json());
    let (mut all, rare) = (keys(&told), ["acceptedOutputModes", "extensions", "metadata"]);
    all.retain(|k| !rare.contains(&k.as_str()));
    assert_eq!(all, keys(&real));
    let mut full = message("three");
    full["metadata"] = json!({"table": 9_007_199_254_740_993_u64});
    full["configuration"] = json!({"acceptedOutputModes": ["text/plain", "text/*"]});
    front.call("SendMessage", full).await;
    let real = handler.turns()[2].clone();
    assert!(
        real.text.contains(r#""metadata":{"table":9007199254740993},"acceptedOutputModes":["text/plain","text/*"]"#)
    );
    s.check("turn", &real.json()).unwrap();
    let real = handler.turns()[1].json();
    assert_eq!(keys(&told["urls"]), keys(&real["urls"]));
    assert_eq!(keys(&told["task"]), keys(&real["task"]));
    assert_eq!(keys(&told["context"]), keys(&real["context"]));
}

#[tokio::test]
async fn every_answer_of_the_document_is_taken_without_repair() {
    let s = schema();
    let answers = blocks("json answer");
    assert!(answers.len() >= 5, "{answers:?}");
    let script = answers.clone();
    let handler = Handler::start(move |g| {
        let n: usize = g.json()["text"].as_str().unwrap().parse().unwrap();
        let text = script[n].clone();
        async move { answer_text(&text) }
    })
    .await;
    let front = Front::to(&handler);
    let mut ends = Vec::new();
    for (i, text) in answers.iter().enumerate() {
        let value: Value = serde_json::from_str(text).unwrap();
        s.check("answer", &value).unwrap();
        let result = front.send(&i.to_string()).await["result"].clone();
        let end = if result.get("message").is_some() { "message" } else { state(&result["task"]) };
        assert_eq!(end == "TASK_STATE_FAILED", value.get("error").is_some(), "{text}: {result}");
        ends.push(end.to_owned());
    }
    for want in ["TASK_STATE_COMPLETED", "TASK_STATE_INPUT_REQUIRED", "message", "TASK_STATE_FAILED"] {
        assert!(ends.iter().any(|e| e == want), "{want} is not among {ends:?}");
    }
    assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[]), 0);
}

#[test]
fn every_reason_and_rule_stands_in_the_document() {
    let text = read("docs/executor-contract.md");
    for rule in Rule::ALL {
        assert!(text.contains(&format!("| `{}` |", rule.label())), "rule {}", rule.label());
    }
    let s = String::new;
    for fault in [
        Fault::Unreachable(s()),
        Fault::Incomplete(s()),
        Fault::Timeout(0),
        Fault::Status(0),
        Fault::Redirect(0),
        Fault::StreamIdle(0),
        Fault::AsyncIdle(0),
        Fault::AsyncTimeout(0),
        Fault::Restarted,
        Fault::StoreLost,
        Fault::ContentType(s()),
        Fault::TooLarge(0),
        Fault::TooDeep,
        Fault::NotJson(s()),
        Fault::invalid("", ""),
        Fault::Empty(s()),
        Fault::MemoTooLarge(0),
        Fault::Agent { text: s(), reason: None },
        Fault::Stopped,
        Fault::QueueTimeout,
        Fault::Busy(0),
        Fault::Store(s()),
    ] {
        assert!(text.contains(&format!("`{}`", fault.reason())), "reason {}", fault.reason());
    }
}

/// A program of the examples, ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program on a port.
fn start(mut command: Command) -> (Program, u16) {
    let (socket, port) = a2a_support::not_listening();
    drop(socket);
    command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let name = command.get_program().to_owned();
    (Program(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", name.display()))), port)
}

/// Starts a program and waits until it answers.
async fn run(command: Command) -> (Program, Front) {
    let (program, port) = start(command);
    let front = Front::new(port, Limits::default());
    until("the program's readiness", || front.service.agent_status().ready).await;
    (program, front)
}

#[tokio::test]
async fn the_python_example_runs() {
    let mut command = Command::new("python3");
    command.arg(repo("examples/executors/python/agent.py"));
    let (_program, front) = run(command).await;
    let task = front.send("hello").await["result"]["task"].clone();
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "You said: hello", "{task}");
}

#[tokio::test]
async fn the_node_example_runs() {
    let mut command = Command::new("node");
    command.arg(repo("examples/executors/node/agent.mjs"));
    let (_program, front) = run(command).await;
    let task = front.send("burger").await["result"]["task"].clone();
    assert_eq!(
        (state(&task), &task["status"]["message"]["parts"][0]["text"]),
        ("TASK_STATE_INPUT_REQUIRED", &json!("Order \"burger\"? Say yes."))
    );
    let done = front.call("SendMessage", follow_up(&task, "yes")).await["result"]["task"].clone();
    assert_eq!(done["artifacts"][0]["parts"][0]["text"], "Ordered: burger", "{done}");
}

#[tokio::test]
async fn the_rust_example_runs() {
    // `cargo test` builds it beside the tests, unless it was told which ones.
    let target = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let program = target.join("examples/executor");
    if !program.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--example", "executor", "--target-dir"]);
        assert!(cargo.arg(target.parent().unwrap()).status().unwrap().success());
    }
    let (_program, front) = run(Command::new(program)).await;
    let mut params = message("three little words");
    params["message"]["contextId"] = "c".into();
    let text = |v: Value| v["result"]["task"]["artifacts"][0]["parts"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(front.call("SendMessage", params.clone()).await), "3 words, 3 in all");
    let again = tokio::time::timeout(PATIENCE, front.call("SendMessage", params)).await.unwrap();
    assert_eq!(text(again), "3 words, 6 in all");
}

#[tokio::test]
async fn the_streaming_example_runs() {
    let mut command = Command::new("python3");
    command.arg(repo("examples/executors/python/stream.py"));
    let (_program, front) = run(command).await;
    front.set_live(|live| live.offer.streaming = true);
    let got = a2a_support::shorts(&front.send_stream("two words").await.rest().await);
    let want = [
        "task submitted",
        "working",
        "working \"Thinking.\"",
        "chunk \"two \"",
        "chunk \"words \" append",
        "completed",
    ];
    assert_eq!(got, want);
}

#[tokio::test]
async fn the_worker_example_runs() {
    let mut command = Command::new("python3");
    command.arg(repo("examples/executors/worker/agent.py"));
    let (_program, port) = start(command);
    let (front, _local) = a2a_support::with_local_api(port).await;
    until("the program's readiness", || front.service.agent_status().ready).await;
    let task = front.send("c b a").await["result"]["task"].clone();
    assert_eq!(task["artifacts"][0]["parts"], json!([{"text": "a "}, {"text": "b "}, {"text": "c "}]), "{task}");
}

/// Runs the commands of a block and compares what they print; `…` stands for anything.
async fn transcript(label: &str, env: &[(&str, String)]) {
    let shown = blocks(&format!("console {label}"));
    assert_eq!(shown.len(), 1, "{label}");
    for step in shown[0].strip_prefix("$ ").unwrap().split("\n$ ") {
        let continued = step.lines().take_while(|l| l.ends_with('\\')).count();
        let command: Vec<&str> = step.lines().take(continued + 1).collect();
        let want: Vec<&str> = step.lines().skip(continued + 1).collect();
        let mut shell = tokio::process::Command::new("bash");
        shell.args(["-c", &command.join("\n")]).envs(env.iter().map(|(k, v)| (*k, v.as_str()))).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, shell.output()).await.unwrap().unwrap();
        let got = String::from_utf8(output.stdout).unwrap();
        assert!(fits(&want.join("\n"), got.trim_end()), "{}\n{got}\nis not\n{}", command.join("\n"), want.join("\n"));
    }
}

/// Whether a text fits a pattern in which `…` stands for anything.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('…');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    for (i, piece) in pieces.iter().enumerate() {
        if i + 1 == pieces.len() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty()
}

#[tokio::test]
async fn the_transcripts_of_the_document_are_true() {
    let turn = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(turn.path(), &blocks("json turn")[0]).unwrap();
    let mut command = Command::new("python3");
    command.arg(repo("examples/executors/python/agent.py"));
    let (_agent, front) = run(command).await;
    let handler = front.port;
    transcript(
        "agent",
        &[
            ("HANDLER", format!("http://127.0.0.1:{handler}")),
            ("TURN_FILE", turn.path().to_string_lossy().into_owned()),
        ],
    )
    .await;
    let mut command = Command::new("python3");
    command.arg(repo("examples/executors/python/stream.py"));
    let (_agent, front) = run(command).await;
    front.set_live(|live| live.offer.streaming = true);
    let (a2a, _server) = a2a_support::serve(front.service.router()).await;
    transcript("stream", &[("A2A", a2a)]).await;
    let later = Handler::start(|_| async { http::StatusCode::ACCEPTED.into_response() }).await;
    let (front, _local) = a2a_support::with_local_api(later.port).await;
    let mut params = message("hi");
    params["configuration"] = json!({"returnImmediately": true});
    front.call("SendMessage", params).await;
    until("the turn", || later.turns().len() == 1).await;
    let turn = later.turns()[0].json();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    transcript("later", &[("TURNS", text(&turn["urls"]["turns"])), ("TURN", text(&turn["turn"]))]).await;
}

#[tokio::test]
async fn every_event_of_the_document_is_taken_without_repair() {
    let s = schema();
    let shown: Vec<Value> = blocks("json event").iter().map(|t| serde_json::from_str(t).unwrap()).collect();
    assert!(shown.len() >= 5, "{shown:?}");
    for event in &shown {
        s.check("event", event).unwrap();
    }
    let stream: Vec<Value> = shown.iter().filter(|e| e.get("seq").is_none()).cloned().collect();
    let handler = Handler::start(move |_| {
        let response = a2a_support::events(&stream);
        async { response }
    })
    .await;
    let front = Front::to(&handler);
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[]), 0);
}

#[test]
fn the_examples_are_about_ten_lines() {
    for path in ["python/agent.py", "python/stream.py", "node/agent.mjs", "rust/main.rs"] {
        let text = read(&format!("examples/executors/{path}"));
        let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.trim().starts_with("//")).count();
        assert!(lines <= 16, "{path}: {lines}");
    }
}
