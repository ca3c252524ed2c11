//! The packages, as a user has them: built by packaging/build, installed into a copy of this machine's root, used, replaced
//! while programs run, removed. And the examples that come with them, as far as a machine without a daemon can run them.

mod built;
mod examples;
mod root;

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use built::{Kind, Packages};
use busypoll_lab::{needs, needs_root};
use root::Root;

/// Beyond it is what RHEL 8 has not.
const GLIBC: [u32; 2] = [2, 28];

#[test]
#[ignore = "long: builds the packages"]
fn files_want_an_old_glibc_and_have_their_debug_information_apart() {
    needs!(program "dpkg-deb", program "objdump", program "readelf");
    let packages = Packages::build();
    let (tree, debug) = (packages.unpacked("tree"), packages.unpacked("debug"));
    for file in ["bin/busypoll", "lib/busypoll/libbusypoll_preload.so"] {
        let path = tree.join(file);
        let symbols = output(Command::new("objdump").arg("-T").arg(&path));
        let versions = symbols.split(|c: char| c.is_whitespace() || "()".contains(c));
        let versions = versions.filter_map(|word| word.strip_prefix("GLIBC_"));
        let numbers =
            |v: &str| -> Vec<u32> { v.split('.').filter_map(|n| n.parse().ok()).collect() };
        let newest = versions.map(numbers).max().expect("no symbol of glibc");
        assert!(newest <= GLIBC.to_vec(), "{file}: {newest:?}");

        let sections = output(Command::new("readelf").args(["--sections", "--wide"]).arg(&path));
        assert!(
            !sections.contains(".debug_line") && !sections.contains(".symtab"),
            "{file}: {sections}"
        );
        let notes = output(Command::new("readelf").arg("--notes").arg(&path));
        let id = notes.split("Build ID: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let id = id.unwrap_or_else(|| panic!("{file} has no build id: {notes}"));
        let apart = debug.join(format!("lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
        let sections = output(Command::new("readelf").args(["--sections", "--wide"]).arg(&apart));
        assert!(sections.contains(".debug_line"), "{}: {sections}", apart.display());
        // What debuggers need of the program itself: nothing but the names of this project's libraries is missing.
        let needed = output(Command::new("readelf").args(["--dynamic", "--wide"]).arg(&path));
        for library in needed.lines().filter(|line| line.contains("(NEEDED)")) {
            let known = [
                "libc.so.6",
                "libm.so.6",
                "libpthread.so.0",
                "libdl.so.2",
                "librt.so.1",
                "ld-linux",
            ];
            assert!(known.iter().any(|known| library.contains(known)), "{file}: {library}");
        }
    }
    for file in [
        "share/man/man1/busypoll-run.1.gz",
        "share/bash-completion/completions/busypoll",
        "share/doc/busypoll/README.md",
        "share/doc/busypoll/docs/README.md",
        "share/doc/busypoll/LICENSE-MIT",
    ] {
        assert!(tree.join(file).metadata().is_ok_and(|it| it.len() > 500), "{file}");
    }
}

#[test]
#[ignore = "long: builds the packages"]
fn the_debian_package_is_installed_used_replaced_and_removed() {
    needs_root!();
    needs!(program "dpkg-deb", program "unshare", program "ip", program "busybox");
    lives(Kind::Deb);
}

#[test]
#[ignore = "long: builds the packages"]
fn the_rpm_package_is_installed_used_replaced_and_removed() {
    needs_root!();
    needs!(program "rpmbuild", program "unshare", program "ip", program "busybox");
    lives(Kind::Rpm);
}

/// A package's life.
fn lives(kind: Kind) {
    let packages = Packages::build();
    let root = Root::new();
    let before = root.files();
    root.install(kind, &packages.of(kind));
    let version = root.says(&["busypoll", "--version"]);
    assert!(!version.contains("development"), "{version}");
    let installed = root.version(kind);
    works(&root);
    examples::units(&root);

    // Replaced while programs run, of which each needs what was replaced once more.
    let ready = "until [ -e /tmp/replaced ]; do sleep 0.1; done";
    let children = format!("{ready}; /bin/echo dynamic; busybox echo static");
    let mut shell = root.command(&["busypoll", "run", "--", "sh", "-c", &children]);
    let shell = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let soak = |plane| {
        let words = ["busypoll", "soak", "--plane", plane, "--duration", "8s", "--clients", "4"];
        root.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let soaks = [soak("kernel"), soak("stack")];
    thread::sleep(Duration::from_secs(3));
    root.install(kind, &packages.another_version(kind));
    assert_ne!(root.version(kind), installed);
    root.write("tmp/replaced", "");
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dynamic\nstatic\n", "{output:?}");
    for soak in soaks {
        let output = soak.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("every byte was right"), "{output:?}");
    }
    works(&root);

    let said = root.remove(kind);
    for wanted in ["go on with what they have loaded", "left until the next boot"] {
        assert!(said.contains(wanted), "removing says: {said}");
    }
    let left: Vec<_> = root.files().difference(&before).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// What an installed command must do.
fn works(root: &Root) {
    let output = root.command(&["busypoll", "run", "--", "/bin/echo", "ran"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.stdout, b"ran\n");
    for plane in ["kernel", "stack"] {
        let words = ["busypoll", "soak", "--plane", plane, "--duration", "2s", "--clients", "2"];
        assert!(root.says(&words).contains("every byte was right"));
    }
    assert!(root.says(&["busypoll", "tune", "plan", "busy-poll"]).contains("busy_read"));
}

#[test]
#[ignore = "long: builds the packages"]
fn an_installation_by_source_works_and_is_removed() {
    let packages = Packages::build();
    let prefix = packages.folder("prefix");
    let install = |words: &[&str]| {
        let mut command = Command::new(built::tree("packaging/install"));
        output(command.args(words).arg(&prefix));
    };
    install(&["--built", packages.built.to_str().unwrap()]);
    let command = prefix.join("bin/busypoll");
    assert!(output(Command::new(&command).arg("--version")).starts_with("busypoll "));
    assert_eq!(output(Command::new(&command).args(["run", "--", "/bin/echo", "ran"])), "ran\n");
    install(&["--remove"]);
    let left = root::files(&prefix);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[ignore = "long: builds the packages"]
fn the_examples_for_containers_run_with_the_rights_they_name() {
    needs_root!();
    needs!(program "unshare", program "ip", program "setpriv", program "prlimit");
    let packages = Packages::build();
    let root = Root::new();
    examples::dockerfile(&root, &packages);
    examples::pods(&root);
    examples::daemon_set(&root);
}

/// What a command prints; it must succeed.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
