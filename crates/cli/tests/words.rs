//! The tree's words: threads, processes and peers are things, so no pronoun for a person stands for one.

use std::{
    fs,
    path::{Path, PathBuf},
};

const PRONOUNS: [&str; 5] = ["he", "him", "his", "whoever", "whom"];

/// This file, which has to name the words.
const ALLOWED: &str = "crates/cli/tests/words.rs";

/// The sources and documents below `folder`, without what is built or hidden.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let is_folder = entry.file_type().unwrap().is_dir();
        if is_folder && name != "target" && !name.to_string_lossy().starts_with('.') {
            texts(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "c" || end == "md") {
            found.push(path);
        }
    }
}

fn pronouns(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun)))
}

#[test]
fn no_thread_process_or_peer_is_called_a_person() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    texts(&root, &mut files);
    assert!(files.iter().any(|file| file.ends_with("stack/src/lib.rs")), "{files:?}");
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with(ALLOWED)) {
        // A file may have been removed since.
        let text = fs::read_to_string(file).unwrap_or_default();
        for (at, line) in text.lines().enumerate() {
            wrong.extend(
                pronouns(line).map(|word| format!("{}:{}: {word}", file.display(), at + 1)),
            );
        }
    }
    assert!(wrong.is_empty(), "say the thread, the process, the peer:\n{}", wrong.join("\n"));
}

#[test]
fn a_pronoun_is_found_as_a_word_of_its_own_only() {
    let found = |line| pronouns(line).collect::<Vec<_>>();
    assert_eq!(found("// Whoever holds it, his lock."), ["Whoever", "his"]);
    assert_eq!(found("the history of this host, whose_his is a name"), [""; 0]);
}
