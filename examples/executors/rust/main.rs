//! A ten-line agent: counts the words of each message, and of the whole conversation in the memo.
use axum::{Json, Router, routing};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

async fn turn(Json(turn): Json<Value>) -> Json<Value> {
    let words = turn["text"].as_str().unwrap_or_default().split_whitespace().count() as u64;
    let total = words + turn["context"]["memo"].as_u64().unwrap_or(0);
    Json(json!({"text": format!("{words} words, {total} in all"), "memo": total}))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "8000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let mut term = signal(SignalKind::terminate())?;
    let app = Router::new().route("/", routing::post(turn));
    axum::serve(listener, app).with_graceful_shutdown(async move { term.recv().await.unwrap_or_default() }).await
}
