//! Coverage-guided fuzzing of IPv6's chain of headers. Start it with `fuzz/run six`.

#![no_main]

// One of its ways in is enough here.
#[allow(dead_code)]
#[path = "../crates/stack/tests/wire_walk/mod.rs"]
mod wire_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire_walk::packet(bytes));
