//! The local API: the stock MCP client in the agent's container, and a tool without the token.

use anyhow::Result;
use outrigger_e2e::{Namespace, ensure, eventually, run_with};
use serde_json::{Value, json};

use crate::bed::{agent, installed, name, pod, root, s, tool};

#[test]
fn the_stock_mcp_client_lists_and_calls_and_a_tool_is_kept_out() {
    installed();
    let ns = Namespace::new("local").unwrap();
    ns.kubectl(&["apply", "-f", &format!("{}/examples/burger-seller/", root())]).unwrap();
    ns.wait("oagent/burger-seller", "Ready", "True", "", s(90)).unwrap();
    let pod = name(&pod(&ns, "burger-seller").unwrap()).to_owned();
    let program = std::fs::read_to_string(format!("{}/e2e/fixtures/mcp_client.py", root())).unwrap();
    let client = |server: &str, tool: &str, arguments: &str| -> Result<Value> {
        let exec = ["-n", &ns.name, "exec", "-i", &pod, "-c", "agent", "--", "python3", "-", server, tool, arguments];
        Ok(serde_json::from_str(&run_with("kubectl", &exec, &program)?)?)
    };
    let now = r#"{"timezone": "UTC"}"#;
    let answer = client("time", "get_current_time", now).unwrap();
    assert_eq!(answer["tools"], json!(["get_current_time", "convert_time"]), "{answer}");
    assert!(answer["text"].as_str().unwrap().contains("datetime"), "{answer}");

    let answer = client("skills", "skill_load", r#"{"name": "burger-menu"}"#).unwrap();
    assert_eq!(answer["tools"], json!(["skills_list", "skill_load", "skill_read"]), "{answer}");
    assert!(answer["text"].as_str().unwrap().contains("menu"), "{answer}");

    // Rules of a tool reach the running pod.
    ns.kubectl(&["patch", "omcp", "time", "--type=merge", "-p", r#"{"spec":{"tools":{"deny":["convert_*"]}}}"#])
        .unwrap();
    eventually("a denied tool is not there", s(90), || {
        let answer = client("time", "get_current_time", now)?;
        ensure(answer["tools"] == json!(["get_current_time"]), || answer.to_string())
    })
    .unwrap();
    let refused = client("time", "convert_time", now).unwrap_err().to_string();
    assert!(refused.contains("Unknown tool: convert_time"), "{refused}");
    let status = ns.get(&["omcp", "time"]).unwrap();
    let digest = status["status"]["tools"]["digests"]["convert_time"].as_str().unwrap();
    assert_eq!(digest.len(), 64, "the server has it all the same, and its digest can be pinned");

    let knock = r#"
import os, urllib.request, urllib.error
for path in ["/mcp/time", "/t/wrong/mcp/time", "/t//mcp/time", "/tasks/1"]:
    try:
        urllib.request.urlopen("http://127.0.0.1:19900" + path, b"{}", timeout=5)
        print(path, "open")
    except urllib.error.HTTPError as e:
        print(path, e.code)
print("files", [f for f in ("/run/outrigger/agent/token", "/run/outrigger/token") if os.path.exists(f)])
print("variables", [k for k in os.environ if "TOKEN" in k])
"#;
    let tool = ["-n", &ns.name, "exec", "-i", &pod, "-c", "tool-time", "--", "python3", "-"];
    let said = run_with("kubectl", &tool, knock).unwrap();
    assert_eq!(said, "/mcp/time 401\n/t/wrong/mcp/time 401\n/t//mcp/time 401\n/tasks/1 401\nfiles []\nvariables []\n");
}

#[test]
fn the_tools_own_user_environment_and_volumes_are_kept() {
    installed();
    let ns = Namespace::new("tool-own").unwrap();
    ns.kubectl(&["create", "configmap", "facts", "--from-literal=fact=42"]).unwrap();
    let more = "  env: [{name: COLOUR, value: blue}]\n  volumes: [{name: facts, configMap: {name: facts}}]\n  \
                volumeMounts: [{name: facts, mountPath: /facts}]\n  securityContext: {runAsUser: 4711}";
    ns.apply(&tool("own", "", more)).unwrap();
    ns.apply(&agent("owner", "  mcpServers: [{name: own}]")).unwrap();
    ns.wait("oagent/owner", "Ready", "True", "", s(90)).unwrap();
    let pod = pod(&ns, "owner").unwrap();
    let look = "import os; print(os.getuid(), os.environ['COLOUR'], open('/facts/fact').read())";
    let said = ns.kubectl(&["exec", name(&pod), "-c", "tool-own", "--", "python3", "-c", look]).unwrap();
    assert_eq!(said.trim(), "4711 blue 42");
    let container = pod["spec"]["containers"].as_array().unwrap().iter().find(|c| c["name"] == "tool-own").unwrap();
    assert_eq!(container["resources"]["requests"]["memory"], "32Mi");
}
