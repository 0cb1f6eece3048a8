use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use outrigger_crds::Agent;
use serde_json::{Value, json};

use super::*;

fn agent(replicas: i32) -> Agent {
    serde_json::from_value(json!({
        "apiVersion": "outrigger.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 7},
        "spec": {"description": "d", "replicas": replicas, "runtime": {"http": {"port": 8000}},
            "template": {"spec": {"containers": [{"name": "agent", "image": "i"}]}},
            "mcpServers": [{"name": "time"}, {"name": "files", "required": false}], "skills": [{"name": "menu"}]}
    }))
    .unwrap()
}

fn deployment(replicas: i32, ready: i32, updated: i32, conditions: &Value) -> Arc<Deployment> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "a", "generation": 3, "annotations": {"outrigger.dev/plan": "h"}},
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
            "status": {"observedGeneration": 3, "replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated, "conditions": conditions}
        }))
        .unwrap(),
    )
}

fn pod(ready: bool, status: Value) -> Pod {
    let mut status = status;
    let scheduled = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    if status.get("conditions").is_none() {
        status["conditions"] = scheduled;
    }
    serde_json::from_value(json!({"metadata": {"name": "a-1", "uid": "p1"}, "status": status})).unwrap()
}

#[allow(clippy::unnecessary_wraps)]
fn says(change: impl FnOnce(&mut Value)) -> Option<crate::facts::Fact> {
    let server = |name: &str, required: bool| json!({"name": name, "required": required, "phase": "Ready", "ready": true, "processes": 1, "crashes": 0, "tools": ["x"]});
    let mut value = json!({
        "version": "0.1.0", "phase": "Ready", "config": {"digest": "live"}, "card": {"digest": "c"}, "agent": {"ready": true},
        "servers": [server("time", true), server("files", false)],
        "skills": [{"name": "menu", "required": true, "ready": true}], "store": {"ready": true},
        "interfaces": [{"binding": "JSONRPC", "version": "1.0", "ready": true}, {"binding": "GRPC", "version": "0.3", "ready": true}]
    });
    change(&mut value);
    Some(Ok(Arc::new(serde_json::from_value(value).unwrap())))
}

fn seen(deployment: Option<Arc<Deployment>>, pods: Vec<PodView>) -> Seen {
    Seen { deployment, pods, plan_hash: Some("h".into()), live_digest: Some("live".into()), ..Seen::default() }
}

fn view(pod: Pod, fact: Option<crate::facts::Fact>) -> PodView {
    PodView { pod: Arc::new(pod), fact }
}

fn now() -> Time {
    Time("2026-01-01T00:00:00Z".parse().unwrap())
}

fn of<'a>(status: &'a AgentStatus, kind: &str) -> &'a Condition {
    super::super::find(&status.conditions, kind).unwrap()
}

fn says_of(status: &AgentStatus, kind: &str) -> (String, String) {
    let c = of(status, kind);
    (c.status.clone(), c.reason.clone())
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

#[test]
fn all_is_well() {
    let seen = seen(Some(deployment(1, 1, 1, &json!([]))), vec![view(pod(true, json!({})), says(|_| {}))]);
    let status = status(&agent(1), &seen, &now());
    for (kind, want) in [
        ("Accepted", pair("True", "Accepted")),
        ("Ready", pair("True", "PodsReady")),
        ("Progressing", pair("False", "Complete")),
        ("ToolsReady", pair("True", "AllReady")),
        ("SkillsReady", pair("True", "AllReady")),
        ("CardServed", pair("True", "Served")),
        ("TaskStoreShared", pair("True", "SinglePod")),
        ("TaskStoreDurable", pair("False", "EndsWithPod")),
        ("TaskStoreReady", pair("True", "Ready")),
        ("A2AConformant", pair("True", "AllPass")),
        ("AccessEnforced", pair("True", "Open")),
        ("PeersFound", pair("True", "NoPeers")),
        ("PushDelivered", pair("True", "NoPush")),
        ("ControlConnected", pair("Unknown", "NotTold")),
    ] {
        assert_eq!(says_of(&status, kind), want, "{kind}");
        assert_eq!(of(&status, kind).observed_generation, Some(7));
    }
    assert_eq!(status.tools.unwrap().names, ["time/x", "files/x"]);
    assert_eq!(status.sidecar_version.as_deref(), Some("0.1.0"));
    assert_eq!(status.selector.as_deref(), Some("outrigger.dev/agent=a"));
    assert_eq!((status.replicas, status.ready_replicas), (1, 1));
}

#[test]
fn the_same_again_is_equal_whenever_it_is() {
    let seen = seen(Some(deployment(3, 1, 3, &json!([]))), vec![view(pod(true, json!({})), says(|_| {}))]);
    let first = status(&agent(3), &seen, &now());
    let again = Agent { status: Some(first.clone()), ..agent(3) };
    assert_eq!(status(&again, &seen, &Time("2027-01-01T00:00:00Z".parse().unwrap())), first);
}

#[test]
fn zero_replicas_are_ready() {
    let status = status(&agent(0), &seen(Some(deployment(0, 0, 0, &json!([]))), vec![]), &now());
    assert_eq!(says_of(&status, "Ready"), pair("True", "ScaledToZero"));
    assert_eq!(says_of(&status, "ToolsReady"), pair("Unknown", "ScaledToZero"));
}

#[test]
fn many_replicas_do_not_share_tasks() {
    let status = status(&agent(3), &seen(Some(deployment(3, 3, 3, &json!([]))), vec![]), &now());
    assert_eq!(says_of(&status, "TaskStoreShared"), pair("False", "OnePerPod"));
    assert!(of(&status, "TaskStoreShared").message.contains("3 pods"));
}

#[test]
fn the_store_decides_what_tasks_outlive() {
    for (store, replicas, durable, shared) in [
        (json!({"memory": {}}), 1, pair("False", "EndsWithContainer"), pair("True", "SinglePod")),
        (json!({"sqlite": {}}), 2, pair("False", "EndsWithPod"), pair("False", "OnePerPod")),
        (
            json!({"sqlite": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}}),
            1,
            pair("True", "Volume"),
            pair("True", "SinglePod"),
        ),
        (
            json!({"postgres": {"urlFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}}),
            3,
            pair("True", "Database"),
            pair("True", "Database"),
        ),
    ] {
        let mut agent = agent(replicas);
        agent.spec.tasks = serde_json::from_value(json!({"store": store})).unwrap();
        let status = status(&agent, &seen(None, vec![]), &now());
        assert_eq!(says_of(&status, "TaskStoreDurable"), durable, "{store}");
        assert_eq!(says_of(&status, "TaskStoreShared"), shared, "{store}");
        assert_eq!(says_of(&status, "TaskStoreReady"), pair("Unknown", "NoPods"), "{store}");
    }
}

fn one_pod(ready: bool, change: impl FnOnce(&mut Value)) -> Seen {
    let d = deployment(1, i32::from(ready), 1, &json!([]));
    seen(Some(d), vec![view(pod(ready, json!({})), says(change))])
}

#[test]
fn a_store_that_does_not_work_is_told_and_an_old_sidecar_has_nothing_to_say() {
    let down = one_pod(false, |s| {
        s["store"] = json!({"ready": false, "reason": "Unreachable", "message": "connection refused"});
    });
    let told = status(&agent(1), &down, &now());
    for kind in ["Ready", "TaskStoreReady"] {
        assert_eq!(says_of(&told, kind), pair("False", "TaskStoreNotReady"), "{kind}");
        assert!(of(&told, kind).message.contains("pod a-1 does not work: connection refused (Unreachable)"), "{kind}");
    }
    let old = one_pod(true, |s| {
        s.as_object_mut().unwrap().retain(|key, _| key != "store" && key != "interfaces");
    });
    let old = status(&agent(1), &old, &now());
    for kind in ["TaskStoreReady", "A2AConformant"] {
        assert_eq!(says_of(&old, kind), pair("Unknown", "NotTold"), "{kind}");
    }
    assert_eq!(says_of(&old, "Ready"), pair("True", "PodsReady"));
}

#[test]
fn interfaces_that_fail_are_named() {
    let seen = one_pod(true, |s| {
        s["interfaces"][1] = json!({"binding": "GRPC", "version": "0.3", "ready": false, "reason": "CallFailed", "message": "no answer"});
    });
    let status = status(&agent(1), &seen, &now());
    assert_eq!(says_of(&status, "A2AConformant"), pair("False", "InterfaceFailed"));
    let message = &of(&status, "A2AConformant").message;
    assert!(message.starts_with("GRPC 0.3 of pod a-1 did not pass"), "{message}");
    assert!(message.ends_with("no answer (CallFailed)"), "{message}");
    assert_eq!(says_of(&status, "Ready"), pair("True", "PodsReady"), "the others serve");
    let untold = one_pod(true, |s| s["interfaces"][1] = json!({"binding": "GRPC", "version": "0.3", "ready": false}));
    assert_eq!(says_of(&super::status(&agent(1), &untold, &now()), "A2AConformant"), pair("Unknown", "NotTold"));
}

#[test]
fn an_agent_that_can_be_reached_past_its_sidecar() {
    let mut agent = agent(1);
    let exposed = one_pod(true, |s| s["agentExposed"] = json!(true));
    assert_eq!(says_of(&status(&agent, &exposed, &now()), "AccessEnforced"), pair("False", "AgentExposed"));
    agent.spec.access = serde_json::from_value(json!({"apiKeys": {"header": "X", "secretName": "s"}})).unwrap();
    assert_eq!(says_of(&status(&agent, &exposed, &now()), "AccessEnforced"), pair("False", "AgentExposed"));
    assert_eq!(says_of(&status(&agent, &one_pod(true, |_| {}), &now()), "AccessEnforced"), pair("True", "Enforced"));
}

#[test]
fn pods_that_do_not_hear_of_changes_are_told_of() {
    let of_pod = |control: Value| status(&agent(1), &one_pod(true, |s| s["control"] = control), &now());
    let well = of_pod(json!({"connected": true, "staleSeconds": 0, "ready": true}));
    assert_eq!(says_of(&well, "ControlConnected"), pair("True", "Connected"));
    let away = |seconds: u64| {
        let part =
            json!({"ready": false, "reason": "ControlUnreachable", "message": "no connection", "connected": false});
        let mut part = part;
        part["staleSeconds"] = json!(seconds);
        of_pod(part)
    };
    assert_eq!(says_of(&away(61), "ControlConnected"), pair("False", "ControlUnreachable"));
    assert!(of(&away(61), "ControlConnected").message.contains("no connection"));
    assert_eq!(away(61), away(3600), "nothing to write");
    assert_eq!(says_of(&away(61), "Ready"), pair("True", "PodsReady"));
    let blank = of_pod(json!({"connected": false, "staleSeconds": 5, "ready": false}));
    assert_eq!(says_of(&blank, "ControlConnected"), pair("Unknown", "NotTold"));
}

#[test]
fn push_notifications_that_were_given_up_are_told_by_magnitude() {
    let mut agent = agent(1);
    agent.spec.push = serde_json::from_value(json!({"enabled": true})).unwrap();
    let after = |count: u64| status(&agent, &one_pod(true, |s| s["pushDeadLetters"] = json!(count)), &now());
    assert_eq!(says_of(&after(0), "PushDelivered"), pair("True", "Delivered"));
    assert_eq!(says_of(&after(10), "PushDelivered"), pair("False", "GivenUp"));
    assert!(of(&after(10), "PushDelivered").message.contains("gave up 10 or more"));
    assert_eq!(after(10), after(99), "nothing to write");
    assert_ne!(after(99), after(100));
}

#[test]
fn peers_that_are_missing_or_cannot_be_seen() {
    let mut agent = agent(1);
    agent.spec.peers = serde_json::from_value(json!([{"name": "b"}, {"name": "c", "namespace": "m"}])).unwrap();
    let mut s = one_pod(true, |_| {});
    assert_eq!(says_of(&status(&agent, &s, &now()), "PeersFound"), pair("True", "AllFound"));
    s.unwatched_peers = vec!["m/c".into()];
    assert_eq!(says_of(&status(&agent, &s, &now()), "PeersFound"), pair("Unknown", "PeerNotWatched"));
    let before = status(&agent, &s, &now());
    s.peers_not_known_yet = true;
    let again = Agent { status: Some(before.clone()), ..agent.clone() };
    assert_eq!(status(&again, &s, &now()), before, "an operator that has just started");
    assert_eq!(says_of(&status(&agent, &s, &now()), "PeersFound"), pair("Unknown", "NotTold"));
    s.missing_peers = vec!["n/b".into()];
    let missing = status(&agent, &s, &now());
    assert_eq!(says_of(&missing, "PeersFound"), pair("False", "PeerNotFound"));
    assert!(of(&missing, "PeersFound").message.starts_with("Agent n/b does not exist"));
    assert_eq!(says_of(&missing, "Ready"), pair("True", "PodsReady"));
}

#[test]
fn a_pod_that_waits_for_its_volumes_names_what_must_exist() {
    let conditions = json!({"conditions": [{"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": "False"}, {"type": "Ready", "status": "False"}]});
    let s = seen(Some(deployment(1, 0, 1, &json!([]))), vec![view(pod(false, conditions), None)]);
    let mut s = s;
    let mut agent = agent(1);
    let plain = status(&agent, &s, &now());
    assert_eq!(of(&plain, "Ready").message, "0 of 1 pods are ready: Agent a is starting");
    agent.spec.access = serde_json::from_value(json!({"apiKeys": {"header": "X", "secretName": "keys"}, "jwt": [
        {"issuer": "i", "audiences": ["a"], "jwksFrom": {"configMapKeyRef": {"name": "jwks", "key": "k"}}}]}))
    .unwrap();
    s.sources = plan::sources(&agent.spec);
    let waiting = status(&agent, &s, &now());
    assert_eq!(says_of(&waiting, "Ready"), pair("False", "PodsStarting"));
    let message = &of(&waiting, "Ready").message;
    assert!(message.contains("pod a-1 waits for its volumes: ConfigMap jwks, Secret keys must exist"), "{message}");
}

#[test]
fn a_tool_in_initialize_is_named_with_its_phase() {
    let fact = says(|s| {
        s["servers"][0]["ready"] = json!(false);
        s["servers"][0]["phase"] = json!("Initialize");
        s["servers"][0]["message"] = json!("no answer yet");
    });
    let status = status(
        &agent(1),
        &seen(Some(deployment(1, 0, 1, &json!([]))), vec![view(pod(false, json!({})), fact)]),
        &now(),
    );
    for kind in ["Ready", "ToolsReady"] {
        assert_eq!(says_of(&status, kind), pair("False", "ToolNotReady"), "{kind}");
        let message = &of(&status, kind).message;
        assert!(message.contains("tool server time is in phase initialize in pod a-1: no answer yet"), "{message}");
    }
    assert_eq!(says_of(&status, "Progressing"), pair("True", "RollingOut"));
}

#[test]
fn an_optional_tool_does_not_take_the_agent_down() {
    let fact = says(|s| {
        s["servers"][1]["ready"] = json!(false);
        s["servers"][1]["phase"] = json!("CrashLoop");
        s["servers"][1]["lastExit"] = json!("exit code 3");
    });
    let status =
        status(&agent(1), &seen(Some(deployment(1, 1, 1, &json!([]))), vec![view(pod(true, json!({})), fact)]), &now());
    assert_eq!(says_of(&status, "Ready"), pair("True", "PodsReady"));
    assert_eq!(says_of(&status, "ToolsReady"), pair("False", "ToolNotReady"));
    assert!(of(&status, "ToolsReady").message.contains("files is in phase crashLoop"));
    assert!(of(&status, "ToolsReady").message.contains("exit code 3"));
}

#[test]
fn containers_that_cannot_run_are_named_with_what_to_do() {
    let waiting = |name: &str, reason: &str, message: &str, last: Value| {
        let list = if name.starts_with("outrigger") { "initContainerStatuses" } else { "containerStatuses" };
        json!({list: [{"name": name, "image": "img:1", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": reason, "message": message}}, "lastState": last}]})
    };
    let ended = |reason: &str, code: i32, message: &str| json!({"terminated": {"reason": reason, "exitCode": code, "message": message}});
    for (status_of_pod, reason, words) in [
        (
            waiting("agent", "ImagePullBackOff", "Back-off pulling", json!({})),
            "ImagePullFailed",
            vec!["container agent", "img:1", "imagePullSecrets in spec.template"],
        ),
        (
            waiting("tool-time", "ErrImagePull", "not found", json!({})),
            "ImagePullFailed",
            vec!["imagePullSecrets of MCPServer time"],
        ),
        (
            waiting(
                "tool-time",
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root",
                json!({}),
            ),
            "RunsAsRoot",
            vec!["runAsUser", "spec.securityContext of MCPServer time"],
        ),
        (
            waiting("agent", "CreateContainerConfigError", "secret \"s\" not found", json!({})),
            "ContainerConfigError",
            vec!["secret \"s\" not found"],
        ),
        (
            waiting("agent", "CrashLoopBackOff", "back-off", ended("Error", 3, "Traceback\nValueError: no\n")),
            "CrashLoop",
            vec!["container agent", "exit code 3", "ValueError: no"],
        ),
        (
            waiting("tool-time", "CrashLoopBackOff", "back-off", ended("OOMKilled", 137, "")),
            "OutOfMemory",
            vec!["limits.memory", "spec.resources of MCPServer time"],
        ),
        (
            waiting("outrigger", "CrashLoopBackOff", "back-off", ended("OOMKilled", 137, "")),
            "OutOfMemory",
            vec!["spec.sidecar.resources of the Agent"],
        ),
        (
            waiting("agent", "RunContainerError", "exec: \"x\": not found", json!({})),
            "ContainerStartFailed",
            vec!["exec: \"x\""],
        ),
        (
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]}),
            "Unschedulable",
            vec!["0/2 nodes"],
        ),
    ] {
        let status = status(
            &agent(1),
            &seen(Some(deployment(1, 0, 1, &json!([]))), vec![view(pod(false, status_of_pod), None)]),
            &now(),
        );
        assert_eq!(says_of(&status, "Ready"), pair("False", reason));
        let message = &of(&status, "Ready").message;
        for word in words {
            assert!(message.contains(word), "{reason}: {message} lacks {word}");
        }
    }
}

#[test]
fn pods_that_the_cluster_refuses() {
    for (text, reason) in [
        ("pods \"a-1\" is forbidden: exceeded quota: q, requested: limits.cpu=1", "QuotaExceeded"),
        ("pods \"a-1\" is forbidden: violates PodSecurity \"restricted:latest\"", "PodSecurityViolation"),
        ("admission webhook said no", "PodsRefused"),
    ] {
        let conditions =
            json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": text}]);
        let status = status(&agent(1), &seen(Some(deployment(1, 0, 0, &conditions)), vec![]), &now());
        assert_eq!(says_of(&status, "Ready"), pair("False", reason));
        assert!(of(&status, "Ready").message.contains(text));
    }
}

#[test]
fn references_that_are_missing() {
    let missing = |required| Missing {
        name: "time".into(),
        required,
        reason: "MCPServerNotFound",
        message: "MCPServer time is not there".into(),
    };
    let mut s = seen(Some(deployment(1, 1, 1, &json!([]))), vec![view(pod(true, json!({})), says(|_| {}))]);
    s.missing_servers = vec![missing(true)];
    let required = status(&agent(1), &s, &now());
    assert_eq!(says_of(&required, "Accepted"), pair("True", "Accepted"));
    for kind in ["Ready", "Progressing", "ToolsReady"] {
        assert_eq!(says_of(&required, kind), pair("False", "MCPServerNotFound"), "{kind}");
    }
    assert!(of(&required, "Ready").message.contains("1 pod still serves"));
    s.missing_servers = vec![missing(false)];
    let optional = status(&agent(1), &s, &now());
    assert_eq!(says_of(&optional, "Ready"), pair("True", "PodsReady"));
    assert_eq!(says_of(&optional, "ToolsReady"), pair("False", "MCPServerNotFound"));
}

#[test]
fn a_refused_manifest() {
    let mut s = seen(None, vec![]);
    s.held = Some(Held { reason: "NameConflict".into(), message: "Service a exists".into(), refused: true });
    let status = status(&agent(1), &s, &now());
    for kind in ["Accepted", "Ready", "Progressing"] {
        assert_eq!(says_of(&status, kind), pair("False", "NameConflict"), "{kind}");
    }
}

#[test]
fn configuration_on_its_way_and_refused() {
    let old = says(|s| s["config"]["digest"] = json!("old"));
    let bad = says(|s| s["config"]["error"] = json!("at limits: no"));
    let d = deployment(1, 1, 1, &json!([]));
    let pending = status(&agent(1), &seen(Some(d.clone()), vec![view(pod(true, json!({})), old)]), &now());
    assert_eq!(says_of(&pending, "CardServed"), pair("False", "ConfigPending"));
    let refused = status(&agent(1), &seen(Some(d.clone()), vec![view(pod(true, json!({})), bad)]), &now());
    assert_eq!(says_of(&refused, "CardServed"), pair("False", "ConfigRefused"));
    let silent = Some(Err("connection refused".to_owned()));
    let silent = status(&agent(1), &seen(Some(d), vec![view(pod(true, json!({})), silent)]), &now());
    assert_eq!(says_of(&silent, "ToolsReady"), pair("Unknown", "SidecarUnreachable"));
    assert_eq!(says_of(&silent, "Ready"), pair("True", "PodsReady"), "the kubelet knows");
}

#[test]
fn a_rollout_is_told_until_it_is_over() {
    let mut s = seen(Some(deployment(3, 3, 1, &json!([]))), vec![]);
    let rolling = status(&agent(3), &s, &now());
    assert_eq!(says_of(&rolling, "Ready"), pair("True", "PodsReady"));
    assert_eq!(says_of(&rolling, "Progressing"), pair("True", "RollingOut"));
    s.plan_hash = Some("newer".into());
    s.deployment = Some(deployment(3, 3, 3, &json!([])));
    assert_eq!(says_of(&status(&agent(3), &s, &now()), "Progressing"), pair("True", "RollingOut"));
    let stuck = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
    let s = seen(Some(deployment(3, 3, 1, &stuck)), vec![]);
    let stuck = status(&agent(3), &s, &now());
    assert_eq!(says_of(&stuck, "Ready"), pair("False", "ProgressDeadlineExceeded"));
    assert_eq!(says_of(&stuck, "Progressing"), pair("False", "ProgressDeadlineExceeded"));
}

#[test]
fn long_lists_of_tools_are_cut_and_counted() {
    let fact = says(|s| {
        for i in [0, 1] {
            s["servers"][i]["tools"] = json!((0..100).map(|n| format!("t{n}")).collect::<Vec<_>>());
        }
    });
    let status =
        status(&agent(1), &seen(Some(deployment(1, 1, 1, &json!([]))), vec![view(pod(true, json!({})), fact)]), &now());
    let tools = status.tools.unwrap();
    assert_eq!((tools.count, tools.names.len()), (200, 128));
}
