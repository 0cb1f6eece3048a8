//! The client tests of ACTS, through the client that calls agents: an agent answers with the text that a test gives, and
//! what the client makes of it is compared with what the test expects.
//!
//! The suite's files are not part of this repository: `OUTRIGGER_ACTS` names their folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use outrigger_protocol::a2a::response::Response as Answer;
use outrigger_sidecar::a2a::executor::Timing;
use outrigger_sidecar::a2a::upstream::agent::Agent;
use outrigger_sidecar::a2a::upstream::client::{Client, With};
use outrigger_sidecar::a2a::upstream::error::CallError;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// As many as the suite has: a change of it is to be seen.
const TESTS: usize = 8;
const LIMIT: Duration = Duration::from_secs(10);
const SEND: &str = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;

/// The agent: what it answers to the next call, and what it was asked.
#[derive(Default)]
struct Script {
    card: Mutex<Value>,
    extended: Mutex<Value>,
    answer: Mutex<Value>,
    asked: Mutex<Vec<String>>,
    streams: AtomicUsize,
}

async fn agent(State(script): State<Arc<Script>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if head.method == Method::GET && path.ends_with("/agent-card.json") {
        return Json(script.card.lock().clone()).into_response();
    }
    if head.method == Method::GET && path.ends_with("/extendedAgentCard") {
        return Json(script.extended.lock().clone()).into_response();
    }
    if path.ends_with("/message:stream") {
        script.streams.fetch_add(1, Ordering::Relaxed);
    }
    let bytes = body.collect().await.unwrap().to_bytes();
    let Ok(call) = serde_json::from_slice::<Value>(&bytes) else {
        // A call over HTTP+JSON: the client looks whether there is somebody.
        let info = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org"});
        let error =
            json!({"error": {"code": 404, "status": "NOT_FOUND", "message": "no such task", "details": [info]}});
        return (StatusCode::NOT_FOUND, Json(error)).into_response();
    };
    script.asked.lock().push(call["method"].as_str().unwrap_or_default().to_owned());
    let mut answer = script.answer.lock().clone();
    answer["id"] = call["id"].clone();
    Json(answer).into_response()
}

fn card() -> Value {
    json!({"name": "golden", "description": "answers as told", "version": "1.0.0", "capabilities": {"streaming": false},
           "supportedInterfaces": [{"url": "http://agent.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
           "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
           "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"]}]})
}

fn not_found() -> Value {
    json!({"jsonrpc": "2.0", "error": {"code": -32001, "message": "no such task"}})
}

async fn start() -> (Arc<Script>, Agent) {
    let script = Arc::new(Script { card: Mutex::new(card()), answer: Mutex::new(not_found()), ..Script::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = axum::Router::new().fallback(agent).with_state(Arc::clone(&script));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (script, Agent::new(port, "/", Timing::default()))
}

fn folder() -> Option<PathBuf> {
    std::env::var_os("OUTRIGGER_ACTS").filter(|f| !f.is_empty()).map(PathBuf::from)
}

fn tests(folder: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("client-parsing.acts.yaml")).unwrap();
    let document: Value = serde_saphyr::from_str(&text).unwrap();
    document["suites"].as_array().unwrap().iter().flat_map(|s| s["tests"].as_array().unwrap().clone()).collect()
}

/// What the client made of an answer, as JSON.
fn parsed(answer: Result<Answer, CallError>) -> Value {
    match answer {
        Ok(Answer::Task(task)) => {
            let mut text = String::new();
            task.write(&mut text);
            json!({"task": serde_json::from_str::<Value>(&text).unwrap()})
        }
        Ok(Answer::Message(view)) => {
            json!({"message": serde_json::from_str::<Value>(view.message.as_str()).unwrap()})
        }
        Ok(other) => panic!("an answer to a message: {other:?}"),
        Err(CallError::Agent(error)) => json!({"error": {"code": error.code, "message": error.message}}),
        Err(other) => panic!("{other}"),
    }
}

async fn step(script: &Script, agent: &Agent, step: &Value) -> Value {
    let payload = step["client_response"]["wire_payload"].clone();
    let with = With::limit(LIMIT);
    match step["client_response"]["operation"].as_str().unwrap() {
        "get_agent_card" => {
            *script.card.lock() = payload;
            Value::clone(&agent.look().await.unwrap_or_else(|e| panic!("{}: {}", e.reason, e.message)).card())
        }
        "get_extended_agent_card" => {
            *script.extended.lock() = payload;
            agent.client().unwrap().extended_card(&with).await.unwrap();
            // What the client goes by from now on.
            Value::clone(&agent.client().unwrap().card())
        }
        operation => {
            let client = agent.look().await.unwrap_or_else(|e| panic!("{}: {}", e.reason, e.message));
            *script.answer.lock() = payload;
            match operation {
                "send_message" => parsed(client.send(SEND, &with).await),
                "get_task" => {
                    let value = parsed(client.get("t", &with).await.map(Answer::Task));
                    if value["task"].is_null() { value } else { value["task"].clone() }
                }
                other => panic!("no operation {other}"),
            }
        }
    }
}

/// What keeps `got` from being as ACTS wants it.
fn problems(want: &Value, got: &Value, path: &str, out: &mut Vec<String>) {
    let Some(members) = want.as_object() else {
        if want != got {
            out.push(format!("{path}: want {want}, got {got}"));
        }
        return;
    };
    for (key, value) in members {
        match key.as_str() {
            "count_gte" if got.as_array().is_none_or(|l| (l.len() as u64) < value.as_u64().unwrap()) => {
                out.push(format!("{path}: want at least {value}, got {got}"));
            }
            "contains" if !got.as_str().is_some_and(|t| t.contains(value.as_str().unwrap())) => {
                out.push(format!("{path}: want {value} in {got}"));
            }
            "count_gte" | "contains" => {}
            key => problems(value, &got[key], &format!("{path}.{key}"), out),
        }
    }
}

/// What the text of a test leaves to its runner: the card decides what is asked for.
async fn gated(script: &Script, client: &Client) {
    let refused = client.stream(SEND, &With::limit(LIMIT)).await;
    assert!(matches!(refused, Err(CallError::NotOffered(_))), "a stream of an agent that does not stream");
    assert_eq!(script.streams.load(Ordering::Relaxed), 0, "it was asked all the same");
}

#[tokio::test]
async fn client_tests_of_acts() {
    let Some(folder) = folder() else {
        eprintln!("SKIP: the ACTS suite is not here; OUTRIGGER_ACTS names the folder with its YAML files");
        return;
    };
    let tests = tests(&folder);
    assert_eq!(tests.len(), TESTS);
    for test in tests {
        let id = test["id"].as_str().unwrap();
        let (script, agent) = start().await;
        for one in test["steps"].as_array().unwrap() {
            let got = step(&script, &agent, one).await;
            let mut wrong = Vec::new();
            problems(&one["expect_parsed"], &got, "$", &mut wrong);
            assert!(wrong.is_empty(), "{id} {}: {wrong:?}", one["id"]);
        }
        if id == "CLIENT-CAP-001" {
            gated(&script, &agent.client().unwrap()).await;
        }
    }
}

#[test]
fn a_difference_is_seen() {
    let got = json!({"a": [1], "b": "text", "c": {"d": true}});
    for want in
        [json!({"a": {"count_gte": 2}}), json!({"b": {"contains": "no"}}), json!({"c": {"d": false}}), json!({"e": 1})]
    {
        let mut wrong = Vec::new();
        problems(&want, &got, "$", &mut wrong);
        assert_eq!(wrong.len(), 1, "{want}");
    }
}
