//! Whole reconciliations against an API server in memory.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod support;

use outrigger_crds::{Agent, MCPServer, Skill};
use outrigger_operator::controller::{self, Done};
use outrigger_operator::report::Outcome;
use outrigger_operator::scopes::{Scope, Scopes};
use outrigger_operator::triggers::Mapper;
use outrigger_protocol::config::ControlPlane;
use serde_json::{Value, json};
use support::{Change, World};

const AGENT: &str = "/apis/outrigger.dev/v1alpha1/namespaces/shop/agents/seller";
const SERVER: &str = "/apis/outrigger.dev/v1alpha1/namespaces/shop/mcpservers/time";
const SKILL: &str = "/apis/outrigger.dev/v1alpha1/namespaces/shop/skills/menu";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/seller";
const SERVICE: &str = "/api/v1/namespaces/shop/services/seller";
const PEERS: &str = "/api/v1/namespaces/shop/services/seller-peers";
const LIVE: &str = "/api/v1/namespaces/shop/configmaps/seller-live";
const SKILL_MAP: &str = "/api/v1/namespaces/shop/configmaps/menu-skill";

fn resource(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

fn agent_manifest() -> Value {
    resource(
        "Agent",
        "seller",
        &json!({
            "description": "Sells", "replicas": 1, "runtime": {"http": {"port": 8000}},
            "template": {"spec": {"containers": [{"name": "agent", "image": "i"}]}}, "mcpServers": [{"name": "time"}]
        }),
    )
}

fn server_manifest() -> Value {
    resource("MCPServer", "time", &json!({"transport": {"stdio": {}}, "image": "i", "command": ["serve"]}))
}

fn skill_manifest(text: &str) -> Value {
    resource("Skill", "menu", &json!({"source": {"inline": {"files": [{"path": "SKILL.md", "content": text}]}}}))
}

fn typed<T: serde::de::DeserializeOwned>(world: &World, path: &str) -> T {
    serde_json::from_value(world.server.get(path).unwrap()).unwrap()
}

async fn look(world: &mut World) -> Done {
    world.sync();
    let agent: Agent = typed(world, AGENT);
    controller::agent::reconcile(&agent, &world.context).await.unwrap()
}

async fn look_at_skill(world: &mut World) -> Done {
    world.sync();
    let skill: Skill = typed(world, SKILL);
    controller::skill::reconcile(&skill, &world.context).await.unwrap()
}

/// A world in which the Agent has settled.
async fn settled() -> World {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    look(&mut world).await;
    look(&mut world).await;
    world.server.changes();
    world
}

fn condition(world: &World, path: &str, kind: &str) -> (String, String, String) {
    let object = world.server.get(path).unwrap();
    let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let c = list.iter().find(|c| c["type"] == kind).unwrap_or_else(|| panic!("{kind} in {list:?}"));
    let text = |key: &str| c[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

/// Name of the boot configuration that the Deployment mounts.
fn boot_of(world: &World) -> String {
    let deployment = world.server.get(DEPLOYMENT).unwrap();
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap().clone();
    let boot = volumes.iter().find(|v| v["name"] == "outrigger-boot").unwrap();
    boot["configMap"]["name"].as_str().unwrap().to_owned()
}

fn paths(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|c| c.path.as_str()).collect()
}

#[tokio::test]
async fn the_first_look_writes_each_object_once_and_asks_first() {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    let done = look(&mut world).await;
    let changes = world.server.changes();
    assert!(changes[0].dry_run, "the Deployment is checked before anything is written: {changes:?}");
    assert!(changes[1..].iter().all(|c| !c.dry_run));
    assert_eq!(changes.len(), 8, "dry run, six objects, status: {changes:?}");
    let deployment = world.server.get(DEPLOYMENT).unwrap();
    assert_eq!(deployment["spec"]["replicas"], 1);
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!("Agent"), &json!(true), &json!(true))
    );
    assert!(deployment["metadata"]["finalizers"].is_null());
    assert!(done.notes.iter().any(|n| n.reason == "Applied"), "{:?}", done.notes);
}

#[tokio::test]
async fn a_settled_agent_is_left_alone() {
    let mut world = settled().await;
    for _ in 0..5 {
        let done = look(&mut world).await;
        assert_eq!(done.notes, []);
    }
    assert_eq!(world.server.changes(), []);
}

#[tokio::test]
async fn another_authority_of_the_control_api_changes_the_live_document_alone() {
    let mut world = settled().await;
    let plane = |ca: &str| ControlPlane { url: "https://operator:8443".into(), ca: ca.into() };
    for ca in ["one", "one and two", "two"] {
        assert!(world.context.control.put(plane(ca)));
        look(&mut world).await;
        let changes = world.server.changes();
        assert_eq!(paths(&changes), [LIVE], "{ca}");
        let live: Value =
            serde_json::from_str(world.server.get(LIVE).unwrap()["data"]["live.json"].as_str().unwrap()).unwrap();
        assert_eq!(live["control"], json!({"url": "https://operator:8443", "ca": ca}));
        assert!(!world.context.control.put(plane(ca)), "the same is no news");
        look(&mut world).await;
        assert_eq!(world.server.changes(), []);
    }
}

#[tokio::test]
async fn a_new_operator_adopts_what_it_finds_without_a_write() {
    let old = settled().await;
    let mut new = World::new();
    for path in [AGENT, SERVER, DEPLOYMENT, SERVICE, PEERS, LIVE, "/api/v1/namespaces/shop/serviceaccounts/seller"] {
        new.server.restore(path, old.server.get(path).unwrap());
    }
    let boot = old.server.get(DEPLOYMENT).unwrap()["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|v| (v["name"] == "outrigger-boot").then(|| v["configMap"]["name"].as_str().unwrap().to_owned()))
        .unwrap();
    let path = format!("/api/v1/namespaces/shop/configmaps/{boot}");
    new.server.restore(&path, old.server.get(&path).unwrap());
    let done = look(&mut new).await;
    assert_eq!(new.server.changes(), []);
    assert_eq!(done.notes, []);
}

#[tokio::test]
async fn caches_that_lag_cause_no_second_write() {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    world.sync();
    let agent: Agent = typed(&world, AGENT);
    controller::agent::reconcile(&agent, &world.context).await.unwrap();
    world.server.changes();
    // The same object again, as the caches still have it: neither objects nor status are in there yet.
    controller::agent::reconcile(&agent, &world.context).await.unwrap();
    assert_eq!(world.server.changes(), []);
}

#[tokio::test]
async fn a_foreign_change_is_undone_once_and_foreign_additions_stay() {
    let mut world = settled().await;
    world.server.edit(DEPLOYMENT, |d| d["spec"]["replicas"] = json!(5));
    let done = look(&mut world).await;
    assert_eq!(paths(&world.server.changes()), [DEPLOYMENT]);
    assert!(done.notes.iter().any(|n| n.reason == "ForeignChange"), "{:?}", done.notes);
    assert_eq!(world.server.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 1);
    look(&mut world).await;
    assert_eq!(world.server.changes(), []);

    world.server.edit(DEPLOYMENT, |d| {
        d["metadata"]["labels"]["team"] = json!("blue");
        d["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = json!("now");
    });
    world.server.edit(SERVICE, |s| s["metadata"]["annotations"]["a"] = json!("b"));
    look(&mut world).await;
    look(&mut world).await;
    assert_eq!(world.server.changes(), [], "what others added is theirs");
}

#[tokio::test]
async fn two_managers_that_fight_do_not_make_a_storm() {
    let mut world = settled().await;
    let mut writes = 0;
    for _ in 0..20 {
        world.server.edit(LIVE, |c| c["data"]["live.json"] = json!("{}"));
        let done = look(&mut world).await;
        writes += world.server.changes().iter().filter(|c| c.path == LIVE).count();
        assert!(writes == 1 || done.again.is_some(), "a change that is not undone now is undone later");
    }
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn a_lost_label_is_put_back() {
    let mut world = settled().await;
    world.server.edit(SERVICE, |s| {
        s["metadata"]["labels"].as_object_mut().unwrap().remove("app.kubernetes.io/managed-by");
    });
    look(&mut world).await;
    assert_eq!(paths(&world.server.changes()), [SERVICE]);
}

#[tokio::test]
async fn scaling_reaches_the_deployment() {
    let mut world = settled().await;
    world.server.edit(AGENT, |a| a["spec"]["replicas"] = json!(3));
    look(&mut world).await;
    let changes = world.server.changes();
    assert_eq!(changes.iter().filter(|c| c.path == DEPLOYMENT && !c.dry_run).count(), 1, "{changes:?}");
    assert_eq!(world.server.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 3);
}

#[tokio::test]
async fn a_name_that_is_taken_stops_everything() {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seller-live", "namespace": "shop"}, "data": {"mine": "yes"}});
    world.server.put(LIVE, theirs);
    let done = look(&mut world).await;
    let changes = world.server.changes();
    assert_eq!(paths(&changes), [format!("{AGENT}/status")], "nothing but the status is written");
    assert_eq!(world.server.get(LIVE).unwrap()["data"], json!({"mine": "yes"}));
    let (status, reason, message) = condition(&world, AGENT, "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NameConflict"));
    assert!(message.contains("ConfigMap seller-live"), "{message}");
    assert!(matches!(done.outcome, Outcome::Refused(..)));
    assert!(done.again.is_some(), "nobody watches what is not ours");

    world.server.remove(LIVE);
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "Accepted").0, "True");
    assert!(world.server.get(DEPLOYMENT).is_some());
}

#[tokio::test]
async fn an_object_with_our_label_and_another_owner_is_a_conflict_too() {
    let mut world = settled().await;
    world.server.edit(SERVICE, |s| s["metadata"]["ownerReferences"][0]["uid"] = json!("another"));
    look(&mut world).await;
    let changes = world.server.changes();
    assert_eq!(paths(&changes), [format!("{AGENT}/status")]);
    assert!(condition(&world, AGENT, "Ready").2.contains("belongs to Agent seller"));
}

#[tokio::test]
async fn what_a_deletion_orphaned_is_taken_back() {
    let mut world = settled().await;
    for path in [SERVICE, PEERS, DEPLOYMENT, LIVE, "/api/v1/namespaces/shop/serviceaccounts/seller"] {
        world.server.edit(path, |o| o["metadata"]["ownerReferences"] = json!([]));
    }
    let boot = format!("/api/v1/namespaces/shop/configmaps/{}", boot_of(&world));
    world.server.edit(&boot, |o| o["metadata"]["ownerReferences"] = json!([]));
    world.server.remove(AGENT);
    world.server.put(AGENT, agent_manifest());
    look(&mut world).await;
    let uid = world.server.get(AGENT).unwrap()["metadata"]["uid"].clone();
    // The old boot configuration too: pods still have it, and it has to go with the Agent at the latest.
    for path in [DEPLOYMENT, &boot] {
        assert_eq!(world.server.get(path).unwrap()["metadata"]["ownerReferences"][0]["uid"], uid, "{path}");
    }
    assert_eq!(condition(&world, AGENT, "Accepted").0, "True");
}

#[tokio::test]
async fn a_missing_server_holds_and_heals() {
    let mut world = World::new();
    world.server.put(AGENT, agent_manifest());
    look(&mut world).await;
    assert!(world.server.get(DEPLOYMENT).is_none(), "no first Deployment");
    for kind in ["Ready", "ToolsReady"] {
        let (status, reason, message) = condition(&world, AGENT, kind);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "MCPServerNotFound"), "{kind}");
        assert!(message.contains("MCPServer time"), "{message}");
    }
    assert_eq!(condition(&world, AGENT, "Accepted").0, "True");

    world.server.put(SERVER, resource("MCPServer", "time", &json!({"transport": {"stdio": {}}, "image": "i"})));
    look(&mut world).await;
    let (_, reason, message) = condition(&world, AGENT, "ToolsReady");
    assert_eq!(reason, "MCPServerNotAccepted");
    assert!(message.contains("MCPServer time: add spec.command"), "{message}");

    world.server.put(SERVER, server_manifest());
    look(&mut world).await;
    assert!(world.server.get(DEPLOYMENT).is_some());
    assert_eq!(condition(&world, AGENT, "Ready").1, "PodsStarting");
}

#[tokio::test]
async fn a_missing_peer_is_told_and_holds_nothing_back() {
    let mut world = World::new();
    let mut agent = agent_manifest();
    agent["spec"]["mcpServers"] = json!([]);
    agent["spec"]["peers"] = json!([{"name": "grill"}, {"name": "baker", "namespace": "mill"}]);
    world.server.put(AGENT, agent);
    let done = look(&mut world).await;
    assert!(world.server.get(DEPLOYMENT).is_some());
    let (status, reason, message) = condition(&world, AGENT, "PeersFound");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "PeerNotFound"));
    assert!(message.contains("shop/grill (and 1 more)"), "{message}");
    assert!(done.notes.iter().any(|n| n.warning && n.reason == "PeerNotFound"), "{:?}", done.notes);
    let live = world.server.get(LIVE).unwrap()["data"]["live.json"].clone();

    for (namespace, name) in [("shop", "grill"), ("mill", "baker")] {
        let mut peer = agent_manifest();
        peer["metadata"] = json!({"name": name, "namespace": namespace});
        world.server.put(&format!("/apis/outrigger.dev/v1alpha1/namespaces/{namespace}/agents/{name}"), peer);
    }
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "PeersFound").1, "AllFound");
    assert_eq!(world.server.get(LIVE).unwrap()["data"]["live.json"], live, "names are found by DNS");

    // An operator that watches some namespaces only, and one of them not for long.
    let (queue, _told) = tokio::sync::mpsc::channel(1);
    world.context.scopes = Scopes::default();
    let (server_queue, _told_servers) = tokio::sync::mpsc::channel(1);
    let servers = world.context.caches.servers.clone();
    let scope = |namespace: &str, agents| Scope {
        namespace: Some(namespace.into()),
        agents,
        servers: servers.clone(),
        agent_queue: queue.clone(),
        server_queue: server_queue.clone(),
    };
    world.context.scopes.add(scope("shop", world.context.caches.agents.clone()));
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "PeersFound").1, "PeerNotWatched");
    let (unfilled, _writer) = kube::runtime::reflector::store();
    world.context.scopes.add(scope("mill", unfilled));
    world.server.changes();
    look(&mut world).await;
    assert_eq!(world.server.changes(), [], "what is not known yet is no news");
}

#[tokio::test]
async fn an_agent_that_comes_or_goes_is_told_to_those_that_name_it() {
    let mut world = World::new();
    let mut caller = agent_manifest();
    caller["spec"]["peers"] = json!([{"name": "grill", "namespace": "mill"}]);
    world.server.put(AGENT, caller);
    let path = "/apis/outrigger.dev/v1alpha1/namespaces/mill/agents/grill";
    let mut peer = agent_manifest();
    peer["metadata"] = json!({"name": "grill", "namespace": "mill"});
    world.server.put(path, peer);
    world.sync();
    let mapper = Mapper::new(world.context.caches.clone(), world.context.scopes.clone());
    let told = |world: &mut World, gone: bool| {
        mapper.agent(&controller::guarded(typed::<Agent>(world, path)), gone);
        let told = world.told.try_recv().ok().map(|t| (t.namespace.unwrap_or_default(), t.name));
        assert!(world.told.try_recv().is_err(), "nobody else");
        told
    };
    let seller = Some(("shop".to_owned(), "seller".to_owned()));
    assert_eq!(told(&mut world, false), seller, "it came");
    world.server.edit(path, |a| a["spec"]["replicas"] = json!(2));
    assert_eq!(told(&mut world, false), None, "it only changed");
    assert_eq!(told(&mut world, true), seller, "it went");
}

#[tokio::test]
async fn a_server_that_vanishes_leaves_the_last_deployment_which_still_scales() {
    let mut world = settled().await;
    let before = world.server.get(DEPLOYMENT).unwrap()["spec"]["template"].clone();
    world.server.remove(SERVER);
    world.server.edit(AGENT, |a| a["spec"]["template"]["spec"]["containers"][0]["image"] = json!("new"));
    look(&mut world).await;
    assert_eq!(world.server.get(DEPLOYMENT).unwrap()["spec"]["template"], before);
    assert_eq!(condition(&world, AGENT, "Progressing").1, "MCPServerNotFound");
    world.server.edit(AGENT, |a| a["spec"]["replicas"] = json!(4));
    look(&mut world).await;
    let deployment = world.server.get(DEPLOYMENT).unwrap();
    assert_eq!((&deployment["spec"]["replicas"], &deployment["spec"]["template"]), (&json!(4), &before));
    world.server.changes();
    look(&mut world).await;
    look(&mut world).await;
    assert_eq!(world.server.changes(), [], "held back is a steady state too");
    world.server.put(SERVER, server_manifest());
    look(&mut world).await;
    assert_ne!(world.server.get(DEPLOYMENT).unwrap()["spec"]["template"], before);
}

#[tokio::test]
async fn a_refused_template_is_told_and_not_asked_again_and_again() {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    world.server.refuse(
        "/deployments/",
        422,
        "Deployment.apps \"seller\" is invalid: spec.template.spec.containers[0].image: Required value",
    );
    look(&mut world).await;
    let (status, reason, message) = condition(&world, AGENT, "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidTemplate"));
    assert!(message.contains("containers[0].image: Required value"), "{message}");
    assert!(world.server.get(SERVICE).is_none(), "nothing was written");
    world.server.changes();
    look(&mut world).await;
    assert_eq!(world.server.changes(), []);
    world.server.accept_all();
    world.server.edit(AGENT, |a| a["spec"]["template"]["spec"]["containers"][0]["image"] = json!("good"));
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "Accepted").0, "True");
    assert!(world.server.get(DEPLOYMENT).is_some());
}

#[tokio::test]
async fn a_foreground_deletion_is_not_fought() {
    let mut world = settled().await;
    world.server.edit(AGENT, |a| {
        a["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        a["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    });
    world.server.remove(DEPLOYMENT);
    look(&mut world).await;
    assert_eq!(world.server.changes(), []);
}

#[tokio::test]
async fn a_namespace_on_its_way_out_is_no_error_of_the_manifest() {
    let mut world = World::new();
    world.server.put(SERVER, server_manifest());
    world.server.put(AGENT, agent_manifest());
    world.server.refuse("/deployments/", 403, "deployments.apps \"seller\" is forbidden: unable to create new content in namespace shop because it is being terminated");
    world.sync();
    let agent: Agent = typed(&world, AGENT);
    let error = controller::agent::reconcile(&agent, &world.context).await.unwrap_err();
    assert_eq!(error.to_string(), "the namespace is being deleted");
}

#[tokio::test]
async fn old_boot_configurations_go_when_no_pod_has_them() {
    let mut world = settled().await;
    let old = boot_of(&world);
    let old_path = format!("/api/v1/namespaces/shop/configmaps/{old}");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop", "labels": {"outrigger.dev/agent": "seller"}},
        "spec": {"containers": [], "volumes": [{"name": "outrigger-boot", "configMap": {"name": old}}]}});
    world.server.put("/api/v1/namespaces/shop/pods/p", pod);
    world.server.edit(AGENT, |a| a["spec"]["runtime"]["http"]["port"] = json!(9000));
    look(&mut world).await;
    assert_ne!(boot_of(&world), old);
    world.server.edit(DEPLOYMENT, |d| d["status"]["observedGeneration"] = d["metadata"]["generation"].clone());
    look(&mut world).await;
    assert!(world.server.get(&old_path).is_some(), "a pod still has it");
    world.server.remove("/api/v1/namespaces/shop/pods/p");
    look(&mut world).await;
    assert!(world.server.get(&old_path).is_none());
    assert!(world.server.get(&format!("/api/v1/namespaces/shop/configmaps/{}", boot_of(&world))).is_some());
}

#[tokio::test]
async fn a_skill_is_published_and_its_last_valid_content_stays() {
    let mut world = World::new();
    world.server.put(SKILL, skill_manifest("---\nname: menu\ndescription: d\n---\nx"));
    look_at_skill(&mut world).await;
    let published = world.server.get(SKILL_MAP).unwrap();
    let digest = world.server.get(SKILL).unwrap()["status"]["digest"].clone();
    let manifest: Value = serde_json::from_str(published["data"]["manifest.json"].as_str().unwrap()).unwrap();
    assert_eq!(manifest["digest"], digest);
    world.server.changes();
    look_at_skill(&mut world).await;
    assert_eq!(world.server.changes(), []);

    world.server.edit(SKILL, |s| s["spec"]["source"]["inline"]["files"][0]["content"] = json!("no front matter"));
    look_at_skill(&mut world).await;
    assert_eq!(world.server.get(SKILL_MAP).unwrap()["binaryData"], published["binaryData"]);
    let (status, reason, message) = condition(&world, SKILL, "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidSkill"));
    assert!(message.contains("FrontMatterMissing SKILL.md:1"), "{message}");
    assert!(condition(&world, SKILL, "Ready").2.contains("the last valid content"));
    assert_eq!(world.server.get(SKILL).unwrap()["status"]["digest"], digest);
}

#[tokio::test]
async fn an_agent_waits_for_a_required_skill() {
    let mut world = World::new();
    let mut agent = agent_manifest();
    agent["spec"]["mcpServers"] = json!([]);
    agent["spec"]["skills"] = json!([{"name": "menu"}]);
    world.server.put(AGENT, agent);
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "Ready").1, "SkillNotFound");
    world.server.put(SKILL, skill_manifest("broken"));
    look_at_skill(&mut world).await;
    look(&mut world).await;
    assert_eq!(condition(&world, AGENT, "SkillsReady").1, "InvalidSkill");
    assert!(world.server.get(DEPLOYMENT).is_none());
    world.server.edit(SKILL, |s| {
        s["spec"]["source"]["inline"]["files"][0]["content"] = json!("---\nname: menu\ndescription: d\n---\nx");
    });
    look_at_skill(&mut world).await;
    look(&mut world).await;
    assert!(world.server.get(DEPLOYMENT).is_some());
}

#[tokio::test]
async fn a_server_says_who_uses_it_and_what_it_lacks() {
    let mut world = World::new();
    world.server.put(SERVER, resource("MCPServer", "time", &json!({"transport": {"stdio": {}}, "image": "i"})));
    let look = async |world: &mut World| {
        world.sync();
        let server: MCPServer = typed(world, SERVER);
        controller::mcp_server::reconcile(&server, &world.context).await.unwrap();
    };
    look(&mut world).await;
    assert_eq!(condition(&world, SERVER, "Accepted").1, "CommandRequired");
    world.server.edit(SERVER, |s| s["spec"]["command"] = json!(["serve"]));
    look(&mut world).await;
    assert_eq!(
        (condition(&world, SERVER, "Ready").0.as_str(), condition(&world, SERVER, "Ready").1.as_str()),
        ("True", "NotUsed")
    );
    world.server.put(AGENT, agent_manifest());
    look(&mut world).await;
    assert_eq!(condition(&world, SERVER, "Ready").1, "NoInstances");
    assert_eq!(world.server.get(SERVER).unwrap()["status"]["agents"], 1);
    world.server.changes();
    look(&mut world).await;
    assert_eq!(world.server.changes(), []);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_comes_and_goes_is_told_in_bounds() {
    let mut world = settled().await;
    world.server.edit(DEPLOYMENT, |d| {
        d["status"] = json!({"observedGeneration": d["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1});
    });
    let mut writes = 0;
    for second in 0..600 {
        world.server.edit(DEPLOYMENT, |d| d["status"]["readyReplicas"] = json!(second % 2));
        look(&mut world).await;
        writes += world.server.changes().len();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
    assert!((60..=75).contains(&writes), "{writes} writes in ten minutes");
}
