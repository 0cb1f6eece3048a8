//! The Agent Card as it is served (A2A 1.0, section 8.2).

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL,
    CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use outrigger_protocol::config::Live;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// Where the card is served: the path of 1.0, and that of 0.2, which clients still ask.
pub const PATHS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

struct Rendered {
    of: Arc<Live>,
    body: Bytes,
    digest: String,
    etag: HeaderValue,
}

/// Serves the card of the live configuration.
pub struct Card {
    live: watch::Receiver<Arc<Live>>,
    rendered: ArcSwap<Rendered>,
}

impl Card {
    /// Follows the live configuration.
    pub fn new(live: watch::Receiver<Arc<Live>>) -> Self {
        let rendered = ArcSwap::from_pointee(render(&live.borrow()));
        Self { live, rendered }
    }

    fn current(&self) -> Arc<Rendered> {
        let rendered = self.rendered.load_full();
        let live = Arc::clone(&self.live.borrow());
        if Arc::ptr_eq(&rendered.of, &live) {
            return rendered;
        }
        let fresh = Arc::new(render(&live));
        self.rendered.store(Arc::clone(&fresh));
        fresh
    }

    /// SHA-256 of the card as served, hex.
    pub fn digest(&self) -> String {
        self.current().digest.clone()
    }

    /// Answers a request for the card. Any web page may read it: it is public and needs no credentials.
    pub fn respond(&self, method: &Method, headers: &HeaderMap) -> Response<Body> {
        let card = self.current();
        let mut response = Response::new(Body::empty());
        let out = response.headers_mut();
        out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        match *method {
            Method::GET | Method::HEAD => {}
            Method::OPTIONS => {
                out.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD"));
                out.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
                *response.status_mut() = StatusCode::NO_CONTENT;
                return response;
            }
            _ => {
                out.insert(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                return response;
            }
        }
        out.insert(ETAG, card.etag.clone());
        out.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=60"));
        if matches(headers, &card.etag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The server leaves the body out of the answer to HEAD and keeps its length.
        *response.body_mut() = Body::from(card.body.clone());
        response
    }
}

fn render(live: &Arc<Live>) -> Rendered {
    let body = live.card.to_string();
    let digest = format!("{:x}", Sha256::digest(body.as_bytes()));
    let etag = HeaderValue::from_str(&format!("W/\"{}\"", &digest[..16]))
        .unwrap_or_else(|_| HeaderValue::from_static("W/\"\""));
    Rendered { of: Arc::clone(live), body: body.into(), digest, etag }
}

/// Weak comparison with every tag of every `If-None-Match`; `*` matches.
fn matches(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let Ok(own) = etag.to_str().map(plain) else { return false };
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|tag| tag.trim() == "*" || plain(tag) == own)
}
