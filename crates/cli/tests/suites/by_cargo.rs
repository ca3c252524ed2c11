//! Suites that cargo builds: tokio's network tests, from the package of crates.io that this workspace's lock file names,
//! and mio's, from its repository, as its package has no tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::by_name::{ByName, output_of};

/// Prefixes of the names of tokio's test programs that use the network.
const TOKIO: [&str; 7] =
    ["tcp_", "udp", "io_async_fd", "io_copy_bidirectional", "io_driver", "net_", "rt_common"];

/// Where cargo has put the sources of a package, and its version.
fn package(name: &str) -> (PathBuf, String) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--manifest-path"]).arg(manifest);
    let metadata: serde_json::Value = serde_json::from_str(&output_of(&mut cargo)).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let it = packages.iter().find(|package| package["name"] == name).unwrap();
    let manifest = Path::new(it["manifest_path"].as_str().unwrap());
    (manifest.parent().unwrap().to_owned(), it["version"].as_str().unwrap().into())
}

pub fn tokio() -> ByName {
    let (source, version) = package("tokio");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suites/source/tokio");
    let tree = dir.join(&version);
    if !tree.exists() {
        fs::create_dir_all(&dir).unwrap();
        output_of(Command::new("cp").arg("-r").args([&source, &tree]));
        // It is below this workspace, but not a member of it. What it is tested with is to use it, and not the package
        // of crates.io beside it.
        let mut manifest = fs::read_to_string(tree.join("Cargo.toml")).unwrap();
        manifest.push_str("\n[workspace]\n\n[patch.crates-io]\ntokio = { path = \".\" }\n");
        fs::write(tree.join("Cargo.toml"), manifest).unwrap();
        // It names an earlier tokio for what tokio is tested with.
        fs::remove_file(tree.join("Cargo.lock")).unwrap();
    }
    let files = fs::read_dir(tree.join("tests")).unwrap().flatten();
    let names =
        files.filter_map(|e| e.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned));
    let names = names.filter(|name| TOKIO.iter().any(|beginning| name.starts_with(beginning)));
    let tests = tests(&tree, &dir, "full,test-util", names.collect());
    suite("tokio", version, tests)
}

/// Test programs of mio that use the network, and those of its `Poll`.
const MIO: [&str; 10] = [
    "close_on_drop",
    "events",
    "poll",
    "registering",
    "regressions",
    "tcp",
    "tcp_listener",
    "tcp_stream",
    "udp_socket",
    "waker",
];

/// mio's last release in the repository that `MIO_REPOSITORY` names, else in its own.
pub fn mio() -> ByName {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suites/source/mio");
    let tree = dir.join("tree");
    let git =
        |arguments: &[&str]| output_of(Command::new("git").arg("-C").arg(&tree).args(arguments));
    if !tree.join("Cargo.toml").exists() {
        let repository = env::var("MIO_REPOSITORY");
        let repository = repository.as_deref().unwrap_or("https://github.com/tokio-rs/mio");
        fs::create_dir_all(&tree).unwrap();
        git(&["clone", "--quiet", repository, "."]);
        let tag = git(&["describe", "--tags", "--abbrev=0"]);
        git(&["checkout", "--quiet", tag.trim()]);
        // It is below this workspace, but not a member of it.
        let manifest = fs::read_to_string(tree.join("Cargo.toml")).unwrap();
        fs::write(tree.join("Cargo.toml"), manifest + "\n[workspace]\n").unwrap();
    }
    let version = git(&["describe", "--tags", "--abbrev=0"]).trim().trim_start_matches('v').into();
    let tests = tests(&tree, &dir, "os-poll,os-ext,net", MIO.map(str::to_owned).to_vec());
    suite("mio", version, tests)
}

fn suite(name: &'static str, version: String, tests: Vec<(String, String)>) -> ByName {
    ByName { name, version, tests, skips: " 1 ignored;", skip_status: -1, environment: &[] }
}

/// Builds these test programs of the package in `tree`; the names of their tests, and how to run each.
fn tests(tree: &Path, dir: &Path, features: &str, mut names: Vec<String>) -> Vec<(String, String)> {
    names.sort();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--features", features, "--message-format=json"]);
    // Without the flags that this workspace is built with.
    cargo.env("CARGO_TARGET_DIR", dir.join("target")).env_remove("RUSTFLAGS").current_dir(tree);
    for name in &names {
        cargo.args(["--test", name]);
    }
    let programs: BTreeMap<String, String> =
        output_of(&mut cargo).lines().filter_map(program).collect();
    let mut tests = Vec::new();
    for (name, program) in programs {
        let list = output_of(Command::new(&program).arg("--list"));
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            tests.push((format!("{name}::{test}"), format!("{program} --exact {test}")));
        }
    }
    tests
}

/// The name of a test and its program, if the line of cargo's output names one.
fn program(line: &str) -> Option<(String, String)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let (name, program) = (message["target"]["name"].as_str()?, message["executable"].as_str()?);
    Some((name.into(), program.into()))
}
