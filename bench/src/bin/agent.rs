//! The agent behind the sidecar: a handler of the executor contract that costs next to nothing. `bench-agent PORT`
//!
//! The text of the turn says what to answer: `message` gives a bare message, `bytes N` a task whose artifact has that
//! many bytes of text, anything else a task with a short one.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::Ipv4Addr;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpListener;

const TEXT: &str = "One burger, ready at 12:30.";
/// Largest turn it reads.
const MOST_TURN: usize = 8 << 20;
/// Most bytes it answers.
const MOST_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let port: u16 = std::env::args().nth(1).context("usage: bench-agent PORT")?.parse()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            // A peer that closes its connection is no event here.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(handle))
                .await;
        });
    }
}

async fn handle(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() != Method::POST {
        return Ok(Response::new(Full::default()));
    }
    let Ok(body) = Limited::new(request.into_body(), MOST_TURN).collect().await else {
        return Ok(status(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let body = body.to_bytes();
    let Ok(turn) = serde_json::from_slice::<Turn<'_>>(&body) else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let answer = match turn.text.strip_prefix("bytes ").map(str::parse::<usize>) {
        Some(Ok(bytes)) => format!("{{\"text\":\"{}\"}}", "b".repeat(bytes.min(MOST_BYTES))),
        _ if turn.text == "message" => format!("{{\"message\":{{\"parts\":[{{\"text\":\"{TEXT}\"}}]}}}}"),
        _ => format!("{{\"text\":\"{TEXT}\"}}"),
    };
    let mut response = Response::new(Full::new(Bytes::from(answer)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
