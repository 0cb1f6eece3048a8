//! Why a message over HTTP is refused before any server sees it.

use serde_json::{Value, json};

use crate::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST, error_response};
use crate::mcp::{HANDSHAKE_REVISIONS, HEADER_MISMATCH, UNSUPPORTED_REVISION, revisions};

/// Longest piece of a request that an error repeats, in characters.
const MAX_SHOWN: usize = 64;

/// A fault of the client, with its HTTP status, JSON-RPC code and metric label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A required member of a modern request's `_meta` is not there.
    #[error("params._meta must have {0:?}")]
    MetaMissing(&'static str),
    /// A member of a modern request's `_meta` is of the wrong kind.
    #[error("{0:?} in params._meta must be {1}")]
    MetaType(&'static str, &'static str),
    /// A member stands twice, so that two readers may act on different values.
    #[error("params has {0:?} twice")]
    MemberTwice(&'static str),
    /// A header of a modern request is not there.
    #[error("the header {0} is missing")]
    HeaderMissing(&'static str),
    /// A header of a modern request is there more than once.
    #[error("the header {0} stands twice")]
    HeaderTwice(&'static str),
    /// A header of a modern request has characters that a header can't carry.
    #[error("the header {0} has characters that are not visible ASCII")]
    HeaderNotText(&'static str),
    /// A header has the mark of Base64 and is none.
    #[error("the header {0} is marked as Base64 and is not valid Base64 of UTF-8")]
    HeaderEncoding(&'static str),
    /// Header and body disagree.
    #[error("the header {name} is {header:?}, and the body says {body:?}")]
    HeaderDiffers {
        /// Name of the header.
        name: &'static str,
        /// Its value, shortened.
        header: String,
        /// What stands in the body, shortened.
        body: String,
    },
    /// A revision that is not served in this way.
    #[error("revision {requested:?} is not served here: see data.supported{hint}")]
    Unsupported {
        /// The revision, shortened.
        requested: String,
        /// What to do.
        hint: &'static str,
    },
    /// A header of a session's request is there more than once.
    #[error("the header {0} stands twice")]
    Twice(&'static str),
    /// A header of a session's request has characters that a header can't carry.
    #[error("the header {0} has characters that are not visible ASCII")]
    NotText(&'static str),
    /// A response, where clients send none.
    #[error("clients of this revision send no responses: answer with inputResponses in the request")]
    Response,
}

impl Fault {
    pub(super) fn unsupported(requested: &str) -> Self {
        let handshake = HANDSHAKE_REVISIONS.contains(&requested);
        let hint = if handshake { "; this one begins with initialize" } else { "" };
        Self::Unsupported { requested: shown(requested), hint }
    }

    pub(super) fn differs(name: &'static str, header: &str, body: &str) -> Self {
        Self::HeaderDiffers { name, header: shown(header), body: shown(body) }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        400
    }

    /// The JSON-RPC error code.
    pub fn code(&self) -> i32 {
        match self {
            Self::MetaMissing(_) | Self::MetaType(..) => INVALID_PARAMS,
            Self::HeaderMissing(_)
            | Self::HeaderTwice(_)
            | Self::HeaderNotText(_)
            | Self::HeaderEncoding(_)
            | Self::HeaderDiffers { .. } => HEADER_MISMATCH,
            Self::Unsupported { .. } => UNSUPPORTED_REVISION,
            Self::MemberTwice(_) | Self::Twice(_) | Self::NotText(_) | Self::Response => INVALID_REQUEST,
        }
    }

    /// The metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::MetaMissing(_) | Self::MetaType(..) => "meta",
            Self::HeaderMissing(_)
            | Self::HeaderTwice(_)
            | Self::HeaderNotText(_)
            | Self::HeaderEncoding(_)
            | Self::HeaderDiffers { .. }
            | Self::Twice(_)
            | Self::NotText(_) => "header",
            Self::Unsupported { .. } => "revision",
            Self::MemberTwice(_) => "twice",
            Self::Response => "unexpected_response",
        }
    }

    /// The `data` of the error.
    pub fn data(&self) -> Option<Value> {
        match self {
            Self::Unsupported { requested, .. } => Some(json!({"supported": revisions(), "requested": requested})),
            _ => None,
        }
    }

    /// The JSON-RPC error for the request with this raw id.
    pub fn response(&self, id: Option<&str>) -> Vec<u8> {
        error_response(id, self.code(), &self.to_string(), self.data().as_ref())
    }
}

/// A piece of a request, short enough to repeat.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
