//! Golden pairs, and that both ways together change nothing.

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::value::to_raw_value;

use super::*;

/// Every object that a result can hold, in 1.0.
const TASK_10: &str = r#"{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_INPUT_REQUIRED","timestamp":"2026-11-29T10:00:00.123Z","message":{"messageId":"m2","contextId":"c1","taskId":"t1","role":"ROLE_AGENT","parts":[{"text":"which?"}]}},"artifacts":[{"artifactId":"a1","name":"out","parts":[{"text":"x"}]}],"history":[{"messageId":"m1","contextId":"c1","taskId":"t1","role":"ROLE_USER","parts":[{"text":"hi"},{"url":"https://e.example/a.png","filename":"a.png","mediaType":"image/png"},{"raw":"AAEC","filename":"b.bin","mediaType":"application/octet-stream"},{"data":{"k":"v"}},{"data":[1.5,"x"]}]}]}"#;

const TASK_03: &str = r#"{"kind":"task","id":"t1","contextId":"c1","status":{"state":"input-required","timestamp":"2026-11-29T10:00:00.123Z","message":{"kind":"message","messageId":"m2","contextId":"c1","taskId":"t1","role":"agent","parts":[{"kind":"text","text":"which?"}]}},"artifacts":[{"artifactId":"a1","name":"out","parts":[{"kind":"text","text":"x"}]}],"history":[{"kind":"message","messageId":"m1","contextId":"c1","taskId":"t1","role":"user","parts":[{"kind":"text","text":"hi"},{"kind":"file","file":{"uri":"https://e.example/a.png","name":"a.png","mimeType":"image/png"}},{"kind":"file","file":{"bytes":"AAEC","name":"b.bin","mimeType":"application/octet-stream"}},{"kind":"data","data":{"k":"v"}},{"kind":"data","data":{"value":[1.5,"x"]},"metadata":{"data_part_compat":true}}]}]}"#;

const PARTS_03_PROTO: &str = r#"[{"text":"hi"},{"file":{"fileWithUri":"https://e.example/a.png","name":"a.png","mimeType":"image/png"}},{"file":{"fileWithBytes":"AAEC","name":"b.bin","mimeType":"application/octet-stream"}},{"data":{"data":{"k":"v"}}},{"data":{"data":{"value":[1.5,"x"]}},"metadata":{"data_part_compat":true}}]"#;

const BOTH: [Dialect; 2] = [Dialect::V03, Dialect::V03Proto];

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// What the given texts become, one under the other.
fn table<'a>(texts: impl IntoIterator<Item = &'a str>, turn: impl Fn(&str) -> Result<String, Error>) -> String {
    let lines = texts.into_iter().map(|text| {
        let got = turn(text).unwrap_or_else(|e| format!("{} {}", e.kind.label(), e.message));
        serde_json::from_str::<Value>(&got).err().map_or(String::new(), |_| "! ".into()) + text + "\n    " + &got + "\n"
    });
    lines.collect()
}

#[test]
fn a_task_is_the_golden_one() {
    let old = result_out(Operation::GetTask, Dialect::V03, TASK_10).unwrap();
    assert_eq!(old, TASK_03);
    assert_eq!(result_in(Operation::GetTask, Dialect::V03, raw(TASK_03)).unwrap(), TASK_10);
    let proto = value(&result_out(Operation::GetTask, Dialect::V03Proto, TASK_10).unwrap());
    assert_eq!(proto["history"][0]["content"], value(PARTS_03_PROTO));
    assert_eq!(proto["history"][0]["role"], "ROLE_USER");
    assert_eq!(proto["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(
        result_in(Operation::GetTask, Dialect::V03Proto, raw(&proto.to_string())).map(|t| value(&t)),
        Ok(value(TASK_10))
    );
}

#[test]
fn results_out() {
    let texts = [
        (
            Operation::SendMessage,
            r#"{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELED"},"n":1.0}}"#,
        ),
        (
            Operation::SendMessage,
            r#"{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"a","mediaType":"text/x"}]}}"#,
        ),
        (
            Operation::CancelTask,
            r#"{"id":"t","status":{"state":"TASK_STATE_UNSPECIFIED"},"kind":"mine","metadata":{"big":12345678901234567890}}"#,
        ),
        (
            Operation::CreateTaskPushNotificationConfig,
            r#"{"tenant":"x","id":"p","taskId":"t","url":"https://e.example","token":"k","authentication":{"scheme":"Bearer","credentials":"s"}}"#,
        ),
        (Operation::GetTaskPushNotificationConfig, r#"{"id":"p","taskId":"t","url":"https://e.example"}"#),
        (
            Operation::ListTaskPushNotificationConfigs,
            r#"{"configs":[{"id":"p","taskId":"t","url":"https://e.example"}],"nextPageToken":""}"#,
        ),
        (Operation::DeleteTaskPushNotificationConfig, "null"),
        (Operation::ListTasks, "{}"),
        (Operation::SendMessage, r#"{"other":1}"#),
    ];
    let mut out = String::new();
    for (operation, text) in texts {
        for dialect in BOTH {
            let _ = write!(out, "{} {dialect:?}: ", operation.name());
            out += &table([text], |t| result_out(operation, dialect, t));
        }
    }
    insta::assert_snapshot!(out);
}

#[test]
fn results_in() {
    let texts = [
        (
            Dialect::V03,
            Operation::SendMessage,
            r#"{"kind":"message","messageId":"m","role":"agent","parts":[{"text":"a"},{"kind":"data","data":{"value":null},"metadata":{"data_part_compat":true,"k":1}}]}"#,
        ),
        (
            Dialect::V03,
            Operation::SendMessage,
            r#"{"kind":"task","id":"t","status":{"state":"unknown","timestamp":"2026-11-29T12:00:00.5+02:00"}}"#,
        ),
        (Dialect::V03, Operation::SendMessage, r#"{"id":"t"}"#),
        (Dialect::V03, Operation::GetTask, r#"{"kind":"task","id":"t","status":{"state":"asleep"}}"#),
        (
            Dialect::V03,
            Operation::GetTask,
            r#"{"kind":"task","id":"t","status":{"state":"working","timestamp":"yesterday"},"history":[{"role":"admin"}]}"#,
        ),
        (
            Dialect::V03,
            Operation::ListTaskPushNotificationConfigs,
            r#"[{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://e.example","authentication":{"schemes":["Bearer","Basic"]}}}]"#,
        ),
        (
            Dialect::V03Proto,
            Operation::SendMessage,
            r#"{"msg":{"message_id":"m","role":2,"content":[{"file":{"file_with_bytes":"AAEC","mime_type":"x/y","x":1}}]}}"#,
        ),
        (
            Dialect::V03Proto,
            Operation::GetTask,
            r#"{"id":"t","status":{"state":"TASK_STATE_CANCELLED","update":{"role":"ROLE_AGENT","content":[]}},"artifacts":[{"artifact_id":"a","parts":[{"data":{"data":{"n":1}}}]}]}"#,
        ),
        (
            Dialect::V03Proto,
            Operation::GetTaskPushNotificationConfig,
            r#"{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"url":"https://e.example"}}"#,
        ),
        (
            Dialect::V03Proto,
            Operation::ListTaskPushNotificationConfigs,
            r#"{"configs":[{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"id":"p","url":"u"}}],"nextPageToken":""}"#,
        ),
    ];
    let lines = texts.map(|(d, o, text)| format!("{d:?} {} ", o.name()) + &table([text], |t| result_in(o, d, raw(t))));
    insta::assert_snapshot!(lines.concat());
}

#[test]
fn parameters_in() {
    let message = r#""message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
    let proto = r#""request":{"message_id":"m","role":"ROLE_USER","content":[{"text":"hi"},{"file":{"fileWithBytes":"QUFFQw=="}}]}"#;
    let mut texts = vec![
        (Dialect::V03, Operation::SendMessage, format!("{{{message}}}")),
        (
            Dialect::V03,
            Operation::SendMessage,
            format!(
                r#"{{{message},"configuration":{{"blocking":false,"historyLength":0,"acceptedOutputModes":["text/plain"],"pushNotificationConfig":{{"url":"https://e.example","authentication":{{"schemes":["Bearer"],"credentials":"s"}}}}}},"metadata":{{"n":1.0}}}}"#
            ),
        ),
        (Dialect::V03, Operation::SendMessage, format!(r#"{{{message},"configuration":{{"blocking":"no"}}}}"#)),
        (
            Dialect::V03,
            Operation::SendStreamingMessage,
            r#"{"message":{"role":"user","parts":[{"kind":"file","file":{"bytes":"AAEC","uri":"x"}}]}}"#.into(),
        ),
        (Dialect::V03, Operation::SendMessage, r#"{"message":{"role":"ROLE","parts":[]}}"#.into()),
        (Dialect::V03, Operation::SendMessage, r#"{"message":{"role":"user","parts":[{"kind":"video"}]}}"#.into()),
        (Dialect::V03, Operation::SendMessage, "[]".into()),
        (Dialect::V03Proto, Operation::SendMessage, format!("{{{proto}}}")),
        (
            Dialect::V03Proto,
            Operation::SendMessage,
            format!(r#"{{{proto},"configuration":{{"history_length":3,"push_notification":{{"url":"u"}}}}}}"#),
        ),
    ];
    for (dialect, operation, text) in [
        (Dialect::V03, Operation::GetTask, r#"{"id":"t","historyLength":0,"metadata":{}}"#),
        (Dialect::V03Proto, Operation::GetTask, r#"{"name":"tasks/t","historyLength":2}"#),
        (Dialect::V03Proto, Operation::GetTask, r#"{"name":"t"}"#),
        (
            Dialect::V03,
            Operation::CreateTaskPushNotificationConfig,
            r#"{"taskId":"t","pushNotificationConfig":{"id":"p","url":"u","token":"k"}}"#,
        ),
        (
            Dialect::V03Proto,
            Operation::CreateTaskPushNotificationConfig,
            r#"{"parent":"tasks/t","config_id":"p","config":{"push_notification_config":{"url":"u"}}}"#,
        ),
        (
            Dialect::V03Proto,
            Operation::CreateTaskPushNotificationConfig,
            r#"{"parent":"tasks/t","name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"id":"","url":"u"}}"#,
        ),
        (Dialect::V03Proto, Operation::CreateTaskPushNotificationConfig, r#"{"config":{}}"#),
        (Dialect::V03, Operation::GetTaskPushNotificationConfig, r#"{"id":"t","pushNotificationConfigId":"p"}"#),
        (Dialect::V03, Operation::GetTaskPushNotificationConfig, r#"{"id":"t"}"#),
        (
            Dialect::V03Proto,
            Operation::DeleteTaskPushNotificationConfig,
            r#"{"name":"tasks/t/pushNotificationConfigs/p"}"#,
        ),
        (Dialect::V03Proto, Operation::DeleteTaskPushNotificationConfig, r#"{"name":"tasks/t"}"#),
        (Dialect::V03, Operation::ListTaskPushNotificationConfigs, r#"{"id":"t"}"#),
        (Dialect::V03Proto, Operation::ListTaskPushNotificationConfigs, r#"{"parent":"tasks/t","page_size":3}"#),
        (Dialect::V03, Operation::ListTasks, "{}"),
    ] {
        texts.push((dialect, operation, text.into()));
    }
    let line = |(d, o, text): &(Dialect, Operation, String)| {
        let turn = |t: &str| params_in(*o, *d, Some(raw(t)), Quirks::default()).map(|p| p.unwrap().as_str().to_owned());
        format!("{d:?} {} ", o.name()) + &table([text.as_str()], turn)
    };
    insta::assert_snapshot!(texts.iter().map(line).collect::<String>());
    assert_eq!(params_in(Operation::GetExtendedAgentCard, Dialect::V03, None, Quirks::default()), Ok(None));
}

#[test]
fn an_old_python_client_encodes_bytes_twice() {
    let quirks = Quirks { legacy_python_file_bytes: true };
    let turn = |bytes: &str, dialect, quirks| {
        let text = if dialect == Dialect::V03 {
            format!(r#"{{"message":{{"role":"user","parts":[{{"kind":"file","file":{{"bytes":"{bytes}"}}}}]}}}}"#)
        } else {
            format!(r#"{{"message":{{"role":"ROLE_USER","content":[{{"file":{{"fileWithBytes":"{bytes}"}}}}]}}}}"#)
        };
        let got = params_in(Operation::SendMessage, dialect, Some(raw(&text)), quirks).unwrap().unwrap();
        value(got.as_str())["message"]["parts"][0]["raw"].as_str().unwrap().to_owned()
    };
    assert_eq!(turn("QUFFQw==", Dialect::V03Proto, quirks), "AAEC");
    assert_eq!(turn("QUFFQw", Dialect::V03Proto, quirks), "AAEC");
    assert_eq!(turn("AAEC", Dialect::V03Proto, quirks), "AAEC");
    assert_eq!(turn("QUFFQw==", Dialect::V03Proto, Quirks::default()), "QUFFQw==");
    assert_eq!(turn("QUFFQw==", Dialect::V03, quirks), "QUFFQw==");
}

#[test]
fn events_out() {
    let texts = [
        r#"{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#,
        r#"{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"a"}]}}"#,
        r#"{"statusUpdate":{"taskId":"t1","contextId":"c1","status":{"state":"TASK_STATE_COMPLETED"}}}"#,
        r#"{"statusUpdate":{"taskId":"t1","contextId":"c1","status":{"state":"TASK_STATE_INPUT_REQUIRED"},"metadata":{"k":1}}}"#,
        r#"{"artifactUpdate":{"taskId":"t1","contextId":"c1","append":true,"lastChunk":true,"artifact":{"artifactId":"a1","parts":[{"text":"x"}]}}}"#,
        "{}",
    ];
    let mut out = String::new();
    for dialect in BOTH {
        for last in [false, true] {
            let _ = writeln!(out, "{dialect:?} last {last}");
            out += &table(texts, |t| event_out(dialect, t, last));
        }
        for text in &texts[..5] {
            let old = event_out(dialect, text, false).unwrap();
            assert_eq!(event_in(dialect, raw(&old)).unwrap(), *text, "{dialect:?}");
            assert_eq!(is_final(raw(&old)), text.contains("COMPLETED"));
        }
    }
    insta::assert_snapshot!(out);
}

const CARD: &str = r#"{"name":"A","description":"d","version":"1.2","documentationUrl":"https://e.example/d","provider":{"url":"https://e.example","organization":"O"},
 "supportedInterfaces":[{"url":"https://a.example/","protocolBinding":"JSONRPC","protocolVersion":"1.0"},{"url":"a.example:443","protocolBinding":"GRPC","protocolVersion":"0.3"},{"url":"https://a.example/","protocolBinding":"JSONRPC","protocolVersion":"0.3"}],
 "capabilities":{"streaming":true,"pushNotifications":false,"extendedAgentCard":true,"extensions":[{"uri":"urn:x","params":{"n":12345678901234567890}}]},
 "securitySchemes":{"key":{"apiKeySecurityScheme":{"location":"header","name":"X-Key"}},"bearer":{"httpAuthSecurityScheme":{"scheme":"Bearer","bearerFormat":"JWT"}},"o":{"oauth2SecurityScheme":{"flows":{"authorizationCode":{"authorizationUrl":"https://e.example/a","tokenUrl":"https://e.example/t","scopes":{"r":"read"},"pkceRequired":true}}}},"oidc":{"openIdConnectSecurityScheme":{"openIdConnectUrl":"https://e.example/o"}},"m":{"mtlsSecurityScheme":{"description":"cert"}}},
 "securityRequirements":[{"schemes":{"key":{}}},{"schemes":{"o":{"list":["r"]},"m":{"list":[]}}}],
 "defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
 "skills":[{"id":"s","name":"S","description":"d","tags":["t"],"securityRequirements":[{"schemes":{"key":{"list":[]}}}]}],
 "signatures":[{"protected":"p","signature":"s"}],"x-mine":{"n":1}}"#;

#[test]
fn cards() {
    let card = value(CARD);
    insta::assert_json_snapshot!("card_03", card_out(&card));
    insta::assert_json_snapshot!("card_hybrid", super::super::card::hybrid(&card));
    let proto = result_out(Operation::GetExtendedAgentCard, Dialect::V03Proto, CARD).unwrap();
    insta::assert_json_snapshot!("card_03_proto", value(&proto));
    insta::assert_json_snapshot!("card_in", card_in(&to_raw_value(&card_out(&card)).unwrap()).unwrap());
    assert_eq!(card_in(raw(&proto)).unwrap()["securityRequirements"], card["securityRequirements"]);
    // A hybrid is the card of 1.0 again.
    let back = card_in(&to_raw_value(&super::super::card::hybrid(&card)).unwrap()).unwrap();
    assert_eq!(back, card);
    let only_new = value(&CARD.replace("\"0.3\"", "\"1.0\""));
    assert_eq!(super::super::card::hybrid(&only_new), only_new);
    for text in ["[]", "{}", r#"{"url":""}"#] {
        assert_eq!(card_in(raw(text)).unwrap_err().kind, Kind::InvalidAgentResponse);
    }
}

#[test]
fn errors_keep_to_the_codes_of_their_time() {
    for kind in Kind::ALL {
        let code = error_code(kind);
        assert!((-32007..=-32000).contains(&code) || (-32700..=-32600).contains(&code), "{kind:?} {code}");
        let mut out = String::new();
        error_out(&Error::new(kind, "no"), &mut out);
        assert_eq!(value(&out)["code"], code);
        assert_eq!(value(&out)["data"]["details"][0]["reason"], kind.reason());
    }
    assert_eq!(error_code(Kind::VersionNotSupported), -32603);
    let mut out = String::new();
    http_error_out(&Error::new(Kind::TaskNotFound, "no"), &mut out);
    assert_eq!((&value(&out)["type"], &value(&out)["code"]), (&"TaskNotFoundError".into(), &(-32001).into()));
    assert_eq!(error_name(Kind::Internal), "InternalError");
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1.0e9..1.0e9).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,6}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-zA-Z_]{1,16}", json(), 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
}

fn a_part() -> impl Strategy<Value = Value> {
    let content = prop_oneof![
        "\\PC{0,20}".prop_map(|t| ("text", Value::from(t))),
        "[A-Za-z0-9]{4}".prop_map(|t| ("raw", Value::from(t))),
        "https://[a-z]{1,8}".prop_map(|t| ("url", Value::from(t))),
        json().prop_map(|v| ("data", v)),
    ];
    let text = || prop::option::of("[a-z/]{1,8}");
    // An empty object is lost where data has to be wrapped.
    let metadata = prop::option::of(object().prop_filter("empty", |o| o.as_object().is_some_and(|o| !o.is_empty())));
    (content, text(), text(), metadata, json()).prop_map(|((key, content), name, media, meta, unknown)| {
        let mut part = serde_json::json!({ "zz": unknown });
        part[key] = content;
        for (key, value) in
            [("filename", name.map(Value::from)), ("mediaType", media.map(Value::from)), ("metadata", meta)]
        {
            if let Some(value) = value {
                part[key] = value;
            }
        }
        part
    })
}

fn a_message() -> impl Strategy<Value = Value> {
    (prop::collection::vec(a_part(), 0..4), any::<bool>(), object(), json()).prop_map(|(parts, user, metadata, unknown)| {
        let role = if user { "ROLE_USER" } else { "ROLE_AGENT" };
        serde_json::json!({"messageId": "m", "role": role, "parts": parts, "metadata": metadata, "unknown": unknown})
    })
}

proptest! {
    /// What goes to 0.3 and comes back is what it was: parts, metadata, unknown members, integers.
    #[test]
    fn a_task_comes_back(
        message in a_message(), said in prop::option::of(a_message()), parts in prop::collection::vec(a_part(), 0..3),
        state in 0_usize..9, unknown in json(), metadata in object(),
    ) {
        let states = crate::a2a::state::State::ALL.map(crate::a2a::state::State::wire);
        let state = states.get(state).unwrap_or(&"TASK_STATE_UNSPECIFIED");
        let mut task = serde_json::json!({
            "id": "t", "contextId": "c", "status": {"state": state, "timestamp": "2026-11-29T10:00:00.123Z"},
            "history": [message], "artifacts": [{"artifactId": "a", "parts": parts}], "metadata": metadata, "zz": unknown,
        });
        if let Some(said) = said {
            task["status"]["message"] = said;
        }
        for dialect in BOTH {
            let old = result_out(Operation::GetTask, dialect, &task.to_string()).unwrap();
            let back = result_in(Operation::GetTask, dialect, raw(&old)).unwrap();
            prop_assert_eq!(value(&back), value(&task.to_string()), "{}", old);
            let event = serde_json::json!({"task": task}).to_string();
            let old = event_out(dialect, &event, true).unwrap();
            prop_assert_eq!(value(&event_in(dialect, raw(&old)).unwrap()), value(&event));
        }
    }

    #[test]
    fn a_request_comes_back(
        message in a_message(), immediately in any::<bool>(), length in prop::option::of(1_u32..9), metadata in object(),
        push in any::<bool>(),
    ) {
        let mut configuration = serde_json::json!({"acceptedOutputModes": ["a/b"]});
        if immediately {
            configuration["returnImmediately"] = true.into();
        }
        if let Some(length) = length {
            configuration["historyLength"] = length.into();
        }
        if push {
            configuration["taskPushNotificationConfig"] =
                serde_json::json!({"url": "https://e.example", "authentication": {"scheme": "Bearer", "credentials": "s"}});
        }
        let params = serde_json::json!({"message": message, "configuration": configuration, "metadata": metadata});
        for dialect in BOTH {
            let old = params_out(Operation::SendMessage, dialect, &params.to_string()).unwrap();
            let back = params_in(Operation::SendMessage, dialect, Some(raw(&old)), Quirks::default()).unwrap().unwrap();
            prop_assert_eq!(value(back.as_str()), value(&params.to_string()), "{}", old);
        }
    }

    /// Anything at all either has a translation that is JSON, or an error.
    #[test]
    fn any_json_is_survived(input in json(), dialect in 0_usize..2) {
        let text = input.to_string();
        for operation in Operation::ALL {
            for got in [
                result_out(operation, BOTH[dialect], &text),
                result_in(operation, BOTH[dialect], raw(&text)),
                params_out(operation, BOTH[dialect], &text),
                params_in(operation, BOTH[dialect], Some(raw(&text)), Quirks::default()).map(|p| p.unwrap().as_str().to_owned()),
            ].into_iter().flatten() {
                prop_assert!(serde_json::from_str::<&RawValue>(&got).is_ok(), "{}", got);
            }
        }
    }
}
