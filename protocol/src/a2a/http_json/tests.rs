use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::a2a::v03;

fn shown(method: &str, path: &str) -> String {
    match route(method, path) {
        Ok(r) => {
            let names = [("tenant", &r.tenant), ("task", &r.task), ("config", &r.config)];
            let names = names.iter().filter_map(|(n, v)| v.as_ref().map(|v| format!(" {n}={v}"))).collect::<String>();
            format!("{} {:?}{names}{}", r.operation.name(), r.dialect, if r.in_body { " body" } else { "" })
        }
        Err(e) => format!("{} {} {:?}", e.kind.http_status(), e.message, e.headers),
    }
}

#[test]
fn routes() {
    let mut table = String::new();
    for (method, path) in [
        ("POST", "/message:send"),
        ("POST", "/message%3Asend/"),
        ("POST", "/message:stream"),
        ("GET", "/message:send"),
        ("GET", "/tasks"),
        ("GET", "/tasks/"),
        ("POST", "/tasks"),
        ("GET", "/tasks/t1"),
        ("GET", "/tasks/t%2F1/"),
        ("PUT", "/tasks/t1"),
        ("GET", "/tasks/a:b"),
        ("POST", "/tasks/t1:cancel"),
        ("GET", "/tasks/t1:cancel"),
        ("POST", "/tasks/t1%3Acancel"),
        ("GET", "/tasks/t1:subscribe"),
        ("POST", "/tasks/t1:subscribe"),
        ("DELETE", "/tasks/t1:subscribe"),
        ("GET", "/tasks/:subscribe"),
        ("POST", "/tasks/t1/pushNotificationConfigs"),
        ("GET", "/tasks/t1/pushNotificationConfigs"),
        ("GET", "/tasks/t1/pushNotificationConfigs/p1"),
        ("DELETE", "/tasks/t1/pushNotificationConfigs/p1"),
        ("PATCH", "/tasks/t1/pushNotificationConfigs/p1"),
        ("GET", "/tasks/t1/pushNotificationConfigs/p1/x"),
        ("GET", "/tasks/t1/other"),
        ("GET", "/extendedAgentCard"),
        ("POST", "/acme/message:send"),
        ("GET", "/acme%20inc/tasks/t1"),
        ("GET", "/acme/extendedAgentCard"),
        ("GET", "/acme"),
        ("GET", "/acme/other/tasks"),
        ("GET", "/tasks/tasks/t1"),
        ("GET", "/v1/v1/tasks/t1"),
        ("GET", "/%ff/tasks"),
        ("GET", "/a%zz/tasks"),
        ("POST", "/v1/message:send"),
        ("POST", "/v1/message:stream"),
        ("GET", "/v1/tasks/t1"),
        ("GET", "/v1/tasks"),
        ("POST", "/v1/tasks/t1:cancel"),
        ("GET", "/v1/tasks/t1:subscribe"),
        ("POST", "/v1/tasks/t1/pushNotificationConfigs"),
        ("DELETE", "/v1/tasks/t1/pushNotificationConfigs/p1"),
        ("GET", "/v1/card"),
        ("GET", "/v1/extendedAgentCard"),
        ("GET", "/card"),
        ("GET", "/"),
        ("GET", ""),
        ("GET", "//tasks"),
    ] {
        let _ = writeln!(table, "{method} {path}\n    {}", shown(method, path));
    }
    insta::assert_snapshot!(table);
}

#[test]
fn parameters() {
    let mut table = String::new();
    for (method, path, query, body) in [
        ("POST", "/message:send", None, Some(r#"{"message":{"n":1.0},"tenant":"x"}"#)),
        ("POST", "/acme/message:send", None, Some(r#"{"message":{},"tenant":""}"#)),
        ("POST", "/acme/message:send", None, Some(r#"{"message":{},"tenant":"other"}"#)),
        ("POST", "/message:send", None, None),
        ("POST", "/message:send", None, Some("[]")),
        ("GET", "/tasks/t1", Some("historyLength=2&x=1&A2A-Version=1.0"), None),
        ("GET", "/tasks/t1", Some("history_length=-3"), None),
        ("GET", "/tasks/t1", Some("historyLength=two"), None),
        ("GET", "/tasks/t1", Some("historyLength=1&historyLength=2"), None),
        ("GET", "/tasks/t1", Some("historyLength="), None),
        ("GET", "/acme/tasks/t1", Some("tenant=other"), None),
        (
            "GET",
            "/tasks",
            Some(
                "contextId=a%26b+c&status=TASK_STATE_WORKING&pageSize=10&pageToken=x%3D&includeArtifacts=true&statusTimestampAfter=2026-11-29T10%3A00%3A00Z",
            ),
            None,
        ),
        ("GET", "/tasks", Some("includeArtifacts=yes&pageSize=1.5"), None),
        ("GET", "/tasks", None, None),
        ("POST", "/tasks/t1:cancel", None, None),
        ("POST", "/tasks/t1:cancel", Some("historyLength=1"), Some(r#"{"id":"t1","metadata":{"k":7}}"#)),
        ("POST", "/tasks/t1:cancel", None, Some(r#"{"id":"t2"}"#)),
        ("GET", "/tasks/t1:subscribe", None, None),
        ("POST", "/tasks/t1:subscribe", None, Some("{}")),
        ("POST", "/tasks/t1/pushNotificationConfigs", None, Some(r#"{"task_id":"t1","url":"https://e.example"}"#)),
        ("GET", "/tasks/t1/pushNotificationConfigs", Some("pageSize=5"), None),
        ("DELETE", "/tasks/t1/pushNotificationConfigs/p1", None, None),
        ("GET", "/extendedAgentCard", None, None),
        ("GET", "/acme/extendedAgentCard", None, None),
        ("POST", "/v1/message:send", None, Some(r#"{"request":{"content":[]}}"#)),
        ("GET", "/v1/tasks/t1", Some("historyLength=0"), None),
        ("POST", "/v1/tasks/t1:cancel", None, Some(r#"{"name":"tasks/t1"}"#)),
        (
            "POST",
            "/v1/tasks/t1/pushNotificationConfigs",
            None,
            Some(r#"{"parent":"tasks/x","config_id":"p","config":{"push_notification_config":{"url":"u"}}}"#),
        ),
        (
            "POST",
            "/v1/tasks/t1/pushNotificationConfigs",
            None,
            Some(r#"{"name":"tasks/t1/pushNotificationConfigs/p","pushNotificationConfig":{"url":"u"}}"#),
        ),
        ("GET", "/v1/tasks/t1/pushNotificationConfigs/p1", None, None),
        ("GET", "/v1/tasks/t1/pushNotificationConfigs", None, None),
        ("GET", "/v1/card", None, None),
    ] {
        let route = route(method, path).unwrap();
        let body = body.map(|b| serde_json::from_str::<&RawValue>(b).unwrap());
        let got = params(&route, query, body);
        let _ = write!(table, "{method} {path} {} {}\n    ", query.unwrap_or_default(), body.map_or("", RawValue::get));
        let _ = match &got {
            Ok(p) => writeln!(table, "{p:?}"),
            Err(e) => writeln!(table, "{} {}", e.kind.label(), e.message),
        };
        // What comes of a path of 0.3 is what the translation takes.
        if let (Ok(Some(params)), true) = (got, route.dialect == Dialect::V03Proto) {
            let raw = serde_json::from_str(params.as_str()).unwrap();
            let new = v03::params_in(route.operation, route.dialect, Some(raw), v03::Quirks::default());
            let _ = writeln!(table, "    {:?}", new.unwrap());
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn bodies() {
    assert_eq!(parse_body(b" \n").unwrap().map(RawValue::get), None);
    assert_eq!(parse_body(b" {\"a\":1} ").unwrap().map(RawValue::get), Some("{\"a\":1}"));
    assert_eq!(parse_body(b"{").unwrap_err().kind, Kind::Parse);
    assert_eq!(parse_body(b"\"\xff\"").unwrap_err().kind, Kind::Parse);
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert_eq!(parse_body(deep.as_bytes()).unwrap_err().kind, Kind::InvalidRequest);
}

#[test]
fn a_query_names_the_version() {
    assert_eq!(query_value("x=1&a2a-version=1.0", "A2A-Version").as_deref(), Some("1.0"));
    assert_eq!(query_value("A2A-Version=%31.0", "A2A-Version").as_deref(), Some("1.0"));
    assert_eq!(query_value("x", "A2A-Version"), None);
}

proptest! {
    /// Ids survive whatever is in them.
    #[test]
    fn encoded_ids_read_back(id in "\\PC{1,12}", tenant in "[a-z]{1,8}") {
        let encoded = id.bytes().map(|b| format!("%{b:02X}")).collect::<Vec<_>>().concat();
        let path = format!("/{tenant}/tasks/{encoded}:cancel");
        let got = route("POST", &path).unwrap();
        prop_assert_eq!((got.task.as_deref(), got.operation), (Some(id.as_str()), Operation::CancelTask));
        let params = params(&got, None, None).unwrap().unwrap();
        let params: serde_json::Value = serde_json::from_str(params.as_str()).unwrap();
        prop_assert_eq!(params, serde_json::json!({"tenant": tenant, "id": id}));
    }
}
