//! Bodies of gRPC answers: messages, then trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::v03;
use tokio::time::{Instant, Sleep, sleep_until};

use super::schema::{self, Rpc};
use super::status;
use crate::a2a::binding::events::{Events, Next};
use crate::a2a::binding::meter::Ended;
use crate::a2a::call::StreamItem;

/// Messages that are ready together go out together, up to about so many bytes.
const CHUNK: usize = 32 << 10;

/// One message.
pub(super) struct Unary {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Unary {
    /// A message with its prefix, and the trailers behind it.
    pub(super) fn new(message: Bytes, trailers: HeaderMap) -> Self {
        Self { message: Some(message), trailers: Some(trailers) }
    }
}

impl Body for Unary {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.message.take() {
            Some(message) => Some(Frame::data(message)),
            None => self.trailers.take().map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.message.as_ref().map_or(0, |m| m.len() as u64))
    }
}

/// A message for each event. A reader that is slow is waited for.
pub(super) struct Streamed {
    events: Events,
    rpc: &'static Rpc,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Whether messages carry the ids of their events.
    ids: bool,
    /// What ends the call, as soon as that is known.
    trailers: Option<HeaderMap>,
    closed: bool,
}

impl Streamed {
    /// The events of a call.
    pub(super) fn new(events: Events, rpc: &'static Rpc, deadline: Option<Instant>, ids: bool) -> Self {
        let deadline = deadline.map(|at| Box::pin(sleep_until(at)));
        Self { events, rpc, deadline, ids, trailers: None, closed: false }
    }

    fn write(&mut self, item: &StreamItem, out: &mut BytesMut) -> Result<(), Error> {
        let begin = out.len();
        match self.rpc.dialect {
            Dialect::V10 => schema::frame(&self.rpc.output, &item.json, out)?,
            dialect => schema::frame(&self.rpc.output, &v03::event_out(dialect, &item.json, item.last)?, out)?,
        }
        match &item.id {
            Some(id) if self.ids => schema::add_event_id(out, begin, id),
            _ => Ok(()),
        }
    }

    fn take(&mut self, next: Next, out: &mut BytesMut) {
        match next {
            Next::Item(item) => {
                if let Err(error) = self.write(&item, out) {
                    tracing::warn!(target: "protocol", message = error.message, "a stream broke off");
                    self.events.end(Ended::Error);
                    self.trailers = Some(status::failed_in(&error, Some(self.rpc.dialect)));
                }
            }
            Next::Error(error) => self.trailers = Some(status::failed_in(&error, Some(self.rpc.dialect))),
            Next::Leaving => self.trailers = Some(status::leaving()),
            Next::End => {}
        }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.closed {
            return Poll::Ready(None);
        }
        if !this.events.is_over()
            && let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            this.events.end(Ended::Deadline);
            this.trailers = Some(status::deadline());
        }
        let mut out = BytesMut::new();
        while !this.events.is_over() && out.len() < CHUNK {
            match this.events.poll_next(cx) {
                Poll::Ready(next) => this.take(next, &mut out),
                Poll::Pending => break,
            }
        }
        if !out.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
        }
        if !this.events.is_over() {
            return Poll::Pending;
        }
        this.closed = true;
        let trailers = this.trailers.take().unwrap_or_else(status::ok);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.closed
    }
}
