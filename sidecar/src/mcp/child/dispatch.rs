//! From what a child says to where each message belongs.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR, Kind, METHOD_NOT_FOUND, plain_error};
use outrigger_protocol::mcp::{edit, salvage};
use tokio::time::Instant;

use super::Child;
use super::lines::Line;
use super::table::{Asked, Delivery, MAX_ASKED, Route};
use crate::mcp::error::Error;
use crate::mcp::outlet::Answer;

/// How much of a garbage line the log shows.
const LOGGED_BYTES: usize = 200;

impl Child {
    /// One line of stdout, or a message of another wire.
    pub fn line(&self, line: Line<'_>) {
        let bytes = match line {
            Line::Whole(bytes) => bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii(),
            Line::TooLong { head, tail } => {
                self.odd("too_long", head);
                let limit = self.shared.conf.process.max_line_bytes;
                return self.fail_broken(head, tail, &Error::LineTooLong(limit));
            }
        };
        if bytes.is_empty() {
            return;
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            self.odd("invalid_utf8", bytes);
            return self.fail_broken(bytes, bytes, &Error::MalformedLine);
        };
        match Envelope::parse(text, usize::MAX) {
            Ok(envelope) => self.message(&envelope),
            Err(why) => {
                if let Some(envelope) = salvage::after_prefix(text) {
                    self.odd("decorated", bytes);
                    return self.message(&envelope);
                }
                let looks_like_one = text.starts_with('{') && text.contains("\"jsonrpc\"");
                self.odd(if looks_like_one { "malformed" } else { "garbage" }, bytes);
                tracing::debug!(target: "protocol", server = self.shared.conf.name, %why, "line is no message");
                self.fail_broken(bytes, bytes, &Error::MalformedLine);
            }
        }
    }

    fn odd(&self, kind: &str, line: &[u8]) {
        let counter = self.shared.metrics.odd_lines.with_label_values(&[self.shared.conf.name.as_str(), kind]);
        counter.inc();
        // Powers of two: a chatty server says it often enough to be noticed and never floods the log.
        if counter.get().is_power_of_two() {
            let shown = String::from_utf8_lossy(&line[..line.len().min(LOGGED_BYTES)]);
            tracing::warn!(
                target: "protocol", server = self.shared.conf.name, kind, count = counter.get(), line = ?shown,
                "stdout of the server carries something else than messages"
            );
        }
    }

    /// Fails the request that a lost line would have answered, if it can be told.
    fn fail_broken(&self, head: &[u8], tail: &[u8], error: &Error) {
        const SEARCH: usize = 1024;
        if !head[..head.len().min(SEARCH)].windows(9).any(|w| w == b"\"jsonrpc\"") {
            return;
        }
        if let Some(id) = salvage::broken_id(head, tail) {
            self.fail_request(id, error);
        }
    }

    fn message(&self, envelope: &Envelope<'_>) {
        match envelope.kind {
            Kind::Response => self.response(envelope),
            Kind::Notification => self.notification(envelope),
            Kind::Request if envelope.method == "ping" => {
                // The proxy is the child's peer on this pipe; a ping asks about nobody else.
                let id = envelope.id.map_or("null", |i| i.raw);
                let _ = self.write(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes());
            }
            Kind::Request => self.ask(envelope),
        }
    }

    fn response(&self, envelope: &Envelope<'_>) {
        let id = envelope.id.and_then(|i| edit::own_id(i.raw));
        let pending = id.and_then(|id| self.table.lock().pending.remove(&id));
        let Some(pending) = pending else { return self.shared.dropped("late_response") };
        if pending.method == "initialize" && envelope.error.is_none() {
            self.initialized.store(true, Ordering::Relaxed);
        }
        let body = Bytes::from(edit::with_id(envelope, &pending.client_id));
        let ok = envelope.error.is_none();
        self.complete(&pending, Answer { body, failure: None, ok }, if ok { "ok" } else { "error" });
    }

    fn notification(&self, envelope: &Envelope<'_>) {
        match &*envelope.method {
            "notifications/progress" => self.progress(envelope),
            "notifications/cancelled" => self.cancel(envelope),
            method => {
                let route = if method.ends_with("/list_changed") || method == "notifications/resources/updated" {
                    Route::Session
                } else {
                    Route::Current
                };
                self.deliver(edit::with_id(envelope, "null"), route, None);
            }
        }
    }

    /// Progress belongs to exactly one request; without one it is dropped, as clients break on unknown tokens.
    fn progress(&self, envelope: &Envelope<'_>) {
        let id = edit::param(envelope, "progressToken").and_then(edit::own_id);
        let mut table = self.table.lock();
        let pending = id.and_then(|id| table.pending.get_mut(&id));
        let Some((pending, token)) = pending.and_then(|p| p.token.clone().map(|t| (p, t))) else {
            drop(table);
            return self.shared.dropped("late_progress");
        };
        if !pending.cancelled {
            pending.deadline = Instant::now() + self.shared.request_limit();
        }
        let sent =
            pending.streams && pending.outlet.message(&edit::with_param(envelope, "progressToken", &token).into());
        drop(table);
        if !sent {
            self.shared.dropped("slow_reader");
        }
    }

    /// The child does not want the answer to a question any more.
    fn cancel(&self, envelope: &Envelope<'_>) {
        let Some(child_id) = edit::param(envelope, "requestId") else { return };
        let ask = {
            let mut table = self.table.lock();
            let ask = table.asked.iter().find(|(_, a)| &*a.child_id == child_id).map(|(id, a)| (*id, a.delivered));
            if let Some((id, _)) = ask {
                table.asked.remove(&id);
            }
            ask
        };
        // What no client has seen is simply not delivered.
        if let Some((id, true)) = ask {
            self.deliver(edit::with_param(envelope, "requestId", &id.to_string()), Route::Current, None);
        }
    }

    /// A question of the child's to the client.
    fn ask(&self, envelope: &Envelope<'_>) {
        let Some(child_id) = envelope.id else { return };
        if !self.attended {
            let _ =
                self.write(plain_error(Some(child_id.raw), METHOD_NOT_FOUND, "no client is behind this connection"));
            return;
        }
        let ask = {
            let mut table = self.table.lock();
            if table.asked.len() >= MAX_ASKED {
                None
            } else {
                let id = table.next_ask();
                let deadline = Instant::now() + self.shared.timing.undelivered;
                table.asked.insert(id, Asked { child_id: child_id.raw.into(), deadline, delivered: false });
                Some(id)
            }
        };
        let Some(ask) = ask else {
            let _ = self.write(plain_error(Some(child_id.raw), INTERNAL_ERROR, "too many requests await an answer"));
            return;
        };
        self.deliver(edit::with_id(envelope, &ask.to_string()), Route::Current, Some(ask));
        self.recheck();
    }

    fn deliver(&self, line: Vec<u8>, route: Route, ask: Option<u64>) {
        let delivery = self.table.lock().deliver(line.into(), route, ask);
        if let Delivery::Dropped(reason) = delivery {
            self.shared.dropped(reason);
        }
    }
}
