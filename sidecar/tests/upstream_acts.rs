//! The client-parsing suite of ACTS through our own client. Its data is not part of the repository: `OUTRIGGER_ACTS` names
//! the folder; without it one beside the clone is looked for, and without that the test says that it was skipped.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use outrigger_protocol::a2a::operation::{Binding, Dialect};
use outrigger_protocol::a2a::response::Response as Answer;
use outrigger_sidecar::a2a::upstream::client::{self, Client, With};
use outrigger_sidecar::a2a::upstream::error::CallError;
use outrigger_sidecar::a2a::upstream::interface::Interface;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const SUITE: &str = "client-parsing.acts.yaml";
/// Tests of the suite: one that goes missing is noticed.
const TESTS: usize = 8;

fn folder() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/acts");
    let named = std::env::var_os("OUTRIGGER_ACTS").map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(beside))).filter(|f| f.join(SUITE).exists())
}

/// A server that gives one answer to everything, and what it was asked.
async fn server(payload: String) -> (u16, Arc<Mutex<Vec<String>>>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&asked);
    let app = axum::Router::new().fallback(move |request: Request<Body>| {
        let (payload, notes) = (payload.clone(), Arc::clone(&notes));
        async move {
            let (head, body) = request.into_parts();
            let _ = body.collect().await;
            notes.lock().push(format!("{} {}", head.method, head.uri));
            Response::builder().header("content-type", "application/json").body(Body::from(payload)).unwrap()
        }
    });
    tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    (port, asked)
}

fn client_at(port: u16, binding: Binding, card: Arc<Value>) -> Client {
    let interface =
        Interface { binding, dialect: Dialect::V10, url: format!("http://127.0.0.1:{port}/"), tenant: None };
    let backend = Client::backend(([127, 0, 0, 1], port).into());
    Client::new(backend, "127.0.0.1", "/", interface, card, Duration::from_secs(5))
}

/// What our client makes of a payload, as JSON of 1.0.
async fn parsed(step: &Value, session: &mut Option<Arc<Value>>) -> Value {
    let payload = &step["client_response"]["wire_payload"];
    let (port, asked) = server(payload.to_string()).await;
    let with = With::limit(Duration::from_secs(10));
    let text = |write: &dyn Fn(&mut String)| {
        let mut out = String::new();
        write(&mut out);
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let error = |e: CallError| match e {
        CallError::Agent(e) => json!({"error": {"code": e.code, "message": e.message}}),
        other => panic!("{other}"),
    };
    match step["client_response"]["operation"].as_str().unwrap() {
        "send_message" => {
            let client = client_at(port, Binding::JsonRpc, Arc::default());
            match client.send(r#"{"message":{}}"#, &with).await {
                Ok(Answer::Task(task)) => json!({"task": text(&|out| task.write(out))}),
                Ok(Answer::Message(view)) => json!({"message": text(&|out| out.push_str(view.message.as_str()))}),
                Ok(other) => panic!("{other:?}"),
                Err(e) => error(e),
            }
        }
        "get_task" => {
            let client = client_at(port, Binding::JsonRpc, Arc::default());
            client.get("t", &with).await.map_or_else(error, |task| text(&|out| task.write(out)))
        }
        "get_agent_card" => {
            let card = client::card(&payload.to_string()).unwrap();
            *session = Some(Arc::clone(&card));
            // What the card does not offer is not asked for.
            let client = client_at(port, Binding::HttpJson, Arc::clone(&card));
            assert_eq!(client.streams(), card["capabilities"]["streaming"] == true);
            if !client.streams() {
                assert!(matches!(client.stream("{}", &with).await, Err(CallError::NotOffered(_))));
                assert!(matches!(client.subscribe("t", &with).await, Err(CallError::NotOffered(_))));
            }
            if card["capabilities"]["extendedAgentCard"] != true {
                assert!(matches!(client.extended_card(&with).await, Err(CallError::NotOffered(_))));
            }
            assert!(asked.lock().is_empty(), "nothing was sent: {:?}", asked.lock());
            Value::clone(&card)
        }
        "get_extended_agent_card" => {
            let public = session.take().expect("the public card came first");
            let client = client_at(port, Binding::HttpJson, Arc::clone(&public));
            assert!(!client.streams(), "by the public card");
            let card = client.extended_card(&with).await.unwrap();
            assert_eq!(asked.lock().as_slice(), ["GET /extendedAgentCard"]);
            assert!(client.streams() && Arc::ptr_eq(&client.card(), &card), "the extended card takes its place");
            Value::clone(&card)
        }
        other => panic!("unknown operation {other}"),
    }
}

/// Whether a value is as the suite expects it: members of an object, or a matcher.
fn check(path: &str, want: &Value, got: &Value) {
    let Value::Object(members) = want else {
        assert_eq!(got, want, "{path}");
        return;
    };
    for (key, want) in members {
        match key.as_str() {
            "count_gte" => {
                let count = got.as_array().map_or(0, Vec::len) as u64;
                assert!(count >= want.as_u64().unwrap(), "{path} has {count} elements, want at least {want}: {got}");
            }
            "contains" => {
                let text = got.as_str().unwrap_or_default();
                assert!(text.contains(want.as_str().unwrap()), "{path} is {text:?}, want {want}");
            }
            key => check(&format!("{path}.{key}"), want, &got[key]),
        }
    }
}

#[tokio::test]
async fn every_test_of_the_suite() {
    let Some(folder) = folder() else {
        println!("SKIPPED: no ACTS data; OUTRIGGER_ACTS names its folder");
        return;
    };
    let suite: Value = serde_saphyr::from_str(&std::fs::read_to_string(folder.join(SUITE)).unwrap()).unwrap();
    let tests = suite["suites"].as_array().unwrap().iter().flat_map(|s| s["tests"].as_array().unwrap());
    let mut passed = 0;
    for test in tests {
        let id = test["id"].as_str().unwrap();
        let mut session = None;
        for step in test["steps"].as_array().unwrap() {
            let got = parsed(step, &mut session).await;
            check(id, &step["expect_parsed"], &got);
        }
        println!("{id} passed");
        passed += 1;
    }
    assert_eq!(passed, TESTS);
}
