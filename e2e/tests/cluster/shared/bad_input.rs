//! Mistakes that only the cluster can show: each is a condition whose message tells what to do, and heals.

use std::time::Duration;

use outrigger_e2e::{Namespace, condition, ensure, eventually};
use serde_json::Value;

use crate::bed::{agent, installed, pod, s, said, send, tool, url};

/// Waits until the condition is False with the reason and all words in its message.
fn refused(ns: &Namespace, what: &str, kind: &str, reason: &str, words: &[&str], within: Duration) -> Value {
    eventually(&format!("{what}: {kind} {reason}"), within, || {
        let value = ns.get(&[what])?;
        let c = condition(&value, kind).clone();
        let message = c["message"].as_str().unwrap_or_default();
        let fits = c["status"] == "False" && c["reason"] == reason && words.iter().all(|w| message.contains(w));
        ensure(fits, || c.to_string())?;
        Ok(value)
    })
    .unwrap()
}

#[test]
fn a_reference_to_nothing_is_named_and_heals() {
    installed();
    let ns = Namespace::new("missing").unwrap();
    ns.apply(&agent("lonely", "  mcpServers: [{name: ghost}]")).unwrap();
    refused(&ns, "oagent/lonely", "Ready", "MCPServerNotFound", &["ghost"], s(30));
    assert_eq!(
        ns.kubectl(&["get", "deployments", "-o", "name"]).unwrap(),
        "",
        "no first Deployment without a required server"
    );
    ns.apply(&tool("ghost", "", "")).unwrap();
    ns.wait("oagent/lonely", "Ready", "True", "", s(90)).unwrap();
    ns.kubectl(&["delete", "omcp/ghost"]).unwrap();
    refused(&ns, "oagent/lonely", "ToolsReady", "MCPServerNotFound", &["ghost"], s(30));
    assert_eq!(said(&send(&url(&ns, "lonely"), "tool ghost echo {\"text\": \"still\"}").unwrap()), "still");
}

#[test]
fn a_taken_name_is_left_alone() {
    installed();
    let ns = Namespace::new("taken").unwrap();
    ns.kubectl(&["create", "service", "clusterip", "worker", "--tcp=80:80"]).unwrap();
    ns.apply(&agent("worker", "")).unwrap();
    refused(&ns, "oagent/worker", "Ready", "NameConflict", &["Service", "worker"], s(30));
    assert_eq!(ns.get(&["service/worker"]).unwrap()["spec"]["ports"][0]["port"], 80);
    assert_eq!(ns.kubectl(&["get", "deployments", "-o", "name"]).unwrap(), "");
    ns.kubectl(&["delete", "service/worker"]).unwrap();
    ns.wait("oagent/worker", "Ready", "True", "", s(90)).unwrap();
}

#[test]
fn tools_that_cannot_start_say_why() {
    installed();
    let ns = Namespace::new("bad-tools").unwrap();
    let mut no_command = tool("no-command", "", "");
    no_command = no_command.replace("  command: [python3, -m, tool]\n  args: []\n", "");
    ns.apply(&no_command).unwrap();
    refused(&ns, "omcp/no-command", "Accepted", "CommandRequired", &["spec.command"], s(30));
    ns.apply(&tool("no-program", "", "").replace("[python3, -m, tool]", "[/no/such/program]")).unwrap();
    ns.apply(&tool("quitter", "--exit, \"7\"", "")).unwrap();
    // An image that names no user, and a user that is root.
    ns.apply(&tool("as-root", "", "").replace("e2e-tool:e2e", "coredns:e2e")).unwrap();
    ns.apply(&tool("to-root", "", "  securityContext: {runAsUser: 0}")).unwrap();
    ns.apply(&tool("banner", "--banner", "")).unwrap();
    for (name, server) in [
        ("a", "no-program"),
        ("b", "quitter"),
        ("c", "as-root"),
        ("f", "to-root"),
        ("d", "banner"),
        ("e", "no-command"),
    ] {
        ns.apply(&agent(name, &format!("  mcpServers: [{{name: {server}}}]"))).unwrap();
    }
    let ready = |agent: &str, words: &[&str]| {
        eventually(&format!("{agent}: {words:?}"), s(90), || {
            let value = ns.get(&[&format!("oagent/{agent}")])?;
            let c = condition(&value, "Ready").clone();
            let message = c["message"].as_str().unwrap_or_default();
            ensure(c["status"] == "False" && words.iter().all(|w| message.contains(w)), || c.to_string())
        })
        .unwrap();
    };
    ready("a", &["no-program", "/no/such/program"]);
    ready("b", &["quitter", "exit code 7"]);
    ready("c", &["tool-as-root", "set runAsUser"]);
    ready("f", &["tool-to-root", "set runAsUser"]);
    ready("e", &["no-command"]);
    ns.wait("oagent/d", "Ready", "True", "", s(60)).unwrap();
    assert_eq!(said(&send(&url(&ns, "d"), "tool banner echo {\"text\": \"hi\"}").unwrap()), "hi");
    for agent in ["a", "b"] {
        let pod = pod(&ns, agent).unwrap();
        for container in ["outrigger", "agent"] {
            assert_eq!(crate::bed::restarts(&pod, container), 0, "{container} of {agent}");
        }
    }
}

#[test]
fn an_agent_that_does_not_answer_is_named() {
    installed();
    let ns = Namespace::new("bad-agent").unwrap();
    ns.apply(&agent("deaf", "").replace("port: 8000", "port: 8001")).unwrap();
    refused(&ns, "oagent/deaf", "Ready", "AgentNotAnswering", &["8001"], s(60));
    ns.apply(&agent("no-image", "").replace("e2e-agent:e2e", "e2e-agent:none")).unwrap();
    refused(&ns, "oagent/no-image", "Ready", "ImagePullFailed", &["agent", "e2e-agent:none"], s(60));
}
