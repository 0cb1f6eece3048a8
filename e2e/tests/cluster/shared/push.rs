//! Push notifications from a pod: to a Service of the cluster that the Agent allows, and to nothing that it does not.

use outrigger_e2e::{Namespace, ensure, eventually};
use serde_json::{Value, json};

use crate::bed::{agent, call, client, installed, message, result, s, url};

const RECEIVER: &str = "
apiVersion: v1
kind: Service
metadata: {name: receiver}
spec: {selector: {app: receiver}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: receiver, labels: {app: receiver}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: receiver
    image: localhost/e2e-agent:e2e
    command: [python3, /app/receiver.py]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
";

fn told(to: &str, text: &str) -> Value {
    let mut params = message(text, None);
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": to, "token": "t0k3n"}});
    params
}

#[test]
fn notifications_reach_a_service_that_is_allowed_and_nothing_else() {
    installed();
    let ns = Namespace::new("push").unwrap();
    let host = format!("receiver.{}.svc.cluster.local:8080", ns.name);
    ns.apply(RECEIVER).unwrap();
    ns.apply(&agent("teller", &format!("  push: {{allow: [\"{host}\"]}}"))).unwrap();
    ns.wait("oagent/teller", "Ready", "True", "", s(90)).unwrap();
    ns.kubectl(&["wait", "--for=condition=Ready", "pod/receiver", "--timeout=60s"]).unwrap();
    let (url, hook) = (url(&ns, "teller"), format!("http://{host}/hook"));

    let task = result(&url, "SendMessage", &told(&hook, "count 5 0.05")).unwrap()["task"].clone();
    let program = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1]).read().decode())";
    let notes = eventually("the end was told", s(60), || {
        let notes: Value = serde_json::from_str(&client(program, &[&hook])?)?;
        let ended =
            notes.as_array().and_then(|n| n.last()).is_some_and(|n| n.to_string().contains("TASK_STATE_COMPLETED"));
        ensure(ended, || notes.to_string())?;
        Ok(notes)
    })
    .unwrap();
    let notes = notes.as_array().unwrap();
    let mut text = String::new();
    for note in notes {
        assert_eq!(note["path"], "/hook");
        assert_eq!(note["headers"]["x-a2a-notification-token"], "t0k3n", "{note}");
        assert!(note["headers"]["idempotency-key"].is_string(), "{note}");
        let body = &note["body"];
        let of = [&body["task"]["id"], &body["statusUpdate"]["taskId"], &body["artifactUpdate"]["taskId"]];
        assert!(of.contains(&&task["id"]), "{body}");
        // A receiver that was behind gets several chunks in one.
        for part in body["artifactUpdate"]["artifact"]["parts"].as_array().into_iter().flatten() {
            text += part["text"].as_str().unwrap_or_default();
        }
    }
    assert!(text.starts_with("1 ") && text.ends_with("5 "), "in order: {text}");
    ns.wait("oagent/teller", "PushDelivered", "True", "", s(30)).unwrap();

    for to in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://127.0.0.1:19464/metrics",
        "http://kubernetes.default.svc.cluster.local/",
        "http://localhost:19900/",
    ] {
        let (_, body) = call(&url, "SendMessage", &told(to, "echo x"), &json!({})).unwrap();
        assert_eq!(body["error"]["code"], -32602, "{to}: {body}");
        assert!(body.to_string().contains("taskPushNotificationConfig.url"), "it names the member: {to}: {body}");
        let made =
            call(&url, "CreateTaskPushNotificationConfig", &json!({"taskId": task["id"], "url": to}), &json!({}));
        let (_, body) = made.unwrap();
        assert_eq!(body["error"]["code"], -32602, "{to}: {body}");
    }
}

#[test]
fn an_agent_without_push_says_so() {
    installed();
    let ns = Namespace::new("no-push").unwrap();
    ns.apply(&agent("silent", "")).unwrap();
    ns.wait("oagent/silent", "Ready", "True", "", s(90)).unwrap();
    let (_, body) =
        call(&url(&ns, "silent"), "SendMessage", &told("https://example.com/", "echo x"), &json!({})).unwrap();
    assert_eq!(body["error"]["code"], -32003, "{body}");
    ns.wait("oagent/silent", "PushDelivered", "True", "NoPush", s(30)).unwrap();
}
