//! Whether a live object still has everything that a plan says.

use serde_json::Value;

/// Keys by which items of lists are found, the first that an item has.
const KEYS: [&str; 8] = ["uid", "name", "mountPath", "containerPort", "port", "topologyKey", "key", "ip"];

/// Whether every leaf of `plan` stands in `live`. Empty values count as absent, as the API server drops them. What
/// only `live` has is somebody else's and does not matter. A false "no" costs one write that changes nothing.
pub fn contains(live: &Value, plan: &Value) -> bool {
    match plan {
        Value::Object(map) => map.iter().all(|(key, value)| match live.get(key) {
            Some(there) => contains(there, value),
            None => is_empty(value),
        }),
        Value::Array(items) => {
            let Some(there) = live.as_array() else { return items.is_empty() };
            items.iter().enumerate().all(|(i, item)| {
                let key = KEYS.into_iter().find(|k| item.get(k).is_some());
                let found = match key {
                    Some(key) => there.iter().find(|t| t.get(key) == item.get(key)),
                    None if items.len() == there.len() => there.get(i),
                    None => None,
                };
                found.is_some_and(|found| contains(found, item))
            })
        }
        leaf => leaf == live || (is_empty(leaf) && is_empty(live)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn additions_of_others_do_not_matter() {
        let plan = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 0, "containers": [{"name": "x", "args": ["1", "2"]}]}});
        let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "uid": "u"}, "spec": {"replicas": 0, "containers": [{"name": "injected"}, {"name": "x", "args": ["1", "2"], "image": "i"}]}});
        assert!(contains(&live, &plan));
        assert!(contains(&live, &json!({"spec": {"empty": "", "none": {}, "off": false, "list": []}})));
    }

    #[test]
    fn changes_of_ours_matter() {
        let plan = json!({"spec": {"replicas": 1, "containers": [{"name": "x", "args": ["1", "2"]}]}});
        for live in [
            json!({"spec": {"replicas": 2, "containers": [{"name": "x", "args": ["1", "2"]}]}}),
            json!({"spec": {"replicas": 1, "containers": [{"name": "y", "args": ["1", "2"]}]}}),
            json!({"spec": {"replicas": 1, "containers": [{"name": "x", "args": ["1"]}]}}),
            json!({"spec": {"replicas": 1, "containers": [{"name": "x", "args": ["2", "1"]}]}}),
            json!({"spec": {"replicas": 1}}),
            json!({}),
        ] {
            assert!(!contains(&live, &plan), "{live}");
        }
        assert!(!contains(&json!({"x": true}), &json!({"x": false})));
        assert!(!contains(&json!({}), &json!({"x": 0})), "zero is a value");
    }
}
