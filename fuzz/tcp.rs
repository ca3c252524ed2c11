//! Coverage-guided fuzzing of TCP's header and options alone, where `wire` would have to find its way past
//! two checksums first. Start it with `fuzz/run tcp`.

#![no_main]

// One of its ways in is enough here.
#[allow(dead_code)]
#[path = "../crates/stack/tests/wire_walk/mod.rs"]
mod wire_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire_walk::segment(bytes));
