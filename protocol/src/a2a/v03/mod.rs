//! A2A 0.3 and 1.0, each from the other, on JSON text: what is not known passes as it is.
//!
//! 0.3 has two forms. [`Dialect::V03`] is what its JSON-RPC carries: objects with a `kind`, states such as
//! `input-required`. [`Dialect::V03Proto`] is what its HTTP+JSON and gRPC carry: `ProtoJSON` of its own proto, with
//! `content` for parts, resource names such as `tasks/1` and states such as `TASK_STATE_CANCELLED`.
//!
//! Two things that 0.3 cannot say are kept in its own terms, as the clients in the field do it: data that is no object
//! is wrapped in one, and marked so; what a part has beyond 0.3 stands in it as an unknown member.

mod card;
mod node;
mod params;
mod part;
mod push;
#[cfg(test)]
mod tests;

use serde_json::Value;
use serde_json::value::RawValue;

pub(super) use card::{ONLY_V03, merge_schemes, security_out};
pub use card::{card_in, card_out};

use super::errors::{Error, Kind};
use super::operation::{Dialect, Operation};
use super::raw::{self, Members, Raw};
use node::{ARTIFACT_UPDATE, Bad, Form, MESSAGE, STATUS_UPDATE, TASK, Way};

/// Habits of single clients that are followed where they are configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Bytes of files in [`Dialect::V03Proto`] are base64 text once more, as an old Python SDK sends.
    pub legacy_python_file_bytes: bool,
}

fn form(dialect: Dialect, way: Way, quirks: Quirks) -> Form {
    Form { proto: dialect == Dialect::V03Proto, way, quirks, last: false }
}

fn raw_of(text: &str) -> Result<&RawValue, Bad> {
    serde_json::from_str(text).map_err(|e| Bad::new(format!("is no JSON: {e}")))
}

/// Parameters of 0.3 as those of 1.0. Those of 1.0 come back as they are, in the usual spelling or not.
///
/// An error names members as 0.3 does. What is wrong beyond the translation, the reader of the parameters finds.
pub fn params_in(
    operation: Operation,
    dialect: Dialect,
    params: Option<&RawValue>,
    quirks: Quirks,
) -> Result<Option<Raw>, Error> {
    let Some(params) = params else { return Ok(None) };
    if dialect == Dialect::V10 {
        return Ok(Some(Raw::copy(params)));
    }
    let mut out = String::with_capacity(params.get().len() + 128);
    params::read(operation, params, form(dialect, Way::In, quirks), &mut out).map_err(Bad::into_params)?;
    Ok(Some(Raw::assembled(&out)))
}

/// Parameters of 1.0 as those of 0.3, for an agent that speaks it.
pub fn params_out(operation: Operation, dialect: Dialect, params: &str) -> Result<String, Error> {
    if dialect == Dialect::V10 {
        return Ok(params.to_owned());
    }
    let mut out = String::with_capacity(params.len() + 128);
    raw_of(params)
        .and_then(|p| params::write(operation, p, form(dialect, Way::Out, Quirks::default()), &mut out))
        .map_err(Bad::into_params)?;
    Ok(out)
}

/// A result of 1.0 as one of 0.3. Not for the operations that answer by a stream: see [`event_out`].
///
/// The extended card in [`Dialect::V03`] also keeps its members of 1.0, as the public card does.
pub fn result_out(operation: Operation, dialect: Dialect, result: &str) -> Result<String, Error> {
    if dialect == Dialect::V10 {
        return Ok(result.to_owned());
    }
    let form = form(dialect, Way::Out, Quirks::default());
    let mut out = String::with_capacity(result.len() + 256);
    let written = raw_of(result).and_then(|r| match operation {
        Operation::SendMessage | Operation::SendStreamingMessage | Operation::SubscribeToTask => {
            event(r, form, &mut out)
        }
        Operation::GetTask | Operation::CancelTask => node::object(r, &TASK, form, &mut out),
        Operation::CreateTaskPushNotificationConfig | Operation::GetTaskPushNotificationConfig => {
            push::named(r, form, &mut out)
        }
        Operation::ListTaskPushNotificationConfigs => push::list(r, form, &mut out),
        Operation::DeleteTaskPushNotificationConfig => {
            out.push_str(if form.proto { "{}" } else { "null" });
            Ok(())
        }
        Operation::GetExtendedAgentCard => card_text(r, form, &mut out),
        Operation::ListTasks => Err(Bad::new("ListTasks is not part of A2A 0.3")),
    });
    written.map_err(|bad| Error::new(Kind::Internal, format!("the result cannot be said in A2A 0.3: {bad}")))?;
    Ok(out)
}

/// A result of an agent that speaks 0.3 as one of 1.0.
pub fn result_in(operation: Operation, dialect: Dialect, result: &RawValue) -> Result<String, Error> {
    if dialect == Dialect::V10 {
        return Ok(result.get().to_owned());
    }
    let form = form(dialect, Way::In, Quirks::default());
    let mut out = String::with_capacity(result.get().len() + 256);
    let read = match operation {
        Operation::SendMessage | Operation::SendStreamingMessage | Operation::SubscribeToTask => {
            event(result, form, &mut out)
        }
        Operation::GetTask | Operation::CancelTask => node::object(result, &TASK, form, &mut out),
        Operation::CreateTaskPushNotificationConfig | Operation::GetTaskPushNotificationConfig => {
            push::flat(result, form, &mut out)
        }
        Operation::ListTaskPushNotificationConfigs => push::list(result, form, &mut out),
        Operation::DeleteTaskPushNotificationConfig => {
            out.push_str("null");
            Ok(())
        }
        Operation::GetExtendedAgentCard => {
            return card_in(result).map(|card| card.to_string());
        }
        Operation::ListTasks => Err(Bad::new("ListTasks is not part of A2A 0.3")),
    };
    read.map_err(Bad::into_answer)?;
    Ok(out)
}

/// An event of a stream, a `StreamResponse` of 1.0, as one of 0.3.
///
/// `last` says that the stream is closed after it: `final` is true on that status, and on one that ends the task.
pub fn event_out(dialect: Dialect, event: &str, last: bool) -> Result<String, Error> {
    if dialect == Dialect::V10 {
        return Ok(event.to_owned());
    }
    let form = Form { last, ..form(dialect, Way::Out, Quirks::default()) };
    let mut out = String::with_capacity(event.len() + 256);
    raw_of(event)
        .and_then(|e| self::event(e, form, &mut out))
        .map_err(|bad| Error::new(Kind::Internal, format!("the event cannot be said in A2A 0.3: {bad}")))?;
    Ok(out)
}

/// An event of an agent that speaks 0.3 as a `StreamResponse` of 1.0.
pub fn event_in(dialect: Dialect, event: &RawValue) -> Result<String, Error> {
    if dialect == Dialect::V10 {
        return Ok(event.get().to_owned());
    }
    let mut out = String::with_capacity(event.get().len() + 256);
    self::event(event, form(dialect, Way::In, Quirks::default()), &mut out).map_err(Bad::into_answer)?;
    Ok(out)
}

/// Whether a status event of 0.3 says that its stream ends with it.
pub fn is_final(event: &RawValue) -> bool {
    let Ok(mut members) = Members::split(event.get()) else { return false };
    let _ = members.camel(&["statusUpdate"]);
    let update = members.set("statusUpdate").and_then(|u| Members::split(u.get()).ok());
    update.as_ref().unwrap_or(&members).get("final").is_some_and(|f| f.get() == "true")
}

/// The code of an error, among those that 0.3 knows.
pub fn error_code(kind: Kind) -> i32 {
    match kind {
        Kind::ExtensionSupportRequired | Kind::VersionNotSupported => Kind::Internal.code(),
        known => known.code(),
    }
}

/// Appends an error as 0.3 has it: the object of JSON-RPC, which is also the body of an HTTP+JSON answer. Its `data` is
/// an object, `{"details": [...]}`: clients of 0.3 in the field cannot read the list that 1.0 has there.
pub fn error_out(error: &Error, out: &mut String) {
    error.write_with_code(error_code(error.kind), out);
}

/// Wrapper member in 1.0 and in the proto of 0.3, `kind` in the JSON-RPC of 0.3, and what is in it.
const PAYLOADS: [(&str, &str, &node::Node); 4] = [
    ("task", "task", &TASK),
    ("message", "message", &MESSAGE),
    ("statusUpdate", "status-update", &STATUS_UPDATE),
    ("artifactUpdate", "artifact-update", &ARTIFACT_UPDATE),
];

fn event(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let mut members = Members::split(value.get()).map_err(|e| Bad::new(e.to_string()))?;
    if form.way == Way::In && !form.proto {
        let kind = members.get("kind").and_then(raw::text_of);
        let Some((wrapper, _, node)) = PAYLOADS.iter().find(|(_, k, _)| kind.as_deref() == Some(k)) else {
            return Err(Bad::new("must be task, message, status-update or artifact-update").under("kind"));
        };
        wrapped(wrapper, value, node, form, out)
    } else {
        members.camel(&["statusUpdate", "artifactUpdate"]).map_err(|e| Bad::new(e.to_string()))?;
        let found = PAYLOADS.iter().find_map(|(wrapper, _, node)| {
            let other = (form.proto && *wrapper == "message").then(|| members.set("msg")).flatten();
            Some((*wrapper, members.set(wrapper).or(other)?, *node))
        });
        let Some((wrapper, value, node)) = found else {
            return Err(Bad::new("must have one of task, message, statusUpdate, artifactUpdate"));
        };
        if form.proto || form.way == Way::In {
            wrapped(wrapper, value, node, form, out)
        } else {
            node::object(value, node, form, out)
        }
    }
}

fn wrapped(wrapper: &str, value: &RawValue, node: &node::Node, form: Form, out: &mut String) -> Result<(), Bad> {
    out.push('{');
    raw::push_key(out, wrapper);
    node::object(value, node, form, out).map_err(|b| b.under(wrapper))?;
    out.push('}');
    Ok(())
}

fn card_text(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let card: Value = serde_json::from_str(value.get()).map_err(|e| Bad::new(e.to_string()))?;
    let card = if form.proto { card::proto(&card) } else { super::card::hybrid(&card) };
    out.push_str(&card.to_string());
    Ok(())
}
