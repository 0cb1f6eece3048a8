//! Changes reach running pods by the control API, and nobody else is told of them.

use outrigger_e2e::{Namespace, elapsed, ensure, eventually, kubectl, now, run_with};
use serde_json::Value;

use crate::bed::{SYSTEM, agent, call, container, gauge, installed, name, pod, pod_admin, restarts, s, scrape, url};

#[test]
fn a_change_of_the_card_is_served_at_once_without_a_write_to_the_pod() {
    installed();
    let ns = Namespace::new("control").unwrap();
    ns.apply(&agent("fresh", "  card: {version: 1.0.0}")).unwrap();
    ns.wait("oagent/fresh", "Ready", "True", "", s(60)).unwrap();
    ns.wait("oagent/fresh", "ControlConnected", "True", "Connected", s(60)).unwrap();
    let before = pod(&ns, "fresh").unwrap();
    let metrics = scrape(&ns.name, name(&before), 19464).unwrap();
    assert_eq!(gauge(&metrics, "outrigger_control_connected"), Some(1.0));
    for version in ["1.0.1", "1.0.2", "1.0.3"] {
        let begin = now();
        let patch = format!(r#"{{"spec":{{"card":{{"version":"{version}"}}}}}}"#);
        ns.kubectl(&["patch", "oagent/fresh", "--type=merge", "-p", &patch]).unwrap();
        eventually("the pod serves the new card", s(2), || {
            let card = pod_admin(&ns, name(&before), "19080", ".well-known/agent-card.json")?;
            ensure(card["version"] == version, || card["version"].to_string())
        })
        .unwrap();
        println!("{version} served after {:?}", elapsed(begin));
    }
    let after = pod(&ns, "fresh").unwrap();
    assert_eq!(name(&before), name(&after));
    assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"], "nothing wrote to the pod");
    assert_eq!(restarts(&after, "outrigger"), restarts(&before, "outrigger"));
    assert!(container(&after, "agent")["ready"].as_bool().unwrap());
    let (status, _) = call(&url(&ns, "fresh"), "GetTask", &serde_json::json!({"id": "none"}), &Value::Null).unwrap();
    assert_eq!(status, 200);
}

/// Asks the control API from the client pod; status and reason.
fn ask(path: &str, token: &str) -> anyhow::Result<Value> {
    let program = r#"
import json, ssl, sys, urllib.error, urllib.request
url, token = sys.argv[1:]
context = ssl._create_unverified_context()   # whether sidecars trust it is their test
headers = {"Authorization": "Bearer " + token} if token else {}
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20, context=context)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, json.loads(answer.read() or "null")]))
"#;
    let url = format!("https://outrigger-operator.{SYSTEM}.svc:8443{path}");
    let text =
        run_with("kubectl", &["-n", "e2e-client", "exec", "-i", "client", "--", "python3", "-", &url, token], program)?;
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn the_control_api_tells_each_account_of_its_own() {
    installed();
    let ns = Namespace::new("accounts").unwrap();
    ns.apply(&agent("one", "")).unwrap();
    ns.apply(&agent("two", "")).unwrap();
    for agent in ["oagent/one", "oagent/two"] {
        ns.wait(agent, "Ready", "True", "", s(60)).unwrap();
    }
    let token = |account: &str, audience: &str| {
        let token = ns.kubectl(&["create", "token", account, "--audience", audience, "--duration=10m"]).unwrap();
        token.trim().to_owned()
    };
    let of = |account: &str| ask("/v1/live", &token(account, "outrigger.dev")).unwrap();
    for account in ["one", "two"] {
        let answer = of(account);
        assert_eq!((&answer[0], &answer[1]["card"]["name"]), (&200.into(), &account.into()), "{answer}");
    }
    for (who, answer, want) in [
        ("nobody", ask("/v1/live", "").unwrap(), (401, "NoToken")),
        ("another audience", ask("/v1/live", &token("one", "other")).unwrap(), (401, "WrongAudience")),
        ("no Agent", of("default"), (403, "NotYours")),
        (
            "a bundle of nobody's",
            ask(&format!("/v1/bundles/{}", "0".repeat(64)), &token("one", "outrigger.dev")).unwrap(),
            (403, "NotYours"),
        ),
    ] {
        assert_eq!((&answer[0], &answer[1]["reason"]), (&want.0.into(), &want.1.into()), "{who}: {answer}");
    }
    // A token of a ServiceAccount that is gone is good for a minute more at most.
    let old = token("two", "outrigger.dev");
    ns.kubectl(&["delete", "oagent/two", "--wait=true"]).unwrap();
    eventually("it is told nothing any more", s(90), || {
        let answer = ask("/v1/live", &old)?;
        ensure(answer[0] == 401 || answer[0] == 403, || answer.to_string())
    })
    .unwrap();
    let secret = kubectl(&["-n", SYSTEM, "get", "secret", "outrigger-ca", "-o", "jsonpath={.data.ca\\.crt}"]).unwrap();
    assert!(!secret.is_empty());
}
