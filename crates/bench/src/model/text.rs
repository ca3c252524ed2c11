//! The models as text.

use std::fmt::Write;

use busypoll_policy::fit::Width;

use super::latency::{self, Outcome};
use super::scale::{self, LINKS, PLANES};
use crate::text::figures::{grouped, us_text};
use crate::text::table::plain;

fn percent(error: f64) -> String {
    format!("{:+.1}%", error * 100.0)
}

/// The source's table, the constants, today's hardware.
pub fn latency(inputs: &latency::Inputs, outcome: &Outcome, width: Width) -> String {
    let mut out = String::from(
        "The table of the first patches (netdev, February 2013): thousands of transactions a second\n\n",
    );
    let mut table = plain(&["row", "", "source", "model", "error", "left out", ""]);
    for (nth, row) in outcome.rows.iter().enumerate() {
        for (protocol, figure) in ["TCP", "UDP"].iter().zip(row.figures) {
            let first = *protocol == "TCP";
            let label =
                if first { format!("{} {}", nth + 1, row.row.label()) } else { String::new() };
            table.add_row([
                label,
                (*protocol).to_owned(),
                format!("{:.0}", figure.source),
                format!("{:.1}", figure.model),
                percent(figure.residual),
                percent(figure.left_out),
                if row.alone && first {
                    "its constant's bound stands in".into()
                } else {
                    String::new()
                },
            ]);
        }
    }
    let figures = || outcome.rows.iter().flat_map(|row| row.figures);
    let worst =
        |error: fn(&latency::Figure) -> f64| figures().map(|f| error(&f).abs()).fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "{}\n\nerror: model over source. left out: the same where the row took no part in the fit.\n\
         {} figures, {} fitted constants; the largest error is {:.1}%, with the row left out {:.1}%.\n",
        width.fit(table, &["left out"]),
        figures().count(),
        outcome.fitted.len(),
        worst(|f| f.residual) * 100.0,
        worst(|f| f.left_out) * 100.0
    );
    let mut table = plain(&["constant", "us", "", "meaning; source"]);
    for constant in &inputs.constants {
        let fitted = outcome.fitted.iter().find(|(name, _)| *name == constant.name);
        let value = constant.value.or_else(|| fitted.and_then(|(_, value)| *value));
        table.add_row([
            constant.name.clone(),
            value.map_or("-".to_owned(), |value| match constant.name.as_str() {
                "pcie-trips" => format!("{value:.0} x"),
                "scale" => format!("{value:.2} x"),
                _ => format!("{value:.2}"),
            }),
            constant.kind.word().to_owned(),
            format!("{}; {}", constant.meaning, constant.source),
        ]);
    }
    let _ = writeln!(out, "{}\n", width.fit(table, &[]));
    if outcome.systems.is_empty() {
        return out;
    }
    let mut table = plain(&[
        "today: round trip in us",
        "",
        "asleep",
        "busy polling",
        "ratio",
        "source of its constants",
    ]);
    for predicted in &outcome.systems {
        for (nth, protocol) in ["TCP", "UDP"].into_iter().enumerate() {
            let (asleep, polls) = (predicted.sleeping[nth], predicted.polling[nth]);
            let only_first = |text: &str| if nth == 0 { text.to_owned() } else { String::new() };
            table.add_row([
                only_first(&predicted.system.name),
                protocol.to_owned(),
                us_text(asleep),
                us_text(polls),
                format!("{:.1}", asleep / polls),
                only_first(&predicted.system.source),
            ]);
        }
    }
    out + &width.fit(table, &[]) + "\n"
}

/// Rates, limits, a fleet, and the checks.
pub fn scale(
    inputs: &scale::Inputs,
    cores: &[u32],
    (hosts, threads): (u32, u32),
    width: Width,
) -> String {
    let mut out = String::new();
    for bytes in [64, 1472] {
        let _ = writeln!(
            out,
            "Requests of {bytes} B answered with as much, millions a second, and the limit that is met first\n"
        );
        let mut header = vec!["plane".to_owned(), "cores".to_owned()];
        header.extend(LINKS.iter().map(|gbits| format!("{gbits:.0} Gbit/s")));
        header.push(String::new());
        let mut table = plain(&header.iter().map(String::as_str).collect::<Vec<_>>());
        for (plane, _) in PLANES {
            for (nth, &cores) in cores.iter().enumerate() {
                let mut row = vec![
                    if nth == 0 { plane.to_owned() } else { String::new() },
                    cores.to_string(),
                ];
                row.extend(LINKS.iter().map(|&gbits| {
                    let rate = scale::rate(inputs, plane, cores, gbits, bytes);
                    format!("{} {}", us_text(rate.per_second / 1e6), rate.limit.word())
                }));
                table.add_row(row);
            }
        }
        let _ = writeln!(out, "{}\n", width.fit(table, &[]));
    }
    let _ = writeln!(out, "Where it breaks\n");
    breaks(inputs, cores, &mut out);
    let _ = writeln!(
        out,
        "\n{} hosts, {threads} waiting thread{} each, which poll whether or not anything arrives\n",
        grouped(f64::from(hosts)),
        if threads == 1 { "" } else { "s" }
    );
    let mut table = plain(&["plane", "p50 us", "p99 us", "cores", "kW at most", "MWh a year", ""]);
    for row in scale::fleet(inputs, hosts, threads) {
        table.add_row([
            row.plane.to_owned(),
            us_text(row.p50),
            us_text(row.p99),
            grouped(row.cores),
            us_text(row.kilowatts),
            grouped(row.mwh_a_year),
            String::new(),
        ]);
    }
    let _ = writeln!(out, "{}\n", width.fit(table, &["MWh a year"]));
    let mut table =
        plain(&["checked on the machine of the costs", "predicted", "measured", "error", ""]);
    for check in scale::checks(inputs) {
        table.add_row([
            check.what.clone(),
            us_text(check.predicted),
            us_text(check.measured),
            percent(check.error()),
            String::new(),
        ]);
    }
    let _ = writeln!(out, "{}\n", width.fit(table, &[]));
    let mut table = plain(&["input", "value", "meaning; source"]);
    for (plane, arm) in PLANES {
        let cost = format!("{} us", us_text(scale::cost(inputs, plane)));
        table.add_row([
            plane.to_owned(),
            cost,
            format!("of a core for a request: half of p50 of {arm}"),
        ]);
    }
    for input in &inputs.inputs {
        table.add_row([
            input.name.clone(),
            format!("{} {}", input.value, input.unit),
            format!("{}; {}", input.meaning, input.source),
        ]);
    }
    out + &width.fit(table, &[]) + "\n"
}

fn breaks(inputs: &scale::Inputs, cores: &[u32], out: &mut String) {
    let line = |gbits: f64, bytes: f64| gbits * 1e9 / 8.0 / (bytes + inputs.get("headers"));
    let most = LINKS[LINKS.len() - 1];
    let used =
        line(most, 1472.0) * 1472.0 * inputs.get("copies") * 2.0 / 1e9 / inputs.get("memory");
    let _ = writeln!(
        out,
        "- memory: {most:.0} Gbit/s each way takes {:.0}% of {} GB/s; where packets have to be queued, which is two \
         copies more, {:.0}%.",
        used * 100.0,
        inputs.get("memory"),
        used * 100.0 * (inputs.get("copies") + 2.0) / inputs.get("copies")
    );
    let at = scale::ring_limit(inputs);
    let _ = writeln!(
        out,
        "- fill ring: {} frames last for {} us at {} packets a second of one queue; above that a thread that stops \
         polling loses packets before another takes over. At {:.0} Gbit/s of 64 B over {} queues they last {} us.",
        inputs.get("ring-frames"),
        inputs.get("takeover"),
        grouped(at),
        LINKS[0],
        cores.iter().max().unwrap_or(&1),
        us_text(scale::ring_lasts(
            inputs,
            line(LINKS[0], 64.0) / f64::from(*cores.iter().max().unwrap_or(&1))
        ))
    );
    let rate = line(LINKS[0], 64.0);
    let _ = writeln!(
        out,
        "- doorbells: by copy, the system calls of AF_XDP take {} cores at {:.0} Gbit/s of 64 B, one for each packet; \
         the stack itself takes {}.",
        us_text(scale::doorbell_cores(inputs, rate)),
        LINKS[0],
        us_text(rate * scale::cost(inputs, "stack, no driver") / 1e6)
    );
    let _ = writeln!(
        out,
        "- spinners: one a CPU. Of more waiting threads than CPUs the rest sleep, at the p50 and p99 of the first row \
         below."
    );
}
