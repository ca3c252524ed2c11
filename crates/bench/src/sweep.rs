//! The common questions about busy polling, each answered by a table and a chart:
//! at what size does the gain end, what happens at high packet rates and what does a packet cost,
//! what does interrupt coalescing change, and what do other open connections cost.

use std::time::Duration;

use crate::arm::{Arm, Mode, Nic, Placement, Plane, Protocol};
use crate::data::{
    Header, Kind, Open, Point, PointArm, RX_USECS, SkippedReport, Sweep, SweepReport, Weight,
};
use crate::demand;
use crate::run::{ArmRun, Bench, Outcome, Settings};
use crate::text::figures::{bytes_text, count_text};
use crate::units::Size;
use crate::workload::Load;
use crate::{answer, interrupt, machine, notes, stats, summary};
use busypoll_stack::nic::Coalesce;

const OPEN: [u32; 4] = [1, 100, 1_000, 10_000];
const RATES: [u32; 7] = [1_000, 5_000, 20_000, 50_000, 100_000, 200_000, 400_000];
/// The time between two requests at the lowest rate.
pub fn longest_gap() -> Duration {
    Duration::from_secs(1) / RATES[0]
}

/// The open loop writes its sequence number into each message.
pub const RATE_BYTES: usize = 16;

impl Sweep {
    /// The arms that answer the question if the user names none.
    pub fn default_arms(self, known: &[Arm]) -> Vec<Arm> {
        let fits = |a: &&Arm| match self {
            Self::Size => {
                a.protocol == Protocol::Udp
                    && matches!(a.mode, Mode::Blocking | Mode::Interrupt | Mode::BusyPoll)
            }
            Self::Rate => self.refuses(a).is_none() && a.plane != Plane::Bare,
            Self::Coalesce => self.refuses(a).is_none(),
            Self::Open => a.mode == Mode::BusyPoll,
        };
        known.iter().filter(fits).filter(|a| !a.is_local()).copied().collect()
    }

    /// Why an arm cannot be in this sweep, if it cannot.
    pub fn refuses(self, arm: &Arm) -> Option<&'static str> {
        match self {
            Self::Size => None,
            Self::Rate if arm.nic == Nic::Memory => Some("its ring holds one message"),
            Self::Rate if arm.protocol != Protocol::Udp => Some("the open loop needs datagrams"),
            Self::Rate if arm.placement == Placement::SameCpu => {
                Some("the open loop's client never sleeps and needs a CPU of its own")
            }
            Self::Rate => None,
            Self::Coalesce if arm.is_local() => Some("between processes nothing is coalesced"),
            Self::Coalesce if arm.nic != Nic::Cable => {
                Some("only the cable's coalescing is the benchmark's to set")
            }
            Self::Coalesce => None,
            Self::Open if arm.plane == Plane::Bare => {
                Some("it has neither connections nor sockets")
            }
            Self::Open if arm.is_local() => {
                Some("the other process's memory is not the benchmark's to weigh")
            }
            Self::Open => None,
        }
    }

    /// The points: label, value, and the settings of each.
    pub fn steps(self, settings: &Settings) -> Vec<(String, Option<f64>, Settings)> {
        match self {
            Self::Size => settings
                .sizes
                .into_iter()
                .filter(|n| *n > 0)
                .map(|n| {
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
        let report = summary::build(about.clone(), &settings, outcome);
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
    let answer = answer::sweep(sweep, &points);
    Ok(SweepReport {
        header: Header::now(Kind::Sweep),
        sweep,
        answer,
        notes: notes::of(&about),
        machine: about,
        points,
        skipped,
    })
}

/// The cost of the open ones in the rounds of an arm; `one` are its rounds with a single one.
fn open(run: &ArmRun, one: Option<&ArmRun>) -> Open {
    let ratio =
        one.and_then(|one| stats::ratio_of_rounds(&summary::medians(run), &summary::medians(one)));
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
