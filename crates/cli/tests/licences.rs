//! Every dependency may be used in a product under MIT OR Apache-2.0.

use std::process::Command;

/// Each licence is sufficient by itself.
const PERMITTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression can be satisfied with [`PERMITTED`] licences alone. `AND` binds tighter than `OR`.
fn is_permitted(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    if expression.contains('(') {
        // It is enough to require that every licence inside the parentheses is fine.
        return plain
            .split(" AND ")
            .flat_map(|part| part.split(" OR "))
            .all(|licence| PERMITTED.contains(&licence.trim()));
    }
    plain
        .split(" OR ")
        .any(|choice| choice.split(" AND ").all(|licence| PERMITTED.contains(&licence.trim())))
}

#[test]
fn every_dependency_has_a_permitted_licence() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20, "the list cannot be that short: {}", packages.len());
    let forbidden: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_permitted))
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

#[test]
fn the_check_tells_permitted_from_other_licences() {
    for fine in ["MIT OR GPL-2.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_permitted(fine), "{fine}");
    }
    for forbidden in ["GPL-2.0-only", "MIT AND GPL-2.0", "(MIT OR GPL-2.0) AND ISC", "MPL-2.0"] {
        assert!(!is_permitted(forbidden), "{forbidden}");
    }
}
