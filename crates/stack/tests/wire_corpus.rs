//! The fuzzers' starting corpus, `fuzz/corpus`: each file is one input, named by what it is, with its meaning in comments and
//! its bytes in hexadecimal. A frame also states the error that the receiver counts, or `ok`.

mod wire_walk;

use std::{fs, path::Path};

/// Calls `check` with the name, the comments and the bytes of each file; returns how many there are.
fn each(target: &str, check: impl Fn(&str, &str, &[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (comments, hex): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('#'));
        let hex = hex.concat();
        let byte =
            |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|_| panic!("{name}"));
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        check(name, &comments.join("\n"), &bytes);
        count += 1;
    }
    count
}

#[test]
fn each_frame_has_the_outcome_that_its_file_states() {
    let count = each("wire", |name, comments, bytes| {
        let outcome = wire_walk::frame(bytes).map_or_else(|error| error.name(), |()| "ok");
        let expected = comments.split("# expected: ").nth(1).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(outcome, expected, "{name}");
    });
    assert!(count >= 45, "{count} files");
}

#[test]
fn segments_and_packets_panic_nowhere() {
    assert!(each("tcp", |_, _, bytes| wire_walk::segment(bytes)) >= 11);
    assert!(each("six", |_, _, bytes| wire_walk::packet(bytes)) >= 12);
}
