//! Raw JSON, carried and never typed, so that a field newer than our libraries survives.

use serde_json::{Map, Value, json};

/// Takes the object at `key` out of `map`; an empty one where there is none.
pub(super) fn take_object(map: &mut Map<String, Value>, key: &str) -> Map<String, Value> {
    match map.remove(key) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Takes the list at `key` out of `map`; an empty one where there is none.
pub(super) fn take_list(map: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match map.remove(key) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Puts a list back, unless it is empty.
pub(super) fn put_list(map: &mut Map<String, Value>, key: &str, items: Vec<Value>) {
    if !items.is_empty() {
        map.insert(key.into(), Value::Array(items));
    }
}

/// Sets `key` unless it has a value.
pub(super) fn default(map: &mut Map<String, Value>, key: &str, value: Value) {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value;
    }
}

/// The item of a list whose `name` is `name`.
pub(super) fn named<'a>(items: &'a [Value], name: &str) -> Option<&'a Value> {
    items.iter().find(|item| item.get("name").and_then(Value::as_str) == Some(name))
}

/// Puts `item` into a list, in place of one with the same `name`.
pub(super) fn put_named(items: &mut Vec<Value>, item: Value) {
    let name = item.get("name").cloned();
    match items.iter_mut().find(|i| i.get("name") == name.as_ref()) {
        Some(slot) => *slot = item,
        None => items.push(item),
    }
}

/// Removes every null, which means "not set" in a manifest.
pub(super) fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Text of a field, or nothing.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Items of a list field, or none.
pub(super) fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// An `emptyDir` volume.
pub(super) fn empty_dir(name: &str, settings: &Value) -> Value {
    json!({"name": name, "emptyDir": settings})
}

/// A mount.
pub(super) fn mount(volume: &str, path: &str, read_only: bool) -> Value {
    if read_only {
        json!({"name": volume, "mountPath": path, "readOnly": true})
    } else {
        json!({"name": volume, "mountPath": path})
    }
}
