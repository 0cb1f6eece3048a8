//! A2A over gRPC (A2A 1.0, section 10), of 1.0 and 0.3, on the same port: HTTP/2 without TLS.

mod body;
mod health;
mod schema;
pub(crate) mod status;

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::extensions::DELIVERY;
use outrigger_protocol::a2a::method;
use outrigger_protocol::a2a::operation::{Binding, Dialect};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::meter::Counted;
use super::{Asked, Front, Operations, Payload, body as request_body, render};
use crate::a2a::call::Answer;

pub use schema::{Rpc, Schema, frame, to_json};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Longest time that a caller can allow: what is longer is no limit.
const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// Answers one call.
pub(super) async fn handle<S: Operations>(front: &Front<S>, head: Parts, body: Body) -> Response<Body> {
    let mut counted = front.meter.begin(Binding::Grpc);
    if head.version != Version::HTTP_2 {
        counted.end(Some("invalid_request"));
        return bare(StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    }
    if !["application/grpc", "application/grpc+proto"].iter().any(|t| request_body::is_labelled(&head.headers, t)) {
        counted.end(Some("content_type_not_supported"));
        return bare(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    if head.uri.path() == health::CHECK {
        let response = health::check(&head.headers, body, front.service.serving()).await;
        counted.end(None);
        return response;
    }
    let rpc = match call_at(head.uri.path()) {
        Ok(rpc) => rpc,
        Err(error) => return refusal(&error, None, counted),
    };
    (counted.operation, counted.dialect) = (Some(rpc.operation), Some(rpc.dialect));
    let deadline = match deadline(&head.headers) {
        Ok(deadline) => deadline,
        Err(error) => return refusal(&error, Some(rpc.dialect), counted),
    };
    let answer = answer(front, &head, body, rpc);
    let made = match deadline {
        None => Ok(answer.await),
        Some(at) => timeout_at(at, answer).await,
    };
    let Ok(made) = made else {
        counted.end(Some("deadline_exceeded"));
        return trailers_only(status::deadline(), Some(rpc.dialect));
    };
    let (payload, about) = match made {
        Ok(made) => (made.payload, made.about),
        Err(error) => return refusal(&error, Some(rpc.dialect), counted),
    };
    let mut response = match payload {
        Payload::Unary(answer) => match message(rpc, &answer) {
            Ok(bytes) => {
                counted.end(None);
                Response::new(Body::new(body::Unary::new(bytes, status::ok())))
            }
            Err(error) => return refusal(&error, Some(rpc.dialect), counted),
        },
        Payload::Stream(opened) => {
            let events = opened.events(&front.shutdown, counted);
            let ids = about.extensions.iter().any(|uri| uri == DELIVERY);
            Response::new(Body::new(body::Streamed::new(events, rpc, deadline, ids)))
        }
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    render::about(&about, rpc.dialect, headers);
    response
}

fn call_at(path: &str) -> Result<&'static Rpc, Error> {
    let schema = Schema::get().ok_or_else(|| Error::new(Kind::Internal, "the sidecar was built without gRPC"))?;
    schema.at(path).ok_or_else(|| method::unknown(path))
}

async fn answer<S: Operations>(
    front: &Front<S>,
    head: &Parts,
    body: Body,
    rpc: &'static Rpc,
) -> Result<super::Made, Error> {
    let (caller, body) = front.admit(&head.headers, body).await?;
    if let Some(encoding) = head.headers.get(GRPC_ENCODING).filter(|e| *e != "identity") {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).chars().take(32).collect::<String>();
        return Err(Error::new(Kind::MethodNotFound, format!("compression {encoding:?} is not taken: send identity"))
            .header("grpc-accept-encoding", "identity"));
    }
    let max = front.max_request_bytes();
    let bytes = request_body::read(&head.headers, body, max.saturating_add(schema::PREFIX as u64)).await?;
    let params = to_json(&rpc.input, one_message(&bytes)?)?;
    drop(bytes);
    let params: &RawValue = serde_json::from_str(&params)
        .map_err(|e| Error::new(Kind::Internal, format!("the message as JSON is none: {e}")))?;
    let asked = Asked { operation: rpc.operation, dialect: rpc.dialect, binding: Binding::Grpc, head, caller };
    front.carry_out(asked, Some(params)).await
}

/// The one message of a request.
fn one_message(body: &Bytes) -> Result<&[u8], Error> {
    let invalid = |message: &str| Error::new(Kind::InvalidRequest, message);
    let Some((prefix, rest)) = body.split_first_chunk::<{ schema::PREFIX }>() else {
        return Err(invalid("the request has no message"));
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(invalid("the message is compressed, but grpc-encoding names no compression"));
    }
    match u32::from_be_bytes(length) as usize {
        length if length == rest.len() => Ok(rest),
        length if length > rest.len() => Err(invalid("the message is shorter than its prefix says")),
        _ => Err(invalid("the request has more than one message")),
    }
}

/// A result as a message behind its prefix.
fn message(rpc: &Rpc, answer: &Answer) -> Result<Bytes, Error> {
    if matches!(answer, Answer::Nothing) {
        return Ok(schema::empty());
    }
    let mut json = String::with_capacity(answer.capacity());
    render::result(rpc.operation, rpc.dialect, answer, &mut json)?;
    let mut out = BytesMut::new();
    frame(&rpc.output, &json, &mut out)?;
    Ok(out.freeze())
}

/// When the caller stops waiting, by `grpc-timeout`.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Error> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let bad = || Error::new(Kind::InvalidRequest, "grpc-timeout must be at most 8 digits and one of H, M, S, m, u, n");
    let (unit, digits) = value.as_bytes().split_last().ok_or_else(bad)?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    let n = digits.iter().fold(0_u64, |n, d| n * 10 + u64::from(d - b'0'));
    let allowed = match unit {
        b'H' => Duration::from_secs(n * 3600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return Err(bad()),
    };
    Ok((allowed <= MAX_TIMEOUT).then(|| Instant::now() + allowed))
}

/// An answer without a message.
fn refusal(error: &Error, dialect: Option<Dialect>, counted: Counted) -> Response<Body> {
    render::log(error, counted.operation);
    counted.end(Some(error.kind.label()));
    trailers_only(status::failed_in(error, dialect), dialect)
}

fn trailers_only(mut trailers: HeaderMap, dialect: Option<Dialect>) -> Response<Body> {
    trailers.insert(CONTENT_TYPE, GRPC);
    trailers.entry(GRPC_ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
    if let Some(dialect) = dialect {
        render::speaks(dialect, &mut trailers);
    }
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = trailers;
    response
}

fn bare(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, text.parse().unwrap());
            deadline(&headers).map(|d| d.map(|d| d.saturating_duration_since(Instant::now())))
        };
        for (text, ms) in [("1S", 1_000), ("100m", 100), ("2M", 120_000), ("5H", 18_000_000), ("00000010S", 10_000)] {
            let got = of(text).unwrap().unwrap();
            assert!(got.as_millis().abs_diff(ms) <= 50, "{text}: {got:?}");
        }
        assert!(of("99999999H").unwrap().is_none());
        for text in ["", "S", "1", "123456789S", "1s", "-1S", "1.5S"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!(deadline(&HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn one_message_and_no_more() {
        let of = |bytes: &'static [u8]| one_message(&Bytes::from_static(bytes)).map(<[u8]>::len);
        assert_eq!(of(b"\0\0\0\0\x02ab").unwrap(), 2);
        for bad in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x03ab", b"\0\0\0\0\x01ab", b"\x01\0\0\0\x01a"] {
            assert_eq!(of(bad).unwrap_err().kind, Kind::InvalidRequest);
        }
    }
}
