//! Orders of deletion that need the whole cluster; those within a namespace are in `shared::deletions`.

use outrigger_e2e::kubectl;

use crate::bed::{RELEASE, SYSTEM, agent, helm_install, s, tool};
use crate::shared::deletions::{SKILL, filled, gone};

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
