//! A client of one agent over one interface: JSON-RPC, HTTP+JSON or gRPC, in 1.0 or 0.3. What goes in and comes out is
//! always 1.0, as JSON text.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::response::{Response as Answer, TaskView};
use outrigger_protocol::a2a::turn::{TurnCaller, caller_header};
use outrigger_protocol::a2a::v03;
use parking_lot::RwLock;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::error::{AgentError, CallError};
use super::interface::Interface;
use super::stream::EventStream;
use super::{grpc, wire};
use crate::a2a::call::{Caller, Used};
use crate::a2a::ids::Trace;
use crate::mesh::connect::{Backend, Lease, SendError};

/// An idle connection is not used again after this long: shorter than the keep-alive of any server in the field.
pub const IDLE_FOR: Duration = Duration::from_secs(1);
/// Longest wait that an agent's `Retry-After` is followed.
const MAX_AFTER: Duration = Duration::from_secs(60);

/// Largest answer of a call on nobody's behalf.
const MAX_BYTES: u64 = 16 << 20;

/// Who asks, for the agent: set by the sidecar alone, as no header of a caller's goes on to the agent.
const CALLER: HeaderName = HeaderName::from_static("outrigger-caller");

/// What goes with a call.
#[derive(Clone, Debug)]
pub struct With<'a> {
    /// The trace that goes on.
    pub trace: Option<&'a Trace>,
    /// Extensions to ask for.
    pub extensions: &'a [String],
    /// On whose behalf; none for a call of the sidecar's own.
    pub caller: Option<&'a Caller>,
    /// Takes the extensions that the agent puts to use.
    pub used: Option<&'a Used>,
    /// From the request to the whole of an answer, or to the first event.
    pub limit: Duration,
    /// Between two signs of life on a stream.
    pub idle: Duration,
    /// Largest answer, and largest event.
    pub max_bytes: u64,
}

impl With<'_> {
    /// A call on nobody's behalf.
    pub fn limit(limit: Duration) -> Self {
        Self { trace: None, extensions: &[], caller: None, used: None, limit, idle: limit, max_bytes: MAX_BYTES }
    }
}

/// A client of one agent.
pub struct Client {
    backend: Arc<Backend>,
    host: HeaderValue,
    /// Path of the interface.
    path: String,
    interface: Interface,
    connect: Duration,
    /// The agent's card: the public one, or the extended one once it was fetched.
    card: RwLock<Arc<Value>>,
    next_id: AtomicU64,
}

impl Client {
    /// A client of an interface at an address; `connect` is the time to open a connection. `card` is the agent's, in 1.0
    /// form: what it does not offer is not asked for.
    pub fn new(
        backend: Arc<Backend>,
        host: &str,
        path: &str,
        interface: Interface,
        card: Arc<Value>,
        connect: Duration,
    ) -> Self {
        Self {
            backend,
            host: HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static("localhost")),
            path: path.to_owned(),
            interface,
            connect,
            card: RwLock::new(card),
            next_id: AtomicU64::new(1),
        }
    }

    /// Connections to an address, to be shared by clients.
    pub fn backend(address: SocketAddr) -> Arc<Backend> {
        Backend::new(address, IDLE_FOR)
    }

    /// The interface in use.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The agent's card, in 1.0 form.
    pub fn card(&self) -> Arc<Value> {
        Arc::clone(&self.card.read())
    }

    /// Whether the agent streams, by its card.
    pub fn streams(&self) -> bool {
        self.card.read()["capabilities"]["streaming"] == true
    }

    /// `SendMessage`. `params` are those of 1.0, as JSON.
    pub async fn send(&self, params: &str, with: &With<'_>) -> Result<Answer, CallError> {
        let result = self.call(Operation::SendMessage, params, with).await?;
        Ok(Answer::parse(&result)?)
    }

    /// `SendStreamingMessage`. An agent that does not stream, by its card, is not asked.
    pub async fn stream(&self, params: &str, with: &With<'_>) -> Result<EventStream, CallError> {
        self.open(Operation::SendStreamingMessage, params, with).await
    }

    /// `GetTask`.
    pub async fn get(&self, id: &str, with: &With<'_>) -> Result<TaskView, CallError> {
        let result = self.call(Operation::GetTask, &serde_json::json!({ "id": id }).to_string(), with).await?;
        Ok(TaskView::parse(&result)?)
    }

    /// `CancelTask`.
    pub async fn cancel(&self, id: &str, with: &With<'_>) -> Result<TaskView, CallError> {
        let result = self.call(Operation::CancelTask, &serde_json::json!({ "id": id }).to_string(), with).await?;
        Ok(TaskView::parse(&result)?)
    }

    /// `SubscribeToTask`. An agent that does not stream, by its card, is not asked.
    pub async fn subscribe(&self, id: &str, with: &With<'_>) -> Result<EventStream, CallError> {
        self.open(Operation::SubscribeToTask, &serde_json::json!({ "id": id }).to_string(), with).await
    }

    /// `GetExtendedAgentCard`, unless the public card has none. From now on it is the card.
    pub async fn extended_card(&self, with: &With<'_>) -> Result<Arc<Value>, CallError> {
        if self.card.read()["capabilities"]["extendedAgentCard"] != true {
            return Err(CallError::NotOffered("an extended card"));
        }
        let result = self.call(Operation::GetExtendedAgentCard, "{}", with).await?;
        let card = card(&result)?;
        *self.card.write() = Arc::clone(&card);
        Ok(card)
    }

    /// Any operation that is answered at once: parameters and result as JSON of 1.0.
    pub async fn call(&self, operation: Operation, params: &str, with: &With<'_>) -> Result<String, CallError> {
        let until = Instant::now() + with.limit;
        let whole = async {
            let (response, lease) = self.request(operation, params, with).await?;
            if self.interface.binding == Binding::Grpc {
                return grpc::unary(operation, &self.interface, response, lease, with.max_bytes).await;
            }
            let (head, body) = response.into_parts();
            let bytes = read(body, with.max_bytes).await?;
            lease.finish();
            self.unary(operation, head.status, &head.headers, &bytes)
        };
        timeout_at(until, whole).await.unwrap_or(Err(CallError::Timeout(millis(with.limit))))
    }

    /// Reads a whole answer over HTTP.
    fn unary(
        &self,
        operation: Operation,
        status: StatusCode,
        headers: &HeaderMap,
        bytes: &Bytes,
    ) -> Result<String, CallError> {
        if let Some(busy) = busy(status, headers) {
            return Err(busy);
        }
        let envelope = self.interface.binding == Binding::JsonRpc;
        if !status.is_success() {
            let error = wire::text(bytes).ok().and_then(AgentError::of_body);
            return Err(error.map_or(CallError::Status(status.as_u16()), CallError::Agent));
        }
        let text = wire::text(bytes)?;
        let result = if envelope {
            wire::result(text)?
        } else {
            serde_json::from_str(text).map_err(|e| CallError::Unreadable(format!("it is no JSON: {e}")))?
        };
        wire::result_in(operation, self.interface.dialect, result)
    }

    /// Opens a stream; an error before its first event is an error here.
    async fn open(&self, operation: Operation, params: &str, with: &With<'_>) -> Result<EventStream, CallError> {
        if !self.streams() {
            return Err(CallError::NotOffered("streams"));
        }
        let until = Instant::now() + with.limit;
        let head = async {
            let (response, lease) = self.request(operation, params, with).await?;
            if self.interface.binding == Binding::Grpc {
                return grpc::open(operation, &self.interface, response, lease, with.max_bytes, with.idle);
            }
            let media = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
            if response.status().is_success() && media.to_ascii_lowercase().starts_with("text/event-stream") {
                let envelope = self.interface.binding == Binding::JsonRpc;
                return Ok(EventStream::sse(
                    response.into_body(),
                    lease,
                    envelope,
                    self.interface.dialect,
                    with.max_bytes,
                    with.idle,
                ));
            }
            // An error, or an agent that answers at once after all.
            let (head, body) = response.into_parts();
            let bytes = read(body, with.max_bytes).await?;
            lease.finish();
            self.unary(operation, head.status, &head.headers, &bytes).map(EventStream::one)
        };
        timeout_at(until, head).await.unwrap_or(Err(CallError::Timeout(millis(with.limit))))
    }

    async fn request(
        &self,
        operation: Operation,
        params: &str,
        with: &With<'_>,
    ) -> Result<(Response<Incoming>, Lease), CallError> {
        let Interface { binding, dialect, tenant, .. } = &self.interface;
        let tenant = tenant.as_deref();
        let (version, method, path, body, media) = match binding {
            Binding::Grpc => {
                let (path, body) = grpc::request(operation, *dialect, &wire::with_tenant(params, tenant))?;
                (Version::HTTP_2, Method::POST, path, Some(body), "application/grpc")
            }
            Binding::JsonRpc => {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                let plain = wire::jsonrpc(operation, *dialect, &wire::with_tenant(params, tenant), id)?;
                let path = if self.path.is_empty() { "/".to_owned() } else { self.path.clone() };
                (Version::HTTP_11, plain.method, path, plain.body.map(Bytes::from), "application/json")
            }
            Binding::HttpJson => {
                let plain = wire::http_json(operation, *dialect, params, tenant)?;
                let path = format!("{}{}", self.path.trim_end_matches('/'), plain.path);
                (Version::HTTP_11, plain.method, path, plain.body.map(Bytes::from), "application/json")
            }
        };
        let authority = self.host.to_str().unwrap_or("localhost");
        let uri = if version == Version::HTTP_2 { format!("http://{authority}{path}") } else { path };
        let has_body = body.is_some();
        let mut request = Request::new(body.map_or_else(Body::empty, Body::from));
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().map_err(|e| CallError::NotSent(format!("{uri:?} is no path: {e}")))?;
        *request.version_mut() = version;
        let headers = request.headers_mut();
        if version == Version::HTTP_11 {
            headers.insert(HOST, self.host.clone());
            let accept = match (operation.streams(), binding) {
                (true, _) => "text/event-stream, application/json",
                (false, Binding::HttpJson) => "application/a2a+json, application/json",
                _ => "application/json",
            };
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        } else {
            headers.insert("te", HeaderValue::from_static("trailers"));
        }
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        }
        about(headers, *dialect, with);
        let (response, lease) = self.exchange(request).await?;
        if let Some(used) = with.used.filter(|_| response.status().is_success()) {
            used.add_header(response.headers());
        }
        Ok((response, lease))
    }

    /// Sends a request over a connection that is there, or a new one if that one was just closing.
    async fn exchange(&self, request: Request<Body>) -> Result<(Response<Incoming>, Lease), CallError> {
        let version = request.version();
        let mut request = request;
        loop {
            let lease = self.backend.lease(version, self.connect, None).await;
            let mut lease = lease.map_err(|e| CallError::NotSent(format!("{}: {e}", self.backend.address)))?;
            let fresh = lease.is_fresh();
            match lease.send(request).await {
                Ok(response) => return Ok((response, lease)),
                Err(SendError::NotSent(unsent)) if !fresh => request = *unsent,
                Err(SendError::NotSent(_)) => return Err(CallError::NotSent("the connection ended at once".into())),
                Err(SendError::Broken(e)) => return Err(CallError::Broken(cause(&e))),
            }
        }
    }
}

/// Headers of every call.
fn about(headers: &mut HeaderMap, dialect: Dialect, with: &With<'_>) {
    headers.insert("a2a-version", HeaderValue::from_static(dialect.version()));
    if let Ok(list) = HeaderValue::from_str(&with.extensions.join(", "))
        && !with.extensions.is_empty()
    {
        headers.insert("a2a-extensions", list.clone());
        if dialect != Dialect::V10 {
            headers.insert(HeaderName::from_static("x-a2a-extensions"), list);
        }
    }
    if let Some(caller) = with.caller {
        let identity = caller.identity.as_deref();
        let identity = identity.map(|i| TurnCaller { subject: &i.subject, issuer: &i.issuer, scopes: &i.scopes });
        if let Ok(value) = HeaderValue::from_str(&caller_header(identity)) {
            headers.insert(CALLER, value);
        }
    }
    if let Some(trace) = with.trace {
        headers.insert("traceparent", trace.parent.clone());
        if let Some(state) = &trace.state {
            headers.insert("tracestate", state.clone());
        }
    }
}

/// A card of any version, as that of 1.0.
pub fn card(text: &str) -> Result<Arc<Value>, CallError> {
    let raw: &RawValue =
        serde_json::from_str(text).map_err(|e| CallError::Unreadable(format!("the card is no JSON: {e}")))?;
    Ok(Arc::new(v03::card_in(raw)?))
}

fn busy(status: StatusCode, headers: &HeaderMap) -> Option<CallError> {
    let status = status.as_u16();
    if !matches!(status, 429 | 503) {
        return None;
    }
    let after = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
    Some(CallError::Busy { status, after: Duration::from_secs(after.unwrap_or(1)).min(MAX_AFTER) })
}

/// Reads a body of at most `max` bytes.
pub(super) async fn read(mut body: Incoming, max: u64) -> Result<Bytes, CallError> {
    if body.size_hint().lower() > max {
        return Err(CallError::TooLarge(max));
    }
    let mut all = bytes::BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| CallError::Broken(cause(&e)))?;
        let Ok(data) = frame.into_data() else { continue };
        if (all.len() + data.len()) as u64 > max {
            return Err(CallError::TooLarge(max));
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The innermost cause says most.
pub(super) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
