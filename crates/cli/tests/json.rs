//! The schemas in docs/json: one for each command, additive changes only, and what the commands print.

mod support;

use std::fs;

use serde_json::Value;
use support::json_schema::{fields, folder, is_as_documented, published};
use support::*;

/// The names of all schemas.
fn names() -> Vec<String> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.to_str()?.strip_suffix(".schema.json")?.to_owned()))
        .collect();
    names.sort();
    names
}

/// A field that is in this list may not go, nor change its type. One that is new is added to it.
#[test]
fn fields_are_only_added() {
    let known = include_str!("json_fields.txt");
    let line = |name: &str| {
        let fields = fields(&published(name));
        fields.into_iter().map(|field| format!("{name} {field}")).collect::<Vec<_>>()
    };
    let now: Vec<String> = names().iter().flat_map(|name| line(name)).collect();
    let gone: Vec<&str> = known.lines().filter(|was| !now.iter().any(|is| is == was)).collect();
    assert!(gone.is_empty(), "a published field has gone or changed: {gone:#?}");
    let new: Vec<&String> = now.iter().filter(|is| !known.lines().any(|was| was == *is)).collect();
    assert!(new.is_empty(), "add to crates/cli/tests/json_fields.txt: {new:#?}");
}

#[test]
fn each_schema_is_listed_and_says_what_each_field_means() {
    let index = fs::read_to_string(folder().join("README.md")).unwrap();
    let names = names();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(index.contains(&format!("[{name}]({name}.schema.json)")), "{name}");
        described(&published(&name), &name);
    }
}

/// Every field has a description.
fn described(schema: &Value, path: &str) {
    match schema {
        Value::Object(members) => {
            for (key, member) in members {
                if key == "properties" {
                    for (field, what) in member.as_object().unwrap() {
                        let said = what.get("description").is_some() || what.get("$ref").is_some();
                        assert!(said, "{path}.{field} has no description");
                    }
                }
                described(member, &format!("{path}.{key}"));
            }
        }
        Value::Array(members) => members.iter().for_each(|member| described(member, path)),
        _ => {}
    }
}

/// The others are compared where they are tested, and `bench`'s in crates/bench/tests/schema.rs.
#[test]
fn doctor_and_tune_print_what_is_documented() {
    let print = |arguments: &[&str]| -> Value {
        let output = run_locally(arguments);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let me = std::process::id().to_string();
    is_as_documented("doctor", &print(&["doctor", "--json"]));
    is_as_documented("doctor", &print(&["doctor", "--pid", &me, "--prove", "50ms", "--json"]));
    is_as_documented("tune-status", &print(&["tune", "status", "--json"]));
    let plan = print(&["tune", "plan", "busy-poll", "--json"]);
    is_as_documented("tune-plan", &plan);
    assert!(plan["time"].as_str().unwrap().ends_with('Z'), "{plan}");
}
