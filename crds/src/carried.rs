//! Schemas of Kubernetes' own types that our resources carry as raw JSON.
//!
//! They are carried and not typed, so that a field newer than our libraries survives; the schema comes from the newest
//! Kubernetes that we support (`crds/schema/`).

use std::sync::LazyLock;

use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

static TEMPLATE: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../schema/pod-template.json")).unwrap_or_default());

fn at(pointer: &str) -> Value {
    TEMPLATE.pointer(pointer).cloned().unwrap_or_default()
}

fn schema(value: Value) -> Schema {
    Schema::try_from(value).unwrap_or_default()
}

fn container(field: &str) -> Value {
    at(&format!("/properties/spec/properties/containers/items/properties/{field}"))
}

/// A CEL rule as the API server wants it.
fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// A `PodTemplateSpec` with what an Agent's pod may not have refused.
pub(crate) fn agent_template(_: &mut SchemaGenerator) -> Schema {
    let mut template = TEMPLATE.clone();
    let rules = vec![
        rule(
            "self.spec.containers.exists(c, c.name == 'agent')",
            "name one container \"agent\": it is the one that gets the turns",
        ),
        rule(
            "self.spec.containers.all(c, !c.name.startsWith('outrigger') && !c.name.startsWith('tool-'))",
            "container names that begin with \"outrigger\" or \"tool-\" are Outrigger's own: choose another name",
        ),
        rule(
            "!has(self.spec.initContainers) || self.spec.initContainers.all(c, !c.name.startsWith('outrigger') && !c.name.startsWith('tool-'))",
            "init container names that begin with \"outrigger\" or \"tool-\" are Outrigger's own: choose another name",
        ),
        rule(
            "!has(self.spec.volumes) || self.spec.volumes.all(v, !v.name.startsWith('outrigger') && !v.name.startsWith('tool-'))",
            "volume names that begin with \"outrigger\" or \"tool-\" are Outrigger's own: choose another name",
        ),
        rule(
            "self.spec.containers.all(c, !has(c.ports) || c.ports.all(p, p.containerPort < 19000 || p.containerPort > 19999))",
            "ports 19000 to 19999 are Outrigger's own: let the container listen elsewhere",
        ),
        rule(
            "self.spec.containers.all(c, !has(c.ports) || c.ports.all(p, !has(p.name) || !p.name.startsWith('outrigger')))",
            "port names that begin with \"outrigger\" are Outrigger's own: choose another name",
        ),
        rule(
            "!has(self.spec.serviceAccountName) && !has(self.spec.serviceAccount)",
            "remove serviceAccountName: each Agent runs as a ServiceAccount of its own; cloud identity goes to spec.serviceAccount.annotations",
        ),
        rule(
            "!has(self.spec.hostNetwork) || !self.spec.hostNetwork",
            "remove hostNetwork: the ports of two agents on one node would clash",
        ),
        rule(
            "!has(self.spec.hostPID) || !self.spec.hostPID",
            "remove hostPID: it opens other pods' tools to this agent",
        ),
        rule(
            "!has(self.spec.hostIPC) || !self.spec.hostIPC",
            "remove hostIPC: it opens other pods' memory to this agent",
        ),
        rule(
            "!has(self.spec.shareProcessNamespace) || !self.spec.shareProcessNamespace",
            "remove shareProcessNamespace: tools and agent are kept apart by it being off",
        ),
        rule(
            "!has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'",
            "remove restartPolicy: an Agent's pod always restarts",
        ),
    ];
    template["x-kubernetes-validations"] = Value::Array(rules);
    template["description"] = json!(
        "Template of the Agent's pods, merged with what Outrigger adds. Its container named \"agent\" gets the turns."
    );
    schema(template)
}

fn described(mut value: Value, description: &str) -> Schema {
    value["description"] = json!(description);
    schema(value)
}

/// `core/v1` environment of a container.
pub(crate) fn env(_: &mut SchemaGenerator) -> Schema {
    let mut value = container("env");
    value["maxItems"] = json!(256);
    value["items"]["x-kubernetes-validations"] = json!([rule(
        "!self.name.startsWith('OUTRIGGER_')",
        "variables that begin with OUTRIGGER_ are Outrigger's own: choose another name"
    )]);
    described(value, "Environment of the server.")
}

/// `core/v1` environment sources of a container.
pub(crate) fn env_from(_: &mut SchemaGenerator) -> Schema {
    described(container("envFrom"), "Sources of environment variables.")
}

/// `core/v1` volumes of a pod.
pub(crate) fn volumes(_: &mut SchemaGenerator) -> Schema {
    let mut value = at("/properties/spec/properties/volumes");
    value["maxItems"] = json!(32);
    value["items"]["x-kubernetes-validations"] = json!([rule(
        "!has(self.projected) || !has(self.projected.sources) || self.projected.sources.all(s, !has(s.serviceAccountToken))",
        "remove serviceAccountToken: a tool runs in the pod of every agent that uses it and may not act as one"
    )]);
    if let Some(sources) = value.pointer_mut("/items/properties/projected/properties/sources") {
        sources["maxItems"] = json!(32);
    }
    described(value, "Volumes that the server's container mounts.")
}

/// `core/v1` volume mounts of a container.
pub(crate) fn volume_mounts(_: &mut SchemaGenerator) -> Schema {
    let mut value = container("volumeMounts");
    value["maxItems"] = json!(64);
    value["items"]["properties"]["mountPath"]["maxLength"] = json!(1024);
    value["items"]["x-kubernetes-validations"] = json!([rule(
        "self.mountPath != '/outrigger' && !self.mountPath.startsWith('/outrigger/') && self.mountPath != '/run/outrigger' && !self.mountPath.startsWith('/run/outrigger/')",
        "/outrigger and /run/outrigger are Outrigger's own: mount elsewhere"
    )]);
    described(value, "Where the server's container mounts the volumes.")
}

/// Fields of a pod's specification that a Standalone server's own pods may have: the rest is ours, or the server's.
const SERVER_POD_FIELDS: [&str; 16] = [
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
];

/// A `PodTemplateSpec` without containers, for the pods of a Standalone server.
pub(crate) fn server_template(_: &mut SchemaGenerator) -> Schema {
    let mut template = TEMPLATE.clone();
    if let Some(spec) = template.pointer_mut("/properties/spec").and_then(Value::as_object_mut) {
        spec.remove("required");
        if let Some(fields) = spec.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|field, _| SERVER_POD_FIELDS.contains(&field.as_str()));
        }
    }
    if let Some(template) = template.as_object_mut() {
        template.remove("required");
    }
    described(
        template,
        "Labels, annotations, scheduling and the like of the server's own pods; their container is what the rest of the specification says.",
    )
}

/// `core/v1` resources of a container.
pub(crate) fn resources(_: &mut SchemaGenerator) -> Schema {
    described(container("resources"), "Requests and limits; the chart has defaults.")
}

/// `core/v1` security context of a container.
pub(crate) fn security_context(_: &mut SchemaGenerator) -> Schema {
    described(container("securityContext"), "Security context, merged over a restricted one.")
}

/// `core/v1` probe of a container.
pub(crate) fn probe(_: &mut SchemaGenerator) -> Schema {
    described(container("livenessProbe"), "Liveness probe of the container; a failure restarts this container alone.")
}

/// `core/v1` pull secrets of a pod.
pub(crate) fn pull_secrets(_: &mut SchemaGenerator) -> Schema {
    let mut value = at("/properties/spec/properties/imagePullSecrets");
    value["maxItems"] = json!(16);
    described(value, "Secrets with which the image is pulled.")
}

/// Sources of a volume that can hold a database: those that are written to and not read from somewhere.
const STORE_SOURCES: [&str; 4] = ["emptyDir", "ephemeral", "hostPath", "persistentVolumeClaim"];

/// One `core/v1` volume source for the task store.
pub(crate) fn store_volume(_: &mut SchemaGenerator) -> Schema {
    let mut value = at("/properties/spec/properties/volumes/items");
    if let Some(properties) = value["properties"].as_object_mut() {
        properties.retain(|source, _| STORE_SOURCES.contains(&source.as_str()));
    }
    if let Some(map) = value.as_object_mut() {
        map.remove("required");
    }
    let count = STORE_SOURCES.map(|s| format!("(has(self.{s}) ? 1 : 0)")).join(" + ");
    value["x-kubernetes-validations"] = json!([
        rule(&format!("{count} == 1"), &format!("set exactly one source of the volume: {}", STORE_SOURCES.join(", "))),
        rule(
            "!has(self.persistentVolumeClaim) || !has(self.persistentVolumeClaim.readOnly) || !self.persistentVolumeClaim.readOnly",
            "remove readOnly: tasks are written to this volume"
        ),
    ]);
    described(
        value,
        "The volume that holds the file, one source of core/v1. Default emptyDir: {}, which lives as long as the pod.",
    )
}

/// A list of some of these words, each at most once.
pub(crate) fn some_of(description: &str, words: &[&str]) -> Schema {
    schema(json!({
        "type": "array", "description": description, "minItems": 1, "maxItems": words.len(),
        "items": {"type": "string", "enum": words}, "x-kubernetes-list-type": "set",
    }))
}

/// An object of which only its reader knows the shape.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    schema(json!({"type": "object", "description": "Settings of it.", "x-kubernetes-preserve-unknown-fields": true}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_schema_has_what_is_taken_from_it() {
        for field in ["env", "envFrom", "volumeMounts", "resources", "securityContext", "livenessProbe"] {
            assert!(container(field).is_object(), "{field}");
        }
        assert!(at("/properties/spec/properties/volumes").is_object());
        for field in SERVER_POD_FIELDS {
            assert!(at(&format!("/properties/spec/properties/{field}")).is_object(), "{field}");
        }
        assert!(at("/properties/spec/properties/imagePullSecrets").is_object());
        let volumes = at("/properties/spec/properties/volumes/items/properties");
        assert!(STORE_SOURCES.iter().all(|s| volumes[s].is_object()));
    }
}
