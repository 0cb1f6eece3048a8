//! The pod template: the user's, merged as raw JSON with what we add.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_crds::AgentSpec;
use serde_json::{Map, Value, json};

use super::containers::{self, AGENT_VOLUME, BIN_VOLUME, BOOT_VOLUME, LIVE_VOLUME, SKILLS_VOLUME};
use super::identity::Identity;
use super::merge::{default, empty_dir, put_list, take_list, take_object, text};
use super::{AgentInput, ServerInput, files, security, store};
use crate::names;
use crate::settings::Settings;

/// Time beyond the longest turn that a pod has for its end: 5 s in which it still takes work, the rest to answer.
const GRACE_BEYOND_TURN_SECONDS: u64 = 30;

/// `terminationGracePeriodSeconds` of the pods.
pub(super) fn grace_seconds(spec: &AgentSpec, turn_timeout_ms: u64) -> u32 {
    let own = spec.template.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64);
    let seconds = own.unwrap_or_else(|| turn_timeout_ms.div_ceil(1000) + GRACE_BEYOND_TURN_SECONDS);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// The whole template.
pub(super) fn template(input: &AgentInput<'_>, identity: &Identity, boot_config_map: &str, grace: u32) -> Value {
    let mut template = match &input.agent.spec.template {
        Value::Object(map) => map.clone(),
        _ => Map::new(),
    };
    let metadata = metadata(take_object(&mut template, "metadata"), identity, names::AGENT_CONTAINER);
    let mut spec = take_object(&mut template, "spec");
    let token = identity.drain_token();
    let has_skills = !input.agent.spec.skills.is_empty();

    let mut volumes = take_list(&mut spec, "volumes");
    let own: BTreeSet<String> = volumes.iter().map(|v| text(v, "name").to_owned()).collect();
    add_volumes(input, identity, boot_config_map, &mut volumes);

    let mut containers = Vec::new();
    for container in take_list(&mut spec, "containers") {
        let Value::Object(container) = container else { continue };
        let mut container = containers::users(container, &mut volumes);
        if container.get("name").and_then(Value::as_str) == Some(names::AGENT_CONTAINER) {
            containers::agent(&mut container, has_skills, &token);
        }
        containers.push(Value::Object(container));
    }
    let mut used = own;
    for server in &input.servers {
        containers.extend(tool(server, input.settings, &token, &mut used, &mut volumes));
    }

    let mut init = Vec::new();
    if input.servers.iter().any(ServerInput::has_shim) {
        init.push(containers::install(input.settings));
    }
    init.push(containers::agents_sidecar(input, &mut volumes));
    for container in take_list(&mut spec, "initContainers") {
        let Value::Object(container) = container else { continue };
        init.push(Value::Object(containers::users(container, &mut volumes)));
    }

    security::pod(&mut spec);
    spec.insert("serviceAccountName".into(), json!(identity.name));
    spec.insert("automountServiceAccountToken".into(), json!(false));
    spec.insert("terminationGracePeriodSeconds".into(), json!(grace));
    let secrets = pull_secrets(input.settings, &input.servers, take_list(&mut spec, "imagePullSecrets"));
    put_list(&mut spec, "imagePullSecrets", secrets);
    canonical(&mut volumes);
    spec.insert("volumes".into(), Value::Array(volumes));
    spec.insert("initContainers".into(), Value::Array(init));
    spec.insert("containers".into(), Value::Array(containers));
    if let Some(resources) = spec.get_mut("resources") {
        super::quantity::canonical_resources(resources);
    }
    template.insert("metadata".into(), metadata);
    template.insert("spec".into(), Value::Object(spec));
    Value::Object(template)
}

/// The container of a server that runs in this pod, and its volumes.
pub(super) fn tool(
    server: &ServerInput<'_>,
    settings: &Settings,
    drain_token: &str,
    names_taken: &mut BTreeSet<String>,
    volumes: &mut Vec<Value>,
) -> Option<Value> {
    let launch = server.launch_in_pod()?;
    let renames = tool_volumes(server, names_taken, volumes);
    let name_in_pod = |name: &str| renames.get(name).cloned().unwrap_or_else(|| name.to_owned());
    Some(containers::tool(server, launch, settings, &name_in_pod, drain_token, volumes))
}

/// Quantities as the API server keeps them.
pub(super) fn canonical(volumes: &mut [Value]) {
    for volume in volumes {
        if let Some(limit) = volume.pointer_mut("/emptyDir/sizeLimit") {
            *limit = super::quantity::canonical(limit);
        }
        if let Some(resources) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec/resources") {
            super::quantity::canonical_resources(resources);
        }
    }
}

/// The user's labels and annotations, and ours. Recommended labels may be the user's; the selector's may not.
pub(super) fn metadata(mut metadata: Map<String, Value>, identity: &Identity, container: &str) -> Value {
    let mut labels = take_object(&mut metadata, "labels");
    for (key, value) in identity.labels() {
        if key == identity.selector_label() || key == names::MANAGED_BY_LABEL {
            labels.insert(key.into(), json!(value));
        } else {
            default(&mut labels, key, json!(value));
        }
    }
    let mut annotations = take_object(&mut metadata, "annotations");
    default(&mut annotations, "kubectl.kubernetes.io/default-container", json!(container));
    metadata.insert("labels".into(), Value::Object(labels));
    metadata.insert("annotations".into(), Value::Object(annotations));
    Value::Object(metadata)
}

fn add_volumes(input: &AgentInput<'_>, identity: &Identity, boot_config_map: &str, volumes: &mut Vec<Value>) {
    config_volumes(identity, boot_config_map, volumes);
    volumes.push(empty_dir(AGENT_VOLUME, &json!({"medium": "Memory", "sizeLimit": "1Mi"})));
    store::volumes(&input.agent.spec, volumes);
    files::volumes(&files::all_sources(input), volumes);
    if !input.agent.spec.skills.is_empty() {
        volumes.push(empty_dir(SKILLS_VOLUME, &json!({})));
    }
    for skill in &input.agent.spec.skills {
        // Optional: a skill may come later, and its absence is the sidecar's to report, not the kubelet's.
        volumes.push(json!({
            "name": containers::skill_volume(&skill.name),
            "configMap": {"name": names::skill_config_map(&skill.name), "optional": true},
        }));
    }
    shim_volumes(&input.servers, volumes);
}

/// Volumes of the two documents.
pub(super) fn config_volumes(identity: &Identity, boot_config_map: &str, volumes: &mut Vec<Value>) {
    let live = super::config::live_name(identity);
    volumes.push(json!({"name": BOOT_VOLUME, "configMap": {"name": boot_config_map}}));
    volumes.push(json!({"name": LIVE_VOLUME, "configMap": {"name": live}}));
}

/// Volumes of the shim and of its sockets.
pub(super) fn shim_volumes(servers: &[ServerInput<'_>], volumes: &mut Vec<Value>) {
    let with_shim = || servers.iter().filter(|s| s.has_shim());
    if with_shim().next().is_some() {
        volumes.push(empty_dir(BIN_VOLUME, &json!({})));
    }
    volumes.extend(with_shim().map(|s| empty_dir(&containers::tool_volume(s.name), &json!({}))));
}

/// Adds the server's own volumes under names that are unique in the pod; old name → new name.
fn tool_volumes(
    server: &ServerInput<'_>,
    taken: &mut BTreeSet<String>,
    volumes: &mut Vec<Value>,
) -> BTreeMap<String, String> {
    let mut renames = BTreeMap::new();
    for volume in &server.spec.volumes {
        let name = text(volume, "name");
        let long = format!("tool-{}-{name}", server.name);
        let mut unique = names::bounded(&long);
        if taken.contains(&unique) {
            // "a-b" with "c" and "a" with "b-c" meet in one name.
            unique = names::hashed(&format!("tool-{}/{name}", server.name)).replace('/', "-");
        }
        taken.insert(unique.clone());
        let mut volume = volume.clone();
        volume["name"] = json!(unique);
        volumes.push(volume);
        renames.insert(name.to_owned(), unique);
    }
    renames
}

pub(super) fn pull_secrets(settings: &Settings, servers: &[ServerInput<'_>], own: Vec<Value>) -> Vec<Value> {
    let ours = settings.image_pull_secrets.iter().map(|name| json!({"name": name}));
    let here = servers.iter().filter(|s| s.launch_in_pod().is_some());
    let tools = here.flat_map(|s| s.spec.image_pull_secrets.iter().cloned());
    let mut secrets: Vec<Value> = Vec::new();
    for secret in own.into_iter().chain(ours).chain(tools) {
        if !secrets.iter().any(|s| text(s, "name") == text(&secret, "name")) {
            secrets.push(secret);
        }
    }
    secrets
}
