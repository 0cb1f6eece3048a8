//! The executor with agents of the Python SDKs, unmodified: a2a-sdk 1.x over each binding in 1.0 and 0.3, and the last of
//! 0.3. They come from the environments that the conformance tests install; without them a test says that it was skipped.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod upstream_support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use futures::StreamExt;
use outrigger_protocol::a2a::operation::Binding;
use outrigger_protocol::a2a::state::State;
use outrigger_sidecar::a2a::executor::{Executor, TurnEvent};
use outrigger_sidecar::a2a::upstream::executor::A2a;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use upstream_support::{PATIENCE, Seen, executor, follow_up, input};

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The Python of an installed environment that has a module.
fn python(prefix: &str, module: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("OUTRIGGER_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/outrigger")))?;
    let folders = std::fs::read_dir(cache.join("venv")).ok()?.flatten().map(|e| e.path());
    let named = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix));
    let has = |p: &PathBuf| {
        let Ok(libraries) = std::fs::read_dir(p.join("lib")) else { return false };
        p.join(".done").exists() && libraries.flatten().any(|l| l.path().join("site-packages").join(module).exists())
    };
    folders.filter(named).find(has).map(|p| p.join("bin/python"))
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

async fn start(python: &PathBuf, program: &str, versions: &[&str]) -> (Process, u16, u16) {
    let (port, grpc) = (free_port().await, free_port().await);
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(program);
    let mut command = Command::new(python);
    command.arg(program).arg(port.to_string()).arg(grpc.to_string()).args(versions).stdin(Stdio::null());
    let mut process = Process(command.spawn().unwrap());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for port in [port, grpc] {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(process.0.try_wait().unwrap().is_none(), "the agent ended");
            assert!(tokio::time::Instant::now() < deadline, "the agent does not listen");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    (process, port, grpc)
}

/// A port with a card that names one interface only, so that it is the one that is used.
async fn only(binding: Binding, version: &str, port: u16, grpc: u16, streaming: bool) -> u16 {
    let url = match binding {
        Binding::Grpc => format!("127.0.0.1:{grpc}"),
        _ => format!("http://127.0.0.1:{port}"),
    };
    let interface = json!({"url": url, "protocolBinding": binding.name(), "protocolVersion": version});
    let card =
        json!({"name": "n", "supportedInterfaces": [interface], "capabilities": {"streaming": streaming}}).to_string();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let card = axum::routing::get(move || async move { card });
    let app = axum::Router::new().route("/.well-known/agent-card.json", card);
    tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    port
}

/// A turn up to the agent's ids, then a cancel.
async fn cancelled(executor: &A2a, text: &str) {
    let mut turn = executor.turn(input(text));
    let attachment = tokio::time::timeout(PATIENCE, async {
        loop {
            match turn.next().await.unwrap() {
                TurnEvent::Change(change) if change.attachment.is_some() => return change.attachment,
                TurnEvent::Fault { fault, .. } => panic!("{fault}"),
                _ => {}
            }
        }
    })
    .await
    .unwrap();
    drop(turn);
    executor.cancel("turn", attachment.as_ref()).await;
    // What is left of it is found again, and has ended.
    let before = Seen { attachment, ..Seen::default() };
    let left = Seen::all(executor.reattach(follow_up(text, &before), false).unwrap()).await;
    assert_eq!((left.fault.as_ref(), left.last_state()), (None, Some(State::Canceled)), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_of_1_0_in_every_binding_and_version() {
    let Some(python) = python("conformance-kit-", "uvicorn") else {
        println!("SKIPPED: no Python environment with a2a-sdk 1.x; make conformance installs it");
        return;
    };
    let (_process, port, grpc) = start(&python, "../e2e/conformance/reference.py", &["1.0", "0.3"]).await;
    for binding in [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc] {
        for version in ["1.0", "0.3"] {
            for streaming in [true, false] {
                let case = format!("{} {version} streaming {streaming}", binding.name());
                let executor = executor(only(binding, version, port, grpc, streaming).await);
                let asked = Seen::turn(&executor, input("tck-input-required")).await;
                assert_eq!((asked.fault.as_ref(), asked.last_state()), (None, Some(State::InputRequired)), "{case}");
                assert_eq!(executor.interface().unwrap(), format!("{} {version}", binding.name()));
                let done = Seen::turn(&executor, input("tck-long-running")).await;
                assert_eq!((done.fault.as_ref(), done.last_state()), (None, Some(State::Completed)), "{case}");
                assert_eq!(done.artifact()["parts"], json!([{"text": "Hello from the agent"}]), "{case}");
                cancelled(&executor, "tck-cancel").await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_sdk_of_0_3() {
    let Some(python) = python("conformance-python-v03-", "grpc") else {
        println!("SKIPPED: no Python environment with a2a-sdk 0.3.x; make conformance installs it");
        return;
    };
    let (_process, port, grpc) = start(&python, "tests/fixtures/a2a_v03_agent.py", &[]).await;
    let ports = [
        port,
        only(Binding::Grpc, "0.3", port, grpc, true).await,
        only(Binding::JsonRpc, "0.3", port, grpc, false).await,
    ];
    for (case, port) in ["JSONRPC 0.3", "GRPC 0.3", "JSONRPC 0.3"].into_iter().zip(ports) {
        let executor = executor(port);
        let asked = Seen::turn(&executor, input("ask")).await;
        assert_eq!((asked.fault.as_ref(), asked.last_state()), (None, Some(State::InputRequired)), "{case}");
        assert_eq!(executor.interface().unwrap(), case);
        assert_eq!(asked.said()["parts"], json!([{"text": "which?"}]), "{case}");
        assert_eq!(asked.said()["taskId"], "our-task");
        let sold = Seen::turn(&executor, follow_up("go on", &asked)).await;
        assert_eq!((sold.fault.as_ref(), sold.last_state()), (None, Some(State::Completed)), "{case}");
        assert_eq!(sold.artifact()["parts"], json!([{"text": "0"}, {"text": "1"}, {"text": "2"}]), "{case}");
        let direct = Seen::turn(&executor, input("direct")).await;
        let message: Value = serde_json::from_str(direct.message.as_ref().unwrap().as_str()).unwrap();
        assert_eq!(
            (&message["parts"], &message["contextId"]),
            (&json!([{"text": "hi"}]), &json!("our-context")),
            "{case}"
        );
        cancelled(&executor, "wait").await;
    }
}
