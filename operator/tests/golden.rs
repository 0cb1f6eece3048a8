//! Each `plan/NAME.yaml` (an Agent, its servers and skills; or one Standalone server and the Agents that use it) against `plan/NAME.golden.yaml` (the objects planned).
//! `UPDATE=1 cargo test -p outrigger-operator --test golden` writes the golden files anew.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

use std::fs;
use std::path::Path;

use outrigger_crds::{Agent, MCPServer, Skill};
use outrigger_operator::issuer::Issuer;
use outrigger_operator::plan::{self, AgentInput, Caller, Place, Planned, ServerInput, StandaloneInput};
use outrigger_operator::settings::Settings;
use serde_json::Value;

struct Input {
    agents: Vec<Agent>,
    servers: Vec<MCPServer>,
    skills: Vec<Skill>,
}

fn read(path: &Path) -> Input {
    let text = fs::read_to_string(path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let (mut agents, mut servers, mut skills) = (Vec::new(), Vec::new(), Vec::new());
    for mut document in documents {
        if document["metadata"]["namespace"].is_null() {
            document["metadata"]["namespace"] = "shop".into();
        }
        document["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555".into();
        match document["kind"].as_str().unwrap() {
            "Agent" => agents.push(serde_json::from_value(document).unwrap()),
            "MCPServer" => servers.push(serde_json::from_value(document).unwrap()),
            "Skill" => skills.push(serde_json::from_value(document).unwrap()),
            other => panic!("{other}"),
        }
    }
    Input { agents, servers, skills }
}

fn settings() -> Settings {
    Settings {
        image_pull_secrets: vec!["registry".into()],
        npm_runner: "registry.example/node:1".into(),
        pypi_runner: "registry.example/uv:1".into(),
        ..Settings::new("registry.example/outrigger:0.1.0")
    }
}

impl Input {
    /// The one server with pods of its own, where that is what the case is about.
    fn standalone(&self) -> Option<&MCPServer> {
        match self.servers.as_slice() {
            [server] if plan::place(&server.spec) == Place::Standalone && self.agents.len() != 1 => Some(server),
            _ => None,
        }
    }
}

fn plan(input: &Input) -> Result<Vec<Planned>, String> {
    match input.standalone() {
        Some(server) => plan_server(server, &input.agents),
        None => plan_agent(input),
    }
}

fn plan_server(server: &MCPServer, agents: &[Agent]) -> Result<Vec<Planned>, String> {
    let jwks = serde_json::json!({"keys": [{"kid": "k", "kty": "RSA", "alg": "RS256", "n": "AQAB", "e": "AQAB"}]});
    let (settings, issuer) = (settings(), Issuer { url: "https://issuer.example".into(), jwks });
    let place = |a: &Agent| (a.metadata.namespace.clone().unwrap(), a.metadata.name.clone().unwrap());
    let callers = agents.iter().filter(|a| plan::may_use(server, &place(a).0, &place(a).1)).map(|a| {
        let (namespace, agent) = place(a);
        Caller { namespace, agent, tools: a.spec.mcp_servers[0].tools.clone() }
    });
    let checked = plan::check_server(&server.spec, &settings).map_err(|e| format!("{}: {e}", e.reason()))?;
    let callers = callers.collect();
    let input = StandaloneInput { server, checked, settings: &settings, issuer: &issuer, control: None, callers };
    Ok(plan::standalone(&input).map_err(|e| format!("{}: {e}", e.reason()))?.objects)
}

fn plan_agent(input: &Input) -> Result<Vec<Planned>, String> {
    let settings = settings();
    let [agent] = input.agents.as_slice() else { panic!("one Agent") };
    let servers = agent
        .spec
        .mcp_servers
        .iter()
        .map(|used| {
            let server = input.servers.iter().find(|s| s.metadata.name.as_deref() == Some(&used.name)).unwrap();
            let checked = plan::check_server(&server.spec, &settings).unwrap();
            ServerInput {
                name: &used.name,
                namespace: server.metadata.namespace.as_deref().unwrap(),
                required: used.required,
                spec: &server.spec,
                here: checked.place == Place::InPod,
                checked,
                tools: used.tools.as_ref(),
            }
        })
        .collect();
    let agent = AgentInput { agent, servers, settings: &settings, control: None };
    let mut objects = plan::agent(&agent).map_err(|e| format!("{}: {e}", e.reason()))?.objects;
    for skill in &input.skills {
        objects.push(plan::skill(skill).map_err(|d| format!("{d:?}"))?.config_map);
    }
    Ok(objects)
}

fn render(objects: &[Planned]) -> String {
    let documents: Vec<_> = objects.iter().map(|o| serde_saphyr::to_string(&o.body).unwrap()).collect();
    format!("---\n{}", documents.join("---\n"))
}

fn cases() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan");
    let mut cases: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "yaml") && !p.to_string_lossy().contains(".golden."))
        .collect();
    cases.sort();
    assert!(cases.len() >= 6, "the cases are there");
    cases
}

#[test]
fn plans_are_as_they_stand_in_the_golden_files() {
    let mut wrong = Vec::new();
    for case in cases() {
        let rendered = match plan(&read(&case)) {
            Ok(objects) => render(&objects),
            Err(error) => format!("refused: {error:?}\n"),
        };
        let golden = case.with_extension("golden.yaml");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&golden, &rendered).unwrap();
        }
        if fs::read_to_string(&golden).unwrap_or_default() != rendered {
            wrong.push(golden);
        }
    }
    assert!(wrong.is_empty(), "differ from the plan (UPDATE=1 writes them anew; look at the diff): {wrong:?}");
}

#[test]
fn what_the_user_wrote_survives() {
    for case in cases() {
        let input = read(&case);
        let Ok(objects) = plan(&input) else { continue };
        let deployment = &objects.iter().find(|o| o.kind.as_str() == "Deployment").unwrap().body;
        let template = match input.standalone() {
            Some(server) => server.spec.pod_template.clone().unwrap_or(serde_json::json!({})),
            None => input.agents[0].spec.template.clone(),
        };
        contains(&deployment["spec"]["template"], &template, &case.to_string_lossy());
    }
}

/// Every leaf of `part` stands in `whole`; list items are found by name, path or port, other lists are equal.
fn contains(whole: &Value, part: &Value, at: &str) {
    match part {
        // The label of the selector is ours alone.
        Value::Object(map) => map
            .iter()
            .filter(|(k, _)| *k != "outrigger.dev/agent")
            .for_each(|(k, v)| contains(&whole[k], v, &format!("{at}.{k}"))),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                let key = ["name", "mountPath", "containerPort"].into_iter().find(|k| item.get(k).is_some());
                let found = match key {
                    Some(key) => whole.as_array().unwrap().iter().find(|w| w[key] == item[key]),
                    None => whole.get(i),
                };
                contains(found.unwrap_or(&Value::Null), item, &format!("{at}[{i}]"));
            }
        }
        leaf => assert!(
            whole == leaf || at.contains("resources") || at.ends_with("sizeLimit"),
            "{at}: {leaf} became {whole}"
        ),
    }
}

#[test]
fn hashes_follow_the_content_alone() {
    for case in cases() {
        let Ok(first) = plan(&read(&case)) else { continue };
        let second = plan(&read(&case)).unwrap();
        assert_eq!(first, second, "a plan has no clock and no chance in it");
        let mut input = read(&case);
        let standalone = input.standalone().is_some();
        if standalone {
            input.servers[0].spec.replicas += 1;
        } else {
            input.agents[0].spec.replicas += 1;
        }
        let Ok(third) = plan(&input) else {
            assert_eq!(first_strategy(&first), "Recreate", "only a store on a volume refuses a second pod");
            continue;
        };
        assert!(first.iter().any(|o| o.kind.as_str() == "Deployment"));
        for (a, b) in first.iter().zip(&third) {
            assert_eq!(a.hash != b.hash, a.kind.as_str() == "Deployment", "{} {}", a.kind.as_str(), a.name);
        }
    }
}

fn first_strategy(objects: &[Planned]) -> &str {
    let deployment = objects.iter().find(|o| o.kind.as_str() == "Deployment").unwrap();
    deployment.body["spec"]["strategy"]["type"].as_str().unwrap()
}

#[test]
fn sidecars_accept_the_documents() {
    use outrigger_protocol::config::{Boot, Live};
    for case in cases() {
        let Ok(objects) = plan(&read(&case)) else { continue };
        let data = |key: &str| {
            objects.iter().find_map(|o| o.body["data"][key].as_str()).unwrap_or_else(|| panic!("{key}")).to_owned()
        };
        let boot = Boot::parse(data("boot.json").as_bytes()).unwrap();
        let first = if read(&case).standalone().is_some() { "tool-" } else { "agent" };
        assert!(boot.containers[0].starts_with(first), "{:?}", boot.containers);
        let live = Live::parse(data("live.json").as_bytes()).unwrap();
        let pod = &objects.iter().find(|o| o.kind.as_str() == "Deployment").unwrap().body["spec"]["template"]["spec"];
        for path in files(&boot, &live) {
            mounted_in_the_sidecar_alone(pod, &path);
        }
    }
}

/// Every path that the documents name and the sidecar reads or writes.
fn files(boot: &outrigger_protocol::config::Boot, live: &outrigger_protocol::config::Live) -> Vec<String> {
    use outrigger_protocol::config::{IDENTITY_FILE, Reach, Store};
    let mut paths = vec![IDENTITY_FILE.to_owned()];
    for server in &boot.servers {
        if let Reach::Remote { headers_dir, ca_file, .. } = &server.reach {
            paths.extend(headers_dir.iter().chain(ca_file).cloned());
        }
    }
    match &boot.store {
        Store::Memory => {}
        Store::Sqlite { path, .. } => paths.push(path.clone()),
        Store::Postgres { ca_file, .. } => paths.extend(ca_file.clone()),
    }
    paths.extend(live.offer.signing_keys.clone());
    paths.extend(live.access.api_key.as_ref().map(|a| a.folder.clone()));
    paths.extend(live.access.jwt.iter().flat_map(|j| [j.jwks_file.clone(), j.ca_file.clone()]).flatten());
    paths.extend([live.push.signing_keys.clone(), live.push.ca_file.clone()].into_iter().flatten());
    paths
}

fn mounted_in_the_sidecar_alone(pod: &Value, path: &str) {
    let all = pod["containers"].as_array().unwrap().iter().chain(pod["initContainers"].as_array().unwrap());
    let mut volume = None;
    for container in all {
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let folder = mount["mountPath"].as_str().unwrap();
            if path == folder || path.starts_with(&format!("{folder}/")) {
                assert_eq!(container["name"], "outrigger", "{path} is the sidecar's alone");
                volume = Some(mount["name"].clone());
            }
        }
    }
    let volume = volume.unwrap_or_else(|| panic!("{path} is mounted"));
    let volumes = pod["volumes"].as_array().unwrap();
    assert_eq!(volumes.iter().filter(|v| v["name"] == volume).count(), 1, "{volume}");
    let config_map = volumes.iter().find(|v| v["name"] == volume).unwrap().pointer("/configMap/items");
    if let Some(items) = config_map {
        assert!(path.ends_with(items[0]["path"].as_str().unwrap()), "{path} is the file of {items}");
    }
}

#[test]
fn every_container_passes_the_restricted_standard() {
    for case in cases() {
        let Ok(objects) = plan(&read(&case)) else { continue };
        let pod = &objects.iter().find(|o| o.kind.as_str() == "Deployment").unwrap().body["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod["securityContext"]["seccompProfile"]["type"].is_string());
        let all = pod["containers"].as_array().unwrap().iter().chain(pod["initContainers"].as_array().unwrap());
        for c in all {
            let context = &c["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{}", c["name"]);
            assert_eq!(context["capabilities"]["drop"][0], "ALL", "{}", c["name"]);
            let name = c["name"].as_str().unwrap();
            if name.starts_with("outrigger") || name.starts_with("tool-") {
                for (list, resource) in
                    [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")]
                {
                    assert!(c["resources"][list][resource].is_string(), "{name} {list} {resource}");
                }
            }
        }
        let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        let unique: std::collections::BTreeSet<_> = volumes.iter().collect();
        assert_eq!(volumes.len(), unique.len(), "{volumes:?}");
        assert!(volumes.iter().all(|v| v.len() <= 63), "{volumes:?}");
    }
}
