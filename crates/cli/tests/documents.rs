//! README and docs/: short where it is to be short, links that lead somewhere, commands that the command understands.

mod support;

use std::collections::BTreeSet;
use std::fs;

use support::run_locally;
use support::shown::{blocks, documents, project};

#[test]
fn the_readme_is_short_and_begins_with_what_a_reader_comes_for() {
    let text = fs::read_to_string(project().join("README.md")).unwrap();
    assert!(text.lines().count() < 150, "{} lines", text.lines().count());
    let screen: String = text.lines().take(25).collect::<Vec<_>>().join("\n");
    for wanted in ["busypoll run -- your-program", "cargo run --release -- bench", "\ncargo test"] {
        assert!(screen.contains(wanted), "no {wanted} on the first screen");
    }
}

#[test]
fn every_document_is_in_the_index() {
    let docs = project().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).unwrap();
    for entry in fs::read_dir(&docs).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let listed = index.contains(&format!("]({name})"));
        assert!(listed || name == "README.md" || !name.ends_with(".md"), "{name}");
    }
}

#[test]
fn links_lead_to_files_and_headings_that_are_there() {
    for (path, text) in documents() {
        let mut links = 0;
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            links += 1;
            if link.starts_with("https://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", path.display());
            if !heading.is_empty() {
                let headings = headings(&fs::read_to_string(&target).unwrap());
                assert!(headings.contains(heading), "{}: {link}: {headings:?}", path.display());
            }
        }
        assert!(links > 0 || !path.ends_with("docs/README.md"));
    }
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The names by which links know the headings of a document.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = prose(text);
    let lines = lines.lines().filter(|line| line.starts_with('#'));
    let name = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    lines.map(name).collect()
}

/// Each is asked for help with its words: unknown ones, and values that cannot be, are mistakes all the same.
#[test]
fn commands_shown_are_understood() {
    let mut shown = BTreeSet::new();
    for (path, text) in documents() {
        if path.ends_with("CHANGELOG.md") {
            continue; // of earlier versions, too
        }
        let lines = blocks(&text).flat_map(|block| block.lines().map(str::to_owned));
        let spans = prose(&text).replace('\n', " ");
        let spans = spans.split('`').skip(1).step_by(2).map(str::to_owned);
        for line in lines.chain(spans.filter(|span| span.starts_with("busypoll "))) {
            shown.extend(commands(&line));
        }
    }
    assert!(shown.len() > 50, "{shown:?}");
    for words in shown {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push("--help");
        let output = run_locally(&words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

/// The words of each `busypoll` in a line of shell, up to the program that it starts.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = match line.split_once("$(").map(|(before, rest)| (before, rest.split_once(')'))) {
        Some((before, Some((_, after)))) => format!("{before}1{after}"),
        _ => line.to_owned(),
    };
    let line = line.split(" #").next().unwrap();
    let begins = |(at, _): &(usize, &str)| {
        let before = line[..*at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || "'(".contains(c))
    };
    let words_of = |(at, name): (usize, &str)| -> Vec<String> {
        // A semicolon ends a command, as the other words here do.
        let rest = line[at + name.len()..].split(';').next().unwrap().split_whitespace();
        let ends = |word: &&str| !["--", "&", "&&", "|", "||", ";"].contains(word);
        rest.take_while(ends).map(a_value).filter(|word| !word.is_empty()).collect()
    };
    let found = line.match_indices("busypoll ").filter(begins).map(words_of);
    found.filter(|words| !words.is_empty()).collect()
}

/// What stands for a value, with one in its place.
fn a_value(word: &str) -> String {
    match word.trim_matches(|c| "'\";()…,".contains(c)) {
        "PID" => "1".into(),
        "TIME" => "1s".into(),
        "PROFILE" => "busy-poll".into(),
        word => word.to_owned(),
    }
}
