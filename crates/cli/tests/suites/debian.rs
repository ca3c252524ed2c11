//! Suites in Debian's source packages: libuv's and libevent's, redis's and memcached's. They are fetched, and the first
//! two built, below the target folder when they are run. redis and memcached are the installed programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::by_name::{ByName, output_of};

/// Runs apt with separate source lists: the machine's, for source packages. Fetches and unpacks package `$1` into `$2`.
const FETCH: &str = r#"
set -eu
mkdir -p "$2/lists/partial" "$2/cache/archives/partial" "$2/parts" "$2/source"
rm -rf "$2/source"/*
for list in /etc/apt/sources.list.d/debian.sources; do
    [ -e "$list" ] && sed 's/^Types:.*/Types: deb-src/' "$list" >"$2/parts/source.sources"
done
[ -e /etc/apt/sources.list ] && sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$2/parts/source.list"
apt() {
    apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$2/parts" \
        -o Dir::State::Lists="$2/lists" -o Dir::Cache="$2/cache" "$3" ${4:-} ${5:-}
}
apt "$1" "$2" update
cd "$2/source"
apt "$1" "$2" source --download-only "$1"
dpkg-source -x ./*.dsc tree
"#;

/// The version of a suite, and the folder that its tests are in.
struct Prepared {
    version: String,
    folder: PathBuf,
}

/// Fetches and unpacks a package, and makes its tests ready in its tree and an empty folder beside it, once in a target
/// folder. The tests are in the folder that `prepare` returns.
fn prepared(package: &str, prepare: impl Fn(&Path, &Path) -> PathBuf) -> Prepared {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suites/source").join(package);
    let done = dir.join("prepared");
    if !done.exists() {
        let build = dir.join("build");
        fs::create_dir_all(&build).unwrap();
        output_of(Command::new("sh").args(["-c", FETCH, "sh", package]).arg(&dir));
        let folder = prepare(&dir.join("source/tree"), &build);
        fs::write(&done, folder.to_str().unwrap()).unwrap();
    }
    let names = fs::read_dir(dir.join("source")).unwrap().flatten();
    let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
    let control = names.find_map(|name| name.strip_suffix(".dsc").map(str::to_owned)).unwrap();
    let folder = fs::read_to_string(&done).unwrap().into();
    Prepared { version: control.split_once('_').unwrap().1.into(), folder }
}

/// Builds `targets` of a package.
fn built(package: &str, options: &[&str], targets: &[&str]) -> Prepared {
    prepared(package, |tree, build| {
        let mut cmake = Command::new("cmake");
        cmake.arg(tree).arg("-DCMAKE_BUILD_TYPE=Release").args(options);
        output_of(cmake.current_dir(build));
        output_of(Command::new("make").arg("-j2").args(targets).current_dir(build));
        build.to_owned()
    })
}

/// Writes a shell script that can be executed.
fn write_script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub fn libuv() -> ByName {
    let built = built("libuv1", &["-DLIBUV_BUILD_TESTS=ON"], &["uv_run_tests"]);
    let program = built.folder.join("uv_run_tests");
    let list = output_of(Command::new(&program).arg("--list").env("UV_RUN_AS_ROOT", "1"));
    let names = list.lines().filter_map(|line| line.split_ascii_whitespace().next());
    let test = |name: &str| (name.to_owned(), format!("{} {name}", program.display()));
    ByName {
        name: "libuv",
        version: built.version,
        tests: names.map(test).collect(),
        // Only the status tells that a test was skipped.
        skips: "^$.",
        skip_status: 7,
        environment: &[
            "UV_RUN_AS_ROOT=1",
            "UV_TEST_TIMEOUT_MULTIPLIER=6",
            "RES_OPTIONS=attempts:0",
        ],
    }
}

pub fn libevent() -> ByName {
    // The tests call functions that its shared library hides.
    let options = [
        "-DEVENT__DISABLE_BENCHMARK=ON",
        "-DEVENT__DISABLE_SAMPLES=ON",
        "-DEVENT__DISABLE_MBEDTLS=ON",
        "-DEVENT__LIBRARY_TYPE=STATIC",
    ];
    let built = built("libevent", &options, &["regress"]);
    let program = built.folder.join("bin/regress");
    let list = output_of(Command::new(&program).arg("--list-tests"));
    let names = list.lines().filter_map(|line| line.strip_prefix("    "));
    let test = |name: &str| (name.to_owned(), format!("{} {name}", program.display()));
    ByName {
        name: "libevent",
        version: built.version,
        tests: names.map(test).collect(),
        skips: "SKIPPED|DISABLED",
        skip_status: -1,
        environment: &["EVENT_NOKQUEUE=1"],
    }
}

/// One unit against a server that is started for it: the server listens first, and has the interface.
const REDIS_UNIT: &str = r#"
cd "$(dirname "$0")"
work=$OLDPWD
port=$((21000 + $$ % 9000))
redis-server --port $port --save '' --appendonly no --enable-debug-command yes --enable-protected-configs yes \
    --dir "$work" --logfile server.log &
server=$!
trap 'kill $server; wait $server' EXIT
until redis-cli -p $port ping 2>/dev/null | grep -q PONG; do sleep 0.1; done
tclsh tests/test_helper.tcl --host 127.0.0.1 --port $port --baseport $((port + 10000)) --portcount 100 \
    --clients 1 --tags -slow --single "$1"
"#;

/// Units that need a server of their own configuration throughout, or take minutes.
const REDIS_WITHOUT: [&str; 4] = ["integration/", "unit/cluster", "unit/moduleapi", "unit/geo"];

pub fn redis() -> ByName {
    let suite = prepared("redis", |tree, _| {
        for program in ["redis-server", "redis-cli", "redis-benchmark"] {
            let path = PathBuf::from("/usr/bin").join(program);
            symlink(path, tree.join("src").join(program)).unwrap();
        }
        write_script(&tree.join("unit"), REDIS_UNIT);
        tree.to_owned()
    });
    let mut tclsh = Command::new("tclsh");
    tclsh.args(["tests/test_helper.tcl", "--list-tests"]).current_dir(&suite.folder);
    let list = output_of(&mut tclsh);
    let names = list.lines().filter(|name| {
        name.contains('/') && !REDIS_WITHOUT.iter().any(|start| name.starts_with(start))
    });
    let run = suite.folder.join("unit");
    let test = |name: &str| (name.to_owned(), format!("{} {name}", run.display()));
    ByName {
        name: "redis",
        version: suite.version,
        tests: names.map(test).collect(),
        skips: "^$.",
        skip_status: -1,
        environment: &[],
    }
}

/// The installed program for the one that a build would make. The tests use TCP only with a program that has no other
/// sockets, and give an option that only a build for tests knows.
const MEMCACHED: &str = r#"
if [ "$*" = -h ]; then
    memcached -h | grep -v unix-socket
    exit
fi
arguments=
while [ $# -gt 0 ]; do
    if [ "$1 ${2:-}" = '-o relaxed_privileges' ]; then
        shift 2
    else
        arguments="$arguments $1"
        shift
    fi
done
exec memcached $arguments
"#;

pub fn memcached() -> ByName {
    let suite = prepared("memcached", |tree, _| {
        write_script(&tree.join("memcached-debug"), MEMCACHED);
        output_of(Command::new("cc").args(["-o", "timedrun", "timedrun.c"]).current_dir(tree));
        tree.to_owned()
    });
    let names = fs::read_dir(suite.folder.join("t")).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".t")).collect();
    names.sort();
    let folder = suite.folder.display();
    let test = |name: String| {
        let words = format!("env -C {folder} perl t/{name}");
        (name, words)
    };
    ByName {
        name: "memcached",
        version: suite.version,
        tests: names.into_iter().map(test).collect(),
        skips: "^1..0 # SKIP",
        skip_status: -1,
        environment: &[],
    }
}
