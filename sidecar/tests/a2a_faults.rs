//! A handler that misbehaves: each fault ends its task with the reason that the contract lists, and nothing else.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use a2a_support::{Front, Handler, answer, message, reason, state, until};
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use http::{Response, StatusCode};
use outrigger_protocol::config::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn respond(status: u16, content_type: &str, body: &str) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("content-type", content_type)], body.to_owned()).into_response()
}

#[tokio::test]
async fn answers_that_are_none() {
    let deep = format!("{{\"parts\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let memo = json!({"memo": "x".repeat(70_000)}).to_string();
    let rows: Vec<(&str, u16, &str, String, &str)> = vec![
        ("500", 500, "text/plain", "oops".into(), "answer_status"),
        ("500 with an answer", 500, "application/json", "{\"text\":\"hi\"}".into(), "answer_status"),
        ("404", 404, "text/plain", String::new(), "answer_status"),
        ("html", 200, "text/html", "<html><body>It works!</body></html>".into(), "answer_content_type"),
        ("half", 200, "application/json", "{\"text\":\"hal".into(), "answer_not_json"),
        ("list", 200, "application/json", "[]".into(), "answer_invalid"),
        ("typo", 200, "application/json", "{\"txt\":\"hi\"}".into(), "answer_empty"),
        ("part", 200, "application/json", "{\"parts\":[{}]}".into(), "answer_invalid"),
        ("deep", 200, "application/json", deep, "answer_too_deep"),
        ("memo", 200, "application/json", memo, "memo_too_large"),
        ("empty stream", 200, "text/event-stream", String::new(), "answer_incomplete"),
        ("stream without an end", 200, "text/event-stream", "data: {\"text\":\"a\"}\n\n".into(), "answer_incomplete"),
        ("stream of text", 200, "text/event-stream", "data: hello\n\n".into(), "answer_not_json"),
        ("stream with a typo", 200, "text/event-stream", "data: {\"delta\":\"a\"}\n\n".into(), "answer_empty"),
        ("stream with a gap", 200, "text/event-stream", "data: {\"seq\":2}\n\n".into(), "answer_invalid"),
        ("error at the end", 200, "text/event-stream", "data: {\"error\":\"broken\"}\n\n".into(), "agent_error"),
        ("error", 200, "application/json", "{\"error\":\"broken\"}".into(), "agent_error"),
        ("own", 200, "application/json", r#"{"error":{"message":"b","reason":"grill"}}"#.into(), "grill"),
    ];
    let script = rows.clone();
    let handler = Handler::start(move |g| {
        let text = g.json()["text"].as_str().unwrap().to_owned();
        let row = script.iter().find(|r| r.0 == text).cloned();
        async move { row.map_or_else(|| answer(json!({"text": "fine"})), |r| respond(r.1, r.2, &r.3)) }
    })
    .await;
    let front = Front::to(&handler);
    for (name, .., want) in &rows {
        let task = front.send(name).await["result"]["task"].clone();
        assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", *want), "{name}: {task}");
        assert!(task["status"]["message"]["parts"][0]["text"].as_str().is_some_and(|t| !t.is_empty()));
        let fine = front.send("good").await["result"]["task"].clone();
        assert_eq!(state(&fine), "TASK_STATE_COMPLETED", "after {name}");
    }
    let invalid = front.send("part").await["result"]["task"]["status"]["message"]["parts"][0]["text"].clone();
    assert!(invalid.as_str().unwrap().contains("parts[0] must have exactly one of"), "{invalid}");
    assert_eq!(front.metric("outrigger_a2a_turn_failures_total", &[("reason", "answer_status")]), 3);
    assert_eq!(front.metric("outrigger_a2a_turn_failures_total", &[("reason", "agent_error")]), 3);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Handler::start(|_| async { answer(json!({"text": "stolen"})) }).await;
    let location = format!("http://127.0.0.1:{}/", elsewhere.port);
    let handler = Handler::start(move |_| {
        let location = location.clone();
        async move { (StatusCode::TEMPORARY_REDIRECT, [("location", location)]).into_response() }
    })
    .await;
    let front = Front::to(&handler);
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "answer_redirect"));
    assert!(elsewhere.turns().is_empty());
}

/// A server that reads the head of each request and then does what the script says.
async fn raw<F, Fut>(script: F) -> u16
where
    F: Fn(TcpStream, String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = Arc::new(script);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            tokio::spawn(async move {
                let mut head = Vec::new();
                let mut buffer = [0; 4096];
                while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                    match stream.read(&mut buffer).await {
                        Ok(n) if n > 0 => head.extend_from_slice(&buffer[..n]),
                        _ => return,
                    }
                }
                script(stream, String::from_utf8_lossy(&head).into_owned()).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn connections_that_break() {
    let cases: [(&str, &str); 4] = [
        ("", "answer_incomplete"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "answer_incomplete"),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"text\":",
            "answer_incomplete",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{\"text\":\r\n",
            "answer_incomplete",
        ),
    ];
    for (bytes, want) in cases {
        let turns = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&turns);
        let port = raw(move |mut stream, head| {
            let count = Arc::clone(&count);
            async move {
                if head.starts_with("POST") {
                    count.fetch_add(1, Ordering::SeqCst);
                    stream.write_all(bytes.as_bytes()).await.unwrap();
                    stream.shutdown().await.unwrap();
                    // Reset only after the peer has read.
                    let _ = stream.read(&mut [0; 64]).await;
                }
            }
        })
        .await;
        let front = Front::new(port, Limits::default());
        let task = front.send("hi").await["result"]["task"].clone();
        assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", want), "{bytes:?}: {task}");
        assert_eq!(turns.load(Ordering::SeqCst), 1, "a turn that was sent is never repeated");
    }
}

#[tokio::test]
async fn fifty_megabytes_are_not_read() {
    const CHUNK: usize = 64 << 10;
    for length in ["transfer-encoding: chunked", "content-length: 52428800"] {
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let port = raw(move |mut stream, head| {
            let count = Arc::clone(&count);
            async move {
                if !head.starts_with("POST") {
                    return;
                }
                let start = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{length}\r\n\r\n");
                stream.write_all(start.as_bytes()).await.unwrap();
                let data = vec![b' '; CHUNK];
                for _ in 0..(50 << 20) / CHUNK {
                    let chunk = if length.starts_with("transfer") {
                        [format!("{CHUNK:x}\r\n").as_bytes(), &data, b"\r\n"].concat()
                    } else {
                        data.clone()
                    };
                    if stream.write_all(&chunk).await.is_err() {
                        return;
                    }
                    count.fetch_add(CHUNK as u64, Ordering::SeqCst);
                }
            }
        })
        .await;
        let front = Front::new(port, Limits { max_answer_bytes: 1 << 20, ..Limits::default() });
        let task = front.send("hi").await["result"]["task"].clone();
        assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "answer_too_large"), "{length}");
        // What lies in socket buffers beside the limit stays far below the whole.
        assert!(sent.load(Ordering::SeqCst) < 30 << 20, "{length}: {sent:?}");
    }
}

#[tokio::test]
async fn an_answer_that_never_comes() {
    let handler = Handler::start(|_| std::future::pending()).await;
    let front = Front::new(handler.port, Limits { turn_timeout_ms: 200, ..Limits::default() });
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "turn_timeout"));
    until("the DELETE", || handler.got("DELETE").len() == 1).await;
    // One that trickles is bounded as well: the limit is on the whole answer.
    let port = raw(|mut stream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        while stream.write_all(b"1\r\n \r\n").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let front = Front::new(port, Limits { turn_timeout_ms: 200, ..Limits::default() });
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "turn_timeout"));
}

#[tokio::test]
async fn refused_connections_are_tried_again() {
    let (socket, port) = a2a_support::not_listening();
    let front = Front::new(port, Limits::default());
    let task = front.send("hi").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_FAILED", "agent_unreachable"));
    assert!(front.metric("outrigger_a2a_turn_retries_total", &[("reason", "refused")]) >= 1);

    let slow = a2a_support::quick();
    let slow = outrigger_sidecar::a2a::executor::Timing { refused: a2a_support::PATIENCE, ..slow };
    let front = Arc::new(Front::with(port, None, Limits::default(), slow));
    let call = tokio::spawn({
        let front = Arc::clone(&front);
        async move { front.send("hi").await }
    });
    until("a second try", || front.metric("outrigger_a2a_turn_retries_total", &[("reason", "refused")]) >= 1).await;
    let handler = Handler::on(socket.listen(16).unwrap(), |_| async { answer(json!({"text": "back"})) });
    assert_eq!(state(&call.await.unwrap()["result"]["task"]), "TASK_STATE_COMPLETED");
    assert_eq!(handler.turns().len(), 1);
}

#[tokio::test]
async fn a_busy_handler_is_asked_again_and_in_the_end_rejects() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let handler = Handler::start(move |g| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        async move {
            if g.json()["text"] == "soon" && n >= 2 {
                return answer(json!({"text": "now"}));
            }
            let status = if n.is_multiple_of(2) { 429 } else { 503 };
            (StatusCode::from_u16(status).unwrap(), [("retry-after", "0")]).into_response()
        }
    })
    .await;
    let front = Front::new(handler.port, Limits { queue_timeout_ms: 20_000, ..Limits::default() });
    assert_eq!(state(&front.send("soon").await["result"]["task"]), "TASK_STATE_COMPLETED");
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let turns = handler.turns();
    assert!(turns.iter().all(|t| t.text == turns[0].text), "the same turn each time");
    assert_eq!(front.metric("outrigger_a2a_turn_retries_total", &[("reason", "busy")]), 2);
    front.set_limits(|l| l.queue_timeout_ms = 100);
    let task = front.send("never").await["result"]["task"].clone();
    assert_eq!((state(&task), reason(&task)), ("TASK_STATE_REJECTED", "agent_busy"));
}

#[tokio::test]
async fn clear_mistakes_are_repaired_and_counted() {
    let handler = Handler::start(|g| async move {
        match g.json()["text"].as_str().unwrap() {
            "html" => respond(200, "text/html", "{\"text\":\"json\"}"),
            "plain" => "plain".into_response(),
            "nothing" => StatusCode::NO_CONTENT.into_response(),
            "bom" => respond(200, "application/json", "\u{feff}{\"text\":\"bom\"}"),
            _ => Response::new(Body::from(Bytes::from_static(b"{\"text\":\"bare\",\"more\":1}"))),
        }
    })
    .await;
    let front = Front::to(&handler);
    for (text, want) in [("html", "json"), ("plain", "plain"), ("bom", "bom"), ("bare", "bare")] {
        let task = front.send(text).await["result"]["task"].clone();
        assert_eq!((state(&task), &task["artifacts"][0]["parts"][0]["text"]), ("TASK_STATE_COMPLETED", &json!(want)));
    }
    let task = front.send("nothing").await["result"]["task"].clone();
    assert_eq!((state(&task), task.get("artifacts")), ("TASK_STATE_COMPLETED", None));
    for rule in ["content_type_wrong", "content_type_missing", "byte_order_mark", "unknown_member"] {
        assert_eq!(front.metric("outrigger_a2a_answer_repairs_total", &[("rule", rule)]), 1, "{rule}");
    }
}

#[tokio::test]
async fn a_follow_up_that_fails_ends_its_task_with_its_history() {
    let handler = Handler::start(|g| async move {
        if g.json()["task"]["history"] == json!([]) {
            return answer(json!({"state": "auth-required", "text": "log in"}));
        }
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
    .await;
    let front = Front::to(&handler);
    let task = front.call("SendMessage", message("hi")).await["result"]["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_AUTH_REQUIRED");
    let end = front.call("SendMessage", a2a_support::follow_up(&task, "done")).await["result"]["task"].clone();
    assert_eq!((state(&end), reason(&end)), ("TASK_STATE_FAILED", "answer_status"));
    assert_eq!(end["history"].as_array().unwrap().len(), 3);
}
