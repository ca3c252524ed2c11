//! Coverage-guided fuzzing of the packet views: the assertions of the test `wire_mutations`, on bytes
//! chosen by libFuzzer. Start it with `fuzz/run wire`.

#![no_main]

#[path = "../crates/stack/tests/wire_walk/mod.rs"]
mod wire_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = wire_walk::frame(bytes);
});
