//! The agent behind the sidecar: a handler of the executor contract that costs next to nothing. `bench-agent PORT`
//!
//! The text of the turn says what to answer: `message` gives a bare message, `bytes N` a task whose artifact has that
//! many bytes of text, `hold` 202 and nothing after it, `stream RATE COUNT` a stream of so many numbered lines, so many
//! in a second; anything else a task with a short one.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::time::{Interval, interval};

const TEXT: &str = "One burger, ready at 12:30.";
/// Largest turn it reads.
const MOST_TURN: usize = 8 << 20;
/// Most bytes it answers.
const MOST_BYTES: usize = 16 << 20;
/// Most lines of a stream in a second.
const MOST_RATE: u32 = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Turn<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    /// Lines of an earlier attempt that were kept.
    #[serde(default)]
    last_seq: u64,
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

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn handle(request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.method() != Method::POST {
        return Ok(status(StatusCode::OK));
    }
    let Ok(body) = Limited::new(request.into_body(), MOST_TURN).collect().await else {
        return Ok(status(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let body = body.to_bytes();
    let Ok(turn) = serde_json::from_slice::<Turn<'_>>(&body) else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let words: Vec<&str> = turn.text.split(' ').collect();
    let text = match words.as_slice() {
        ["hold"] => return Ok(status(StatusCode::ACCEPTED)),
        ["stream", rate, count] => {
            let (Ok(rate), Ok(count)) = (rate.parse::<u32>(), count.parse()) else {
                return Ok(status(StatusCode::BAD_REQUEST));
            };
            let period = Duration::from_secs(1) / rate.clamp(1, MOST_RATE);
            return Ok(answer(
                "text/event-stream",
                Lines { ticks: interval(period), at: turn.last_seq, count }.boxed(),
            ));
        }
        ["bytes", bytes] => {
            let bytes = bytes.parse::<usize>().unwrap_or_default().min(MOST_BYTES);
            format!("{{\"text\":\"{}\"}}", "b".repeat(bytes))
        }
        ["message"] => format!("{{\"message\":{{\"parts\":[{{\"text\":\"{TEXT}\"}}]}}}}"),
        _ => format!("{{\"text\":\"{TEXT}\"}}"),
    };
    Ok(answer("application/json", Full::from(text).boxed()))
}

fn answer(content_type: &'static str, body: BoxBody<Bytes, Infallible>) -> Answer {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn status(code: StatusCode) -> Answer {
    let mut response = Response::new(Full::default().boxed());
    *response.status_mut() = code;
    response
}

/// Lines with their number, from 1, and the time of the monotonic clock in nanoseconds; the last one ends the turn.
struct Lines {
    ticks: Interval,
    at: u64,
    count: u64,
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.at > self.count {
            return Poll::Ready(None);
        }
        ready!(self.ticks.poll_tick(context));
        self.at += 1;
        let data = if self.at > self.count {
            "data: {\"state\":\"completed\"}\n\n".to_owned()
        } else {
            let now = clock_gettime(ClockId::Monotonic);
            format!("data: {{\"text\":\"{} {}{:09};\"}}\n\n", self.at, now.tv_sec, now.tv_nsec)
        };
        Poll::Ready(Some(Ok(Frame::data(data.into()))))
    }
}
