//! Standalone tool servers, and Agents that use them, against an API server in memory.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod support;

use outrigger_crds::{Agent, MCPServer};
use outrigger_operator::controller::{self, Done};
use outrigger_operator::issuer::Issuer;
use outrigger_operator::report::Outcome;
use serde_json::{Value, json};
use support::World;

const SERVER: &str = "/apis/outrigger.dev/v1alpha1/namespaces/tools/mcpservers/news";
const AGENT: &str = "/apis/outrigger.dev/v1alpha1/namespaces/shop/agents/seller";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/tools/deployments/news-mcp";
const SERVICE: &str = "/api/v1/namespaces/tools/services/news-mcp";
const LIVE: &str = "/api/v1/namespaces/tools/configmaps/news-mcp-live";
const AGENTS_DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/seller";

fn resource(kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn server(from: &Value) -> Value {
    resource(
        "MCPServer",
        "tools",
        "news",
        &json!({"transport": {"stdio": {}}, "placement": "Standalone", "replicas": 1, "image": "i", "command": ["serve"], "access": {"from": from}}),
    )
}

fn agent(used: &Value) -> Value {
    resource(
        "Agent",
        "shop",
        "seller",
        &json!({
            "description": "Sells", "replicas": 1, "runtime": {"http": {"port": 8000}},
            "template": {"spec": {"containers": [{"name": "agent", "image": "i"}]}}, "mcpServers": [used]
        }),
    )
}

fn issuer(key: &str) -> Issuer {
    Issuer { url: "https://issuer".into(), jwks: json!({"keys": [{"kid": key}]}) }
}

fn world(from: &Value) -> World {
    let world = World::new();
    world.server.put(SERVER, server(from));
    world.server.put(AGENT, agent(&json!({"name": "news", "namespace": "tools", "tools": {"deny": ["drop"]}})));
    world.context.issuers.put(Ok(issuer("one")));
    world
}

async fn look_at_server(world: &mut World) -> Done {
    world.sync();
    let server: MCPServer = serde_json::from_value(world.server.get(SERVER).unwrap()).unwrap();
    controller::mcp_server::reconcile(&server, &world.context).await.unwrap()
}

async fn look_at_agent(world: &mut World) -> Done {
    world.sync();
    let agent: Agent = serde_json::from_value(world.server.get(AGENT).unwrap()).unwrap();
    controller::agent::reconcile(&agent, &world.context).await.unwrap()
}

fn condition(world: &World, path: &str, kind: &str) -> (String, String, String) {
    let object = world.server.get(path).unwrap();
    let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let c = list.iter().find(|c| c["type"] == kind).unwrap_or_else(|| panic!("{kind} in {list:?}"));
    let text = |key: &str| c[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn callers(world: &World) -> Value {
    let live = world.server.get(LIVE).unwrap();
    let live: Value = serde_json::from_str(live["data"]["live.json"].as_str().unwrap()).unwrap();
    live["mcp"]["access"]["callers"].clone()
}

#[tokio::test]
async fn objects_are_written_once_and_then_left_alone() {
    let mut world = world(&json!([{"namespace": "shop"}]));
    let done = look_at_server(&mut world).await;
    let changes = world.server.changes();
    assert!(changes[0].dry_run, "{changes:?}");
    assert_eq!(changes.len(), 7, "dry run, five objects, status: {changes:?}");
    assert!(done.notes.iter().any(|n| n.reason == "Applied"), "{:?}", done.notes);
    let owner = &world.server.get(DEPLOYMENT).unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("MCPServer"), &json!("news")));
    let expected = json!([{"subject": "system:serviceaccount:shop:seller", "filter": {"deny": ["drop"]}}]);
    assert_eq!(callers(&world), expected);
    look_at_server(&mut world).await;
    world.server.changes();
    for _ in 0..3 {
        let done = look_at_server(&mut world).await;
        assert!(matches!(done.outcome, Outcome::Waiting(..)), "{:?}", done.outcome);
        assert_eq!(world.server.changes(), [], "nothing moved");
    }
    let status = world.server.get(SERVER).unwrap()["status"].clone();
    assert_eq!((&status["agents"], &status["selector"]), (&json!(1), &json!("outrigger.dev/mcp-server=news")));
}

#[tokio::test]
async fn without_an_issuer_nothing_is_written_that_nobody_could_call() {
    let mut world = World::new();
    world.server.put(SERVER, server(&json!([])));
    world.context.issuers.put(Err("the API server is down".into()));
    let done = look_at_server(&mut world).await;
    assert!(done.again.is_some());
    let (status, reason, message) = condition(&world, SERVER, "Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "IssuerUnknown"));
    assert!(message.contains("the API server is down"), "{message}");
    assert_eq!(condition(&world, SERVER, "Accepted").0, "True");
    assert!(world.server.get(DEPLOYMENT).is_none());
    world.context.issuers.put(Ok(issuer("one")));
    look_at_server(&mut world).await;
    assert!(world.server.get(DEPLOYMENT).is_some() && world.server.get(SERVICE).is_some());
}

#[tokio::test]
async fn new_keys_change_the_live_document_alone() {
    let mut world = world(&json!([{"namespace": "shop"}]));
    look_at_server(&mut world).await;
    look_at_server(&mut world).await;
    world.server.changes();
    assert!(world.context.issuers.put(Ok(issuer("two"))));
    world.context.scopes.tell_standalone();
    assert_eq!(world.told_servers.try_recv().unwrap().name, "news");
    look_at_server(&mut world).await;
    let changes = world.server.changes();
    assert_eq!(changes.iter().map(|c| c.path.as_str()).collect::<Vec<_>>(), [LIVE]);
}

#[tokio::test]
async fn an_agent_that_is_not_let_in_is_told_what_to_add() {
    let mut world = world(&json!([{"namespace": "press"}, {"namespace": "shop", "agent": "buyer"}]));
    look_at_server(&mut world).await;
    assert_eq!(callers(&world), json!([]));
    look_at_agent(&mut world).await;
    let (status, reason, message) = condition(&world, AGENT, "ToolsReady");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "MCPServerAccessDenied"));
    assert!(message.contains("MCPServer news of namespace tools") && message.contains("spec.access.from"), "{message}");
    assert!(world.server.get(AGENTS_DEPLOYMENT).is_none(), "it is required, so there is no first Deployment");
    world.server.edit(SERVER, |s| s["spec"]["access"] = json!({"from": [{"namespace": "shop", "agent": "seller"}]}));
    look_at_agent(&mut world).await;
    let deployment = world.server.get(AGENTS_DEPLOYMENT).unwrap().to_string();
    assert!(deployment.contains("outrigger-identity"), "its sidecar can prove itself");
    look_at_server(&mut world).await;
    assert_eq!(callers(&world)[0]["subject"], "system:serviceaccount:shop:seller");
}

#[tokio::test]
async fn only_a_standalone_server_is_shared_between_namespaces() {
    let mut world = world(&json!([]));
    let in_pod = json!({"transport": {"stdio": {}}, "replicas": 1, "image": "i", "command": ["serve"]});
    world.server.put(SERVER, resource("MCPServer", "tools", "news", &in_pod));
    look_at_agent(&mut world).await;
    assert_eq!(condition(&world, AGENT, "ToolsReady").1, "MCPServerNotShared");
    world.server.remove(SERVER);
    look_at_agent(&mut world).await;
    let (_, reason, message) = condition(&world, AGENT, "ToolsReady");
    assert_eq!(reason, "MCPServerNotFound");
    assert!(message.contains("MCPServer news is not in namespace tools"), "{message}");
}

#[tokio::test]
async fn a_name_that_is_taken_is_left_alone() {
    let mut world = world(&json!([]));
    world.server.put(SERVICE, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "news-mcp", "namespace": "tools", "labels": {"app.kubernetes.io/managed-by": "outrigger"}}, "spec": {"a": 1}}));
    look_at_server(&mut world).await;
    assert_eq!(condition(&world, SERVER, "Ready").1, "NameConflict");
    assert_eq!(world.server.get(SERVICE).unwrap()["spec"], json!({"a": 1}));
    assert!(world.server.get(DEPLOYMENT).is_none());
}

#[tokio::test]
async fn replicas_follow_the_scale_subresource() {
    let mut world = world(&json!([]));
    look_at_server(&mut world).await;
    world.server.edit(SERVER, |s| s["spec"]["replicas"] = json!(3));
    look_at_server(&mut world).await;
    assert_eq!(world.server.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 3);
}

#[tokio::test]
async fn old_boot_documents_go_when_no_pod_has_them() {
    let mut world = world(&json!([]));
    look_at_server(&mut world).await;
    world.server.changes();
    world.server.edit(SERVER, |s| s["spec"]["process"] = json!({"maxProcesses": 3}));
    look_at_server(&mut world).await;
    world.server.edit(DEPLOYMENT, |d| d["status"] = json!({"observedGeneration": 9}));
    look_at_server(&mut world).await;
    let deleted: Vec<_> = world.server.changes().into_iter().filter(|c| c.method == "DELETE").collect();
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert!(deleted[0].path.contains("/configmaps/news-mcp-boot-"), "{deleted:?}");
}

#[tokio::test]
async fn servers_and_agents_of_other_namespaces_tell_each_other() {
    use outrigger_operator::controller::guarded;
    use outrigger_operator::triggers::{Mapper, Trigger};
    let mut world = world(&json!([{"namespace": "shop"}]));
    world.sync();
    let mapper = Mapper::new(world.context.caches.clone(), world.context.scopes.clone());
    let agent: Agent = serde_json::from_value(world.server.get(AGENT).unwrap()).unwrap();
    let server: MCPServer = serde_json::from_value(world.server.get(SERVER).unwrap()).unwrap();
    assert_eq!(mapper.agent(&guarded(agent), false).len(), 1, "the Agent itself");
    let told = world.told_servers.try_recv().unwrap();
    assert_eq!((told.name.as_str(), told.namespace.as_deref()), ("news", Some("tools")));
    let own = mapper.server(&guarded(server), false);
    assert_eq!(own.into_iter().collect::<Vec<_>>(), [Trigger::Server("tools".into(), "news".into())]);
    assert_eq!(world.told.try_recv().unwrap().name, "seller");
    let labels = json!({"metadata": {"namespace": "tools", "labels": {"outrigger.dev/mcp-server": "news"}}});
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(labels).unwrap();
    let of_pod = mapper.pod(&pod.metadata);
    assert_eq!(of_pod.into_iter().collect::<Vec<_>>(), [Trigger::Server("tools".into(), "news".into())]);
}

const POD: &str = "/api/v1/namespaces/tools/pods/news-1";

/// A pod of the server that says this of its tools.
fn tells(world: &World, server: &Value) {
    let labels = json!({"outrigger.dev/mcp-server": "news"});
    let running = json!({"phase": "Running", "podIP": "10.0.0.1"});
    if world.server.get(POD).is_none() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "news-mcp-1", "uid": "r", "controller": true}]);
        world.server.put(
            POD,
            json!({"apiVersion": "v1", "kind": "Pod", "status": running,
            "metadata": {"name": "news-1", "namespace": "tools", "labels": labels, "ownerReferences": owner}}),
        );
    }
    let status = json!({"version": "0.1.0", "phase": "Ready", "config": {"digest": ""}, "card": {"digest": ""},
        "agent": {"ready": true}, "servers": [server]});
    let uid = world.server.get(POD).unwrap()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    world.context.facts.put(&uid, Ok(std::sync::Arc::new(serde_json::from_value(status).unwrap())));
}

#[tokio::test]
async fn tools_that_are_not_as_pinned_are_told_once() {
    let mut world = world(&json!([]));
    let pin = "ab".repeat(32);
    world.server.edit(SERVER, |s| s["spec"]["tools"] = json!({"pins": {"read": pin}, "driftPolicy": "Warn"}));
    let server = |digest: &str| {
        json!({"name": "news", "required": true, "phase": "Ready", "ready": true, "protocolVersion": "2025-11-25",
            "era": "dual", "versions": ["2026-07-28", "2025-11-25"], "tools": ["read"], "toolDigests": {"read": digest},
            "processes": 1, "crashes": 2, "restarts": 1, "lastError": "exit code 3"})
    };
    tells(&world, &server(&pin));
    look_at_server(&mut world).await;
    assert_eq!(condition(&world, SERVER, "ToolsDrifted").1, "AsPinned");
    let status = world.server.get(SERVER).unwrap()["status"].clone();
    assert_eq!((&status["restarts"], &status["lastError"]), (&json!(3), &json!("exit code 3")));
    assert_eq!(status["protocol"]["era"], "dual");
    assert_eq!(status["protocol"]["versions"], json!(["2026-07-28", "2025-11-25"]));
    let other = "cd".repeat(32);
    tells(&world, &server(&other));
    let done = look_at_server(&mut world).await;
    let (status, reason, message) = condition(&world, SERVER, "ToolsDrifted");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "DefinitionsChanged"));
    assert!(message.contains("not as pinned: read"), "{message}");
    assert_eq!(world.server.get(SERVER).unwrap()["status"]["tools"]["digests"]["read"], other, "what to pin");
    let told = |done: &Done| done.notes.iter().filter(|n| n.warning && n.reason == "DefinitionsChanged").count();
    assert_eq!(told(&done), 1, "{:?}", done.notes);
    assert_eq!(told(&look_at_server(&mut world).await), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_again_and_again_is_told_in_bounds() {
    let mut world = world(&json!([]));
    look_at_server(&mut world).await;
    look_at_server(&mut world).await;
    world.server.changes();
    let mut writes = 0;
    for second in 0..600 {
        let ready = second % 2 == 0;
        tells(
            &world,
            &json!({"name": "news", "required": true, "phase": if ready { "Ready" } else { "CrashLoop" },
            "ready": ready, "processes": 1, "crashes": second, "restarts": 0, "lastError": format!("exit code {second}")}),
        );
        look_at_server(&mut world).await;
        writes += world.server.changes().len();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
    // At first a few at once, then one in ten seconds.
    assert!((55..=75).contains(&writes), "{writes} writes in ten minutes");
}
