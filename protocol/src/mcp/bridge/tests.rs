use std::fmt::Write as _;

use super::*;
use crate::jsonrpc::{Kind, Slice, scan};
use crate::mcp::edit::Outbound;
use crate::mcp::era::{Class, Headers, Modern, classify};
use crate::mcp::handshake::{Discovered, Initialized};
use crate::mcp::header::{Header, encoded};
use crate::mcp::meta::{self, Stamp};
use crate::mcp::negotiated;
use crate::mcp::object::Object;
use proptest::prelude::*;

const META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}}"#;

fn parse(text: &str) -> Envelope<'_> {
    Envelope::parse(text, usize::MAX).unwrap()
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).unwrap()
}

/// What the classifier makes of a modern call.
fn modern<'a>(call: &Envelope<'a>) -> Modern<'a> {
    let name = call.params.and_then(Object::read).and_then(|p| p.text("name").or_else(|| p.text("uri")));
    let name = name.map(|n| encoded(&n).into_owned());
    let headers = Headers {
        revision: Header::Value("2026-07-28"),
        method: Header::Value(&call.method),
        name: name.as_deref().map_or(Header::Absent, Header::Value),
        session: false,
    };
    match classify(&headers, call) {
        Ok(Class::Modern(modern)) => modern,
        other => panic!("{other:?}"),
    }
}

fn sent(out: Outbound<'_>) -> String {
    let token = out.token.map(|t| format!("  (token {t})")).unwrap_or_default();
    text(out.line) + &token
}

#[test]
fn calls_of_modern_clients() {
    let mut lines = String::new();
    for call in [
        format!(
            r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{{"name":"a","arguments":{{"n":12345678901234567890,"_meta":{{}}}},"_meta":{{{META}}}}}}}"#
        ),
        format!(
            r#"{{"params":{{"_meta":{{"progressToken":"t",{META},"traceparent":"00-1","io.modelcontextprotocol/logLevel":"info","vendor/x":"\ud800"}}}},"id":1.0,"method":"tools/list","jsonrpc":"2.0"}}"#
        ),
        format!(
            r#"{{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{{"name":"p","inputResponses":{{"a":{{}}}},"requestState":"s","_meta":{{{META},"io.modelcontextprotocol/clientInfo":{{"name":"c"}}}}}}}}"#
        ),
        format!(
            r#"{{"jsonrpc":"2.0","id":3,"method":"vendor/x","params":{{"requestState":"s","_meta":{{{META},"progressToken":null}}}}}}"#
        ),
    ] {
        let call = parse(&call);
        let _ = writeln!(lines, "{}", sent(to_legacy::request(&call, &modern(&call), 17)));
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn answers_of_legacy_servers() {
    let server = r#"{"name":"s","version":"1"}"#;
    let mut lines = String::new();
    for (method, rest) in [
        ("tools/call", r#""result":{"content":[{"type":"text","text":"\ud800"}],"structuredContent":null}"#),
        ("tools/list", r#""result":{"tools":[],"_meta":{"a":1}}"#),
        ("tools/list", r#""result":{"tools":[],"ttlMs":5,"_meta":{}}"#),
        ("resources/read", r#""result":{"contents":[],"cacheScope":"public"}"#),
        ("prompts/get", r#""result":{}"#),
        (
            "prompts/get",
            r#""result":{"resultType":"task","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"own"}}}"#,
        ),
        ("vendor/x", r#""result":[1]"#),
        ("vendor/x", r#""result":{"_meta":null}"#),
        ("resources/read", r#""error":{"code":-32002,"message":"no","data":{"uri":"a://b"}}"#),
        ("resources/read", r#""error":{"message":"no","code":-3.2002e4}"#),
        ("tools/call", r#""error":{"code":-32002,"message":"no"}"#),
        ("tools/call", r#""error":{"code":-32601,"message":"no"}"#),
        ("tools/call", r#""error":{"code":-32042,"message":"no","data":{}}"#),
        (
            "tools/call",
            r#""error":{"code":-32042,"message":"no","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example","message":"m"}]}}"#,
        ),
    ] {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":17,{rest}}}"#);
        let _ = match to_legacy::response(&parse(&answer), method, "\"c\"", Some(server)) {
            to_legacy::Response::Message(line) => writeln!(lines, "{method}: {}", text(line)),
            to_legacy::Response::Urls(questions) => writeln!(lines, "{method}: {questions:?}"),
        };
    }
    let bare = to_legacy::response(&parse(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#), "tools/call", "2", None);
    let to_legacy::Response::Message(bare) = bare else { panic!("{bare:?}") };
    let _ = writeln!(lines, "no server info: {}", text(bare));
    insta::assert_snapshot!(lines);
}

#[test]
fn discovery_of_a_legacy_server() {
    let init = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"extensions":{"x":1}},"serverInfo":{"name":"s","version":"1"},"instructions":"use\nit"}"#;
    let whole = to_legacy::discover("\"d\"", &Initialized::read(init).unwrap(), &["2026-07-28", "2025-11-25"], 5000);
    let least = r#"{"protocolVersion":"2024-11-05"}"#;
    let least = to_legacy::discover("1", &Initialized::read(least).unwrap(), &["2026-07-28"], 0);
    let lines = [text(whole), text(least)];
    let read = Discovered::read(parse(&lines[0]).result.unwrap().raw).unwrap();
    assert_eq!(
        (read.revision(), read.ttl_ms, read.server),
        (Some("2026-07-28"), 5000, Some(r#"{"name":"s","version":"1"}"#))
    );
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn methods_of_either_era() {
    for method in
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get"]
    {
        assert!(to_legacy::is_removed(method) && to_modern::local(method).is_some(), "{method}");
    }
    for method in ["tools/call", "completion/complete", "vendor/x", "skills/list", "notifications/cancelled"] {
        assert!(!to_legacy::is_removed(method) && to_modern::local(method).is_none(), "{method}");
    }
    assert!(to_legacy::is_swallowed("notifications/initialized"));
    assert_eq!(to_modern::local("notifications/initialized"), Some(to_modern::Local::Swallow));
    assert!(to_legacy::is_cacheable("resources/read") && !to_legacy::is_cacheable("prompts/get"));
}

#[test]
fn a_retry_is_the_same_call() {
    let print = |method: &str, params: &str| {
        to_legacy::fingerprint(&parse(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)))
    };
    let first = print("tools/call", r#"{"name":"a","arguments":{"x":1,"y":"é"},"_meta":{"progressToken":1}}"#).unwrap();
    for same in [
        r#"{"arguments":{"y":"\u00e9", "x":1.0},"name":"a"}"#,
        r#"{"name":"a","arguments":{"x":1,"y":"é"},"inputResponses":{"k":{}},"requestState":"s","_meta":{"progressToken":2}}"#,
    ] {
        assert_eq!(print("tools/call", same), Some(first), "{same}");
    }
    for other in [
        r#"{"name":"a","arguments":{"x":2,"y":"é"}}"#,
        r#"{"name":"b","arguments":{"x":1,"y":"é"}}"#,
        r#"{"name":"a"}"#,
        "{}",
    ] {
        assert_ne!(print("tools/call", other), Some(first), "{other}");
    }
    assert_ne!(print("prompts/get", r#"{"name":"a","arguments":{"x":1,"y":"é"}}"#), Some(first));
    assert_eq!(print("tools/call", "[1]"), None);
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(400), "]".repeat(400));
    assert!(print("tools/call", &deep).is_some());
}

#[test]
fn calls_of_legacy_clients() {
    let stamp = Stamp::new("2026-07-28", r#"{"roots":{}}"#, Some(r#"{"name":"c","version":"1"}"#), Some("warning"));
    let mut lines = String::new();
    for call in [
        r#"{"jsonrpc":"2.0","id":"c","method":"tools/list"}"#,
        r#" {"jsonrpc":"2.0","id":"c","method":"tools/list","params":{}} "#,
        r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"a","_meta":{"progressToken":"t","io.modelcontextprotocol/logLevel":"debug"}}}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"_meta":null,"name":"a"}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"vendor/x","params":[{"_meta":{}}]}"#,
    ] {
        let call = parse(call);
        let _ = writeln!(lines, "{}", sent(to_modern::request(&call, 17, &stamp)));
        let answers = [("k\"", r#"{"action":"accept"}"#), ("l", "{}")];
        let _ = writeln!(lines, "  {}", sent(to_modern::retry(&call, 18, &stamp, &answers, Some("\"\\ud800\""))));
        let _ = writeln!(lines, "  {}", sent(to_modern::retry(&call, 18, &stamp, &[], Some("\"s\""))));
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn answers_of_modern_servers() {
    let mut lines = String::new();
    for rest in [
        r#""result":{"resultType":"complete","ttlMs":1,"content":[]}"#,
        r#""error":{"code":-32602,"message":"m","data":1}"#,
        r#""error":{"code":-32021,"message":"\ud800","data":{"requiredCapabilities":{"sampling":{}}}}"#,
        r#""error":{"code":-32022}"#,
    ] {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":17,{rest}}}"#);
        let _ = writeln!(lines, "{}", text(to_modern::response(&parse(&answer), "1.0")));
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn handshake_of_a_modern_server() {
    let found = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"tasks":{},"extensions":{}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"2"}}}"#;
    let whole = to_modern::initialize_result("\"i\"", "2025-06-18", &Discovered::read(found).unwrap(), "time");
    let least = r#"{"supportedVersions":["2026-07-28"]}"#;
    let least = to_modern::initialize_result("1", "2025-11-25", &Discovered::read(least).unwrap(), "time");
    let lines = [text(whole), text(least), text(to_modern::empty_result("2"))];
    assert!(Initialized::read(parse(&lines[1]).result.unwrap().raw).unwrap().server.is_some());
    insta::assert_snapshot!(lines.join("\n"));
    assert_eq!(negotiated(Some("2024-11-05")), "2024-11-05");
    assert_eq!((negotiated(Some("2026-07-28")), negotiated(None)), ("2025-11-25", "2025-11-25"));
    assert_eq!(to_modern::client_capabilities(r#"{"tasks":{},"roots":{}}"#), r#"{"roots":{}}"#);
    assert_eq!(to_modern::client_capabilities("null"), "{}");
}

/// A raw JSON value as real programs write them: deep, with integers of any size, halves of surrogate pairs, keys that
/// look like those of the envelope, and white space.
fn raw_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("-0.10e+5".to_owned()),
        Just(r#""\ud800\u0000\/é""#.to_owned()),
        Just("1.0".to_owned()),
        (1..400_usize).prop_map(|n| format!("{}{}", "[".repeat(n), "]".repeat(n))),
        ".{0,8}".prop_map(|s| serde_json::Value::from(s).to_string()),
    ];
    let key = prop_oneof![
        Just(r#""id""#.to_owned()),
        Just(r#""_meta""#.to_owned()),
        Just(r#""jsonrpc""#.to_owned()),
        Just(r#""progressToken""#.to_owned()),
        Just(r#""\u0069d""#.to_owned()),
        Just(r#""io.modelcontextprotocol/protocolVersion""#.to_owned()),
        "[a-z]{1,6}".prop_map(|s| format!("\"{s}\"")),
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        let member = (key.clone(), inner.clone()).prop_map(|(k, v)| format!("{k} : {v}"));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|v| format!("[{}]", v.join(" ,"))),
            prop::collection::vec(member, 0..5).prop_map(|v| format!("{{\n{}\t}}", v.join(",\r\n"))),
        ]
    })
}

/// The members of a raw object, white space of lines made even.
fn members(raw: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    scan::object(raw, usize::MAX, |k, v| {
        out.push((k.to_owned(), v.raw.replace(['\n', '\r'], " ")));
        Ok(())
    })
    .unwrap();
    out
}

/// The members of an object inside a message, without some of them.
fn kept(raw: Option<Slice<'_>>, drop: &[&str]) -> Vec<(String, String)> {
    members(raw.map_or("{}", |r| r.raw)).into_iter().filter(|(k, _)| !drop.contains(&k.as_str())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_modern_call_keeps_all_else(value in raw_value(), vendor in raw_value(), method in "vendor/[a-z]{1,5}", token in any::<bool>()) {
        let token = if token { r#""progressToken": 7 ,"# } else { "" };
        let call = format!(
            "{{\"jsonrpc\":\"2.0\",\"x\":{value},\"method\":\"{method}\",\"params\":{{\"a\":{value},\"_meta\":{{{token}{META}, \"v\":{vendor}}},\"b\":{vendor}}},\"id\":\"c\"}}"
        );
        let call = parse(&call);
        let line = text(to_legacy::request(&call, &modern(&call), 9).line);
        prop_assert!(!line.contains(['\n', '\r']));
        let got = parse(&line);
        prop_assert_eq!((got.kind, got.id.unwrap().raw, &got.method), (Kind::Request, "9", &call.method));
        prop_assert_eq!(kept(Some(Slice { raw: &line, at: 0 }), &["id", "params"]), kept(Some(Slice { raw: call.text, at: 0 }), &["id", "params"]));
        prop_assert_eq!(kept(got.params, &["_meta"]), kept(call.params, &["_meta"]));
        let meta_of = |e: &Envelope<'_>| Object::read(member(e.params.unwrap(), "_meta").unwrap()).unwrap().members().iter()
            .map(|m| (m.key.to_string(), m.value.raw.replace(['\n', '\r'], " "))).collect::<Vec<_>>();
        let mut want = meta_of(&call);
        want.retain(|(k, _)| !meta::REQUEST_KEYS.contains(&k.as_str()));
        for (key, value) in &mut want {
            if key == "progressToken" {
                *value = "9".into();
            }
        }
        prop_assert_eq!(meta_of(&got), want);
    }

    #[test]
    fn a_legacy_answer_keeps_all_else(value in raw_value(), meta_value in raw_value(), with_meta in any::<bool>(), cacheable in any::<bool>()) {
        let own = if with_meta { format!(",\"_meta\":{{\"v\":{meta_value}}}") } else { String::new() };
        let answer = format!("{{\"id\":\"9\",\"jsonrpc\":\"2.0\",\"result\":{{\"a\":{value}{own}}},\"x\":{meta_value}}}");
        let answer = parse(&answer);
        let method = if cacheable { "tools/list" } else { "tools/call" };
        let to_legacy::Response::Message(line) = to_legacy::response(&answer, method, "1.0", Some("{}")) else { panic!() };
        let line = text(line);
        prop_assert!(!line.contains(['\n', '\r']));
        let got = parse(&line);
        prop_assert_eq!(got.id.unwrap().raw, "1.0");
        let added = ["_meta", "resultType", "ttlMs", "cacheScope"];
        prop_assert_eq!(kept(got.result, &added), kept(answer.result, &["_meta"]));
        let meta = Object::read(member(got.result.unwrap(), "_meta").unwrap()).unwrap();
        prop_assert_eq!(meta.get(meta::SERVER_INFO).unwrap().raw, "{}");
        prop_assert_eq!(meta.get("v").map(|v| v.raw.to_owned()), with_meta.then(|| meta_value.replace(['\n', '\r'], " ")));
        prop_assert_eq!(member(got.result.unwrap(), "ttlMs").is_some(), cacheable);
        prop_assert_eq!(kept(Some(Slice { raw: &line, at: 0 }), &["id", "result"]), kept(Some(Slice { raw: answer.text, at: 0 }), &["id", "result"]));
    }

    #[test]
    fn a_legacy_call_keeps_all_else(value in raw_value(), meta_kind in 0..4, token in any::<bool>()) {
        let token = if token { "\"progressToken\": \"t\", " } else { "" };
        let own = match meta_kind {
            0 => String::new(),
            1 => format!(",\"_meta\":{{{token}\"v\":{value}}}"),
            2 => ",\"_meta\":7".into(),
            _ => ",\"_meta\":{}".into(),
        };
        let call = format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"x\",\"params\":{{\"a\":{value}{own}}}, \"y\":{value}}}");
        let call = parse(&call);
        let stamp = Stamp::new("2026-07-28", "{}", None, None);
        let line = text(to_modern::request(&call, 9, &stamp).line);
        let got = parse(&line);
        prop_assert_eq!(got.id.unwrap().raw, "9");
        prop_assert_eq!(kept(got.params, &["_meta"]), kept(call.params, &["_meta"]));
        prop_assert_eq!(kept(Some(Slice { raw: &line, at: 0 }), &["id", "params"]), kept(Some(Slice { raw: call.text, at: 0 }), &["id", "params"]));
        let meta = modern(&got).meta;
        prop_assert_eq!(meta.capabilities(), "{}");
        if meta_kind == 1 {
            let object = Object::read(meta.object.unwrap()).unwrap();
            prop_assert_eq!(object.get("v").unwrap().raw, value.replace(['\n', '\r'], " "));
            prop_assert_eq!(meta.progress_token.map(|t| t.raw), (!token.is_empty()).then_some("9"));
        }
    }
}
