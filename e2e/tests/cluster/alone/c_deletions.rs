//! Six orders of deletion, each over within 60 s; objects that are not ours remain.

use outrigger_e2e::{Namespace, condition, elapsed, ensure, eventually, kubectl, now};

use crate::bed::{RELEASE, SYSTEM, agent, helm_install, installed, s, tool};

const SKILL: &str = "
apiVersion: outrigger.dev/v1alpha1
kind: Skill
metadata: {name: menu}
spec: {source: {inline: {files: [{path: SKILL.md, content: \"---\\nname: menu\\ndescription: The menu\\n---\\n\"}]}}}
";

fn filled(name: &str) -> Namespace {
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
fn gone(ns: &Namespace) {
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
    ns.kubectl(&["delete", "deployment/a", "service/a", "serviceaccount/a", "--timeout=60s"]).unwrap();
    ns.kubectl(&["delete", "configmaps", "-l", "outrigger.dev/agent=a", "--timeout=60s"]).unwrap();
    ns.kubectl(&["delete", "omcp/t", "oskill/menu", "--timeout=60s"]).unwrap();
    gone(&ns);
}

#[test]
fn order_4_namespace_first() {
    let ns = filled("del-namespace");
    let begin = now();
    // Pods drain within their grace period: the sidecar needs 5 s of it when nothing is at work.
    kubectl(&["delete", "namespace", &ns.name, "--timeout=60s"]).unwrap();
    println!("namespace gone after {:?}", elapsed(begin));
}

#[test]
fn order_5_operator_first() {
    let ns = filled("del-operator");
    outrigger_e2e::run("helm", &["uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout=60s"]).unwrap();
    kubectl(&["get", "crd", "agents.outrigger.dev", "mcpservers.outrigger.dev", "skills.outrigger.dev"])
        .expect("CRDs stay");
    ns.get(&["oagent/a"]).expect("resources stay");
    ns.get(&["deployment/a"]).expect("and what was made of them");
    ns.kubectl(&["delete", "oagent/a", "omcp/t", "oskill/menu", "--timeout=60s"]).unwrap();
    gone(&ns);
    helm_install(RELEASE, &[]).unwrap();
}

#[test]
fn order_6_crds_first() {
    let ns = filled("del-crds");
    let crds = ["agents.outrigger.dev", "mcpservers.outrigger.dev", "skills.outrigger.dev"];
    for crd in crds {
        kubectl(&["delete", "crd", crd, "--timeout=60s"]).unwrap();
    }
    gone(&ns);
    helm_install(RELEASE, &[]).unwrap();
    for crd in crds {
        kubectl(&["wait", "--for=condition=Established", &format!("crd/{crd}"), "--timeout=60s"]).unwrap();
    }
    // The operator that saw its kinds vanish works again.
    ns.apply(SKILL).unwrap();
    ns.apply(&tool("t", "", "")).unwrap();
    ns.apply(&agent("a", "  mcpServers: [{name: t}]\n  skills: [{name: menu}]")).unwrap();
    ns.wait("oagent/a", "Ready", "True", "", s(120)).unwrap();
}
