//! The events of a stream on their way to a caller, whatever binding writes them.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::stream::BoxStream;
use outrigger_protocol::a2a::errors::{Error, Kind};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::meter::{Counted, CountedStream, Ended};
use crate::a2a::call::StreamItem;

/// A stream whose first event is there.
pub(super) struct Opened {
    first: StreamItem,
    rest: BoxStream<'static, Result<StreamItem, Error>>,
}

/// What comes next.
pub(super) enum Next {
    /// An event.
    Item(StreamItem),
    /// An error, the last thing of the stream.
    Error(Error),
    /// The end.
    End,
    /// The end, as the pod goes away: the stream can be resumed elsewhere.
    Leaving,
}

impl Opened {
    /// Waits for the first event: an error before it is an ordinary answer (A2A 1.0, section 9.4.2).
    pub(super) async fn of(mut stream: BoxStream<'static, Result<StreamItem, Error>>) -> Result<Self, Error> {
        match stream.next().await {
            Some(Ok(first)) => Ok(Self { first, rest: stream }),
            Some(Err(error)) => Err(error),
            None => Err(Error::new(Kind::Internal, "the stream ended before its first event")),
        }
    }

    /// The events, until the pod goes away.
    pub(super) fn events(self, shutdown: &CancellationToken, counted: Counted) -> Events {
        Events {
            first: Some(self.first),
            rest: Some(self.rest),
            leaving: Box::pin(shutdown.clone().cancelled_owned()),
            counted: counted.stream(),
        }
    }
}

/// The events of an open stream. It holds nothing of the request: tens of thousands of them are idle at a time.
pub(super) struct Events {
    first: Option<StreamItem>,
    /// Gone when the stream is over, and the work of the service with it.
    rest: Option<BoxStream<'static, Result<StreamItem, Error>>>,
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
    counted: CountedStream,
}

impl Events {
    /// The next event, an error or the end; [`Next::End`] again after any end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(Next::End) };
        let item = match self.first.take() {
            Some(item) => Some(Ok(item)),
            None => match rest.poll_next_unpin(cx) {
                Poll::Ready(item) => item,
                Poll::Pending if self.leaving.as_mut().poll(cx).is_ready() => {
                    self.end(Ended::Shutdown);
                    return Poll::Ready(Next::Leaving);
                }
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(match item {
            Some(Ok(item)) => {
                if item.last {
                    self.end(Ended::Done);
                }
                Next::Item(item)
            }
            Some(Err(error)) => {
                self.end(Ended::Error);
                Next::Error(error)
            }
            None => {
                self.end(Ended::Done);
                Next::End
            }
        })
    }

    /// Ends the stream.
    pub(super) fn end(&mut self, how: Ended) {
        self.rest = None;
        self.counted.ended = how;
    }

    /// Whether nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_none()
    }
}
