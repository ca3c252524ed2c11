//! A sweep as text.

use std::fmt::Write;

use busypoll_policy::fit::Width;

use super::figures::{ratio_text, tail_text, us_text, weight_text};
use super::table;
use crate::data::{Open, Point, PointArm, Sweep, SweepReport, Weight};
use crate::units::UDP_MAX;

impl SweepReport {
    /// The answer, the table, what was skipped.
    pub fn render(&self, width: Width) -> String {
        let mut out = format!("{}\n\n", self.answer);
        let open = self.sweep == Sweep::Open;
        let mut table = table::plain(&[
            self.sweep.word(),
            "arm",
            "p50",
            "p99",
            "p99.9",
            if open { "x one" } else { "trans/s" },
            if open { "idle one" } else { "lost" },
            if open { "in the kernel" } else { "CPU us" },
            if open { "CPU us" } else { "server CPU us" },
            "evidence",
        ]);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        for (nth, point) in self.points.iter().enumerate() {
            let first = nth == 0;
            for (i, PointArm { arm, server_cpu_us, open }) in point.arms.iter().enumerate() {
                let r = &arm.rtt_us;
                let offered = (arm.transactions + arm.evidence.lost).max(1);
                let lost = arm.evidence.lost as f64 / offered as f64;
                let demand = |us: Option<f64>| us.map_or("?".to_owned(), us_text);
                let invalid = if arm.valid { "" } else { "INVALID; " };
                let middle = match open {
                    None => [
                        format!("{:.0}", arm.transactions_per_second),
                        if lost > 0.0 { format!("{:.1}%", lost * 100.0) } else { "0".to_owned() },
                        demand(arm.service_demand_us),
                        demand(*server_cpu_us),
                    ],
                    Some(Open { p50_ratio, ci95, idle_bytes }) => {
                        let weight = |of: fn(&Weight) -> Option<f64>| {
                            idle_bytes.as_ref().map_or(String::new(), |w| weight_text(of(w)))
                        };
                        [
                            match p50_ratio {
                                Some(_) if first => "1 (baseline)".to_owned(),
                                Some(ratio) => ratio_text(*ratio, *ci95),
                                None => "-".to_owned(),
                            },
                            weight(|w| w.process),
                            weight(|w| w.kernel),
                            demand(arm.service_demand_us),
                        ]
                    }
                };
                let [a, b, c, d] = middle;
                table.add_row([
                    if i == 0 { point.label.clone() } else { String::new() },
                    arm.name.clone(),
                    us_text(r.p50),
                    tail_text(r.p99),
                    tail_text(r.p99_9),
                    a,
                    b,
                    c,
                    d,
                    format!("{invalid}{}", arm.evidence_summary()),
                ]);
            }
        }
        let first_to_go = match open {
            true => ["evidence", "p99.9", "CPU us", "in the kernel", "p99"],
            false => ["evidence", "p99.9", "server CPU us", "trans/s", "p99"],
        };
        let _ = writeln!(out, "{}\n", width.fit(table, &first_to_go));
        let legend = match open {
            true => {
                "Times in us. x one: p50 as a multiple of that with one open [95% interval].\n\
                 idle one: what this process grew by for each idle UDP socket (they are the server's) or end of a \
                 TCP connection (it has both);\nin the kernel: what the kernel's objects grew by, other programs' \
                 included. CPU us: whole machine per transaction; ?: hidden\nby other programs."
            }
            false => {
                "Times in us. CPU us: whole machine per transaction; server CPU us: on the server's CPU \
                 alone; ?: hidden by other programs."
            }
        };
        let _ = writeln!(out, "{legend}");
        let too_few = |p: &Point| p.arms.iter().any(|a| a.arm.rtt_us.p99_9.is_none());
        if self.points.iter().any(too_few) {
            let _ = writeln!(out, "{}", table::TOO_FEW);
        }
        let datagram = |a: &PointArm| a.arm.request_bytes == UDP_MAX;
        if self.sweep == Sweep::Size && self.points.iter().any(|p| p.arms.iter().any(datagram)) {
            let _ = writeln!(out, "64 KiB of UDP: {UDP_MAX} B, the most a datagram carries.");
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        for s in &self.skipped {
            let _ = writeln!(out, "skipped: {}: {}", s.name, s.reason);
        }
        for point in &self.points {
            for PointArm { arm, .. } in &point.arms {
                if let Some(reason) = &arm.reason {
                    let _ = writeln!(out, "invalid: {} at {}: {reason}", arm.name, point.label);
                }
            }
        }
        out
    }
}
