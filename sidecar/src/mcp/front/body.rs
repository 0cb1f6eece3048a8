//! Reads what a client sends: one message, bounded in size, depth and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt as _;

use super::refuse::{Refusal, refuse};

/// Deepest nesting of a client's message. Servers' own parsers give up between 128 and about 1,000 levels, some
/// without an answer.
pub const MAX_DEPTH: usize = 512;
/// A body that is too large is read on and thrown away up to this size, so that the client reads the answer.
const MAX_DISCARDED: usize = 64 << 20;
/// From the first byte of a body to its last.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A body of at most `limit` bytes.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_TIMEOUT, whole(body, limit)).await {
        Ok(body) => body,
        Err(_) => Err(refuse("slow_body", StatusCode::REQUEST_TIMEOUT, None, "the body took too long")),
    }
}

/// Without a copy when the body comes in one piece.
async fn whole(mut body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| refuse("broken_body", StatusCode::BAD_REQUEST, None, "the body ended too early"))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size > limit {
            (first, rest) = (None, BytesMut::new());
            if size > MAX_DISCARDED {
                break;
            }
        } else if first.is_none() && rest.is_empty() {
            first = Some(data);
        } else {
            if let Some(first) = first.take() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if size > limit {
        let message = format!("the body is larger than {limit} bytes (spec.process.maxLineBytes of the MCPServer)");
        return Err(refuse("too_large", StatusCode::PAYLOAD_TOO_LARGE, None, message));
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}
