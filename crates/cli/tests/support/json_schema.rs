//! A validator of the part of JSON Schema that docs/json uses. An unknown keyword is an error, so that no rule is
//! silently left out.

#![allow(dead_code)] // each test file uses its own part

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The folder of the schemas.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json")
}

/// The schema of this name.
pub fn published(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{name}.schema.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// `value` is as the schema of this name says.
pub fn is_as_documented(name: &str, value: &Value) {
    let wrong = breaches(&published(name), value);
    assert!(wrong.is_empty(), "docs/json/{name}.schema.json: {wrong:#?}");
}

/// All that is wrong with `value`, a line each; also a field that the schema does not have.
pub fn breaches(schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    check(schema, schema, value, "", &mut wrong);
    wrong
}

fn check(root: &Value, schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
    let rules = schema.as_object().unwrap();
    for (keyword, rule) in rules {
        let fits = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            "type" => match rule {
                Value::Array(types) => types.iter().any(|one| is_of(one, value)),
                one => is_of(one, value),
            },
            "const" => rule == value,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|x| x >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|x| x <= rule.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 >= rule.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 <= rule.as_u64().unwrap())
            }
            "$ref" => {
                check(root, target(root, rule), value, path, wrong);
                true
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|one| {
                let mut here = Vec::new();
                check(root, one, value, path, &mut here);
                here.is_empty()
            }),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{path}[{i}]"), wrong);
                }
                true
            }
            "required" => {
                let missing =
                    |key: &&Value| value.is_object() && value.get(key.as_str().unwrap()).is_none();
                let missing = rule.as_array().unwrap().iter().filter(missing);
                wrong.extend(
                    missing.map(|key| format!("{path}.{} is missing", key.as_str().unwrap())),
                );
                true
            }
            "properties" => {
                properties(root, rule.as_object().unwrap(), value, path, wrong);
                true
            }
            other => panic!("the validator does not know '{other}'"),
        };
        if !fits {
            wrong.push(format!("{path} must not be {value}: {keyword} {rule}"));
        }
    }
}

fn properties(
    root: &Value,
    known: &Map<String, Value>,
    value: &Value,
    path: &str,
    wrong: &mut Vec<String>,
) {
    for (key, field) in value.as_object().into_iter().flatten() {
        match known.get(key) {
            Some(schema) => check(root, schema, field, &format!("{path}.{key}"), wrong),
            None => wrong.push(format!("{path}.{key} is not documented")),
        }
    }
}

fn target<'a>(root: &'a Value, reference: &Value) -> &'a Value {
    let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
    root.pointer(pointer).unwrap_or_else(|| panic!("nothing at {reference}"))
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        other => panic!("the validator does not know the type '{other}'"),
    }
}

/// Every field of a schema with its types: `arms[].rtt_us.p50: number`; a `?` behind one that may be absent.
pub fn fields(schema: &Value) -> Vec<String> {
    let mut all = Vec::new();
    list(schema, schema, String::new(), &mut all);
    all
}

fn list(root: &Value, schema: &Value, path: String, all: &mut Vec<String>) {
    if let Some(reference) = schema.get("$ref") {
        return list(root, target(root, reference), path, all);
    }
    for one in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        list(root, one, path.clone(), all);
    }
    if let Some(items) = schema.get("items") {
        list(root, items, format!("{path}[]"), all);
    }
    let required = schema.get("required").and_then(Value::as_array);
    for (key, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let may_be_absent = !required.is_some_and(|all| all.iter().any(|one| one == key.as_str()));
        let path = format!("{path}{}{key}", if path.is_empty() { "" } else { "." });
        let kind = |schema: &Value| match (&schema["type"], schema.get("const")) {
            (Value::String(one), _) => one.clone(),
            (Value::Array(types), _) => {
                types.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
            }
            (_, Some(only)) => only.to_string(),
            _ => String::new(),
        };
        let resolved = field.get("$ref").map_or(field, |reference| target(root, reference));
        let kinds = match resolved.get("anyOf").and_then(Value::as_array) {
            Some(any) => {
                let one = |one: &Value| {
                    kind(one.get("$ref").map_or(one, |reference| target(root, reference)))
                };
                any.iter().map(one).collect::<Vec<_>>().join(" or ")
            }
            None => kind(resolved),
        };
        let absent = if may_be_absent { "?" } else { "" };
        all.push(format!("{path}{absent}: {kinds}").trim_end_matches(": ").to_owned());
        list(root, field, path, all);
    }
}
