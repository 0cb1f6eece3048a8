//! The containers of a pod: the user's with what we add, the sidecar, the tools.

use outrigger_protocol::config::{
    A2A_PORT, ADMIN_PORT, AGENT_DIR, DRAIN_HEADER, IDENTITY_AUDIENCE, SHIM_SOCKET, SKILL_SOURCES, SKILLS_DIR,
    TOKEN_FILE, TOOLS_DIR, URLS_FILE,
};
use serde_json::{Map, Value, json};

use super::merge::{default, mount, put_list, put_named, take_list, take_object};
use super::quantity::{canonical_resources, merge_resources};
use super::server::Launch;
use super::{AgentInput, ServerInput, files, security, store};
use crate::names;
use crate::settings::Settings;

/// Folder of the shim in tool containers.
const SHIM_DIR: &str = "/outrigger/bin";
/// The same folder in the container that fills it: its image has a program where tools see the folder's parent.
const INSTALL_DIR: &str = "/install";
/// Folder of a tool's socket in its own container.
const TOOL_RUN_DIR: &str = "/run/outrigger";
/// Where the ConfigMap volumes of the sidecar are.
const BOOT_DIR: &str = "/etc/outrigger/boot";
const LIVE_DIR: &str = "/etc/outrigger/live";

/// Volume of the shim.
pub(super) const BIN_VOLUME: &str = "outrigger-bin";
/// Volume of the local token and URLs.
pub(super) const AGENT_VOLUME: &str = "outrigger-agent";
/// Volume of the skills' files.
pub(super) const SKILLS_VOLUME: &str = "outrigger-skills";
/// Volume of the boot document.
pub(super) const BOOT_VOLUME: &str = "outrigger-boot";
/// Volume of the live document.
pub(super) const LIVE_VOLUME: &str = "outrigger-live";

/// Volume of the token that proves who the sidecar is.
const IDENTITY_VOLUME: &str = "outrigger-identity";
/// Folder of that token; the file is [`outrigger_protocol::config::IDENTITY_FILE`].
const IDENTITY_DIR: &str = "/etc/outrigger/identity";
/// How long such a token is good; the kubelet renews it when most of that is over.
const IDENTITY_SECONDS: i64 = 3600;

/// Volume of a tool's socket.
pub(super) fn tool_volume(server: &str) -> String {
    names::bounded(&format!("outrigger-tool-{server}"))
}

/// Volume of a skill's `ConfigMap`.
pub(super) fn skill_volume(skill: &str) -> String {
    names::bounded(&format!("outrigger-skill-{skill}"))
}

/// Returns when the container's work is done; no shell needed.
fn drain_hook(container: &str, token: &str) -> Value {
    json!({"httpGet": {
        "path": format!("/drain/{container}"),
        "port": ADMIN_PORT,
        "scheme": "HTTP",
        "httpHeaders": [{"name": DRAIN_HEADER, "value": token}],
    }})
}

/// Security, `/tmp`, canonical resources: for every container of the user's.
pub(super) fn users(mut container: Map<String, Value>, volumes: &mut Vec<Value>) -> Map<String, Value> {
    if security::container(&mut container) {
        volumes.extend(security::scratch(&mut container));
    }
    if let Some(resources) = container.get_mut("resources") {
        canonical_resources(resources);
    }
    container
}

/// What the container named `agent` gets beyond [`users`].
pub(super) fn agent(container: &mut Map<String, Value>, has_skills: bool, token: &str) {
    let mut mounts = take_list(container, "volumeMounts");
    mounts.push(mount(AGENT_VOLUME, AGENT_DIR, true));
    if has_skills {
        mounts.push(mount(SKILLS_VOLUME, SKILLS_DIR, true));
    }
    put_list(container, "volumeMounts", mounts);
    let mut env = take_list(container, "env");
    put_named(&mut env, json!({"name": "OUTRIGGER_TOKEN_FILE", "value": format!("{AGENT_DIR}/{TOKEN_FILE}")}));
    put_named(&mut env, json!({"name": "OUTRIGGER_URLS_FILE", "value": format!("{AGENT_DIR}/{URLS_FILE}")}));
    put_list(container, "env", env);
    let mut lifecycle = take_object(container, "lifecycle");
    default(&mut lifecycle, "preStop", drain_hook(names::AGENT_CONTAINER, token));
    container.insert("lifecycle".into(), Value::Object(lifecycle));
    // The last words of a crash stand in the pod's status, and from there in the Agent's.
    default(container, "terminationMessagePolicy", json!("FallbackToLogsOnError"));
}

fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsGroup": names::SIDECAR_USER,
        "runAsNonRoot": true,
        "runAsUser": names::SIDECAR_USER,
    })
}

/// The init container that brings the shim.
pub(super) fn install(settings: &Settings) -> Value {
    json!({
        "name": names::INSTALL_CONTAINER,
        "image": settings.sidecar_image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["install-shim", INSTALL_DIR],
        "resources": merge_resources(&settings.install_resources, None),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount(BIN_VOLUME, INSTALL_DIR, false)],
    })
}

/// What the sidecar of an Agent gets beyond what each has.
pub(super) fn agents_sidecar(input: &AgentInput<'_>, volumes: &mut Vec<Value>) -> Value {
    let spec = &input.agent.spec;
    let mut mounts = vec![mount(AGENT_VOLUME, AGENT_DIR, false)];
    let mut env = Vec::new();
    store::sidecar(spec, &mut env, &mut mounts);
    files::mounts(&files::all_sources(input), &mut mounts);
    if !spec.skills.is_empty() {
        mounts.push(mount(SKILLS_VOLUME, SKILLS_DIR, false));
    }
    for skill in &spec.skills {
        mounts.push(mount(&skill_volume(&skill.name), &format!("{SKILL_SOURCES}/{}", skill.name), true));
    }
    mounts.extend(input.servers.iter().filter(|s| s.has_shim()).map(|s| socket_mount(s.name)));
    let resources = spec.sidecar.as_ref().and_then(|s| s.resources.as_ref());
    sidecar(input.settings, resources, env, mounts, volumes)
}

/// Mount of a tool's socket in the sidecar.
pub(super) fn socket_mount(server: &str) -> Value {
    mount(&tool_volume(server), &format!("{TOOLS_DIR}/{server}"), false)
}

/// The token by which a sidecar proves itself to another one and to the operator.
fn identity_volume() -> Value {
    json!({"name": IDENTITY_VOLUME, "projected": {"sources": [{"serviceAccountToken": {
        "audience": IDENTITY_AUDIENCE,
        "expirationSeconds": IDENTITY_SECONDS,
        "path": "token",
    }}]}})
}

/// The sidecar: an init container that stays. Containers start only after its startup probe, so that probe asks for
/// configuration and required skills, never for tools.
pub(super) fn sidecar(
    settings: &Settings,
    resources: Option<&Value>,
    more_env: Vec<Value>,
    more_mounts: Vec<Value>,
    volumes: &mut Vec<Value>,
) -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let scratch = "outrigger-tmp-outrigger";
    volumes.push(super::merge::empty_dir(scratch, &json!({})));
    volumes.push(identity_volume());
    let mut mounts = vec![
        mount(BOOT_VOLUME, BOOT_DIR, true),
        mount(LIVE_VOLUME, LIVE_DIR, true),
        mount(IDENTITY_VOLUME, IDENTITY_DIR, true),
        mount(scratch, "/tmp", false),
    ];
    mounts.extend(more_mounts);
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
    ];
    env.extend(more_env);
    let probe = |path: &str, period: i32, timeout: i32, failures: i32| {
        json!({
            "httpGet": {"path": path, "port": ADMIN_PORT, "scheme": "HTTP"},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": failures,
        })
    };
    json!({
        "name": names::SIDECAR_CONTAINER,
        "image": settings.sidecar_image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["run"],
        "restartPolicy": "Always",
        "env": env,
        "ports": [
            {"name": "outrigger-a2a", "containerPort": A2A_PORT, "protocol": "TCP"},
            {"name": "outrigger-admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "startupProbe": probe("/startz", 1, 2, 600),
        "readinessProbe": probe("/readyz", 2, 2, 2),
        "livenessProbe": probe("/livez", 10, 5, 3),
        "resources": merge_resources(&settings.sidecar_resources, resources),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    })
}

/// The container of a tool. Over standard input and output the shim is its entrypoint and starts the server's command as
/// often as the sidecar asks. `renamed` gives the name in the pod for each of the server's own volumes.
pub(super) fn tool(
    server: &ServerInput<'_>,
    launch: &Launch,
    settings: &Settings,
    renamed: &dyn Fn(&str) -> String,
    token: &str,
    volumes: &mut Vec<Value>,
) -> Value {
    let spec = server.spec;
    let name = names::tool_container(server.name);
    let mut env: Vec<Value> = Vec::new();
    let given = |name: &str| super::merge::named(&spec.env, name).is_some();
    env.extend(launch.env.iter().filter(|(n, _)| !given(n)).map(|(n, v)| json!({"name": n, "value": v})));
    env.extend(spec.env.iter().cloned());
    if server.has_shim() {
        let most = server.checked.process.max_processes.to_string();
        put_named(&mut env, json!({"name": "OUTRIGGER_SOCKET", "value": format!("{TOOL_RUN_DIR}/{SHIM_SOCKET}")}));
        put_named(&mut env, json!({"name": "OUTRIGGER_MAX_PROCESSES", "value": most}));
    }
    let mut mounts: Vec<Value> = spec
        .volume_mounts
        .iter()
        .map(|m| {
            let mut m = m.clone();
            m["name"] = json!(renamed(super::merge::text(&m, "name")));
            m
        })
        .collect();
    if server.has_shim() {
        mounts.push(mount(BIN_VOLUME, SHIM_DIR, true));
        mounts.push(mount(&tool_volume(server.name), TOOL_RUN_DIR, false));
    }
    let mut container = Map::new();
    container.insert("name".into(), json!(name));
    container.insert("image".into(), json!(launch.image));
    let words = |words: &[String]| words.iter().map(|w| json!(w)).collect::<Vec<_>>();
    if server.has_shim() {
        let mut args = vec![json!("--")];
        args.extend(words(&launch.command));
        args.extend(words(&launch.args));
        container.insert("command".into(), json!([format!("{SHIM_DIR}/outrigger-shim")]));
        container.insert("args".into(), Value::Array(args));
    } else {
        put_list(&mut container, "command", words(&launch.command));
        put_list(&mut container, "args", words(&launch.args));
        if let Some(http) = &spec.transport.http {
            container.insert("ports".into(), json!([{"containerPort": http.port, "protocol": "TCP"}]));
        }
    }
    put_list(&mut container, "env", env);
    put_list(&mut container, "envFrom", spec.env_from.clone());
    put_list(&mut container, "volumeMounts", mounts);
    container.insert("resources".into(), merge_resources(&settings.tool_resources, spec.resources.as_ref()));
    let mut context = spec.security_context.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
    if launch.is_runner {
        default(&mut context, "runAsUser", json!(names::SIDECAR_USER));
        default(&mut context, "runAsGroup", json!(names::SIDECAR_USER));
    }
    container.insert("securityContext".into(), Value::Object(context));
    if let Some(probe) = &spec.liveness_probe {
        container.insert("livenessProbe".into(), probe.clone());
    }
    container.insert("lifecycle".into(), json!({"preStop": drain_hook(&name, token)}));
    container.insert("terminationMessagePolicy".into(), json!("FallbackToLogsOnError"));
    if security::container(&mut container) {
        volumes.extend(security::scratch(&mut container));
    }
    Value::Object(container)
}
