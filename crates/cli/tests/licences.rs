//! The dependencies are what deny.toml permits: each licence sufficient for a product under MIT OR Apache-2.0, no crate
//! twice but those listed, all from crates.io. Advisories are checked by `cargo deny check`, which fetches them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// deny.toml, as far as these tests use it.
struct Permitted {
    licences: BTreeSet<String>,
    /// Crates with a version that may exist beside another.
    twice: BTreeSet<String>,
}

impl Permitted {
    fn read() -> Permitted {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deny.toml");
        let text = std::fs::read_to_string(path).expect("deny.toml");
        let table: toml::Table = text.parse().expect("TOML");
        let licences = table["licenses"]["allow"].as_array().expect("a list").iter();
        let skipped = table["bans"]["skip"].as_array().expect("a list").iter();
        let reasoned = |entry: &toml::Value| {
            assert!(entry["reason"].as_str().is_some_and(|why| !why.is_empty()), "{entry}");
            entry["crate"].as_str().expect("a crate").to_owned()
        };
        Permitted {
            licences: licences.map(|it| it.as_str().expect("a name").to_owned()).collect(),
            twice: skipped.map(reasoned).collect(),
        }
    }

    /// Whether an SPDX expression can be satisfied with permitted licences alone. `AND` binds tighter than `OR`.
    fn allows(&self, expression: &str) -> bool {
        let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
        let fine = |licence: &str| self.licences.contains(licence.trim());
        if expression.contains('(') {
            // It is enough to require that every licence inside the parentheses is fine.
            return plain.split(" AND ").flat_map(|part| part.split(" OR ")).all(fine);
        }
        plain.split(" OR ").any(|choice| choice.split(" AND ").all(fine))
    }
}

/// The packages of the whole workspace on the platform it is for.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20, "the list cannot be that short: {}", packages.len());
    packages.clone()
}

fn named(package: &Value) -> String {
    format!("{}@{}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap())
}

#[test]
fn every_dependency_has_a_permitted_licence() {
    let permitted = Permitted::read();
    let forbidden: Vec<String> = packages()
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|it| permitted.allows(it)))
        .map(|package| format!("{}: {}", named(package), package["license"]))
        .collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

#[test]
fn no_dependency_comes_twice_but_those_with_a_reason() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap().to_owned();
        versions.entry(name).or_default().insert(named(&package));
    }
    let mut permitted = Permitted::read().twice;
    for (name, mut versions) in versions {
        if versions.len() > 1 {
            versions.retain(|version| !permitted.remove(version));
            assert!(versions.len() < 2, "{name} comes as {versions:?}: see [bans] in deny.toml");
        }
    }
    assert!(permitted.is_empty(), "no longer there beside another version: {permitted:?}");
}

#[test]
fn every_dependency_is_from_crates_io() {
    let from = |package: &Value| package["source"].as_str().map(str::to_owned);
    let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
    let others: Vec<String> = packages()
        .iter()
        .filter(|package| from(package).is_some_and(|source| source != crates_io))
        .map(named)
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn the_check_tells_permitted_from_other_licences() {
    let permitted = Permitted::read();
    for fine in ["MIT OR GPL-2.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(permitted.allows(fine), "{fine}");
    }
    for forbidden in ["GPL-2.0-only", "MIT AND GPL-2.0", "(MIT OR GPL-2.0) AND ISC", "MPL-2.0"] {
        assert!(!permitted.allows(forbidden), "{forbidden}");
    }
}
