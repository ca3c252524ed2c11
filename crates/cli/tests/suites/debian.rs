//! Suites in Debian's source packages: libuv's and libevent's, fetched and built below the target folder when they are
//! run.

use std::fs;
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

/// The version of a suite, and its build folder.
struct Built {
    version: String,
    folder: PathBuf,
}

/// Fetches, unpacks and builds `targets` of a package, once in a target folder.
fn built(package: &str, options: &[&str], targets: &[&str]) -> Built {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suites/source").join(package);
    let (folder, done) = (dir.join("build"), dir.join("built"));
    if !done.exists() {
        fs::create_dir_all(&folder).unwrap();
        output_of(Command::new("sh").args(["-c", FETCH, "sh", package]).arg(&dir));
        let mut cmake = Command::new("cmake");
        cmake.arg(dir.join("source/tree")).arg("-DCMAKE_BUILD_TYPE=Release").args(options);
        output_of(cmake.current_dir(&folder));
        output_of(Command::new("make").arg("-j2").args(targets).current_dir(&folder));
        fs::write(&done, "").unwrap();
    }
    let names = fs::read_dir(dir.join("source")).unwrap().flatten();
    let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
    let control = names.find_map(|name| name.strip_suffix(".dsc").map(str::to_owned)).unwrap();
    Built { version: control.split_once('_').unwrap().1.into(), folder }
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
    let options =
        ["BENCHMARK", "SAMPLES", "MBEDTLS"].map(|part| format!("-DEVENT__DISABLE_{part}=ON"));
    let built = built("libevent", &options.each_ref().map(String::as_str), &["regress"]);
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
