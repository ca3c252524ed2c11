//! Throughput as text.

use std::fmt::Write;

use busypoll_policy::fit::Width;
use comfy_table::CellAlignment;

use super::figures::{tail_text, us_text};
use super::table::{self, plain};
use crate::data::ThroughputReport;

impl ThroughputReport {
    /// The report as text.
    pub fn render(&self, width: Width) -> String {
        let m = &self.machine;
        let mut out = format!(
            "{}, Linux {}{}; {}{}, {} rounds\n\n",
            m.cpu_model,
            m.kernel,
            if m.virtual_machine { " (virtual machine)" } else { "" },
            self.workload,
            m.mtu_text(),
            m.rounds
        );
        let is_stream = self.workload != "tcp-crr";
        let slow = self.workload == "tcp-loss";
        let (unit, of) = if slow { ("Mbit/s", 1e6) } else { ("Gbit/s", 1e9) };
        let mut columns = match is_stream {
            true => vec!["arm", unit, "CPU us/MiB", "polled/MiB"],
            false => vec!["arm", "conn/s", "CPU us/conn", "polled/conn"],
        };
        if !is_stream {
            columns.extend(["p50 us", "p99 us"]);
        }
        let mut table = plain(&columns);
        for arm in &self.arms {
            let rate = match is_stream {
                true => format!("{:.3}", arm.per_second / of),
                false => format!("{:.0}", arm.per_second),
            };
            let demand =
                arm.service_demand_us.map_or_else(|| "?".to_owned(), |us| format!("{us:.0}"));
            let polled = match is_stream {
                true => format!("{:.0}", arm.busy_polled_packets),
                false => format!("{:.1}", arm.busy_polled_packets),
            };
            let mut row = vec![arm.name.clone(), rate, demand, polled];
            if let Some(times) = &arm.connection_us {
                row.extend([us_text(times.p50), tail_text(times.p99)]);
            }
            table.add_row(row);
        }
        for i in 1..columns.len() {
            if let Some(column) = table.column_mut(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let first_to_go = ["polled/MiB", "polled/conn", "p99 us"];
        let _ = writeln!(out, "{}\n", width.fit(table, &first_to_go));
        let each = if is_stream { "MiB" } else { "connection" };
        let _ = writeln!(
            out,
            "CPU us: service demand, CPU time of the whole machine; polled: packets found by busy polling; both for each {each}."
        );
        if self.arms.iter().any(|arm| arm.service_demand_us.is_none()) {
            let _ = writeln!(out, "{}", table::HIDDEN);
        }
        for arm in &self.arms {
            if let Some(reason) = &arm.reason {
                let _ = writeln!(out, "INVALID {}: {reason}", arm.name);
            }
        }
        for s in &self.skipped {
            let _ = writeln!(out, "skipped: {}: {}", s.name, s.reason);
        }
        let mut title = "\nrates as multiples of other arms' [95% interval]:\n";
        for c in &self.comparisons {
            let interval = c.ci95.map_or(String::new(), |[lo, hi]| format!(" [{lo:.2}-{hi:.2}]"));
            let _ = writeln!(
                out,
                "{title}  {} = {:.2}{interval} x {}",
                c.arm, c.rate_ratio, c.baseline
            );
            title = "";
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\n{}", self.answer);
        out
    }
}
