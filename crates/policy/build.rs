//! Sets `BUSYPOLL_BUILD` to the commit: for `--version`, and to compare the command with the library.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BUSYPOLL_BUILD");
    let build = env::var("BUSYPOLL_BUILD").ok().or_else(|| {
        // Test builds must not be rebuilt for every commit.
        let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
        release.then(commit).flatten()
    });
    println!("cargo::rustc-env=BUSYPOLL_BUILD={}", build.as_deref().unwrap_or("development"));
}

/// The commit of this file's repository; none outside a clone.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|it| it.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
