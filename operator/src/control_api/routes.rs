//! The requests of sidecars.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use outrigger_protocol::control::{BUNDLES, LIVE, MAX_PROPOSAL_BYTES, PROPOSALS, Proposal, WATCH};
use tokio_util::sync::CancellationToken;

use super::bundles::Bundles;
use super::documents::{Document, Documents, Following};
use super::refused::Refused;
use super::review::{Caller, Reviewer};
use super::stream::{self, Streams};
use crate::metrics::Metrics;

/// What the requests are answered from.
pub struct Served {
    /// Who calls.
    pub reviewer: Reviewer,
    /// The documents.
    pub documents: Documents,
    /// The bundles.
    pub bundles: Bundles,
    /// Open streams.
    pub streams: Streams,
    /// Counts.
    pub metrics: Metrics,
    /// Ends the streams.
    pub shutdown: CancellationToken,
    /// Seconds of Unix time.
    pub clock: fn() -> i64,
}

/// The routes.
pub fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route(LIVE, get(live))
        .route(WATCH, get(watch))
        .route(&format!("{BUNDLES}/{{digest}}"), get(bundle))
        .route(PROPOSALS, post(propose))
        .fallback(nowhere)
        .with_state(served)
}

async fn nowhere(State(served): State<Arc<Served>>) -> Response {
    served.answer("other", Err(Refused::NotFound("the control API has no such path".into())))
}

async fn live(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    let answer = async {
        let (_, following) = served.caller(&headers).await?;
        let document = newest(&following)?;
        Ok(conditional(&headers, &document.etag, || {
            let mut response = Response::new(Body::from(document.text.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
            response
        }))
    };
    served.answer("live", answer.await)
}

async fn watch(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    let answer = async {
        let (caller, following) = served.caller(&headers).await?;
        let open = served.streams.open(&caller.account)?;
        let left = caller.expires - (served.clock)();
        let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
        let last = headers.get("last-event-id").and_then(|v| v.to_str().ok());
        let mut response = Response::new(stream::body(following, last, left, open, served.shutdown.clone()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    };
    served.answer("watch", answer.await)
}

async fn bundle(State(served): State<Arc<Served>>, Path(digest): Path<String>, headers: HeaderMap) -> Response {
    let answer = async {
        let (caller, following) = served.caller(&headers).await?;
        let document = newest(&following)?;
        let named = document.bundles.get(&digest).ok_or_else(|| {
            Refused::NotYours(format!("the live document of {} names no skill with this digest", caller.account.name))
        })?;
        if let Some(unchanged) = unchanged(&headers, &digest) {
            return Ok(unchanged);
        }
        let bytes = served.bundles.get(&caller.account.namespace, &digest, named).await?;
        Ok(conditional(&headers, &digest, || {
            let mut response = Response::new(Body::from(bytes));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/gzip"));
            let forever = HeaderValue::from_static("private, max-age=31536000, immutable");
            response.headers_mut().insert(CACHE_CONTROL, forever);
            response
        }))
    };
    served.answer("bundle", answer.await)
}

async fn propose(State(served): State<Arc<Served>>, request: Request) -> Response {
    let answer = async {
        let (parts, body) = request.into_parts();
        let (_, following) = served.caller(&parts.headers).await?;
        let document = newest(&following)?;
        let too_large = || Refused::TooLarge(format!("a proposal has at most {MAX_PROPOSAL_BYTES} bytes"));
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|l| l > MAX_PROPOSAL_BYTES) {
            return Err(too_large());
        }
        let body = to_bytes(body, MAX_PROPOSAL_BYTES).await.map_err(|_| too_large())?;
        let proposal: Proposal = serde_json::from_slice(&body)
            .map_err(|e| Refused::Malformed(format!("the proposal does not parse: {e}")))?;
        let is_new = proposal.base_digest.is_empty();
        let may = document.evolving.contains(&proposal.skill) || (is_new && document.new_skills);
        if !may {
            let skill = &proposal.skill;
            return Err(Refused::EvolutionDisabled(if is_new {
                format!("this agent may not propose the new skill {skill}")
            } else {
                format!("the Skill {skill} takes no proposals of this agent: spec.evolution.mode is not Propose")
            }));
        }
        Err(Refused::Unsupported("this operator does not keep proposals".into()))
    };
    served.answer("proposal", answer.await)
}

impl Served {
    /// Who calls, and what it may see.
    async fn caller(&self, headers: &HeaderMap) -> Result<(Caller, Following), Refused> {
        let token = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(bearer);
        let caller = self.reviewer.admit(token).await?;
        match self.documents.follow(&caller.account) {
            Some(following) => Ok((caller, following)),
            None if !self.documents.complete() => Err(Refused::Starting),
            None => Err(Refused::NotYours(format!(
                "ServiceAccount {} of namespace {} is that of no Agent or Standalone MCPServer",
                caller.account.name, caller.account.namespace
            ))),
        }
    }

    /// Counts and writes an answer.
    fn answer(&self, operation: &str, answer: Result<Response, Refused>) -> Response {
        let outcome = match &answer {
            Ok(response) if response.status() == StatusCode::NOT_MODIFIED => "not_modified",
            Ok(_) => "ok",
            Err(refused) => refused.label(),
        };
        self.metrics.control.requests.with_label_values(&[operation, outcome]).inc();
        match answer {
            Ok(response) => response,
            Err(refused) => {
                tracing::debug!(operation, outcome, text = %refused, "a request of a sidecar was refused");
                refused.into_response()
            }
        }
    }
}

/// The newest document; it may have gone since it was looked up.
fn newest(following: &Following) -> Result<Arc<Document>, Refused> {
    following.borrow().clone().ok_or_else(|| Refused::NotFound("the live document is gone".into()))
}

/// The token of `Authorization: Bearer` (RFC 6750, section 2.1); the scheme's case does not matter.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// 304 where the reader has it already (RFC 9110, section 13.1.2).
fn unchanged(headers: &HeaderMap, etag: &str) -> Option<Response> {
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    let is = |tag: &str| {
        let tag = tag.trim();
        let tag = tag.strip_prefix("W/").unwrap_or(tag);
        tag == "*" || tag.trim_matches('"') == etag
    };
    let same = given.flat_map(|v| v.split(',')).any(is);
    same.then(|| tagged(StatusCode::NOT_MODIFIED.into_response(), etag))
}

fn conditional(headers: &HeaderMap, etag: &str, whole: impl FnOnce() -> Response) -> Response {
    unchanged(headers, etag).unwrap_or_else(|| tagged(whole(), etag))
}

fn tagged(mut response: Response, etag: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{etag}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_tags_as_clients_write_them() {
        assert_eq!(bearer("Bearer a.b.c"), Some("a.b.c"));
        assert_eq!(bearer("bearer  a.b.c "), Some("a.b.c"));
        assert_eq!((bearer("Basic x"), bearer("Bearer")), (None, None));
        for (given, same) in [("\"x\"", true), ("W/\"x\"", true), ("\"y\", \"x\"", true), ("*", true), ("\"y\"", false)]
        {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static(given))]);
            assert_eq!(unchanged(&headers, "x").is_some(), same, "{given}");
        }
        assert!(unchanged(&HeaderMap::new(), "x").is_none());
    }
}
