//! What an installed command provides: its build and the library's, completions, manual pages.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{BUSYPOLL, fails_with, fails_with_code, run_locally};

/// The library beside the command under test.
fn library() -> std::path::PathBuf {
    Path::new(BUSYPOLL).parent().unwrap().join("deps/libbusypoll_preload.so")
}

#[test]
fn the_version_names_the_build() {
    let output = run_locally(&["--version"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = format!("busypoll {} ({})\n", env!("CARGO_PKG_VERSION"), busypoll_policy::BUILD);
    assert_eq!(text, expected);
}

#[test]
fn a_library_of_another_build_is_reported_and_the_program_runs() {
    let folder = tempfile("other-build");
    let bytes = fs::read(library()).unwrap();
    let build = busypoll_policy::BUILD.as_bytes();
    // The ELF note: its owner, followed by the build.
    let owner = b"busypoll\0\0\0\0";
    let note = [owner, build].concat();
    let at = bytes.windows(note.len()).position(|w| w == note).expect("no note in the library");
    let mut other = bytes.clone();
    other[at + owner.len()..at + note.len()].fill(b'x');
    let path = folder.join("libbusypoll_preload.so");
    fs::write(&path, other).unwrap();

    let run = |library: &Path| {
        let mut command = Command::new(BUSYPOLL);
        command.args(["run", "--", "echo", "ran"]).env("BUSYPOLL_PRELOAD_LIBRARY", library);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"ran\n"[..]));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run(&path);
    let build = format!("another build ({}) than this command", "x".repeat(build.len()));
    assert!(said.lines().count() == 1 && said.contains(&build), "{said}");
    let said = run(&library());
    assert!(!said.contains("build"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_command_without_its_library_says_how_to_install_both() {
    let folder = tempfile("alone");
    let alone = folder.join("bin/busypoll");
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::create_dir_all(folder.join("lib/busypoll")).unwrap();
    fs::copy(BUSYPOLL, &alone).unwrap();
    let run = || Command::new(&alone).args(["run", "--", "echo", "ran"]).output().unwrap();
    fails_with_code(&run(), 125, &["libbusypoll_preload.so", "packaging/install"]);

    fs::copy(library(), folder.join("lib/busypoll/libbusypoll_preload.so")).unwrap();
    let output = run();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"ran\n"[..]), "{output:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn shells_complete_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run_locally(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        for word in ["bench", "doctor", "attach", "plane"] {
            assert!(text.contains(word), "{shell}: no {word}");
        }
    }
    fails_with(&run_locally(&["completions", "cmd"]), &["'cmd'", "bash"]);
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let folder = tempfile("manual");
    let output = run_locally(&["manual", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (page, wanted) in [
        ("busypoll.1", "busypoll"),
        ("busypoll-run.1", "plane"),
        ("busypoll-tune-apply.1", "confirm"),
    ] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.starts_with(".") && text.contains(wanted), "{page}: {text}");
    }
    fs::remove_dir_all(&folder).unwrap();
    fails_with(&run_locally(&["manual", folder.to_str().unwrap()]), &["No such file"]);
}

fn tempfile(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("busypoll-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}
