//! The events of a stream, in whatever form it comes.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::response::Response;
use outrigger_protocol::a2a::sse;
use tokio::time::timeout;

use super::client::{cause, millis};
use super::error::CallError;
use super::grpc::Messages;
use super::wire;
use crate::mesh::connect::Lease;

/// The events of a stream. Dropping it closes the stream.
pub struct EventStream {
    source: Source,
    ready: VecDeque<Result<String, CallError>>,
    over: bool,
}

enum Source {
    One,
    Sse {
        body: Incoming,
        parser: Box<sse::Parser>,
        envelope: bool,
        dialect: Dialect,
        idle: Duration,
        lease: Option<Lease>,
    },
    Grpc {
        messages: Box<Messages>,
        idle: Duration,
        lease: Option<Lease>,
    },
}

impl EventStream {
    /// An answer that is all there will be.
    pub(super) fn one(event: String) -> Self {
        Self { source: Source::One, ready: VecDeque::from([Ok(event)]), over: true }
    }

    /// Server-sent events. `envelope`: each is an answer of JSON-RPC.
    pub(super) fn sse(
        body: Incoming,
        lease: Lease,
        envelope: bool,
        dialect: Dialect,
        max: u64,
        idle: Duration,
    ) -> Self {
        let parser = Box::new(sse::Parser::new(usize::try_from(max).unwrap_or(usize::MAX)));
        let source = Source::Sse { body, parser, envelope, dialect, idle, lease: Some(lease) };
        Self { source, ready: VecDeque::new(), over: false }
    }

    /// Messages of gRPC.
    pub(super) fn grpc(messages: Messages, lease: Lease, idle: Duration) -> Self {
        let source = Source::Grpc { messages: Box::new(messages), idle, lease: Some(lease) };
        Self { source, ready: VecDeque::new(), over: false }
    }

    /// The next event as JSON of 1.0; `None` at the end. After an error there is nothing more.
    pub async fn next_json(&mut self) -> Option<Result<String, CallError>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                if ready.is_err() {
                    self.over = true;
                    self.ready.clear();
                }
                return Some(ready);
            }
            if self.over {
                return None;
            }
            if let Err(error) = self.fill().await {
                self.over = true;
                return Some(Err(error));
            }
        }
    }

    /// The next event.
    pub async fn next(&mut self) -> Option<Result<Response, CallError>> {
        let json = self.next_json().await?;
        Some(json.and_then(|json| Response::parse(&json).map_err(CallError::from)))
    }

    /// Waits for something more; any byte is a sign of life.
    async fn fill(&mut self) -> Result<(), CallError> {
        match &mut self.source {
            Source::One => self.over = true,
            Source::Sse { body, parser, envelope, dialect, idle, lease } => {
                let Ok(frame) = timeout(*idle, body.frame()).await else {
                    return Err(CallError::Timeout(millis(*idle)));
                };
                let mut events = Vec::new();
                match frame {
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else { return Ok(()) };
                        parser.push(&data, &mut events).map_err(|e| CallError::TooLarge(e.0 as u64))?;
                    }
                    Some(Err(e)) => return Err(CallError::Broken(cause(&e))),
                    None => {
                        events.extend(parser.end());
                        self.over = true;
                        if let Some(lease) = lease.take() {
                            lease.finish();
                        }
                    }
                }
                for e in events.into_iter().filter(|e| !e.data.is_empty()) {
                    self.ready.push_back(wire::event(&e.data, e.event.as_deref(), *envelope, *dialect));
                }
            }
            Source::Grpc { messages, idle, lease } => {
                let Ok(message) = timeout(*idle, messages.next()).await else {
                    return Err(CallError::Timeout(millis(*idle)));
                };
                self.over = message.is_none();
                self.ready.extend(message);
                if self.over
                    && let Some(lease) = lease.take()
                {
                    lease.finish();
                }
            }
        }
        Ok(())
    }
}
