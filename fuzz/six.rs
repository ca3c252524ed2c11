//! Coverage-guided fuzzing of IPv6's header chain. Start it with `fuzz/run six`.

#![no_main]

// This target uses one of its entry points.
#[allow(dead_code)]
#[path = "../crates/stack/tests/wire_walk/mod.rs"]
mod wire_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire_walk::packet(bytes));
