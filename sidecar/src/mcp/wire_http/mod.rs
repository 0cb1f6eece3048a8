//! A connection to a server over streamable HTTP (2025-11-25 and 2026-07-28, transports).
//!
//! One [`Wire`] is what one child process is over pipes: messages go in by [`Wire::send`] in order, what comes back
//! comes as [`Incoming`], whichever answer or stream it came on. It keeps the session of a server that has one, listens
//! on its stream, and makes a new session once when the server forgot it.

mod error;
mod listen;
mod message;
mod session;
mod upstream;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, Method, StatusCode};
use outrigger_protocol::a2a::sse::{Event, Parser};
use outrigger_protocol::jsonrpc::{Envelope, Kind};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outbound::Opened;
use message::{MAX_DEPTH, Sketch};
use session::Session;

pub use error::Error;
pub use upstream::{SetupError, Timing, Upstream};

/// Messages that may be on their way at once.
const MAX_EXCHANGES: usize = 1024;
/// Longest text of a refusal that is read.
const MAX_REFUSAL: usize = 64 << 10;
/// How much of it an error shows, in characters.
const MAX_SHOWN: usize = 300;
/// Times that a stream which broke before the response is taken up again.
const MAX_RESUMES: u32 = 5;
/// The end of a stream comes this soon after the response, or the connection is not kept.
const LINGER: std::time::Duration = std::time::Duration::from_millis(50);

/// What comes from a server.
#[derive(Debug)]
pub enum Incoming {
    /// One message.
    Message(String),
    /// A request that gets no response.
    Failed {
        /// Its raw id.
        id: Box<str>,
        /// Why.
        error: Error,
    },
    /// The server forgot the session and has a new one, which was initialised like the old one: subscriptions and log
    /// level have to be asked for again.
    Renewed,
}

/// A connection.
pub struct Wire {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Queued>,
}

struct Queued {
    message: Bytes,
    sketch: Sketch,
    place: OwnedSemaphorePermit,
}

struct Shared {
    upstream: Arc<Upstream>,
    incoming: mpsc::Sender<Incoming>,
    session: Mutex<Session>,
    renewing: tokio::sync::Mutex<()>,
    places: Arc<Semaphore>,
    in_flight: Mutex<HashMap<Box<str>, CancellationToken>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Wire {
    /// Opens a connection; nothing is sent yet. What comes back goes to `incoming`, and waits there while it is full.
    pub fn open(upstream: Arc<Upstream>, incoming: mpsc::Sender<Incoming>) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            incoming,
            session: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_EXCHANGES)),
            in_flight: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let (queue, waiting) = mpsc::channel(MAX_EXCHANGES);
        let pump = Arc::clone(&shared);
        shared.tasks.spawn(async move { pump.clone().stop.run_until_cancelled(pump.pump(waiting)).await });
        Self { shared, queue }
    }

    /// Sends one message, after those before it were sent.
    pub fn send(&self, message: Bytes) -> Result<(), Error> {
        let text = std::str::from_utf8(&message).ok();
        let sketch = text.and_then(Sketch::of).ok_or_else(|| Error::NotMcp("a message that is none".into()))?;
        if self.shared.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        let place = Arc::clone(&self.shared.places).try_acquire_owned().map_err(|_| Error::Overloaded)?;
        self.queue.try_send(Queued { message, sketch, place }).map_err(|_| Error::Overloaded)
    }

    /// Lets go of a request: its answer is not waited for, which is how requests without a handshake are cancelled.
    pub fn abandon(&self, id: &str) {
        if let Some(token) = self.shared.in_flight.lock().remove(id) {
            token.cancel();
        }
    }

    /// Takes and hands on no more messages; the server is not told.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Ends the connection, and the session with it if the server hears of it in time.
    pub async fn close(&self) {
        self.stop();
        let goodbye = self.shared.headers(None).0;
        if goodbye.contains_key(outrigger_protocol::mcp::SESSION_HEADER) {
            let limit = self.shared.upstream.timing.close;
            let said = self.shared.upstream.request(Method::DELETE, goodbye, Bytes::new());
            let _ = tokio::time::timeout(limit, said).await;
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    /// Sends what waits, in order. A server may refuse what comes before it knows that the client is ready, so that
    /// message is waited for.
    async fn pump(self: Arc<Self>, mut waiting: mpsc::Receiver<Queued>) {
        while let Some(Queued { message, sketch, place }) = waiting.recv().await {
            if &*sketch.method == "notifications/initialized" {
                match self.exchange(&message, &sketch).await {
                    Ok(()) => self.initialized(message),
                    Err(error) => tracing::debug!(target: "protocol", %error, "a server refused a notification"),
                }
                continue;
            }
            let token = self.stop.child_token();
            if let Some(id) = &sketch.id {
                self.in_flight.lock().insert(id.clone(), token.clone());
            }
            let shared = Arc::clone(&self);
            self.tasks.spawn(async move {
                let _place = place;
                // Given up, or ended: nobody waits for a word of it.
                let _done = token.run_until_cancelled(shared.deliver(message, sketch)).await;
            });
        }
    }

    async fn deliver(self: Arc<Self>, message: Bytes, sketch: Sketch) {
        let limit = self.upstream.timing.exchange;
        let done = tokio::time::timeout(limit, self.exchange(&message, &sketch)).await;
        let done = done.unwrap_or(Err(Error::Timeout(limit.as_secs())));
        if let Some(id) = &sketch.id {
            self.in_flight.lock().remove(id);
        }
        match (done, sketch.id) {
            (Ok(()), _) => {}
            (Err(error), Some(id)) => {
                let _closed = self.incoming.send(Incoming::Failed { id, error }).await.is_err();
            }
            (Err(error), None) => {
                tracing::debug!(target: "protocol", method = %sketch.method, %error, "a server did not take a message");
            }
        }
    }

    /// One message and all that comes back for it. A server that answers 404 has not looked at the message, so it may
    /// be sent again in a new session; nothing else is sent twice.
    async fn exchange(self: &Arc<Self>, message: &Bytes, sketch: &Sketch) -> Result<(), Error> {
        let mut renewed = false;
        loop {
            let (headers, generation) = self.headers(Some(sketch));
            let in_session = headers.contains_key(outrigger_protocol::mcp::SESSION_HEADER);
            let answer = self.upstream.request(Method::POST, headers, message.clone()).await?;
            if answer.status == StatusCode::NOT_FOUND && in_session && !renewed {
                self.renew(generation).await?;
                renewed = true;
                continue;
            }
            if &*sketch.method == "initialize" && answer.status.is_success() {
                self.session.lock().begin(&answer.headers, message.clone());
            }
            return self.take(answer, sketch).await;
        }
    }

    async fn take(self: &Arc<Self>, mut answer: Opened, sketch: &Sketch) -> Result<(), Error> {
        if !answer.status.is_success() {
            return self.refused(answer, sketch).await;
        }
        let Some(id) = &sketch.id else {
            // Read to its end, so that the connection is kept.
            let _ = answer.whole(MAX_REFUSAL).await;
            return Ok(());
        };
        match kind(&answer.headers) {
            Content::Json => {
                let text = self.text(&mut answer).await?;
                if self.pass(&text, id).await? {
                    Ok(())
                } else {
                    Err(Error::Broken("it was not among the answer".into()))
                }
            }
            Content::Stream => self.follow(answer, id).await,
            Content::Other(what) => Err(Error::NotMcp(what)),
        }
    }

    /// A whole JSON body.
    async fn text(&self, answer: &mut Opened) -> Result<String, Error> {
        let max = self.upstream.max;
        let body = answer.whole(max).await?.ok_or(Error::TooLarge(max))?;
        String::from_utf8(body.into()).map_err(|_| Error::NotMcp("a body that is no UTF-8".into()))
    }

    /// Hands on the messages of a body or event: one, or several in a list (2025-03-26). Whether the response to `id`
    /// is among them.
    async fn pass(&self, text: &str, id: &str) -> Result<bool, Error> {
        let mut answered = false;
        if text.trim_start().starts_with('[') {
            let list: Vec<&RawValue> =
                serde_json::from_str(text).map_err(|e| Error::NotMcp(format!("a list that is no JSON: {e}")))?;
            for one in list {
                answered |= self.pass_one(one.get(), id).await?;
            }
        } else {
            answered = self.pass_one(text, id).await?;
        }
        Ok(answered)
    }

    async fn pass_one(&self, text: &str, id: &str) -> Result<bool, Error> {
        let envelope = Envelope::parse(text, MAX_DEPTH).map_err(|e| Error::NotMcp(format!("a message that {e}")))?;
        let answered = envelope.kind == Kind::Response && envelope.id.is_some_and(|i| i.raw == id);
        if answered {
            self.session.lock().answered(&envelope);
        }
        self.hand_on(text.to_owned()).await?;
        Ok(answered)
    }

    async fn hand_on(&self, text: String) -> Result<(), Error> {
        self.incoming.send(Incoming::Message(text)).await.map_err(|_| Error::Closed)
    }

    /// Follows the stream of an answer to the response; one that breaks is taken up where it was, if the server can.
    async fn follow(self: &Arc<Self>, mut answer: Opened, id: &str) -> Result<(), Error> {
        let mut last_id = None;
        let mut resumes = 0;
        loop {
            let mut parser = Parser::new(self.upstream.max);
            let broke = loop {
                match answer.next().await {
                    Some(Ok(bytes)) => {
                        let mut events = Vec::new();
                        let fits = parser.push(&bytes, &mut events);
                        for event in events {
                            if self.event(event, id).await? {
                                while let Ok(Some(Ok(_))) = tokio::time::timeout(LINGER, answer.next()).await {}
                                return Ok(());
                            }
                        }
                        fits.map_err(|e| Error::TooLarge(e.0))?;
                    }
                    Some(Err(error)) => break error.to_string(),
                    None => break "the stream ended".to_owned(),
                }
            };
            if let Some(event) = parser.end()
                && self.event(event, id).await?
            {
                return Ok(());
            }
            last_id = parser.last_id().map(str::to_owned).or(last_id);
            let Some(last) = last_id.as_deref().filter(|_| resumes < MAX_RESUMES) else {
                return Err(Error::Broken(broke));
            };
            resumes += 1;
            let wait = parser.retry().map_or(self.upstream.timing.retry, std::time::Duration::from_millis);
            tokio::time::sleep(wait.min(self.upstream.timing.longest_retry)).await;
            answer = self.resume(last).await?.ok_or(Error::Broken(broke))?;
        }
    }

    async fn event(&self, event: Event, id: &str) -> Result<bool, Error> {
        // An event without data only tells its id.
        if event.data.is_empty() { Ok(false) } else { self.pass(&event.data, id).await }
    }

    /// A status that says no. Its body may be the response all the same (2026-07-28).
    async fn refused(&self, mut answer: Opened, sketch: &Sketch) -> Result<(), Error> {
        let status = answer.status;
        if status.is_redirection() {
            let to = answer.headers.get(LOCATION).map(|l| String::from_utf8_lossy(l.as_bytes()).into_owned());
            return Err(Error::Redirected(to.unwrap_or_default()));
        }
        let body = answer.whole(MAX_REFUSAL).await.ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        let envelope = Envelope::parse(&text, MAX_DEPTH).ok().filter(|e| e.kind == Kind::Response);
        if let (Some(envelope), Some(id)) = (&envelope, &sketch.id)
            && envelope.id.is_some_and(|i| i.raw == &**id)
        {
            return self.hand_on(text.into_owned()).await;
        }
        Err(refusal(status, &text, self.upstream.is_service()))
    }
}

/// An error for a status and what came with it.
fn refusal(status: StatusCode, text: &str, is_service: bool) -> Error {
    let message = serde_json::from_str::<serde_json::Value>(text).ok();
    let message = message.and_then(|m| m.pointer("/error/message").and_then(|t| t.as_str()).map(str::to_owned));
    let shown: String = message.unwrap_or_else(|| text.trim().to_owned()).chars().take(MAX_SHOWN).collect();
    let code = status.as_u16();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if is_service => Error::Forbidden(code, shown),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Unauthorized(code),
        _ if shown.is_empty() => Error::Status(code, String::new()),
        _ => Error::Status(code, format!(": {shown}")),
    }
}

/// What a body is.
enum Content {
    Json,
    Stream,
    Other(String),
}

fn kind(headers: &HeaderMap) -> Content {
    let given = headers.get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes())).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Content::Json
    } else if essence.eq_ignore_ascii_case("text/event-stream") {
        Content::Stream
    } else {
        Content::Other(if essence.is_empty() { "no Content-Type".into() } else { essence.to_owned() })
    }
}
