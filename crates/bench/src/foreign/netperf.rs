//! netperf's output: the table of the classic tests, and omni's as CSV (`-o`) and as keys (`-k`).

use std::collections::BTreeMap;

use super::{Latency, Test, figure, protocol};
use crate::arm::Protocol;

/// Columns of omni that are read: as a key, and as the heading of a CSV column.
const COLUMNS: &[(&str, &str)] = &[
    ("THROUGHPUT", "Throughput"),
    ("THROUGHPUT_UNITS", "Throughput Units"),
    ("TRANSACTION_RATE", "Transaction Rate Tran/s"),
    ("RT_LATENCY", "Round Trip Latency usec/tran"),
    ("PROTOCOL", "Protocol"),
    ("REQUEST_SIZE", "Request Size Bytes"),
    ("RESPONSE_SIZE", "Response Size Bytes"),
    ("MIN_LATENCY", "Minimum Latency Microseconds"),
    ("MEAN_LATENCY", "Mean Latency Microseconds"),
    ("P50_LATENCY", "50th Percentile Latency Microseconds"),
    ("P99_LATENCY", "99th Percentile Latency Microseconds"),
    ("MAX_LATENCY", "Maximum Latency Microseconds"),
    ("LOCAL_SD", "Local Service Demand"),
    ("REMOTE_SD", "Remote Service Demand"),
    ("SD_UNITS", "Service Demand Units"),
];

pub(super) fn is_it(text: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| {
        banner(line).is_some() || key(line).is_some() || is_header(line) || row(line).is_some()
    })
}

pub(super) fn tests(text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut of: Option<Banner> = None;
    let mut keys: BTreeMap<&str, &str> = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(banner) = banner(line) {
            tests.extend(omni(&std::mem::take(&mut keys)));
            of = Some(banner);
        } else if is_header(line) {
            let header = cells(line);
            let names: Vec<_> = header.iter().map(|it| name_of(it)).collect();
            let values = cells(lines.next().unwrap_or_default());
            let all = names.into_iter().zip(&values);
            let all = all.filter_map(|(name, value)| Some((name?, value.as_str()))).collect();
            tests.extend(omni(&all));
        } else if let Some((name, value)) = key(line) {
            // A key that comes again begins the next test.
            if keys.contains_key(name) {
                tests.extend(omni(&std::mem::take(&mut keys)));
            }
            keys.insert(name, value);
        } else if let Some(row) = row(line) {
            let is_rr = of.is_none_or(|banner| banner.is_rr);
            tests.extend(is_rr.then(|| classic(&row, of.and_then(|banner| banner.protocol))));
        }
    }
    tests.extend(omni(&keys));
    tests
}

/// The line above a test.
#[derive(Debug, Clone, Copy)]
struct Banner {
    protocol: Option<Protocol>,
    is_rr: bool,
}

fn banner(line: &str) -> Option<Banner> {
    let (what, _) = line.split_once(" TEST from ")?;
    let what = what.strip_prefix("MIGRATED ").unwrap_or(what);
    let first = what.split_whitespace().next()?;
    Some(Banner { protocol: protocol(first), is_rr: what.ends_with("REQUEST/RESPONSE") })
}

/// A row of the classic table: sizes of buffers, request, response, seconds, rate; and with `-c` or `-C` CPU and service
/// demand, local and remote.
fn row(line: &str) -> Option<Vec<f64>> {
    let all: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let whole = |x: &f64| x.fract() == 0.0 && (1.0..1e9).contains(x);
    let sizes = all.get(2..4)?;
    (matches!(all.len(), 6 | 10) && sizes.iter().all(whole) && all.iter().all(|x| x.is_finite()))
        .then_some(all)
}

fn classic(row: &[f64], protocol: Option<Protocol>) -> Test {
    let at = |nth: usize| row.get(nth).copied().filter(|x| *x > 0.0);
    let per_second = at(5);
    let name = protocol
        .map_or("netperf RR".to_owned(), |it| format!("netperf {}_RR", it.word().to_uppercase()));
    Test {
        name,
        protocol,
        sizes: at(2).zip(at(3)).map(|(request, response)| (request as usize, response as usize)),
        per_second,
        rtt_us: Latency { mean: per_second.map(|rate| 1e6 / rate), ..Latency::default() },
        demand_us: [at(8), at(9)],
        note: None,
    }
}

fn name_of(heading: &str) -> Option<&'static str> {
    COLUMNS.iter().find(|(_, of_csv)| *of_csv == heading.trim()).map(|(name, _)| *name)
}

fn is_header(line: &str) -> bool {
    line.contains(',') && cells(line).iter().filter(|it| name_of(it).is_some()).count() >= 2
}

fn key(line: &str) -> Option<(&'static str, &str)> {
    let (name, value) = line.split_once('=')?;
    COLUMNS.iter().find(|(key, _)| *key == name.trim()).map(|(key, _)| (*key, value))
}

/// The cells of a line of CSV; a comma in quotes separates none.
fn cells(line: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            _ => all.last_mut().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    all
}

/// A test of omni; none if it is no request and response.
fn omni(all: &BTreeMap<&str, &str>) -> Option<Test> {
    let get = |name: &str| all.get(name).copied().and_then(figure).filter(|x| *x > 0.0);
    let word = |name: &str| all.get(name).map_or("", |value| value.trim());
    let in_units = get("THROUGHPUT").filter(|_| word("THROUGHPUT_UNITS").starts_with("Trans/s"));
    let per_second = in_units.or_else(|| get("TRANSACTION_RATE"))?;
    let protocol = protocol(word("PROTOCOL"));
    let in_microseconds = matches!(word("SD_UNITS"), "" | "usec/Tran");
    let demand = |name: &str| get(name).filter(|_| in_microseconds);
    let name = protocol.map_or("netperf omni RR".to_owned(), |it| {
        format!("netperf {}_RR", it.word().to_uppercase())
    });
    Some(Test {
        name,
        protocol,
        sizes: get("REQUEST_SIZE").zip(get("RESPONSE_SIZE")).map(|(a, b)| (a as usize, b as usize)),
        per_second: Some(per_second),
        rtt_us: Latency {
            min: get("MIN_LATENCY"),
            mean: get("MEAN_LATENCY").or_else(|| get("RT_LATENCY")).or(Some(1e6 / per_second)),
            p50: get("P50_LATENCY"),
            p99: get("P99_LATENCY"),
            max: get("MAX_LATENCY"),
        },
        demand_us: [demand("LOCAL_SD"), demand("REMOTE_SD")],
        note: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{only, sample};
    use super::*;

    #[test]
    fn classic_tables_with_and_without_cpu_and_banner() {
        let test = only("netperf-tcp-cpu.txt");
        assert_eq!((test.name.as_str(), test.sizes), ("netperf TCP_RR", Some((1, 1))));
        assert_eq!(test.per_second, Some(12309.77));
        assert_eq!(test.demand_us, [Some(162.473); 2]);
        assert!((test.rtt_us.mean.unwrap() - 81.237).abs() < 0.001, "{test:?}");
        let test = only("netperf-udp.txt");
        assert_eq!((test.protocol, test.sizes), (Some(Protocol::Udp), Some((64, 64))));
        assert_eq!(test.demand_us, [None; 2]);
        let test = only("netperf-no-banner.txt");
        assert_eq!((test.protocol, test.per_second), (None, Some(20519.11)));
    }

    #[test]
    fn omni_by_keys_and_as_csv() {
        let test = only("netperf-omni-k.txt");
        assert_eq!((test.protocol, test.per_second), (Some(Protocol::Tcp), Some(16692.01)));
        assert_eq!((test.rtt_us.p50, test.rtt_us.p99), (Some(18.0), Some(1950.0)));
        assert_eq!(test.demand_us, [Some(119.818); 2]);
        let test = only("netperf-omni.csv");
        assert_eq!((test.protocol, test.sizes), (Some(Protocol::Udp), Some((16, 16))));
        assert_eq!(test.rtt_us.mean, Some(68.39));
        let test = only("netperf-omni-all.csv");
        assert_eq!((test.per_second, test.rtt_us.min), (Some(10459.85), Some(17.0)));
        assert_eq!(test.demand_us, [Some(191.207); 2]);
    }

    #[test]
    fn what_netperf_does_not_know_is_no_figure() {
        let text = sample("netperf-tcp-cpu.txt").replace("162.473  162.473", "162.473  -1.000");
        assert_eq!(tests(&text)[0].demand_us, [Some(162.473), None]);
    }
}
