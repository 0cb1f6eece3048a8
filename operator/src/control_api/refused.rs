//! Why a request of a sidecar is refused, as it is told and counted.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use outrigger_protocol::control::Refusal;

/// Why a request is refused. The variant is the reason in the answer and, in snake case, the label of the metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no token.
    #[error("the control API is for sidecars, which send the token of their ServiceAccount as a bearer token")]
    NoToken,
    /// What is sent is no token of a ServiceAccount.
    #[error("the token is not one that Kubernetes signs for ServiceAccounts")]
    MalformedToken,
    /// The token is for somebody else.
    #[error("the token is not for the audience outrigger.dev")]
    WrongAudience,
    /// The token was good once.
    #[error("the token has expired")]
    ExpiredToken,
    /// The API server does not know the token.
    #[error("the token is not accepted: {0}")]
    NotAuthenticated(String),
    /// The caller is known, and what it asks for is not its own.
    #[error("{0}")]
    NotYours(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The skill is not one that agents may propose changes to.
    #[error("{0}")]
    EvolutionDisabled(String),
    /// The request is larger than one may be.
    #[error("{0}")]
    TooLarge(String),
    /// The body does not parse.
    #[error("{0}")]
    Malformed(String),
    /// So many streams of one caller, or of all, are open already.
    #[error("{0}")]
    TooManyStreams(String),
    /// This replica has not seen the documents yet.
    #[error("this replica has just started and does not know the documents yet")]
    Starting,
    /// The API server does not answer, so nothing can be told of the caller, or read for it.
    #[error("the API server cannot be asked: {0}")]
    Unavailable(String),
    /// Too much at once.
    #[error("too many requests wait for the API server")]
    Busy,
    /// What is kept in the cluster is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// A part that this operator does not have.
    #[error("{0}")]
    Unsupported(String),
}

/// After this many seconds it is worth another try.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("5");

impl Refused {
    /// Labels of all variants.
    pub const LABELS: [&'static str; 16] = [
        "no_token",
        "malformed_token",
        "wrong_audience",
        "expired_token",
        "not_authenticated",
        "not_yours",
        "not_found",
        "evolution_disabled",
        "too_large",
        "malformed",
        "too_many_streams",
        "starting",
        "unavailable",
        "busy",
        "damaged",
        "unsupported",
    ];

    fn parts(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::NoToken => (StatusCode::UNAUTHORIZED, "NoToken", "no_token"),
            Self::MalformedToken => (StatusCode::UNAUTHORIZED, "MalformedToken", "malformed_token"),
            Self::WrongAudience => (StatusCode::UNAUTHORIZED, "WrongAudience", "wrong_audience"),
            Self::ExpiredToken => (StatusCode::UNAUTHORIZED, "ExpiredToken", "expired_token"),
            Self::NotAuthenticated(_) => (StatusCode::UNAUTHORIZED, "NotAuthenticated", "not_authenticated"),
            Self::NotYours(_) => (StatusCode::FORBIDDEN, "NotYours", "not_yours"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "NotFound", "not_found"),
            Self::EvolutionDisabled(_) => (StatusCode::NOT_FOUND, "EvolutionDisabled", "evolution_disabled"),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "TooLarge", "too_large"),
            Self::Malformed(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Malformed", "malformed"),
            Self::TooManyStreams(_) => (StatusCode::TOO_MANY_REQUESTS, "TooManyStreams", "too_many_streams"),
            Self::Starting => (StatusCode::SERVICE_UNAVAILABLE, "Starting", "starting"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "Unavailable", "unavailable"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "Busy", "busy"),
            Self::Damaged(_) => (StatusCode::SERVICE_UNAVAILABLE, "Damaged", "damaged"),
            Self::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "Unsupported", "unsupported"),
        }
    }

    /// Label of the metric.
    pub fn label(&self) -> &'static str {
        self.parts().2
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, reason, _) = self.parts();
        let refusal = Refusal { reason: reason.into(), message: self.to_string() };
        let mut response = (status, axum::Json(refusal)).into_response();
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, RETRY_SECONDS);
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_when_to_come_again_and_how_to_prove_oneself() {
        let response = Refused::NoToken.into_response();
        assert_eq!(
            (response.status().as_u16(), response.headers()[WWW_AUTHENTICATE].to_str().unwrap()),
            (401, "Bearer")
        );
        for refused in [Refused::Busy, Refused::Starting, Refused::TooManyStreams(String::new())] {
            assert!(Refused::LABELS.contains(&refused.label()));
            assert!(refused.into_response().headers().contains_key(RETRY_AFTER));
        }
        let own = Refused::NotYours("no".into()).into_response();
        assert_eq!((own.status().as_u16(), own.headers().contains_key(RETRY_AFTER)), (403, false));
    }
}
