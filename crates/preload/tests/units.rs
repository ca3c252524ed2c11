//! The unit tests of modules without hooks. The library itself has no test target: linked into a test program, its
//! hooks would replace that program's C library.
#![allow(dead_code, unused_imports)] // the rest of the library uses it

#[macro_use]
#[path = "../src/local.rs"]
mod local;

#[path = "../src/config.rs"]
mod config;
#[path = "../src/errno.rs"]
mod errno;
#[path = "../src/report/mod.rs"]
mod report;
#[path = "../src/spin_policy/mod.rs"]
mod spin_policy;
#[path = "../src/kernel/watched.rs"]
mod watched;
