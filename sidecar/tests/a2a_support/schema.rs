//! As much of JSON Schema 2020-12 as the contract's schema uses. A keyword it does not know fails the test.

use serde_json::Value;

pub struct Schema(Value);

impl Schema {
    pub fn new(root: Value) -> Self {
        Self(root)
    }

    /// Checks a value against one of `$defs`.
    pub fn check(&self, of: &str, value: &Value) -> Result<(), String> {
        self.at(&self.0["$defs"][of], value, of)
    }

    fn at(&self, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
        let schema = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => return Err(format!("{path} may not be there")),
            Value::Object(schema) => schema,
            other => panic!("{path}: {other} is no schema"),
        };
        let fail = |what: String| Err(format!("{path} {what}: {value}"));
        let members = value.as_object();
        for (keyword, rule) in schema {
            match keyword.as_str() {
                "$ref" => {
                    let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    let target = &self.0["$defs"][name];
                    assert!(target.is_object(), "{name} is not defined");
                    self.at(target, value, path)?;
                }
                "type" => {
                    let right = match rule.as_str().unwrap() {
                        "object" => value.is_object(),
                        "array" => value.is_array(),
                        "string" => value.is_string(),
                        "integer" => value.is_u64() || value.is_i64(),
                        "boolean" => value.is_boolean(),
                        other => panic!("type {other}"),
                    };
                    if !right {
                        return fail(format!("is no {rule}"));
                    }
                }
                "const" if value != rule => return fail(format!("is not {rule}")),
                "enum" if !rule.as_array().unwrap().contains(value) => return fail(format!("is none of {rule}")),
                "required" => {
                    let missing = |k: &&Value| members.is_some_and(|m| !m.contains_key(k.as_str().unwrap()));
                    if let Some(key) = rule.as_array().unwrap().iter().find(missing) {
                        return fail(format!("lacks {key}"));
                    }
                }
                "properties" => {
                    for (key, rule) in rule.as_object().unwrap() {
                        if let Some(value) = members.and_then(|m| m.get(key)) {
                            self.at(rule, value, &format!("{path}.{key}"))?;
                        }
                    }
                }
                "additionalProperties" => {
                    let known = schema.get("properties").and_then(Value::as_object);
                    for (key, value) in members.into_iter().flatten() {
                        if !known.is_some_and(|k| k.contains_key(key)) {
                            self.at(rule, value, &format!("{path}.{key}"))?;
                        }
                    }
                }
                "items" => {
                    for (i, value) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(rule, value, &format!("{path}[{i}]"))?;
                    }
                }
                "minItems" if value.as_array().is_some_and(|a| (a.len() as u64) < rule.as_u64().unwrap()) => {
                    return fail("is too short".into());
                }
                "maxItems" if value.as_array().is_some_and(|a| (a.len() as u64) > rule.as_u64().unwrap()) => {
                    return fail("is too long".into());
                }
                "minLength" if value.as_str().is_some_and(|s| (s.len() as u64) < rule.as_u64().unwrap()) => {
                    return fail("is too short".into());
                }
                "minimum" if value.as_f64().is_some_and(|n| n < rule.as_f64().unwrap()) => {
                    return fail("is too small".into());
                }
                "oneOf" => {
                    let fitting = rule.as_array().unwrap().iter().filter(|s| self.at(s, value, path).is_ok()).count();
                    if fitting != 1 {
                        return fail(format!("fits {fitting} of the choices {rule}"));
                    }
                }
                "allOf" => {
                    for rule in rule.as_array().unwrap() {
                        self.at(rule, value, path)?;
                    }
                }
                "if" => {
                    if self.at(rule, value, path).is_ok() {
                        self.at(&schema["then"], value, path)?;
                    }
                }
                // Met, or notes for readers.
                "const" | "enum" | "minItems" | "maxItems" | "minLength" | "minimum" | "then" | "format"
                | "contentEncoding" | "description" | "pattern" => {}
                other => panic!("{path}: keyword {other} is not checked"),
            }
        }
        Ok(())
    }
}
