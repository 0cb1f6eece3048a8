//! One request to a peer and its answer.

use std::error::Error as _;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use outrigger_protocol::config::Peer;
use tokio::time::{Instant, timeout_at};

use super::balance::Pool;
use super::body::{Limit, Passing};
use super::cards;
use super::connect::{Lease, SendError};
use super::headers::{end_to_end, forward};
use super::refusal::{Reason, Refusal};
use super::{Peers, Timing};

/// Largest body of a request to a peer.
pub const MAX_REQUEST: u64 = 64 << 20;
/// A request with an `Idempotency-Key` is kept up to this size, so that it can be sent again.
pub const MAX_REPLAY: u64 = 1 << 20;
/// A JSON request up to this size is looked at: it may ask for the extended card.
pub const MAX_LOOK: u64 = 4 << 10;
/// Times that a request is sent at most.
const MAX_SENDS: u32 = 3;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A request that can be sent, perhaps again.
pub struct Outgoing {
    head: Parts,
    path: String,
    body: Source,
}

enum Source {
    /// Passes through once; empty after it was sent.
    Once(Option<Body>),
    /// May be sent again.
    Whole(Bytes),
}

/// An answer whose body has not been read.
pub struct Answered {
    /// Head, hop-by-hop headers taken out.
    pub response: Response<Incoming>,
    /// The connection.
    pub lease: Lease,
    /// When the request came.
    pub began: Instant,
}

/// Answers a request for a peer.
pub async fn call(peers: &Peers, peer: &Peer, segment: &str, pool: &Pool, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let base = format!("{}/{segment}", peers.ctx.urls.agents);
    let done = async {
        let path = path_behind(request.uri(), segment);
        if cards::is_card(request.method(), &path) {
            return cards::serve(peer, &base, pool, path, request, began).await;
        }
        let (outgoing, asks_for_card) = outgoing(request, path, pool, began).await?;
        let answered = send(outgoing, pool, began).await?;
        if asks_for_card {
            return cards::envelope(peer, &base, pool, answered).await;
        }
        Ok(pass(pool, answered))
    };
    match done.await {
        Ok(response) => response,
        Err(refusal) => {
            pool.metrics.outcome(refusal.reason.label());
            tracing::info!(target: "transport", peer = pool.authority(), reason = refusal.reason.label(), ?refusal, "call to a peer failed");
            refusal.response()
        }
    }
}

/// What comes after `/agents/{segment}`, query included, at least a slash.
fn path_behind(uri: &Uri, segment: &str) -> String {
    let whole = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let rest = whole.get("/agents/".len() + segment.len()..).unwrap_or_default();
    if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Readies a request, and says whether it asks for the extended card by JSON-RPC.
async fn outgoing(
    request: Request<Body>,
    path: String,
    pool: &Pool,
    began: Instant,
) -> Result<(Outgoing, bool), Refusal> {
    let (head, body) = request.into_parts();
    let length = if body.is_end_stream() { Some(0) } else { length(&head.headers) };
    if length.is_some_and(|length| length > MAX_REQUEST) {
        return Err(too_large());
    }
    let json = head.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("json"));
    let look = head.method == Method::POST && json && length.is_some_and(|n| n <= MAX_LOOK);
    let keep = head.headers.contains_key(IDEMPOTENCY_KEY) && length.is_some_and(|n| n <= MAX_REPLAY);
    let (body, card) = if length == Some(0) || look || keep {
        let limit = usize::try_from(MAX_REPLAY).unwrap_or(usize::MAX);
        let whole = timeout_at(began + pool.timing.first_byte, Limited::new(body, limit).collect()).await;
        let whole = match whole {
            Ok(Ok(whole)) => whole.to_bytes(),
            Ok(Err(e)) => return Err(Refusal::new(Reason::BadRequest, format!("the request broke off: {e}"))),
            Err(_) => return Err(Refusal::new(Reason::BadRequest, "the request did not come to its end in time")),
        };
        let card = look && cards::asks_for_card(&whole);
        // What only was looked at is not kept for another time.
        let safe = keep || head.method.is_safe();
        (if safe { Source::Whole(whole) } else { Source::Once(Some(Body::from(whole))) }, card)
    } else {
        let limit = usize::try_from(MAX_REQUEST).unwrap_or(usize::MAX);
        (Source::Once(Some(Body::new(Limited::new(body, limit)))), false)
    };
    let mut outgoing = Outgoing { head, path, body };
    outgoing.ready(pool);
    Ok((outgoing, card))
}

impl Outgoing {
    /// A GET with these headers.
    pub fn get(mut head: Parts, path: String, pool: &Pool) -> Self {
        head.method = Method::GET;
        head.headers.remove(CONTENT_LENGTH);
        let mut outgoing = Self { head, path, body: Source::Whole(Bytes::new()) };
        outgoing.ready(pool);
        outgoing
    }

    fn ready(&mut self, pool: &Pool) {
        if self.head.version != Version::HTTP_2 {
            self.head.version = Version::HTTP_11;
        }
        forward(&mut self.head.headers, &pool.host, self.head.version);
    }

    /// The request; `None` when it was sent and cannot be sent again.
    fn request(&mut self, authority: &str) -> Option<Request<Body>> {
        let body = match &mut self.body {
            Source::Once(body) => body.take()?,
            Source::Whole(bytes) => Body::from(bytes.clone()),
        };
        let uri = if self.head.version == Version::HTTP_2 {
            format!("http://{authority}{}", self.path)
        } else {
            self.path.clone()
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = uri.parse().ok()?;
        *request.version_mut() = self.head.version;
        *request.headers_mut() = self.head.headers.clone();
        Some(request)
    }
}

/// Sends a request until it is answered, has failed, or may not be sent again.
pub async fn send(mut outgoing: Outgoing, pool: &Pool, began: Instant) -> Result<Answered, Refusal> {
    let Timing { first_byte, .. } = pool.timing;
    let whole = async {
        let mut sends = 0;
        loop {
            let mut lease = pool.lease(outgoing.head.version).await.map_err(|why| {
                Refusal::new(Reason::Unreachable, format!("the peer cannot be reached, nothing was sent: {why}"))
            })?;
            let Some(request) = outgoing.request(pool.authority()) else {
                return Err(Refusal::new(Reason::BadRequest, "the request's path is none"));
            };
            sends += 1;
            match lease.send(request).await {
                Ok(mut response) => {
                    pool.metrics.first_byte(began.elapsed());
                    end_to_end(response.headers_mut());
                    return Ok(Answered { response, lease, began });
                }
                Err(SendError::NotSent(request)) if sends < MAX_SENDS => {
                    pool.metrics.retry("not_sent");
                    if matches!(outgoing.body, Source::Once(_)) {
                        outgoing.body = Source::Once(Some(request.into_body()));
                    }
                }
                Err(SendError::NotSent(_)) => {
                    let why = "the peer's connections end before a request is sent";
                    return Err(Refusal::new(Reason::Unreachable, why));
                }
                Err(SendError::Broken(error)) => {
                    let refusal = broken(&error);
                    let again = matches!(outgoing.body, Source::Whole(_)) && sends < MAX_SENDS;
                    if refusal.reason != Reason::Broken || !again {
                        return Err(refusal);
                    }
                    pool.metrics.retry("broken");
                }
            }
        }
    };
    timeout_at(began + first_byte, whole).await.unwrap_or_else(|_| {
        let message = format!("the peer gave no answer within {} s", first_byte.as_secs_f64());
        Err(Refusal::new(Reason::Timeout, message))
    })
}

fn too_large() -> Refusal {
    Refusal::new(Reason::TooLarge, format!("a request to a peer has at most {MAX_REQUEST} bytes"))
}

/// A connection that broke off, or the caller's own body that did.
fn broken(error: &hyper::Error) -> Refusal {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    loop {
        if cause.is::<LengthLimitError>() {
            return too_large();
        }
        let Some(source) = cause.source() else { break };
        cause = source;
    }
    if error.is_user() || error.source().is_some_and(<dyn std::error::Error>::is::<axum::Error>) {
        return Refusal::new(Reason::BadRequest, format!("the request broke off: {cause}"));
    }
    let message = format!("the connection to the peer broke off before an answer: {cause}");
    Refusal::new(Reason::Broken, message)
}

/// Passes an answer through, its body in pieces.
pub fn pass(pool: &Pool, answered: Answered) -> Response<Body> {
    let Answered { response, lease, began } = answered;
    let limit = if streams(response.headers()) {
        Limit::Idle(pool.timing.stream_idle)
    } else {
        Limit::Total(pool.timing.unary, began)
    };
    let outcome = class(response.status());
    response.map(|body| Body::new(Passing::new(body, limit, lease, pool.metrics.clone(), outcome)))
}

/// Whether an answer goes on for as long as there is something to say.
fn streams(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["text/event-stream", "application/grpc"]
        .iter()
        .any(|s| media.len() >= s.len() && media[..s.len()].eq_ignore_ascii_case(s))
}

/// Label of a status.
pub fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (uri, rest) in [
            ("/agents/seller", "/"),
            ("/agents/seller?x=1", "/?x=1"),
            ("/agents/seller/", "/"),
            ("/agents/seller/tasks/a%2Fb:cancel?x=%20", "/tasks/a%2Fb:cancel?x=%20"),
            ("/agents/seller//x", "//x"),
        ] {
            assert_eq!(path_behind(&uri.parse().unwrap(), "seller"), rest, "{uri}");
        }
    }

    #[test]
    fn what_streams() {
        let with = |media: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, media.parse().unwrap());
            streams(&headers)
        };
        assert!(
            with("text/event-stream; charset=utf-8") && with("application/grpc+proto") && with("Text/Event-Stream")
        );
        assert!(!with("application/json") && !streams(&HeaderMap::new()));
    }
}
