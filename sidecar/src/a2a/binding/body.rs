//! Bodies of requests: how much of one is read, for how long, and what it is labelled as.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use outrigger_protocol::a2a::errors::{Error, Kind};

use crate::a2a::client::joined;

/// So much of a body that is too large is read and thrown away, so that its sender gets to read the answer.
const DISCARD: u64 = 64 << 20;
/// The same of a request whose caller is not let in: what a usual request has.
const DISCARD_REFUSED: u64 = 1 << 20;
/// For so long at most.
const DISCARD_LIMIT: Duration = Duration::from_secs(5);
/// A body must be whole this long after its head.
const BODY_LIMIT: Duration = Duration::from_mins(1);

/// The media type of a header value, without parameters.
fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// Whether a body is labelled as a media type.
pub(super) fn is_labelled(headers: &HeaderMap, media_type: &str) -> bool {
    headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| essence(v).eq_ignore_ascii_case(media_type))
}

/// JSON by any of its names; a request without a label is taken for it.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    if value == "application/json" {
        return Ok(());
    }
    let value = String::from_utf8_lossy(value.as_bytes());
    let essence = essence(&value);
    if ["application/json", "application/a2a+json"].iter().any(|t| essence.eq_ignore_ascii_case(t)) {
        return Ok(());
    }
    let shown: String = value.chars().take(100).collect();
    Err(Error::new(
        Kind::ContentTypeNotSupported,
        format!("content type {shown:?} is not taken, want application/json"),
    ))
}

/// Reads a body of at most `max` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, max: u64) -> Result<Bytes, Error> {
    let too_large = || {
        Error::new(Kind::TooLarge, format!("the body is larger than {max} bytes"))
            .with("maxRequestBytes", max.to_string())
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if let Some(length) = length.filter(|length| *length > max) {
        // One that asks first has sent nothing.
        if length <= DISCARD && !headers.contains_key(EXPECT) {
            discard(body, DISCARD).await;
        }
        return Err(too_large());
    }
    let broken = |e: &dyn std::fmt::Display| Error::new(Kind::Parse, format!("the body did not arrive: {e}"));
    let read = async {
        let mut body = body;
        let mut first = Bytes::new();
        let mut more = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|e| broken(&e))?.into_data() else { continue };
            if (first.len() + more.len() + data.len()) as u64 > max {
                drop((first, more, data));
                discard(body, DISCARD).await;
                return Err(too_large());
            }
            if first.is_empty() {
                first = data;
                if body.is_end_stream() {
                    break;
                }
                // One allocation for the rest when its length is known; never more than the limit.
                more.reserve(length.map_or(0, |l| usize::try_from(l).unwrap_or(0).saturating_sub(first.len())));
            } else {
                more.extend_from_slice(&data);
            }
        }
        Ok(joined(first, &more))
    };
    tokio::time::timeout(BODY_LIMIT, read)
        .await
        .unwrap_or_else(|_| Err(Error::new(Kind::Parse, "the body did not arrive in time")))
}

/// Reads the body of a caller who is not let in, unless it is large.
pub(super) async fn discard_refused(headers: &HeaderMap, body: Body) {
    if !headers.contains_key(EXPECT) {
        discard(body, DISCARD_REFUSED).await;
    }
}

async fn discard(mut body: Body, max: u64) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, |d| d.len() as u64);
            if bytes > max {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_LIMIT, rest).await;
}
