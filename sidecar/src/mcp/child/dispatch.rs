//! From what a child says to where each message belongs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, Kind, METHOD_NOT_FOUND, member, plain_error, string};
use outrigger_protocol::mcp::meta::SUBSCRIPTION_ID;
use outrigger_protocol::mcp::{edit, salvage};
use tokio::time::Instant;

use super::lines::Line;
use super::table::Log;
use super::{Child, Era};
use crate::mcp::client::{Audience, Behind, Streams};
use crate::mcp::error::Error;
use crate::mcp::outlet::Answer;

/// How much of a garbage line the log shows.
const LOGGED_BYTES: usize = 200;

impl Child {
    /// One line of stdout, or a message of another wire.
    pub fn line(self: &Arc<Self>, line: Line<'_>) {
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

    fn message(self: &Arc<Self>, envelope: &Envelope<'_>) {
        self.heard.store(true, Ordering::Relaxed);
        match envelope.kind {
            Kind::Response => self.response(envelope),
            Kind::Notification => self.notification(envelope),
            Kind::Request if envelope.method == "ping" => {
                // The proxy is the child's peer on this pipe; a ping asks about nobody else.
                let id = envelope.id.map_or("null", |i| i.raw);
                let _ = self.write(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes());
            }
            Kind::Request => self.question(envelope),
        }
    }

    fn response(&self, envelope: &Envelope<'_>) {
        let id = envelope.id.and_then(|i| edit::own_id(i.raw));
        let pending = id.and_then(|id| self.table.lock().pending.remove(&id));
        let Some(mut pending) = pending else { return self.shared.dropped("late_response") };
        let outcome = if envelope.error.is_none() { "ok" } else { "error" };
        let answer = match pending.translate.take() {
            Some(translate) => translate(envelope, &pending),
            None => Some(answer(envelope, &pending.client_id)),
        };
        self.complete(&pending, answer, outcome);
    }

    fn notification(self: &Arc<Self>, envelope: &Envelope<'_>) {
        if envelope.method == "notifications/tools/list_changed" {
            self.shared.policy.stale();
        }
        match (&*envelope.method, self.era) {
            ("notifications/progress", _) => self.progress(envelope),
            ("notifications/cancelled", Era::Legacy) => self.retract(envelope),
            (_, Era::Modern) => self.tagged(envelope),
            (method, Era::Legacy) => match &self.behind {
                Behind::Nobody => {}
                Behind::One(client) => {
                    let streams = self.table.lock().streams();
                    let told = client.upgrade().map_or(Err("no_reader"), |c| c.tell(method, line(envelope), streams));
                    told.unwrap_or_else(|why| self.shared.dropped(why));
                }
                Behind::Many(audience) => self.spread(audience, envelope),
            },
        }
    }

    /// A notification of a child that has many clients: it goes to those whom it can be told to concern.
    fn spread(&self, audience: &Audience, envelope: &Envelope<'_>) {
        let method = &*envelope.method;
        let who = if method.ends_with("/list_changed") {
            let mut all = audience.everyone();
            all.extend(self.shared.listeners.everyone());
            all
        } else if method == "notifications/resources/updated" {
            let uri = edit::param(envelope, "uri").and_then(string);
            uri.map(|uri| audience.watchers(&uri)).unwrap_or_default()
        } else {
            return self.attribute(audience, envelope);
        };
        let line = line(envelope);
        for client in who {
            if let Err(why) = client.tell(method, line.clone(), Streams::default()) {
                self.shared.dropped(why);
            }
        }
    }

    /// What says of nobody whom it concerns can only concern the one request that is in flight.
    fn attribute(&self, audience: &Audience, envelope: &Envelope<'_>) {
        let level = (envelope.method == "notifications/message").then(|| level(envelope));
        let sent = {
            let table = self.table.lock();
            table.only().map(|pending| {
                let wanted = match (pending.log, level) {
                    (_, None) => true,
                    (Log::No, _) => return true,
                    (Log::Session, Some(level)) => audience.wants(pending.client, level),
                    (Log::From(from), Some(level)) => level.is_none_or(|l| l >= from),
                };
                !wanted || (pending.streams && pending.outlet.message(&line(envelope)))
            })
        };
        match sent {
            Some(true) => {}
            Some(false) => self.shared.dropped("slow_reader"),
            None => {
                self.shared.dropped("unattributed");
                let message = edit::param(envelope, "data").unwrap_or_default();
                let shown: String = message.chars().take(LOGGED_BYTES).collect();
                tracing::debug!(
                    target: "business", server = self.shared.conf.name, method = &*envelope.method, message = shown,
                    "a shared process said something that may concern any of its clients"
                );
            }
        }
    }

    /// A notification of a stateless child: it names its subscription, or is the log of a request.
    fn tagged(&self, envelope: &Envelope<'_>) {
        let tag = envelope.params.and_then(|p| member(p, "_meta")).and_then(|m| member(m, SUBSCRIPTION_ID));
        let table = self.table.lock();
        let sent = if let Some(tag) = tag {
            let pending = edit::own_id(tag.raw).and_then(|id| table.pending.get(&id));
            pending.map(|p| {
                let line = outrigger_protocol::jsonrpc::splice(envelope.text, &[(tag.range(), &p.client_id)]);
                p.cancelled || p.outlet.message(&line.into())
            })
        } else if envelope.method == "notifications/message" {
            let level = level(envelope);
            table.only_logged().map(|p| {
                let wanted = matches!(p.log, Log::From(from) if level.is_none_or(|l| l >= from));
                !wanted || p.cancelled || (p.streams && p.outlet.message(&line(envelope)))
            })
        } else if envelope.method == "notifications/cancelled" {
            // The server tears a subscription down.
            drop(table);
            if let Some(id) = edit::param(envelope, "requestId").and_then(edit::own_id) {
                self.fail_request(id, &Error::SubscriptionEnded);
            }
            return;
        } else {
            table.only().map(|p| p.streams && p.outlet.message(&line(envelope)))
        };
        drop(table);
        match sent {
            Some(true) => {}
            Some(false) => self.shared.dropped("slow_reader"),
            None => self.shared.dropped("unattributed"),
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
    fn retract(self: &Arc<Self>, envelope: &Envelope<'_>) {
        let Some(child_id) = edit::param(envelope, "requestId") else { return };
        if let Behind::One(client) = &self.behind
            && let Some(client) = client.upgrade()
        {
            let streams = self.table.lock().streams();
            client.retract(self, child_id, envelope, streams);
        }
    }

    /// A question of the child's to its client.
    fn question(self: &Arc<Self>, envelope: &Envelope<'_>) {
        let client = match &self.behind {
            Behind::One(client) => client.upgrade().ok_or("the client has left"),
            Behind::Nobody => Err("no client is behind this connection"),
            Behind::Many(_) => Err("clients share this process, and none of them can be told apart here"),
        };
        match client {
            Ok(client) => {
                let streams = self.table.lock().streams();
                client.ask(self, envelope, streams);
                self.recheck();
            }
            Err(why) => {
                self.shared.dropped("question");
                self.refuse(envelope.id.map_or("null", |i| i.raw), METHOD_NOT_FOUND, why);
            }
        }
    }

    /// Answers a question of the child's with an error.
    pub fn refuse(&self, child_id: &str, code: i32, why: &str) {
        let _ = self.write(plain_error(Some(child_id), code, why));
    }
}

/// The response as the client gets it: its own id, nothing else changed.
pub fn answer(envelope: &Envelope<'_>, client_id: &str) -> Answer {
    Answer { body: Bytes::from(edit::with_id(envelope, client_id)), failure: None, code: code(envelope) }
}

/// The code of an error response.
pub fn code(envelope: &Envelope<'_>) -> Option<i64> {
    let code = member(envelope.error?, "code").and_then(|c| c.raw.parse().ok());
    Some(code.unwrap_or_else(|| outrigger_protocol::jsonrpc::INTERNAL_ERROR.into()))
}

/// A message as one line.
fn line(envelope: &Envelope<'_>) -> Bytes {
    outrigger_protocol::jsonrpc::splice(envelope.text, &[]).into()
}

/// Level of a log message.
fn level(envelope: &Envelope<'_>) -> Option<usize> {
    outrigger_protocol::mcp::meta::log_level(&string(edit::param(envelope, "level")?)?)
}
