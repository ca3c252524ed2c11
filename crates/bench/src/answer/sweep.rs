//! The sentence above each sweep, which summarises the figures below it.

use crate::arm::{Between, Mode, Nic, Plane, Protocol};
use crate::data::{ArmReport, Point, PointArm, RX_USECS, Sweep, best_blocking};
use crate::text::figures::{ratio_text, us_text, weight_text};

/// Below this ratio there is no gain any more.
const GAIN: f64 = 1.1;
/// An arm keeps up with a rate if it loses fewer requests than this.
const LOSS: f64 = 0.01;

/// Answers a sweep's question.
pub fn sweep(sweep: Sweep, points: &[Point]) -> String {
    let answer = match sweep {
        Sweep::Size => size(points),
        Sweep::Rate => rate(points),
        Sweep::Coalesce => coalesce(points),
        Sweep::Open => open(points),
    };
    answer.unwrap_or_else(|| {
        let needs = match sweep {
            Sweep::Open => "an arm that is valid with one open and with many",
            _ => "a valid busy-poll arm and a sleeping arm at the same point",
        };
        format!("No answer: it needs {needs}.")
    })
}

fn size(points: &[Point]) -> Option<String> {
    let (mut clauses, mut modes) = (Vec::new(), Vec::new());
    for name in polling_arms(points) {
        let gains: Vec<(&str, f64)> = points
            .iter()
            .filter_map(|p| {
                let polling = find(p, &name)?;
                let sleeping = baseline(p, polling)?;
                modes.push(sleeping.mode);
                Some((p.label.as_str(), sleeping.rtt_us.p50 / polling.rtt_us.p50))
            })
            .collect();
        let (&(first, gain), &(last, last_gain)) = (gains.first()?, gains.last()?);
        let at_first = format!("{name} answers {gain:.1} times sooner at {first}");
        // The last point with a gain, so that one noisy point in between does not count.
        let still = gains.iter().rposition(|(_, g)| *g >= GAIN);
        clauses.push(match still {
            None => format!("{name} gains less than 10% at any size ({gain:.2} times at {first})"),
            Some(i) if i + 1 == gains.len() => {
                format!("{at_first} and still {last_gain:.1} times at {last}")
            }
            Some(i) => format!("{at_first}; the gain is below 10% from {} on", gains[i + 1].0),
        });
    }
    let against = match (modes.contains(&Mode::Blocking), modes.contains(&Mode::Interrupt)) {
        (true, false) => "Against the best blocking arm",
        (true, true) => "Against the best blocking arm, on the cable its own interrupts",
        _ => "Against the cable's own interrupts",
    };
    sentence(against, clauses)
}

fn rate(points: &[Point]) -> Option<String> {
    let mut clauses = Vec::new();
    for name in polling_arms(points) {
        let pairs: Vec<(&Point, &PointArm, &PointArm)> = points
            .iter()
            .filter_map(|p| {
                let polling = p.arms.iter().find(|a| a.arm.name == name && a.arm.valid)?;
                let sleeping = p.arms.iter().find(|a| {
                    a.arm.valid
                        && a.arm.plane == polling.arm.plane
                        && a.arm.nic == polling.arm.nic
                        && matches!(a.arm.mode, Mode::Blocking | Mode::Interrupt)
                })?;
                Some((p, polling, sleeping))
            })
            .collect();
        let at = |(point, polling, sleeping): &(&Point, &PointArm, &PointArm)| {
            let cost =
                polling.server_cpu_us.zip(sleeping.server_cpu_us).map(|(polling, sleeping)| {
                    let [polling, sleeping] = [polling, sleeping].map(us_text);
                    format!(", for {polling} us of server CPU per request instead of {sleeping}")
                });
            format!(
                "at {} {} us instead of {} ({:.0}% busy-polled){}",
                point.label,
                us_text(polling.arm.rtt_us.p50),
                us_text(sleeping.arm.rtt_us.p50),
                polling.arm.evidence.busy_polled_share * 100.0,
                cost.unwrap_or_default(),
            )
        };
        let low = pairs.first()?;
        let high = pairs.iter().rfind(|(p, a, b)| keeps_up(p, a) && keeps_up(p, b));
        let highest = |pick: fn(&(&Point, &PointArm, &PointArm)) -> bool| {
            let last = pairs.iter().rfind(|pair| pick(pair));
            last.map_or("none of these rates".to_owned(), |(p, ..)| p.label.clone())
        };
        clauses.push(format!(
            "{name}: {}{}; keeps up with {}, asleep with {}",
            at(low),
            high.filter(|h| h.0.label != low.0.label)
                .map_or(String::new(), |h| format!("; {}", at(h))),
            highest(|(p, polling, _)| keeps_up(p, polling)),
            highest(|(p, _, sleeping)| keeps_up(p, sleeping)),
        ));
    }
    sentence("Counted from the intended send time", clauses)
}

/// Whether an arm keeps up with the offered rate: few losses, and no backlog at the end.
fn keeps_up(point: &Point, arm: &PointArm) -> bool {
    let offered = point.value.unwrap_or(0.0);
    loss(arm) < LOSS && arm.arm.transactions_per_second > 0.95 * offered
}

fn coalesce(points: &[Point]) -> Option<String> {
    let of = |p: &Point, mode: Mode| {
        let arms = p.arms.iter().filter(|a| a.arm.mode == mode && a.arm.valid);
        arms.map(|a| a.arm.rtt_us.p50).min_by(f64::total_cmp)
    };
    let at = |usecs: f64| {
        let point = points.iter().find(|p| p.value == Some(usecs))?;
        Some((of(point, Mode::Interrupt)?, of(point, Mode::BusyPoll)?))
    };
    let ((now, polled_now), (late, polled_late)) = (at(0.0)?, at(RX_USECS.into())?);
    let hidden = 1.0 - (polled_late - polled_now) / (late - now).max(f64::MIN_POSITIVE);
    Some(format!(
        "rx-usecs {RX_USECS} instead of 0 takes a sleeping receiver from {} to {} us and a polling one from \
         {} to {}: busy polling hides {:.0}% of the interrupt's delay.",
        us_text(now),
        us_text(late),
        us_text(polled_now),
        us_text(polled_late),
        100.0 * hidden.clamp(0.0, 1.0)
    ))
}

fn open(points: &[Point]) -> Option<String> {
    let mut clauses = Vec::new();
    for name in names_where(points, |arm| arm.valid) {
        let arms = |p: &Point| {
            let arm = p.arms.iter().find(|a| a.arm.name == name && a.arm.valid)?;
            Some((p.label.clone(), arm.arm.protocol, arm.open?))
        };
        let Some((label, protocol, open)) = points.iter().rev().find_map(arms) else { continue };
        let (Some(ratio), Some(idle)) = (open.p50_ratio, open.idle_bytes) else { continue };
        let (many, one) = match protocol {
            Protocol::Tcp => ("connections", "end of an idle one"),
            Protocol::Udp => ("sockets", "idle one"),
        };
        clauses.push(format!(
            "{name}: with {label} {many} open a round trip costs {} x that with one, and each {one} {} here, {}",
            ratio_text(ratio, open.ci95),
            weight_text(idle.process),
            idle.kernel.map_or("in the kernel not known without root".to_owned(), |bytes| {
                format!("{} in the kernel", weight_text(Some(bytes)))
            }),
        ));
    }
    sentence("Traffic on the last one opened", clauses)
}

fn sentence(opening: &str, clauses: Vec<String>) -> Option<String> {
    match clauses.as_slice() {
        [] => None,
        [only] => Some(format!("{opening}: {only}.")),
        _ => Some(format!("{opening}:\n  {}.", clauses.join(";\n  "))),
    }
}

fn polling_arms(points: &[Point]) -> Vec<String> {
    names_where(points, |arm| arm.mode == Mode::BusyPoll && arm.valid)
}

fn names_where(points: &[Point], fits: fn(&ArmReport) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for PointArm { arm, .. } in points.iter().flat_map(|p| &p.arms) {
        if fits(arm) && !names.contains(&arm.name) {
            names.push(arm.name.clone());
        }
    }
    names
}

fn find<'a>(point: &'a Point, name: &str) -> Option<&'a ArmReport> {
    point.arms.iter().map(|a| &a.arm).find(|a| a.name == name && a.valid)
}

/// The arm that a polling one is compared with at this point: the kernel's blocking one, at its best placement.
fn baseline(point: &Point, polling: &ArmReport) -> Option<ArmReport> {
    let arms: Vec<ArmReport> = point.arms.iter().map(|a| a.arm.clone()).collect();
    // The cable's packets do not cross the kernel; it is compared with its own interrupt mode.
    if polling.nic == Nic::Cable && polling.between == Between::Hosts {
        let same = |a: &&ArmReport| a.nic == polling.nic && a.mode == Mode::Interrupt && a.valid;
        return arms
            .iter()
            .filter(same)
            .min_by(|a, b| a.rtt_us.p50.total_cmp(&b.rtt_us.p50))
            .cloned();
    }
    debug_assert!(polling.plane != Plane::Bare);
    best_blocking(&arms, polling).cloned()
}

fn loss(arm: &PointArm) -> f64 {
    let lost = arm.arm.evidence.lost as f64;
    lost / (arm.arm.transactions as f64 + lost).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::sample;
    use crate::data::{Open, Weight};

    /// A point with one sleeping and one polling arm.
    fn point(label: &str, value: f64, asleep: f64, polled: f64) -> Point {
        let report = sample();
        let arm = |name: &str, p50: f64| {
            let mut arm =
                report.arms.iter().find(|a| a.name == name).expect("in the sample").clone();
            arm.rtt_us.p50 = p50;
            arm.transactions_per_second = value;
            arm.evidence.busy_polled_share = 0.9;
            PointArm { arm, server_cpu_us: Some(p50 / 2.0), open: None }
        };
        Point {
            label: label.into(),
            value: Some(value),
            arms: vec![arm("kernel-udp-blocking", asleep), arm("kernel-udp-busy-poll", polled)],
        }
    }

    #[test]
    fn the_size_at_which_the_gain_ends_is_named() {
        let points = [
            point("1 B", 1.0, 20.0, 10.0),
            point("64 B", 64.0, 20.0, 19.5),
            point("1 KiB", 1024.0, 20.0, 12.0),
            point("16 KiB", 16384.0, 40.0, 39.0),
            point("64 KiB", 65507.0, 80.0, 79.0),
        ];
        let text = sweep(Sweep::Size, &points);
        assert!(text.contains("2.0 times sooner at 1 B"), "{text}");
        assert!(text.contains("below 10% from 16 KiB on"), "{text}");
        let text = sweep(Sweep::Size, &points[..3]);
        assert!(text.contains("still 1.7 times at 1 KiB"), "{text}");
        let text = sweep(Sweep::Size, &points[3..]);
        assert!(text.contains("less than 10% at any size"), "{text}");
    }

    #[test]
    fn the_baseline_of_the_gain_is_named() {
        let mut points = [point("1 B", 1.0, 20.0, 10.0)];
        assert!(sweep(Sweep::Size, &points).starts_with("Against the best blocking arm: "));
        let mut cable = points[0].arms.clone();
        for PointArm { arm, .. } in &mut cable {
            arm.nic = Nic::Cable;
            arm.name = arm.name.replace("kernel", "cable");
        }
        cable[0].arm.mode = Mode::Interrupt;
        points[0].arms.extend(cable.clone());
        let both = sweep(Sweep::Size, &points);
        assert!(both.starts_with("Against the best blocking arm, on the cable its own"), "{both}");
        points[0].arms = cable;
        let alone = sweep(Sweep::Size, &points);
        assert!(alone.starts_with("Against the cable's own interrupts: "), "{alone}");
    }

    #[test]
    fn the_rate_answer_states_cost_and_limit() {
        let mut points = [
            point("1k/s", 1e3, 40.0, 10.0),
            point("100k/s", 1e5, 44.0, 12.0),
            point("400k/s", 4e5, 900.0, 800.0),
        ];
        for arm in &mut points[2].arms {
            arm.arm.evidence.lost = arm.arm.transactions;
        }
        let text = sweep(Sweep::Rate, &points);
        assert!(text.contains("at 1k/s 10.0 us instead of 40.0 (90% busy-polled)"), "{text}");
        assert!(text.contains("at 100k/s 12.0 us instead of 44.0"), "{text}");
        // No losses, but a backlog.
        points[1].arms[0].arm.transactions_per_second = 6e4;
        assert!(sweep(Sweep::Rate, &points).contains("100k/s, asleep with 1k/s"));
        assert!(text.contains("keeps up with 100k/s, asleep with 100k/s"), "{text}");
    }

    #[test]
    fn the_coalescing_answer_states_how_much_delay_polling_hides() {
        let mut points = [point("0", 0.0, 20.0, 10.0), point("100", 100.0, 120.0, 11.0)];
        for arm in points.iter_mut().map(|p| &mut p.arms[0].arm) {
            arm.mode = Mode::Interrupt;
        }
        let text = sweep(Sweep::Coalesce, &points);
        assert!(text.contains("from 20.0 to 120 us and a polling one from 10.0 to 11.0"), "{text}");
        assert!(text.contains("hides 99%"), "{text}");
    }

    #[test]
    fn the_answer_for_many_open_states_the_cost_of_each() {
        let idle_bytes = Some(Weight { process: Some(1638.4), kernel: None });
        let many = Open { p50_ratio: Some(1.08), ci95: Some([1.02, 1.15]), idle_bytes };
        let mut points = [point("1", 1.0, 20.0, 10.0), point("10,000", 1e4, 20.0, 11.0)];
        points[0].arms.iter_mut().for_each(|arm| arm.open = Some(Open::default()));
        points[1].arms[1].open = Some(many);
        let text = sweep(Sweep::Open, &points);
        let wanted = "kernel-udp-busy-poll: with 10,000 sockets open a round trip costs 1.08 [1.02-1.15] x that \
             with one, and each idle one 1.6 KiB here, in the kernel not known without root.";
        assert!(text.ends_with(wanted), "{text}");
        // If an arm is not valid with many open, the answer uses the largest number with which it is.
        points[1].arms[1].arm.valid = false;
        assert!(sweep(Sweep::Open, &points).contains("No answer"));
    }

    #[test]
    fn without_a_valid_pair_there_is_no_answer() {
        let mut invalid = point("1 B", 1.0, 20.0, 10.0);
        invalid.arms[1].arm.valid = false;
        for sweep in [Sweep::Size, Sweep::Rate, Sweep::Coalesce, Sweep::Open] {
            assert!(super::sweep(sweep, &[]).contains("No answer"));
            assert!(super::sweep(sweep, std::slice::from_ref(&invalid)).contains("No answer"));
        }
    }
}
