//! The stages of receives as text.

use std::fmt::Write;

use busypoll_policy::fit::Width;

use super::figures::us_text;
use super::table;
use crate::data::StagesReport;

impl StagesReport {
    /// The answer and the table.
    pub fn render(&self, width: Width) -> String {
        let mut out = format!("{}\n\n", self.answer);
        let mut header = vec!["arm"];
        let stages = self.arms.first().map_or(&[][..], |arm| &arm.stages_us);
        header.extend(stages.iter().map(|s| s.stage.as_str()));
        header.extend(["total", ""]);
        let mut table = table::plain(&header);
        for arm in &self.arms {
            let mut row = vec![arm.arm.clone()];
            row.extend(arm.stages_us.iter().map(|s| us_text(s.p50)));
            row.push(us_text(arm.total_us));
            table.add_row(row);
        }
        let _ = writeln!(out, "{}\n", width.fit(table, &["total", "napi"]));
        let _ = writeln!(
            out,
            "Medians in us. ring: on the ring until a spinning pass begins; wake-up: the same with the \
             receiver asleep, interrupt included; napi: pass to frame handed up; inet: until its socket is \
             found; socket: until it is there; return: until recv has returned. A time stamp costs {:.0} ns.",
            self.clock_overhead_ns
        );
        for s in &self.skipped {
            let _ = writeln!(out, "skipped: {}: {}", s.name, s.reason);
        }
        out
    }
}
