//! The direction of imports: each module of the stack and of the preload library imports only modules listed after it,
//! and each crate of the workspace depends only on the crates that ARCHITECTURE.md names in its row.

#[path = "common/sources.rs"]
mod sources;

use sources::rust_files;
use std::{collections::BTreeSet, fs, path::Path};

/// The modules of the stack, the top floor first. ARCHITECTURE.md draws the first six that are folders.
const STACK: [&str; 25] = [
    "process",
    "socket",
    "host",
    "lease",
    "icmp_sockets",
    "inet",
    "ledger",
    "signal",
    "napi",
    "nic",
    "wire",
    "spin",
    "pool",
    "word_hash",
    "published",
    "memory_pressure",
    "lock",
    "thread",
    "stderr",
    "unix",
    "sys",
    "sync",
    "time",
    // Of the crate itself.
    "lib",
    "tests",
];

/// The modules of the preload library: hooks, planes, files, leaves.
const PRELOAD: [&str; 20] = [
    "hooks",
    "process",
    "stack",
    "kernel",
    "signals",
    "spin_policy",
    "fds",
    "panics",
    "inside",
    "queued_signals",
    "handler_frames",
    "real",
    "table",
    "config",
    "report",
    "seccomp",
    "memory",
    "errno",
    "local",
    // Of the crate itself.
    "is_too_early",
];

/// The modules of the stack plane in the preload library.
const STACK_PLANE: [&str; 44] = [
    "fork",
    "copy",
    "accept",
    "descriptors",
    "exec",
    "receive",
    "send",
    "exit",
    "libc_io",
    "receive_one",
    "follow",
    "scm_rights",
    "sockets",
    "links",
    "options",
    "local_stream",
    "local_stream_end",
    "handover_parent",
    "wait",
    "activation",
    "foreign",
    "udp_links",
    "groups",
    "cmsg",
    "rings",
    "route",
    "host",
    "capture",
    "companion_options",
    "internal_fds",
    "stream",
    "file",
    "local_stream_state",
    "local_stream_later",
    "local_udp",
    "epoll_set",
    "handover_channel",
    "companion_address",
    "unsupported_options",
    "address",
    "iovec",
    "thread_end",
    "namespace",
    "not_accelerated",
];

/// The source without comments and without its test module.
fn code(text: &str) -> String {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    product.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// What stands after each `prefix`, such as `crate::`, with the members of a `crate::{...}`. A prefix that is the end
/// of another path does not count.
fn imports(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|char: char| char.is_alphanumeric() || "_:".contains(char)) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(first_word(rest));
            continue;
        };
        let mut depth = 0;
        let mut member = String::new();
        for char in list.chars() {
            match char {
                '}' if depth == 0 => break,
                ',' if depth == 0 => {
                    found.insert(first_word(&std::mem::take(&mut member)));
                    continue;
                }
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            member.push(char);
        }
        found.insert(first_word(&member));
    }
    found.remove("");
    found
}

fn first_word(text: &str) -> String {
    let is_name = |char: &char| char.is_alphanumeric() || *char == '_';
    text.trim_start().chars().take_while(is_name).collect()
}

/// The module whose item the crate's root re-exports as `name`.
fn reexported_from(lib: &str, name: &str) -> Option<String> {
    lib.split("pub use ").skip(1).find_map(|rest| {
        let statement = rest.split(';').next().unwrap();
        let mut words = statement.split(|char: char| !char.is_alphanumeric() && char != '_');
        words.any(|word| word == name).then(|| first_word(statement))
    })
}

#[test]
fn modules_of_the_stack_import_only_what_is_below_them() {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &STACK, 300);
}

/// Every file of the stack plane imports only modules that stand after its own in [`STACK_PLANE`]; its root has none.
#[test]
fn modules_of_the_stack_plane_import_only_what_is_below_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/src/stack");
    let below_all = "common";
    let floor = |name: &str| {
        let at = STACK_PLANE.iter().chain([&below_all]).position(|it| *it == name);
        at.unwrap_or_else(|| panic!("{name}: on no floor"))
    };
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let mut edges = 0;
    let mut wrong = Vec::new();
    for file in files {
        let path = file.strip_prefix(&source).unwrap().to_str().unwrap();
        if path == "mod.rs" {
            continue;
        }
        let code = code(&fs::read_to_string(&file).unwrap());
        let (module, is_root) = match path.split_once('/') {
            Some((folder, rest)) => (folder, rest == "mod.rs"),
            None => (path.trim_end_matches(".rs"), true),
        };
        let mut found = imports(&code, "stack::");
        found.extend(imports(&code, if is_root { "super::" } else { "super::super::" }));
        for target in found.iter().filter(|target| *target != module) {
            edges += 1;
            if floor(target) <= floor(module) {
                wrong.push(format!("{path} imports {target}, which is above {module}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(edges > 150, "only {edges} imports were read");
}

#[test]
fn modules_of_the_preload_library_import_only_what_is_below_them() {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/src"), &PRELOAD, 100);
}

/// Every import of the files in `source` leads from a module in `order` to a later one. At least `least` are found.
fn check(source: &Path, order: &[&str], least: usize) {
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    let floor = |module: &str| {
        order
            .iter()
            .position(|name| *name == module)
            .unwrap_or_else(|| panic!("{module}: on no floor"))
    };
    let mut files = Vec::new();
    rust_files(source, &mut files);
    let mut edges = 0;
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(source).unwrap().to_str().unwrap();
        if name == "lib.rs" || name.contains("tests") {
            continue;
        }
        let module = name.split('/').next().unwrap().trim_end_matches(".rs");
        for import in imports(&code(&fs::read_to_string(&file).unwrap()), "crate::") {
            let target = if import.starts_with(char::is_uppercase) || !order.contains(&&*import) {
                reexported_from(&lib, &import).unwrap_or(import)
            } else {
                import
            };
            edges += 1;
            if target != module && floor(&target) <= floor(module) {
                wrong.push(format!("{name} imports {target}, which is above {module}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(edges > least, "only {edges} imports were read");
}

#[test]
fn crates_depend_only_on_those_that_the_architecture_names() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let architecture = fs::read_to_string(crates.join("../ARCHITECTURE.md")).unwrap();
    let mut rows = 0;
    for line in architecture.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _, allowed, _] = cells[..] else { continue };
        let name = name.trim_matches('`');
        let Ok(manifest) = fs::read_to_string(crates.join(name).join("Cargo.toml")) else {
            continue;
        };
        rows += 1;
        let table = manifest.split("\n[dependencies]\n").nth(1).unwrap_or("");
        let table = table.split("\n[").next().unwrap();
        for line in table.lines() {
            let Some(dependency) = line.strip_prefix("busypoll-") else { continue };
            let dependency = dependency.split(['.', ' ', '=']).next().unwrap();
            let named =
                allowed == "all below" || allowed.split(", ").any(|name| name == dependency);
            assert!(named, "{name} depends on {dependency}; ARCHITECTURE.md names {allowed:?}");
        }
    }
    assert!(rows > 10, "only {rows} rows were read");
}

#[test]
fn imports_are_read_from_every_form() {
    let code =
        code("use crate::{a::{b, c}, d};\nfn f() { crate::e::g() } // crate::h\nuse crate::i;\n");
    let found = |prefix| imports(&code, prefix).into_iter().collect::<Vec<_>>();
    assert_eq!(found("crate::"), ["a", "d", "e", "i"]);
    assert_eq!(found("a::"), ["b", "c"]);
}
