//! The executor contract over HTTP (`docs/executor-contract.md`): a turn is a request, its answer one of three forms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use outrigger_protocol::a2a::answer::{self, Answer, Event, Events, Form, Outcome, Rule, Scope};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::sse;
use outrigger_protocol::a2a::task::Change;
use outrigger_protocol::a2a::turn::{Turn, TurnCaller};
use outrigger_protocol::config::{Limits, Runtime};
use tokio::time::{Instant, timeout};

use super::{Executor, NO_ANSWER, NotReady, Timing, TurnEvent, TurnInput, TurnStream};
use crate::a2a::client::{Client, Connection, SendError, cause, read_all};
use crate::a2a::ids::uuid;
use crate::a2a::metrics::Metrics;

/// Header with the id of the turn.
pub const TURN_HEADER: HeaderName = HeaderName::from_static("outrigger-turn");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
/// Headers of a turn's request, `Content-Length` among them: room for all of them is made at once.
const HEADERS: usize = 8;

/// The handler behind the contract.
pub struct Http {
    agent: Arc<Agent>,
}

struct Agent {
    client: Client,
    path: Uri,
    ready_path: Option<Uri>,
    host: HeaderValue,
    authorization: HeaderValue,
    timing: Timing,
    metrics: Metrics,
    urls: String,
}

/// A path of the configuration that is none.
#[derive(Debug, thiserror::Error)]
#[error("runtime.http.{field} {path:?} is no path: {reason}")]
pub struct BadPath {
    field: &'static str,
    path: String,
    reason: String,
}

/// What the handler made of a turn.
enum Got {
    /// A whole answer, its body not judged yet.
    Whole(Form, Bytes),
    /// The head of a stream.
    Stream(Incoming, Connection),
    /// 202.
    Later,
}

enum Attempt {
    Got(Got, Vec<Rule>),
    Refused(String),
    Busy { status: u16, after: Duration },
}

impl Http {
    /// An executor for the configured handler; `urls` are the local URLs as JSON.
    pub fn new(
        runtime: &Runtime,
        token: &str,
        urls: String,
        timing: Timing,
        metrics: Metrics,
    ) -> Result<Self, BadPath> {
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
        let agent = Agent { client, path, ready_path, host, authorization, timing, metrics, urls };
        Ok(Self { agent: Arc::new(agent) })
    }
}

impl Executor for Http {
    fn turn(&self, input: TurnInput) -> TurnStream {
        let turn = Turning { agent: Arc::clone(&self.agent), input, ready: VecDeque::new(), phase: Phase::Ask };
        stream::unfold(turn, Turning::next).boxed()
    }

    fn reattach(&self, _: TurnInput, later: bool) -> Option<TurnStream> {
        // The events keep coming to the same URL; a connection does not survive its process.
        later.then(|| stream::once(async { TurnEvent::Later }).boxed())
    }

    fn cancel<'a>(&'a self, turn: &'a str, _: Option<&'a Raw>) -> BoxFuture<'a, ()> {
        self.agent.cancel(turn).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), NotReady>> {
        self.agent.probe().map(|r| r.map_err(|(reason, message)| NotReady { reason, message })).boxed()
    }
}

/// One turn under way.
struct Turning {
    agent: Arc<Agent>,
    input: TurnInput,
    ready: VecDeque<TurnEvent>,
    phase: Phase,
}

enum Phase {
    Ask,
    Read(Box<Reading>),
    Done,
}

/// A stream of the handler's.
struct Reading {
    body: Incoming,
    connection: Connection,
    parser: sse::Parser,
    events: Events,
    seq: u64,
    ended: bool,
}

impl Turning {
    async fn next(mut self) -> Option<(TurnEvent, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((event, self));
            }
            match std::mem::replace(&mut self.phase, Phase::Done) {
                Phase::Ask => self.ask().await,
                Phase::Read(reading) => self.read(reading).await,
                Phase::Done => return None,
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.ready.push_back(TurnEvent::Fault { fault, memo: None });
    }

    fn repaired(&mut self, repairs: Vec<Rule>) {
        self.ready.extend(repairs.into_iter().map(TurnEvent::Repaired));
    }

    fn outcome(&mut self, outcome: Outcome, memo: Option<Raw>) {
        self.ready.push_back(match outcome {
            Outcome::Change(change) => TurnEvent::Change(Change { memo, ..change }),
            Outcome::Message(message) => TurnEvent::Message { message, memo },
            Outcome::Error(fault) => TurnEvent::Fault { fault, memo },
        });
    }

    async fn ask(&mut self) {
        let (got, mut repairs) = match self.agent.hand_over(&self.input).await {
            Ok(got) => got,
            Err(fault) => return self.fault(fault),
        };
        let task = &self.input.task;
        match got {
            Got::Later => {
                self.repaired(repairs);
                self.ready.push_back(TurnEvent::Later);
            }
            Got::Whole(form, body) => {
                let scope = Scope { task: &task.id, context: &task.context_id, new_id: &uuid };
                let read = answer::read(&form, &body, &scope, &mut repairs);
                self.repaired(repairs);
                match read {
                    Ok(Answer { outcome, memo, extensions }) => {
                        if let Some(uris) = extensions {
                            self.input.used.add(uris);
                        }
                        self.outcome(outcome, memo);
                    }
                    Err(fault) => self.fault(fault),
                }
            }
            Got::Stream(body, connection) => {
                let max = usize::try_from(self.input.limits.max_answer_bytes).unwrap_or(usize::MAX);
                let events = Events::new(Arc::clone(&self.input.id), &task.artifacts);
                let (parser, seq) = (sse::Parser::new(max), self.input.last_seq);
                self.repaired(repairs);
                self.ready.push_back(TurnEvent::Started);
                self.phase = Phase::Read(Box::new(Reading { body, connection, parser, events, seq, ended: false }));
            }
        }
    }

    /// Reads one piece of the stream and the events that end in it.
    async fn read(&mut self, mut reading: Box<Reading>) {
        let idle = self.input.limits.stream_idle_timeout_ms;
        let mut raw = Vec::new();
        match timeout(Duration::from_millis(idle), reading.body.frame()).await {
            Err(_) => return self.fault(Fault::StreamIdle(idle)),
            Ok(None) => {
                if reading.ended {
                    self.agent.client.keep(reading.connection);
                } else {
                    self.fault(Fault::Incomplete("its stream closed without an event that ends the turn".into()));
                }
                return;
            }
            Ok(Some(Err(e))) => {
                if !reading.ended {
                    self.fault(Fault::Incomplete(cause(&e)));
                }
                return;
            }
            Ok(Some(Ok(frame))) => {
                let Some(data) = frame.data_ref() else {
                    self.phase = Phase::Read(reading);
                    return;
                };
                let whole = reading.parser.push(data, &mut raw);
                for event in raw {
                    if let Err(fault) = self.event(&mut reading, &event.data) {
                        return self.fault(fault);
                    }
                }
                if whole.is_err() {
                    return self.fault(Fault::TooLarge(self.input.limits.max_answer_bytes));
                }
            }
        }
        self.phase = Phase::Read(reading);
    }

    fn event(&mut self, reading: &mut Reading, data: &str) -> Result<(), Fault> {
        if data.trim().is_empty() {
            return Ok(());
        }
        let mut repairs = Vec::new();
        let task = &self.input.task;
        let scope = Scope { task: &task.id, context: &task.context_id, new_id: &uuid };
        let event = reading.events.read(data, &scope, &mut repairs)?;
        self.repaired(repairs);
        let ends = event.ends();
        let Event { seq, outcome, memo } = event;
        match seq {
            // It was kept in an earlier attempt.
            Some(seq) if seq <= reading.seq && !reading.ended => return Ok(()),
            Some(seq) if seq > reading.seq + 1 => {
                return Err(Fault::invalid("seq", format!("is {seq}, the next one is {}", reading.seq + 1)));
            }
            _ => reading.seq += 1,
        }
        reading.ended |= ends;
        self.outcome(outcome, memo);
        Ok(())
    }
}

impl Agent {
    /// Hands a turn over and reads the head of the answer, and its body where it is no stream. Tries again what was
    /// not taken: refused connections, 429 and 503. Dropping the future closes the connection.
    async fn hand_over(&self, input: &TurnInput) -> Result<(Got, Vec<Rule>), Fault> {
        let body = turn_json(input, &self.urls);
        let refused_until = Instant::now() + self.timing.refused;
        let mut pause = Duration::from_millis(50);
        loop {
            let (reason, wait, until, fault) = match self.attempt(input, body.clone()).await? {
                Attempt::Got(got, repairs) => return Ok((got, repairs)),
                Attempt::Refused(e) => {
                    let wait = pause;
                    pause = (pause * 2).min(Duration::from_millis(500));
                    ("refused", wait, refused_until, Fault::Unreachable(e))
                }
                Attempt::Busy { status, after } => ("busy", after, input.busy_until, Fault::Busy(status)),
            };
            if Instant::now() + wait > until {
                return Err(fault);
            }
            self.metrics.retries.with_label_values(&[reason]).inc();
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self, input: &TurnInput, body: Bytes) -> Result<Attempt, Fault> {
        let mut request = self.request(Method::POST, self.path.clone(), Full::new(body));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream, text/plain"));
        if let Ok(id) = HeaderValue::from_str(&input.id) {
            headers.insert(TURN_HEADER, id);
        }
        headers.insert(TRACE_PARENT, input.trace.parent.clone());
        if let Some(state) = &input.trace.state {
            headers.insert(TRACE_STATE, state.clone());
        }
        let whole = async {
            let (response, connection) = match self.client.send(request).await {
                Ok(sent) => sent,
                Err(SendError::NotSent(e)) => return Ok(Attempt::Refused(e)),
                Err(SendError::Broken(e)) => return Err(Fault::Incomplete(e)),
            };
            if response.status().is_success() {
                input.used.add_header(response.headers());
            }
            self.read(response, connection, &input.limits).await
        };
        let limit = input.limits.turn_timeout_ms;
        timeout(Duration::from_millis(limit), whole).await.unwrap_or(Err(Fault::Timeout(limit)))
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
        Ok(match answer::head(status, content_type.as_deref(), &mut repairs)? {
            Form::Later => Attempt::Got(Got::Later, repairs),
            Form::Stream => Attempt::Got(Got::Stream(body, connection), repairs),
            form => {
                let body = read_all(body, limits.max_answer_bytes).await?;
                self.client.keep(connection);
                Attempt::Got(Got::Whole(form, body), repairs)
            }
        })
    }

    fn request(&self, method: Method, uri: Uri, body: Full<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.reserve(HEADERS);
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, self.authorization.clone());
        request
    }

    /// Tells the handler that nobody waits for a turn any more. What it answers does not matter.
    async fn cancel(&self, turn: &str) {
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
    async fn probe(&self) -> Result<(), (&'static str, String)> {
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
}

/// The turn as the handler gets it.
fn turn_json(input: &TurnInput, urls: &str) -> Bytes {
    let skills = if input.skills.is_empty() { None } else { serde_json::to_string(&input.skills).ok() };
    let task = &input.task;
    let turn = Turn {
        id: &input.id,
        attempt: input.attempt,
        last_seq: input.last_seq,
        message: &input.message,
        text: &input.text,
        task: &task.id,
        state: task.state,
        // The history of a new task is the message itself.
        history: if input.is_new { &[] } else { &task.history },
        said: task.said.as_ref(),
        artifacts: &task.artifacts,
        context: &task.context_id,
        conversation: &input.conversation,
        caller: input.caller.identity.as_deref().map(|i| TurnCaller {
            subject: &i.subject,
            issuer: &i.issuer,
            scopes: &i.scopes,
        }),
        metadata: input.metadata.as_ref().map(Raw::as_str),
        accepted_output_modes: &input.accepted_output_modes,
        extensions: &input.extensions,
        skills: skills.as_deref().unwrap_or("[]"),
        urls,
    };
    Bytes::from(turn.to_json())
}
