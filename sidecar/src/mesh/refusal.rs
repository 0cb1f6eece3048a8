//! Answers of ours in place of a peer's.

use axum::body::Body;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// Why a peer's answer is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not among the peers of the configuration.
    UnknownPeer,
    /// Its name does not resolve, or no address takes a connection.
    Unreachable,
    /// The connection ended after the request was sent.
    Broken,
    /// No first byte in time.
    Timeout,
    /// The request's body is too large.
    TooLarge,
    /// The caller's own request broke off.
    BadRequest,
    /// The peer's card is none.
    BadCard,
}

impl Reason {
    /// All of them.
    #[cfg(test)]
    pub const ALL: [Self; 7] = [
        Self::UnknownPeer,
        Self::Unreachable,
        Self::Broken,
        Self::Timeout,
        Self::TooLarge,
        Self::BadRequest,
        Self::BadCard,
    ];

    /// Label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownPeer => "unknown_peer",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
            Self::TooLarge => "too_large",
            Self::BadRequest => "bad_request",
            Self::BadCard => "bad_card",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::UnknownPeer => "UnknownPeer",
            Self::Unreachable => "PeerUnreachable",
            Self::Broken => "PeerBroken",
            Self::Timeout => "PeerTimeout",
            Self::TooLarge => "RequestTooLarge",
            Self::BadRequest => "BadRequest",
            Self::BadCard => "BadCard",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::UnknownPeer => StatusCode::NOT_FOUND,
            Self::Unreachable | Self::Broken | Self::BadCard => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BadRequest => StatusCode::BAD_REQUEST,
        }
    }
}

/// An answer of ours.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    message: String,
    known: Option<Vec<String>>,
}

impl Refusal {
    /// With a sentence for people.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), known: None }
    }

    /// No such peer, and which there are.
    pub fn unknown(segment: &str, known: &[String]) -> Self {
        let segment: String = segment.chars().take(128).collect();
        let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("this agent has no peer {segment:?}; it has: {list}. Peers are listed in spec.peers");
        Self { reason: Reason::UnknownPeer, message, known: Some(known.to_vec()) }
    }

    /// As HTTP: `{"error": {"reason", "message"}}`.
    pub fn response(&self) -> Response<Body> {
        let mut error = json!({"reason": self.reason.name(), "message": self.message});
        if let Some(known) = &self.known {
            error["known"] = json!(known);
        }
        let mut response = json(self.reason.status(), &json!({"error": error}));
        if self.reason == Reason::Unreachable {
            // Nothing was sent: a pod may be there in a moment.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_labels() {
        let labels: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
        assert!(labels.iter().all(|l| l.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
}
