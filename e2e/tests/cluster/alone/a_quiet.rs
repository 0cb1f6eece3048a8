//! A quiet minute, by the API server's audit log.

use std::io::{BufRead as _, Seek as _};

use outrigger_e2e::{Namespace, elapsed, ensure, eventually, kubectl, now};
use serde_json::Value;

use crate::bed::{SYSTEM, agent, installed, run_folder, s, tool};

/// Mutating requests of the operator in the audit log from a position on, dry runs included.
fn mutations(from: u64) -> (u64, Vec<String>) {
    let mut file = std::fs::File::open(format!("{}/log/audit.jsonl", run_folder())).unwrap();
    file.seek(std::io::SeekFrom::Start(from)).unwrap();
    let user = format!("system:serviceaccount:{SYSTEM}:");
    let (mut seen, mut found) = (0, Vec::new());
    for line in std::io::BufReader::new(file).lines() {
        let Ok(event) = serde_json::from_str::<Value>(&line.unwrap()) else { continue };
        if !event["user"]["username"].as_str().unwrap_or_default().starts_with(&user) {
            continue;
        }
        seen += 1;
        let verb = event["verb"].as_str().unwrap_or_default();
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        if !["get", "list", "watch"].contains(&verb) && !["leases", "tokenreviews"].contains(&resource) {
            found.push(format!("{verb} {}", event["requestURI"]));
        }
    }
    (seen, found)
}

#[test]
fn a_quiet_minute_has_no_mutating_request_of_the_operator() {
    installed();
    eventually("the namespaces of other tests are gone", s(240), || {
        let left = kubectl(&["get", "namespaces", "-o", "name"])?;
        ensure(!left.contains("namespace/t-"), || left.clone())
    })
    .unwrap();
    let ns = Namespace::new("quiet").unwrap();
    ns.apply(&tool("t", "", "")).unwrap();
    for name in ["one", "two", "three"] {
        ns.apply(&agent(name, "  mcpServers: [{name: t}]")).unwrap();
    }
    ns.kubectl(&["autoscale", "oagent/three", "--min=1", "--max=3", "--cpu=80%"])
        .or_else(|_| ns.kubectl(&["autoscale", "oagent/three", "--min=1", "--max=3", "--cpu-percent=80"]))
        .unwrap();
    for name in ["one", "two", "three"] {
        ns.wait(&format!("oagent/{name}"), "Ready", "True", "", s(120)).unwrap();
    }
    // Quiet begins when the last write is some seconds old.
    let log = format!("{}/log/audit.jsonl", run_folder());
    let size = || std::fs::metadata(&log).map(|m| m.len()).unwrap_or_default();
    let mut from = size();
    let mut since = now();
    eventually("ten seconds without a write", s(60), || {
        let (_, writes) = mutations(from);
        if !writes.is_empty() {
            from = size();
            since = now();
        }
        ensure(elapsed(since) > s(10), || format!("{writes:?}"))
    })
    .unwrap();
    let begin = now();
    let minutes = std::env::var("QUIET_MINUTES").ok().and_then(|m| m.parse().ok()).unwrap_or(1);
    let start = size();
    eventually("the minute is over", s(60 * minutes + 5), || {
        ensure(elapsed(begin) >= s(60 * minutes), || "not yet".into())
    })
    .unwrap();
    let (seen, writes) = mutations(start);
    assert!(seen > 10, "the audit log shows the operator at all: {seen} requests");
    assert_eq!(writes, Vec::<String>::new());
}
