//! The operator goes and comes back: pods work on, follow it again, and hear of what changed meanwhile.

use outrigger_e2e::{Namespace, elapsed, ensure, eventually, kubectl, now};

use crate::bed::{
    SYSTEM, agent, gauge, installed, name, operator_pods, pod, pod_admin, restarts, s, said, scrape, send, url,
};

fn connected(ns: &Namespace, pod: &str) -> anyhow::Result<bool> {
    Ok(gauge(&scrape(&ns.name, pod, 19464)?, "outrigger_control_connected") == Some(1.0))
}

fn card_is(ns: &Namespace, pod: &str, version: &str) -> anyhow::Result<()> {
    let card = pod_admin(ns, pod, "19080", ".well-known/agent-card.json")?;
    ensure(card["version"] == version, || card["version"].to_string())
}

fn patch(ns: &Namespace, version: &str) {
    let patch = format!(r#"{{"spec":{{"card":{{"version":"{version}"}}}}}}"#);
    ns.kubectl(&["patch", "oagent/steady", "--type=merge", "-p", &patch]).unwrap();
}

#[test]
fn operators_come_and_go_and_pods_follow() {
    installed();
    let ns = Namespace::new("operators").unwrap();
    ns.apply(&agent("steady", "  card: {version: 1.0.0}")).unwrap();
    ns.wait("oagent/steady", "Ready", "True", "", s(60)).unwrap();
    ns.wait("oagent/steady", "ControlConnected", "True", "", s(60)).unwrap();
    let the_pod = pod(&ns, "steady").unwrap();
    let pod_name = name(&the_pod).to_owned();

    // The leader goes; the other one takes over.
    let (_, leader) = operator_pods().unwrap();
    let leader = leader.split('_').next().unwrap().to_owned();
    kubectl(&["-n", SYSTEM, "delete", "pod", &leader, "--wait=false"]).unwrap();
    patch(&ns, "1.0.1");
    let begin = now();
    eventually("a change after the leader went", s(40), || card_is(&ns, &pod_name, "1.0.1")).unwrap();
    println!("served after {:?} under another leader", elapsed(begin));

    // All go: the agent works, and the pod says that it is not connected.
    kubectl(&["-n", SYSTEM, "scale", "deployment/outrigger-operator", "--replicas=0"]).unwrap();
    eventually("no operator is left", s(60), || {
        let (pods, _) = operator_pods()?;
        ensure(pods.is_empty(), || format!("{} operators", pods.len()))?;
        ensure(!connected(&ns, &pod_name)?, || "still connected".into())
    })
    .unwrap();
    let answer = send(&url(&ns, "steady"), "echo still here").unwrap();
    assert!(said(&answer).contains("still here"), "{answer}");
    patch(&ns, "1.0.2");
    kubectl(&["-n", SYSTEM, "scale", "deployment/outrigger-operator", "--replicas=2"]).unwrap();
    let begin = now();
    eventually("what changed meanwhile", s(90), || {
        card_is(&ns, &pod_name, "1.0.2")?;
        ensure(connected(&ns, &pod_name)?, || "not connected".into())
    })
    .unwrap();
    println!("connected and up to date {:?} after the operators were asked for again", elapsed(begin));
    kubectl(&["-n", SYSTEM, "rollout", "status", "deployment/outrigger-operator", "--timeout=90s"]).unwrap();
    ns.wait("oagent/steady", "ControlConnected", "True", "", s(90)).unwrap();
    let after = pod(&ns, "steady").unwrap();
    assert_eq!(name(&after), pod_name, "no pod was replaced");
    assert_eq!(restarts(&after, "outrigger"), 0);
    // Both replicas serve: streams spread over them or not, each has a certificate that is trusted.
    let (pods, _) = operator_pods().unwrap();
    let streams: f64 = pods
        .iter()
        .map(|p| {
            gauge(&scrape(SYSTEM, name(p), 19465).unwrap(), "outrigger_operator_control_streams").unwrap_or_default()
        })
        .sum();
    assert!(streams >= 1.0, "{streams} streams");
}
