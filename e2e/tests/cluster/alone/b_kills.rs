//! `kill -9` of each part: what the client sees, how long it lasts, what restarts.

use outrigger_e2e::{Namespace, condition, elapsed, ensure, eventually, now, run};
use serde_json::Value;

use crate::bed::{
    agent, client_file, container, installed, kill, name, operator_pods, pod, processes, restarts, root, s, said, send,
    tool, url,
};

/// One row of the table.
struct Row {
    part: &'static str,
    /// What the load asks for while the part is killed.
    text: &'static str,
    /// What it answers when all is well.
    answer: &'static str,
    /// Failures that the client may see.
    may: &'static [&'static str],
    /// Fewest and most requests that may fail.
    least: i64,
    most: i64,
    /// Longest time without a good answer, ms.
    gap: i64,
    /// Container whose restart count grows by one; others stay.
    restarted: Option<&'static str>,
}

const ECHO: &str = "echo x";
const TOOL: &str = "tool t echo {\"text\": \"x\"}";
/// Long enough for a child to be at work at any moment.
const LONG: &str = "tool t sleep {\"seconds\": 0.5}";
/// Seconds of load per row, at [`RATE`] requests a second.
const SECONDS: &str = "10";
const RATE: &str = "5";

const SHIM: Row = Row {
    part: "shim",
    text: TOOL,
    answer: "x",
    may: &["transport", "task tool_failed"],
    least: 0,
    most: 20,
    gap: 5_000,
    restarted: Some("tool-t"),
};

/// Kubernetes takes a pod from its Service while a container of it is being restarted, whatever that container is for:
/// hence `transport` in the rows of an Agent with one replica, and in none where only a process ends.
const TABLE: &[Row] = &[
    Row {
        part: "sidecar",
        text: ECHO,
        answer: "x",
        may: &["transport"],
        least: 0,
        most: 25,
        gap: 5_000,
        restarted: Some("outrigger"),
    },
    Row {
        part: "agent",
        text: ECHO,
        answer: "x",
        may: &["transport", "task answer_incomplete", "task agent_unreachable"],
        least: 0,
        most: 15,
        gap: 5_000,
        restarted: Some("agent"),
    },
    SHIM,
    // The same for the client: the shim is the first process of its container.
    Row { part: "tool container", ..SHIM },
    Row {
        part: "tool child",
        text: LONG,
        answer: "slept",
        may: &["task tool_failed"],
        least: 1,
        most: 3,
        gap: 3_000,
        restarted: None,
    },
];

fn pids(pod: &Value, of: &str, program: &str) -> anyhow::Result<Vec<u32>> {
    let pids: Vec<u32> = processes(pod, of)?
        .into_iter()
        .filter(|(_, n)| program.is_empty() || n.starts_with(program))
        .map(|(p, _)| p)
        .collect();
    ensure(!pids.is_empty(), || format!("no {program} in {of}"))?;
    Ok(pids)
}

fn strike(part: &str, pod: &Value) -> anyhow::Result<()> {
    match part {
        "sidecar" => kill(&pids(pod, "outrigger", "")?),
        "agent" => kill(&pids(pod, "agent", "")?),
        "shim" => kill(&pids(pod, "tool-t", "outrigger-shim")?),
        "tool container" => kill(&pids(pod, "tool-t", "")?),
        "tool child" => {
            // A child lives as long as its session: keep trying until one is caught.
            let child = eventually("a child to kill", s(10), || pids(pod, "tool-t", "python3"))?;
            kill(&child[..1]).or_else(|_| kill(&eventually("a child", s(5), || pids(pod, "tool-t", "python3"))?[..1]))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn each_part_of_a_pod_comes_back() {
    installed();
    let ns = Namespace::new("kills").unwrap();
    ns.apply(&tool("t", "", "")).unwrap();
    // An Agent for each row: the kubelet waits longer before each further restart of a container.
    let victims: Vec<String> = (0..TABLE.len()).map(|i| format!("victim-{i}")).collect();
    for victim in &victims {
        ns.apply(&agent(victim, "  mcpServers: [{name: t}]")).unwrap();
    }
    let containers = ["outrigger", "agent", "tool-t"];
    let mut wrong = Vec::new();
    println!("{:22} {:>5} {:>7} {:>10} {:>12}  kinds", "part", "good", "failed", "gap ms", "recovery ms");
    for (row, victim) in TABLE.iter().zip(&victims) {
        ns.wait(&format!("oagent/{victim}"), "Ready", "True", "", s(120)).unwrap();
        let before = pod(&ns, victim).unwrap();
        let target = url(&ns, victim);
        let load = std::thread::spawn(move || client_file("e2e/fixtures/load.py", &[&target, SECONDS, RATE, row.text]));
        eventually("load is on", s(20), || {
            let text = crate::bed::scrape(&ns.name, name(&before), 19464)?;
            ensure(text.contains("outrigger_a2a_requests_total"), || text)
        })
        .unwrap();
        let begin = now();
        strike(row.part, &before).unwrap();
        if let Some(of) = row.restarted {
            eventually("it restarts", s(60), || {
                let now = pod(&ns, victim)?;
                ensure(restarts(&now, of) == restarts(&before, of) + 1 && container(&now, of)["ready"] == true, || {
                    container(&now, of).to_string()
                })
            })
            .unwrap();
        }
        eventually("it answers", s(60), || {
            let answer = said(&send(&url(&ns, victim), row.text)?);
            ensure(answer == row.answer, || answer.clone())
        })
        .unwrap();
        let recovery = (elapsed(begin)).as_millis();
        let report: Value = serde_json::from_str(&load.join().unwrap().unwrap()).unwrap();
        println!(
            "{:22} {:>5} {:>7} {:>10} {:>12}  {}",
            row.part,
            report["good"].to_string(),
            report["failed"].to_string(),
            report["longestGapMs"].to_string(),
            recovery,
            report["kinds"]
        );
        let after = pod(&ns, victim).unwrap();
        for of in containers {
            let wanted = restarts(&before, of) + i64::from(row.restarted == Some(of));
            if restarts(&after, of) != wanted {
                wrong.push(format!("{}: {of} restarted {} times, not {wanted}", row.part, restarts(&after, of)));
            }
        }
        let bad: Vec<&String> =
            report["kinds"].as_object().unwrap().keys().filter(|k| !row.may.iter().any(|m| k.starts_with(m))).collect();
        if !bad.is_empty()
            || report["failed"].as_i64() > Some(row.most)
            || report["longestGapMs"].as_i64() > Some(row.gap)
        {
            wrong.push(format!(
                "{}: {report}, may {:?}, {} to {}, within {} ms",
                row.part, row.may, row.least, row.most, row.gap
            ));
        }
        if recovery > 10_000 {
            wrong.push(format!("{}: recovery took {recovery} ms", row.part));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_leader_and_a_kubelet_may_die() {
    installed();
    let ns = Namespace::new("kill-control").unwrap();
    ns.apply(&agent("calm", "")).unwrap();
    ns.wait("oagent/calm", "Ready", "True", "", s(90)).unwrap();
    let target = url(&ns, "calm");
    let load = std::thread::spawn(move || client_file("e2e/fixtures/load.py", &[&target, "25", "5", ECHO]));
    let (pods, leader) = operator_pods().unwrap();
    let victim = pods.iter().find(|p| leader.starts_with(name(p))).unwrap_or_else(|| panic!("no pod of {leader}"));
    kill(&pids(victim, "operator", "").unwrap()).unwrap();
    let begin = now();
    ns.kubectl(&["annotate", "oagent/calm", "touched=yes"]).unwrap();
    ns.kubectl(&["scale", "oagent/calm", "--replicas=2"]).unwrap();
    eventually("another leader, or the same again, scales", s(40), || {
        let calm = ns.get(&["oagent/calm"])?;
        ensure(calm["status"]["readyReplicas"] == 2, || calm["status"].to_string())
    })
    .unwrap();
    println!("a change was carried out {:?} after the leader was killed", elapsed(begin));
    let fault = format!("{}/e2e/cluster/fault", root());
    run(&fault, &["kill", "kubelet-n2"]).unwrap();
    let report = load.join().unwrap();
    run(&fault, &["start", "kubelet-n2"]).unwrap();
    let report: Value = serde_json::from_str(&report.unwrap()).unwrap();
    eventually("the node is back", s(60), || {
        let node = outrigger_e2e::get(&["get", "node", "n2"])?;
        ensure(condition(&node, "Ready")["status"] == "True", || node["status"]["conditions"].to_string())
    })
    .unwrap();
    assert_eq!(report["failed"], 0, "{report}");
}
