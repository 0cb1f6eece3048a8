//! One notification: its body and its headers (A2A 1.0, section 4.3.3).

use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use outrigger_protocol::a2a::artifact::ArtifactUpdate;
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use outrigger_protocol::a2a::push;
use outrigger_protocol::a2a::raw::{Members, text_of};
use outrigger_protocol::a2a::task::Task;
use outrigger_protocol::a2a::update;
use outrigger_protocol::a2a::v03;
use outrigger_protocol::address::{BadTarget, Target};
use serde_json::json;

use crate::a2a::ids::Trace;
use crate::a2a::signer::Keys;
use crate::a2a::store::{Event, PushConfig};

const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");
const VERSION: HeaderName = HeaderName::from_static("a2a-version");
const ID: HeaderName = HeaderName::from_static("idempotency-key");
const SIGNATURE: HeaderName = HeaderName::from_static("outrigger-signature");
const JWT: HeaderName = HeaderName::from_static("outrigger-notification-jwt");
const TRACE: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// A receiver's JWT is good for so many seconds.
const JWT_SECONDS: i64 = 300;

/// A receiver, read from its configuration.
pub(super) struct Receiver {
    pub(super) target: Target,
    token: Option<String>,
    authorization: Option<HeaderValue>,
    /// `traceparent` and `tracestate` of the request that named it.
    trace: (String, Option<String>),
}

impl Receiver {
    pub(super) fn of(config: &PushConfig) -> Result<Self, BadTarget> {
        let members = Members::split(config.json.as_str()).unwrap_or_default();
        let text = |members: &Members<'_>, key| members.set(key).and_then(text_of).map(std::borrow::Cow::into_owned);
        let target = Target::parse(&text(&members, "url").unwrap_or_default())?;
        let authorization = members.set("authentication").and_then(|a| {
            let inner = Members::split(a.get()).ok()?;
            let scheme = text(&inner, "scheme")?;
            let credentials = text(&inner, "credentials").unwrap_or_default();
            let mut value = HeaderValue::from_str(format!("{scheme} {credentials}").trim_end()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let trace = push::trace(&config.json).unwrap_or_default();
        Ok(Self { target, token: text(&members, "token"), authorization, trace })
    }

    /// Headers of a notification. The signatures prove sender and content to a receiver that checks them:
    /// - `Outrigger-Signature: t=SECONDS,v1=HMAC`, HMAC-SHA256 of `SECONDS.BODY` under the token, in base64url;
    /// - `Outrigger-Notification-Jwt`, and `Authorization: Bearer` where the configuration names no other credentials.
    pub(super) fn headers(&self, note: &Note, dialect: Dialect, keys: Option<&Keys>, issuer: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let media = if dialect == Dialect::V10 { "application/a2a+json" } else { "application/json" };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        headers.insert(VERSION, HeaderValue::from_static(dialect.version()));
        let trace = Trace::again(&self.trace.0, self.trace.1.as_deref());
        headers.insert(TRACE, trace.parent);
        headers.extend(trace.state.map(|state| (TRACE_STATE, state)));
        let mut set = |name: HeaderName, value: &str, secret: bool| {
            if let Ok(mut value) = HeaderValue::from_str(value) {
                value.set_sensitive(secret);
                headers.insert(name, value);
            }
        };
        set(ID, &note.id, false);
        let now = Timestamp::now().as_second();
        if let Some(token) = &self.token {
            set(TOKEN, token, true);
            if let Some(mac) = mac(token, now, &note.body) {
                set(SIGNATURE, &format!("t={now},v1={mac}"), false);
            }
        }
        if let Some(key) = keys.and_then(|k| k.keys.last()) {
            let claims = json!({
                "iss": issuer,
                "aud": self.target.origin(),
                "iat": now,
                "exp": now + JWT_SECONDS,
                "jti": note.id,
                "taskId": &*note.task,
                "bodySha256": outrigger_protocol::digest::sha256(note.body.as_bytes()),
            });
            match key.token(&claims) {
                Ok(jwt) => {
                    set(JWT, &jwt, true);
                    if self.authorization.is_none() {
                        set(AUTHORIZATION, &format!("Bearer {jwt}"), true);
                    }
                }
                Err(error) => {
                    tracing::warn!(target: "business", key = key.id, %error, "a push notification cannot be signed");
                }
            }
        }
        if let Some(value) = &self.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        headers
    }
}

fn mac(token: &str, now: i64, body: &str) -> Option<String> {
    let key = EncodingKey::from_secret(token.as_bytes()).ok()?;
    crypto::sign(format!("{now}.{body}").as_bytes(), &key, Algorithm::HS256).ok()
}

/// A notification.
pub(super) struct Note {
    /// The same whenever this event is sent again.
    pub(super) id: String,
    /// Its task.
    pub(super) task: Arc<str>,
    /// JSON.
    pub(super) body: String,
}

impl Note {
    fn new(task: &Task, version: u64, index: usize, body: String) -> Self {
        Self { id: format!("{}.{version}.{index}", task.id), task: Arc::clone(&task.id), body }
    }

    /// The task as a whole: the first notification of a new task, and what a receiver gets that was too far behind.
    pub(super) fn whole(task: &Task, dialect: Dialect) -> Result<Self, Error> {
        let mut json = String::with_capacity(task.size() + 256);
        task.write(None, &mut json);
        let body = match dialect {
            Dialect::V10 => format!("{{\"task\":{json}}}"),
            // What 0.3 pushes is the task, in the form of its JSON-RPC, whatever the binding.
            Dialect::V03 | Dialect::V03Proto => v03::result_out(Operation::GetTask, Dialect::V03, &json)?,
        };
        Ok(Self::new(task, task.version, 0, body))
    }

    /// Chunks that were put together, under the number of the last change among them.
    pub(super) fn chunk(task: &Task, version: u64, update: &ArtifactUpdate) -> Self {
        let mut body = String::with_capacity(update.size() + 256);
        body.push_str("{\"artifactUpdate\":");
        update.write(&task.id, &task.context_id, &mut body);
        body.push('}');
        Self::new(task, version, 0, body)
    }

    /// The events of a change, as a stream has them.
    pub(super) fn events(task: &Task, event: &Event) -> Vec<Self> {
        let write = |index| {
            let mut body = String::new();
            update::write(&event.change, index, event.at, &task.id, &task.context_id, &mut body);
            Self::new(task, event.version, index, body)
        };
        (0..update::count(&event.change)).map(write).collect()
    }
}
