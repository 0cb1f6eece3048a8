//! What came back over HTTP: JSON or a stream of events.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::PATIENCE;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    /// As it came; `None` for an event without data.
    pub raw: Option<String>,
    /// The same read; null for an event without data, or with empty data.
    pub data: Value,
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: hyper::body::Incoming,
    buffer: Vec<u8>,
}

impl Reply {
    pub fn new(response: Response<hyper::body::Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        Self { status: parts.status, headers: parts.headers, body, buffer: Vec::new() }
    }

    pub fn content_type(&self) -> &str {
        self.headers.get("content-type").map_or("", |c| c.to_str().unwrap())
    }

    pub async fn bytes(self) -> Bytes {
        tokio::time::timeout(PATIENCE, self.body.collect()).await.expect("a whole body").unwrap().to_bytes()
    }

    pub async fn json(self) -> Value {
        assert_eq!(self.content_type(), "application/json");
        serde_json::from_slice(&self.bytes().await).unwrap()
    }

    /// The next event, with or without data; comments are passed over. `None` at the end.
    pub async fn raw_event(&mut self) -> Option<Event> {
        assert_eq!(self.content_type(), "text/event-stream");
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                let field = |name: &str| {
                    event.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.strip_prefix(' ').unwrap_or(v))
                };
                let (id, data) = (field("id:").map(ToOwned::to_owned), field("data:"));
                if id.is_none() && data.is_none() {
                    continue;
                }
                let raw = data.map(ToOwned::to_owned);
                let data = data.filter(|d| !d.is_empty()).map_or(Value::Null, |d| serde_json::from_str(d).unwrap());
                return Some(Event { id, raw, data });
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event in time");
            match frame {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
                _ => return None,
            }
        }
    }

    /// The next message of a stream.
    pub async fn event(&mut self) -> Option<Value> {
        loop {
            match self.raw_event().await? {
                Event { data: Value::Null, .. } => {}
                Event { data, .. } => return Some(data),
            }
        }
    }

    /// All messages that are left.
    pub async fn all(mut self) -> Vec<Value> {
        if self.content_type() == "application/json" {
            return vec![self.json().await];
        }
        let mut all = Vec::new();
        while let Some(event) = self.event().await {
            all.push(event);
        }
        all
    }

    /// The response, whether it came as JSON or at the end of a stream.
    pub async fn last(self) -> Value {
        self.all().await.pop().expect("a response")
    }
}
