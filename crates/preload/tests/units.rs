//! The unit tests of modules that hook nothing. The library has no tests of its own: linked into a test program, its
//! hooks would be that program's C library.
#![allow(dead_code)] // the rest of the library uses it

#[macro_use]
#[path = "../src/local.rs"]
mod local;

#[path = "../src/config.rs"]
mod config;
#[path = "../src/errno.rs"]
mod errno;
#[path = "../src/harm/mod.rs"]
mod harm;
#[path = "../src/say.rs"]
mod say;
#[path = "../src/kernel/watched.rs"]
mod watched;
