//! Calls over gRPC: one message out, one or many in, status in the trailers (A2A 1.0, section 10).

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outrigger_protocol::a2a::errors::Kind;
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use outrigger_protocol::a2a::v03;
use prost::Message;
use serde_json::value::RawValue;

use super::client::cause;
use super::error::{AgentError, CallError};
use super::interface::Interface;
use super::stream::EventStream;
use super::wire;
use crate::a2a::binding::grpc::status::{ErrorInfo, Status};
use crate::a2a::binding::grpc::{Rpc, Schema, frame, to_json};
use crate::mesh::connect::Lease;

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Encoders differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Statuses: of a call that is not taken now, and of a server that goes away.
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAVAILABLE: i32 = 14;

fn rpc(operation: Operation, dialect: Dialect) -> Result<(&'static str, &'static Rpc), CallError> {
    let schema = Schema::get().ok_or(CallError::NotOffered("gRPC"))?;
    let found = schema.all().find(|(_, rpc)| rpc.operation == operation && rpc.dialect == dialect);
    found.ok_or(CallError::NotOffered(operation.name()))
}

/// Path and body of a call. `params` are those of 1.0.
pub fn request(operation: Operation, dialect: Dialect, params: &str) -> Result<(String, Bytes), CallError> {
    let (path, rpc) = rpc(operation, dialect)?;
    let params = v03::params_out(operation, dialect, params)?;
    let mut body = BytesMut::new();
    frame(&rpc.input, &params, &mut body)?;
    Ok((path.to_owned(), body.freeze()))
}

/// Reads the answer to a call that has one.
pub async fn unary(
    operation: Operation,
    interface: &Interface,
    response: Response<Incoming>,
    lease: Lease,
    max: u64,
) -> Result<String, CallError> {
    let (_, rpc) = rpc(operation, interface.dialect)?;
    let mut messages = Messages::new(response, rpc, max, false)?;
    let first = messages.next().await;
    let Some(message) = first else {
        return Err(CallError::Unreadable("the call ended well without a message".into()));
    };
    let message = message?;
    // An error may come after the message.
    match messages.next().await {
        None => {}
        Some(Ok(_)) => return Err(CallError::Unreadable("the call has more than one message".into())),
        Some(Err(e)) => return Err(e),
    }
    lease.finish();
    let result: &RawValue =
        serde_json::from_str(&message).map_err(|e| CallError::Unreadable(format!("it is no JSON: {e}")))?;
    wire::result_in(operation, interface.dialect, result)
}

/// Begins to read the answer to a call that has many.
pub fn open(
    operation: Operation,
    interface: &Interface,
    response: Response<Incoming>,
    lease: Lease,
    max: u64,
    idle: Duration,
) -> Result<EventStream, CallError> {
    let (_, rpc) = rpc(operation, interface.dialect)?;
    Ok(EventStream::grpc(Messages::new(response, rpc, max, true)?, lease, idle))
}

/// The messages of an answer, as JSON.
pub struct Messages {
    body: Incoming,
    buffer: BytesMut,
    ready: VecDeque<Bytes>,
    /// Status, once it is known.
    end: Option<Result<(), CallError>>,
    rpc: &'static Rpc,
    max: u64,
    /// Whether each is an event.
    events: bool,
}

impl Messages {
    /// The answer behind a head; one that ends with its head is an error here, unless it ended well.
    fn new(response: Response<Incoming>, rpc: &'static Rpc, max: u64, events: bool) -> Result<Self, CallError> {
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(CallError::Status(head.status.as_u16()));
        }
        let end = status(&head.headers);
        if let Some(Err(error)) = end {
            return Err(error);
        }
        Ok(Self { body, buffer: BytesMut::new(), ready: VecDeque::new(), end, rpc, max, events })
    }

    /// The next message as JSON, an event as that of 1.0; `None` when the call ended well.
    pub async fn next(&mut self) -> Option<Result<String, CallError>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(self.read(&message));
            }
            match self.end.take() {
                Some(Ok(())) => {
                    self.end = Some(Ok(()));
                    return None;
                }
                Some(Err(error)) => {
                    self.end = Some(Ok(()));
                    return Some(Err(error));
                }
                None => self.fill().await,
            }
        }
    }

    fn read(&self, message: &[u8]) -> Result<String, CallError> {
        let json = to_json(&self.rpc.output, message)?;
        if !self.events {
            return Ok(json);
        }
        let event: &RawValue =
            serde_json::from_str(&json).map_err(|e| CallError::Unreadable(format!("an event is no JSON: {e}")))?;
        Ok(v03::event_in(self.rpc.dialect, event)?)
    }

    async fn fill(&mut self) {
        self.end = match self.body.frame().await {
            None => Some(Err(CallError::Broken("the call ended without a status".into()))),
            Some(Err(e)) => Some(Err(CallError::Broken(cause(&e)))),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.buffer.extend_from_slice(&data);
                    self.split().err().map(Err)
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let missing = || Err(CallError::Broken("the call ended without a status".into()));
                    Some(status(&trailers).unwrap_or_else(missing))
                }
            },
        };
    }

    fn split(&mut self) -> Result<(), CallError> {
        while let Some(&[compressed, a, b, c, d]) = self.buffer.first_chunk::<PREFIX>() {
            if compressed != 0 {
                return Err(CallError::Unreadable("a message is compressed, which was not asked for".into()));
            }
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length as u64 > self.max {
                return Err(CallError::TooLarge(self.max));
            }
            if self.buffer.len() < PREFIX + length {
                return Ok(());
            }
            self.buffer.advance(PREFIX);
            self.ready.push_back(self.buffer.split_to(length).freeze());
        }
        Ok(())
    }
}

/// The status in trailers, or in a head that is one with them; `None` if there is none.
fn status(headers: &HeaderMap) -> Option<Result<(), CallError>> {
    let code: i32 = headers.get("grpc-status")?.to_str().ok()?.trim().parse().ok()?;
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let message = decoded(message);
    let reason = headers.get("grpc-status-details-bin").and_then(|v| reason(v.as_bytes()));
    if reason.is_none() {
        match code {
            RESOURCE_EXHAUSTED => return Some(Err(CallError::Busy { status: 429, after: Duration::from_secs(1) })),
            UNAVAILABLE => return Some(Err(CallError::Broken(message))),
            _ => {}
        }
    }
    let kind = match code {
        3 => Kind::InvalidParams,
        5 => Kind::TaskNotFound,
        7 => Kind::Forbidden,
        12 => Kind::MethodNotFound,
        16 => Kind::Unauthenticated,
        _ => Kind::Internal,
    };
    let reason = reason.or_else(|| Some(kind.reason().to_owned()));
    Some(Err(CallError::Agent(AgentError::new(None, reason, &message))))
}

fn reason(details: &[u8]) -> Option<String> {
    let status = Status::decode(BASE64.decode(details).ok()?.as_slice()).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("google.rpc.ErrorInfo"))?;
    ErrorInfo::decode(info.value.as_slice()).ok().map(|info| info.reason).filter(|r| !r.is_empty())
}

/// A percent-encoded message.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let hex = bytes.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
        let escaped = hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(|_| byte == b'%');
        out.push(escaped.unwrap_or(byte));
        i += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::binding::grpc::status::Any;

    #[test]
    fn statuses() {
        let of = |pairs: &[(&'static str, String)]| {
            let mut headers = HeaderMap::new();
            for (key, value) in pairs {
                headers.insert(*key, value.parse().unwrap());
            }
            status(&headers)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("grpc-status", "0".into())]), Some(Ok(())));
        let info = ErrorInfo { reason: "TASK_NOT_CANCELABLE".into(), ..ErrorInfo::default() };
        let any = Any { type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(), value: info.encode_to_vec() };
        let details = BASE64.encode(Status { details: vec![any], ..Status::default() }.encode_to_vec());
        let error = of(&[
            ("grpc-status", "9".into()),
            ("grpc-message", "no%20way%".into()),
            ("grpc-status-details-bin", details),
        ]);
        let Some(Err(CallError::Agent(error))) = error else { panic!("{error:?}") };
        assert_eq!(
            (error.kind, error.code, error.message.as_str()),
            (Some(Kind::TaskNotCancelable), -32002, "no way%")
        );
        assert!(of(&[("grpc-status", "5".into())]).unwrap().unwrap_err().is(Kind::TaskNotFound));
        assert!(matches!(of(&[("grpc-status", "8".into())]), Some(Err(CallError::Busy { .. }))));
        assert!(matches!(of(&[("grpc-status", "14".into())]), Some(Err(CallError::Broken(_)))));
    }
}
