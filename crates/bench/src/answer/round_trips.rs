//! The sentence below a run of round trips.

use crate::arm::{Between, Mode, Nic, Placement, Plane, Protocol};
use crate::data::{ArmReport, RoundTripReport, best_blocking};
use crate::text::figures::us_text;

/// One sentence: the gain by busy polling in this run, and its cost. Another one if two processes of the machine were
/// measured.
pub fn round_trips(report: &RoundTripReport) -> String {
    match local(report) {
        Some(local) if report.between(Between::Hosts).next().is_none() => local,
        Some(local) => format!("{} {local}", hosts(report)),
        None => hosts(report),
    }
}

/// What two processes of this machine gain by a cable, beside what no stack can beat.
fn local(report: &RoundTripReport) -> Option<String> {
    let arms = || report.between(Between::Processes).filter(|a| a.valid);
    arms().next()?;
    let fastest = |nic, protocol| {
        arms()
            .filter(|a| a.nic == nic && a.protocol == protocol)
            .min_by(|a, b| a.rtt_us.p50.total_cmp(&b.rtt_us.p50))
    };
    let figure = |arm: &ArmReport| format!("{} us", us_text(arm.rtt_us.p50));
    let gain = |protocol| {
        let cable = fastest(Nic::Cable, protocol)?;
        let best = best_blocking(&report.arms, cable)?;
        let ratio = report.comparison(&cable.name, &best.name)?.p50_ratio;
        let unix = fastest(Nic::Unix, protocol)
            .map_or(String::new(), |a| format!(", AF_UNIX {}", figure(a)));
        let times = match ratio {
            ..1.0 => format!("{:.1} times sooner", 1.0 / ratio),
            _ => format!("{ratio:.1} times later"),
        };
        Some(format!(
            "{} over a cable takes {} where loopback at its better placement takes {}: {times}{unix}",
            protocol.word().to_uppercase(),
            figure(cable),
            figure(best),
        ))
    };
    let gains: Vec<String> = [Protocol::Tcp, Protocol::Udp].into_iter().filter_map(gain).collect();
    if gains.is_empty() {
        return Some(
            "This run says nothing about a cable between two processes: it needs the arms local-cable-* and \
             local-loopback-* of the same protocol, and two CPUs."
                .to_owned(),
        );
    }
    let memory = fastest(Nic::Memory, Protocol::Udp)
        .map_or(String::new(), |a| format!("; bare memory takes {}", figure(a)));
    Some(format!("Between two processes of this machine, {}{memory}.", gains.join("; ")))
}

fn hosts(report: &RoundTripReport) -> String {
    let polling = report.between(Between::Hosts).filter(|a| a.mode == Mode::BusyPoll);
    let Some((arm, best, c)) = polling
        .clone()
        .filter(|a| a.valid && (a.plane == Plane::Kernel || a.nic == Nic::Xdp))
        .filter_map(|arm| {
            let best = best_blocking(&report.arms, arm)?;
            Some((arm, best, report.comparison(&arm.name, &best.name)?))
        })
        .min_by(|a, b| a.2.p50_ratio.total_cmp(&b.2.p50_ratio))
    else {
        let why = polling.clone().find_map(|a| a.reason.as_deref());
        return match why {
            Some(why) => format!("This run says nothing about busy polling: its arms {why}."),
            None => "This run says nothing about busy polling: it needs a busy-poll arm and a \
                     blocking arm of the same protocol."
                .to_owned(),
        };
    };
    let gain = match c.ci95 {
        Some([lo, hi]) if lo <= 1.0 && hi >= 1.0 => {
            "no gain that this run can tell from noise".to_owned()
        }
        _ if c.p50_ratio < 1.0 => format!("{:.1} times sooner", 1.0 / c.p50_ratio),
        _ => format!("{:.1} times later: it harms here", c.p50_ratio),
    };
    let cost = match (arm.service_demand_us, best.service_demand_us) {
        (Some(polling), Some(asleep)) => format!(
            "it costs {} us of CPU per transaction instead of {}",
            us_text(polling),
            us_text(asleep)
        ),
        _ => "what it costs was hidden by other programs' use of the CPUs".to_owned(),
    };
    // The best blocking arm often has both ends on one CPU, which client and server on two machines cannot have.
    let apart = report.arms.iter().find(|a| {
        a.valid
            && (a.plane, a.mode, a.placement)
                == (Plane::Kernel, Mode::Blocking, Placement::SeparateCpus)
            && (a.protocol, a.between) == (arm.protocol, arm.between)
            && a.name != best.name
    });
    let apart = apart.map_or(String::new(), |a| {
        format!(" ({} us with a CPU for each end)", us_text(a.rtt_us.p50))
    });
    format!(
        "Busy polling ({}) answers in {} us at the median where the best blocking arm ({}) takes {} us{apart}: \
         {gain}; {cost}, and every waiting thread keeps its CPU busy also while nothing arrives.",
        arm.name,
        us_text(arm.rtt_us.p50),
        best.name,
        us_text(best.rtt_us.p50),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Comparison;
    use crate::data::sample::{local, sample};

    #[test]
    fn two_processes_have_a_sentence_of_their_own() {
        let mut report = local();
        assert_eq!(
            round_trips(&report),
            "Between two processes of this machine, TCP over a cable takes 0.50 us where loopback at its better placement \
             takes 10.0 us: 20.0 times sooner, AF_UNIX 8.00 us; bare memory takes 0.20 us."
        );
        report.arms.extend(sample().arms);
        report.comparisons.extend(sample().comparisons);
        let both = round_trips(&report);
        assert!(both.starts_with("Busy polling (kernel-udp-busy-poll)"), "{both}");
        assert!(both.contains(". Between two processes of this machine, TCP"), "{both}");
        // AF_UNIX is no baseline, however fast.
        report.arms.retain(|arm| arm.nic != Nic::Loopback);
        assert!(round_trips(&report).contains("says nothing about a cable"), "{report:?}");
    }

    #[test]
    fn the_verdict_claims_only_what_was_measured() {
        let mut report = sample();
        report.comparisons[0].ci95 = Some([0.9, 1.1]);
        assert!(round_trips(&report).contains("noise"), "{}", round_trips(&report));
        report.comparisons[0] =
            Comparison { p50_ratio: 1.8, ci95: Some([1.7, 1.9]), ..report.comparisons[0].clone() };
        assert!(round_trips(&report).contains("harms"), "{}", round_trips(&report));
        report.arms.retain(|a| !a.valid);
        assert!(round_trips(&report).contains("says nothing"), "{}", round_trips(&report));
        assert!(round_trips(&report).contains("slept"), "{}", round_trips(&report));
        report.arms.clear();
        assert!(round_trips(&report).contains("says nothing"), "{}", round_trips(&report));
    }
}
