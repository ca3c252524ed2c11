//! Segments as text, after packetdrill: `"P. 1:1001(1000) ack 1 win 512 <ts 100 1>"`.
//!
//! Owns the words and numbers; `script` compares them.

use super::super::segment::Flags;

/// The letters of the control bits, in the order of writing.
const LETTERS: [(char, Flags); 8] = [
    ('S', Flags::SYN),
    ('F', Flags::FIN),
    ('R', Flags::RST),
    ('P', Flags::PSH),
    ('E', Flags::ECE),
    ('W', Flags::CWR),
    ('U', Flags::URG),
    ('.', Flags::ACK),
];

/// One option, as written. Numbers are relative to the sides' initial ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Mss(u16),
    SackPermitted,
    Timestamps(u32, u32),
    WindowScale(u8),
    /// `sack 1001:2001 3001:4001`
    Sacks(Vec<(i64, i64)>),
    /// `no ts`: this option is absent.
    No(&'static str),
}

/// A segment as written; `None` for what is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The word in brackets: `ce`, `ect0`, `not-ect`.
    pub(super) ecn: Option<String>,
    pub(super) flags: Flags,
    /// First number, the number after the last, bytes of data.
    pub(super) range: Option<(i64, i64, usize)>,
    pub(super) ack: Option<i64>,
    pub(super) window: Option<u16>,
    pub(super) urgent: Option<u16>,
    pub(super) options: Vec<Word>,
}

impl Line {
    /// Reads `[ce] P. 1:1001(1000) ack 1 win 512 <mss 1000,sackOK>`; all but the flags may be left out.
    pub(super) fn read(text: &str) -> Line {
        Self::try_read(text).unwrap_or_else(|what| panic!("{text:?}: {what}"))
    }

    fn try_read(text: &str) -> Result<Line, String> {
        let mut line = Line::default();
        let (head, options) = match text.split_once('<') {
            Some((head, rest)) => {
                (head, rest.trim_end().strip_suffix('>').ok_or("no > at the end")?)
            }
            None => (text, ""),
        };
        let mut words = head.split_whitespace().peekable();
        let bracket = words.next_if(|word| word.starts_with('['));
        line.ecn = bracket.map(|word| word.trim_matches(['[', ']']).to_owned());
        for letter in words.next().ok_or("no flags")?.chars() {
            let bit = LETTERS.iter().find(|(l, _)| *l == letter);
            line.flags = line.flags | bit.ok_or_else(|| format!("no flag {letter:?}"))?.1;
        }
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} what?"));
            match word {
                "ack" => line.ack = Some(number(value()?)?),
                "win" => line.window = Some(number(value()?)?),
                "urg" => line.urgent = Some(number(value()?)?),
                range if range.contains(':') => line.range = Some(read_range(range)?),
                _ => return Err(format!("what is {word:?}?")),
            }
        }
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            line.options.push(read_option(option)?);
        }
        Ok(line)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number here"))
}

/// `1:1001(1000)`.
fn read_range(text: &str) -> Result<(i64, i64, usize), String> {
    let parts = text.split_once(':').and_then(|(start, rest)| {
        let (end, len) = rest.strip_suffix(')')?.split_once('(')?;
        Some((start, end, len))
    });
    let (start, end, len) = parts.ok_or_else(|| format!("{text:?}: write first:behind(bytes)"))?;
    Ok((number(start)?, number(end)?, number(len)?))
}

fn read_option(text: &str) -> Result<Word, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    Ok(match words[..] {
        ["mss", mss] => Word::Mss(number(mss)?),
        ["sackOK"] => Word::SackPermitted,
        ["ts", value, echo] => Word::Timestamps(number(value)?, number(echo)?),
        ["ws", shift] => Word::WindowScale(number(shift)?),
        ["sack", ref blocks @ ..] if !blocks.is_empty() => {
            let pair = |block: &&str| {
                let (start, end) = block.split_once(':').ok_or_else(|| format!("no {block:?}"))?;
                Ok::<_, String>((number(start)?, number(end)?))
            };
            Word::Sacks(blocks.iter().map(pair).collect::<Result<_, _>>()?)
        }
        ["no", "mss"] => Word::No("mss"),
        ["no", "sackOK"] => Word::No("sackOK"),
        ["no", "ts"] => Word::No("ts"),
        ["no", "ws"] => Word::No("ws"),
        ["no", "sack"] => Word::No("sack"),
        _ => return Err(format!("no option {text:?}")),
    })
}

/// The letters of `flags`.
pub(super) fn letters(flags: Flags) -> String {
    LETTERS.iter().filter(|(_, bit)| flags.has(*bit)).map(|(letter, _)| *letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_notation_of_the_documentation() {
        let line = Line::read("[ce] SP. 0:11(10) ack 1 win 512 <mss 1460,sackOK,ts 5 0,ws 7>");
        assert_eq!(line.ecn.as_deref(), Some("ce"));
        assert_eq!(letters(line.flags), "SP.");
        assert_eq!((line.range, line.ack, line.window), (Some((0, 11, 10)), Some(1), Some(512)));
        let options =
            [Word::Mss(1460), Word::SackPermitted, Word::Timestamps(5, 0), Word::WindowScale(7)];
        assert_eq!(line.options, options);
        let line = Line::read(". ack 1 <sack 1001:2001 -1:0,no ts>");
        assert_eq!(line.options, [Word::Sacks(vec![(1001, 2001), (-1, 0)]), Word::No("ts")]);
        assert_eq!((line.range, line.window, line.ecn), (None, None, None));
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        let malformed =
            ["", "X 1:1(0)", ". 1:2", ". ack", ". win 65536", ". foo 3", ". <mss 1", ". <sack 3>"];
        for text in malformed {
            assert!(Line::try_read(text).is_err(), "{text:?}");
        }
    }
}
