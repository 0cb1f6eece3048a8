//! Wire bindings of A2A: each turns a request into an operation, its parameters in 1.0 form and a [`Call`], and writes
//! the [`Reply`]. What is the same for all of them is here: version, extensions, identity, tenant, counting.

mod body;
mod direct;
mod events;
pub mod grpc;
mod http_json;
mod jsonrpc;
pub mod meter;
mod negotiate;
mod render;
mod sse;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::routing::any;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::v03::{self, Quirks};
use outrigger_protocol::config::{Live, Offer};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use tracing::field::Empty;

use super::call::{Answer, Body as ReplyBody, Call, Caller, Reply, Used};
use super::edge::Edge;
use super::ids::Trace;
use super::service::Tasks;
pub use direct::Direct;
use events::Opened;
use meter::Meter;

/// Longest `Idempotency-Key` that is taken.
const MAX_KEY: usize = 256;
/// Longest `Last-Event-ID` that is looked at.
const MAX_EVENT_ID: usize = 512;

/// Who carries out operations: the service, or a stand-in.
pub trait Operations: Send + Sync + 'static {
    /// Carries one out; parameters are those of 1.0.
    fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> impl Future<Output = Result<Reply, Error>> + Send;

    /// Whether new work is taken.
    fn serving(&self) -> bool {
        true
    }
}

impl Operations for Tasks {
    async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        Tasks::call(self, operation, params, call).await
    }

    fn serving(&self) -> bool {
        self.is_accepting()
    }
}

/// All bindings before one service.
pub struct Front<S> {
    service: Arc<S>,
    edge: Arc<Edge>,
    live: watch::Receiver<Arc<Live>>,
    shutdown: CancellationToken,
    meter: Arc<Meter>,
}

/// A request as far as every binding knows it before it looks at the parameters.
struct Asked<'a> {
    operation: Operation,
    dialect: Dialect,
    binding: Binding,
    head: &'a Parts,
    caller: Caller,
}

/// What came of it.
struct Made {
    payload: Payload,
    about: About,
}

/// The body of an answer.
enum Payload {
    Unary(Answer),
    Stream(Opened),
}

/// What the headers of an answer tell.
struct About {
    extensions: Vec<String>,
    task: Option<Arc<str>>,
}

impl<S: Operations> Front<S> {
    /// Bindings that follow the live configuration; streams end when `shutdown` is cancelled.
    pub fn new(
        service: Arc<S>,
        edge: Arc<Edge>,
        live: watch::Receiver<Arc<Live>>,
        shutdown: CancellationToken,
        meter: Arc<Meter>,
    ) -> Arc<Self> {
        Arc::new(Self { service, edge, live, shutdown, meter })
    }

    /// All of them as a router, for every path.
    pub fn router(self: &Arc<Self>) -> axum::Router {
        let front = Arc::clone(self);
        let serve = any(move |request: Request<Body>| Arc::clone(&front).serve(request));
        axum::Router::new().route("/", serve.clone()).fallback_service(serve)
    }

    async fn serve(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        if grpc::is_grpc(&head.headers) {
            return grpc::handle(&self, head, body).await;
        }
        let path = head.uri.path();
        if path == "/" || is_base(path, &self.live.borrow().offer) {
            return jsonrpc::handle(&self, head, body).await;
        }
        http_json::handle(&self, head, body).await
    }

    /// Who asks, and the body. Who is not let in fills no memory: what he sends is read and thrown away.
    async fn admit(&self, headers: &HeaderMap, body: Body) -> Result<(Caller, Body), Error> {
        match self.edge.admit(headers, None).await {
            Ok(caller) => Ok((caller, body)),
            Err(error) => {
                body::discard_refused(headers, body).await;
                Err(error)
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.live.borrow().limits.heartbeat_ms)
    }

    fn max_request_bytes(&self) -> u64 {
        self.live.borrow().limits.max_request_bytes
    }

    /// Carries out what is asked for. The answer is in 1.0 form.
    async fn carry_out(&self, asked: Asked<'_>, params: Option<&RawValue>) -> Result<Made, Error> {
        let Asked { operation, dialect, binding, head, caller } = asked;
        let live = Arc::clone(&self.live.borrow());
        let named = negotiate::named(&head.uri, &head.headers);
        self.meter.version(named.as_deref());
        negotiate::version(named.as_deref(), dialect, &live.offer.versions)?;
        offered(binding, &live.offer)?;
        let extensions = negotiate::extensions(&head.headers, &live.card)?;
        let translated =
            if dialect == Dialect::V10 { None } else { translate(operation, dialect, params, &live.offer)? };
        let params = match &translated {
            Some(raw) => Some(reread(raw)?),
            None if dialect == Dialect::V10 => params,
            None => None,
        };
        let call = Call {
            caller: caller.in_tenant(negotiate::tenant(params)?.as_deref()),
            trace: Trace::of(&head.headers),
            binding,
            dialect,
            extensions,
            idempotency_key: header(&head.headers, "idempotency-key", MAX_KEY)?,
            last_event_id: header(&head.headers, "last-event-id", MAX_EVENT_ID)?,
            used: Used::default(),
        };
        let (method, version, trace) = (operation.name(), dialect.version(), call.trace.id());
        let kind = if call.caller.identity.is_some() { "known" } else { "anonymous" };
        let span = tracing::info_span!(
            target: "protocol", "a2a", method, version, binding = binding.name(), caller = kind, trace, task = Empty, outcome = Empty
        );
        let made = self.service.call(operation, params, &call).instrument(span.clone()).await;
        span.record("outcome", made.as_ref().map_or_else(|e| e.kind.label(), |_| "ok"));
        if let Some(task) = made.as_ref().ok().and_then(|reply| reply.task.as_deref()) {
            span.record("task", task);
        }
        span.in_scope(|| tracing::debug!(target: "protocol", "A2A request"));
        let Reply { body, extensions, task } = made?;
        let payload = match body {
            ReplyBody::Unary(answer) => Payload::Unary(answer),
            ReplyBody::Stream(stream) => Payload::Stream(Opened::of(stream).await?),
        };
        Ok(Made { payload, about: About { extensions, task } })
    }
}

/// Whether a path is that of a base URL of the agent, with a slash at its end or without.
fn is_base(path: &str, offer: &Offer) -> bool {
    bases(offer).any(|base| path.strip_suffix('/').unwrap_or(path) == base)
}

/// A path below the base URL of the agent: a proxy in front may leave its own prefix in place.
fn below_base<'a>(path: &'a str, offer: &Offer) -> &'a str {
    bases(offer).find_map(|base| path.strip_prefix(base).filter(|rest| rest.starts_with('/'))).unwrap_or(path)
}

/// Paths of the base URLs, without a slash at the end; the root is none.
fn bases(offer: &Offer) -> impl Iterator<Item = &str> {
    offer.public_url.as_deref().into_iter().chain(Some(offer.url.as_str())).filter_map(path_of)
}

fn path_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let path = rest.get(rest.find('/')?..)?.trim_end_matches('/');
    (!path.is_empty()).then_some(path)
}

fn offered(binding: Binding, offer: &Offer) -> Result<(), Error> {
    if offer.bindings.is_empty() || offer.bindings.iter().any(|b| b == binding.name()) {
        return Ok(());
    }
    Err(Error::new(
        Kind::UnsupportedOperation,
        format!("this agent is not offered over {}: see its card", binding.name()),
    ))
}

fn translate(
    operation: Operation,
    dialect: Dialect,
    params: Option<&RawValue>,
    offer: &Offer,
) -> Result<Option<Raw>, Error> {
    let quirks = Quirks { legacy_python_file_bytes: offer.legacy_python_file_bytes };
    v03::params_in(operation, dialect, params, quirks)
}

fn reread(raw: &Raw) -> Result<&RawValue, Error> {
    serde_json::from_str(raw.as_str())
        .map_err(|e| Error::new(Kind::Internal, format!("the translated parameters are no JSON: {e}")))
}

/// A header with a text of at most `max` bytes; an empty one is none.
fn header(headers: &HeaderMap, name: &'static str, max: usize) -> Result<Option<String>, Error> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(text) if text.len() <= max => Ok(Some(text.to_owned())),
        _ => Err(Error::new(Kind::InvalidRequest, format!("the header {name} is longer than {max} bytes or no ASCII"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_agents_urls() {
        let offer = Offer {
            url: "http://seller.shops:8080".into(),
            public_url: Some("https://agents.example.com/burger/".into()),
            ..Offer::default()
        };
        for path in ["/burger", "/burger/"] {
            assert!(is_base(path, &offer), "{path}");
        }
        for path in ["/", "/burgers", "/burger/tasks"] {
            assert!(!is_base(path, &offer), "{path}");
        }
        for (path, below) in [
            ("/burger/tasks/1", "/tasks/1"),
            ("/burgers/tasks/1", "/burgers/tasks/1"),
            ("/tasks/1", "/tasks/1"),
            ("/burger/acme/tasks", "/acme/tasks"),
        ] {
            assert_eq!(below_base(path, &offer), below);
        }
    }
}
