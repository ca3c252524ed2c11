//! Runs that measured the same, side by side: from several adapters or machines, from before and after a change.

use crate::data::{Report, TraceFlow};
use crate::text::figures::{grouped, rate_text, us_text};

/// A figure and its interval.
pub type Figure = (f64, Option<[f64; 2]>);

/// What several runs say of the same arms.
#[derive(Debug, Clone)]
pub struct SideBySide {
    /// The figure.
    pub title: &'static str,
    /// The names of the runs.
    pub runs: Vec<String>,
    /// An arm, or an arm at a point, and its figure in each run; at least two runs have it.
    pub rows: Vec<(String, Vec<Option<Figure>>)>,
    /// A figure as text.
    pub show: fn(f64) -> String,
}

/// A run's arms, and their figures.
struct Figures {
    /// Runs of the same kind can stand side by side.
    kind: String,
    title: &'static str,
    show: fn(f64) -> String,
    rows: Vec<(String, Figure)>,
}

impl Figures {
    fn of(report: &Report) -> Self {
        let p50 = "Round trip, p50 in us";
        match report {
            Report::RoundTrips(report) => {
                let valid = report.arms.iter().filter(|arm| arm.valid);
                let rows = valid.map(|arm| (arm.name.clone(), (arm.rtt_us.p50, arm.p50_ci95)));
                Self { kind: "rr".into(), title: p50, show: us_text, rows: rows.collect() }
            }
            Report::Sweep(report) => {
                let mut rows = Vec::new();
                for point in &report.points {
                    for arm in point.arms.iter().map(|arm| &arm.arm).filter(|arm| arm.valid) {
                        let name = format!("{} at {}", arm.name, point.label);
                        rows.push((name, (arm.rtt_us.p50, arm.p50_ci95)));
                    }
                }
                Self { kind: report.sweep.word().into(), title: p50, show: us_text, rows }
            }
            Report::Throughput(report) => {
                let valid = report.arms.iter().filter(|arm| arm.valid);
                let rows =
                    valid.map(|arm| (arm.name.clone(), (arm.per_second, arm.per_second_ci95)));
                let (title, show): (_, fn(f64) -> String) = match report.workload.as_str() {
                    "tcp-crr" => ("Connections a second", grouped),
                    _ => ("Throughput", |x| rate_text(x, "bit/s")),
                };
                Self { kind: report.workload.clone(), title, show, rows: rows.collect() }
            }
            Report::Stages(report) => {
                let rows = report.arms.iter().map(|arm| (arm.arm.clone(), (arm.total_us, None)));
                let title = "From doorbell to recv, p50 in us";
                Self { kind: "stages".into(), title, show: us_text, rows: rows.collect() }
            }
            Report::Trace(report) => {
                let name = |what, flow: &TraceFlow| format!("{what} at {}", flow.local);
                let each = report.receives.iter().map(|flow| (name("received", flow), flow));
                let all = each.chain(report.sends.iter().map(|flow| (name("sent", flow), flow)));
                let rows = all.map(|(name, flow)| (name, (flow.total_us.p50, None)));
                let title = "From the first stage to the last, p50 in us";
                Self { kind: "trace".into(), title, show: us_text, rows: rows.collect() }
            }
        }
    }

    fn figure(&self, name: &str) -> Option<Figure> {
        self.rows.iter().find(|(of, _)| of == name).map(|(_, figure)| *figure)
    }
}

/// The runs by what they measured, where more than one measured it.
pub fn of(runs: &[(String, Report)]) -> Vec<SideBySide> {
    let all: Vec<_> = runs.iter().map(|(name, report)| (name, Figures::of(report))).collect();
    let mut kinds: Vec<&str> = Vec::new();
    for (_, figures) in &all {
        if !kinds.contains(&figures.kind.as_str()) {
            kinds.push(&figures.kind);
        }
    }
    let of_kind = kinds.into_iter().filter_map(|kind| {
        let same: Vec<_> = all.iter().filter(|(_, figures)| figures.kind == kind).collect();
        let (_, Figures { title, show, .. }) = same.first()?;
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in same.iter().flat_map(|(_, figures)| &figures.rows) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let row = |name: &str| -> Vec<Option<Figure>> {
            same.iter().map(|(_, figures)| figures.figure(name)).collect()
        };
        let rows = names.into_iter().map(|name| (name.to_owned(), row(name)));
        let rows: Vec<_> =
            rows.filter(|(_, figures)| figures.iter().flatten().count() > 1).collect();
        let runs = same.iter().map(|(name, _)| (*name).clone()).collect();
        (!rows.is_empty()).then_some(SideBySide { title, runs, rows, show: *show })
    });
    of_kind.collect()
}

/// The last figure as a multiple of the first. The runs were not interleaved, so there is no interval of the ratio: it is
/// a difference only if the figures' own intervals are apart.
pub fn change(figures: &[Option<Figure>]) -> String {
    let mut there = figures.iter().flatten();
    let (Some((first, of_first)), Some((last, of_last))) = (there.next(), there.next_back()) else {
        return String::new();
    };
    let ratio = last / first;
    if !ratio.is_finite() {
        return String::new();
    }
    match (of_first, of_last) {
        (Some(a), Some(b)) if a[0] <= b[1] && b[0] <= a[1] => {
            format!("{ratio:.2} x, not told apart")
        }
        _ => format!("{ratio:.2} x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::sample;

    #[test]
    fn runs_of_a_kind_stand_side_by_side() {
        let mut after = sample();
        for (arm, faster) in after.arms.iter_mut().zip([0.5, 1.01, 1.0, 1.0]) {
            arm.rtt_us.p50 *= faster;
            arm.p50_ci95 = arm.p50_ci95.map(|ends| ends.map(|end| end * faster));
        }
        after.arms.remove(2);
        let runs = [("before", sample()), ("after", after)];
        let runs = runs.map(|(name, report)| (name.to_owned(), Report::RoundTrips(report)));
        let both = of(&runs);
        assert_eq!(both.len(), 1);
        let rows: Vec<(&str, String)> =
            both[0].rows.iter().map(|(name, figures)| (name.as_str(), change(figures))).collect();
        assert_eq!(
            rows,
            [
                ("kernel-udp-busy-poll", "0.50 x".to_owned()),
                ("kernel-udp-blocking-same-cpu", "1.01 x, not told apart".to_owned())
            ]
        );
        assert!(of(&runs[..1]).is_empty());
        assert_eq!(change(&[Some((0.0, None)), Some((1.0, None))]), "");
    }
}
