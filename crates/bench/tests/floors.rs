//! The direction of imports: no file of the crate imports one that imports it, also not over others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Each module by its path, with its source without comments and tests.
fn modules(folder: &Path, prefix: &str, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            modules(&path, &format!("{prefix}{stem}::"), into);
        } else if path.extension().is_some_and(|end| end == "rs") && stem != "lib" {
            let text = fs::read_to_string(&path).expect("a source");
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = product.lines().map(|line| line.split("//").next().unwrap_or_default());
            let name = if stem == "mod" {
                prefix.trim_end_matches("::").to_owned()
            } else {
                format!("{prefix}{stem}")
            };
            into.insert(name, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The paths behind each `crate::` and `super::`, from the crate's root.
fn paths(module: &str, code: &str) -> Vec<String> {
    let parent =
        module.rsplit_once("::").map_or(String::new(), |(parent, _)| format!("{parent}::"));
    let mut found = Vec::new();
    for (word, base) in [("crate::", ""), ("super::", parent.as_str())] {
        for rest in code.split(word).skip(1) {
            let members = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap_or_default(),
                None => rest
                    .split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)))
                    .next()
                    .unwrap_or_default(),
            };
            found.extend(members.split(',').map(|member| format!("{base}{}", member.trim())));
        }
    }
    found
}

#[test]
fn no_file_imports_one_that_imports_it() {
    let mut code = BTreeMap::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut code);
    assert!(code.len() > 40, "{:?}", code.keys());
    let module_of = |path: &str| {
        let mut path = path;
        loop {
            if code.contains_key(path) {
                return Some(path.to_owned());
            }
            path = path.rsplit_once("::")?.0;
        }
    };
    let mut imports: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in &code {
        let of = paths(name, text)
            .iter()
            .filter_map(|path| module_of(path))
            .filter(|to| to != name)
            .collect();
        imports.insert(name, of);
    }
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 120, "{imports:?}");
    // Leaves are taken away until none is left: what then remains stands in circles, or above one.
    loop {
        let leaves: Vec<String> = imports
            .iter()
            .filter(|(_, to)| to.iter().all(|to| !imports.contains_key(to.as_str())))
            .map(|(name, _)| (*name).to_owned())
            .collect();
        if leaves.is_empty() {
            break;
        }
        imports.retain(|name, _| !leaves.iter().any(|leaf| leaf == name));
    }
    assert!(imports.is_empty(), "circles, and what stands above them: {imports:#?}");
}
