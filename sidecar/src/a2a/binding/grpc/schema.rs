//! The messages of gRPC, read and written as JSON by the descriptors of the protos.
//!
//! `google.protobuf.Struct` has no integers: what passes through it is a double. A whole number within 2^53 comes out
//! as one (`7`, not `7.0`); larger ones lose digits, and unknown members of a part are dropped. Only gRPC has that loss.

use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::ser::Formatter;

/// Bytes before each message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/a2a.descriptors"));
/// The services: of 1.0 and of 0.3.
const SERVICES: [(&str, Dialect); 2] =
    [("lf.a2a.v1.A2AService", Dialect::V10), ("a2a.v1.A2AService", Dialect::V03Proto)];
/// Above this, neighbouring integers are one double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// What can be called.
#[derive(Debug)]
pub struct Schema {
    calls: HashMap<String, Rpc>,
}

/// One method of one of the services.
#[derive(Clone, Debug)]
pub struct Rpc {
    /// What it asks for.
    pub operation: Operation,
    /// Whose service it is.
    pub dialect: Dialect,
    /// Its request.
    pub input: MessageDescriptor,
    /// Its response, or each of them.
    pub output: MessageDescriptor,
}

impl Schema {
    /// The schema; read when the first call comes, as most agents get none. `None` if the descriptors are damaged.
    pub fn get() -> Option<&'static Self> {
        static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
        SCHEMA.get_or_init(Self::read).as_ref()
    }

    fn read() -> Option<Self> {
        let pool = DescriptorPool::decode(DESCRIPTORS)
            .inspect_err(|error| tracing::error!(target: "protocol", %error, "the descriptors of gRPC are damaged"))
            .ok()?;
        let mut calls = HashMap::new();
        for (name, dialect) in SERVICES {
            for method in pool.get_service_by_name(name)?.methods() {
                let operation = operation(method.name())?;
                let rpc = Rpc { operation, dialect, input: method.input(), output: method.output() };
                calls.insert(format!("/{name}/{}", method.name()), rpc);
            }
        }
        Some(Self { calls })
    }

    /// The method at a path.
    pub fn at(&self, path: &str) -> Option<&Rpc> {
        self.calls.get(path)
    }

    /// All methods by path.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Rpc)> {
        self.calls.iter().map(|(path, rpc)| (path.as_str(), rpc))
    }
}

fn operation(name: &str) -> Option<Operation> {
    Some(match name {
        "TaskSubscription" => Operation::SubscribeToTask,
        "ListTaskPushNotificationConfig" => Operation::ListTaskPushNotificationConfigs,
        "GetAgentCard" => Operation::GetExtendedAgentCard,
        other => return Operation::by_name(other),
    })
}

/// A message as JSON.
pub fn to_json(message: &MessageDescriptor, bytes: &[u8]) -> Result<String, Error> {
    let invalid = |e: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidRequest, format!("the message is no {}: {e}", message.name()))
    };
    let message = DynamicMessage::decode(message.clone(), bytes).map_err(|e| invalid(&e))?;
    let mut out = Vec::with_capacity(bytes.len() * 2);
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, WholeNumbers);
    message.serialize_with_options(&mut serializer, &SerializeOptions::new()).map_err(|e| invalid(&e))?;
    String::from_utf8(out).map_err(|e| invalid(&e))
}

/// Appends JSON as a message, behind its prefix.
pub fn frame(message: &MessageDescriptor, json: &str, out: &mut BytesMut) -> Result<(), Error> {
    let cannot = |e: &dyn std::fmt::Display| {
        Error::new(Kind::Internal, format!("the answer cannot be written as {}: {e}", message.name()))
    };
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize_with_options(message.clone(), &mut deserializer, &options)
        .map_err(|e| cannot(&e))?;
    let length = message.encoded_len();
    out.reserve(PREFIX + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).map_err(|e| cannot(&e))?);
    message.encode(out).map_err(|e| cannot(&e))
}

/// Number of the field that carries an event's id, beside those of the proto: readers that do not know it pass it over.
pub const EVENT_ID_FIELD: u32 = 50_001;

/// Gives the message that begins at `begin` the id of its event.
pub(super) fn add_event_id(out: &mut BytesMut, begin: usize, id: &str) -> Result<(), Error> {
    prost::encoding::string::encode(EVENT_ID_FIELD, &id.to_owned(), out);
    let length = u32::try_from(out.len() - begin - PREFIX)
        .map_err(|e| Error::new(Kind::Internal, format!("the event is too large: {e}")))?;
    out[begin + 1..begin + PREFIX].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// An empty message, behind its prefix.
pub(super) fn empty() -> Bytes {
    Bytes::from_static(&[0; PREFIX])
}

/// Doubles that are whole numbers, as such.
struct WholeNumbers;

impl Formatter for WholeNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        if value.fract() == 0.0 && value.abs() < EXACT && !(value == 0.0 && value.is_sign_negative()) {
            write!(writer, "{value:.0}")
        } else {
            write!(
                writer,
                "{}",
                serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |n| n.to_string())
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_methods() {
        let schema = Schema::get().unwrap();
        let of = |dialect| {
            let mut names: Vec<_> =
                schema.all().filter(|(_, r)| r.dialect == dialect).map(|(_, r)| r.operation.name()).collect();
            names.sort_unstable();
            names
        };
        let mut all: Vec<_> = Operation::ALL.map(Operation::name).into();
        all.sort_unstable();
        assert_eq!(of(Dialect::V10), all);
        all.retain(|n| *n != "ListTasks");
        assert_eq!(of(Dialect::V03Proto), all);
    }

    #[test]
    fn an_events_id_stands_beside_what_the_proto_has() {
        let rpc = Schema::get().unwrap().at("/lf.a2a.v1.A2AService/SendStreamingMessage").unwrap();
        let json = r#"{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}}}"#;
        let mut out = BytesMut::from(&b"before"[..]);
        frame(&rpc.output, json, &mut out).unwrap();
        let plain = out.len();
        add_event_id(&mut out, 6, "t.2.0").unwrap();
        let message = &out[6 + PREFIX..];
        assert_eq!(out[7..6 + PREFIX], u32::try_from(message.len()).unwrap().to_be_bytes());
        assert_eq!(to_json(&rpc.output, message).unwrap(), json, "who does not know it reads the rest");
        let decoded = DynamicMessage::decode(rpc.output.clone(), message).unwrap();
        assert_eq!(
            decoded.unknown_fields().map(prost_reflect::UnknownField::number).collect::<Vec<_>>(),
            [EVENT_ID_FIELD]
        );
        assert!(out[plain..].ends_with(b"t.2.0"));
    }

    #[test]
    fn json_passes_with_the_loss_of_struct_alone() {
        let rpc = Schema::get().unwrap().at("/lf.a2a.v1.A2AService/SendMessage").unwrap();
        for (json, want) in [
            (r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":""},{"data":null}]}}"#, None),
            (r#"{"metadata":{"a":7,"b":-1.5,"c":[true,null,{"d":1e300}],"e":9007199254740991}}"#, None),
            (r#"{"message":{"parts":[{"raw":"AAEC","filename":"b.bin"}]},"configuration":{"historyLength":0}}"#, None),
            (r#"{"message":{"parts":[{"raw":"-_8"}]}}"#, Some(r#"{"message":{"parts":[{"raw":"+/8="}]}}"#)),
            (
                r#"{"message":{"message_id":"m","role":2,"x":1}}"#,
                Some(r#"{"message":{"messageId":"m","role":"ROLE_AGENT"}}"#),
            ),
            (r#"{"metadata":{"n":12345678901234567890}}"#, Some(r#"{"metadata":{"n":1.2345678901234567e+19}}"#)),
            (r#"{"metadata":{"n":-0.0}}"#, None),
        ] {
            let mut out = BytesMut::new();
            frame(&rpc.input, json, &mut out).unwrap();
            assert_eq!(out[..PREFIX], [&[0][..], &u32::try_from(out.len() - PREFIX).unwrap().to_be_bytes()].concat());
            let back = to_json(&rpc.input, &out[PREFIX..]).unwrap();
            let parse = |t: &str| serde_json::from_str::<serde_json::Value>(t).unwrap();
            assert_eq!(parse(&back), parse(want.unwrap_or(json)), "{back}");
            assert!(!back.contains("7.0"), "{back}");
        }
        let error = frame(&rpc.output, r#"{"task":{"status":7}}"#, &mut BytesMut::new()).unwrap_err();
        assert_eq!(error.kind, Kind::Internal);
        assert_eq!(to_json(&rpc.input, b"\xff\xff").unwrap_err().kind, Kind::InvalidRequest);
    }
}
