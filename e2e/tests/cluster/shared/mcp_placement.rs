//! Tool servers wherever they are: in the pod over HTTP, with pods of their own, remote. And who may use them.

use outrigger_e2e::{Namespace, condition, ensure, eventually};
use serde_json::Value;

use crate::bed::{agent, installed, root, s, said, send, tool, url};

fn example(ns: &Namespace, file: &str) {
    ns.kubectl(&["apply", "-f", &format!("{}/examples/{file}", root())]).unwrap();
}

fn ready(ns: &Namespace, what: &str) {
    ns.wait(what, "Ready", "True", "", s(120)).unwrap();
}

/// Sends until the answer has a text: a changed ConfigMap takes a while to reach a pod.
fn says(ns: &Namespace, agent: &str, text: &str, wanted: &str) {
    eventually(&format!("{agent} says {wanted}"), s(120), || {
        let answer = said(&send(&url(ns, agent), text)?);
        ensure(answer.contains(wanted), || answer.clone())
    })
    .unwrap();
}

#[test]
fn the_news_are_searched_and_judged() {
    installed();
    let ns = Namespace::new("news").unwrap();
    example(&ns, "news-search/news.yaml");
    ready(&ns, "oagent/news-desk");
    says(&ns, "news-desk", r#"news search_news {"query": "harbour"}"#, "harbour.txt: The new harbour opens");
    says(&ns, "news-desk", r#"news analyze_sentiment {"file": "harbour.txt"}"#, r#""sentiment": "positive""#);
    says(&ns, "news-desk", r#"news analyze_sentiment {"file": "storm.txt"}"#, r#""sentiment": "negative""#);
    says(&ns, "news-desk", r#"news analyze_sentiment {"file": "../../etc/passwd"}"#, "there is no article");
}

#[test]
fn a_server_over_http_in_the_pod() {
    installed();
    let ns = Namespace::new("weather").unwrap();
    example(&ns, "weather/weather.yaml");
    ready(&ns, "oagent/weather-desk");
    ready(&ns, "omcp/weather");
    says(&ns, "weather-desk", r#"weather get_weather {"city": "Lisbon"}"#, "sunny, 24");
    let server = ns.get(&["omcp/weather"]).unwrap();
    assert_eq!(server["status"]["tools"]["names"], serde_json::json!(["get_weather"]), "{}", server["status"]);
}

#[test]
fn a_standalone_server_is_shared_scaled_and_outlived() {
    installed();
    let ns = Namespace::new("shared-tools").unwrap();
    example(&ns, "shared-tools/clock.yaml");
    for what in ["omcp/clock", "oagent/morning", "oagent/evening"] {
        ready(&ns, what);
    }
    let convert = r#"clock convert_time {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}"#;
    for agent in ["morning", "evening"] {
        says(&ns, agent, convert, "21:00");
    }
    // Only the other one may ask for the time: the server's pod knows who calls.
    says(&ns, "morning", r#"clock get_current_time {"timezone": "UTC"}"#, "datetime");
    says(&ns, "evening", r#"clock get_current_time {"timezone": "UTC"}"#, "Unknown tool: get_current_time");
    let pods = ns.get(&["pods", "-l", "outrigger.dev/mcp-server=clock"]).unwrap();
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "one for both");
    let status = ns.get(&["omcp/clock"]).unwrap()["status"].clone();
    assert_eq!((&status["agents"], &status["readyReplicas"]), (&2.into(), &1.into()), "{status}");

    ns.kubectl(&["scale", "omcp/clock", "--replicas=2"]).unwrap();
    eventually("two replicas", s(90), || {
        let status = ns.get(&["omcp/clock"])?["status"].clone();
        ensure(status["readyReplicas"] == 2, || status.to_string())
    })
    .unwrap();
    says(&ns, "morning", convert, "21:00");

    // Its outage is told and takes no Agent down.
    ns.kubectl(&["scale", "omcp/clock", "--replicas=0"]).unwrap();
    ns.wait("oagent/morning", "ToolsReady", "False", "", s(120)).unwrap();
    let agent = ns.get(&["oagent/morning"]).unwrap();
    assert_eq!(condition(&agent, "Ready")["status"], "True", "{agent}");
    ns.kubectl(&["scale", "omcp/clock", "--replicas=1"]).unwrap();
    ns.wait("oagent/morning", "ToolsReady", "True", "", s(120)).unwrap();
    says(&ns, "morning", convert, "21:00");
}

#[test]
fn another_namespace_uses_a_server_only_when_it_is_named() {
    installed();
    let (tools, shop) = (Namespace::new("lent-tools").unwrap(), Namespace::new("lent-shop").unwrap());
    tools.apply(&tool("echoes", "", "  placement: Standalone")).unwrap();
    ready(&tools, "omcp/echoes");
    let uses =
        |more: &str| agent("caller", &format!("  mcpServers: [{{name: echoes, namespace: {}{more}}}]", tools.name));
    shop.apply(&uses("")).unwrap();
    shop.wait("oagent/caller", "ToolsReady", "False", "MCPServerAccessDenied", s(60)).unwrap();
    let patch = |from: Value| serde_json::json!({"spec": {"access": {"from": from}}}).to_string();
    let open = patch(serde_json::json!([{"namespace": shop.name, "agent": "caller"}]));
    tools.kubectl(&["patch", "omcp/echoes", "--type=merge", "-p", &open]).unwrap();
    shop.wait("oagent/caller", "ToolsReady", "True", "", s(120)).unwrap();
    says(&shop, "caller", r#"tool echoes echo {"text": "hello"}"#, "hello");

    // Taken back: the server refuses what it took before.
    tools.kubectl(&["patch", "omcp/echoes", "--type=merge", "-p", &patch(serde_json::json!([]))]).unwrap();
    shop.wait("oagent/caller", "ToolsReady", "False", "MCPServerAccessDenied", s(60)).unwrap();
    eventually("the server says no", s(120), || {
        let answer = send(&url(&shop, "caller"), r#"tool echoes echo {"text": "again"}"#)?.to_string();
        ensure(answer.contains("403") || answer.contains("not ready"), || answer.clone())
    })
    .unwrap();
}

#[test]
fn a_remote_server_with_a_key() {
    installed();
    let ns = Namespace::new("remote-tools").unwrap();
    example(&ns, "remote-tools/service.yaml");
    example(&ns, "remote-tools/remote.yaml");
    ready(&ns, "oagent/far-desk");
    ns.wait("oagent/far-desk", "ToolsReady", "True", "", s(120)).unwrap();
    says(&ns, "far-desk", r#"far-weather get_weather {"city": "Bergen"}"#, "rain, 9");

    // A key that is no longer good, brought by the kubelet, without a rollout.
    let wrong = r#"{"stringData": {"X-Api-Key": "wrong"}}"#;
    ns.kubectl(&["patch", "secret", "weather-headers", "--type=merge", "-p", wrong]).unwrap();
    eventually("the refusal is told", s(150), || {
        let agent = ns.get(&["oagent/far-desk"])?;
        let tools = condition(&agent, "ToolsReady");
        ensure(tools["message"].as_str().is_some_and(|m| m.contains("401")), || tools.to_string())
    })
    .unwrap();
    assert_eq!(condition(&ns.get(&["oagent/far-desk"]).unwrap(), "Ready")["status"], "True");
}
