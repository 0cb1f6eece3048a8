//! What all tests need: the installed chart, the client pod, manifests, processes of containers.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use outrigger_e2e::{Namespace, apply, condition, ensure, eventually, get, kubectl, run, run_with};
use serde_json::{Value, json};

/// Namespace of the operator.
pub const SYSTEM: &str = "outrigger-system";
/// Helm release of the operator.
pub const RELEASE: &str = "outrigger";

/// Folder of the repository.
pub fn root() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

/// State and logs of the test bed.
pub fn run_folder() -> String {
    std::env::var("OUTRIGGER_RUN").unwrap_or_else(|_| "/tmp/outrigger-cluster".into())
}

/// Seconds as a duration.
pub fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// `helm upgrade --install` of the chart with the images of the test bed.
pub fn helm_install(release: &str, more: &[&str]) -> Result<String> {
    let chart = format!("{}/charts/outrigger", root());
    let mut args =
        vec!["upgrade", "--install", release, &chart, "-n", SYSTEM, "--create-namespace", "--wait", "--timeout=120s"];
    args.extend(["--set", "image.registry=localhost,image.operator.tag=e2e,image.sidecar.tag=e2e"]);
    args.extend(more);
    run("helm", &args)
}

/// Installs the chart once for all tests, and the client pod.
pub fn installed() -> &'static str {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        helm_install(RELEASE, &[]).expect("helm install");
        if kubectl(&["get", "namespace", "e2e-client"]).is_err() {
            kubectl(&["create", "namespace", "e2e-client"]).expect("namespace of the client");
        }
        eventually("ServiceAccount", s(30), || kubectl(&["-n", "e2e-client", "get", "serviceaccount", "default"]))
            .unwrap();
        apply("e2e-client", CLIENT).expect("client pod");
        kubectl(&["-n", "e2e-client", "wait", "--for=condition=Ready", "pod/client", "--timeout=60s"])
            .expect("client is ready");
    });
    "installed"
}

const CLIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: n1}   # faults go to n2
  containers:
  - {name: client, image: "localhost/e2e-client:e2e", command: [python3, -c, "import time; time.sleep(1e9)"]}
"#;

/// Runs a Python program in the client pod; what it prints.
pub fn client(program: &str, args: &[&str]) -> Result<String> {
    let mut all = vec!["-n", "e2e-client", "exec", "-i", "client", "--", "python3", "-"];
    all.extend(args);
    run_with("kubectl", &all, program)
}

/// Runs a file of the repository in the client pod.
pub fn client_file(path: &str, args: &[&str]) -> Result<String> {
    let program = std::fs::read_to_string(Path::new(root()).join(path)).with_context(|| path.to_owned())?;
    client(&program, args)
}

/// A2A endpoint of an agent.
pub fn url(namespace: &Namespace, agent: &str) -> String {
    format!("http://{agent}.{}.svc.cluster.local:8080", namespace.name)
}

/// Sends a text to an agent with plain JSON-RPC from the client pod; the JSON-RPC answer.
pub fn send(url: &str, text: &str) -> Result<Value> {
    let program = r#"
import json, sys, uuid, urllib.request
message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": sys.argv[2]}]}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}).encode()
request = urllib.request.Request(sys.argv[1] + "/", body, {"Content-Type": "application/json", "A2A-Version": "1.0"})
with urllib.request.urlopen(request, timeout=90) as answer:
    print(answer.read().decode())
"#;
    let text = client(program, &[url, text])?;
    serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
}

/// One JSON-RPC call from the client pod with headers; the HTTP status and the body.
pub fn call(url: &str, method: &str, params: &Value, headers: &Value) -> Result<(u64, Value)> {
    let program = r#"
import json, sys, urllib.error, urllib.request
url, method, params, headers = sys.argv[1:]
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": json.loads(params)}).encode()
headers = {"Content-Type": "application/json", "A2A-Version": "1.0", **json.loads(headers)}
try:
    answer = urllib.request.urlopen(urllib.request.Request(url + "/", body, headers), timeout=90)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, json.loads(answer.read() or "null")]))
"#;
    let text = client(program, &[url, method, &params.to_string(), &headers.to_string()])?;
    serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
}

/// Parameters of a message of one text, on a task if there is one.
pub fn message(text: &str, task: Option<&str>) -> Value {
    let id = format!("{}", outrigger_e2e::now().as_nanos());
    let mut message = json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]});
    if let Some(task) = task {
        message["taskId"] = json!(task);
    }
    json!({ "message": message })
}

/// The result of a JSON-RPC call without headers that has to work.
pub fn result(url: &str, method: &str, params: &Value) -> Result<Value> {
    let (status, body) = call(url, method, params, &json!({}))?;
    ensure(status == 200 && body["result"].is_object(), || format!("{method}: {status} {body}"))?;
    Ok(body["result"].clone())
}

/// The text of the first artifact of a completed task, or of the status message.
pub fn said(answer: &Value) -> String {
    let task = &answer["result"]["task"];
    let text = |v: &Value| v["parts"][0]["text"].as_str().map(str::to_owned);
    text(&task["artifacts"][0]).or_else(|| text(&task["status"]["message"])).unwrap_or_else(|| answer.to_string())
}

/// Manifest of an Agent that runs the agent of the fixtures. `more` goes into the spec, indented by two.
pub fn agent(name: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: outrigger.dev/v1alpha1
kind: Agent
metadata: {{name: {name}}}
spec:
  description: Does what it is told
  runtime: {{http: {{port: 8000}}}}
  template:
    spec:
      containers:
      - name: agent
        image: localhost/e2e-agent:e2e
        resources: {{requests: {{cpu: 20m, memory: 32Mi}}, limits: {{cpu: "1", memory: 128Mi}}}}
{more}
---
"#
    )
}

/// Manifest of an MCPServer that runs the tool of the fixtures. `more` goes into the spec, indented by two.
pub fn tool(name: &str, args: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: outrigger.dev/v1alpha1
kind: MCPServer
metadata: {{name: {name}}}
spec:
  transport: {{stdio: {{}}}}
  image: localhost/e2e-tool:e2e
  command: [python3, -m, tool]
  args: [{args}]
  resources: {{requests: {{cpu: 20m, memory: 32Mi}}, limits: {{cpu: "1", memory: 128Mi}}}}
{more}
---
"#
    )
}

/// Pods of an agent that are not on their way out.
pub fn pods(namespace: &Namespace, agent: &str) -> Result<Vec<Value>> {
    let list = namespace.get(&["pods", "-l", &format!("outrigger.dev/agent={agent}")])?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    Ok(all.into_iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null()).collect())
}

/// Pods of an agent that are ready, when there are so many of them and no others; by name.
pub fn ready_pods(namespace: &Namespace, agent: &str, wanted: usize) -> Result<Vec<Value>> {
    let mut pods = pods(namespace, agent)?;
    let ready = pods.iter().filter(|p| condition(p, "Ready")["status"] == "True").count();
    ensure(ready == wanted && pods.len() == wanted, || format!("{ready} of {} pods are ready", pods.len()))?;
    pods.sort_by_key(|p| name(p).to_owned());
    Ok(pods)
}

/// A2A endpoint of one pod.
pub fn pod_url(pod: &Value) -> String {
    format!("http://{}:19080", pod["status"]["podIP"].as_str().unwrap_or_default())
}

/// The one pod of an agent.
pub fn pod(namespace: &Namespace, agent: &str) -> Result<Value> {
    let pods = pods(namespace, agent)?;
    match pods.as_slice() {
        [pod] => Ok(pod.clone()),
        _ => bail!("{} pods", pods.len()),
    }
}

/// Name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Status of a container, ordinary or native sidecar.
pub fn container<'a>(pod: &'a Value, container: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .find(|c| c["name"] == container)
        .unwrap_or(&Value::Null)
}

/// Restarts of each container of a pod.
pub fn restarts(pod: &Value, of: &str) -> i64 {
    container(pod, of)["restartCount"].as_i64().unwrap_or(-1)
}

/// Processes of a container on this machine, as (pid, name of the program).
pub fn processes(pod: &Value, of: &str) -> Result<Vec<(u32, String)>> {
    let id = container(pod, of)["containerID"].as_str().context("the container has no id")?;
    let id = id.trim_start_matches("containerd://");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if groups.contains(id) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push((pid, name.trim().to_owned()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// `kill -9` of processes of a container that the test bed runs.
pub fn kill(pids: &[u32]) -> Result<()> {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let mut args = vec!["-9"];
    args.extend(pids.iter().map(String::as_str));
    run("kill", &args).map(drop)
}

/// Metrics of a pod through the API server.
pub fn scrape(namespace: &str, pod: &str, port: u16) -> Result<String> {
    kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")])
}

/// A gauge without labels in the text of a scrape.
pub fn gauge(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// JSON from a port of a pod through the API server.
pub fn pod_admin(namespace: &Namespace, pod: &str, port: &str, path: &str) -> Result<Value> {
    let text =
        kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy/{path}", namespace.name)])?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// Pods of the operator that are running, and the name of the one that leads.
pub fn operator_pods() -> Result<(Vec<Value>, String)> {
    let list = get(&["-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=operator"])?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let leases = get(&["-n", SYSTEM, "get", "leases"])?;
    let holder = leases["items"]
        .as_array()
        .and_then(|all| all.iter().find_map(|l| l["spec"]["holderIdentity"].as_str()))
        .unwrap_or_default()
        .to_owned();
    Ok((pods, holder))
}
