//! Why the operator did not give what it was asked for.

use std::time::Duration;

use http::StatusCode;

use crate::outbound;
use crate::outbound::tls::TlsError;

/// The variant is the reason in `/status` and, in snake case, the label of the metric.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The live document names no control API.
    #[error("the live document names no control API")]
    NotConfigured,
    /// The token of the ServiceAccount cannot be read.
    #[error("the token of this pod's ServiceAccount cannot be read: {0}")]
    TokenUnreadable(String),
    /// The live document names it in a way that cannot be used.
    #[error("the control API cannot be used: {0}")]
    BadAddress(String),
    /// The certificates to trust cannot be used.
    #[error(transparent)]
    BadAuthority(#[from] TlsError),
    /// No answer.
    #[error("the operator cannot be reached: {0}")]
    Unreachable(#[from] outbound::Error),
    /// A stream without a sign of life.
    #[error("the operator has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// It answered, and not with what was asked for.
    #[error("the operator answered {status}: {message}")]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// One word in CamelCase; empty when the answer does not say.
        reason: String,
        /// Its sentence.
        message: String,
        /// When it is worth another try.
        retry_after: Option<Duration>,
    },
    /// It answered with something that makes no sense.
    #[error("the answer of the operator cannot be used: {0}")]
    BadAnswer(String),
}

impl ControlError {
    /// Labels of all variants.
    pub const LABELS: [&'static str; 8] = [
        "not_configured",
        "token_unreadable",
        "bad_address",
        "bad_authority",
        "unreachable",
        "silent",
        "refused",
        "bad_answer",
    ];

    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::NotConfigured => ("NotConfigured", "not_configured"),
            Self::TokenUnreadable(_) => ("TokenUnreadable", "token_unreadable"),
            Self::BadAddress(_) => ("BadAddress", "bad_address"),
            Self::BadAuthority(_) => ("BadAuthority", "bad_authority"),
            Self::Unreachable(_) => ("ControlUnreachable", "unreachable"),
            Self::Silent(_) => ("ControlSilent", "silent"),
            Self::Refused { .. } => ("ControlRefused", "refused"),
            Self::BadAnswer(_) => ("BadAnswer", "bad_answer"),
        }
    }

    /// As the reason of a condition.
    pub fn reason(&self) -> &'static str {
        self.names().0
    }

    /// As a metric label.
    pub fn label(&self) -> &'static str {
        self.names().1
    }

    /// When it is worth another try, if the operator said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
