//! Coverage-guided fuzzing of whole TCP connections: the steps of the test `tcp_random`, chosen by libFuzzer.
//! Start it with `fuzz/run connection -max_len=2000`.

#![no_main]

#[path = "../crates/stack/tests/tcp_walk/mod.rs"]
mod tcp_walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = tcp_walk::walk(bytes);
});
