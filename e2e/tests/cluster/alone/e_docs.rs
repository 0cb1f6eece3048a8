//! Documents tell the truth: metrics are those of a live scrape, shell blocks run, examples are applied.

use std::collections::BTreeSet;

use outrigger_e2e::{Namespace, kubectl, run_with};

use crate::bed::{SYSTEM, client_file, installed, name, operator_pods, pods, root, s, scrape, url};

/// Names of the metric families in a scrape.
fn families(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|l| l.strip_prefix("# TYPE "))
        .filter_map(|l| l.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn metrics_are_documented_and_bounded() {
    installed();
    let ns = Namespace::new("metrics").unwrap();
    ns.kubectl(&["apply", "-f", &format!("{}/examples/burger-seller/", root())]).unwrap();
    ns.wait("oagent/burger-seller", "Ready", "True", "", s(90)).unwrap();
    client_file("examples/burger-seller/order.py", &[&url(&ns, "burger-seller")]).unwrap();
    let mut found = BTreeSet::new();
    for pod in pods(&ns, "burger-seller").unwrap() {
        let text = scrape(&ns.name, name(&pod), 19464).unwrap();
        for series in [
            "outrigger_a2a_requests_total{",
            "method=\"SendStreamingMessage\"",
            "outrigger_mcp_",
            "outrigger_build_info",
        ] {
            assert!(text.contains(series), "{series} is not in\n{text}");
        }
        found.extend(families(&text));
    }
    let (operators, _) = operator_pods().unwrap();
    for pod in operators {
        found.extend(families(&scrape(SYSTEM, name(&pod), 19465).unwrap()));
    }
    let document = std::fs::read_to_string(format!("{}/docs/metrics.md", root())).unwrap();
    let documented: BTreeSet<String> = document
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split(['`', '{']).next())
        .map(str::to_owned)
        .collect();
    let ours: BTreeSet<String> = found.iter().filter(|n| n.starts_with("outrigger_")).cloned().collect();
    let missing: Vec<_> = ours.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    // A counter with labels shows once it was counted; the document marks those with "once".
    let invented: Vec<_> = documented
        .difference(&ours)
        .filter(|n| !document.lines().any(|l| l.contains(&format!("`{n}`")) && l.contains("(once)")))
        .collect();
    assert!(invented.is_empty(), "documented and never scraped: {invented:?}");
    assert!(ours.len() > 25, "{ours:?}");
}

/// The `sh` blocks of a document, in order.
fn blocks(path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{}/{path}", root())).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.trim()) {
            (None, "```sh") => open = Some(String::new()),
            (Some(block), "```") => {
                blocks.push(std::mem::take(block));
                open = None;
            }
            (Some(block), _) => {
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn shell_blocks_of_the_documents_run() {
    installed();
    // Documents begin on a cluster without Outrigger.
    for document in ["docs/quickstart.md", "docs/install.md", "docs/gitops.md", "docs/troubleshooting.md"] {
        let script = blocks(document).join("\n");
        if script.is_empty() {
            continue;
        }
        let _ = outrigger_e2e::run("helm", &["uninstall", "outrigger", "-n", SYSTEM, "--wait", "--timeout=60s"]);
        let program = format!("set -euo pipefail\ncd {}\n{script}", root());
        if let Err(e) = run_with("bash", &["-s"], &program) {
            panic!("{document}: {e}");
        }
    }
    crate::bed::helm_install(crate::bed::RELEASE, &["--take-ownership"]).unwrap();
}

#[test]
fn every_example_is_accepted() {
    installed();
    let mut checked = 0;
    let mut folders = vec![std::path::PathBuf::from(format!("{}/examples", root()))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                if text
                    .lines()
                    .any(|l| l.starts_with("apiVersion: outrigger.dev/") || l.starts_with("apiVersion: autoscaling/"))
                {
                    run_with("kubectl", &["apply", "--dry-run=server", "--validate=strict", "-f", "-"], &text)
                        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= 3, "{checked} examples");
}

#[test]
fn the_demo_runs_on_a_cluster_that_is_there() {
    installed();
    let context = kubectl(&["config", "current-context"]).unwrap();
    let said = outrigger_e2e::run("make", &["-C", root(), "demo", &format!("CONTEXT={}", context.trim())]).unwrap();
    assert!(said.contains("TASK_STATE_COMPLETED") && said.contains("Pick it up at"), "{said}");
    assert!(said.matches("=== ").count() > 10, "each stage prints its name and time: {said}");
    kubectl(&["delete", "-f", &format!("{}/examples/burger-seller/", root()), "--wait=false"]).unwrap();
}
