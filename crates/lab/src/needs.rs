//! The requirements of tests, and the message of a test that is skipped.
//!
//! Two macros and their probes. Changes nothing: the probe for privileges
//! creates a network namespace and drops it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::{env, fs, thread};

use busypoll_linux::caps::{Capability, Caps};
use rustix::process::geteuid;

use crate::Namespace;

/// Skips the test, with a line on standard error, unless it runs as real root: effective uid 0 of the
/// initial user namespace, able to create network namespaces (CAP_NET_ADMIN, CAP_SYS_ADMIN). With
/// `CI=true` it panics instead, so that no test is skipped unnoticed.
///
/// ```no_run
/// fn the_lab_answers_ping() {
///     busypoll_lab::needs_root!();
///     // ...
/// }
/// ```
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::needs::is_root() {
            $crate::needs::skipped(
                module_path!(),
                "root (CAP_NET_ADMIN, CAP_SYS_ADMIN) outside any user namespace; run the tests with sudo",
            );
            return;
        }
    };
}

/// Skips the test like [`needs_root!`](crate::needs_root) unless the programs are found in `PATH`.
///
/// ```no_run
/// fn uses_ping() {
///     busypoll_lab::needs!(program "ping");
///     // ...
/// }
/// ```
#[macro_export]
macro_rules! needs {
    ($(program $name:literal),+ $(,)?) => {
        $(if !$crate::needs::has_program($name) {
            $crate::needs::skipped(module_path!(), concat!("the program `", $name, "` in PATH"));
            return;
        })+
    };
}

/// Whether this is root of the initial user namespace, able to create a network namespace.
#[must_use]
pub fn is_root() -> bool {
    let rights = [Capability::NetAdmin, Capability::SysAdmin];
    let granted =
        Caps::current().is_ok_and(|caps| rights.iter().all(|right| caps.has_globally(*right)));
    granted && geteuid().is_root() && Namespace::new().is_ok()
}

/// Whether `name` is an executable file in one of the folders of `PATH`.
#[must_use]
pub fn has_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| {
        fs::metadata(folder.join(name))
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// A folder of the build's target folder into which a script of `.ci` has unpacked tools.
#[must_use]
pub fn unpacked(name: &str) -> Option<PathBuf> {
    // target/debug/deps/test-0123 or target/debug/busypoll
    let program = env::current_exe().ok()?;
    program.ancestors().map(|above| above.join(name)).find(|folder| folder.is_dir())
}

/// Reports a skipped test on standard error, bypassing the test harness's capture.
///
/// # Panics
/// If the environment says `CI=true`.
pub fn skipped(module: &str, needs: &str) {
    // The harness names a test's thread like the test.
    let thread = thread::current();
    let line = format!("skipped: {module}: {}: needs {needs}", thread.name().unwrap_or("?"));
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "CI=true allows no skips: {line}");
    // A test that cannot print its reason is still skipped.
    let _ = writeln!(std::io::stderr(), "{line}");
}
