//! The functions that the preload library hooks, compared with a manifest of all candidates in the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each line is `name`, or `name: why it is not hooked`.
const MANIFEST: &str = include_str!("symbols.txt");

fn manifest() -> BTreeMap<&'static str, Option<&'static str>> {
    MANIFEST
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| match line.split_once(": ") {
            Some((name, why)) => (name, Some(why)),
            None => (line, None),
        })
        .collect()
}

/// Built by cargo into the same folder as this test.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libbusypoll_preload.so");
    assert!(path.is_file(), "{}", path.display());
    path
}

/// Dynamic symbols that a library defines.
fn symbols(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|name| name.split('@').next().unwrap().to_owned())
        .collect()
}

fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6")).expect("a glibc system");
    line.split_whitespace().last().unwrap().into()
}

#[test]
fn the_library_exports_the_manifest_s_hooks() {
    busypoll_lab::needs!(program "nm");
    let exported = symbols(&library());
    let wanted: BTreeSet<String> =
        manifest().iter().filter(|(_, why)| why.is_none()).map(|(n, _)| (*n).to_owned()).collect();
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&wanted).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, not in symbols.txt {extra:?}"
    );
}

#[test]
fn every_relevant_symbol_of_the_c_library_is_in_the_manifest() {
    busypoll_lab::needs!(program "nm");
    let manifest = manifest();
    let bases: BTreeSet<&str> = manifest.keys().map(|name| base(name)).collect();
    let unknown: Vec<String> = symbols(&libc())
        .into_iter()
        .filter(|name| bases.contains(base(name)) && !manifest.contains_key(name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "neither hooked nor explained in symbols.txt: {unknown:?}");
}

/// The function behind the variants of its name: `__libc_fcntl64` is `fcntl`, `__read_chk` is `read`.
fn base(name: &str) -> &str {
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("libc_").unwrap_or(name);
    let name = ["_chk", "_nocancel"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let name = name.strip_suffix("64v2").or_else(|| name.strip_suffix("64")).unwrap_or(name);
    name.strip_suffix("v2")
        .map_or(name, |_| &name[..name.len() - 1])
        .trim_end_matches(|c: char| c.is_ascii_digit())
}
