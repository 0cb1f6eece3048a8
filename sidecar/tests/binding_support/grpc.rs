//! A client of gRPC that sees every byte: messages, status, details.

use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use outrigger_sidecar::a2a::binding::grpc::{Rpc, Schema, frame, to_json};
use serde_json::Value;

use super::{PATIENCE, Stand};

/// Path and types of an operation.
pub fn rpc(operation: Operation, dialect: Dialect) -> Option<(&'static str, &'static Rpc)> {
    Schema::get().unwrap().all().find(|(_, r)| r.operation == operation && r.dialect == dialect)
}

/// A call that is under way.
pub struct Answer {
    pub headers: HeaderMap,
    pub trailers: HeaderMap,
    body: Incoming,
    bytes: Vec<u8>,
    rpc: &'static Rpc,
}

/// Bytes of a request with one message.
pub fn request_bytes(rpc: &Rpc, json: &Value) -> Bytes {
    let mut out = bytes::BytesMut::new();
    frame(&rpc.input, &json.to_string(), &mut out).unwrap();
    out.freeze()
}

/// Posts bytes to a path.
pub async fn post(stand: &Stand, path: &str, metadata: &[(&str, &str)], body: Bytes) -> Response<Incoming> {
    let mut request = Request::post(format!("http://{}{path}", stand.address)).header("te", "trailers");
    if !metadata.iter().any(|(k, _)| *k == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in metadata {
        request = request.header(*name, *value);
    }
    let mut sender = stand.h2().await;
    sender.send_request(request.body(Full::from(body)).unwrap()).await.unwrap()
}

/// Calls an operation.
pub async fn call(
    stand: &Stand,
    operation: Operation,
    dialect: Dialect,
    metadata: &[(&str, &str)],
    json: &Value,
) -> Answer {
    let (path, rpc) = rpc(operation, dialect).unwrap();
    Answer::of(post(stand, path, metadata, request_bytes(rpc, json)).await, rpc)
}

impl Answer {
    pub fn of(response: Response<Incoming>, rpc: &'static Rpc) -> Self {
        assert_eq!(response.status(), 200);
        let (head, body) = response.into_parts();
        assert_eq!(head.headers["content-type"], "application/grpc");
        Self { headers: head.headers, trailers: HeaderMap::new(), body, bytes: Vec::new(), rpc }
    }

    /// The next message as JSON; `None` when the trailers came.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((prefix, rest)) = self.bytes.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                assert_eq!(prefix[0], 0);
                if rest.len() >= length {
                    let json = to_json(&self.rpc.output, &rest[..length]).unwrap();
                    self.bytes.drain(..5 + length);
                    return Some(serde_json::from_str(&json).unwrap());
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the call is silent");
            let Some(frame) = frame else { break };
            match frame.unwrap().into_data() {
                Ok(data) => self.bytes.extend_from_slice(&data),
                Err(frame) => self.trailers = frame.into_trailers().unwrap(),
            }
        }
        assert!(self.bytes.is_empty(), "half a message: {:?}", self.bytes);
        None
    }

    /// The rest of the messages.
    pub async fn all(&mut self) -> Vec<Value> {
        let mut out = Vec::new();
        while let Some(message) = self.next().await {
            out.push(message);
        }
        out
    }

    /// Status of a call whose messages were read.
    pub fn status(&self) -> i32 {
        let value = self.trailers.get("grpc-status").or(self.headers.get("grpc-status")).expect("no status");
        value.to_str().unwrap().parse().unwrap()
    }

    /// `grpc-message`, from wherever it came.
    pub fn message(&self) -> &str {
        let value = self.trailers.get("grpc-message").or(self.headers.get("grpc-message"));
        value.map_or("", |v| v.to_str().unwrap())
    }
}

/// A moment that a caller allows.
pub fn timeout_of(allowed: Duration) -> String {
    format!("{}m", allowed.as_millis())
}
