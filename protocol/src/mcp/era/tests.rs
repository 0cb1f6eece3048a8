use std::fmt::Write as _;

use super::*;
use crate::mcp::MODERN_REVISIONS;
use proptest::prelude::*;

const NEW: &str = "2026-07-28";
const OLD: &str = "2025-11-25";

/// Text of a message; `meta` are the members of `_meta`, `params` those in front of it.
fn body(method: &str, params: &str, meta: Option<&str>) -> String {
    let meta = meta.map(|m| format!("\"_meta\":{{{m}}}")).unwrap_or_default();
    let comma = if params.is_empty() || meta.is_empty() { "" } else { "," };
    let id = if method.starts_with("notifications/") { "" } else { "\"id\":\"i\"," };
    format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{{params}{comma}{meta}}}}}"#)
}

fn meta_of(revision: &str) -> String {
    format!(r#""{}":"{revision}","{}":{{}}"#, meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES)
}

fn told(headers: &Headers<'_>, text: &str) -> String {
    let message = Envelope::parse(text, 512).unwrap();
    match classify(headers, &message) {
        Ok(Class::Legacy) => "legacy".into(),
        Ok(Class::Modern(m)) => format!("modern {}", m.target.as_deref().unwrap_or("-")),
        Err(fault) => {
            let error = String::from_utf8(fault.response(message.id.map(|i| i.raw))).unwrap();
            format!("{} {} {error}", fault.status(), fault.label())
        }
    }
}

#[test]
fn eras() {
    let mut table = String::new();
    let metas = [
        ("no meta", None),
        ("modern", Some(meta_of(NEW))),
        ("handshake", Some(meta_of(OLD))),
        ("unknown", Some(meta_of("2031-01-01"))),
        ("no string", Some(format!("\"{}\":7", meta::PROTOCOL_VERSION))),
        ("no capabilities", Some(format!("\"{}\":\"{NEW}\"", meta::PROTOCOL_VERSION))),
    ];
    let headers = [
        ("absent", Header::Absent),
        ("modern", Header::Value(NEW)),
        ("handshake", Header::Value(OLD)),
        ("unknown", Header::Value("2031-01-01")),
        ("twice", Header::Twice),
        ("no text", Header::NotText),
    ];
    for (meta_name, meta) in &metas {
        for (header_name, revision) in headers {
            for session in [false, true] {
                for method in ["tools/list", "initialize", "notifications/cancelled"] {
                    let h = Headers { revision, method: Header::Value(method), name: Header::Absent, session };
                    let got = told(&h, &body(method, "", meta.as_deref()));
                    let _ =
                        writeln!(table, "body {meta_name}, header {header_name}, session {session}, {method}: {got}");
                }
            }
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn headers_of_a_modern_request() {
    let mut table = String::new();
    let v = |value| Header::Value(value);
    for (method, params, sent_method, sent_name) in [
        ("tools/call", r#""name":"add""#, v("tools/call"), v("add")),
        ("tools/call", r#""name":"add""#, v("tools/call"), Header::Absent),
        ("tools/call", r#""name":"add""#, v("tools/call"), Header::Twice),
        ("tools/call", r#""name":"add""#, v("tools/call"), Header::NotText),
        ("tools/call", r#""name":"add""#, v("tools/call"), v("Add")),
        ("tools/call", r#""name":"add""#, Header::Absent, v("add")),
        ("tools/call", r#""name":"add""#, v("TOOLS/CALL"), v("add")),
        ("tools/call", r#""name":"\u00fcber""#, v("tools/call"), v("=?base64?w7xiZXI=?=")),
        ("tools/call", r#""name":"\u00fcber""#, v("tools/call"), v("=?base64?w7xiZXI?=")),
        ("tools/call", r#""name":"=?base64?YQ==""#, v("tools/call"), v("=?base64?YQ==")),
        ("tools/call", r#""name":"\ud800""#, v("tools/call"), v("x")),
        ("tools/call", r#""name":7"#, v("tools/call"), Header::Absent),
        ("tools/call", "", v("tools/call"), Header::Absent),
        ("tools/call", "", v("tools/call"), v("add")),
        ("tools/call", r#""name":"a","name":"b""#, v("tools/call"), v("b")),
        ("prompts/get", r#""name":"p""#, v("prompts/get"), v("p")),
        ("resources/read", r#""uri":"file:\/\/\/a","name":"n""#, v("resources/read"), v("file:///a")),
        ("tasks/get", r#""taskId":"t""#, v("tasks/get"), v("t")),
        ("skills/get", r#""uri":"skill://a""#, v("skills/get"), Header::Absent),
        ("tools/list", "", v("tools/list"), v("anything")),
        ("vendor/x", r#""name":"n","name":"m""#, v("vendor/x"), Header::Absent),
        ("notifications/cancelled", "", Header::Absent, Header::Absent),
        ("notifications/cancelled", "", v("tools/call"), Header::Absent),
    ] {
        let h = Headers { revision: v(NEW), method: sent_method, name: sent_name, session: true };
        let got = told(&h, &body(method, params, Some(&meta_of(NEW))));
        let _ = writeln!(table, "{method} {params} {sent_method:?} {sent_name:?}: {got}");
    }
    insta::assert_snapshot!(table);
}

#[test]
fn members_of_meta_are_of_their_kind() {
    let mut table = String::new();
    for more in [
        format!("\"{}\":{{\"name\":\"c\"}}", meta::CLIENT_INFO),
        format!("\"{}\":\"c\"", meta::CLIENT_INFO),
        format!("\"{}\":\"warning\"", meta::LOG_LEVEL),
        format!("\"{}\":\"loud\"", meta::LOG_LEVEL),
        format!("\"{}\":{{\"a\":1}}", meta::CLIENT_CAPABILITIES),
        "\"progressToken\":1,\"progressToken\":2".into(),
        "\"vendor\":1,\"vendor\":2".into(),
    ] {
        let h = Headers { revision: Header::Value(NEW), method: Header::Value("tools/list"), ..Headers::default() };
        let got = told(&h, &body("tools/list", "", Some(&format!("{},{more}", meta_of(NEW)))));
        let _ = writeln!(table, "{more}: {got}");
    }
    let h = Headers { revision: Header::Value(NEW), method: Header::Value("tools/list"), ..Headers::default() };
    let bad = format!("\"{}\":\"{NEW}\",\"{}\":[]", meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES);
    let _ = writeln!(table, "capabilities that are a list: {}", told(&h, &body("tools/list", "", Some(&bad))));
    insta::assert_snapshot!(table);
}

#[test]
fn responses_belong_to_sessions() {
    let text = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let h = |revision, session| Headers { revision, session, ..Headers::default() };
    assert_eq!(told(&h(Header::Absent, true), text), "legacy");
    assert_eq!(told(&h(Header::Value(OLD), true), text), "legacy");
    assert!(told(&h(Header::Value(NEW), true), text).contains("-32600"));
    assert!(told(&h(Header::Value("1999"), true), text).contains("-32022"));
}

#[test]
fn statuses_of_errors() {
    let of = |codes: &[i32]| codes.iter().map(|c| status(*c)).collect::<Vec<_>>();
    assert_eq!(of(&[-32601, -32020, -32021, -32022]), [404, 400, 400, 400]);
    assert_eq!(of(&[-32602, -32603, -32700, -32000, 1]), [200; 5]);
}

#[test]
fn what_an_error_repeats_is_short() {
    let long = "x".repeat(10_000);
    let h = Headers { revision: Header::Value(&long), ..Headers::default() };
    let got = told(&h, &body("tools/list", "", None));
    assert!(got.len() < 600 && got.contains("-32022"), "{got}");
}

proptest! {
    /// Whatever stands in headers and body: a modern call always has what core code takes for granted.
    #[test]
    fn a_modern_request_is_whole(
        revision in prop_oneof![Just(None), Just(Some(NEW)), Just(Some(OLD)), Just(Some("x"))],
        named in prop_oneof![Just("\"2026-07-28\""), Just("\"2025-06-18\""), Just("3"), Just("null")],
        capabilities in prop_oneof![Just("{}"), Just("{\"roots\":{}}"), Just("[]"), Just("null")],
        with_name in any::<bool>(),
        name in ".{0,12}",
        session in any::<bool>(),
    ) {
        let value = crate::mcp::header::encoded(&name).into_owned();
        let params = format!("\"name\":{}", crate::mcp::object::quoted(&name));
        let meta = format!("\"{}\":{named},\"{}\":{capabilities}", meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES);
        let text = body("tools/call", &params, Some(&meta));
        let headers = Headers {
            revision: revision.map_or(Header::Absent, Header::Value),
            method: Header::Value("tools/call"),
            name: if with_name { Header::Value(&value) } else { Header::Absent },
            session,
        };
        match classify(&headers, &Envelope::parse(&text, 512).unwrap()) {
            Ok(Class::Modern(m)) => {
                prop_assert!(with_name && revision == Some(NEW) && named.contains(NEW));
                prop_assert_eq!(m.target.as_deref(), Some(name.as_str()));
                prop_assert_eq!(m.meta.capabilities(), capabilities);
                prop_assert!(MODERN_REVISIONS.contains(&&*string(m.meta.revision.unwrap().raw).unwrap()));
            }
            Ok(Class::Legacy) => prop_assert!(session && !named.contains(NEW) && revision != Some(NEW)),
            Err(fault) => prop_assert_eq!(fault.status(), 400),
        }
    }
}
