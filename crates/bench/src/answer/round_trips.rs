//! The sentence below a run of round trips.

use crate::arm::{Mode, Nic, Placement, Plane};
use crate::data::{RoundTripReport, best_blocking};
use crate::text::figures::us_text;

/// One sentence: the gain by busy polling in this run, and its cost.
pub fn round_trips(report: &RoundTripReport) -> String {
    let polling = report.arms.iter().filter(|a| a.mode == Mode::BusyPoll);
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
            && a.protocol == arm.protocol
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
    use crate::data::sample::sample;

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
