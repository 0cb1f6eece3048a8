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

/// Names of their own keep tests that run side by side apart.
fn named(mut manifest: Value, name: &str) -> Value {
    manifest["metadata"]["name"] = json!(name);
    manifest
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
        (
            "/spec/runtime",
            json!({"http": {"port": 8000}, "a2a": {"port": 8001}}),
            &["spec.runtime", "set runtime.http or runtime.a2a, and not both"],
        ),
        ("/spec/runtime", json!({"a2a": {}}), &["spec.runtime.a2a.port", "Required"]),
        (
            "/spec/runtime",
            json!({"a2a": {"port": 19900}}),
            &["spec.runtime.a2a.port", "let the container listen elsewhere"],
        ),
        ("/spec/runtime", json!({"a2a": {"port": 1, "path": "a b"}}), &["spec.runtime.a2a.path", "should match"]),
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
        ("/metadata/name", json!("default"), &["may not be \"default\""]),
        ("/metadata/name", json!("1burger"), &["must begin with a letter"]),
        ("/metadata/name", json!("a.b"), &["must begin with a letter and have only"]),
        ("/metadata/name", json!("a".repeat(53)), &["at most 52 characters"]),
    ]
}

/// Tools, skills, limits and cards of Agents.
fn cards() -> Vec<Row> {
    vec![
        ("/spec/mcpServers", json!([{"name": "a"}, {"name": "a"}]), &["spec.mcpServers[1]", "Duplicate"]),
        ("/spec/mcpServers", json!([{"required": true}]), &["spec.mcpServers[0].name", "Required"]),
        (
            "/spec/mcpServers",
            json!([{"name": "a", "tools": {"allow": [""]}}]),
            &["spec.mcpServers[0].tools.allow[0]", "at least 1"],
        ),
        (
            "/spec/mcpServers",
            json!([{"name": "a", "tools": {"drift": "Warn"}}]),
            &["spec.mcpServers[0].tools.drift", "unknown field"],
        ),
        (
            "/spec/mcpServers",
            json!([{"name": "a", "namespace": "Tools"}]),
            &["spec.mcpServers[0].namespace", "should match"],
        ),
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
        ("/spec/card", json!({"public": {}}), &["spec.card.public", "set public.url, public.grpc or both"]),
        ("/spec/card", json!({"public": {"url": "agents.example.com"}}), &["spec.card.public.url", "should match"]),
        ("/spec/card", json!({"public": {"url": "https://a.example/x?y"}}), &["spec.card.public.url", "should match"]),
        ("/spec/card", json!({"public": {"grpc": "https://a:443"}}), &["spec.card.public.grpc", "should match"]),
        ("/spec/card", json!({"bindings": ["REST"]}), &["spec.card.bindings[0]", "supported values", "HTTP+JSON"]),
        ("/spec/card", json!({"bindings": []}), &["spec.card.bindings", "at least 1"]),
        ("/spec/card", json!({"versions": ["1.0", "1.0"]}), &["spec.card.versions[1]", "Duplicate"]),
        ("/spec/card", json!({"versions": ["1.0.1"]}), &["spec.card.versions[0]", "supported values"]),
        ("/spec/card", json!({"extensions": [{"required": true}]}), &["spec.card.extensions[0].uri", "Required"]),
        ("/spec/card", json!({"signingKeys": {}}), &["spec.card.signingKeys.secretName", "Required"]),
        ("/spec/card", json!({"extended": {"description": "x"}}), &["spec.card.extended", "set spec.access too"]),
        ("/spec/card", json!({"supportedInterfaces": []}), &["spec.card.supportedInterfaces", "unknown field"]),
        ("/spec/limits", json!({"heartbeat": "often"}), &["spec.limits.heartbeat", "should match"]),
        ("/spec/limits", json!({"maxStreamsPerTask": 0}), &["spec.limits.maxStreamsPerTask", "greater than or equal"]),
        ("/spec/limits", json!({"maxOpenTasksPerCaller": -1}), &["spec.limits.maxOpenTasksPerCaller", "greater than"]),
    ]
}

/// Stores and turns of Agents.
fn tasks() -> Vec<Row> {
    vec![
        ("/spec/tasks", json!({"store": {}}), &["spec.tasks.store", "set exactly one of tasks.store.memory"]),
        (
            "/spec/tasks",
            json!({"store": {"memory": {}, "sqlite": {}}}),
            &["spec.tasks.store", "set exactly one of tasks.store.memory"],
        ),
        ("/spec/tasks", json!({"store": {"redis": {}}}), &["spec.tasks.store.redis", "unknown field"]),
        ("/spec/tasks", json!({"store": {"postgres": {}}}), &["spec.tasks.store.postgres.urlFrom", "Required"]),
        (
            "/spec/tasks",
            json!({"store": {"postgres": {"urlFrom": {"secretKeyRef": {"name": "s"}}}}}),
            &["spec.tasks.store.postgres.urlFrom.secretKeyRef.key", "Required"],
        ),
        (
            "/spec/tasks",
            json!({"store": {"sqlite": {"volume": {}}}}),
            &["spec.tasks.store.sqlite.volume", "set exactly one source of the volume"],
        ),
        (
            "/spec/tasks",
            json!({"store": {"sqlite": {"volume": {"emptyDir": {}, "hostPath": {"path": "/x"}}}}}),
            &["spec.tasks.store.sqlite.volume", "set exactly one source of the volume"],
        ),
        (
            "/spec/tasks",
            json!({"store": {"sqlite": {"volume": {"secret": {}}}}}),
            &["spec.tasks.store.sqlite.volume.secret", "unknown field"],
        ),
        (
            "/spec/tasks",
            json!({"store": {"sqlite": {"volume": {"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}}}}),
            &["spec.tasks.store.sqlite.volume", "remove readOnly"],
        ),
        ("/spec/turns", json!({"recovery": "Retry"}), &["spec.turns.recovery", "supported values", "Redeliver"]),
        ("/spec/turns", json!({"serialize": "Agent"}), &["spec.turns.serialize", "supported values", "Context"]),
        (
            "/spec/turns",
            json!({"closeOnInterrupted": true}),
            &["spec.turns.closeOnInterrupted", "must be of type string"],
        ),
        ("/spec/turns", json!({"onDisconnect": "Stop"}), &["spec.turns.onDisconnect", "supported values", "Cancel"]),
    ]
}

/// Who may call an Agent, whom it tells, whom it calls.
fn edges() -> Vec<Row> {
    vec![
        ("/spec/access", json!({}), &["spec.access", "name access.apiKeys or access.jwt"]),
        ("/spec/access", json!({"anonymous": false, "jwt": []}), &["spec.access", "name access.apiKeys or access.jwt"]),
        ("/spec/access", json!({"apiKeys": {}}), &["spec.access.apiKeys.secretName", "Required"]),
        (
            "/spec/access",
            json!({"apiKeys": {"secretName": "s", "header": "X Key"}}),
            &["spec.access.apiKeys.header", "should match"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "https://i", "audiences": []}]}),
            &["spec.access.jwt[0].audiences", "at least 1"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "https://i", "audiences": ["a"]}, {"issuer": "https://i", "audiences": ["b"]}]}),
            &["spec.access.jwt[1]", "Duplicate"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "local", "audiences": ["a"]}]}),
            &["spec.access.jwt[0]", "set jwksUrl or jwksFrom: the issuer is no URL"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "i", "audiences": ["a"], "jwksUrl": "https://j", "jwksFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}),
            &["spec.access.jwt[0]", "jwksUrl or jwksFrom, not both"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "i", "audiences": ["a"], "jwksFrom": {"configMapKeyRef": {"name": "c", "key": "k"}},
                "caFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}),
            &["spec.access.jwt[0]", "remove caFrom"],
        ),
        (
            "/spec/access",
            json!({"jwt": [{"issuer": "i", "audiences": ["a"], "jwksUrl": "file:///x"}]}),
            &["spec.access.jwt[0].jwksUrl", "should match"],
        ),
        ("/spec/push", json!({"allow": [""]}), &["spec.push.allow[0]", "at least 1"]),
        ("/spec/push", json!({"token": "x"}), &["spec.push.token", "unknown field"]),
        ("/spec/peers", json!([{"namespace": "n"}]), &["spec.peers[0].name", "Required"]),
        ("/spec/peers", json!([{"name": "Seller"}]), &["spec.peers[0].name", "should match"]),
    ]
}

/// An Agent with everything that the A2A side can be told.
fn full_agent() -> Value {
    let mut agent = agent();
    let config_map = |name: &str| json!({"configMapKeyRef": {"name": name, "key": "ca.crt"}});
    agent["spec"]["runtime"] = json!({"a2a": {"port": 8000, "path": "/a2a"}});
    agent["spec"]["card"] = json!({"public": {"url": "https://a.example/x", "grpc": "[fd00::1]:443"}, "trustedProxies": ["10.0.0.0/8"],
        "signingKeys": {"secretName": "s"}, "bindings": ["GRPC", "HTTP+JSON"], "versions": ["1.0", "0.3"], "streaming": false,
        "extended": {"skills": [{"id": "a", "name": "a", "description": "d", "tags": ["t"]}]}, "checkInputModes": true,
        "legacyPythonFileBytes": true, "extensions": [{"uri": "u", "required": true, "params": {"any": [{"thing": 1}]}}]});
    agent["spec"]["tasks"] = json!({"max": 5, "retention": "1h", "store": {"postgres":
        {"urlFrom": {"secretKeyRef": {"name": "s", "key": "url"}}, "caFrom": config_map("db")}}});
    agent["spec"]["turns"] = json!({"recovery": "Redeliver", "serialize": "Context", "closeOnInterrupted": "None",
        "onDisconnect": "Cancel", "dedupeMessages": true});
    agent["spec"]["limits"] = json!({"streamIdleTimeout": "1m", "asyncIdleTimeout": "1m", "asyncTimeout": "1h", "waitTimeout": "5s",
        "heartbeat": "1s", "maxTaskBytes": 1024, "maxOpenTasksPerCaller": 1, "maxTasksPerCaller": 1, "maxStreamsPerCaller": 1, "maxStreamsPerTask": 1,
        "maxRequestsPerSecond": 1, "requestBurst": 1, "maxPushConfigs": 1});
    agent["spec"]["access"] = json!({"anonymous": true, "apiKeys": {"secretName": "s"}, "jwt": [
        {"issuer": "https://i", "audiences": ["a"], "caFrom": config_map("ca"), "scopes": ["x"]},
        {"issuer": "i", "audiences": ["a"], "jwksFrom": config_map("keys")}]});
    agent["spec"]["push"] =
        json!({"allow": ["10.0.0.0/8:443"], "signingKeys": {"secretName": "s"}, "caFrom": config_map("ca")});
    agent["spec"]["peers"] = json!([{"name": "a"}, {"name": "a", "namespace": "n"}]);
    agent
}

fn servers() -> Vec<Row> {
    vec![
        ("/spec/transport", Value::Null, &["spec.transport", "Required"]),
        ("/spec/transport", json!({}), &["spec.transport", "set exactly one of transport.stdio"]),
        (
            "/spec/transport",
            json!({"stdio": {}, "http": {"port": 8000}}),
            &["spec.transport", "set exactly one of transport.stdio"],
        ),
        ("/spec/transport", json!({"http": {}}), &["spec.transport.http.port", "Required"]),
        ("/spec/transport", json!({"http": {"port": 19080}}), &["spec.transport.http.port", "listen elsewhere"]),
        (
            "/spec/transport",
            json!({"http": {"port": 80, "path": "mcp"}}),
            &["spec.transport.http.path", "should match"],
        ),
        ("/spec/transport", json!({"remote": {}}), &["spec.transport.remote.url", "Required"]),
        ("/spec/transport", json!({"remote": {"url": "ftp://x/"}}), &["spec.transport.remote.url", "should match"]),
        (
            "/spec/transport",
            json!({"remote": {"url": "https://a:b@x/mcp"}}),
            &["spec.transport.remote.url", "should match"],
        ),
        (
            "/spec/transport",
            json!({"remote": {"url": "https://x/mcp"}}),
            &["spec", "a remote server has no container: remove image"],
        ),
        ("/spec/image", Value::Null, &["spec", "set image or package"]),
        ("/spec/package", json!({"npm": {"name": "x", "version": "1.0.0"}}), &["spec", "set image or package"]),
        ("/spec/package", json!({}), &["spec.package", "set package.npm or package.pypi"]),
        (
            "/spec/package",
            json!({"npm": {"name": "x", "version": "latest"}}),
            &["spec.package.npm.version", "should match"],
        ),
        (
            "/spec/package",
            json!({"npm": {"name": "../x", "version": "1.0.0"}}),
            &["spec.package.npm.name", "should match"],
        ),
        (
            "/spec/package",
            json!({"pypi": {"name": "x", "version": ">=1"}}),
            &["spec.package.pypi.version", "should match"],
        ),
        ("/spec/placement", json!("Nearby"), &["spec.placement", "InPod", "Standalone"]),
        ("/spec/replicas", json!(2), &["spec.replicas", "replicas is for placement: Standalone"]),
        ("/spec/podTemplate", json!({}), &["spec.podTemplate", "podTemplate is for placement: Standalone"]),
        (
            "/spec/access",
            json!({"from": [{"namespace": "a"}]}),
            &["spec.access", "access is for placement: Standalone"],
        ),
        ("/spec/protocol", json!({"era": "Old"}), &["spec.protocol.era", "Auto", "Legacy", "Modern"]),
        ("/spec/tools", json!({"driftPolicy": "Ask"}), &["spec.tools.driftPolicy", "Block"]),
        ("/spec/tools", json!({"driftPolicy": "Block"}), &["spec.tools", "driftPolicy needs pins"]),
        ("/spec/tools", json!({"pins": {"a": "sha256:00"}}), &["spec.tools.pins", "should match"]),
        ("/spec/tools", json!({"maxPerMinute": 0}), &["spec.tools.maxPerMinute", "greater than or equal to 1"]),
        ("/spec/process", json!({"sharing": "Never"}), &["spec.process.sharing", "PerSession"]),
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
        ("/metadata/name", json!("a".repeat(53)), &["at most 52 characters"]),
    ]
}

fn standalone() -> Value {
    change(change(server(), "/spec/placement", &json!("Standalone")), "/spec/replicas", &json!(2))
}

fn standalones() -> Vec<Row> {
    vec![
        ("/metadata/name", json!("1-tool"), &["must begin with a letter for placement: Standalone"]),
        (
            "/spec/podTemplate",
            json!({"spec": {"containers": []}}),
            &["spec.podTemplate.spec.containers", "unknown field"],
        ),
        (
            "/spec/podTemplate",
            json!({"spec": {"hostNetwork": true}}),
            &["spec.podTemplate.spec.hostNetwork", "unknown field"],
        ),
        ("/spec/access", json!({"from": [{"agent": "a"}]}), &["spec.access.from[0].namespace", "Required"]),
        ("/spec/access", json!({"from": [{"namespace": "A"}]}), &["spec.access.from[0].namespace", "should match"]),
    ]
}

fn remote() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": "good"},
        "spec": {"transport": {"remote": {"url": "https://mcp.example.com/mcp", "headersFrom": {"secretName": "s"},
            "caFrom": {"configMapKeyRef": {"name": "ca", "key": "ca.pem"}}, "allow": ["10.0.0.0/8:8080"]}},
            "protocol": {"era": "Legacy"},
            "tools": {"allow": ["get_*"], "deny": ["get_secret"], "driftPolicy": "Warn", "maxPerMinute": 60,
                "pins": {"get_time": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}}}})
}

fn remotes() -> Vec<Row> {
    vec![
        ("/spec/placement", json!("InPod"), &["spec.placement", "a remote server runs elsewhere"]),
        ("/spec/command", json!(["/x"]), &["spec", "a remote server has no container"]),
        ("/spec/env", json!([{"name": "A", "value": "b"}]), &["spec", "a remote server has no container"]),
        ("/spec/replicas", json!(2), &["spec.replicas", "replicas is for placement: Standalone"]),
        (
            "/spec/transport/remote/headersFrom",
            json!({}),
            &["spec.transport.remote.headersFrom.secretName", "Required"],
        ),
        ("/spec/transport/remote/allow", json!([""]), &["spec.transport.remote.allow[0]", "at least 1"]),
    ]
}

fn package() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": "good"},
        "spec": {"transport": {"stdio": {}}, "package": {"npm": {"name": "@scope/server", "version": "1.2.3-rc.1"}}}})
}

fn packages() -> Vec<Row> {
    vec![
        ("/spec/transport", json!({"http": {"port": 8000}}), &["spec.package", "package needs transport.stdio"]),
        (
            "/spec/package/pypi",
            json!({"name": "x", "version": "1"}),
            &["spec.package", "set package.npm or package.pypi, and not both"],
        ),
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
    let agents = [agents(), cards(), tasks(), edges()].concat();
    let tables = [
        (agent(), agents),
        (server(), servers()),
        (standalone(), standalones()),
        (remote(), remotes()),
        (package(), packages()),
        (skill(), skills()),
    ];
    for (base, rows) in tables {
        assert_eq!(refusal(&base), "accepted");
        assert_eq!(refusal(&full_agent()), "accepted");
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

/// What stands between "```yaml" and "```" and begins with `spec:`: part of an Agent.
fn parts_of_agents(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{}/../docs/{document}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.filter(|b| b.starts_with("spec:\n")).collect()
}

#[test]
fn what_the_documents_show_is_taken() {
    installed();
    let head = "apiVersion: outrigger.dev/v1alpha1\nkind: Agent\nmetadata: {name: shown}\n";
    let rest = "  description: d\n  runtime: {http: {port: 8000}}\n  template: {spec: {containers: [{name: agent, image: i}]}}\n";
    let mut checked = 0;
    for document in ["concepts.md", "security.md"] {
        for block in parts_of_agents(document) {
            let manifest = format!("{head}{block}{rest}");
            if let Err(e) =
                run_with("kubectl", &["create", "--dry-run=server", "--validate=strict", "-f", "-"], &manifest)
            {
                panic!("{document}: {e}\n{block}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 3, "{checked}");
}

#[test]
fn a_transport_cannot_change_and_scale_works_without_replicas() {
    installed();
    let _ = kubectl(&["delete", "oagent/scaled", "omcp/scaled", "--ignore-not-found"]);
    apply("default", &named(agent(), "scaled").to_string()).unwrap();
    apply("default", &named(server(), "scaled").to_string()).unwrap();
    assert_eq!(get(&["get", "oagent/scaled"]).unwrap()["spec"]["replicas"], 1);
    kubectl(&["scale", "oagent/scaled", "--replicas=3"]).unwrap();
    apply("default", &named(agent(), "scaled").to_string()).unwrap();
    assert_eq!(
        get(&["get", "oagent/scaled"]).unwrap()["spec"]["replicas"],
        3,
        "an unchanged manifest must not reset it"
    );
    let patch = r#"{"spec": {"transport": {"stdio": null}}}"#;
    let said = kubectl(&["patch", "omcp/scaled", "--type=merge", "-p", patch]).unwrap_err().to_string();
    assert!(said.contains("spec.transport"), "{said}");
    for (patch, wanted) in [
        (r#"{"spec": {"transport": {"stdio": null, "http": {"port": 80}}}}"#, "transport cannot change"),
        (r#"{"spec": {"placement": "Standalone"}}"#, "placement cannot change"),
    ] {
        let said = kubectl(&["patch", "omcp/scaled", "--type=merge", "-p", patch]).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}");
    }
    let said = kubectl(&["scale", "omcp/scaled", "--replicas=2"]).unwrap_err().to_string();
    assert!(said.contains("replicas is for placement: Standalone"), "{said}");
    kubectl(&["patch", "omcp/scaled", "--type=merge", "-p", r#"{"spec": {"placement": "InPod"}}"#]).unwrap();
    kubectl(&["delete", "oagent/scaled", "omcp/scaled"]).unwrap();
    apply("default", &named(standalone(), "scaled").to_string()).unwrap();
    kubectl(&["scale", "omcp/scaled", "--replicas=3"]).unwrap();
    assert_eq!(get(&["get", "omcp/scaled"]).unwrap()["spec"]["replicas"], 3);
    kubectl(&["delete", "omcp/scaled"]).unwrap();
}

#[test]
fn a_store_on_a_volume_is_for_one_pod() {
    installed();
    let mut keeper = named(agent(), "keeper");
    keeper["spec"]["tasks"] = json!({"store": {"sqlite": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}}});
    let _ = kubectl(&["delete", "oagent/keeper", "--ignore-not-found"]);
    apply("default", &keeper.to_string()).unwrap();
    let said = kubectl(&["scale", "oagent/keeper", "--replicas=2"]).unwrap_err().to_string();
    assert!(said.contains("spec.replicas") && said.contains("use tasks.store.postgres for more"), "{said}");
    kubectl(&["scale", "oagent/keeper", "--replicas=0"]).unwrap();
    keeper["spec"]["tasks"] = json!({"store": {"sqlite": {"volume": {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}}}});
    keeper["spec"]["replicas"] = json!(3);
    kubectl(&["delete", "oagent/keeper"]).unwrap();
    assert_eq!(refusal(&keeper), "accepted", "each pod has its own");
}
