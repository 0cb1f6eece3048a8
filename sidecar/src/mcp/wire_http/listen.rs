//! The stream on which a server speaks of its own accord (2025-11-25, transports, "Listening for Messages").

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use outrigger_protocol::a2a::sse::{Event, Parser};

use super::error::Error;
use super::{Content, Shared, kind};
use crate::outbound::Opened;

/// Where a stream goes on.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

impl Shared {
    /// Listens until the end; a server that has no such stream says so once.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut last_id: Option<String> = None;
        let mut wait = self.upstream.timing.retry;
        loop {
            let (mut headers, generation) = self.headers(None);
            headers.extend(last_id.as_deref().and_then(|id| Some((LAST_EVENT_ID, HeaderValue::from_str(id).ok()?))));
            match self.upstream.request(Method::GET, headers, Bytes::new()).await {
                Ok(answer) if answer.status == StatusCode::OK && matches!(kind(&answer.headers), Content::Stream) => {
                    wait = self.upstream.timing.retry;
                    if let Some(asked) = self.heard(answer, &mut last_id).await {
                        wait = asked.min(self.upstream.timing.longest_retry);
                    }
                }
                Ok(answer) if answer.status == StatusCode::NOT_FOUND => {
                    last_id = None;
                    if let Err(error) = self.renew(generation).await {
                        tracing::debug!(target: "protocol", %error, "a server's stream cannot be listened to");
                    }
                }
                // The specification's way to say that there is none, and that of servers which know it less well.
                Ok(answer) if answer.status.is_client_error() && answer.status != StatusCode::TOO_MANY_REQUESTS => {
                    return;
                }
                Ok(answer) if answer.status.is_success() => return,
                Ok(_) | Err(_) => wait = (wait * 2).min(self.upstream.timing.longest_retry),
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Hands on what comes until the stream ends; how long the server wants to be left alone then.
    async fn heard(&self, mut answer: Opened, last_id: &mut Option<String>) -> Option<Duration> {
        let mut parser = Parser::new(self.upstream.max);
        while let Some(Ok(bytes)) = answer.next().await {
            let mut events = Vec::new();
            let fits = parser.push(&bytes, &mut events);
            for Event { data, .. } in events {
                if !data.is_empty() && self.pass(&data, "").await.is_err_and(|e| e == Error::Closed) {
                    return None;
                }
            }
            if fits.is_err() {
                break;
            }
        }
        *last_id = parser.last_id().map(str::to_owned).or(last_id.take());
        parser.retry().map(Duration::from_millis)
    }

    /// Takes a stream up after an event; `None` where the server cannot.
    pub(super) async fn resume(&self, last_id: &str) -> Result<Option<Opened>, Error> {
        let (mut headers, _) = self.headers(None);
        let Ok(id) = HeaderValue::from_str(last_id) else { return Ok(None) };
        headers.insert(LAST_EVENT_ID, id);
        let answer = self.upstream.request(Method::GET, headers, Bytes::new()).await?;
        let is_stream = answer.status == StatusCode::OK && matches!(kind(&answer.headers), Content::Stream);
        Ok(is_stream.then_some(answer))
    }
}
