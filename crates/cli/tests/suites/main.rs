//! Other people's test suites in five variants. Three have a mirror in place of loopback: plain, on the kernel plane,
//! on the stack plane. Two have loopback: plain, and on the stack plane, over memory. The results on each plane must be
//! those of plain, except for the tests that `expected.txt` lists with a reason.
//!
//! The tests that run by default take some minutes. The others are run by, and write `docs/compatibility.md`:
//!
//! ```sh
//! cargo test -p busypoll-cli --test suites -- --ignored --nocapture --test-threads=1
//! ```
//!
//! Most suites use loopback only. With the mirror, packets to 127.0.0.1 and ::1 go over a wire and back
//! (`programs/loopback.c`). The machine's counters must show that the packets went over that wire, on the stack plane
//! past the kernel's stack, and over memory past loopback.

mod by_cargo;
mod by_name;
mod compare;
mod cpython;
mod debian;
mod document;
mod environment;
mod expected;
mod outcome;

use busypoll_lab::{needs, needs_root};

use outcome::Suite;

/// Skips the test if what all suites need is missing.
macro_rules! needs_suite_tools {
    () => {
        needs_root!();
        needs!(program "cc", program "unshare", program "timeout");
    };
}

/// The same, with CPython's tests.
macro_rules! needs_cpython {
    () => {
        needs_suite_tools!();
        if !cpython::is_there() {
            needs::skipped(module_path!(), "the package `libpython3.N-testsuite`");
            return;
        }
    };
}

/// Compares a suite with what is expected of it; a whole run is written into the document.
fn check(suite: &dyn Suite, whole: bool) {
    let table = expected::Table::read();
    let report = compare::run(suite, &table);
    print!("{report}");
    if whole {
        document::update(&report, &table);
    }
    assert!(report.unexpected.is_empty(), "{}", report.unexpected.join("\n"));
}

#[test]
#[ignore = "long: half a minute"]
fn cpython_s_short_modules_are_as_plain() {
    needs_cpython!();
    check(&cpython::Cpython::new(cpython::SHORT), false);
}

#[test]
#[ignore = "twenty minutes"]
fn cpython_is_as_plain() {
    needs_cpython!();
    check(&cpython::Cpython::new(cpython::ALL), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn libuv_is_as_plain() {
    needs_suite_tools!();
    needs!(program "cmake", program "make", program "dpkg-source");
    check(&debian::libuv(), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn libevent_is_as_plain() {
    needs_suite_tools!();
    needs!(program "cmake", program "make", program "dpkg-source");
    check(&debian::libevent(), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn redis_is_as_plain() {
    needs_suite_tools!();
    needs!(program "redis-server", program "redis-cli", program "tclsh", program "dpkg-source");
    check(&debian::redis(), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn memcached_is_as_plain() {
    needs_suite_tools!();
    needs!(program "memcached", program "perl", program "dpkg-source");
    check(&debian::memcached(), true);
}

#[test]
#[ignore = "ten minutes, and what tokio is tested with"]
fn tokio_is_as_plain() {
    needs_suite_tools!();
    check(&by_cargo::tokio(), true);
}

#[test]
#[ignore = "minutes, and mio's repository"]
fn mio_is_as_plain() {
    needs_suite_tools!();
    needs!(program "git");
    check(&by_cargo::mio(), true);
}

#[test]
#[ignore = "the modules that SUITE_PARTS names, to investigate a fault"]
fn cpython_parts() {
    needs_cpython!();
    let Ok(parts) = std::env::var("SUITE_PARTS") else { return };
    let parts: Vec<&str> = parts.split(' ').collect();
    check(&cpython::Cpython::new(&parts), false);
}

#[test]
#[ignore = "the tests that SUITE_TESTS names, of the suite that SUITE names, to investigate a fault"]
fn tests_by_name() {
    needs_suite_tools!();
    let Ok(names) = std::env::var("SUITE_TESTS") else { return };
    let mut suite = match std::env::var("SUITE").unwrap_or_default().as_str() {
        "libevent" => debian::libevent(),
        "libuv" => debian::libuv(),
        "memcached" => debian::memcached(),
        "mio" => by_cargo::mio(),
        "redis" => debian::redis(),
        "tokio" => by_cargo::tokio(),
        other => panic!("SUITE: {other}"),
    };
    suite.tests.retain(|(test, _)| names.split(' ').any(|name| name == test));
    check(&suite, false);
}

#[test]
#[ignore = "writes the document, after `expected.txt` has changed"]
fn write_the_document() {
    document::write_again(&expected::Table::read());
}

#[test]
fn the_document_matches_the_table() {
    document::check(&expected::Table::read());
}
