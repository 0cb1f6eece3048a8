//! Why a server over HTTP did not take or answer a message, in words that say where to look.

use crate::outbound;

/// A failure of one message, or of the whole connection. The variant is the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection, or a name without an address.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// Its address is not allowed; nothing was sent.
    #[error("the server's address is refused: {0}; add it to transport.remote.allow of the MCPServer")]
    AddressRefused(String),
    /// TLS failed.
    #[error("TLS with the server failed: {0}")]
    Tls(String),
    /// It asks who calls.
    #[error("the server answered {0}: the headers of transport.remote.headersFrom do not let this Agent in")]
    Unauthorized(u16),
    /// A Standalone server does not let this Agent in.
    #[error("the server does not let this Agent in ({0}): {1}")]
    Forbidden(u16, String),
    /// A redirect, which would take credentials elsewhere.
    #[error("the server redirects to {0:?}, which is not followed: set the URL that it names")]
    Redirected(String),
    /// A status that says no.
    #[error("the server answered {0}{1}")]
    Status(u16, String),
    /// An answer of another kind.
    #[error("the server answered with {0:?}, which is no MCP")]
    NotMcp(String),
    /// An answer or event beyond the limit.
    #[error("the server's message is longer than {0} bytes (spec.process.maxLineBytes of the MCPServer)")]
    TooLarge(usize),
    /// The answer ended before the response.
    #[error("the connection broke before the response: {0}")]
    Broken(String),
    /// It took too long.
    #[error("the server did not respond within {0} s")]
    Timeout(u64),
    /// It forgot its session, and a new one could not be made.
    #[error("the server ended the session, and a new one could not be made: {0}")]
    SessionLost(String),
    /// As many messages as may be are on their way.
    #[error("the server takes no more messages for now")]
    Overloaded,
    /// The connection was ended from this side.
    #[error("the connection was ended")]
    Closed,
}

impl Error {
    /// One word in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "Unreachable",
            Self::AddressRefused(_) => "AddressRefused",
            Self::Tls(_) => "TlsFailed",
            Self::Unauthorized(_) => "Unauthorized",
            Self::Forbidden(..) => "Forbidden",
            Self::Redirected(_) => "Redirected",
            Self::Status(..) => "BadStatus",
            Self::NotMcp(_) => "NotMcp",
            Self::TooLarge(_) => "LineTooLong",
            Self::Broken(_) => "ConnectionBroken",
            Self::Timeout(_) => "RequestTimeout",
            Self::SessionLost(_) => "SessionLost",
            Self::Overloaded => "Overloaded",
            Self::Closed => "SessionEnded",
        }
    }

    /// Whether the server is gone, as far as this connection is concerned: no other message will fare better.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::AddressRefused(_)
                | Self::Tls(_)
                | Self::Unauthorized(_)
                | Self::Forbidden(..)
                | Self::Redirected(_)
                | Self::SessionLost(_)
        )
    }
}

impl From<outbound::Error> for Error {
    fn from(error: outbound::Error) -> Self {
        match error {
            outbound::Error::Refused(refusal) => Self::AddressRefused(refusal.to_string()),
            outbound::Error::Tls(why) => Self::Tls(why),
            outbound::Error::Broken(why) => Self::Broken(why),
            outbound::Error::Timeout(after) => Self::Timeout(after.as_secs()),
            unreachable @ (outbound::Error::Resolve { .. } | outbound::Error::Connect(_)) => {
                Self::Unreachable(unreachable.to_string())
            }
        }
    }
}
