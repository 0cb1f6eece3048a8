//! The body of a peer's answer on its way through: in pieces, with time limits, counted once at its end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::connect::Lease;
use super::metrics::PeerMetrics;

/// Why a body ends before its end.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// A stream was quiet for too long.
    #[error("the peer's stream was quiet for {0:?}")]
    Idle(Duration),
    /// An answer took too long in all.
    #[error("the peer's answer was not complete within {0:?}")]
    Late(Duration),
    /// The connection to the peer ended.
    #[error("the peer's answer broke off: {0}")]
    Broken(#[from] hyper::Error),
}

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Between two pieces.
    Idle(Duration),
    /// In all, from when on.
    Total(Duration, Instant),
}

/// A body that passes through.
pub struct Passing {
    inner: Incoming,
    timer: Pin<Box<Sleep>>,
    limit: Limit,
    lease: Option<Lease>,
    metrics: PeerMetrics,
    outcome: &'static str,
}

impl Passing {
    /// `outcome` is counted when the body is read to its end.
    pub fn new(inner: Incoming, limit: Limit, lease: Lease, metrics: PeerMetrics, outcome: &'static str) -> Self {
        let end = match limit {
            Limit::Idle(idle) => Instant::now() + idle,
            Limit::Total(total, since) => since + total,
        };
        let timer = Box::pin(tokio::time::sleep_until(end));
        let mut body = Self { inner, timer, limit, lease: Some(lease), metrics, outcome };
        if body.inner.is_end_stream() {
            body.end(outcome);
        }
        body
    }

    fn end(&mut self, outcome: &str) {
        let Some(lease) = self.lease.take() else { return };
        self.metrics.outcome(outcome);
        if outcome == self.outcome {
            lease.finish();
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.end("cancelled");
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Limit::Idle(idle) = this.limit {
                    this.timer.as_mut().reset(Instant::now() + idle);
                }
                // A server that knows the length does not ask for more after the last byte.
                if this.inner.is_end_stream() {
                    this.end(this.outcome);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.end("broken");
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                this.end(this.outcome);
                Poll::Ready(None)
            }
            Poll::Pending => {
                if this.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                this.end("timeout");
                Poll::Ready(Some(Err(match this.limit {
                    Limit::Idle(idle) => Cut::Idle(idle),
                    Limit::Total(total, _) => Cut::Late(total),
                })))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
