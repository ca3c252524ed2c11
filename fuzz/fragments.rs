//! Coverage-guided fuzzing of reassembly: fragments of a few datagrams, chosen by libFuzzer. Start it with
//! `fuzz/run fragments`.

#![no_main]

#[path = "../crates/stack/tests/fragment_walk/mod.rs"]
mod fragment_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fragment_walk::walk(bytes));
