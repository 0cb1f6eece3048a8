//! What passes between a binding and the service: who asks, in which dialect, and what the answer is made of.

use std::sync::Arc;

use futures::stream::BoxStream;
use http::HeaderMap;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::extensions::{self, HEADER, HEADER_V03, MAX_EXTENSIONS};
use outrigger_protocol::a2a::operation::{Binding, Dialect};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::task::Task;
use parking_lot::Mutex;

use super::ids::Trace;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose tasks they are: from issuer, subject and tenant; empty for the anonymous caller without a tenant.
    pub key: Arc<str>,
    /// The identity that was proved.
    pub identity: Option<Arc<Identity>>,
}

/// An identity that was proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the caller at its issuer.
    pub subject: String,
    /// Issuer of its token; `api-key` for a key.
    pub issuer: String,
    /// Scopes of its token.
    pub scopes: Vec<String>,
}

impl Caller {
    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Self { key: "".into(), identity: None }
    }

    /// The same within a tenant: what it owns there is not what it owns elsewhere.
    #[must_use]
    pub fn in_tenant(self, tenant: Option<&str>) -> Self {
        match tenant.filter(|t| !t.is_empty()) {
            // A control character is in no key otherwise, so that no two pairs are alike.
            Some(tenant) => Self { key: format!("{tenant}\u{1f}{}", self.key).into(), ..self },
            None => self,
        }
    }
}

/// A request apart from its operation and parameters.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who asks.
    pub caller: Caller,
    /// The caller's trace.
    pub trace: Trace,
    /// How it came.
    pub binding: Binding,
    /// How it was written: parameters and results of the service are always 1.0; push notifications keep this dialect.
    pub dialect: Dialect,
    /// Extensions that the caller asked for (`A2A-Extensions`), in order.
    pub extensions: Vec<String>,
    /// `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// `Last-Event-ID`: the last event that the caller has.
    pub last_event_id: Option<String>,
    /// Extensions that the agent puts to use.
    pub used: Used,
}

/// Extensions that the agent says it put to use, for the head of the answer: known once its own answer has begun.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<Mutex<Option<Vec<String>>>>);

impl Used {
    /// Adds some; an empty list says that there are none.
    pub fn add(&self, uris: Vec<String>) {
        let mut used = self.0.lock();
        let used = used.get_or_insert_default();
        for uri in uris {
            if !used.contains(&uri) && used.len() < MAX_EXTENSIONS {
                used.push(uri);
            }
        }
    }

    /// Adds those of the header `A2A-Extensions` (and that of 0.3) of the agent's answer, if it has it.
    pub fn add_header(&self, headers: &HeaderMap) {
        let values: Vec<_> = [HEADER, HEADER_V03].into_iter().flat_map(|name| headers.get_all(name)).collect();
        let texts = values.iter().filter_map(|v| v.to_str().ok());
        if let Some(uris) = extensions::parse(texts).ok().filter(|_| !values.is_empty()) {
            self.add(uris);
        }
    }

    /// What was said; none if nothing was.
    pub fn named(&self) -> Option<Vec<String>> {
        self.0.lock().clone()
    }
}

/// An answer.
pub struct Reply {
    /// What to write.
    pub body: Body,
    /// Extensions that were put to use.
    pub extensions: Vec<String>,
    /// The task that the request led to.
    pub task: Option<Arc<str>>,
}

/// What an answer is made of.
pub enum Body {
    /// One result.
    Unary(Answer),
    /// Events, one [`StreamItem`] each; nothing more after an error. Dropping it is what a caller does who disconnects.
    Stream(BoxStream<'static, Result<StreamItem, Error>>),
}

/// One result, in 1.0 form.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A task.
    Task {
        /// The task.
        task: Arc<Task>,
        /// Newest messages of its history to show; all without it.
        history_length: Option<u32>,
        /// Whether it stands as `{"task": ...}`, as in the result of `SendMessage`.
        wrapped: bool,
    },
    /// A direct message, as `{"message": ...}`.
    Message(Raw),
    /// Another result as JSON.
    Json(String),
    /// Nothing: `null` in JSON-RPC, an empty object or body elsewhere.
    Nothing,
}

/// One event of a stream.
#[derive(Clone, Debug)]
pub struct StreamItem {
    /// For resuming (`Last-Event-ID`); a direct message has none.
    pub id: Option<String>,
    /// A `StreamResponse` of 1.0 as JSON.
    pub json: String,
    /// Whether the stream ends after it.
    pub last: bool,
}

impl Answer {
    /// Bytes that it takes, about.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Task { task, .. } => task.size() + 256,
            Self::Message(message) => message.size() + 16,
            Self::Json(json) => json.len(),
            Self::Nothing => 4,
        }
    }

    /// Appends it as JSON; nothing is `null`.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Task { task, history_length, wrapped: false } => task.write(*history_length, out),
            Self::Task { task, history_length, wrapped: true } => {
                out.push_str("{\"task\":");
                task.write(*history_length, out);
                out.push('}');
            }
            Self::Message(message) => {
                out.push_str("{\"message\":");
                out.push_str(message.as_str());
                out.push('}');
            }
            Self::Json(json) => out.push_str(json),
            Self::Nothing => out.push_str("null"),
        }
    }
}
