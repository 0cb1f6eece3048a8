//! What the API server refuses, with the path of the field and a message that tells what to do.
//!
//! Needs an API server only: `make test-crds`.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::sync::Once;
use std::time::Duration;

use outrigger_e2e::{apply, eventually, get, kubectl, run_with};
use serde_json::{Value, json};

fn agent() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "good"}, "spec": {
        "description": "Sells burgers", "runtime": {"http": {"port": 8000}},
        "template": {"spec": {"containers": [{"name": "agent", "image": "localhost/x:1"}]}}}})
}

fn server() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": "good"},
        "spec": {"transport": {"stdio": {}}, "image": "localhost/t:1", "command": ["/t"]}})
}

fn skill() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Skill", "metadata": {"name": "good"},
        "spec": {"source": {"inline": {"files": [{"path": "SKILL.md", "content": "---\nname: good\ndescription: d\n---\n"}]}}}})
}

/// One row: a change at a JSON pointer (`null` removes), and what the refusal must contain.
type Row = (&'static str, Value, &'static [&'static str]);

fn change(mut base: Value, pointer: &str, value: &Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let parent = base.pointer_mut(parent).unwrap_or_else(|| panic!("{parent} is not there"));
    match (parent, value) {
        (Value::Object(map), Value::Null) => drop(map.remove(key)),
        (Value::Object(map), _) => drop(map.insert(key.into(), value.clone())),
        (Value::Array(list), _) => list[key.parse::<usize>().unwrap()] = value.clone(),
        _ => panic!("{pointer} leads nowhere"),
    }
    base
}

fn agents() -> Vec<Row> {
    let c = |more: Value| {
        let mut container = json!({"name": "agent", "image": "localhost/x:1"});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([container])
    };
    vec![
        ("/spec/description", Value::Null, &["spec.description", "Required"]),
        ("/spec/description", json!(""), &["spec.description", "at least 1"]),
        ("/spec/description", json!(7), &["spec.description", "must be of type string"]),
        ("/spec/descriptoin", json!("typo"), &["spec.descriptoin", "unknown field"]),
        ("/spec/replicas", json!(-1), &["spec.replicas", "greater than or equal to 0"]),
        ("/spec/replicas", json!(1001), &["spec.replicas", "less than or equal to 1000"]),
        ("/spec/replicas", json!("two"), &["spec.replicas", "must be of type integer"]),
        ("/spec/runtime", Value::Null, &["spec.runtime", "Required"]),
        ("/spec/runtime", json!({}), &["spec.runtime", "set runtime.http"]),
        ("/spec/runtime", json!({"grpc": {}}), &["spec.runtime.grpc", "unknown field"]),
        ("/spec/runtime/http/port", json!(0), &["spec.runtime.http.port", "greater than or equal to 1"]),
        ("/spec/runtime/http/port", json!(70000), &["spec.runtime.http.port", "less than or equal to 65535"]),
        ("/spec/runtime/http/port", json!(19080), &["spec.runtime.http.port", "let the handler listen elsewhere"]),
        ("/spec/runtime/http/path", json!("turn"), &["spec.runtime.http.path", "should match"]),
        ("/spec/template", Value::Null, &["spec.template", "Required"]),
        ("/spec/template/spec/containers", json!([]), &["spec.template", "name one container \"agent\""]),
        (
            "/spec/template/spec/containers/0",
            json!({"name": "main", "image": "x"}),
            &["spec.template", "name one container \"agent\""],
        ),
        (
            "/spec/template/spec/containers/0",
            json!({"image": "x"}),
            &["spec.template.spec.containers[0].name", "Required"],
        ),
        (
            "/spec/template/spec/containers",
            json!([{"name": "agent", "image": "x"}, {"name": "outrigger", "image": "x"}]),
            &["spec.template", "Outrigger's own"],
        ),
        (
            "/spec/template/spec/containers",
            json!([{"name": "agent", "image": "x"}, {"name": "agent", "image": "x"}]),
            &["spec.template.spec.containers[1]", "Duplicate"],
        ),
        (
            "/spec/template/spec/containers",
            c(json!({"ports": [{"containerPort": 19464}]})),
            &["spec.template", "listen elsewhere"],
        ),
        (
            "/spec/template/spec/containers",
            c(json!({"ports": [{"containerPort": 80, "name": "outrigger-x"}]})),
            &["spec.template", "choose another name"],
        ),
        (
            "/spec/template/spec/containers",
            c(json!({"imagePullPolice": "Always"})),
            &["spec.template.spec.containers[0].imagePullPolice", "unknown field"],
        ),
        (
            "/spec/template/spec/containers",
            c(json!({"env": [{"name": "A", "value": 1}]})),
            &["spec.template.spec.containers[0].env[0].value", "must be of type string"],
        ),
        (
            "/spec/template/spec/initContainers",
            json!([{"name": "outrigger", "image": "x"}]),
            &["spec.template", "init container names"],
        ),
        (
            "/spec/template/spec/volumes",
            json!([{"name": "outrigger-bin", "emptyDir": {}}]),
            &["spec.template", "volume names"],
        ),
        ("/spec/template/spec/serviceAccountName", json!("admin"), &["spec.template", "remove serviceAccountName"]),
        ("/spec/template/spec/hostNetwork", json!(true), &["spec.template", "remove hostNetwork"]),
        ("/spec/template/spec/hostPID", json!(true), &["spec.template", "remove hostPID"]),
        ("/spec/template/spec/hostIPC", json!(true), &["spec.template", "remove hostIPC"]),
        ("/spec/template/spec/shareProcessNamespace", json!(true), &["spec.template", "remove shareProcessNamespace"]),
        ("/spec/template/spec/restartPolicy", json!("Never"), &["spec.template", "remove restartPolicy"]),
        ("/spec/mcpServers", json!([{"name": "a"}, {"name": "a"}]), &["spec.mcpServers[1]", "Duplicate"]),
        ("/spec/mcpServers", json!([{"required": true}]), &["spec.mcpServers[0].name", "Required"]),
        ("/spec/mcpServers", json!([{"name": "a", "tools": {}}]), &["spec.mcpServers[0].tools", "unknown field"]),
        ("/spec/skills", json!([{"name": "s"}, {"name": "s"}]), &["spec.skills[1]", "Duplicate"]),
        ("/spec/limits", json!({"turnTimeout": "2 minutes"}), &["spec.limits.turnTimeout", "should match"]),
        (
            "/spec/limits",
            json!({"maxConcurrentTurns": 0}),
            &["spec.limits.maxConcurrentTurns", "greater than or equal to 1"],
        ),
        (
            "/spec/card",
            json!({"skills": [{"id": "a", "name": "a", "description": "d", "tags": []}]}),
            &["spec.card.skills[0].tags", "at least 1"],
        ),
        ("/spec/card", json!({"defaultInputModes": []}), &["spec.card.defaultInputModes", "at least 1"]),
        ("/metadata/name", json!("default"), &["may not be \"default\""]),
        ("/metadata/name", json!("1burger"), &["must begin with a letter"]),
        ("/metadata/name", json!("a.b"), &["must begin with a letter and have only"]),
        ("/metadata/name", json!("a".repeat(53)), &["at most 52 characters"]),
    ]
}

fn servers() -> Vec<Row> {
    vec![
        ("/spec/transport", Value::Null, &["spec.transport", "Required"]),
        ("/spec/transport", json!({}), &["spec.transport", "set transport.stdio: {}"]),
        ("/spec/image", Value::Null, &["spec.image", "Required"]),
        ("/spec/image", json!(""), &["spec.image", "at least 1"]),
        ("/spec/command", json!("python3 -m x"), &["spec.command", "must be of type array"]),
        ("/spec/env", json!([{"name": "OUTRIGGER_SOCKET", "value": "x"}]), &["spec.env[0]", "choose another name"]),
        ("/spec/env", json!([{"name": "A"}, {"name": "A"}]), &["spec.env[1]", "Duplicate"]),
        (
            "/spec/volumeMounts",
            json!([{"name": "v", "mountPath": "/run/outrigger/x"}]),
            &["spec.volumeMounts[0]", "mount elsewhere"],
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            &["spec.volumes[0]", "remove serviceAccountToken"],
        ),
        ("/spec/process", json!({"maxProcesses": 0}), &["spec.process.maxProcesses", "greater than or equal to 1"]),
        ("/spec/process", json!({"startTimeout": "soon"}), &["spec.process.startTimeout", "should match"]),
        ("/spec/placement", json!("Standalone"), &["spec.placement", "unknown field"]),
        ("/metadata/name", json!("a".repeat(53)), &["at most 52 characters"]),
    ]
}

fn skills() -> Vec<Row> {
    let files = |list: Value| json!({"inline": {"files": list}});
    vec![
        ("/spec/source", json!({}), &["spec.source", "set source.inline"]),
        ("/spec/source", files(json!([])), &["spec.source.inline.files", "at least 1"]),
        (
            "/spec/source",
            files(json!([{"path": "README.md", "content": "x"}])),
            &["spec.source.inline.files", "SKILL.md"],
        ),
        (
            "/spec/source",
            files(json!([{"path": "SKILL.md", "content": "x"}, {"path": "../x", "content": "x"}])),
            &["spec.source.inline.files[1].path", "may not have the parts"],
        ),
        (
            "/spec/source",
            files(json!([{"path": "SKILL.md", "content": "x"}, {"path": "/x", "content": "x"}])),
            &["spec.source.inline.files[1].path", "should match"],
        ),
        (
            "/spec/source",
            files(json!([{"path": "SKILL.md", "content": "x", "contentBase64": "eA=="}])),
            &["spec.source.inline.files[0]", "exactly one"],
        ),
        ("/spec/source", files(json!([{"path": "SKILL.md"}])), &["spec.source.inline.files[0]", "exactly one"]),
        (
            "/spec/source",
            files(json!([{"path": "SKILL.md", "contentBase64": "%%%"}])),
            &["spec.source.inline.files[0].contentBase64", "should match"],
        ),
        (
            "/spec/source",
            files(json!([{"path": "SKILL.md", "content": "x", "mode": 365}])),
            &["spec.source.inline.files[0].mode", "unknown field"],
        ),
        ("/metadata/name", json!("a--b"), &["must be a skill's name"]),
    ]
}

/// Applies the definitions once, client side as most users do.
fn installed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        kubectl(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/manifests")]).unwrap();
        for name in ["agents", "mcpservers", "skills"] {
            kubectl(&["wait", "--for=condition=Established", &format!("crd/{name}.outrigger.dev"), "--timeout=30s"])
                .unwrap();
        }
        eventually("the kinds are served", Duration::from_secs(30), || kubectl(&["get", "outrigger"])).unwrap();
    });
}

fn refusal(manifest: &Value) -> String {
    let text = manifest.to_string();
    match run_with("kubectl", &["create", "--dry-run=server", "--validate=strict", "-f", "-"], &text) {
        Ok(_) => "accepted".into(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn good_manifests_are_taken_and_bad_ones_refused_with_the_path() {
    installed();
    let mut refused = 0;
    let mut wrong = Vec::new();
    for (base, rows) in [(agent(), agents()), (server(), servers()), (skill(), skills())] {
        assert_eq!(refusal(&base), "accepted");
        for (pointer, value, wanted) in rows {
            let said = refusal(&change(base.clone(), pointer, &value));
            let missing: Vec<_> = wanted.iter().filter(|w| !said.contains(**w)).collect();
            if said == "accepted" || !missing.is_empty() {
                wrong.push(format!("{pointer} = {value}: wants {missing:?} in: {said}"));
            }
            refused += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {refused}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused >= 40);
}

#[test]
fn a_transport_cannot_change_and_scale_works_without_replicas() {
    installed();
    let _ = kubectl(&["delete", "oagent/good", "omcp/good", "--ignore-not-found"]);
    apply("default", &agent().to_string()).unwrap();
    apply("default", &server().to_string()).unwrap();
    assert_eq!(get(&["get", "oagent/good"]).unwrap()["spec"]["replicas"], 1);
    kubectl(&["scale", "oagent/good", "--replicas=3"]).unwrap();
    apply("default", &agent().to_string()).unwrap();
    assert_eq!(get(&["get", "oagent/good"]).unwrap()["spec"]["replicas"], 3, "an unchanged manifest must not reset it");
    let patch = r#"{"spec": {"transport": {"stdio": null}}}"#;
    let said = kubectl(&["patch", "omcp/good", "--type=merge", "-p", patch]).unwrap_err().to_string();
    assert!(said.contains("spec.transport"), "{said}");
    kubectl(&["delete", "oagent/good", "omcp/good"]).unwrap();
}
