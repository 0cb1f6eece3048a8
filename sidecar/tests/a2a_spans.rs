//! What a request writes to the log. A program of its own: what is logged is decided once for all threads of one.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod a2a_support;

use std::sync::Arc;

use a2a_support::{Front, Handler, answer};
use serde_json::{Value, json};

#[derive(Clone, Default)]
struct Lines(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn log_lines_of_a_request_share_its_span() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    let _log = tracing::subscriber::set_default(log);
    let handler = Handler::start(|_| async { answer(json!({"text": "done"})) }).await;
    let front = Front::to(&handler);
    let sent = front.send("hi").await;
    front.call("GetTask", json!({"id": "no-such"})).await;
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let all: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |method: &str| {
        let mut spans = all.iter().filter(|l| l["message"] == "A2A request").map(|l| &l["span"]);
        spans.find(|s| s["method"] == method).unwrap_or_else(|| panic!("{text}"))
    };
    let span = of("SendMessage");
    assert_eq!((&span["task"], &span["outcome"]), (&sent["result"]["task"]["id"], &json!("ok")), "{span}");
    assert_eq!((span["caller"].as_str(), span["binding"].as_str()), (Some("anonymous"), Some("JSONRPC")), "{span}");
    assert_eq!(span["trace"].as_str().map(str::len), Some(32));
    assert_eq!(of("GetTask")["outcome"], "task_not_found");
}
