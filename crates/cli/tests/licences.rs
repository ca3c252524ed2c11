//! Every dependency may be used in a product under MIT OR Apache-2.0.

use std::process::Command;

/// Each suffices by itself.
const FINE: &[&str] = &[
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

/// Whether an SPDX expression can be met by [`FINE`] licences alone. `AND` binds tighter than `OR`.
fn is_fine(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    if expression.contains('(') {
        // Nothing cleverer is needed than that every licence named inside the parentheses be fine.
        return plain
            .split(" AND ")
            .flat_map(|part| part.split(" OR "))
            .all(|licence| FINE.contains(&licence.trim()));
    }
    plain
        .split(" OR ")
        .any(|choice| choice.split(" AND ").all(|licence| FINE.contains(&licence.trim())))
}

#[test]
fn every_dependency_has_a_licence_that_fits() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20, "the list cannot be that short: {}", packages.len());
    let unfit: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_fine))
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect();
    assert!(unfit.is_empty(), "{unfit:#?}");
}

#[test]
fn the_check_can_tell() {
    for fine in ["MIT OR GPL-2.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_fine(fine), "{fine}");
    }
    for unfit in ["GPL-2.0-only", "MIT AND GPL-2.0", "(MIT OR GPL-2.0) AND ISC", "MPL-2.0"] {
        assert!(!is_fine(unfit), "{unfit}");
    }
}
