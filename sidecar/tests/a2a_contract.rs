//! The contract document, its schema and its examples hold for what the sidecar does.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use a2a_support::schema::Schema;
use a2a_support::{Front, Handler, PATIENCE, answer_text, follow_up, message, state, until};
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
    assert_eq!(keys(&told), keys(&real));
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

/// Starts a program and waits until it answers.
async fn run(mut command: Command) -> (Program, Front) {
    let (socket, port) = a2a_support::not_listening();
    drop(socket);
    command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let name = command.get_program().to_owned();
    let program = Program(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", name.display())));
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

#[test]
fn the_examples_are_about_ten_lines() {
    for path in ["python/agent.py", "node/agent.mjs", "rust/main.rs"] {
        let text = read(&format!("examples/executors/{path}"));
        let lines = text.lines().filter(|l| !l.trim().is_empty() && !l.trim().starts_with("//")).count();
        assert!(lines <= 16, "{path}: {lines}");
    }
}
