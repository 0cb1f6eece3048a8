//! The chart's life: upgrade, rollback, test, uninstall, install again under another name.

use outrigger_e2e::{Namespace, condition, ensure, eventually, get, kubectl, run};

use crate::bed::{RELEASE, SYSTEM, agent, helm_install, installed, s, said, send, url};

#[test]
fn upgrade_rollback_uninstall_and_take_over() {
    installed();
    let ns = Namespace::new("chart").unwrap();
    ns.apply(&agent("steady", "")).unwrap();
    ns.wait("oagent/steady", "Ready", "True", "", s(90)).unwrap();
    let uid = ns.get(&["deployment/steady"]).unwrap()["metadata"]["uid"].clone();

    run("helm", &["test", RELEASE, "-n", SYSTEM, "--timeout=60s"]).unwrap();
    helm_install(RELEASE, &["--set", "replicas=1"]).unwrap();
    let deployments = || get(&["-n", SYSTEM, "get", "deployments"]).unwrap()["items"][0]["spec"]["replicas"].clone();
    assert_eq!(deployments(), 1);
    run("helm", &["rollback", RELEASE, "-n", SYSTEM, "--wait", "--timeout=120s"]).unwrap();
    assert_eq!(deployments(), 2);
    let typo = helm_install(RELEASE, &["--set", "replcas=1"]).unwrap_err().to_string();
    assert!(typo.contains("replcas"), "{typo}");

    run("helm", &["uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout=60s"]).unwrap();
    kubectl(&["get", "crd", "agents.outrigger.dev"]).expect("CRDs stay");
    assert_eq!(said(&send(&url(&ns, "steady"), "echo on").unwrap()), "on", "agents work on without the operator");
    let refused = helm_install("second", &[]).unwrap_err().to_string();
    assert!(refused.contains("invalid ownership metadata") || refused.contains("cannot be imported"), "{refused}");
    // Helm kept nothing of the failed release that would stand in the way.
    let _ = run("helm", &["uninstall", "second", "-n", SYSTEM]);
    helm_install("second", &["--take-ownership"]).unwrap();
    ns.kubectl(&["scale", "oagent/steady", "--replicas=2"]).unwrap();
    eventually("the new release works", s(60), || {
        let a = ns.get(&["oagent/steady"])?;
        ensure(a["status"]["readyReplicas"] == 2 && condition(&a, "Ready")["status"] == "True", || {
            a["status"].to_string()
        })
    })
    .unwrap();
    assert_eq!(ns.get(&["deployment/steady"]).unwrap()["metadata"]["uid"], uid, "nothing was made anew");
    run("helm", &["uninstall", "second", "-n", SYSTEM, "--wait", "--timeout=60s"]).unwrap();
    helm_install(RELEASE, &["--take-ownership"]).unwrap();
}
