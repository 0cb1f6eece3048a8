//! Scaling by hand and by an autoscaler, and fields that others own.

use outrigger_e2e::{Namespace, ensure, eventually};
use serde_json::Value;

use crate::bed::{agent, client_file, installed, pods, s, url};

fn replicas(ns: &Namespace, name: &str, wanted: i64) -> anyhow::Result<Value> {
    let a = ns.get(&[&format!("oagent/{name}")])?;
    ensure(a["status"]["readyReplicas"] == wanted && a["status"]["replicas"] == wanted, || a["status"].to_string())?;
    Ok(a)
}

#[test]
fn kubectl_scale_up_to_zero_and_back() {
    installed();
    let ns = Namespace::new("scale").unwrap();
    ns.apply(&agent("worker", "")).unwrap();
    eventually("one", s(60), || replicas(&ns, "worker", 1)).unwrap();
    for n in [3, 1] {
        ns.kubectl(&["scale", "oagent/worker", &format!("--replicas={n}")]).unwrap();
        eventually(&format!("{n} replicas"), s(60), || replicas(&ns, "worker", n)).unwrap();
    }
    ns.kubectl(&["scale", "oagent/worker", "--replicas=0"]).unwrap();
    ns.wait("oagent/worker", "Ready", "True", "ScaledToZero", s(60)).unwrap();
    ns.kubectl(&["scale", "oagent/worker", "--replicas=1"]).unwrap();
    eventually("one again", s(60), || replicas(&ns, "worker", 1)).unwrap();
    assert_eq!(ns.get(&["oagent/worker"]).unwrap()["status"]["selector"], "outrigger.dev/agent=worker");
}

#[test]
fn what_others_own_stays() {
    installed();
    let ns = Namespace::new("owners").unwrap();
    ns.apply(&agent("worker", "")).unwrap();
    eventually("one", s(60), || replicas(&ns, "worker", 1)).unwrap();
    for patch in [
        r#"{"metadata": {"labels": {"team": "blue"}, "annotations": {"note": "kept"}}}"#,
        r#"{"spec": {"template": {"metadata": {"annotations": {"note": "kept"}}}}}"#,
    ] {
        ns.kubectl(&["patch", "deployment/worker", "--type=merge", "--field-manager=other", "-p", patch]).unwrap();
    }
    let before: Vec<String> = pods(&ns, "worker").unwrap().iter().map(|p| p["metadata"]["uid"].to_string()).collect();
    ns.kubectl(&["rollout", "restart", "deployment/worker"]).unwrap();
    ns.kubectl(&["rollout", "status", "deployment/worker", "--timeout=90s"]).unwrap();
    // A change of ours goes over it.
    ns.apply(&agent("worker", "").replace("Does what it is told", "Changed")).unwrap();
    ns.kubectl(&[
        "patch",
        "oagent/worker",
        "--type=merge",
        "-p",
        r#"{"spec": {"sidecar": {"resources": {"requests": {"cpu": "30m"}}}}}"#,
    ])
    .unwrap();
    ns.kubectl(&["rollout", "status", "deployment/worker", "--timeout=90s"]).unwrap();
    eventually("our change is there and theirs too", s(60), || {
        let d = ns.get(&["deployment/worker"])?;
        let template = &d["spec"]["template"];
        let sidecar =
            template["spec"]["initContainers"].as_array().and_then(|c| c.iter().find(|c| c["name"] == "outrigger"));
        let ok = d["metadata"]["labels"]["team"] == "blue"
            && d["metadata"]["annotations"]["note"] == "kept"
            && template["metadata"]["annotations"]["note"] == "kept"
            && template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"].is_string()
            && sidecar.is_some_and(|c| c["resources"]["requests"]["cpu"] == "30m");
        ensure(ok, || d["metadata"].to_string())
    })
    .unwrap();
    let after: Vec<String> = pods(&ns, "worker").unwrap().iter().map(|p| p["metadata"]["uid"].to_string()).collect();
    assert!(before.iter().all(|uid| !after.contains(uid)), "the restart made new pods");
}

#[test]
fn an_autoscaler_moves_the_agent_and_apply_does_not_reset_it() {
    installed();
    let ns = Namespace::new("hpa").unwrap();
    let manifest = agent("worker", "");
    ns.apply(&manifest).unwrap();
    eventually("one", s(60), || replicas(&ns, "worker", 1)).unwrap();
    ns.apply(
        "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker}
spec:
  scaleTargetRef: {apiVersion: outrigger.dev/v1alpha1, kind: Agent, name: worker}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 5}}
",
    )
    .unwrap();
    let target = url(&ns, "worker");
    let load = std::thread::spawn(move || client_file("e2e/fixtures/load.py", &[&target, "45", "4", "burn 60"]));
    eventually("three by load", s(120), || replicas(&ns, "worker", 3)).unwrap();
    ns.apply(&manifest).unwrap();
    assert_eq!(ns.get(&["oagent/worker"]).unwrap()["spec"]["replicas"], 3, "apply reset what the autoscaler owns");
    println!("{}", load.join().unwrap().unwrap());
    eventually("one without load", s(150), || replicas(&ns, "worker", 1)).unwrap();
}
