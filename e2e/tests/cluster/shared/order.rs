//! The main job: the burger seller of the examples, ordered from with the stock A2A client.

use outrigger_e2e::{Namespace, condition, elapsed, ensure, eventually, now};
use serde_json::Value;

use crate::bed::{agent, client_file, installed, name, pods, restarts, root, s, said, send, tool, url};

#[test]
fn three_replicas_are_ready_in_a_minute_and_sell_a_burger() {
    installed();
    let ns = Namespace::new("order").unwrap();
    let begin = now();
    ns.kubectl(&["apply", "-f", &format!("{}/examples/burger-seller/", root())]).unwrap();
    ns.kubectl(&["scale", "oagent/burger-seller", "--replicas=3"]).unwrap();
    let seller = eventually("three ready replicas", s(60).saturating_sub(elapsed(begin)), || {
        let seller = ns.get(&["oagent/burger-seller"])?;
        ensure(condition(&seller, "Ready")["status"] == "True" && seller["status"]["readyReplicas"] == 3, || {
            format!("{}", seller["status"])
        })?;
        Ok(seller)
    })
    .unwrap();
    println!("three replicas ready after {:?}", elapsed(begin));
    let nodes: std::collections::BTreeSet<String> =
        pods(&ns, "burger-seller").unwrap().iter().map(|p| p["spec"]["nodeName"].to_string()).collect();
    assert_eq!(nodes.len(), 2, "the replicas stand on both nodes: {nodes:?}");
    assert_eq!(seller["status"]["url"], format!("{}/", url(&ns, "burger-seller")));
    assert_eq!(seller["status"]["tools"]["count"], seller["status"]["tools"]["names"].as_array().unwrap().len());
    assert!(seller["status"]["tools"]["names"].to_string().contains("time/get_current_time"));

    let said = client_file("examples/burger-seller/order.py", &[&url(&ns, "burger-seller")]).unwrap();
    println!("{said}");
    assert!(said.contains("17.00"), "two cheeseburgers: {said}");
    assert!(said.to_lowercase().contains("pick"), "a pick-up time: {said}");

    // The same as a stream, over each binding that the card offers; gRPC has a port of the Service to itself.
    for (binding, port) in [("JSONRPC", ":8080"), ("HTTP+JSON", ":8080"), ("GRPC", ":8081")] {
        let words = [&url(&ns, "burger-seller"), binding, "I'd like two cheeseburgers", "yes"];
        let said = client_file("e2e/fixtures/stream_client.py", &words).unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert!(said["address"].as_str().unwrap().trim_end_matches('/').ends_with(port), "{binding}: {said}");
        assert!(said["result"].as_str().unwrap().contains("17.00"), "{binding}: {said}");
        let events = said["events"].as_array().unwrap();
        assert_eq!(events[0][0], "task", "{binding}: {said}");
        let asked = events.iter().position(|e| e[1] == "TASK_STATE_INPUT_REQUIRED").expect("a question");
        assert!(asked < events.len() - 1 && events.last().unwrap()[1] == "TASK_STATE_COMPLETED", "{binding}: {said}");
    }

    for (what, ready) in [("oagent/burger-seller", "Ready"), ("omcp/time", "Ready"), ("oskill/burger-menu", "Ready")] {
        ns.wait(what, ready, "True", "", s(30)).unwrap();
    }
    let time = eventually("the server's instances", s(30), || {
        let time = ns.get(&["omcp/time"])?;
        ensure(time["status"]["readyInstances"] == 3, || time["status"].to_string())?;
        Ok(time)
    })
    .unwrap();
    assert_eq!(time["status"]["agents"], 1);
    assert!(time["status"]["serverInfo"].as_str().unwrap().contains("time"), "{}", time["status"]);
    let table = ns.kubectl(&["get", "oagent,omcp,oskill"]).unwrap();
    println!("{table}");
    for pod in pods(&ns, "burger-seller").unwrap() {
        for container in ["outrigger", "agent", "tool-time"] {
            assert_eq!(restarts(&pod, container), 0, "{container} of {}", name(&pod));
        }
    }
}

#[test]
fn a_tool_that_blocks_in_initialize_is_named_with_its_phase() {
    installed();
    let ns = Namespace::new("gate").unwrap();
    ns.apply(&tool("slow", "--gate, /tmp/gate", "")).unwrap();
    ns.apply(&agent("waiter", "  mcpServers: [{name: slow}]")).unwrap();
    let waiting = eventually("Ready=False names server and phase", s(60), || {
        let waiter = ns.get(&["oagent/waiter"])?;
        let ready = condition(&waiter, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ensure(ready["status"] == "False" && message.contains("slow") && message.contains("initialize"), || {
            ready.to_string()
        })?;
        Ok(waiter)
    })
    .unwrap();
    assert_eq!(condition(&waiting, "ToolsReady")["status"], "False");
    assert_eq!(condition(&ns.get(&["omcp/slow"]).unwrap(), "Ready")["status"], "False");
    let pod = name(&pods(&ns, "waiter").unwrap()[0]).to_owned();
    ns.kubectl(&["exec", &pod, "-c", "tool-slow", "--", "python3", "-c", "open('/tmp/gate', 'w')"]).unwrap();
    let begin = now();
    ns.wait("oagent/waiter", "Ready", "True", "", s(5)).unwrap();
    println!("ready {:?} after the release", elapsed(begin));
    assert_eq!(said(&send(&url(&ns, "waiter"), "tool slow echo {\"text\": \"hi\"}").unwrap()), "hi");
    ns.wait("omcp/slow", "Ready", "True", "", s(10)).unwrap();
}
