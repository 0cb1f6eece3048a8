//! Tool containers: a failing liveness probe, a tool added under load, processes.

use outrigger_e2e::{Namespace, ensure, eventually};
use serde_json::Value;

use crate::bed::{agent, client_file, installed, name, pod, processes, restarts, s, said, scrape, send, tool, url};

#[test]
fn a_failing_liveness_probe_touches_only_its_own_tool() {
    installed();
    let ns = Namespace::new("live-probe").unwrap();
    let probe = "  livenessProbe: {exec: {command: [python3, -c, \"import os, sys; sys.exit(os.path.exists('/tmp/sick'))\"]}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 1}";
    ns.apply(&tool("frail", "", probe)).unwrap();
    ns.apply(&tool("firm", "", "")).unwrap();
    ns.apply(&agent("both", "  mcpServers: [{name: frail}, {name: firm}]")).unwrap();
    ns.wait("oagent/both", "Ready", "True", "", s(90)).unwrap();
    let before = pod(&ns, "both").unwrap();
    // To the pod itself: Kubernetes counts a container that is being restarted as not ready, whatever it is, and takes
    // the pod from the Service for that second. What the sidecar says of the pod must not move.
    let target = format!("http://{}:19080", before["status"]["podIP"].as_str().unwrap());
    let load = std::thread::spawn(move || {
        client_file("e2e/fixtures/load.py", &[&target, "12", "5", "tool firm echo {\"text\": \"x\"}"])
    });
    ns.kubectl(&["exec", name(&before), "-c", "tool-frail", "--", "python3", "-c", "open('/tmp/sick', 'w')"]).unwrap();
    eventually("the container restarts", s(60), || {
        let now = pod(&ns, "both")?;
        assert!(
            scrape(&ns.name, name(&now), 19464)?.contains("\noutrigger_ready 1\n"),
            "the sidecar's readiness moved"
        );
        ensure(restarts(&now, "tool-frail") >= 1, || now["status"].to_string())
    })
    .unwrap();
    let report: Value = serde_json::from_str(&load.join().unwrap().unwrap()).unwrap();
    assert_eq!(report["failed"], 0, "{report}");
    let after = pod(&ns, "both").unwrap();
    for other in ["tool-firm", "agent", "outrigger"] {
        assert_eq!(restarts(&after, other), 0, "{other}");
    }
    eventually("the tool works again", s(30), || {
        let answer = said(&send(&url(&ns, "both"), "tool frail echo {\"text\": \"well\"}")?);
        ensure(answer == "well", || answer.clone())
    })
    .unwrap();
}

#[test]
fn adding_a_tool_under_load_fails_no_request() {
    installed();
    let ns = Namespace::new("add-tool").unwrap();
    ns.apply(&tool("first", "", "")).unwrap();
    ns.apply(&tool("second", "", "")).unwrap();
    ns.apply(&agent("busy", "  replicas: 2\n  mcpServers: [{name: first}]")).unwrap();
    eventually("two replicas", s(90), || {
        let a = ns.get(&["oagent/busy"])?;
        ensure(a["status"]["readyReplicas"] == 2, || a["status"].to_string())
    })
    .unwrap();
    let target = url(&ns, "busy");
    let load = std::thread::spawn(move || client_file("e2e/fixtures/load.py", &[&target, "40", "10", "sleep 0.2"]));
    ns.apply(&agent("busy", "  replicas: 2\n  mcpServers: [{name: first}, {name: second}]")).unwrap();
    ns.kubectl(&["rollout", "status", "deployment/busy", "--timeout=90s"]).unwrap();
    ns.wait("oagent/busy", "Ready", "True", "", s(60)).unwrap();
    let report: Value = serde_json::from_str(&load.join().unwrap().unwrap()).unwrap();
    println!("{report}");
    assert_eq!(report["failed"], 0, "{report}");
    assert!(report["good"].as_i64().unwrap() > 200, "{report}");
    assert_eq!(said(&send(&url(&ns, "busy"), "tool second echo {\"text\": \"new\"}").unwrap()), "new");
}

#[test]
fn children_and_grandchildren_end_with_their_session() {
    installed();
    let ns = Namespace::new("children").unwrap();
    ns.apply(&tool("forks", "", "  process: {sharing: PerSession}")).unwrap();
    ns.apply(&agent("parent", "  mcpServers: [{name: forks}]")).unwrap();
    ns.wait("oagent/parent", "Ready", "True", "", s(90)).unwrap();
    for _ in 0..3 {
        assert_eq!(said(&send(&url(&ns, "parent"), "tool forks fork").unwrap()), "forked");
    }
    eventually("only the shim is left", s(20), || {
        let left = processes(&pod(&ns, "parent")?, "tool-forks")?;
        ensure(left.len() == 1 && left[0].1.starts_with("outrigger-shim"), || format!("{left:?}"))
    })
    .unwrap();
}
