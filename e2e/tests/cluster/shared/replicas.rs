//! Tasks outlive the process that works on them: two replicas with a database, one with a file, each killed at work.

use outrigger_e2e::{Namespace, condition, ensure, eventually};
use serde_json::{Value, json};

use crate::bed::{agent, container, installed, kill, message, pod_url, processes, ready_pods, result, s, scrape, url};
use crate::database;
use crate::follow::Follower;

/// Kills of each kind.
const ROUNDS: usize = 5;
/// What the agent counts to in a round, and its pause between two numbers.
const NUMBERS: u32 = 60;
const COUNT: &str = "count 60 0.05";
/// Events that a client reads before the kill.
const AFTER: u32 = 8;

fn counted() -> String {
    (1..=NUMBERS).fold(String::new(), |text, n| text + &n.to_string() + " ")
}

/// An Agent with two replicas that share a database, and their pods.
fn pair(ns: &Namespace, recovery: &str) -> Vec<Value> {
    database::started();
    database::secret(ns).unwrap();
    let store = format!(
        "  replicas: 2\n  turns: {{recovery: {recovery}}}\n  tasks: {{store: {{postgres: {{urlFrom: {{secretKeyRef: \
         {{name: {}, key: {}}}}}}}}}}}",
        database::SECRET,
        database::KEY
    );
    ns.apply(&agent("pair", &store)).unwrap();
    ns.wait("oagent/pair", "Ready", "True", "", s(120)).unwrap();
    ns.wait("oagent/pair", "TaskStoreShared", "True", "Database", s(30)).unwrap();
    assert_eq!(ns.get(&["service/pair"]).unwrap()["spec"]["sessionAffinity"], "None");
    both(ns)
}

/// Both pods, ready; the kubelet waits longer before each further restart of a container.
fn both(ns: &Namespace) -> Vec<Value> {
    eventually("two ready pods", s(90), || ready_pods(ns, "pair", 2)).unwrap()
}

fn kill_sidecar(pod: &Value) {
    let pids: Vec<u32> = processes(pod, "outrigger").unwrap().into_iter().map(|(pid, _)| pid).collect();
    assert!(!pids.is_empty(), "no process of {}", crate::bed::name(pod));
    kill(&pids).unwrap();
}

/// Lets a client follow a task, kills a sidecar when it is well under way, and gives what the client saw.
fn lose(plan: &Value, victim: &Value) -> Value {
    let mut follower = Follower::start(plan).unwrap();
    follower.wait_for_sign().unwrap();
    kill_sidecar(victim);
    let report = follower.report().unwrap();
    println!("{report}");
    assert_eq!(report["wrong"], json!([]), "{report}");
    assert!(!report["resumed"].as_array().unwrap().is_empty(), "the kill was seen: {report}");
    assert_eq!(report["ends"].as_array().unwrap().len(), 1, "one end: {report}");
    assert_eq!(report["ends"][0], report["stored"]["state"], "{report}");
    assert_eq!(report["text"], report["stored"]["text"], "all that was committed and nothing else: {report}");
    report
}

fn assert_failed(report: &Value) {
    assert_eq!(report["ends"][0], "TASK_STATE_FAILED", "{report}");
    let reason = report["stored"]["reason"].as_str().unwrap_or_default();
    assert!(["agent_stopped", "agent_restarted"].contains(&reason), "{report}");
    let text = report["text"].as_str().unwrap();
    assert!(text.len() > 8 && counted().starts_with(text), "{report}");
}

fn assert_complete(report: &Value) {
    assert_eq!(report["ends"][0], "TASK_STATE_COMPLETED", "{report}");
    assert_eq!(report["text"], counted(), "{report}");
}

#[test]
fn a_reader_goes_on_at_another_pod_when_its_own_is_killed() {
    installed();
    let ns = Namespace::new("viewer").unwrap();
    pair(&ns, "Fail");
    for round in 0..ROUNDS {
        let pods = both(&ns);
        let (viewer, owner) = (&pods[round % 2], &pods[(round + 1) % 2]);
        let owner = pod_url(owner);
        let plan = json!({"owner": owner, "viewer": pod_url(viewer), "others": [owner], "text": COUNT, "after": AFTER, "seconds": 60});
        assert_complete(&lose(&plan, viewer));
    }
}

/// Kills the owner of a task in each round; what the client saw.
fn owners(name: &str, recovery: &str, check: fn(&Value)) {
    installed();
    let ns = Namespace::new(name).unwrap();
    pair(&ns, recovery);
    for round in 0..ROUNDS {
        let pods = both(&ns);
        let (owner, other) = (&pods[round % 2], &pods[(round + 1) % 2]);
        let plan =
            json!({"owner": pod_url(owner), "others": [pod_url(other)], "text": COUNT, "after": AFTER, "seconds": 90});
        check(&lose(&plan, owner));
    }
    let pods = both(&ns);
    let recovered = if recovery == "Fail" { "failed" } else { "redelivered" };
    let series = format!("outrigger_a2a_tasks_recovered_total{{outcome=\"{recovered}\"}}");
    let metrics: String = pods.iter().map(|p| scrape(&ns.name, crate::bed::name(p), 19464).unwrap()).collect();
    assert!(metrics.contains(&series), "{series} in {metrics}");
}

#[test]
fn a_task_whose_owner_is_killed_fails_once() {
    owners("owner-fail", "Fail", assert_failed);
}

#[test]
fn a_task_whose_owner_is_killed_goes_on_if_the_handler_can() {
    owners("owner-again", "Redeliver", assert_complete);
}

#[test]
fn one_replica_with_a_file_keeps_its_tasks_when_its_container_is_killed() {
    installed();
    let ns = Namespace::new("file").unwrap();
    for (name, recovery) in [("fails", "Fail"), ("again", "Redeliver")] {
        ns.apply(&agent(name, &format!("  turns: {{recovery: {recovery}}}"))).unwrap();
    }
    for (name, check) in [("fails", assert_failed as fn(&Value)), ("again", assert_complete)] {
        ns.wait(&format!("oagent/{name}"), "Ready", "True", "", s(90)).unwrap();
        ns.wait(&format!("oagent/{name}"), "TaskStoreDurable", "False", "EndsWithPod", s(30)).unwrap();
        let target = url(&ns, name);
        let parked = result(&target, "SendMessage", &message("ask", None)).unwrap()["task"].clone();
        assert_eq!(parked["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{parked}");
        for restarts in 1..=2 {
            let pods = eventually("the pod", s(60), || ready_pods(&ns, name, 1)).unwrap();
            let at = pod_url(&pods[0]);
            let plan = json!({"owner": at, "others": [at], "text": COUNT, "after": AFTER, "seconds": 90});
            check(&lose(&plan, &pods[0]));
            let now = crate::bed::pod(&ns, name).unwrap();
            assert_eq!(container(&now, "outrigger")["restartCount"], restarts, "the same pod, restarted");
        }
        eventually("the pod is ready", s(60), || ready_pods(&ns, name, 1)).unwrap();
        let id = parked["id"].as_str().unwrap();
        let kept = result(&target, "GetTask", &json!({"id": id})).unwrap();
        assert_eq!(kept["status"], parked["status"], "a task that waits is not touched");
        let done = result(&target, "SendMessage", &message("salad", Some(id))).unwrap()["task"].clone();
        assert_eq!(done["status"]["state"], "TASK_STATE_COMPLETED", "{done}");
        let said = "you said salad, memo {'asked': True}";
        assert_eq!(done["artifacts"][0]["parts"][0]["text"], said, "{done}");
    }
}

#[test]
fn pods_with_stores_of_their_own_keep_their_clients() {
    installed();
    let ns = Namespace::new("own-stores").unwrap();
    ns.apply(&agent("apart", "  replicas: 2")).unwrap();
    ns.wait("oagent/apart", "Ready", "True", "", s(90)).unwrap();
    let apart = ns.wait("oagent/apart", "TaskStoreShared", "False", "OnePerPod", s(30)).unwrap();
    let words = condition(&apart, "TaskStoreShared")["message"].as_str().unwrap().to_owned();
    assert!(words.contains("tasks.store.postgres"), "it says what to do: {words}");
    assert_eq!(ns.get(&["service/apart"]).unwrap()["spec"]["sessionAffinity"], "ClientIP");
    // Each call is a connection of its own: without affinity a Service would spread them.
    let target = url(&ns, "apart");
    let id = result(&target, "SendMessage", &message("echo x", None)).unwrap()["task"]["id"].clone();
    for _ in 0..6 {
        assert_eq!(result(&target, "GetTask", &json!({"id": id})).unwrap()["id"], id);
    }
    let found: Vec<u64> = ready_pods(&ns, "apart", 2)
        .unwrap()
        .iter()
        .map(|p| result(&pod_url(p), "ListTasks", &json!({})).unwrap()["totalSize"].as_u64().unwrap())
        .collect();
    assert_eq!(found.iter().sum::<u64>(), 1, "one pod has it, the other does not: {found:?}");
    ns.kubectl(&["scale", "oagent/apart", "--replicas=1"]).unwrap();
    eventually("one replica shares with itself", s(60), || {
        let apart = ns.get(&["oagent/apart"])?;
        let shared = condition(&apart, "TaskStoreShared");
        ensure(shared["status"] == "True" && shared["reason"] == "SinglePod", || shared.to_string())
    })
    .unwrap();
}
