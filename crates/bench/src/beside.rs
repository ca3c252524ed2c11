//! Round trips of any tool in one list: other tools' tests, and our arms of the same sizes.

use crate::arm::Protocol;
use crate::data::{ArmReport, Report};
use crate::foreign::Test;

/// One test, or one arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The transport, if it is known.
    pub protocol: Option<Protocol>,
    /// Bytes of request and response, if they are known.
    pub sizes: Option<(usize, usize)>,
    /// The run's name.
    pub run: String,
    /// The test or the arm.
    pub what: String,
    /// Transactions a second.
    pub per_second: Option<f64>,
    /// Microseconds.
    pub mean: Option<f64>,
    /// Microseconds.
    pub p50: Option<f64>,
    /// Microseconds.
    pub p99: Option<f64>,
    /// Microseconds of CPU for each transaction: of both machines together, or of each.
    pub demand_us: Vec<f64>,
}

impl Row {
    /// p50, or the mean where a tool gives no more.
    pub fn typical(&self) -> Option<f64> {
        self.p50.or(self.mean)
    }

    /// The transport and the sizes, by which tests can be compared.
    pub fn group(&self) -> String {
        let protocol = self.protocol.map_or("?".to_owned(), |it| it.word().to_uppercase());
        match self.sizes {
            Some((request, response)) if request == response => {
                format!("{protocol}, {request} B each way")
            }
            Some((request, response)) => format!("{protocol}, {request} B and {response} B"),
            None => format!("{protocol}, size not stated"),
        }
    }
}

/// The rows of all runs: by transport and size, the soonest first. Our arms are those that other tools can have, over a
/// kernel's interface, and at the sizes of a foreign test.
pub fn rows(reports: &[(String, Report)], foreign: &[(String, Vec<Test>)]) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    for (run, tests) in foreign {
        all.extend(tests.iter().map(|test| Row {
            protocol: test.protocol,
            sizes: test.sizes,
            run: run.clone(),
            what: test.name.clone(),
            per_second: test.per_second,
            mean: test.rtt_us.mean,
            p50: test.rtt_us.p50,
            p99: test.rtt_us.p99,
            demand_us: test.demand_us.iter().flatten().copied().collect(),
        }));
    }
    let comparable = |arm: &ArmReport| {
        let sizes = Some((arm.request_bytes, arm.response_bytes));
        let same = |test: &Test| {
            test.sizes.is_none_or(|_| test.sizes == sizes)
                && test.protocol.is_none_or(|it| it == arm.protocol)
        };
        arm.valid && foreign.iter().flat_map(|(_, tests)| tests).any(same)
    };
    for (run, report) in reports {
        let arms: Vec<&ArmReport> = match report {
            Report::RoundTrips(report) => report.arms.iter().collect(),
            Report::Sweep(report) if report.sweep == crate::data::Sweep::Size => {
                report.points.iter().flat_map(|point| &point.arms).map(|arm| &arm.arm).collect()
            }
            _ => Vec::new(),
        };
        all.extend(arms.into_iter().filter(|arm| comparable(arm)).map(|arm| Row {
            protocol: Some(arm.protocol),
            sizes: Some((arm.request_bytes, arm.response_bytes)),
            run: run.clone(),
            what: arm.name.clone(),
            per_second: Some(arm.transactions_per_second),
            mean: Some(arm.rtt_us.mean),
            p50: Some(arm.rtt_us.p50),
            p99: arm.rtt_us.p99,
            demand_us: arm.service_demand_us.into_iter().collect(),
        }));
    }
    let word = |row: &Row| row.protocol.map_or("", Protocol::word);
    all.sort_by(|a, b| {
        let by_group = (word(a), a.sizes).cmp(&(word(b), b.sizes));
        let soonest = |row: &Row| row.typical().unwrap_or(f64::MAX);
        by_group.then(soonest(a).total_cmp(&soonest(b)))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::sample;
    use crate::foreign::Latency;

    #[test]
    fn our_arms_stand_beside_tests_of_the_same_size_and_transport() {
        let report = sample();
        let sizes = (report.arms[0].request_bytes, report.arms[0].response_bytes);
        let test = |protocol, sizes, mean| Test {
            name: "netperf".into(),
            protocol,
            sizes,
            rtt_us: Latency { mean: Some(mean), ..Latency::default() },
            ..Test::default()
        };
        let reports = [("ours".to_owned(), Report::RoundTrips(report.clone()))];
        let beside = |test: Test| rows(&reports, &[("theirs".to_owned(), vec![test])]);
        let udp = report.arms.iter().filter(|a| a.valid && a.protocol == Protocol::Udp).count();
        let same = beside(test(Some(Protocol::Udp), Some(sizes), 1e6));
        assert_eq!(same.len(), 1 + udp, "{same:#?}");
        assert_eq!(same.last().unwrap().what, "netperf", "the slowest is last");
        assert_eq!(same[0].group(), format!("UDP, {} B each way", sizes.0));
        assert_eq!(beside(test(Some(Protocol::Udp), Some((9, 9)), 1.0)).len(), 1);
        let valid = report.arms.iter().filter(|a| a.valid).count();
        assert_eq!(beside(test(None, None, 1.0)).len(), 1 + valid);
        assert!(rows(&reports, &[]).is_empty());
    }
}
