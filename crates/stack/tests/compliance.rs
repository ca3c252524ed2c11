//! The rules of TCP's RFCs that the code cites, and the page made of them, `docs/compliance.md`.
//!
//! A citation stands above the code that implements a rule. It names the section and quotes the rule; `[...]` leaves
//! something out:
//!
//! ```text
//! //= RFC 9293 3.10.7.4
//! //# if the ACK bit is off, drop the segment and return
//! ```
//!
//! With `test` behind the section it stands above the attributes of a test that proves the rule, and may quote less.
//! After a change of citations:
//!
//! ```text
//! WRITE=1 cargo test -p busypoll-stack --test compliance
//! RFC_TEXTS=FOLDER cargo test -p busypoll-stack --test compliance -- --ignored
//! ```
//!
//! The second compares each quotation with FOLDER/rfc9293.txt and so on.

#[path = "common/sources.rs"]
mod sources;

use sources::rust_files;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// The RFCs whose rules are cited, in the order of the page.
const RFCS: [(u32, &str); 8] = [
    (9293, "Transmission Control Protocol"),
    (5961, "protection against blind in-window attacks"),
    (7323, "window scale and timestamps"),
    (6298, "the retransmission timer"),
    (5681, "congestion control"),
    (6675, "loss recovery with SACK"),
    (8985, "RACK-TLP loss detection"),
    (9438, "CUBIC"),
];

/// This file, which has to show the form.
const THIS: &str = "tests/compliance.rs";

const HEAD: &str = "\
# TCP, rule by rule

The rules of TCP's RFCs that the stack plane implements, each with the code and the tests that cite it. Generated from
the citations in the code by `WRITE=1 cargo test -p busypoll-stack --test compliance`, which describes their form.
Where the stack differs from a rule, [COMPLIANCE.md](../crates/stack/COMPLIANCE.md) says how and why. The quotations are
those of the RFCs, © IETF Trust and their authors; `[...]` marks what is left out.
";

#[derive(Clone, Debug, PartialEq)]
struct Citation {
    rfc: u32,
    section: String,
    quote: String,
    /// The file, relative to the crate.
    file: String,
    /// The test that proves the rule; `None`: the code implements it.
    test: Option<String>,
}

/// A rule, with the files that implement it, and the file and name of each test.
#[derive(Debug, Default)]
struct Rule {
    quote: String,
    files: BTreeSet<String>,
    tests: BTreeSet<(String, String)>,
}

/// Rules by RFC and section, in the order of their first citation.
type Rules = BTreeMap<(u32, Vec<u32>), Vec<Rule>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All citations of the crate, in the order of files and lines.
fn citations() -> Result<Vec<Citation>, String> {
    let mut paths = Vec::new();
    for folder in ["src", "tests"] {
        rust_files(&root().join(folder), &mut paths);
    }
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap();
        if file != THIS {
            found.extend(read(file, &fs::read_to_string(&path).unwrap())?);
        }
    }
    Ok(found)
}

/// The citations of one file, or what is wrong with one.
fn read(file: &str, text: &str) -> Result<Vec<Citation>, String> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())).peekable();
    while let Some((at, line)) = lines.next() {
        let wrong = |what: &str| Err(format!("{file}:{at}: {what}: {line}"));
        if line.starts_with("//#") {
            return wrong("a quotation without a `//= RFC` line above it");
        }
        if !line.starts_with("//!") && names_a_section(line) {
            return wrong(
                "a section cited in prose; write `//= RFC NUMBER SECTION` and quote the rule",
            );
        }
        let Some(head) = line.strip_prefix("//=") else { continue };
        let words: Vec<&str> = head.split_whitespace().collect();
        let (rfc, section, is_test) = match words[..] {
            ["RFC", rfc, section] => (rfc, section, false),
            ["RFC", rfc, section, "test"] => (rfc, section, true),
            _ => return wrong("not of the form `//= RFC NUMBER SECTION [test]`"),
        };
        let Some(rfc) = rfc.parse().ok().filter(|rfc| RFCS.iter().any(|(known, _)| known == rfc))
        else {
            return wrong("not one of the RFCs cited so");
        };
        if section.split('.').any(|part| part.parse::<u32>().is_err()) {
            return wrong("not the number of a section");
        }
        let mut quote = String::new();
        while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with("//#")) {
            let more = more[3..].trim();
            quote = if quote.is_empty() { more.to_owned() } else { format!("{quote} {more}") };
        }
        if quote.is_empty() {
            return wrong("no `//#` line below it quotes the rule");
        }
        let tests_alone = file.starts_with("tests/") || file.contains("/tests");
        if tests_alone && !is_test {
            return wrong("in a file of tests, without `test`");
        }
        let test = if is_test {
            // The other citations of this test stand in between.
            let below = lines.clone().map(|(_, line)| line);
            let mut below = below.skip_while(|line| line.starts_with("//"));
            if below.next() != Some("#[test]") {
                return wrong("not above the attributes of a test");
            }
            let name = below.find_map(|line| line.split_once("fn ")?.1.split('(').next());
            Some(name.expect("the test's function").to_owned())
        } else {
            None
        };
        found.push(Citation {
            rfc,
            section: section.to_owned(),
            quote,
            file: file.to_owned(),
            test,
        });
    }
    Ok(found)
}

/// Whether prose cites a section of one of the RFCs.
fn names_a_section(line: &str) -> bool {
    let place = |rest: &str| {
        let part = ["section", "appendix", "table", "figure"];
        part.iter().any(|part| rest.trim_start_matches("'s").trim_start().starts_with(part))
    };
    RFCS.iter().any(|(rfc, _)| line.split(&format!("RFC {rfc}")).skip(1).any(place))
}

/// Joins the citations of each rule, and each test with the rule it proves.
fn rules(citations: &[Citation]) -> Result<Rules, String> {
    let key = |citation: &Citation| {
        let section = citation.section.split('.').map(|part| part.parse().unwrap()).collect();
        (citation.rfc, section)
    };
    let mut rules = Rules::new();
    for citation in citations.iter().filter(|citation| citation.test.is_none()) {
        let of_section = rules.entry(key(citation)).or_default();
        let at = of_section.iter().position(|rule| rule.quote == citation.quote);
        let at = at.unwrap_or_else(|| {
            of_section.push(Rule { quote: citation.quote.clone(), ..Rule::default() });
            of_section.len() - 1
        });
        of_section[at].files.insert(citation.file.clone());
    }
    for citation in citations {
        let Some(test) = &citation.test else { continue };
        let of_section = rules.get_mut(&key(citation)).map(Vec::as_mut_slice).unwrap_or_default();
        let mut proved =
            of_section.iter_mut().filter(|rule| contains(&rule.quote, &citation.quote));
        match (proved.next(), proved.next()) {
            (Some(rule), None) => rule.tests.insert((citation.file.clone(), test.clone())),
            (None, _) => return Err(format!("{test}: no code cites the rule: {}", citation.quote)),
            _ => return Err(format!("{test}: several rules have the words: {}", citation.quote)),
        };
    }
    Ok(rules)
}

/// Whether the text has the parts of the quotation, in their order.
fn contains(text: &str, quote: &str) -> bool {
    let mut rest = text;
    quote.split("[...]").map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

fn page(rules: &Rules) -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n| RFC | | rules | proved by a test |\n|---|---|---|---|\n");
    let of = |rfc| rules.iter().filter(move |((of, _), _)| *of == rfc);
    for (rfc, title) in RFCS {
        let all: Vec<&Rule> = of(rfc).flat_map(|(_, rules)| rules).collect();
        let proved = all.iter().filter(|rule| !rule.tests.is_empty()).count();
        writeln!(text, "| [{rfc}](#rfc-{rfc}) | {title} | {} | {proved} |", all.len()).unwrap();
    }
    for (rfc, _) in RFCS {
        write!(text, "\n## RFC {rfc}\n\n| section | rule | code | test |\n|---|---|---|---|\n")
            .unwrap();
        for ((_, section), of_section) in of(rfc) {
            let section = section.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
            for rule in of_section {
                let code =
                    rule.files.iter().map(|file| link(file.strip_prefix("src/").unwrap(), file));
                let tests =
                    rule.tests.iter().map(|(file, name)| link(&name.replace('_', " "), file));
                let code = code.collect::<Vec<_>>().join(", ");
                let tests = tests.collect::<Vec<_>>().join(", ");
                let url = format!("https://www.rfc-editor.org/rfc/rfc{rfc}#section-{section}");
                let quote = escaped(&rule.quote);
                writeln!(text, "| [{section}]({url}) | {quote} | {code} | {tests} |").unwrap();
            }
        }
    }
    text
}

fn link(name: &str, file: &str) -> String {
    format!("[{name}](../crates/stack/{file})")
}

/// With nothing left that Markdown would take for its own.
fn escaped(quote: &str) -> String {
    let mut text = String::new();
    for c in quote.chars() {
        match c {
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '*' | '_' | '[' | ']' | '|' | '`' => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
    text
}

#[test]
fn each_rule_is_proved_and_the_page_says_the_same() {
    let rules = citations().and_then(|citations| rules(&citations));
    let rules = rules.unwrap_or_else(|wrong| panic!("{wrong}"));
    let unproved: Vec<&str> = rules
        .values()
        .flatten()
        .filter(|rule| rule.tests.is_empty())
        .map(|rule| rule.quote.as_str())
        .collect();
    assert!(unproved.is_empty(), "no test proves these rules: {unproved:#?}");
    let new = page(&rules);
    let path = root().join("../../docs/compliance.md");
    if env::var_os("WRITE").is_some() {
        fs::write(&path, &new).unwrap();
    }
    let old = fs::read_to_string(&path).unwrap_or_default();
    let differs = new.lines().zip(old.lines()).find(|(new, old)| new != old);
    assert!(
        new == old,
        "docs/compliance.md is stale: WRITE=1 cargo test -p busypoll-stack --test compliance\n{differs:#?}"
    );
}

#[test]
fn a_malformed_citation_is_refused() {
    let rule = "//= RFC 9293 3.1\n//# A\n//# b.\nfn f() {}\n";
    let (rfc, file) = (9293, "src/a.rs".to_owned());
    let (section, quote) = ("3.1".to_owned(), "A b.".to_owned());
    let read_as = Citation { rfc, section, quote, file, test: None };
    assert_eq!(read("src/a.rs", rule), Ok(vec![read_as.clone()]));
    let proof = "//= RFC 9293 3.1 test\n//# A [...]\n/// Why.\n#[test]\n#[cold]\nfn proves() {\n";
    let proof = read("src/tests/a.rs", proof).unwrap();
    assert_eq!(proof[0].test.as_deref(), Some("proves"));
    let joined = rules(&[read_as.clone(), proof[0].clone()]).unwrap();
    assert_eq!(joined[&(9293, vec![3, 1])][0].tests.len(), 1);
    for wrong in [
        "//# no head",
        "//= RFC 9293 3.1\nfn no_quotation() {}",
        "//= RFC 793 3.1\n//# another RFC",
        "//= RFC 9293 section 3.1\n//# a word too many",
        "//= RFC 9293 three\n//# no number",
        "//= RFC 9293 3.1 test\n//# no test below\nfn f() {}",
        "/// As RFC 9293 section 3.1 says.",
        "// RFC 7323's appendix F",
    ] {
        assert!(read("src/a.rs", wrong).is_err(), "{wrong}");
    }
    assert!(read("src/tests/a.rs", rule).is_err(), "code among tests");
    let stray =
        Citation { quote: "B".to_owned(), test: Some("proves".to_owned()), ..read_as.clone() };
    assert!(rules(&[read_as, stray]).is_err(), "a test of a rule that no code cites");
}

/// A section's text without white space, page breaks and the bars of tables.
fn section_of(text: &str, section: &str) -> String {
    let number = |line: &str| {
        let first =
            line.split([' ', '\u{a0}']).next().unwrap_or_default().trim_end_matches('.').to_owned();
        let is_heading = !line.contains("....") && first.starts_with(|c: char| c.is_ascii_digit());
        is_heading.then_some(first)
    };
    let of_pages = |line: &&str| !line.contains("[Page ") && !line.starts_with("RFC ");
    let lines = text.lines().map(|line| line.trim_start_matches('\u{c}')).filter(of_pages);
    let lines = lines.skip_while(|line| number(line).as_deref() != Some(section));
    let mut lines = lines.peekable();
    lines.next();
    let lines = lines.take_while(|line| number(line).is_none());
    lines.collect::<String>().replace(|c: char| c.is_whitespace() || c == '|', "")
}

#[test]
#[ignore = "needs the RFCs' texts: RFC_TEXTS=FOLDER"]
fn quotations_are_exact() {
    let folder =
        PathBuf::from(env::var_os("RFC_TEXTS").expect("RFC_TEXTS: the folder of rfc9293.txt"));
    let mut wrong = Vec::new();
    for (rfc, _) in RFCS {
        let Ok(text) = fs::read_to_string(folder.join(format!("rfc{rfc}.txt"))) else {
            println!("no text of RFC {rfc}");
            continue;
        };
        for citation in citations().unwrap().iter().filter(|citation| citation.rfc == rfc) {
            let quote = citation.quote.replace(char::is_whitespace, "");
            if !contains(&section_of(&text, &citation.section), &quote) {
                wrong.push(format!("{rfc} {}: {}", citation.section, citation.quote));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
