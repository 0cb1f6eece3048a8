//! Every operation in every binding and dialect: what the service gets and what comes back.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod binding_support;

use std::fmt::Write as _;

use binding_support::{JSON, Seen, Stand, events, grpc, item, nothing, unary};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::{method, v03};
use outrigger_protocol::config::ApiKeys;
use outrigger_sidecar::a2a::call::Reply;
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TASK: &str = r#"{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_INPUT_REQUIRED","timestamp":"2026-11-29T10:00:00.123Z","message":{"messageId":"m2","contextId":"c1","taskId":"t1","role":"ROLE_AGENT","parts":[{"text":"which?"}]}},"artifacts":[{"artifactId":"a1","name":"out","parts":[{"text":"x"},{"data":[1.5,"x"]}]}],"history":[{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hi"},{"raw":"AAEC","filename":"b.bin","mediaType":"application/octet-stream"}]}]}"#;
const CARD: &str = r#"{"name":"seller","description":"d","version":"1","supportedInterfaces":[{"url":"http://e.example","protocolBinding":"JSONRPC","protocolVersion":"1.0"},{"url":"http://e.example","protocolBinding":"JSONRPC","protocolVersion":"0.3"}],"capabilities":{"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[{"id":"s","name":"S","description":"d","tags":["t"]}]}"#;
const EVENTS: [&str; 3] = [
    r#"{"task":{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_SUBMITTED","timestamp":"2026-11-29T10:00:00.123Z"}}}"#,
    r#"{"artifactUpdate":{"taskId":"t1","contextId":"c1","append":true,"lastChunk":true,"artifact":{"artifactId":"a1","parts":[{"text":"x"}]}}}"#,
    r#"{"statusUpdate":{"taskId":"t1","contextId":"c1","status":{"state":"TASK_STATE_COMPLETED","timestamp":"2026-11-29T10:00:01.123Z"}}}"#,
];
const WAYS: [(Binding, Dialect); 6] = [
    (Binding::JsonRpc, Dialect::V10),
    (Binding::JsonRpc, Dialect::V03),
    (Binding::HttpJson, Dialect::V10),
    (Binding::HttpJson, Dialect::V03Proto),
    (Binding::Grpc, Dialect::V10),
    (Binding::Grpc, Dialect::V03Proto),
];

fn params(operation: Operation) -> Value {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => json!({
            "message": {"messageId": "m1", "contextId": "c1", "role": "ROLE_USER", "metadata": {"n": 7}, "parts": [
                {"text": "hi"}, {"data": {"k": "v", "n": [1, 2.5]}},
                {"url": "https://e.example/a.png", "filename": "a.png", "mediaType": "image/png"}]},
            "configuration": {"historyLength": 2, "returnImmediately": true, "acceptedOutputModes": ["text/plain"]},
            "metadata": {"m": true}}),
        Operation::GetTask => json!({"id": "t1", "historyLength": 2}),
        Operation::ListTasks => json!({"contextId": "c 1", "status": "TASK_STATE_WORKING", "pageSize": 5,
                                       "includeArtifacts": true}),
        Operation::CancelTask | Operation::SubscribeToTask => json!({"id": "t1"}),
        Operation::CreateTaskPushNotificationConfig => json!({
            "taskId": "t1", "id": "p1", "url": "https://e.example/hook", "token": "s",
            "authentication": {"scheme": "Bearer", "credentials": "c"}}),
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            json!({"taskId": "t1", "id": "p1"})
        }
        Operation::ListTaskPushNotificationConfigs => json!({"taskId": "t1"}),
        Operation::GetExtendedAgentCard => Value::Null,
    }
}

fn result(operation: Operation) -> String {
    let config = params(Operation::CreateTaskPushNotificationConfig).to_string();
    match operation {
        Operation::SendMessage => format!("{{\"task\":{TASK}}}"),
        Operation::GetTask | Operation::CancelTask => TASK.into(),
        Operation::ListTasks => {
            format!("{{\"tasks\":[{TASK}],\"nextPageToken\":\"n\",\"pageSize\":5,\"totalSize\":9}}")
        }
        Operation::ListTaskPushNotificationConfigs => format!("{{\"configs\":[{config}],\"nextPageToken\":\"\"}}"),
        Operation::GetExtendedAgentCard => CARD.into(),
        Operation::DeleteTaskPushNotificationConfig => "null".into(),
        _ => config,
    }
}

fn reply(seen: &Seen) -> Reply {
    let mut reply = match seen.operation {
        Operation::DeleteTaskPushNotificationConfig => nothing(),
        operation if operation.streams() => {
            let last = EVENTS.len() - 1;
            events(EVENTS.iter().enumerate().map(|(i, e)| Ok(item(&format!("t1.{i}.0"), e, i == last))).collect())
        }
        operation => unary(&result(operation)),
    };
    reply.task = Some("t1".into());
    reply.extensions = vec!["urn:x".into()];
    reply
}

/// What is unset and what is empty is the same in protos.
fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(o) => {
            let members = o.iter().map(|(k, v)| (k.clone(), pruned(v)));
            members.filter(|(_, v)| *v != json!("") && *v != json!([]) && !v.is_null()).collect()
        }
        Value::Array(a) => a.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Method, path and body of HTTP+JSON; parameters are in the dialect.
fn http_request(operation: Operation, dialect: Dialect, params: &Value) -> (&'static str, String, String) {
    let text = |key: &str| params[key].as_str().unwrap_or_default().to_owned();
    let v10 = dialect == Dialect::V10;
    let prefix = if v10 { "" } else { "/v1" };
    let task = if v10 { format!("tasks/{}", text("id")) } else { text("name") };
    let parent = if v10 { format!("tasks/{}", text("taskId")) } else { text("parent") };
    let config = if v10 { format!("{parent}/pushNotificationConfigs/{}", text("id")) } else { text("name") };
    let body = params.to_string();
    let (verb, path, body) = match operation {
        Operation::SendMessage => ("POST", "message:send".into(), body),
        Operation::SendStreamingMessage => ("POST", "message:stream".into(), body),
        Operation::GetTask => ("GET", format!("{task}?historyLength={}", params["historyLength"]), String::new()),
        Operation::ListTasks => {
            let query = "contextId=c+1&status=TASK_STATE_WORKING&pageSize=5&includeArtifacts=true";
            ("GET", format!("tasks?{query}"), String::new())
        }
        Operation::CancelTask => ("POST", format!("{task}:cancel"), String::new()),
        Operation::SubscribeToTask => ("GET", format!("{task}:subscribe"), String::new()),
        Operation::CreateTaskPushNotificationConfig => ("POST", format!("{parent}/pushNotificationConfigs"), body),
        Operation::ListTaskPushNotificationConfigs => {
            ("GET", format!("{parent}/pushNotificationConfigs"), String::new())
        }
        Operation::GetTaskPushNotificationConfig => ("GET", config, String::new()),
        Operation::DeleteTaskPushNotificationConfig => ("DELETE", config, String::new()),
        Operation::GetExtendedAgentCard => {
            ("GET", if v10 { "extendedAgentCard" } else { "card" }.to_owned(), String::new())
        }
    };
    (verb, format!("{prefix}/{path}"), body)
}

#[tokio::test]
async fn every_operation_in_every_binding_and_dialect() {
    let stand = Stand::start(|seen| async move { Ok(reply(&seen)) }).await;
    let mut requests = 0;
    for operation in Operation::ALL {
        for (binding, dialect) in WAYS {
            if operation == Operation::ListTasks && dialect != Dialect::V10 {
                continue;
            }
            let way = format!("{operation:?} {binding:?} {dialect:?}");
            let sent = match params(operation) {
                Value::Null => Value::Null,
                p => serde_json::from_str(&v03::params_out(operation, dialect, &p.to_string()).unwrap()).unwrap(),
            };
            let got = exchange(&stand, operation, binding, dialect, &sent).await;
            requests += 1;
            let seen = stand.last();
            // The card of 0.3 over HTTP+JSON is the one of JSON-RPC.
            let card = binding == Binding::HttpJson && operation == Operation::GetExtendedAgentCard;
            let spoken = if card && dialect != Dialect::V10 { Dialect::V03 } else { dialect };
            assert_eq!((seen.operation, seen.call.binding, seen.call.dialect), (operation, binding, spoken), "{way}");
            let asked = pruned(&seen.json());
            let want =
                if params(operation).is_null() && binding == Binding::Grpc { json!({}) } else { params(operation) };
            assert_eq!(asked, pruned(&want), "{way}");
            assert_eq!(stand.seen().len(), requests, "{way}");
            if operation.streams() {
                let want: Vec<Value> = EVENTS.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
                assert_eq!(got, want, "{way}");
            } else if operation == Operation::DeleteTaskPushNotificationConfig {
                let want = if binding == Binding::JsonRpc { Value::Null } else { json!({}) };
                assert_eq!(got, [want], "{way}");
            } else {
                let want: Value = serde_json::from_str(&result(operation)).unwrap();
                let (mut got, mut want) = (pruned(&got[0]), pruned(&want));
                if operation == Operation::GetExtendedAgentCard && dialect != Dialect::V10 {
                    // What 0.3 says of interfaces is not the same list.
                    got = got["skills"].take();
                    want = want["skills"].take();
                }
                assert_eq!(got, want, "{way}");
            }
            let labels = [("method", operation.name()), ("version", dialect.version()), ("outcome", "ok")];
            assert!(stand.metric("outrigger_a2a_requests_total", &labels) >= 1, "{way}");
        }
    }
    assert_eq!(stand.metric("outrigger_a2a_requests_total", &[]), requests as u64);
    assert_eq!(stand.metric("outrigger_a2a_versions_total", &[("version", "absent")]), requests as u64);
    assert_eq!(stand.metric("outrigger_a2a_streams_open", &[]), 0);
    assert_eq!(stand.metric("outrigger_a2a_streams_ended_total", &[("reason", "done")]), 12);
}

/// Sends parameters of a dialect; gives what comes back in 1.0 form.
async fn exchange(stand: &Stand, operation: Operation, binding: Binding, dialect: Dialect, sent: &Value) -> Vec<Value> {
    let back = |value: &Value| -> Value {
        let read = |dialect| {
            let text = raw(&value.to_string());
            if operation.streams() { v03::event_in(dialect, &text) } else { v03::result_in(operation, dialect, &text) }
        };
        if operation == Operation::DeleteTaskPushNotificationConfig {
            return value.clone();
        }
        serde_json::from_str(&read(dialect).unwrap_or_else(|e| panic!("{operation:?} {dialect:?} {value}: {e}")))
            .unwrap()
    };
    let of_headers = |headers: &http::HeaderMap| {
        assert_eq!(headers["a2a-version"], dialect.version());
        assert_eq!(
            (&headers["a2a-task-id"], &headers["a2a-extensions"]),
            (&"t1".parse().unwrap(), &"urn:x".parse().unwrap())
        );
    };
    match binding {
        Binding::JsonRpc => {
            let name = method::name(operation, dialect).unwrap();
            let mut request = json!({"jsonrpc": "2.0", "id": "r\"1", "method": name});
            if !sent.is_null() {
                request["params"] = sent.clone();
            }
            if operation.streams() {
                let sse = stand.stream("POST", "/", JSON, &request.to_string()).await;
                of_headers(&sse.headers);
                let frames = sse.all().await;
                let values = frames.iter().map(|e| serde_json::from_str::<Value>(&e.data).unwrap());
                return values.map(|v| back(&of_frame(&v))).collect();
            }
            let got = stand.ask("POST", "/", JSON, &request.to_string()).await;
            of_headers(&got.headers);
            vec![back(&of_frame(&got.json()))]
        }
        Binding::HttpJson => {
            let (verb, path, body) = http_request(operation, dialect, sent);
            if operation.streams() {
                let sse = stand.stream(verb, &path, JSON, &body).await;
                of_headers(&sse.headers);
                return sse.all().await.iter().map(|e| back(&serde_json::from_str(&e.data).unwrap())).collect();
            }
            let got = stand.ask(verb, &path, JSON, &body).await;
            assert_eq!(got.status, 200, "{verb} {path}: {}", got.text);
            of_headers(&got.headers);
            vec![back(&got.json())]
        }
        Binding::Grpc => {
            let sent = if sent.is_null() { &json!({}) } else { sent };
            let mut call = grpc::call(stand, operation, dialect, &[], sent).await;
            of_headers(&call.headers);
            let got = call.all().await;
            assert_eq!((call.status(), call.message()), (0, ""), "{operation:?} {dialect:?}");
            got.iter().map(back).collect()
        }
    }
}

/// The result in a response of JSON-RPC.
fn of_frame(value: &Value) -> Value {
    assert_eq!((&value["jsonrpc"], &value["id"]), (&json!("2.0"), &json!("r\"1")), "{value}");
    assert!(value.get("result").is_some(), "{value}");
    value["result"].clone()
}

/// Codes and statuses of every error, wherever it comes.
#[tokio::test]
async fn every_error_in_every_binding_and_dialect() {
    let stand = Stand::start(|seen: Seen| async move {
        let label = seen.json()["id"].as_str().unwrap().to_owned();
        let kind = Kind::ALL.into_iter().find(|k| k.label() == label).unwrap();
        Err(Error::new(kind, "it is so: é%").retry_after(7).header("www-authenticate", "Bearer"))
    })
    .await;
    let mut table = String::new();
    for kind in Kind::ALL {
        let _ = write!(table, "{:<36}", kind.label());
        for (name, dialect) in [("GetTask", "1.0"), ("tasks/get", "0.3")] {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": name, "params": {"id": kind.label()}}).to_string();
            let got = stand.ask("POST", "/", JSON, &body).await;
            assert_eq!((got.header("retry-after"), got.header("a2a-version")), ("7", dialect));
            assert_eq!(got.json()["error"]["message"], "it is so: é%");
            let _ = write!(table, " | {} {}", got.status.as_u16(), got.json()["error"]["code"]);
        }
        for path in ["/tasks/", "/v1/tasks/"] {
            let got = stand.ask("GET", &format!("{path}{}", kind.label()), &[], "").await;
            assert_eq!((got.header("retry-after"), got.header("content-type")), ("7", "application/json"));
            assert_eq!(got.header("www-authenticate"), "Bearer");
            let code = if path == "/tasks/" { &got.json()["error"]["status"] } else { &got.json()["code"] };
            let _ = write!(table, " | {} {code}", got.status.as_u16());
        }
        for dialect in [Dialect::V10, Dialect::V03Proto] {
            let asked = v03::params_out(Operation::GetTask, dialect, &json!({"id": kind.label()}).to_string()).unwrap();
            let asked = serde_json::from_str(&asked).unwrap();
            let mut call = grpc::call(&stand, Operation::GetTask, dialect, &[], &asked).await;
            assert_eq!(call.all().await, Vec::<Value>::new());
            // One client of 0.3 knows an error by the name in front.
            let named = call.message().ends_with(": it is so: %C3%A9%25");
            assert!(
                call.message() == "it is so: %C3%A9%25" || (named && dialect == Dialect::V03Proto),
                "{}",
                call.message()
            );
            assert!(call.headers.contains_key("grpc-status-details-bin") && call.headers["retry-after"] == "7");
            let _ = write!(table, " | {}", call.status());
        }
        table.push('\n');
    }
    insta::assert_snapshot!(table);
}

/// What a caller puts into parts and metadata reaches the service, and what the service answers reaches the caller.
#[test]
fn content_passes_byte_for_byte() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stand = runtime.block_on(Stand::start(|seen: Seen| async move { Ok(unary(&seen.params.unwrap())) }));
    let number = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        Just("12345678901234567890123".to_owned()),
        Just("1.0".to_owned()),
        Just("1e400".to_owned()),
        Just("-0".to_owned()),
    ];
    let text = any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap());
    let leaf =
        prop_oneof![number, text.clone(), Just("null".into()), Just("true".into()), Just("\"\\ud83d\\ude00\"".into())];
    let value = leaf.prop_recursive(4, 24, 5, move |inner| {
        let object = prop::collection::vec(inner.clone(), 0..5).prop_map(|v| {
            let members: Vec<_> = v.iter().enumerate().map(|(i, v)| format!("\"{i}\" : {v}")).collect();
            format!("{{ {} }}", members.join(" ,\n "))
        });
        prop_oneof![object, prop::collection::vec(inner, 0..5).prop_map(|v| format!("[{}]", v.join(", ")))]
    });
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(value in value)| {
        let message = format!(r#"{{"messageId":"m","role":"ROLE_USER","unknown":{value},"parts":[{{"data":{value}}}],"metadata":{{"x":{value}}}}}"#);
        let params = format!(r#"{{"message":{message}}}"#);
        let rpc = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{params}}}"#);
        runtime.block_on(async {
            let got = stand.ask("POST", "/", JSON, &rpc).await;
            assert_eq!(got.text, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{params}}}"#));
            let got = stand.ask("POST", "/message:send", JSON, &params).await;
            assert_eq!(got.text, params);
        });
    });
}

/// Who is not let in learns how to come in, in the words of his binding, and nothing of his request is carried out.
#[tokio::test]
async fn callers_are_asked_for_in_every_binding() {
    let stand = Stand::start(|_| async { Ok(unary("{}")) }).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alice"), "a-key-of-some-length-0123456789").unwrap();
    let api_key = ApiKeys { header: "x-api-key".into(), folder: folder.path().to_str().unwrap().into() };
    stand.configure(|live| live.access.api_key = Some(api_key));
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t", "tenant": "x"}}).to_string();
    let long = " ".repeat(300_000);
    for key in ["", "wrong"] {
        let headers: &[(&str, &str)] = if key.is_empty() { &[] } else { &[("x-api-key", key)] };
        for (verb, path, body) in
            [("POST", "/", &body), ("GET", "/tasks/t", &String::new()), ("POST", "/v1/message:send", &long)]
        {
            let got = stand.ask(verb, path, headers, body).await;
            assert_eq!((got.status.as_u16(), got.header("content-type")), (401, "application/json"), "{path}");
            assert!(got.header("www-authenticate").contains("x-api-key"), "{:?}", got.headers);
        }
        let mut got = grpc::call(&stand, Operation::GetTask, Dialect::V10, headers, &json!({"id": "t"})).await;
        assert_eq!((got.all().await, got.status()), (vec![], 16));
        assert!(got.headers["www-authenticate"].to_str().unwrap().contains("x-api-key"));
    }
    assert!(stand.seen().is_empty());
    let known = [("x-api-key", "a-key-of-some-length-0123456789")];
    assert_eq!(stand.ask("POST", "/", &known, &body).await.json()["result"], json!({}));
    let in_tenant = stand.last().call.caller;
    assert_eq!(stand.ask("GET", "/tasks/t", &known, "").await.status, 200);
    let without = stand.last().call.caller;
    let mut got = grpc::call(&stand, Operation::GetTask, Dialect::V10, &known, &json!({"id": "t"})).await;
    assert_eq!((got.all().await, got.status()), (vec![json!({})], 0));
    assert_eq!(stand.last().call.caller, without);
    assert_eq!(without.identity.as_ref().unwrap().subject, "alice");
    assert!(in_tenant.identity == without.identity && in_tenant.key != without.key);
}

/// A caller who is not let in is told so before it has sent its body.
#[tokio::test]
async fn nobody_unknown_sends_a_body() {
    let stand = Stand::answering("{}").await;
    let folder = tempfile::tempdir().unwrap();
    let api_key = ApiKeys { header: "x-api-key".into(), folder: folder.path().to_str().unwrap().into() };
    stand.configure(|live| live.access.api_key = Some(api_key));
    let mut socket = tokio::net::TcpStream::connect(stand.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 8000000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut got = [0; 12];
    tokio::time::timeout(binding_support::PATIENCE, socket.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(&got, b"HTTP/1.1 401");
}
