//! Fuzz targets on the stable toolchain: what comes from a network is survived, and what is made of it holds its rules.
//!
//! Each runs a second; `FUZZ_SECONDS` sets another time. A failure prints `BOLERO_RANDOM_SEED`, which repeats it.

mod mutate;

use std::time::Duration;

use mutate::mutated;
use outrigger_protocol::a2a::card::{self, Capabilities, Interface, Security};
use outrigger_protocol::a2a::envelope::{self, Request};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::params::{
    self, CancelTask, ConfigRef, GetTask, ListConfigs, ListTasks, SubscribeToTask, check_extended_card,
};
use outrigger_protocol::a2a::raw::{Members, Raw};
use outrigger_protocol::a2a::send::SendMessage;
use outrigger_protocol::a2a::{http_json, method, push, rewrite, sse, v03, version};
use serde_json::Value;
use serde_json::value::RawValue;

/// Bytes that choose a seed and its mutations.
const MAX_LEN: usize = 192;

fn time() -> Duration {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds)
}

/// Runs a target over mutations of texts.
macro_rules! fuzz {
    ($seeds:expr, $target:expr) => {
        bolero::check!().with_test_time(time()).with_max_len(MAX_LEN).for_each(|bytes: &[u8]| {
            let input = mutated(&$seeds, bytes);
            $target(&input);
        })
    };
}

// Helpers of tests may panic.
#[cfg(test)]
mod mcp;

/// What was made must be JSON. A number or a character that Rust has no type for passes as it is: it reads as null here.
fn json(text: &str) -> Value {
    assert!(raw(text).is_some(), "no JSON: {text}");
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn raw(text: &str) -> Option<&RawValue> {
    serde_json::from_str(text).ok()
}

/// Whatever reads parameters of 1.0 does.
fn read(operation: Operation, params: Option<&RawValue>) -> Result<(), Error> {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => {
            let send = SendMessage::parse(params)?;
            json(send.message.as_str());
            let stored = json(send.message.stored("t", "c").as_str());
            assert!(stored.is_null() || (stored["taskId"] == "t" && stored["contextId"] == "c"), "{stored}");
            if let Some(push) = send.push {
                json(push.json.as_str());
            }
        }
        Operation::GetTask => drop(GetTask::parse(params)?),
        Operation::ListTasks => drop(ListTasks::parse(params)?),
        Operation::CancelTask => drop(CancelTask::parse(params)?),
        Operation::SubscribeToTask => drop(SubscribeToTask::parse(params)?),
        Operation::CreateTaskPushNotificationConfig => {
            let config = push::Config::parse(params)?;
            let mut out = String::new();
            push::write("t", "p", &config.json, None, &mut out);
            assert!(json(&out).pointer("/authentication/credentials").is_none());
        }
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            drop(ConfigRef::parse(params, true)?);
        }
        Operation::ListTaskPushNotificationConfigs => drop(ListConfigs::parse(params)?),
        Operation::GetExtendedAgentCard => check_extended_card(params)?,
    }
    Ok(())
}

/// Parameters in any dialect, to 1.0 and read.
fn read_in(operation: Operation, dialect: Dialect, params: Option<&RawValue>) -> Result<(), Error> {
    let quirks = v03::Quirks { legacy_python_file_bytes: true };
    let params = v03::params_in(operation, dialect, params, quirks)?;
    let text = params.as_ref().map(|p| p.as_str().to_owned());
    let params = text.as_deref().and_then(raw);
    assert_eq!(params.is_some(), text.is_some(), "no JSON: {text:?}");
    let _ = params::tenant(params);
    read(operation, params)
}

#[test]
fn jsonrpc_bodies() {
    fuzz!(mutate::JSONRPC, |input: &[u8]| {
        let (id, error) = match Request::parse(input) {
            Err(bad) => (bad.id, bad.error),
            Ok(request) => {
                let read = method::parse(&request.method)
                    .ok_or_else(|| method::unknown(&request.method))
                    .and_then(|(operation, dialect)| read_in(operation, dialect, request.params));
                let Err(error) = read else { return };
                (Some(request.id), error)
            }
        };
        let answer = json(&envelope::failure(id, &error));
        // An id with half a surrogate pair is echoed as it came.
        assert!(answer.is_null() || answer["error"]["code"] == error.kind.code(), "{answer}");
        let mut body = String::new();
        error.write_http(&mut body);
        assert_eq!(json(&body)["error"]["code"], error.kind.http_status());
        body.clear();
        v03::error_out(&error, &mut body);
        json(&body);
    });
}

#[test]
fn http_json_requests() {
    fuzz!(mutate::HTTP_JSON, |input: &[u8]| {
        // method, path, query and body, each on a line; the body may have more
        let mut parts = input.splitn(4, |b| *b == b'\n');
        let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let (verb, path, query) = (text(), text(), text());
        let Ok(body) = http_json::parse_body(parts.next().unwrap_or_default()) else { return };
        let route = match http_json::route(&verb, &path) {
            Ok(route) => route,
            Err(error) => {
                let status = error.kind.http_status();
                assert!(status == 404 || (status == 405 && error.headers[0].0 == "allow"), "{error}");
                return;
            }
        };
        assert!(route.task.as_deref() != Some("") && route.config.as_deref() != Some(""));
        let Ok(params) = http_json::params(&route, Some(&query), body) else { return };
        let params = params.as_ref().map(Raw::as_str);
        if let Some(params) = params {
            let object = json(params);
            if let (Some(task), Dialect::V10) = (&route.task, route.dialect) {
                let names_task = route.operation.name().contains("PushNotification");
                assert!(object.is_null() || object[if names_task { "taskId" } else { "id" }] == **task, "{object}");
            }
        }
        let _ = read_in(route.operation, route.dialect, params.and_then(raw));
    });
}

#[test]
fn versions() {
    fuzz!(mutate::VERSIONS, |input: &[u8]| {
        let named = String::from_utf8_lossy(input);
        for seen in [Dialect::V10, Dialect::V03, Dialect::V03Proto] {
            for served in [&["1.0", "0.3"][..], &["1.0"], &["0.3"]] {
                match version::negotiate(Some(&named), seen, served) {
                    Ok(dialect) => {
                        let label = version::label(Some(&named));
                        assert!(dialect == seen && served.contains(&seen.version()));
                        assert!(label == "absent" || label == seen.version(), "{named:?} {label}");
                    }
                    Err(error) => assert!(error.message.len() < 400, "{}", error.message),
                }
            }
        }
    });
}

#[test]
fn event_streams() {
    fuzz!(mutate::STREAMS, |input: &[u8]| {
        const MAX: usize = 256;
        let parse = |size: usize| {
            let (mut parser, mut out) = (sse::Parser::new(MAX), Vec::new());
            let end = input.chunks(size).try_for_each(|piece| parser.push(piece, &mut out));
            (out, end, parser.end(), parser.last_id().map(str::to_owned), parser.retry())
        };
        let whole = parse(input.len().max(1));
        assert_eq!(parse(1), whole);
        assert_eq!(parse(7), whole);
        for event in whole.0 {
            // A byte that is no UTF-8 takes three.
            assert!(event.data.len() <= 3 * MAX);
            let mut text = String::new();
            sse::write(&mut text, event.id.as_deref(), event.event.as_deref(), &event.data);
            let (mut parser, mut out) = (sse::Parser::new(16 * MAX), Vec::new());
            assert_eq!(parser.push(text.as_bytes(), &mut out), Ok(()));
            assert_eq!(out, [event]);
        }
    });
}

#[test]
fn cards() {
    fuzz!(mutate::CARDS, |input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let (Some(card), Ok(value)) = (raw(text), serde_json::from_str::<Value>(text)) else { return };
        let hybrid = card::hybrid(&value);
        if let Ok(new) = v03::card_in(card) {
            assert!(new["supportedInterfaces"].as_array().is_some_and(|l| !l.is_empty()));
            assert!(new.get("url").is_none() && new.get("preferredTransport").is_none());
            let again = v03::card_in(raw(&card::hybrid(&new).to_string()).unwrap()).unwrap();
            assert_eq!(again["supportedInterfaces"], new["supportedInterfaces"]);
        }
        // The two forms never name different places.
        if let (Some(url), Some(list)) =
            (hybrid.get("preferredTransport").and(hybrid.get("url")), value.get("supportedInterfaces"))
        {
            let known = list.as_array().into_iter().flatten().any(|i| i.get("url").unwrap_or(&Value::Null) == url);
            assert!(known || value.get("url").is_some() || value.get("preferredTransport").is_some(), "{hybrid}");
        }
        let url = "https://a.example".to_owned();
        let interfaces = ["0.3", "1.0"].map(|version| Interface {
            url: url.clone(),
            binding: Binding::JsonRpc,
            version,
            tenant: None,
        });
        let composed = card::compose(&value, &interfaces, Capabilities::default(), &Security::default());
        let both = card::hybrid(&composed);
        assert_eq!((&both["url"], &both["supportedInterfaces"][0]["protocolVersion"]), (&url.into(), &"1.0".into()));
        for value in [&value, &composed] {
            if let Ok(payload) = card::signing_payload(value) {
                let mut bare = value.clone();
                bare.as_object_mut().unwrap().remove("signatures");
                // Requirements without scopes are not signed.
                assert!(text.contains("securityRequirements") || json(&payload) == bare, "{payload}");
                assert_eq!(card::canonical(&json(&payload)), Ok(payload));
            }
        }
    });
}

#[test]
fn rewritten_cards() {
    const BASE: &str = "http://127.0.0.1:19900/t/x/agents/seller";
    let place = rewrite::Place { base: BASE, name: "seller", namespace: "shop" };
    fuzz!(mutate::CARDS, |input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(new) = rewrite::card(text, place) else { return };
        let new = json(&new);
        assert!(new.get("signatures").is_none());
        let lists = ["supportedInterfaces", "additionalInterfaces"].iter().filter_map(|key| new.get(key)?.as_array());
        let urls = lists.flatten().map(|interface| &interface["url"]).chain(new.get("url"));
        for url in urls {
            assert!(url.as_str().is_some_and(|url| url.starts_with(BASE)), "{new}");
        }
        let answer = format!("{{\"id\":1,\"result\":{text}}}");
        assert!(
            rewrite::envelope(&answer, place)
                .is_ok_and(|a| a.is_some_and(|a| json(&a).get("id").is_some() || new.is_null()))
        );
    });
}

#[test]
fn translation() {
    fuzz!(mutate::OBJECTS, |input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Some(value) = raw(text) else { return };
        for dialect in [Dialect::V03, Dialect::V03Proto] {
            for operation in Operation::ALL {
                if let Ok(old) = v03::result_out(operation, dialect, text) {
                    json(&old);
                    if !operation.name().contains("Push") {
                        let new = v03::result_in(operation, dialect, raw(&old).unwrap());
                        assert!(new.is_ok() || operation == Operation::GetExtendedAgentCard, "{old} {new:?}");
                    }
                }
                for made in [v03::result_in(operation, dialect, value), v03::params_out(operation, dialect, text)] {
                    made.map(|made| json(&made)).ok();
                }
                let _ = read_in(operation, dialect, Some(value));
            }
            for last in [false, true] {
                if let Ok(old) = v03::event_out(dialect, text, last) {
                    let old = raw(&old).unwrap();
                    let status = old.get().contains("\"final\":") || old.get().contains("\"status-update\"");
                    assert!(v03::event_in(dialect, old).is_ok() && (!v03::is_final(old) || status));
                }
            }
            if let Ok(new) = v03::event_in(dialect, value) {
                assert!(Members::split(&new).is_ok_and(|m| m.iter().count() == 1));
            }
        }
    });
}
