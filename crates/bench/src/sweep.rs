//! The common questions about busy polling, each answered by a table and a chart:
//! at what size does the gain end, what happens at high packet rates and what does a packet cost,
//! what does interrupt coalescing change, and what do other open connections cost.

use std::fmt::Write;
use std::time::Duration;

use busypoll_policy::fit::Width;
use busypoll_stack::nic::Coalesce;
use serde::Serialize;

use crate::arm::{ARMS, Arm, Mode, Placement, Plane, Protocol};
use crate::chart::{Chart, Series};
use crate::demand;
use crate::json::{ArmReport, Machine, SkippedReport};
use crate::open::Weight;
use crate::report;
use crate::run::{ArmRun, Bench, Outcome, Settings};
use crate::slot::Load;
use crate::table::{self, us_text};
use crate::units::{Size, UDP_MAX};
use crate::{answer, interrupt, machine, stats};

/// The question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sweep {
    /// At what size does the gain end?
    Size,
    /// What happens at high packet rates, and what does each packet cost in CPU?
    Rate,
    /// What do rx-usecs change, with and without polling? (cable)
    Coalesce,
    /// What does it cost to have many connections or sockets open?
    Open,
}

/// A sweep's result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepReport {
    /// `size`, `rate`, `coalesce`, `open`.
    pub sweep: &'static str,
    /// The sentence that answers the question.
    pub answer: String,
    /// The machine and the settings.
    pub machine: Machine,
    /// Left to right.
    pub points: Vec<Point>,
    /// Arms that could not be measured at some point.
    pub skipped: Vec<SkippedReport>,
}

/// One value of the swept setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Its text.
    pub label: String,
    /// Bytes, requests per second, microseconds (null for `adaptive`), or the number open.
    pub value: Option<f64>,
    /// The arms, in table order.
    pub arms: Vec<PointArm>,
}

/// One arm at one point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PointArm {
    /// Its figures.
    #[serde(flatten)]
    pub arm: ArmReport,
    /// Microseconds on the server's CPU per request it answered; null if other programs hide it.
    pub server_cpu_us: Option<f64>,
    /// The cost of the open ones, in that sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
}

/// The cost to an arm of many open connections or sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Open {
    /// p50 as a multiple of that with one open; null if either of the two is not valid.
    pub p50_ratio: Option<f64>,
    /// 95 % confidence interval; null with a single round.
    pub ci95: Option<[f64; 2]>,
    /// Bytes per idle connection or socket; the median over rounds. Null with one open.
    pub idle_bytes: Option<Weight>,
}

const SIZES: [usize; 8] = [1, 64, 256, 1024, 1472, 4096, 16_384, 65_536];
const OPEN: [u32; 4] = [1, 100, 1_000, 10_000];
const RATES: [u32; 7] = [1_000, 5_000, 20_000, 50_000, 100_000, 200_000, 400_000];
/// The time between two requests at the lowest rate.
pub fn longest_gap() -> Duration {
    Duration::from_secs(1) / RATES[0]
}

/// The interrupt delay that is compared with 0.
pub const RX_USECS: u32 = 100;
/// The open loop writes its sequence number into each message.
pub const RATE_BYTES: usize = 16;

impl Sweep {
    /// The name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Rate => "rate",
            Self::Coalesce => "coalesce",
            Self::Open => "open",
        }
    }

    /// The arms that answer the question if the user names none.
    pub fn default_arms(self) -> Vec<Arm> {
        let fits = |a: &&Arm| match self {
            Self::Size => {
                a.protocol == Protocol::Udp
                    && matches!(a.mode, Mode::Blocking | Mode::Interrupt | Mode::BusyPoll)
            }
            Self::Rate => self.refuses(a).is_none() && a.plane != Plane::Bare,
            Self::Coalesce => self.refuses(a).is_none(),
            Self::Open => a.mode == Mode::BusyPoll,
        };
        ARMS.iter().filter(fits).copied().collect()
    }

    /// Why an arm cannot be in this sweep, if it cannot.
    pub fn refuses(self, arm: &Arm) -> Option<&'static str> {
        match self {
            Self::Size => None,
            Self::Rate if arm.protocol != Protocol::Udp => Some("the open loop needs datagrams"),
            Self::Rate if arm.placement == Placement::SameCpu => {
                Some("the open loop's client never sleeps and needs a CPU of its own")
            }
            Self::Rate => None,
            Self::Coalesce if arm.nic != crate::arm::Nic::Cable => {
                Some("only the cable's coalescing is the benchmark's to set")
            }
            Self::Coalesce => None,
            Self::Open if arm.plane == Plane::Bare => {
                Some("it has neither connections nor sockets")
            }
            Self::Open => None,
        }
    }

    /// The points: label, value, and the settings of each.
    pub fn steps(self, settings: &Settings) -> Vec<(String, Option<f64>, Settings)> {
        match self {
            Self::Size => SIZES
                .iter()
                .map(|&n| {
                    let size = Size { request: n, response: n };
                    (bytes_text(n), Some(n as f64), Settings { size, ..*settings })
                })
                .collect(),
            Self::Rate => RATES
                .iter()
                .map(|&rate| {
                    let size = Size {
                        request: settings.size.request.max(RATE_BYTES),
                        response: settings.size.response.max(RATE_BYTES),
                    };
                    let load = Load::Open { rate: rate.into() };
                    (
                        format!("{}k/s", rate / 1000),
                        Some(rate.into()),
                        Settings { size, load, ..*settings },
                    )
                })
                .collect(),
            Self::Coalesce => {
                let usecs = |rx_usecs| Coalesce { rx_usecs, ..Coalesce::default() };
                let adaptive = Coalesce { adaptive: true, ..Coalesce::default() };
                [
                    ("0", Some(0.0), usecs(0)),
                    ("100", Some(f64::from(RX_USECS)), usecs(RX_USECS)),
                    ("adaptive", None, adaptive),
                ]
                .map(|(label, value, coalesce)| {
                    (label.to_owned(), value, Settings { coalesce, ..*settings })
                })
                .to_vec()
            }
            Self::Open => OPEN
                .map(|n| {
                    let open = Some(n as usize);
                    (count_text(n), Some(n.into()), Settings { open, ..*settings })
                })
                .to_vec(),
        }
    }
}

/// Measures every point; each gets its share of the duration.
///
/// # Errors
/// As [`Bench::measure`].
pub fn run(
    sweep: Sweep,
    bench: &Bench,
    arms: &[Arm],
    settings: &Settings,
) -> Result<SweepReport, String> {
    let (arms, refused): (Vec<Arm>, Vec<Arm>) =
        arms.iter().partition(|a| sweep.refuses(a).is_none());
    let mut skipped: Vec<SkippedReport> = refused
        .iter()
        .filter_map(|a| {
            Some(SkippedReport { name: a.name.into(), reason: sweep.refuses(a)?.into() })
        })
        .collect();
    if arms.is_empty() {
        let why = skipped.first().map_or("none is left", |s| &s.reason);
        return Err(format!("--sweep {} with none of these arms: {why}", sweep.word()));
    }
    let steps = sweep.steps(settings);
    let share = settings.duration / steps.len().max(1) as u32;
    let (names, all): (Vec<_>, Vec<Settings>) = steps
        .into_iter()
        .map(|(label, value, settings)| ((label, value), Settings { duration: share, ..settings }))
        .unzip();
    let outcomes = match sweep {
        // The points of this sweep are compared with each other.
        Sweep::Open => bench.measure_together(&arms, &all, sweep.word())?,
        _ => {
            let title = |label: &str| format!("{} {label}", sweep.word());
            let each = names.iter().zip(&all);
            let mut outcomes: Vec<Outcome> = Vec::new();
            for ((label, _), settings) in each {
                match bench.measure(&arms, settings, &title(label)) {
                    Ok(outcome) => outcomes.push(outcome),
                    // The points before this one are finished.
                    Err(_) if interrupt::is_asked() && !outcomes.is_empty() => {}
                    Err(why) => return Err(why),
                }
                if interrupt::is_asked() {
                    break;
                }
            }
            outcomes
        }
    };
    let mut points: Vec<Point> = Vec::new();
    let mut about = machine::describe(bench, settings);
    // Points that were measured together were tested for a shared core together.
    let runs = if sweep == Sweep::Open { 1 } else { outcomes.len() };
    outcomes.iter().take(runs).for_each(|run| about.one_core.add(run.one_core));
    for (((label, value), settings), outcome) in names.into_iter().zip(all).zip(&outcomes) {
        let report = report::build(about.clone(), &settings, outcome);
        let idle = [about.idle_cpu_share, report.machine.idle_cpu_share];
        about.idle_cpu_share = idle.into_iter().flatten().reduce(f64::min);
        for mut s in report.skipped {
            if points.iter().flat_map(|p| &p.arms).any(|a| a.arm.name == s.name) {
                s.reason = format!("at {label}: {}", s.reason);
            }
            if !skipped.contains(&s) {
                skipped.push(s);
            }
        }
        let arms = outcome.arms.iter().filter_map(|run| {
            let arm = report.arms.iter().find(|a| a.name == run.arm.name)?.clone();
            let one = points.first().map_or(arm.valid, |p| {
                p.arms.iter().any(|a| a.arm.name == arm.name && a.arm.valid)
            });
            let one = outcomes[0].arms.iter().find(|o| o.arm == run.arm && one && arm.valid);
            let open = (sweep == Sweep::Open).then(|| open(run, one));
            Some(PointArm { arm, server_cpu_us: server_cpu_us(run, outcome), open })
        });
        let arms = arms.collect();
        points.push(Point { label, value, arms });
    }
    let answer = answer::to(sweep, &points);
    Ok(SweepReport { sweep: sweep.word(), answer, machine: about, points, skipped })
}

/// The cost of the open ones in the rounds of an arm; `one` are its rounds with a single one.
fn open(run: &ArmRun, one: Option<&ArmRun>) -> Open {
    let ratio =
        one.and_then(|one| stats::ratio_of_rounds(&report::medians(run), &report::medians(one)));
    let weights = || run.slots.iter().flatten().filter_map(|slot| slot.weight);
    let median = |of: fn(Weight) -> Option<f64>| {
        let values: Vec<f64> = weights().filter_map(of).collect();
        (!values.is_empty()).then(|| stats::median(&values))
    };
    Open {
        p50_ratio: ratio.map(|r| r.ratio),
        ci95: ratio.and_then(|r| r.ci95),
        idle_bytes: weights()
            .next()
            .map(|_| Weight { process: median(|w| w.process), kernel: median(|w| w.kernel) }),
    }
}

/// The cost of a request on the CPU that answers it.
fn server_cpu_us(run: &ArmRun, outcome: &Outcome) -> Option<f64> {
    let mut usage = demand::Usage::default();
    let mut transactions = 0;
    for slot in run.slots.iter().flatten() {
        usage.add(slot.window.server_cpu);
        transactions += slot.tally.transactions;
    }
    demand::service_demand_us(usage, outcome.idle, transactions)
}

/// `16 KiB`, `1472 B`.
pub fn bytes_text(n: usize) -> String {
    match n {
        n if n >= 1024 && n % 1024 == 0 => format!("{} KiB", n / 1024),
        n => format!("{n} B"),
    }
}

/// `10,000`.
fn count_text(n: u32) -> String {
    match n {
        n if n >= 1000 => format!("{},{:03}", n / 1000, n % 1000),
        n => n.to_string(),
    }
}

/// Bytes per idle object: `1.6 KiB`, `0 B`.
pub fn weight_text(bytes: Option<f64>) -> String {
    match bytes {
        None => "not known".to_owned(),
        Some(n) if n >= 1024.0 => format!("{:.1} KiB", n / 1024.0),
        // Other programs' memory may have shrunk meanwhile.
        Some(n) => format!("{:.0} B", n.max(0.0)),
    }
}

impl SweepReport {
    /// The answer, the table, what was skipped.
    pub fn render(&self, width: Width) -> String {
        let mut out = format!("{}\n\n", self.answer);
        let open = self.sweep == Sweep::Open.word();
        let mut table = table::plain(&[
            self.sweep,
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
                                Some(ratio) => table::ratio_text(*ratio, *ci95),
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
                    table::tail_text(r.p99),
                    table::tail_text(r.p99_9),
                    a,
                    b,
                    c,
                    d,
                    format!("{invalid}{}", arm.evidence_summary),
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
        if self.sweep == "size" && self.points.iter().any(|p| p.arms.iter().any(datagram)) {
            let _ = writeln!(out, "64 KiB of UDP: {UDP_MAX} B, the most a datagram carries.");
        }
        if let Some(note) = self.machine.one_core.note() {
            let _ = writeln!(out, "{note}");
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

    /// The chart: p50 of every valid arm over the points.
    pub fn chart(&self) -> Chart {
        let mut names: Vec<&str> = Vec::new();
        for point in &self.points {
            for PointArm { arm, .. } in &point.arms {
                if !names.contains(&arm.name.as_str()) {
                    names.push(&arm.name);
                }
            }
        }
        let series = names.into_iter().map(|name| {
            let value = |p: &Point| {
                p.arms.iter().find(|a| a.arm.name == name && a.arm.valid).map(|a| a.arm.rtt_us.p50)
            };
            Series { name: name.to_owned(), values: self.points.iter().map(value).collect() }
        });
        let (title, x_label) = match self.sweep {
            "size" => ("Round trip by message size", "bytes each way"),
            "rate" => {
                ("Latency from the intended send time, by offered rate", "requests per second")
            }
            "open" => ("Round trip on the last one opened", "connections or sockets open"),
            _ => ("Round trip by interrupt coalescing", "rx-usecs"),
        };
        Chart {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: "p50, us".to_owned(),
            points: self.points.iter().map(|p| p.label.clone()).collect(),
            series: series.collect(),
        }
    }
}
