//! Requests to the operator: over TLS, which trusts what the live document says and nothing else, with the token of this
//! pod's ServiceAccount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use outrigger_protocol::address::Target;
use outrigger_protocol::config::{ControlPlane, Live};
use outrigger_protocol::control::{BUNDLES, PROPOSALS, Proposal, Proposed, Refusal, WATCH};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::error::ControlError;
use crate::outbound::resolve::Resolver;
use crate::outbound::{Client, Guard, Opened, Outgoing, Waits, tls};

/// Largest bundle.
pub const MAX_BUNDLE_BYTES: usize = 20 << 20;
/// Largest answer of another kind.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Longest time for the head of a stream.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Waits of a request: a bundle may be large.
const WAITS: Waits =
    Waits { resolve: Duration::from_secs(5), connect: Duration::from_secs(5), total: Duration::from_secs(60) };
/// Longest token.
const MAX_TOKEN_BYTES: u64 = 16 << 10;
/// An operator that asks for more patience than this gets this much.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

type Channel = (ControlPlane, Arc<Client>);

/// Sends requests.
pub struct Requests {
    live: watch::Receiver<Arc<Live>>,
    token: PathBuf,
    resolver: Arc<dyn Resolver>,
    /// The client, and what it was made from: when that changes, new connections use it.
    channel: Mutex<Option<Channel>>,
}

impl Requests {
    /// `token` is the file of the token; it is read anew for each request.
    pub fn new(live: watch::Receiver<Arc<Live>>, token: PathBuf, resolver: Arc<dyn Resolver>) -> Self {
        Self { live, token, resolver, channel: Mutex::default() }
    }

    fn channel(&self) -> Result<Channel, ControlError> {
        let plane = self.live.borrow().control.clone().ok_or(ControlError::NotConfigured)?;
        let mut channel = self.channel.lock();
        if let Some(known) = channel.as_ref().filter(|(known, _)| *known == plane) {
            return Ok(known.clone());
        }
        let tls = tls::only_these(&plane.ca, "control.ca of the live document")?;
        let client = Arc::new(Client::new(Guard::Open, tls, Arc::clone(&self.resolver), WAITS));
        *channel = Some((plane.clone(), Arc::clone(&client)));
        Ok((plane, client))
    }

    async fn outgoing(&self, plane: &ControlPlane, method: Method, path: &str) -> Result<Outgoing, ControlError> {
        let url = format!("{}{path}", plane.url.trim_end_matches('/'));
        let target = Target::parse(&url).map_err(|e| ControlError::BadAddress(format!("control.url {e}")))?;
        if target.scheme().name() != "https" {
            return Err(ControlError::BadAddress("control.url is not https: the token would be seen".into()));
        }
        let unreadable = |e: std::io::Error| ControlError::TokenUnreadable(e.to_string());
        let size = tokio::fs::metadata(&self.token).await.map_err(unreadable)?.len();
        if size > MAX_TOKEN_BYTES {
            return Err(ControlError::TokenUnreadable(format!("it has {size} bytes, at most {MAX_TOKEN_BYTES}")));
        }
        let token = tokio::fs::read_to_string(&self.token).await.map_err(unreadable)?;
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|e| ControlError::TokenUnreadable(e.to_string()))?;
        value.set_sensitive(true);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        Ok(Outgoing { method, target, headers, body: Bytes::new(), max_answer: MAX_ANSWER_BYTES })
    }

    /// Opens the stream of changes; the operator leaves out the document that has this digest.
    pub async fn watch(&self, known: &str) -> Result<Opened, ControlError> {
        let (plane, client) = self.channel()?;
        let mut outgoing = self.outgoing(&plane, Method::GET, WATCH).await?;
        outgoing.headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Ok(known) = HeaderValue::from_str(known) {
            outgoing.headers.insert("last-event-id", known);
        }
        let opened = tokio::time::timeout(HEAD_TIMEOUT, client.open(outgoing)).await;
        let mut opened = opened.map_err(|_| crate::outbound::Error::Timeout(HEAD_TIMEOUT))??;
        if opened.status == StatusCode::OK {
            return Ok(opened);
        }
        let body = tokio::time::timeout(HEAD_TIMEOUT, opened.whole(MAX_ANSWER_BYTES)).await;
        let body = body.ok().and_then(Result::ok).flatten().unwrap_or_default();
        Err(refused(opened.status, &opened.headers, &body))
    }

    /// The bytes of a bundle.
    pub async fn bundle(&self, digest: &str) -> Result<Bytes, ControlError> {
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ControlError::BadAddress(format!("{digest:?} is no digest")));
        }
        let (plane, client) = self.channel()?;
        let outgoing = self.outgoing(&plane, Method::GET, &format!("{BUNDLES}/{digest}")).await?;
        let answer = client.send(Outgoing { max_answer: MAX_BUNDLE_BYTES, ..outgoing }).await?;
        let too_large = || ControlError::BadAnswer(format!("the bundle has more than {MAX_BUNDLE_BYTES} bytes"));
        let body = answer.body.ok_or_else(too_large)?;
        if answer.status != StatusCode::OK {
            return Err(refused(answer.status, &answer.headers, &body));
        }
        Ok(body)
    }

    /// Proposes a change to a skill.
    pub async fn propose(&self, proposal: &Proposal) -> Result<Proposed, ControlError> {
        let (plane, client) = self.channel()?;
        let mut outgoing = self.outgoing(&plane, Method::POST, PROPOSALS).await?;
        outgoing.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        outgoing.body = serde_json::to_vec(proposal).map_err(|e| ControlError::BadAnswer(e.to_string()))?.into();
        let answer = client.send(outgoing).await?;
        let body = answer.body.unwrap_or_default();
        if answer.status != StatusCode::CREATED {
            return Err(refused(answer.status, &answer.headers, &body));
        }
        serde_json::from_slice(&body).map_err(|e| ControlError::BadAnswer(e.to_string()))
    }
}

fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ControlError {
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let seconds = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok());
    ControlError::Refused {
        status,
        reason: refusal.reason,
        message: refusal.message,
        retry_after: seconds.map(|s| Duration::from_secs(s).min(LONGEST_RETRY_AFTER)),
    }
}
