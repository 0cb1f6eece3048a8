//! The session of a server that has one: begun by `initialize`, named by a header, made anew when it was forgotten.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use outrigger_protocol::a2a::sse::Parser;
use outrigger_protocol::jsonrpc::{Envelope, Kind, member, string};
use outrigger_protocol::mcp::{REVISION_HEADER, SESSION_HEADER};

use super::error::Error;
use super::message::{MAX_DEPTH, Sketch};
use super::{Content, Incoming, Shared, kind, refusal};
use crate::outbound::Opened;

/// Headers of a session.
const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);
const REVISION: HeaderName = HeaderName::from_static(REVISION_HEADER);

/// What is known of the session.
#[derive(Default)]
pub(super) struct Session {
    id: Option<HeaderValue>,
    revision: Option<HeaderValue>,
    /// The messages that began it, to begin another one.
    initialize: Option<Bytes>,
    initialized: Option<Bytes>,
    /// Which session this is, of those that there were.
    generation: u64,
    /// Whether somebody listens on its stream.
    pub(super) listens: bool,
}

impl Session {
    /// `initialize` was accepted.
    pub(super) fn begin(&mut self, headers: &HeaderMap, initialize: Bytes) {
        self.id = headers.get(SESSION).cloned();
        self.revision = None;
        self.initialize = Some(initialize);
        self.generation += 1;
    }

    /// The response to a request; that of `initialize` names the revision for all later requests.
    pub(super) fn answered(&mut self, response: &Envelope<'_>) {
        if self.revision.is_none() && self.initialize.is_some() {
            self.revision = response
                .result
                .and_then(|result| member(result, "protocolVersion"))
                .and_then(|version| string(version.raw))
                .and_then(|version| HeaderValue::from_str(&version).ok());
        }
    }
}

impl Shared {
    /// Headers of the next request, and the session they are of. `None` is a request without a body.
    pub(super) fn headers(&self, sketch: Option<&Sketch>) -> (HeaderMap, u64) {
        let session = self.session.lock();
        if let Some(modern) = sketch.and_then(|s| s.modern.clone()) {
            return (modern, session.generation);
        }
        let mut headers = HeaderMap::new();
        if sketch.is_none_or(|s| &*s.method != "initialize") {
            headers.extend(session.id.clone().map(|id| (SESSION, id)));
            headers.extend(session.revision.clone().map(|revision| (REVISION, revision)));
        }
        (headers, session.generation)
    }

    /// The client told the server that it is ready: the server may speak from now on.
    pub(super) fn initialized(self: &Arc<Self>, message: Bytes) {
        let mut session = self.session.lock();
        session.initialized = Some(message);
        if !std::mem::replace(&mut session.listens, true) {
            let shared = Arc::clone(self);
            self.tasks.spawn(async move { shared.clone().stop.run_until_cancelled(shared.listen()).await });
        }
    }

    /// Makes another session in place of one that the server forgot; those who come later find the work done.
    pub(super) async fn renew(self: &Arc<Self>, forgotten: u64) -> Result<(), Error> {
        let _one = self.renewing.lock().await;
        let (initialize, initialized) = {
            let session = self.session.lock();
            if session.generation != forgotten {
                return Ok(());
            }
            let Some(initialize) = session.initialize.clone() else {
                return Err(Error::SessionLost("it never had one".into()));
            };
            (initialize, session.initialized.clone())
        };
        let lost = |error: Error| Error::SessionLost(error.to_string());
        let answer = self.upstream.request(Method::POST, HeaderMap::new(), initialize.clone()).await.map_err(lost)?;
        let headers = answer.headers.clone();
        let response = self.response(answer).await.map_err(lost)?;
        {
            let envelope = Envelope::parse(&response, MAX_DEPTH).map_err(|e| Error::SessionLost(e.to_string()))?;
            if let Some(error) = envelope.error {
                return Err(Error::SessionLost(error.raw.chars().take(super::MAX_SHOWN).collect()));
            }
            let mut session = self.session.lock();
            session.begin(&headers, initialize);
            session.answered(&envelope);
        }
        if let Some(message) = initialized {
            let (headers, _) = self.headers(None);
            let mut answer = self.upstream.request(Method::POST, headers, message).await.map_err(lost)?;
            let _ = answer.whole(super::MAX_REFUSAL).await;
        }
        tracing::info!(target: "protocol", "a server forgot its session and has a new one");
        self.incoming.send(Incoming::Renewed).await.map_err(|_| Error::Closed)
    }

    /// The first response of an answer; nobody else is told of it.
    async fn response(&self, mut answer: Opened) -> Result<String, Error> {
        if !answer.status.is_success() {
            let body = answer.whole(super::MAX_REFUSAL).await?.unwrap_or_default();
            return Err(refusal(answer.status, &String::from_utf8_lossy(&body), self.upstream.is_service()));
        }
        match kind(&answer.headers) {
            Content::Json => self.text(&mut answer).await,
            Content::Other(what) => Err(Error::NotMcp(what)),
            Content::Stream => {
                let mut parser = Parser::new(self.upstream.max);
                while let Some(bytes) = answer.next().await {
                    let mut events = Vec::new();
                    let fits = parser.push(&bytes?, &mut events);
                    let is_response =
                        |text: &str| Envelope::parse(text, MAX_DEPTH).is_ok_and(|e| e.kind == Kind::Response);
                    if let Some(event) = events.into_iter().find(|e| is_response(&e.data)) {
                        return Ok(event.data);
                    }
                    fits.map_err(|e| Error::TooLarge(e.0))?;
                }
                Err(Error::Broken("the stream ended".into()))
            }
        }
    }
}
