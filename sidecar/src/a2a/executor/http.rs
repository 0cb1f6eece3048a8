//! One turn with the handler: the executor contract over HTTP (`docs/executor-contract.md`).

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use outrigger_protocol::a2a::answer::{self, Form, Rule};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::config::{Limits, Runtime};
use tokio::time::{Instant, timeout};

use crate::a2a::client::{Client, Connection, SendError, read_all};
use crate::a2a::ids::Trace;
use crate::a2a::metrics::Metrics;

use super::{NO_ANSWER, Timing};

/// Header with the id of the turn.
pub const TURN_HEADER: HeaderName = HeaderName::from_static("outrigger-turn");

/// The handler's end of the contract.
pub struct Http {
    client: Client,
    path: Uri,
    ready_path: Option<Uri>,
    host: HeaderValue,
    authorization: HeaderValue,
    timing: Timing,
    metrics: Metrics,
}

/// A path of the configuration that is none.
#[derive(Debug, thiserror::Error)]
#[error("runtime.http.{field} {path:?} is no path: {reason}")]
pub struct BadPath {
    field: &'static str,
    path: String,
    reason: String,
}

/// A whole answer, its body not judged yet.
pub struct Reply {
    /// What its head says of its body.
    pub form: Form,
    /// Its body.
    pub body: Bytes,
    /// Repairs so far.
    pub repairs: Vec<Rule>,
}

enum Attempt {
    Reply(Reply),
    Refused(String),
    Busy { status: u16, after: Duration },
}

impl Http {
    /// An executor for the configured handler.
    pub fn new(runtime: &Runtime, token: &str, timing: Timing, metrics: Metrics) -> Result<Self, BadPath> {
        let Runtime::Http { port, path, ready_path } = runtime else {
            return Err(BadPath { field: "path", path: String::new(), reason: "the runtime is not http".into() });
        };
        let uri = |field, path: &str| {
            let bad = |reason: String| BadPath { field, path: path.to_owned(), reason };
            if !path.starts_with('/') {
                return Err(bad("it must begin with a slash".into()));
            }
            path.parse::<Uri>().map_err(|e| bad(e.to_string()))
        };
        let client = Client::new(*port, timing.connect);
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        authorization.set_sensitive(true);
        let host = HeaderValue::from_str(&client.address().to_string())
            .unwrap_or_else(|_| HeaderValue::from_static("localhost"));
        let (path, ready_path) = (uri("path", path)?, ready_path.as_deref().map(|p| uri("readyPath", p)).transpose()?);
        Ok(Self { client, path, ready_path, host, authorization, timing, metrics })
    }

    /// Hands a turn over and reads the answer. Tries again what was not taken: refused connections, 429 and 503.
    /// Dropping the future closes the connection.
    pub async fn turn(
        &self,
        id: &str,
        body: Bytes,
        trace: &Trace,
        limits: &Limits,
        busy_until: Instant,
    ) -> Result<Reply, Fault> {
        let refused_until = Instant::now() + self.timing.refused;
        let mut pause = Duration::from_millis(50);
        loop {
            let attempt = self.attempt(id, body.clone(), trace, limits).await?;
            let (reason, wait, until, fault) = match attempt {
                Attempt::Reply(reply) => return Ok(reply),
                Attempt::Refused(e) => {
                    let wait = pause;
                    pause = (pause * 2).min(Duration::from_millis(500));
                    ("refused", wait, refused_until, Fault::Unreachable(e))
                }
                Attempt::Busy { status, after } => ("busy", after, busy_until, Fault::Busy(status)),
            };
            if Instant::now() + wait > until {
                return Err(fault);
            }
            self.metrics.retries.with_label_values(&[reason]).inc();
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self, id: &str, body: Bytes, trace: &Trace, limits: &Limits) -> Result<Attempt, Fault> {
        let mut request = self.request(Method::POST, self.path.clone(), Full::new(body));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/plain"));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(TURN_HEADER, id);
        }
        headers.insert("traceparent", trace.parent.clone());
        if let Some(state) = &trace.state {
            headers.insert("tracestate", state.clone());
        }
        let whole = async {
            let (response, connection) = match self.client.send(request).await {
                Ok(sent) => sent,
                Err(SendError::NotSent(e)) => return Ok(Attempt::Refused(e)),
                Err(SendError::Broken(e)) => return Err(Fault::Incomplete(e)),
            };
            self.read(response, connection, limits).await
        };
        let limit = Duration::from_millis(limits.turn_timeout_ms);
        timeout(limit, whole).await.unwrap_or(Err(Fault::Timeout(limits.turn_timeout_ms)))
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        connection: Connection,
        limits: &Limits,
    ) -> Result<Attempt, Fault> {
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        if matches!(status, 429 | 503) {
            let after = head.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse().ok());
            return Ok(Attempt::Busy { status, after: Duration::from_secs(after.unwrap_or(1)) });
        }
        let content_type = head.headers.get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes()));
        let mut repairs = Vec::new();
        let form = answer::head(status, content_type.as_deref(), &mut repairs)?;
        let body = read_all(body, limits.max_answer_bytes).await?;
        self.client.keep(connection);
        Ok(Attempt::Reply(Reply { form, body, repairs }))
    }

    fn request(&self, method: Method, uri: Uri, body: Full<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, self.authorization.clone());
        request
    }

    /// Tells the handler that nobody waits for a turn any more. What it answers does not matter.
    pub async fn cancel(&self, turn: &str) {
        let path = self.path.path();
        let query = self.path.query().map(|q| format!("{q}&")).unwrap_or_default();
        let Ok(uri) = format!("{path}?{query}turn={turn}").parse::<Uri>() else { return };
        let mut request = self.request(Method::DELETE, uri, Full::default());
        if let Ok(id) = HeaderValue::from_str(turn) {
            request.headers_mut().insert(TURN_HEADER, id);
        }
        match timeout(self.timing.cancel, self.client.send_alone(request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) => tracing::debug!(target: "transport", turn, error = ?e, "the handler did not take the cancel"),
            Err(_) => tracing::debug!(target: "transport", turn, "the handler did not answer the cancel"),
        }
    }

    /// Asks whether the handler is there. An error is a reason in one word, and a sentence.
    pub async fn probe(&self) -> Result<(), (&'static str, String)> {
        let uri = self.ready_path.clone().unwrap_or_else(|| self.path.clone());
        let request = self.request(Method::GET, uri.clone(), Full::default());
        let status = match timeout(self.timing.probe, self.client.send_alone(request)).await {
            Ok(Ok((response, _))) => response.status(),
            Ok(Err(SendError::NotSent(e))) => return Err(("Unreachable", format!("the agent cannot be reached: {e}"))),
            Ok(Err(SendError::Broken(e))) => {
                return Err(("NoHttp", format!("the agent gave no HTTP answer to GET {uri}: {e}")));
            }
            Err(_) => {
                let limit = self.timing.probe.as_secs_f64();
                return Err((NO_ANSWER, format!("the agent did not answer GET {uri} within {limit} s")));
            }
        };
        if self.ready_path.is_some() && !status.is_success() {
            return Err(("NotReady", format!("the agent answered GET {uri} with status {}", status.as_u16())));
        }
        Ok(())
    }

    /// The waits in force.
    pub fn timing(&self) -> Timing {
        self.timing
    }
}
