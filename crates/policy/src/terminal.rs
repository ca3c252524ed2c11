//! Text that fits the terminal it is shown on.

use std::io;

use terminal_size::{Width, terminal_size_of};

/// The columns of the terminal that standard output is; none where it is a file or a pipe.
#[must_use]
pub fn columns() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(Width(columns), _)| columns.into())
}

/// The lines of `text`, those that are too long broken between words; what follows stands below the line's own text.
///
/// ```
/// use busypoll_policy::terminal::wrap;
/// assert_eq!(wrap("  why  a long reason\n", 14), "  why  a long\n       reason\n");
/// ```
#[must_use]
pub fn wrap(text: &str, columns: usize) -> String {
    text.split_inclusive('\n').map(|line| wrap_line(line, columns)).collect()
}

/// Where the text of a line begins: behind its indentation, and behind a short word that is set apart by two blanks.
fn hanging(line: &str) -> usize {
    const SHORT: usize = 14;
    let indent = line.len() - line.trim_start_matches(' ').len();
    let word = line[indent..].find("  ").map(|at| indent + at).filter(|&end| end <= SHORT);
    word.map_or(indent + 2, |end| line.len() - line[end..].trim_start_matches(' ').len())
}

fn wrap_line(line: &str, columns: usize) -> String {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    if width(text) <= columns {
        return line.to_owned();
    }
    // On a terminal too narrow to indent on, nothing is.
    let hanging = Some(hanging(text)).filter(|&it| it * 2 <= columns).unwrap_or(0);
    let indent = text.len() - text.trim_start_matches(' ').len();
    let (mut out, mut at) = (text[..indent].to_owned(), indent);
    let mut blanks = 0;
    for (nth, word) in text[indent..].split(' ').enumerate() {
        // Two blanks in a row are an empty word between them.
        if word.is_empty() {
            blanks += 1;
            continue;
        }
        let gap = if nth == 0 { 0 } else { blanks + 1 };
        if at + gap + width(word) > columns && at > hanging {
            out.push('\n');
            out.push_str(&" ".repeat(hanging));
            at = hanging;
        } else {
            out.push_str(&" ".repeat(gap));
            at += gap;
        }
        blanks = 0;
        out.push_str(word);
        at += width(word);
    }
    out + end
}

/// The columns that a text takes, without the sequences that colour it.
fn width(text: &str) -> usize {
    let coloured = text.split("\x1b[").skip(1);
    let codes: usize = coloured.map(|rest| 2 + rest.find('m').map_or(0, |end| end + 1)).sum();
    text.chars().count() - codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_hang() {
        for (text, columns, wanted) in [
            ("short\n", 80, "short\n"),
            ("one two three", 8, "one two\n  three"),
            (
                "    why     a reason that is long\n",
                24,
                "    why     a reason\n            that is long\n",
            ),
            ("unbreakable-word-that-is-long", 8, "unbreakable-word-that-is-long"),
            ("a  b  c d e f", 7, "a  b  c\n   d e\n   f"),
            ("", 8, ""),
        ] {
            assert_eq!(wrap(text, columns), wanted);
        }
    }

    #[test]
    fn colours_take_no_columns() {
        let text = "\x1b[1;31mred\x1b[0m and so";
        assert_eq!(wrap(text, 10), text);
        assert_eq!(wrap(text, 9), "\x1b[1;31mred\x1b[0m and\n  so");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_where_words_allow() {
        let text = "    source  net/core/sock.c, SO_BUSY_POLL under CONFIG_NET_RX_BUSY_POLL and more words";
        for columns in 36..100 {
            let wrapped = wrap(text, columns);
            assert!(wrapped.lines().all(|line| width(line) <= columns), "{columns}: {wrapped}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&wrapped), words(text));
        }
    }
}
