//! Coverage-guided fuzzing of TCP's header and options alone; in `wire` two checksums must be correct before
//! they are parsed. Start it with `fuzz/run tcp`.

#![no_main]

// This target uses one of its entry points.
#[allow(dead_code)]
#[path = "../crates/stack/tests/wire_walk/mod.rs"]
mod wire_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire_walk::segment(bytes));
