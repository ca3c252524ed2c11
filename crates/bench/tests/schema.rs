//! The output of `--json`, compared with the published schema: every key exists, every value is allowed.

use busypoll_bench::cli::{BenchArgs, run_bench};
use busypoll_bench::serve::Server;
use busypoll_lab::{Lab, needs_root};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

type Check = fn(&Value) -> bool;

fn positive(v: &Value) -> bool {
    v.as_f64().is_some_and(|x| x > 0.0)
}

fn positive_or_null(v: &Value) -> bool {
    v.is_null() || positive(v)
}

/// May be below 0: other programs may have freed memory.
fn number_or_null(v: &Value) -> bool {
    v.is_null() || v.is_number()
}

fn text(v: &Value) -> bool {
    v.as_str().is_some_and(|s| !s.is_empty() && s.lines().count() == 1)
}

fn one_of(v: &Value, words: &[&str]) -> bool {
    v.as_str().is_some_and(|s| words.contains(&s))
}

fn interval(v: &Value) -> bool {
    let ends = v.as_array().map(|a| a.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
    v.is_null() || ends.is_some_and(|e| e.len() == 2 && e[0] <= e[1])
}

/// Paths in jq's syntax; `[]` is every element.
const SCHEMA: &[(&str, Check)] = &[
    ("machine", Value::is_object),
    ("limit.shared_memory_rtt_us", positive_or_null),
    ("arms", Value::is_array),
    ("arms[].name", text),
    ("arms[].plane", |v| one_of(v, &["kernel", "stack", "bare"])),
    // The last one only with --host: there the kernel's arms use a real interface.
    ("arms[].nic", |v| one_of(v, &["veth", "xdp", "cable", "tap", "device"])),
    ("arms[].protocol", |v| one_of(v, &["udp", "tcp"])),
    ("arms[].mode", |v| one_of(v, &["blocking", "spin", "interrupt", "busy-poll"])),
    ("arms[].placement", |v| one_of(v, &["same-cpu", "separate-cpus"])),
    ("arms[].request_bytes", Value::is_u64),
    ("arms[].response_bytes", Value::is_u64),
    ("arms[].transactions", Value::is_u64),
    ("arms[].rtt_us.min", positive),
    ("arms[].rtt_us.p50", positive),
    ("arms[].rtt_us.p90", positive_or_null),
    ("arms[].rtt_us.p99", positive_or_null),
    ("arms[].rtt_us.p99_9", positive_or_null),
    ("arms[].rtt_us.p99_99", positive_or_null),
    ("arms[].rtt_us.max", positive),
    ("arms[].rtt_us.mean", positive),
    ("arms[].p50_ci95", interval),
    ("arms[].transactions_per_second", positive),
    ("arms[].service_demand_us", positive_or_null),
    ("arms[].evidence", Value::is_object),
    ("arms[].valid", Value::is_boolean),
    ("arms[].reason", |v| v.is_null() || text(v)),
    ("skipped", Value::is_array),
    ("skipped[].name", text),
    ("skipped[].reason", text),
    ("comparisons", Value::is_array),
    ("comparisons[].arm", text),
    ("comparisons[].baseline", text),
    ("comparisons[].p50_ratio", positive),
    ("comparisons[].ci95", interval),
];

/// The additional schema of a sweep.
const SWEEP_SCHEMA: &[(&str, Check)] = &[
    ("sweep", |v| one_of(v, &["size", "rate", "coalesce", "open"])),
    ("answer", |v| v.as_str().is_some_and(|s| !s.is_empty())),
    ("machine", Value::is_object),
    ("points", Value::is_array),
    ("points[].label", text),
    ("points[].value", |v| v.is_null() || v.as_f64().is_some_and(|x| x >= 0.0)),
    ("points[].arms[].name", text),
    ("points[].arms[].rtt_us.p50", positive),
    ("points[].arms[].server_cpu_us", positive_or_null),
    ("skipped", Value::is_array),
];

/// The additional schema of the sweep over open connections.
const OPEN_SCHEMA: &[(&str, Check)] = &[
    ("points[].arms[].open.p50_ratio", positive_or_null),
    ("points[].arms[].open.ci95", interval),
    ("points[].arms[].open.idle_bytes", |v| v.is_null() || number_or_null(&v["process"])),
    ("points[].arms[].open.idle_bytes", |v| v.is_null() || number_or_null(&v["kernel"])),
];

/// The values at `path`; none where a key is missing.
fn at<'a>(root: &'a Value, path: &str) -> Vec<Option<&'a Value>> {
    let mut found = vec![Some(root)];
    for key in path.split('.') {
        let (key, each) = key.strip_suffix("[]").map_or((key, false), |key| (key, true));
        found = found.into_iter().map(|v| v.and_then(|v| v.get(key))).collect();
        if each {
            let elements = found.into_iter().flat_map(|v| match v.and_then(Value::as_array) {
                Some(list) => list.iter().map(Some).collect(),
                None => vec![None],
            });
            found = elements.collect();
        }
    }
    found
}

/// All violations of the schema of runs.
fn breaches(report: &Value) -> Vec<String> {
    breaches_of(SCHEMA, report)
}

fn breaches_of(schema: &[(&str, Check)], report: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (path, check) in schema {
        for value in at(report, path) {
            match value {
                None => all.push(format!("{path} is missing")),
                Some(v) if !check(v) => all.push(format!("{path} must not be {v}")),
                Some(_) => {}
            }
        }
    }
    all
}

/// The report of a run with these options; `name` is the test's.
fn written(name: &str, options: &[&str]) -> Value {
    let file = std::env::temp_dir().join(format!("busypoll-{name}-{}.json", std::process::id()));
    let path = file.to_str().expect("a plain path");
    let words = [&["bench"], options, &["--json", path]].concat();
    let command = Command::try_parse_from(words).expect("good options");
    // The file is written even if the report cannot be printed.
    let outcome = run_bench(&command.bench, &mut std::io::sink());
    let written = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    outcome.expect("a run");
    serde_json::from_str(&written.expect("written")).expect("JSON")
}

#[test]
fn a_run_between_machines_matches_the_schema() {
    needs_root!();
    let lab = Lab::builder().build().expect("a lab");
    let cpu = busypoll_linux::topology::allowed().expect("affinity").iter().next().expect("a CPU");
    let address = std::net::SocketAddr::from((lab.server.ipv4(), 7117));
    let device = Some(lab.server.interface());
    let server = lab.server.enter(|| Server::bind(address, cpu, device)).expect("entered");
    let server = server.expect("bound");
    let report = std::thread::scope(|scope| {
        let served = scope.spawn(|| lab.server.enter(|| server.serve_one()).expect("entered"));
        let host = lab.server.ipv4().to_string();
        let dev = lab.client.interface();
        let arms = "kernel-udp-blocking,stack-xdp-udp-interrupt,stack-xdp-udp-busy-poll";
        let options = ["--host", &host, "--dev", dev, "--arms", arms, "--rounds", "2"];
        let options = [&options[..], &["--duration", "1s"]].concat();
        let report = lab.client.enter(|| written("between", &options)).expect("entered");
        served.join().expect("no panic").expect("served");
        report
    });
    assert_eq!(breaches(&report), [""; 0]);
    let nics = at(&report, "arms[].nic").into_iter().flatten().filter_map(Value::as_str);
    let nics: std::collections::BTreeSet<&str> = nics.collect();
    assert_eq!(nics, ["device", "xdp"].into());
    // The report says nothing about the other machine's CPU, and has no shared-memory limit.
    assert_eq!(report["machine"]["server"], address.to_string());
    assert!(report["machine"]["server_cpu"].is_null() && report["machine"]["share_core"] == false);
    assert!(report["limit"]["shared_memory_rtt_us"].is_null(), "{report}");
    let mut baselines = at(&report, "comparisons[].baseline").into_iter().flatten();
    assert!(baselines.all(|name| name != "shared-memory"), "{report}");
}

#[test]
fn a_sweep_matches_the_schema_and_writes_its_chart() {
    let svg = std::env::temp_dir().join(format!("busypoll-schema-{}.svg", std::process::id()));
    let chart = svg.to_str().expect("a plain path");
    for (sweep, more) in [("coalesce", &[][..]), ("open", OPEN_SCHEMA)] {
        let arms = ["--arms", "stack-cable-udp-interrupt-same-cpu", "--svg", chart];
        let time = ["--rounds", "1", "--duration", "400ms"];
        let report = written(sweep, &[&["--sweep", sweep][..], &arms, &time].concat());
        assert_eq!(breaches_of(SWEEP_SCHEMA, &report), [""; 0]);
        assert_eq!(breaches_of(more, &report), [""; 0]);
        assert_eq!(report["points"][0]["arms"][0].get("open").is_some(), !more.is_empty());
    }
    let _ = std::fs::remove_file(svg);
}

#[test]
fn a_run_matches_the_schema() {
    // Too large for the bare arm's one frame, so that an arm is skipped on every machine.
    let options = ["--arms", "kernel-*,bare-*,stack-*", "--size", "2000,1", "--rounds", "2"];
    let mut report = written("schema", &[&options[..], &["--duration", "2s"]].concat());
    assert_eq!(breaches(&report), [""; 0]);
    assert!(at(&report, "arms[].nic").iter().flatten().all(|nic| **nic != "device"), "{report}");
    assert!(!at(&report, "arms[].name").is_empty() && !at(&report, "skipped[].name").is_empty());
    for arm in report["arms"].as_array().expect("checked") {
        assert_eq!(arm["valid"] == true, arm["reason"].is_null(), "{arm}");
        let quantiles = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"];
        let told = quantiles.iter().filter_map(|q| arm["rtt_us"][q].as_f64());
        assert!(told.is_sorted(), "{arm}");
    }
    // The check detects violations.
    report["arms"][0]["plane"] = "moon".into();
    report["limit"] = Value::Null;
    report["skipped"][0].as_object_mut().expect("checked").remove("reason");
    assert_eq!(
        breaches(&report),
        [
            "limit.shared_memory_rtt_us is missing",
            "arms[].plane must not be \"moon\"",
            "skipped[].reason is missing"
        ]
    );
}
