//! A container that speaks A2A itself: the official Python server, unchanged, behind the sidecar.

use outrigger_e2e::Namespace;
use serde_json::{Value, json};

use crate::bed::{client, client_file, installed, message, result, s, url};

const SPEAKER: &str = r#"
apiVersion: outrigger.dev/v1alpha1
kind: Agent
metadata: {name: speaker}
spec:
  description: Speaks A2A itself
  runtime: {a2a: {port: 9999}}
  template:
    spec:
      containers:
      - name: agent
        image: localhost/e2e-a2a-agent:e2e
        args: ["9999", "9998", "1.0"]
        resources: {requests: {cpu: 20m, memory: 96Mi}, limits: {cpu: "1", memory: 256Mi}}
"#;

#[test]
fn a_stock_server_is_an_agent_like_any_other() {
    installed();
    let ns = Namespace::new("speaker").unwrap();
    ns.apply(SPEAKER).unwrap();
    ns.wait("oagent/speaker", "Ready", "True", "", s(120)).unwrap();
    ns.wait("oagent/speaker", "A2AConformant", "True", "AllPass", s(60)).unwrap();
    let url = url(&ns, "speaker");

    let task = result(&url, "SendMessage", &message("tck-complete-task hello", None)).unwrap()["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "Hello from the agent", "{task}");
    assert_eq!(result(&url, "GetTask", &json!({"id": task["id"]})).unwrap()["status"], task["status"]);
    // Its server has nothing to list by; ours does.
    let listed = result(&url, "ListTasks", &json!({"contextId": task["contextId"]})).unwrap();
    assert_eq!((&listed["totalSize"], &listed["tasks"][0]["id"]), (&json!(1), &task["id"]), "{listed}");

    let asked = result(&url, "SendMessage", &message("tck-input-required x", None)).unwrap()["task"].clone();
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{asked}");
    let done = result(&url, "SendMessage", &message("yes", asked["id"].as_str())).unwrap()["task"].clone();
    assert_eq!((&done["id"], &done["status"]["state"]), (&asked["id"], &json!("TASK_STATE_COMPLETED")), "{done}");

    let mut waiting = message("tck-cancel me", None);
    waiting["configuration"] = json!({"returnImmediately": true});
    let waiting = result(&url, "SendMessage", &waiting).unwrap()["task"].clone();
    let gone = result(&url, "CancelTask", &json!({"id": waiting["id"]})).unwrap();
    assert_eq!(gone["status"]["state"], "TASK_STATE_CANCELED", "{gone}");

    for binding in ["JSONRPC", "HTTP+JSON", "GRPC"] {
        let said = client_file("e2e/fixtures/stream_client.py", &[&url, binding, "tck-long-running x"]).unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["result"], "Hello from the agent", "{binding}: {said}");
        assert_eq!(said["events"][0][0], "task", "{binding}: {said}");
    }
    // What the container's own card says, at addresses that are ours.
    let program = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1] + '/.well-known/agent-card.json').read().decode())";
    let card: Value = serde_json::from_str(&client(program, &[&url]).unwrap()).unwrap();
    assert_eq!(card["skills"][0]["id"], "act", "{card}");
    assert!(!card["supportedInterfaces"].to_string().contains("127.0.0.1"), "{card}");
}
