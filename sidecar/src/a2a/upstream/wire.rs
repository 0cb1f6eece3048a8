//! Requests as JSON-RPC and HTTP+JSON write them, and how their answers are read.

use std::fmt::Write as _;

use http::Method;
use outrigger_protocol::a2a::method;
use outrigger_protocol::a2a::operation::{Dialect, Operation};
use outrigger_protocol::a2a::raw::{self, MAX_DEPTH, Members, depth_within, push_key, push_text, text_of};
use outrigger_protocol::a2a::v03;
use serde_json::value::RawValue;

use super::error::{AgentError, CallError};
use crate::percent;

/// A request before it is one of HTTP.
#[derive(Debug, PartialEq, Eq)]
pub struct Plain {
    /// Method of HTTP.
    pub method: Method,
    /// What is appended to the interface's path.
    pub path: String,
    /// JSON, if it has a body.
    pub body: Option<String>,
}

/// The request of JSON-RPC (A2A 1.0, section 9).
pub fn jsonrpc(operation: Operation, dialect: Dialect, params: &str, id: u64) -> Result<Plain, CallError> {
    let name = method::name(operation, dialect).ok_or(CallError::NotOffered(operation.name()))?;
    let params = v03::params_out(operation, dialect, params)?;
    let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{name}\",\"params\":{params}}}");
    Ok(Plain { method: Method::POST, path: String::new(), body: Some(body) })
}

/// The request of HTTP+JSON (A2A 1.0, section 11). `params` are those of 1.0.
pub fn http_json(
    operation: Operation,
    dialect: Dialect,
    params: &str,
    tenant: Option<&str>,
) -> Result<Plain, CallError> {
    let members = Members::split(params).map_err(|e| CallError::Unreadable(format!("the parameters: {e}")))?;
    let id = || members.set("id").and_then(text_of).unwrap_or_default();
    let prefix = match (dialect, tenant) {
        (Dialect::V10, Some(tenant)) => format!("/{}", encoded(tenant)),
        (Dialect::V10, None) => String::new(),
        (Dialect::V03 | Dialect::V03Proto, _) => "/v1".to_owned(),
    };
    let task = |verb: &str| format!("{prefix}/tasks/{}{verb}", encoded(&id()));
    let get = |path: String| Plain { method: Method::GET, path, body: None };
    let post = |path: String, body: String| Plain { method: Method::POST, path, body: Some(body) };
    let query = |path: String, keys: &[&str]| {
        let mut path = path;
        let mut separator = '?';
        for (key, value) in members.iter().filter(|(key, _)| keys.contains(key)) {
            let text = text_of(value).unwrap_or_else(|| value.get().into());
            let _ = write!(path, "{separator}{key}={}", encoded(&text));
            separator = '&';
        }
        path
    };
    Ok(match operation {
        Operation::SendMessage => post(format!("{prefix}/message:send"), v03::params_out(operation, dialect, params)?),
        Operation::SendStreamingMessage => {
            post(format!("{prefix}/message:stream"), v03::params_out(operation, dialect, params)?)
        }
        Operation::GetTask => get(query(task(""), &["historyLength"])),
        Operation::CancelTask => {
            let mut body = String::from("{");
            if let Some(metadata) = members.set("metadata") {
                push_key(&mut body, "metadata");
                body.push_str(metadata.get());
            }
            body.push('}');
            post(task(":cancel"), body)
        }
        Operation::SubscribeToTask => get(task(":subscribe")),
        Operation::ListTasks if dialect == Dialect::V10 => {
            let keys = [
                "contextId",
                "status",
                "pageSize",
                "pageToken",
                "historyLength",
                "statusTimestampAfter",
                "includeArtifacts",
            ];
            get(query(format!("{prefix}/tasks"), &keys))
        }
        Operation::GetExtendedAgentCard if dialect == Dialect::V10 => get(format!("{prefix}/extendedAgentCard")),
        Operation::GetExtendedAgentCard => get(format!("{prefix}/card")),
        other => return Err(CallError::NotOffered(other.name())),
    })
}

/// Parameters with the tenant of an interface.
pub fn with_tenant(params: &str, tenant: Option<&str>) -> String {
    let Some(tenant) = tenant else { return params.to_owned() };
    let mut out = params.trim_end().strip_suffix('}').unwrap_or("{").trim_end().to_owned();
    push_key(&mut out, "tenant");
    push_text(&mut out, tenant);
    out.push('}');
    out
}

/// Every byte that is not unreserved, as `%XX`.
fn encoded(text: &str) -> String {
    percent::encoded(text, percent::unreserved)
}

/// Text of an answer that may be split: UTF-8, and not nested too deep.
pub fn text(bytes: &[u8]) -> Result<&str, CallError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| CallError::Unreadable(format!("it is no UTF-8 after byte {}", e.valid_up_to())))?;
    if !depth_within(bytes, MAX_DEPTH) {
        return Err(CallError::Unreadable(format!("it is nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(text)
}

/// The result in an answer of JSON-RPC, or its error.
pub fn result(answer: &str) -> Result<&RawValue, CallError> {
    let members = Members::split(answer).map_err(|e| CallError::Unreadable(format!("it {e}")))?;
    if let Some(error) = members.set("error") {
        let error = AgentError::read(error.get());
        return Err(error.map_or_else(|| CallError::Unreadable("its error has no code".into()), CallError::Agent));
    }
    members.get("result").ok_or_else(|| CallError::Unreadable("it has neither result nor error".into()))
}

/// The result of an answer, as 1.0.
pub fn result_in(operation: Operation, dialect: Dialect, result: &RawValue) -> Result<String, CallError> {
    Ok(v03::result_in(operation, dialect, result)?)
}

/// One event of a stream over HTTP, as a `StreamResponse` of 1.0. `named` is the event's own name.
pub fn event(data: &str, named: Option<&str>, envelope: bool, dialect: Dialect) -> Result<String, CallError> {
    let data = text(data.as_bytes())?;
    let event = if named == Some("error") {
        let error = AgentError::of_body(data);
        return Err(error.map_or_else(|| CallError::Unreadable("its error has no code".into()), CallError::Agent));
    } else if envelope {
        result(data)?
    } else {
        if let Ok(members) = Members::split(data)
            && members.set("error").is_some_and(|e| raw::kind(e.get()) == raw::Kind::Object)
            && let Some(error) = AgentError::of_body(data)
        {
            return Err(CallError::Agent(error));
        }
        serde_json::from_str(data).map_err(|e| CallError::Unreadable(format!("an event is no JSON: {e}")))?
    };
    Ok(v03::event_in(dialect, event)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let params = r#"{"id":"a b/c","historyLength":3,"metadata":{"n":1.0},"contextId":"x&y"}"#;
        let mut table = String::new();
        for operation in Operation::ALL {
            for (dialect, tenant) in [(Dialect::V10, None), (Dialect::V10, Some("t/1")), (Dialect::V03Proto, None)] {
                // What a message becomes in 0.3 is tested where it is translated.
                let params = if operation.name().contains("Message") { r#"{"message":{"parts":[]}}"# } else { params };
                let got = match http_json(operation, dialect, params, tenant) {
                    Ok(p) => format!("{} {} {}", p.method, p.path, p.body.unwrap_or_default()),
                    Err(e) => e.to_string(),
                };
                let _ = writeln!(table, "{} {}: {got}", operation.name(), dialect.version());
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn envelopes() {
        let plain = jsonrpc(Operation::GetTask, Dialect::V03, r#"{"id":"t"}"#, 7).unwrap();
        assert_eq!(plain.body.unwrap(), r#"{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"id":"t"}}"#);
        assert!(jsonrpc(Operation::ListTasks, Dialect::V03, "{}", 1).is_err());
        assert_eq!(with_tenant("{}", Some("t")), r#"{"tenant":"t"}"#);
        assert_eq!(with_tenant("{\"a\":1} ", Some("t")), r#"{"a":1,"tenant":"t"}"#);
        assert_eq!(result(r#"{"result":null}"#).unwrap().get(), "null");
        for bad in ["{}", "[]", "x", r#"{"error":{}}"#] {
            assert!(matches!(result(bad), Err(CallError::Unreadable(_))), "{bad}");
        }
        assert!(matches!(text(b"\xff"), Err(CallError::Unreadable(_))));
        assert!(text("[".repeat(1000).as_bytes()).is_err());
    }

    #[test]
    fn events() {
        let v10 = r#"{"statusUpdate":{"taskId":"t"}}"#;
        assert_eq!(event(v10, None, false, Dialect::V10).unwrap(), v10);
        assert_eq!(event(&format!(r#"{{"result":{v10}}}"#), None, true, Dialect::V10).unwrap(), v10);
        for (data, named, envelope) in [
            (r#"{"error":{"code":-32001,"message":"m"}}"#, None, true),
            (r#"{"error":{"code":-32001,"message":"m"}}"#, None, false),
            (r#"{"code":-32001,"message":"m"}"#, Some("error"), true),
            (r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"m"}}"#, Some("error"), true),
        ] {
            let got = event(data, named, envelope, Dialect::V10).unwrap_err();
            assert!(matches!(&got, CallError::Agent(e) if e.code == -32001), "{data}: {got:?}");
        }
    }
}
