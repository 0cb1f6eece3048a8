//! What the restricted Pod Security Standard asks for, added where the user set nothing.

use serde_json::{Map, Value, json};

use super::merge::{default, items, mount, take_list, take_object, text};
use crate::names;

/// Defaults of the pod's security context.
pub(super) fn pod(spec: &mut Map<String, Value>) {
    let mut context = take_object(spec, "securityContext");
    default(&mut context, "runAsNonRoot", json!(true));
    default(&mut context, "fsGroup", json!(names::FS_GROUP));
    default(&mut context, "seccompProfile", json!({"type": "RuntimeDefault"}));
    spec.insert("securityContext".into(), Value::Object(context));
}

/// Defaults of a container's security context; whether its root file system is read-only in the end.
pub(super) fn container(container: &mut Map<String, Value>) -> bool {
    let mut context = take_object(container, "securityContext");
    let mut capabilities = take_object(&mut context, "capabilities");
    let privileged = context.get("privileged") == Some(&Value::Bool(true));
    let admin = capabilities
        .get("add")
        .and_then(Value::as_array)
        .is_some_and(|add| add.iter().filter_map(Value::as_str).any(|c| c == "SYS_ADMIN" || c == "CAP_SYS_ADMIN"));
    // The API server refuses false next to either; such a container is the user's choice and PodSecurity's to judge.
    if !privileged && !admin {
        default(&mut context, "allowPrivilegeEscalation", json!(false));
    }
    default(&mut capabilities, "drop", json!(["ALL"]));
    context.insert("capabilities".into(), Value::Object(capabilities));
    default(&mut context, "readOnlyRootFilesystem", json!(true));
    let read_only = context.get("readOnlyRootFilesystem") == Some(&Value::Bool(true));
    container.insert("securityContext".into(), Value::Object(context));
    read_only
}

/// Gives a container with a read-only root a `/tmp` of its own and a home in it. The volume to add, if any.
pub(super) fn scratch(container: &mut Map<String, Value>) -> Option<Value> {
    let mounts_tmp = items(&Value::Object(container.clone()), "volumeMounts")
        .iter()
        .any(|m| text(m, "mountPath").trim_end_matches('/') == "/tmp");
    if mounts_tmp {
        return None;
    }
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let volume = names::bounded(&format!("outrigger-tmp-{name}"));
    let mut mounts = take_list(container, "volumeMounts");
    mounts.push(mount(&volume, "/tmp", false));
    container.insert("volumeMounts".into(), Value::Array(mounts));
    let mut env = take_list(container, "env");
    if !env.iter().any(|e| text(e, "name") == "HOME") {
        env.push(json!({"name": "HOME", "value": "/tmp"}));
    }
    container.insert("env".into(), Value::Array(env));
    Some(super::merge::empty_dir(&volume, &json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("no object") };
        map
    }

    #[test]
    fn users_values_stay() {
        let mut c = of(
            json!({"name": "a", "securityContext": {"readOnlyRootFilesystem": false, "capabilities": {"add": ["NET_BIND_SERVICE"]}}}),
        );
        assert!(!container(&mut c));
        assert_eq!(
            c["securityContext"],
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}, "readOnlyRootFilesystem": false})
        );
        let mut c = of(json!({"name": "a", "securityContext": {"privileged": true}}));
        container(&mut c);
        assert!(c["securityContext"].get("allowPrivilegeEscalation").is_none());
    }

    #[test]
    fn scratch_only_where_there_is_none() {
        let mut c = of(json!({"name": "a", "volumeMounts": [{"name": "x", "mountPath": "/tmp/"}]}));
        assert_eq!(scratch(&mut c), None);
        assert!(c.get("env").is_none());
        let mut c = of(json!({"name": "a", "env": [{"name": "HOME", "value": "/data"}]}));
        assert_eq!(scratch(&mut c).unwrap()["name"], "outrigger-tmp-a");
        assert_eq!(c["env"], json!([{"name": "HOME", "value": "/data"}]));
        assert_eq!(c["volumeMounts"], json!([{"name": "outrigger-tmp-a", "mountPath": "/tmp"}]));
    }
}
