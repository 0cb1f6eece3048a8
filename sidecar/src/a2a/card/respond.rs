//! HTTP around the card: validators, other origins, who gets which rendering.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL,
    CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER, VARY,
};
use http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode};

use super::{Card, Peer, origin};

/// A reader that asks while the first calls of our own are under way waits for them so long.
const FIRST_TRUTH: Duration = Duration::from_secs(5);

impl Card {
    /// Answers a request for the card. Any web page may read it: it is public and needs no credentials.
    pub async fn respond(&self, method: &Method, headers: &HeaderMap, extensions: &Extensions) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        if !public(method, response.headers_mut()) {
            *response.status_mut() =
                if *method == Method::OPTIONS { StatusCode::NO_CONTENT } else { StatusCode::METHOD_NOT_ALLOWED };
            return response;
        }
        let mut facts = self.facts.clone();
        let known = tokio::time::timeout(FIRST_TRUTH, facts.wait_for(|f| f.known())).await;
        if !matches!(known, Ok(Ok(_))) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return response;
        }
        drop(known);
        let peer = extensions.get::<Peer>().copied();
        let rendered = self.rendered(self.forwarded(peer, headers));
        let document = match &rendered.signed {
            Some(signed) if asks_for_v1(headers) => signed,
            _ => &rendered.shared,
        };
        let out = response.headers_mut();
        if rendered.signed.is_some() {
            out.append(VARY, HeaderValue::from_static("A2A-Version"));
        }
        if !self.live.borrow().offer.trusted_proxies.is_empty() {
            out.append(VARY, HeaderValue::from_static(origin::VARY));
        }
        out.insert(ETAG, document.etag.clone());
        out.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=60"));
        if let Ok(date) = HeaderValue::from_str(&date(document.since)) {
            out.insert(LAST_MODIFIED, date);
        }
        if not_modified(headers, &document.etag, document.since) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The server leaves the body out of the answer to HEAD and keeps its length.
        *response.body_mut() = Body::from(document.body.clone());
        response
    }
}

/// Answers a request for public keys.
pub(crate) fn keys(method: &Method, keys: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if !public(method, response.headers_mut()) {
        *response.status_mut() =
            if *method == Method::OPTIONS { StatusCode::NO_CONTENT } else { StatusCode::METHOD_NOT_ALLOWED };
        return response;
    }
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static("application/jwk-set+json"));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=60"));
    *response.body_mut() = Body::from(keys.to_string());
    response
}

/// Headers for readers of another origin; says whether there is more to the answer.
fn public(method: &Method, out: &mut HeaderMap) -> bool {
    out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    match *method {
        Method::GET | Method::HEAD => return true,
        Method::OPTIONS => {
            out.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD"));
            out.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
        }
        _ => {
            out.insert(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
        }
    }
    false
}

/// Whether the reader says that it knows 1.0.
fn asks_for_v1(headers: &HeaderMap) -> bool {
    let version = headers.get("a2a-version").and_then(|v| v.to_str().ok()).unwrap_or_default().trim();
    version == "1" || version.starts_with("1.")
}

/// Weak comparison with every tag of every `If-None-Match`; `*` matches. The date counts only without any tag.
fn not_modified(headers: &HeaderMap, etag: &HeaderValue, since: SystemTime) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let mut tags = headers.get_all(IF_NONE_MATCH).iter().peekable();
    if tags.peek().is_some() {
        let Ok(own) = etag.to_str().map(plain) else { return false };
        return tags
            .filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(','))
            .any(|tag| tag.trim() == "*" || plain(tag) == own);
    }
    let given = headers.get(IF_MODIFIED_SINCE).and_then(|v| v.to_str().ok());
    // To the second, as the header is; what no one but us writes is compared as text.
    given.is_some_and(|given| {
        let parsed = jiff::fmt::rfc2822::parse(given).map(|z| z.timestamp().as_second());
        let own = jiff::Timestamp::try_from(since).map(jiff::Timestamp::as_second);
        matches!((parsed, own), (Ok(given), Ok(own)) if own <= given)
    })
}

/// A date as HTTP has it (RFC 9110, section 5.6.7).
fn date(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap_or_default()
}

/// The address in its plain form.
pub fn peer(address: IpAddr) -> Peer {
    Peer(address.to_canonical())
}
