//! Where the time of packets went, as text.

use std::fmt::Write;

use super::figures::{grouped, tail_text, time_text, us_text};
use crate::data::{FoundCounts, TraceFlow, TraceReport, TraceStage};

/// More flows would fill screens; the report as JSON has them.
const SHOWN: usize = 4;
/// The sender's stages matter less to a thread that waits.
const SLOW_SHOWN: usize = 10;
/// Columns of a histogram: the powers of two from below 1 us to 16 ms.
const COLUMNS: usize = 16;

impl TraceReport {
    /// The answer, a table for each of the busiest flows, and the slowest packets.
    pub fn render(&self) -> String {
        let mut out = format!("{}\n", self.answer);
        for (verb, flows) in [("received", &self.receives), ("sent", &self.sends)] {
            for flow in flows.iter().take(SHOWN) {
                out += &flow.render(verb);
            }
            if flows.len() > SHOWN {
                let more = flows.len() - SHOWN;
                let _ = writeln!(out, "\n{more} more that {verb}: --json has them");
            }
        }
        if !self.slowest.is_empty() {
            out += "\nThe slowest:\n";
        }
        for slow in self.slowest.iter().take(SLOW_SHOWN) {
            let _ = writeln!(
                out,
                "{:>9} {} {}: {}",
                time_text(slow.total_us),
                slow.direction,
                slow.socket,
                slow.story
            );
        }
        if let Some(cost) = self.cost {
            let each = cost.per_packet_ns.map_or(String::new(), |ns| {
                format!(" ({} for each packet seen)", time_text(ns / 1e3))
            });
            let _ = writeln!(
                out,
                "\nTracing took {:.1}% of a CPU at the machine's tracepoints{each}, and {:.1}% here.",
                cost.kernel_cpu_share * 100.0,
                cost.command_cpu_share * 100.0
            );
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }
}

impl TraceFlow {
    /// The socket and its peer.
    pub fn name(&self) -> String {
        let none = if self.protocol == "tcp" { ", its connections" } else { "" };
        let peer = self.peer.as_deref().map_or(none.to_owned(), |peer| format!(" to {peer}"));
        format!("{} {}{peer}", self.protocol, self.local)
    }

    /// The program and its process.
    pub fn owner(&self) -> String {
        match self.pid {
            0 => self.program.clone(),
            pid => format!("{} ({pid})", self.program),
        }
    }

    fn render(&self, verb: &str) -> String {
        let mut out = String::new();
        let plane = if self.plane == "stack" { ", stack plane" } else { "" };
        let _ = writeln!(
            out,
            "\n{}\n{}: {} packets {verb}{plane}",
            self.name(),
            self.owner(),
            grouped(self.packets as f64)
        );
        if let Some(found) = self.found {
            let _ = writeln!(out, "found by {}", found.words());
        }
        let _ = writeln!(
            out,
            "us            mean      p50      p99    p99.9  share  <1 us       ..  >16 ms"
        );
        for stage in self.stages_us.iter().chain([&self.total_us]) {
            let share = match self.total_us.mean {
                total if total > 0.0 => format!("{:.0}%", stage.mean / total * 100.0),
                _ => "-".to_owned(),
            };
            let _ = writeln!(
                out,
                "{:<10}{:>9}{:>9}{:>9}{:>9}{share:>7}  {}",
                stage.stage,
                us_text(stage.mean),
                us_text(stage.p50),
                tail_text(stage.p99),
                tail_text(stage.p99_9),
                stage.sparks()
            );
        }
        out
    }
}

impl TraceStage {
    /// The histogram in one line, a column for each power of two.
    fn sparks(&self) -> String {
        const MARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let mut columns = [0u64; COLUMNS];
        for (end, packets) in &self.histogram {
            let nth = end.max(1.0).log2().ceil() as usize;
            columns[nth.min(COLUMNS - 1)] += packets;
        }
        let most = columns.iter().max().copied().unwrap_or(0).max(1);
        let mark = |packets: u64| match packets {
            0 => ' ',
            n => MARKS[((n * 8 - 1) / most).min(7) as usize],
        };
        let line: String = columns.into_iter().map(mark).collect();
        line.trim_end().to_owned()
    }
}

impl FoundCounts {
    /// All of them.
    pub fn all(&self) -> u64 {
        let polls = self.own_polls + self.other_polls;
        polls + self.softirq + self.napi_threads + self.woken + self.direct
    }

    /// `own busy polls 98%, softirq 2%`.
    pub fn words(&self) -> String {
        let ways = [
            ("own busy polls", self.own_polls),
            ("other threads' busy polls", self.other_polls),
            ("softirq", self.softirq),
            ("NAPI threads", self.napi_threads),
            ("their own thread, woken by the interrupt", self.woken),
            ("no queue", self.direct),
        ];
        let all = self.all().max(1) as f64;
        let shares = ways.iter().filter(|(_, n)| *n > 0).map(|(way, n)| {
            let share = *n as f64 / all * 100.0;
            format!("{way} {share:.*}%", usize::from(share < 1.0))
        });
        shares.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_a_line_of_columns_and_shares_are_in_words() {
        let histogram = vec![(0.5, 1), (2.0, 8), (16384.0, 4), (1e9, 4)];
        let stage = TraceStage { histogram, ..TraceStage::default() };
        let line: Vec<char> = stage.sparks().chars().collect();
        assert_eq!(line.len(), COLUMNS);
        assert_eq!((line[0], line[1], line[2]), ('▁', '█', ' '));
        assert_eq!((line[14], line[15]), ('▄', '▄'));
        assert_eq!(TraceStage::default().sparks(), "");
        let found = FoundCounts { own_polls: 199, softirq: 1, ..FoundCounts::default() };
        assert_eq!(found.words(), "own busy polls 100%, softirq 0.5%");
    }
}
