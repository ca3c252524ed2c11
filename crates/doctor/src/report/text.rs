//! The report for people. Colour only on a terminal and without `NO_COLOR` (no-color.org).

use std::env;
use std::io::{self, IsTerminal, Write};

use super::Report;
use crate::{Finding, Verdict};

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// With colour.
    pub colour: bool,
}

impl Style {
    /// The style for standard output.
    pub fn of_stdout() -> Self {
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let able = env::var_os("TERM").is_none_or(|term| term != "dumb");
        Style { colour: wanted && able && io::stdout().is_terminal() }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn verdict(self, verdict: Verdict) -> String {
        let code = match verdict {
            Verdict::Impossible | Verdict::Harmful => "1;31",
            Verdict::NoEffect | Verdict::Off => "1;33",
            Verdict::Limited | Verdict::NotSeen => "1;36",
            Verdict::Working | Verdict::Fine => "1;32",
        };
        self.paint(code, verdict.word())
    }
}

impl Report {
    /// Writes the summary, the findings, what is fine, and the facts.
    ///
    /// # Errors
    /// Of the writer.
    pub fn write_text(&self, mut out: impl Write, style: Style) -> io::Result<()> {
        writeln!(out, "{}", style.paint("1", &self.summary()))?;
        let sorted = self.findings();
        let (good, told): (Vec<&Finding>, Vec<&Finding>) =
            sorted.into_iter().partition(|f| f.verdict() == Verdict::Fine);
        for finding in told {
            writeln!(out)?;
            finding.write_text(&mut out, style)?;
        }
        if !good.is_empty() {
            writeln!(out)?;
        }
        for finding in good {
            let (word, subject) = (style.verdict(finding.verdict()), &finding.subject);
            writeln!(out, "{word}  {subject}: {}", finding.what)?;
        }
        for facts in self.facts.iter().filter(|f| !f.lines.is_empty()) {
            writeln!(out)?;
            for line in &facts.lines {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

impl Finding {
    fn write_text(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let subject = style.paint("1", &self.subject.to_string());
        let word = style.verdict(self.verdict());
        writeln!(out, "{word}  {subject}: {}  [{}]", self.what, self.rule.code)?;
        for evidence in &self.evidence {
            writeln!(out, "    read    {}: {}", evidence.read, evidence.said)?;
        }
        if self.verdict() != Verdict::NotSeen {
            writeln!(out, "    why     {}", self.rule.why)?;
        }
        if let Some(remedy) = &self.remedy {
            writeln!(out, "    remedy  {}", style.paint("32", remedy))?;
        }
        writeln!(out, "    source  {}", self.rule.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use crate::rules::{KERNEL_NO_BUSY_POLL, KERNEL_OK};

    fn text(colour: bool) -> String {
        let mut report = Report::default();
        let finding = KERNEL_NO_BUSY_POLL.finding(Subject::Machine, "none");
        report.add(finding.evidence("getsockopt", "ENOPROTOOPT").remedy("reboot"));
        report.add(KERNEL_OK.finding(Subject::Machine, "all there"));
        report.facts("some", [1], vec!["a fact".into()]);
        let mut out = Vec::new();
        report.write_text(&mut out, Style { colour }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_finding_says_everything_and_a_fine_one_takes_one_line() {
        let expected = "One finding, first machine: none.\n\n\
             impossible  machine: none  [BP-KERNEL-NO-BUSY-POLL]\n    \
             read    getsockopt: ENOPROTOOPT\n    \
             why     without CONFIG_NET_RX_BUSY_POLL no socket and no epoll can poll a device\n    \
             remedy  reboot\n    \
             source  net/core/sock.c, SO_BUSY_POLL under CONFIG_NET_RX_BUSY_POLL\n\n\
             fine  machine: all there\n\na fact\n";
        assert_eq!(text(false), expected);
        assert!(text(true).contains("\x1b[1;31mimpossible\x1b[0m"));
    }
}
