//! A model of the task store, random schedules over it and the real one, and beds for each real one.

// Each test target uses a part of it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::result_large_err
)]

pub mod bed;
pub mod check;
pub mod memory;
pub mod model;
pub mod postgres;
pub mod schedule;
pub mod sqlite;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;

/// Drops a future after so many polls: what a process does to it that ends there.
pub struct Limited<'a, T> {
    inner: BoxFuture<'a, T>,
    left: usize,
}

impl<'a, T> Limited<'a, T> {
    /// At least one poll.
    pub fn new(inner: BoxFuture<'a, T>, polls: usize) -> Self {
        Self { inner, left: polls.max(1) }
    }
}

impl<T> Future for Limited<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match self.inner.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => {
                self.left -= 1;
                if self.left == 0 { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    }
}
