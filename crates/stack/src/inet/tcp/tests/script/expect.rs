//! Expected and sent segments, in the same notation.

use super::super::notation::letters;
use super::{super::floor::Sent, IRS, Line, Script, Word, relative};
use crate::inet::tcp::segment::{Flags, Options};
use std::fmt::Write;

impl Script {
    /// The next segment sent is this. Only what is written is compared, and PSH only if written.
    #[track_caller]
    pub(in super::super) fn expect(&mut self, text: &str) {
        let line = Line::read(text);
        let Some((_, sent)) = self.sent.pop_front() else {
            panic!("expected {text}\n     but nothing was sent\n{}", self.log);
        };
        if let Err(what) = self.compare(&line, &sent) {
            panic!(
                "expected {text}\n     got {}\n     {what} differs\n{}",
                self.text(&sent),
                self.log
            );
        }
    }

    pub(super) fn compare(&self, line: &Line, sent: &Sent) -> Result<(), &'static str> {
        let same = |is: bool, what| if is { Ok(()) } else { Err(what) };
        let ignored = if line.flags.has(Flags::PSH) { 0 } else { Flags::PSH.0 };
        same(line.flags.0 & !ignored == sent.segment.flags.0 & !ignored, "a flag")?;
        let start = relative(sent.segment.seq, self.iss());
        let end = start + sent.payload.len() as i64 + i64::from(sent.segment.flags.has(Flags::FIN));
        let range = (start, end, sent.payload.len());
        same(line.range.is_none_or(|want| want == range), "the range")?;
        same(line.ack.is_none_or(|ack| ack == relative(sent.segment.ack, IRS)), "ack")?;
        same(line.window.is_none_or(|window| window == sent.segment.window), "win")?;
        same(line.urgent.is_none_or(|urgent| urgent == sent.segment.urgent), "urg")?;
        same(
            line.ecn.is_none() || (line.ecn.as_deref() == Some("ect0")) == sent.ecn_capable,
            "ECN",
        )?;
        let options = &sent.segment.options;
        for word in &line.options {
            match *word {
                Word::Mss(mss) => same(options.mss == Some(mss), "mss")?,
                Word::SackPermitted => same(options.sack_permitted, "sackOK")?,
                Word::Timestamps(v, e) => same(options.timestamps == Some((v, e)), "ts")?,
                Word::WindowScale(shift) => same(options.window_scale == Some(shift), "ws")?,
                Word::Sacks(ref want) => same(*want == self.sacks(options), "sack")?,
                Word::No("mss") => same(options.mss.is_none(), "mss")?,
                Word::No("sackOK") => same(!options.sack_permitted, "sackOK")?,
                Word::No("ts") => same(options.timestamps.is_none(), "ts")?,
                Word::No("ws") => same(options.window_scale.is_none(), "ws")?,
                Word::No(_) => same(options.sacks.is_empty(), "sack")?,
            }
        }
        Ok(())
    }

    pub(super) fn sacks(&self, options: &Options) -> Vec<(i64, i64)> {
        options.sacks.iter().map(|b| (relative(b.start, IRS), relative(b.end, IRS))).collect()
    }

    /// A segment in the notation of `notation`.
    pub(super) fn text(&self, sent: &Sent) -> String {
        let start = relative(sent.segment.seq, self.iss());
        let len = sent.payload.len();
        let end = start + len as i64 + i64::from(sent.segment.flags.has(Flags::FIN));
        let mut text = if sent.ecn_capable { "[ect0] ".to_owned() } else { String::new() };
        let _ = write!(text, "{} {start}:{end}({len})", letters(sent.segment.flags));
        if sent.segment.flags.has(Flags::ACK) {
            let _ = write!(text, " ack {}", relative(sent.segment.ack, IRS));
        }
        let _ = write!(text, " win {}", sent.segment.window);
        if sent.segment.flags.has(Flags::URG) {
            let _ = write!(text, " urg {}", sent.segment.urgent);
        }
        let options = &sent.segment.options;
        let mut words = Vec::new();
        words.extend(options.mss.map(|mss| format!("mss {mss}")));
        words.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
        words.extend(options.timestamps.map(|(value, echo)| format!("ts {value} {echo}")));
        words.extend(options.window_scale.map(|shift| format!("ws {shift}")));
        if !options.sacks.is_empty() {
            let blocks = self.sacks(options).into_iter().map(|(from, to)| format!(" {from}:{to}"));
            words.push(format!("sack{}", blocks.collect::<String>()));
        }
        if !words.is_empty() {
            let _ = write!(text, " <{}>", words.join(","));
        }
        text
    }

    /// The data from `from` to `to` is sent next, in order, in segments of any size.
    #[track_caller]
    pub(in super::super) fn expect_data(&mut self, from: i64, to: i64) {
        let mut at = from;
        while at < to {
            let log = &self.log;
            let Some((_, sent)) = self.sent.pop_front() else {
                panic!("expected data from {at} to {to}, but nothing more was sent\n{log}");
            };
            let start = relative(sent.segment.seq, self.iss());
            assert_eq!(start, at, "expected data from {at} on\n{log}");
            assert!(!sent.payload.is_empty(), "expected data from {at} on\n{log}");
            at += sent.payload.len() as i64;
        }
        assert_eq!(at, to, "more data than expected\n{}", self.log);
    }

    /// Nothing was sent beyond what was expected.
    #[track_caller]
    pub(in super::super) fn expect_nothing(&mut self) {
        if let Some((_, sent)) = self.sent.front() {
            panic!("sent and not expected: {}\n{}", self.text(sent), self.log);
        }
    }

    /// How many bytes our last acknowledgment lets the peer send.
    pub(in super::super) fn offers(&self) -> i64 {
        self.offered.unwrap_or(0) - self.acked.unwrap_or(0)
    }

    /// Our last acknowledgment.
    pub(in super::super) fn acked(&self) -> i64 {
        self.acked.unwrap_or(0)
    }

    /// Whether a segment was sent that is not expected yet.
    pub(in super::super) fn sent_some(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The ranges of data sent and not expected; drops them.
    pub(in super::super) fn take_ranges(&mut self) -> Vec<(i64, i64)> {
        let range = |(_, sent): &(_, Sent)| {
            let start = relative(sent.segment.seq, self.iss());
            (start, start + sent.payload.len() as i64)
        };
        let ranges = self.sent.iter().map(range).filter(|(start, end)| start < end).collect();
        self.sent.clear();
        ranges
    }

    /// Drops the segments sent and not expected; returns how many there were.
    pub(in super::super) fn ignore(&mut self) -> usize {
        self.sent.drain(..).count()
    }
}
