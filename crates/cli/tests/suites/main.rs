//! Other people's test suites, three ways: plain, on the kernel plane, on the stack plane. What a suite finds plain it
//! must find on either plane, but for what `expected.txt` names with its reason.
//!
//! What runs by itself takes some minutes. The rest, and `docs/compatibility.md` with it:
//!
//! ```sh
//! cargo test -p busypoll-cli --test suites -- --ignored --nocapture --test-threads=1
//! ```
//!
//! Suites know loopback alone. Here 127.0.0.1 and ::1 are a mirror across a wire (`programs/loopback.c`), all three
//! ways, and what the machine counts must show that the packets went over that wire, and on the stack plane past the
//! kernel's stack.

mod by_name;
mod compare;
mod cpython;
mod crates_io;
mod debian;
mod document;
mod expected;
mod outcome;
mod place;

use busypoll_lab::{needs, needs_root};

use outcome::Suite;

/// Leaves the test without what all suites need.
macro_rules! needs_a_place {
    () => {
        needs_root!();
        needs!(program "cc", program "unshare", program "timeout");
    };
}

/// And CPython's tests.
macro_rules! needs_cpython {
    () => {
        needs_a_place!();
        if !cpython::is_there() {
            needs::skipped(module_path!(), "the package `libpython3.N-testsuite`");
            return;
        }
    };
}

/// Holds a suite to what is expected of it; the whole of it is written into the document.
fn holds(suite: &dyn Suite, whole: bool) {
    let table = expected::Table::read();
    let report = compare::run(suite, &table);
    print!("{report}");
    if whole {
        document::update(&report, &table);
    }
    assert!(report.surprises.is_empty(), "{}", report.surprises.join("\n"));
}

#[test]
fn cpython_in_short() {
    needs_cpython!();
    holds(&cpython::Cpython::new(cpython::SHORT), false);
}

#[test]
#[ignore = "twenty minutes"]
fn cpython() {
    needs_cpython!();
    holds(&cpython::Cpython::new(cpython::ALL), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn libuv() {
    needs_a_place!();
    needs!(program "cmake", program "make", program "dpkg-source");
    holds(&debian::libuv(), true);
}

#[test]
#[ignore = "ten minutes, and Debian's source package"]
fn libevent() {
    needs_a_place!();
    needs!(program "cmake", program "make", program "dpkg-source");
    holds(&debian::libevent(), true);
}

#[test]
#[ignore = "ten minutes, and what tokio is tested with"]
fn tokio() {
    needs_a_place!();
    holds(&crates_io::tokio(), true);
}

#[test]
#[ignore = "the modules that SUITE_PARTS names, to look for a fault"]
fn cpython_parts() {
    needs_cpython!();
    let Ok(parts) = std::env::var("SUITE_PARTS") else { return };
    let parts: Vec<&str> = parts.split(' ').collect();
    holds(&cpython::Cpython::new(&parts), false);
}

#[test]
#[ignore = "writes it, after `expected.txt` has changed"]
fn the_document() {
    document::write_again(&expected::Table::read());
}

#[test]
fn the_document_is_of_the_table() {
    document::is_of(&expected::Table::read());
}
