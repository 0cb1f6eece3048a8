//! The tool servers of `examples/`, behind the sidecar as in a pod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::process::{Child, Command, Stdio};

use http::StatusCode;
use mcp_support::{Rig, Setup, Shim, call, init};
use outrigger_protocol::config::Reach;
use serde_json::{Value, json};

fn example(file: &str) -> String {
    format!("{}/../examples/{file}", env!("CARGO_MANIFEST_DIR"))
}

async fn session(rig: &Rig) -> String {
    let reply = rig.post(None, init(1)).await;
    assert_eq!(reply.status, StatusCode::OK);
    let id = reply.headers["mcp-session-id"].to_str().unwrap().to_owned();
    reply.last().await;
    rig.post(Some(&id), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    id
}

async fn text(rig: &Rig, session: &str, tool: &str, arguments: Value) -> (String, bool) {
    let answer = rig.post(Some(session), call(7, tool, arguments)).await.last().await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (text, answer["result"]["isError"] == true)
}

#[tokio::test]
async fn the_news_are_searched_and_judged() {
    let mut rig = Rig::without_shim(Setup::default()).await;
    let articles = rig.dir.path().join("articles");
    std::fs::create_dir(&articles).unwrap();
    std::fs::write(articles.join("harbour.txt"), "The new harbour opens\nA great success, and hope for growth.")
        .unwrap();
    std::fs::write(articles.join("storm.txt"), "Storm over the coast\nFear, flood and worry.").unwrap();
    std::fs::write(rig.dir.path().join("secret.txt"), "not an article").unwrap();
    let server = example("news-search/server/news_search.py");
    rig.shim = Some(Shim::start(&rig.socket(), 4, &["python3", &server, articles.to_str().unwrap()]));
    rig.until_ready().await;
    assert_eq!(rig.status().tools, ["search_news", "analyze_sentiment"]);
    let session = session(&rig).await;
    let found = text(&rig, &session, "search_news", json!({"query": "harbour opens"})).await;
    assert_eq!(found, ("harbour.txt: The new harbour opens".into(), false));
    for (file, mood) in [("harbour.txt", "positive"), ("storm.txt", "negative")] {
        let (judged, failed) = text(&rig, &session, "analyze_sentiment", json!({"file": file})).await;
        let judged: Value = serde_json::from_str(&judged).unwrap();
        assert_eq!((judged["sentiment"].as_str().unwrap(), failed), (mood, false), "{judged}");
    }
    for file in ["../secret.txt", "/etc/passwd", "nothing.txt", ""] {
        let (why, failed) = text(&rig, &session, "analyze_sentiment", json!({"file": file})).await;
        assert!(failed && why.contains("there is no article"), "{file}: {why}");
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_weather_comes_over_http_with_a_key() {
    // Free a moment ago, and the server is asked until it is there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new("python3")
        .args([&example("weather/server/weather.py"), &port.to_string()])
        .env("API_KEY", "let-me-in")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Process(server);
    let headers = tempfile::tempdir().unwrap();
    std::fs::write(headers.path().join("X-Api-Key"), "let-me-in").unwrap();
    let reach = Reach::Remote {
        url: format!("http://127.0.0.1:{port}/mcp"),
        headers_dir: Some(headers.path().to_string_lossy().into_owned()),
        ca_file: None,
        allow: vec!["127.0.0.0/8".into()],
    };
    let rig = Rig::without_shim(Setup { reach: Some(reach), ..Setup::default() }).await;
    rig.until_ready().await;
    let status = rig.status();
    assert_eq!((status.server_info.as_str(), status.tools), ("weather 1.0.0", vec!["get_weather".to_owned()]));
    let session = session(&rig).await;
    assert_eq!(text(&rig, &session, "get_weather", json!({"city": "Lisbon"})).await.0, "sunny, 24 °C");
    let (why, failed) = text(&rig, &session, "get_weather", json!({"city": "Atlantis"})).await;
    assert!(failed && why.contains("no weather for 'Atlantis'"), "{why}");
    let unknown = rig.post(Some(&session), call(8, "x", json!({})).replace("tools/call", "vendor/x")).await;
    assert_eq!(unknown.last().await["error"]["code"], -32601);
}
