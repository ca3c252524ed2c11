//! The sources of a crate, for tests that read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Adds every Rust file below `folder`.
pub fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}
