//! The advice as text and as JSON.

use std::io::{self, Write};

use busypoll_policy::terminal;
use serde::Serialize;

use crate::advice::{Advice, Budget, policy};
use crate::calibrate::Measured;
use crate::model::{Costs, Prediction};
use crate::recording::quantile;
use crate::turns::Count;
use crate::watch::Seen;

/// What is printed with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    schema_version: u32,
    time: String,
    commit: &'static str,
    pid: u32,
    program: &'a str,
    watched_s: f64,
    threads: usize,
    waits: usize,
    call: Option<&'static str>,
    wait_us: [f64; 2],
    work_us: f64,
    wake_up_us: f64,
    cpus: usize,
    cpus_of_others: f64,
    cpu_share: f64,
    costs: Option<Costs>,
    turns: Option<Count>,
    settings: Vec<Line>,
    not_known: &'a [String],
    best: Option<String>,
    policy: Option<String>,
}

#[derive(Serialize)]
struct Line {
    setting: String,
    found_share: Option<f64>,
    delay_p50_us: Option<f64>,
    delay_p99_us: Option<f64>,
    round_p50_us: Option<f64>,
    round_p99_us: Option<f64>,
    cpu_share: Option<f64>,
    not_known: Vec<String>,
}

/// Five digits are more than the model knows.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// In JSON.
pub(crate) fn json(
    out: &mut impl Write,
    seen: &Seen,
    measured: Option<&Measured>,
    advice: &Advice,
) -> io::Result<()> {
    let recording = &seen.recording;
    let us = |ns: u64| rounded(ns as f64 / 1000.0);
    let mut waits: Vec<u64> = recording.rounds().map(|round| round.wait).collect();
    let settings = advice.rows.iter().map(|row| {
        let of = |value: fn(&Prediction) -> f64| {
            row.prediction.as_ref().map(|prediction| rounded(value(prediction)))
        };
        Line {
            setting: row.setting.name(),
            found_share: of(|it| it.found),
            delay_p50_us: of(|it| it.delay_p50),
            delay_p99_us: of(|it| it.delay_p99),
            round_p50_us: of(|it| it.round_p50),
            round_p99_us: of(|it| it.round_p99),
            cpu_share: of(|it| it.cpu),
            not_known: row.doubts.clone(),
        }
    });
    let report = Report {
        schema: "advise",
        schema_version: 1,
        time: busypoll_policy::utc(std::time::SystemTime::now()),
        commit: busypoll_policy::BUILD,
        pid: seen.pid,
        program: &seen.program,
        watched_s: rounded(recording.time as f64 / 1e9),
        threads: recording.threads.len(),
        waits: waits.len(),
        call: recording.main_call().map(|call| call.word()),
        wait_us: [us(quantile(&mut waits, 0.5)), us(quantile(&mut waits, 0.99))],
        work_us: us(recording.median(|round| round.work)),
        wake_up_us: us(recording.median(|round| round.delay)),
        cpus: seen.cpus.online,
        cpus_of_others: rounded(seen.cpus.others),
        cpu_share: rounded(seen.cpus.own),
        costs: measured.map(|measured| measured.costs),
        turns: measured.map(|measured| measured.turns),
        settings: settings.collect(),
        not_known: &advice.doubts,
        best: advice.best.map(|best| best.name()),
        policy: advice.best.map(|best| policy(best, &seen.program)),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}

fn time(us: f64) -> String {
    match us {
        ..9.95 => format!("{us:.1} us"),
        ..9_950.0 => format!("{us:.0} us"),
        ..999_500.0 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

/// As text: what was seen, what each setting would give, what is not known, the policy file.
pub(crate) fn text(
    out: &mut impl Write,
    seen: &Seen,
    measured: Option<&Measured>,
    advice: &Advice,
    budget: Budget,
) -> io::Result<()> {
    let mut text = String::new();
    let recording = &seen.recording;
    let ns = |ns: u64| time(ns as f64 / 1000.0);
    let mut waits: Vec<u64> = recording.rounds().map(|round| round.wait).collect();
    text += &format!(
        "{}[{}], watched for {:.1} s: {} waits in {}, threads: {}, {:.0}% of a CPU\n",
        seen.program,
        seen.pid,
        recording.time as f64 / 1e9,
        waits.len(),
        recording.main_call().map_or("no call", |call| call.word()),
        recording.threads.len(),
        seen.cpus.own * 100.0,
    );
    if !waits.is_empty() {
        text += &format!(
            "  a wait takes {} (p99 {}), the work between two waits {}, a wake-up {}\n",
            ns(quantile(&mut waits, 0.5)),
            ns(quantile(&mut waits, 0.99)),
            ns(recording.median(|round| round.work)),
            ns(recording.median(|round| round.delay)),
        );
    }
    if let Some(Measured { costs, no_stack, .. }) = measured {
        let stack = match (costs.stack_ns, no_stack) {
            (Some(stack), _) => format!("on the stack plane {}", time(stack / 1000.0)),
            (None, why) => format!("no stack plane: {}", why.as_deref().unwrap_or("not measured")),
        };
        text += &format!(
            "  measured here, with a server like it: a round trip asleep {}, polling {}, {stack}\n\n",
            time(costs.asleep_ns / 1000.0),
            time(costs.kernel_ns / 1000.0),
        );
        text += " setting          found   delay p50       p99   round p50       p99    CPU\n";
        for row in &advice.rows {
            let Some(it) = &row.prediction else { continue };
            let known = row.doubts.is_empty() && advice.doubts.is_empty();
            let doubt = if known { "" } else { "  ?" };
            text += &format!(
                " {:<15} {:>5.0}%  {:>10}  {:>8}  {:>10}  {:>8}  {:>4.0}%{doubt}\n",
                row.setting.name(),
                it.found * 100.0,
                time(it.delay_p50),
                time(it.delay_p99),
                time(it.round_p50),
                time(it.round_p99),
                it.cpu * 100.0
            );
        }
        text.push('\n');
    }
    for doubt in &advice.doubts {
        text += &format!("not known: {doubt}\n");
    }
    if advice.doubts.is_empty() {
        let mut told: Vec<&str> = Vec::new();
        for row in &advice.rows {
            for doubt in row
                .doubts
                .iter()
                .filter(|doubt| !told.contains(&doubt.as_str()))
                .collect::<Vec<_>>()
            {
                text += &format!("not known (?), {}: {doubt}\n", row.setting.name());
                told.push(doubt);
            }
        }
    }
    let asked = match budget {
        Budget { cpu: None, p99_us: None } => String::new(),
        Budget { cpu, p99_us } => {
            let cpu = cpu.map(|cpu| format!("{:.0}% of a CPU", cpu * 100.0));
            let p99 = p99_us.map(|us| format!("a p99 of {}", time(us)));
            format!(" within {}", cpu.into_iter().chain(p99).collect::<Vec<_>>().join(" and "))
        }
    };
    match advice.best {
        Some(best) => {
            text += &format!("best{asked}: {}; the policy file:\n\n", best.name());
            text += &policy(best, &seen.program);
        }
        None if advice.doubts.is_empty() => {
            text += &format!("no setting is known to stay{asked}\n")
        }
        None => text += "so there is no advice\n",
    }
    if let Some(columns) = terminal::columns() {
        text = terminal::wrap(&text, columns.max(90));
    }
    out.write_all(text.as_bytes())
}
