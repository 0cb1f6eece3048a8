//! Callers with API keys from a Secret: who is let in, what the handler is told, whose tasks are seen.

use outrigger_e2e::{Namespace, ensure, eventually};
use serde_json::{Value, json};

use crate::bed::{agent, call, client, installed, message, s, url};

fn key(key: &str) -> Value {
    json!({"X-Shop-Key": key})
}

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

#[test]
fn callers_prove_who_they_are_and_see_their_own_tasks_alone() {
    installed();
    let ns = Namespace::new("access").unwrap();
    let keys = [format!("--from-literal=alice={ALICE}"), format!("--from-literal=bob={BOB}")];
    ns.kubectl(&["create", "secret", "generic", "callers", &keys[0], &keys[1]]).unwrap();
    ns.apply(&agent("guarded", "  access: {apiKeys: {header: X-Shop-Key, secretName: callers}}")).unwrap();
    ns.wait("oagent/guarded", "Ready", "True", "", s(90)).unwrap();
    ns.wait("oagent/guarded", "AccessEnforced", "True", "Enforced", s(30)).unwrap();
    let url = url(&ns, "guarded");

    for headers in [json!({}), key("nobody-0123456789abcdef"), json!({"Authorization": "Bearer x"})] {
        let (status, body) = call(&url, "SendMessage", &message("who", None), &headers).unwrap();
        assert_eq!(status, 401, "{headers}: {body}");
    }
    let (status, body) = call(&url, "SendMessage", &message("who", None), &key(ALICE)).unwrap();
    assert_eq!(status, 200, "{body}");
    let task = &body["result"]["task"];
    let told: Value = serde_json::from_str(task["artifacts"][0]["parts"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&told["anonymous"], &told["subject"], &told["issuer"]),
        (&json!(false), &json!("alice"), &json!("api-key"))
    );

    for (caller, sees) in [(ALICE, true), (BOB, false)] {
        let (_, got) = call(&url, "GetTask", &json!({"id": task["id"]}), &key(caller)).unwrap();
        assert_eq!(got["result"]["id"] == task["id"], sees, "{caller}: {got}");
        assert_eq!(got["error"]["code"] == -32001, !sees, "{caller}: {got}");
        let (_, list) = call(&url, "ListTasks", &json!({}), &key(caller)).unwrap();
        assert_eq!(list["result"]["totalSize"], u64::from(sees), "{caller}: {list}");
    }

    // The card is for everybody, and says what is asked for.
    let program = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1] + '/.well-known/agent-card.json').read().decode())";
    let card: Value = serde_json::from_str(&client(program, &[&url]).unwrap()).unwrap();
    assert!(card["securitySchemes"].to_string().contains("X-Shop-Key"), "{card}");

    // A caller that is taken out of the Secret is out, without a restart.
    ns.kubectl(&["patch", "secret", "callers", "--type=json", "-p", r#"[{"op": "remove", "path": "/data/bob"}]"#])
        .unwrap();
    eventually("bob is out", s(120), || {
        let (status, body) = call(&url, "ListTasks", &json!({}), &key(BOB))?;
        ensure(status == 401, || body.to_string())
    })
    .unwrap();
    assert_eq!(call(&url, "ListTasks", &json!({}), &key(ALICE)).unwrap().0, 200);
}
