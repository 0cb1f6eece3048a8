//! Cards of peers: read whole, and their URLs led back here.

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use outrigger_protocol::a2a::raw::{Members, SplitError, text_of};
use outrigger_protocol::a2a::rewrite::{self, MAX_CARD, Place};
use outrigger_protocol::config::Peer;
use tokio::time::{Instant, timeout_at};

use super::balance::Pool;
use super::proxy::{Answered, Outgoing, class, pass, send};
use super::refusal::{Reason, Refusal};

/// Methods of JSON-RPC whose result is a card.
const METHODS: [&str; 2] = ["GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"];

/// Whether a request is one for a card: the well-known paths, and the extended card of 1.0 and 0.3; a tenant may stand
/// in front.
pub fn is_card(method: &Method, path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
    matches!(*method, Method::GET | Method::HEAD)
        && ["/.well-known/agent-card.json", "/.well-known/agent.json", "/extendedAgentCard", "/v1/card"]
            .iter()
            .any(|end| path.strip_suffix(end).is_some_and(|tenant| tenant.matches('/').count() <= 1))
}

/// Whether a JSON-RPC request asks for a card.
pub fn asks_for_card(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    let method = Members::split(text).ok().and_then(|m| m.get("method").and_then(text_of));
    method.is_some_and(|m| METHODS.contains(&m.as_ref()))
}

fn place<'a>(peer: &'a Peer, base: &'a str) -> Place<'a> {
    Place { base, name: &peer.name, namespace: &peer.namespace }
}

fn bad(error: &SplitError) -> Refusal {
    Refusal::new(Reason::BadCard, format!("the peer's card {error}"))
}

/// Fetches a card and answers with it as it is from here.
pub async fn serve(
    peer: &Peer,
    base: &str,
    pool: &Pool,
    path: String,
    request: Request<Body>,
    began: Instant,
) -> Result<Response<Body>, Refusal> {
    let (mut head, _) = request.into_parts();
    // The tags that the caller has are ours, and the text must be readable.
    let asked = head.headers.clone();
    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_MATCH, IF_UNMODIFIED_SINCE, RANGE, ACCEPT_ENCODING] {
        head.headers.remove(name);
    }
    let answered = send(Outgoing::get(head, path, pool), pool, began).await?;
    if answered.response.status() != StatusCode::OK {
        return Ok(pass(pool, answered));
    }
    let (mut head, text) = whole(pool, answered).await?;
    let card = rewrite::card(&text, place(peer, base)).map_err(|e| bad(&e))?;
    let tag = format!("W/\"{}\"", &outrigger_protocol::digest::sha256(card.as_bytes())[..16]);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        head.headers.insert(ETAG, tag);
    }
    head.headers.remove(LAST_MODIFIED);
    let body = if matches(&asked, &tag) {
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(CONTENT_TYPE);
        Body::empty()
    } else {
        Body::from(card)
    };
    pool.metrics.outcome(class(head.status));
    Ok(Response::from_parts(head, body))
}

/// Answers with the card that is the result of a JSON-RPC call.
pub async fn envelope(peer: &Peer, base: &str, pool: &Pool, answered: Answered) -> Result<Response<Body>, Refusal> {
    let media = answered.response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if answered.response.status() != StatusCode::OK || !media.contains("json") {
        return Ok(pass(pool, answered));
    }
    let (head, text) = whole(pool, answered).await?;
    let new = rewrite::envelope(&text, place(peer, base)).map_err(|e| bad(&e))?;
    pool.metrics.outcome(class(head.status));
    Ok(Response::from_parts(head, Body::from(new.unwrap_or(text))))
}

/// Reads an answer to its end, as text.
async fn whole(pool: &Pool, answered: Answered) -> Result<(http::response::Parts, String), Refusal> {
    let Answered { response, lease, began } = answered;
    let (mut head, body) = response.into_parts();
    if head.headers.contains_key(CONTENT_ENCODING) {
        return Err(Refusal::new(Reason::BadCard, "the peer's card is compressed, which was not asked for"));
    }
    let read = timeout_at(began + pool.timing.unary, Limited::new(body, MAX_CARD).collect()).await;
    let bytes: Bytes = match read {
        Ok(Ok(read)) => read.to_bytes(),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => {
            return Err(Refusal::new(Reason::BadCard, format!("the peer's card has more than {MAX_CARD} bytes")));
        }
        Ok(Err(e)) => return Err(Refusal::new(Reason::Broken, format!("the peer's card broke off: {e}"))),
        Err(_) => return Err(Refusal::new(Reason::Timeout, "the peer's card did not come to its end in time")),
    };
    lease.finish();
    let text =
        String::from_utf8(bytes.to_vec()).map_err(|_| Refusal::new(Reason::BadCard, "the peer's card is no UTF-8"))?;
    for name in [CONTENT_LENGTH, ACCEPT_RANGES] {
        head.headers.remove(name);
    }
    Ok((head, text))
}

/// Weak comparison with every tag of every `If-None-Match`; `*` matches.
fn matches(headers: &HeaderMap, own: &str) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|tag| tag.trim() == "*" || plain(tag) == plain(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_cards() {
        for path in [
            "/.well-known/agent-card.json",
            "/.well-known/agent.json?x",
            "/extendedAgentCard",
            "/tenant/extendedAgentCard",
            "/v1/card",
            "/tenant/.well-known/agent-card.json",
        ] {
            assert!(is_card(&Method::GET, path) && is_card(&Method::HEAD, path), "{path}");
            assert!(!is_card(&Method::POST, path));
        }
        for path in ["/", "/tasks/extendedAgentCard/x", "/a/b/extendedAgentCard", "/v1/cards", "/tasks/v1"] {
            assert!(!is_card(&Method::GET, path), "{path}");
        }
        assert!(asks_for_card(br#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#));
        assert!(asks_for_card(br#"{"method":"agent/getAuthenticatedExtendedCard"}"#));
        assert!(!asks_for_card(br#"{"method":"SendMessage","params":"GetExtendedAgentCard"}"#));
        assert!(!asks_for_card(b"\xff"));
    }
}
