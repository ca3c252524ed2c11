//! sockperf's output: the report of ping-pong, under-load and playback, also at the head of a full log.

use super::{Latency, Test, figure};
use crate::arm::Protocol;

/// sockperf halves the round trip unless told `--full-rtt`.
const HALVED: &str = "sockperf reports half a round trip: twice that is shown";

pub(super) fn is_it(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("sockperf: "))
}

pub(super) fn tests(text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let (mut protocol, mut bytes) = (None, None);
    let mut now: Option<(Test, f64)> = None;
    for line in text.lines() {
        let line = plain(line);
        let line = line.strip_prefix("sockperf: ").unwrap_or(&line).trim();
        if line.starts_with("[ 0] IP =") {
            protocol = line.rsplit_once('#').and_then(|(_, word)| super::protocol(word));
        } else if let Some((_, rest)) = line.split_once("--msg-size=") {
            bytes = rest.split_whitespace().next().and_then(|word| word.parse::<usize>().ok());
        } else if line.starts_with("== version") {
            tests.extend(end(now.take()));
            (protocol, bytes) = (None, None);
        } else if line.starts_with("[Valid Duration]") {
            tests.extend(end(now.take()));
            let name = protocol.map_or("sockperf".to_owned(), |it: Protocol| {
                format!("sockperf {}", it.word().to_uppercase())
            });
            let rate = of(line, "ReceivedMessages=").zip(of(line, "RunTime="));
            let per_second = rate.map(|(n, s)| n / s).filter(|rate| rate.is_finite());
            let sizes = bytes.map(|bytes| (bytes, bytes));
            now = Some((Test { name, protocol, sizes, per_second, ..Test::default() }, 2.0));
        }
        let Some((test, factor)) = &mut now else { continue };
        if let Some(mean) = of(line, "avg-rtt=") {
            *factor = 1.0;
            test.rtt_us.mean = Some(mean);
        } else if let Some(mean) = of(line, "avg-latency=") {
            test.rtt_us.mean = Some(mean * *factor);
            test.note = Some(HALVED);
        }
        let value =
            line.rsplit_once('=').and_then(|(_, value)| figure(value)).map(|us| us * *factor);
        let Latency { min, p50, p99, max, .. } = &mut test.rtt_us;
        let slot = match line {
            line if line.contains("<MIN> observation") => min,
            line if line.contains("<MAX> observation") => max,
            line if line.contains("percentile 50.000") => p50,
            line if line.contains("percentile 99.000") => p99,
            _ => continue,
        };
        *slot = value;
    }
    tests.extend(end(now));
    tests
}

/// A test whose report had a latency.
fn end(now: Option<(Test, f64)>) -> Option<Test> {
    now.map(|(test, _)| test).filter(|test| test.rtt_us.mean.is_some() || test.rtt_us.p50.is_some())
}

/// The figure behind `name`, up to the next word.
fn of(line: &str, name: &str) -> Option<f64> {
    let (_, rest) = line.split_once(name)?;
    figure(rest.split(|c: char| c.is_whitespace() || c == ';').next()?)
}

/// Without what colours a terminal.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::super::tests::only;
    use super::*;

    #[test]
    fn half_a_round_trip_is_doubled_and_a_whole_one_is_not() {
        let test = only("sockperf-pp.txt");
        assert_eq!((test.name.as_str(), test.note), ("sockperf UDP", Some(HALVED)));
        assert_eq!((test.rtt_us.mean, test.rtt_us.p50), (Some(72.214), Some(18.656)));
        assert_eq!((test.rtt_us.min, test.rtt_us.max), (Some(14.55), Some(20006.562)));
        assert!((test.per_second.unwrap() - 7545.0 / 0.545).abs() < 0.01, "{test:?}");
        let test = only("sockperf-pp-tcp.txt");
        assert_eq!((test.name.as_str(), test.note), ("sockperf TCP", None));
        assert_eq!((test.rtt_us.mean, test.rtt_us.p99), (Some(185.453), Some(3991.499)));
    }

    #[test]
    fn the_head_of_a_full_log_is_a_report_with_the_message_size() {
        let test = only("sockperf-full-log.csv");
        assert_eq!((test.sizes, test.rtt_us.p50), (Some((14, 14)), Some(19.852)));
        assert_eq!(only("sockperf-ul.txt").rtt_us.p50, Some(68.496));
    }
}
