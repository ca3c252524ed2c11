//! The crates as a registry gets them: complete, small, and without paths that lead out of the package.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Each crate's folder and manifest.
fn crates() -> Vec<(PathBuf, String)> {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates: Vec<_> = folders
        .filter_map(|folder| {
            Some((folder.clone(), fs::read_to_string(folder.join("Cargo.toml")).ok()?))
        })
        .collect();
    assert!(crates.len() >= 12, "{crates:?}");
    crates
}

/// The value of `key` in the manifest's first section, as written.
fn value<'a>(manifest: &'a str, key: &str) -> Option<&'a str> {
    let package = manifest.split("\n[").next().unwrap();
    package
        .lines()
        .find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))
        .map(str::trim)
}

#[test]
fn every_crate_says_what_a_registry_wants() {
    for (folder, manifest) in crates() {
        let name = folder.display();
        let value = |key| value(&manifest, key).unwrap_or_else(|| panic!("{name}: no {key}"));
        let count = |key| value(key).split(',').count();
        assert!(value("description").len() > 30, "{name}: {}", value("description"));
        assert!((1..=5).contains(&count("keywords")), "{name}: {}", value("keywords"));
        assert!((1..=5).contains(&count("categories")), "{name}: {}", value("categories"));
        for inherited in ["version", "license", "repository", "readme", "rust-version"] {
            assert!(
                manifest.contains(&format!("\n{inherited}.workspace = true\n")),
                "{name}: {inherited}"
            );
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let text = |folder: &Path| fs::read_to_string(folder.join(licence)).unwrap();
            assert_eq!(text(&folder), text(&root()), "{name}");
        }
    }
}

/// A dependency without a version cannot be published; one of development is left out then.
#[test]
fn crates_depend_on_each_other_by_version() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let version = workspace.split("\nversion = ").nth(1).unwrap().lines().next().unwrap();
    let mut paths = 0;
    for line in workspace.lines().filter(|line| line.contains("path = ")) {
        assert!(line.contains(&format!("version = {version}")), "{line}");
        paths += 1;
    }
    assert!(paths >= 11, "{paths} crates in the workspace's dependencies");
    for (folder, manifest) in crates() {
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            } else if line.starts_with("busypoll") && line.contains("path = ") {
                assert_eq!(section, "[dev-dependencies]", "{}: {line}", folder.display());
            }
        }
    }
}

#[test]
fn packages_have_their_sources_and_nothing_else() {
    for (folder, manifest) in crates() {
        let name = value(&manifest, "name").unwrap().trim_matches('"');
        let list = Command::new(env!("CARGO"))
            .args(["package", "--list", "--offline", "--allow-dirty", "--package", name])
            .current_dir(root())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&list.stderr);
        assert!(list.status.success(), "{name}: {said}");
        let list = String::from_utf8(list.stdout).unwrap();
        let files: Vec<&str> = list.lines().collect();
        for wanted in ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            assert!(files.contains(&wanted), "{name}: no {wanted} in {files:?}");
        }
        assert!(files.iter().any(|file| file.starts_with("src/")), "{name}: {files:?}");
        assert!(!files.iter().any(|file| file.starts_with("tests/")), "{name}: {files:?}");
        let size = |file: &&str| fs::metadata(folder.join(file)).map_or(0, |file| file.len());
        let bytes: u64 = files.iter().map(size).sum();
        assert!(bytes < 3 << 20, "{name}: {bytes} bytes");
    }
}

#[test]
#[ignore = "builds every crate again, and asks the registry"]
fn publishing_would_succeed() {
    let publish = root().join("packaging/publish");
    assert!(Command::new(publish).args(["--check", "--allow-dirty"]).status().unwrap().success());
}
