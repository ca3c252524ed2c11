//! The documents, and the commands that their blocks of shell show.

use std::fs;
use std::path::{Path, PathBuf};

pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Each document's path and text.
pub fn documents() -> Vec<(PathBuf, String)> {
    let project = project();
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in [project.clone(), project.join("docs"), project.join("crates/stack")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.extend(entries.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    paths.sort();
    assert!(paths.len() > 15, "{paths:?}");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of shell in a document.
pub fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next())
}

/// The commands of a block, without comments; one that goes over several lines in quotes is one.
pub fn commands(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut open = false;
    for line in block.lines() {
        let line = if open { line } else { line.split(" #").next().unwrap() }.trim();
        match commands.last_mut().filter(|_| open) {
            Some(command) => *command = format!("{command}\n{line}"),
            None if line.is_empty() => continue,
            None => commands.push(line.to_owned()),
        }
        open ^= line.matches('\'').count() % 2 == 1;
    }
    commands
}
