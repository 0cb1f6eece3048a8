//! Calling other agents: the concierge of the examples compares two sellers and orders from one.

use outrigger_e2e::{Namespace, ensure, eventually, run_with};
use serde_json::Value;

use crate::bed::{client_file, installed, name, pod, pods, root, s, scrape, url};

/// Port of a sidecar's metrics.
const ADMIN: u16 = 19464;

#[test]
fn the_concierge_compares_two_sellers_and_orders_from_the_cheaper_one() {
    installed();
    let ns = Namespace::new("concierge").unwrap();
    let examples = format!("{}/examples", root());
    ns.kubectl(&["apply", "-f", &format!("{examples}/burger-seller/time.yaml")]).unwrap();
    ns.kubectl(&["apply", "-f", &format!("{examples}/burger-concierge/")]).unwrap();
    ns.kubectl(&["scale", "oagent/burger-station", "--replicas=2"]).unwrap();
    for agent in ["burger-harbour", "burger-station", "burger-concierge"] {
        ns.wait(&format!("oagent/{agent}"), "Ready", "True", "", s(120)).unwrap();
    }
    eventually("two stations", s(60), || {
        let station = ns.get(&["oagent/burger-station"])?;
        ensure(station["status"]["readyReplicas"] == 2, || station["status"].to_string())
    })
    .unwrap();

    let said = client_file("examples/burger-seller/order.py", &[&url(&ns, "burger-concierge")]).unwrap();
    println!("{said}");
    assert!(said.contains("burger-station 15.80 EUR; burger-harbour 17.00 EUR"), "cheapest first: {said}");
    assert!(said.contains("burger-station: Order") && said.contains("Total 15.80 EUR"), "{said}");

    let concierge = name(&pod(&ns, "burger-concierge").unwrap()).to_owned();
    let metrics = scrape(&ns.name, &concierge, ADMIN).unwrap();
    for peer in ["burger-station", "burger-harbour"] {
        let series = format!("outrigger_peer_requests_total{{outcome=\"2xx\",peer=\"{peer}.{}\"}}", ns.name);
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    // What is not ordered is cancelled: no seller is left with a task that waits.
    for agent in ["burger-station", "burger-harbour"] {
        for pod in pods(&ns, agent).unwrap() {
            let waiting = "outrigger_a2a_tasks{state=\"input-required\"} ";
            let metrics = scrape(&ns.name, name(&pod), ADMIN).unwrap();
            let line = metrics.lines().find_map(|l| l.strip_prefix(waiting)).unwrap_or("0");
            assert_eq!(line, "0", "{} has tasks that wait", name(&pod));
        }
    }
}

#[test]
fn only_peers_can_be_called_and_their_cards_lead_through_the_sidecar() {
    installed();
    let ns = Namespace::new("peers").unwrap();
    let examples = format!("{}/examples", root());
    ns.kubectl(&["apply", "-f", &format!("{examples}/burger-seller/time.yaml")]).unwrap();
    ns.kubectl(&["apply", "-f", &format!("{examples}/burger-concierge/")]).unwrap();
    for agent in ["burger-harbour", "burger-concierge"] {
        ns.wait(&format!("oagent/{agent}"), "Ready", "True", "", s(120)).unwrap();
    }
    let pod = name(&pod(&ns, "burger-concierge").unwrap()).to_owned();
    let program = r#"
import json, os, urllib.error, urllib.request
token = open(os.environ["OUTRIGGER_TOKEN_FILE"]).read().strip()
base = f"http://127.0.0.1:19900/t/{token}/agents"
card = json.load(urllib.request.urlopen(f"{base}/burger-harbour/.well-known/agent-card.json", timeout=30))
urls = {i["url"].rstrip("/") for i in card["supportedInterfaces"]}
try:
    urllib.request.urlopen(f"{base}/kubernetes.default/", timeout=30)
except urllib.error.HTTPError as error:
    unknown = json.load(error)
print(json.dumps({"local": urls == {f"{base}/burger-harbour"}, "reason": unknown["error"]["reason"], "known": unknown["error"]["known"]}))
"#;
    let exec = ["-n", &ns.name, "exec", "-i", &pod, "-c", "agent", "--", "python3", "-"];
    let said: Value = serde_json::from_str(&run_with("kubectl", &exec, program).unwrap()).unwrap();
    assert_eq!(said["local"], true, "{said}");
    assert_eq!(said["reason"], "UnknownPeer");
    let known = [format!("burger-harbour.{}", ns.name), format!("burger-station.{}", ns.name)];
    assert_eq!(said["known"], serde_json::json!(known));
}
