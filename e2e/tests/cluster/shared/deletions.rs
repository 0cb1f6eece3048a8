//! Orders of deletion within a namespace, each over within 60 s; objects that are not ours remain. Those that need the
//! whole cluster are in `alone::c_deletions`.

use outrigger_e2e::{Namespace, condition, elapsed, ensure, eventually, kubectl, now};

use crate::bed::{agent, installed, s, tool};

pub const SKILL: &str = "
apiVersion: outrigger.dev/v1alpha1
kind: Skill
metadata: {name: menu}
spec: {source: {inline: {files: [{path: SKILL.md, content: \"---\\nname: menu\\ndescription: The menu\\n---\\n\"}]}}}
";

pub fn filled(name: &str) -> Namespace {
    installed();
    let ns = Namespace::new(name).unwrap();
    ns.kubectl(&["create", "configmap", "foreign", "--from-literal=a=b"]).unwrap();
    ns.apply(SKILL).unwrap();
    ns.apply(&tool("t", "", "")).unwrap();
    ns.apply(&agent("a", "  mcpServers: [{name: t}]\n  skills: [{name: menu}]")).unwrap();
    ns.wait("oagent/a", "Ready", "True", "", s(90)).unwrap();
    ns
}

/// Waits until nothing of ours is left in the namespace.
pub fn gone(ns: &Namespace) {
    eventually("nothing of ours is left", s(60), || {
        let kinds = "deployments,replicasets,pods,services,serviceaccounts,configmaps";
        let left = ns.kubectl(&["get", kinds, "-l", "app.kubernetes.io/managed-by=outrigger", "-o", "name"])?;
        ensure(left.is_empty(), || left.clone())
    })
    .unwrap();
    ns.kubectl(&["get", "configmap", "foreign"]).expect("what is not ours remains");
}

#[test]
fn order_1_agent_first() {
    let ns = filled("del-agent");
    ns.kubectl(&["delete", "oagent/a", "--timeout=60s"]).unwrap();
    ns.kubectl(&["delete", "omcp/t", "oskill/menu", "--timeout=60s"]).unwrap();
    gone(&ns);
}

#[test]
fn order_2_what_it_uses_first() {
    let ns = filled("del-used");
    ns.kubectl(&["delete", "omcp/t", "oskill/menu", "--timeout=60s"]).unwrap();
    eventually("the agent says so and stays", s(30), || {
        let a = ns.get(&["oagent/a"])?;
        ensure(condition(&a, "ToolsReady")["status"] == "False" && a["status"]["readyReplicas"] == 1, || {
            a["status"].to_string()
        })
    })
    .unwrap();
    ns.kubectl(&["delete", "oagent/a", "--timeout=60s"]).unwrap();
    gone(&ns);
}

#[test]
fn order_3_orphaned() {
    let ns = filled("del-orphan");
    ns.kubectl(&["delete", "oagent/a", "--cascade=orphan", "--timeout=60s"]).unwrap();
    eventually("the Deployment stays without an owner", s(30), || {
        let d = ns.get(&["deployment/a"])?;
        ensure(d["metadata"]["ownerReferences"].is_null() && d["status"]["readyReplicas"] == 1, || {
            d["metadata"].to_string()
        })
    })
    .unwrap();
    ns.kubectl(&["delete", "deployment/a", "service/a", "service/a-peers", "serviceaccount/a", "--timeout=60s"])
        .unwrap();
    ns.kubectl(&["delete", "configmaps", "-l", "outrigger.dev/agent=a", "--timeout=60s"]).unwrap();
    ns.kubectl(&["delete", "omcp/t", "oskill/menu", "--timeout=60s"]).unwrap();
    gone(&ns);
}

#[test]
fn order_4_namespace_first() {
    let ns = filled("del-namespace");
    // Kubernetes looks at a namespace again after half of the longest grace period in it, whether the pods took it or
    // not: 76 s with the default time limit of a turn.
    let patch = r#"{"spec": {"limits": {"turnTimeout": "60s"}}}"#;
    ns.kubectl(&["patch", "oagent/a", "--type=merge", "-p", patch]).unwrap();
    ns.kubectl(&["rollout", "status", "deployment/a", "--timeout=60s"]).unwrap();
    eventually("only new pods", s(60), || {
        let pods = ns.get(&["pods"])?;
        let old = |p: &serde_json::Value| p["spec"]["terminationGracePeriodSeconds"] != 90;
        ensure(!pods["items"].as_array().is_none_or(|all| all.iter().any(old)), || pods.to_string())
    })
    .unwrap();
    let begin = now();
    kubectl(&["delete", "namespace", &ns.name, "--wait=false"]).unwrap();
    eventually("no pod is left", s(30), || {
        let left = ns.kubectl(&["get", "pods", "-o", "name"])?;
        ensure(left.is_empty(), || left.clone())
    })
    .unwrap();
    println!("pods gone after {:?}", elapsed(begin));
    kubectl(&["wait", "--for=delete", &format!("namespace/{}", ns.name), "--timeout=60s"]).unwrap();
    println!("namespace gone after {:?}", elapsed(begin));
}
