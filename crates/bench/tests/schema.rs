//! The output of `--json`, compared with the published schemas: every field is there, documented, and of its type.

#[path = "../../cli/tests/support/json_schema.rs"]
mod json_schema;

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

/// All violations of the published schema of this name.
fn breaches(name: &str, report: &Value) -> Vec<String> {
    json_schema::breaches(&json_schema::published(name), report)
}

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
    assert_eq!(breaches("bench-rr", &report), [""; 0]);
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
fn sizes_are_swept_between_machines() {
    needs_root!();
    let lab = Lab::builder().build().expect("a lab");
    let cpu = busypoll_linux::topology::allowed().expect("affinity").iter().next().expect("a CPU");
    let address = std::net::SocketAddr::from((lab.server.ipv4(), 7117));
    let server = lab.server.enter(|| Server::bind(address, cpu, None)).expect("entered");
    let server = server.expect("bound");
    let svg = std::env::temp_dir().join(format!("busypoll-sizes-{}.svg", std::process::id()));
    let report = std::thread::scope(|scope| {
        let served = scope.spawn(|| lab.server.enter(|| server.serve_one()).expect("entered"));
        let host = lab.server.ipv4().to_string();
        let options = ["--host", &host, "--sweep", "size", "--sizes", "1,64", "--rounds", "1"];
        let more = ["--arms", "kernel-*-blocking", "--duration", "800ms"];
        let chart = ["--svg", svg.to_str().expect("a plain path")];
        let options = [&options[..], &more, &chart].concat();
        let report = lab.client.enter(|| written("sizes", &options)).expect("entered");
        served.join().expect("no panic").expect("served");
        report
    });
    let _ = std::fs::remove_file(svg);
    assert_eq!(breaches("bench-sweep", &report), [""; 0]);
    let labels: Vec<_> = at(&report, "points[].label").into_iter().flatten().collect();
    assert_eq!(labels, ["1 B", "64 B"]);
    let arms = |point: usize| report["points"][point]["arms"].as_array().map_or(0, Vec::len);
    assert_eq!([arms(0), arms(1)], [2, 2], "{report}");
}

#[test]
fn a_fix_session_has_orders_one_way_and_both_ways() {
    let arms = ["--workload", "fix", "--arms", "kernel-tcp-blocking-same-cpu,stack-cable-*"];
    let options = ["--messages", "60", "--rounds", "2", "--duration", "1s"];
    let report = written("fix", &[&arms[..], &options].concat());
    assert_eq!(breaches("bench-rr", &report), [""; 0]);
    assert_eq!(report["workload"], "fix");
    let measured = report["arms"].as_array().expect("checked");
    assert!(!measured.is_empty(), "{report}");
    for arm in measured {
        // An order that a busy machine does not answer within a tenth of a second is lost.
        let count = |value: &Value| value.as_u64().expect("checked");
        let (done, lost) = (count(&arm["transactions"]), count(&arm["evidence"]["lost"]));
        assert!(done + lost == 60 && done > 30, "{arm}");
        let of = |figures: &str, name: &str| arm[figures][name].as_f64().expect("checked");
        assert!(of("one_way_us", "p50") < of("rtt_us", "p50"), "{arm}");
        assert!(
            of("one_way_us", "min") > 0.0 && arm["request_bytes"].as_u64() > Some(100),
            "{arm}"
        );
    }
}

#[test]
fn a_sweep_matches_the_schema_and_writes_its_chart() {
    let svg = std::env::temp_dir().join(format!("busypoll-schema-{}.svg", std::process::id()));
    let chart = svg.to_str().expect("a plain path");
    for sweep in ["coalesce", "open"] {
        let arms = ["--arms", "stack-cable-udp-interrupt-same-cpu", "--svg", chart];
        let time = ["--rounds", "1", "--duration", "400ms"];
        let report = written(sweep, &[&["--sweep", sweep][..], &arms, &time].concat());
        assert_eq!(breaches("bench-sweep", &report), [""; 0]);
        assert_eq!(report["points"][0]["arms"][0].get("open").is_some(), sweep == "open");
    }
    let drawn = std::fs::read_to_string(&svg).expect("a chart");
    assert!(drawn.contains("stack-cable-udp-interrupt-same-cpu"), "{drawn}");
    let memory = format!("busypoll-schema-{}-memory.svg", std::process::id());
    let _ = std::fs::remove_file(svg.with_file_name(memory));
    let _ = std::fs::remove_file(svg);
}

#[test]
fn a_run_matches_the_schema() {
    // Too large for the bare arm's one frame, so that an arm is skipped on every machine.
    let options = ["--arms", "kernel-*,bare-*,stack-*", "--size", "2000,1", "--rounds", "2"];
    let mut report = written("schema", &[&options[..], &["--duration", "2s"]].concat());
    assert_eq!(breaches("bench-rr", &report), [""; 0]);
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
    report["time"] = 7.into();
    report["more"] = true.into();
    let found = breaches("bench-rr", &report);
    for wanted in [
        ".arms[0].plane must not be \"moon\"",
        ".limit must not be null",
        ".skipped[0].reason is missing",
        ".time must not be 7",
        ".more is not documented",
    ] {
        assert!(found.iter().any(|line| line.starts_with(wanted)), "{wanted}: {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
fn throughput_and_stages_match_their_schemas() {
    let time = ["--duration", "600ms"];
    let stages = ["--stages", "--arms", "stack-cable-udp-interrupt"];
    let report = written("stages", &[&stages[..], &time].concat());
    assert_eq!(breaches("bench-stages", &report), [""; 0]);
    let stream = ["--workload", "stream", "--arms", "*-cable-*", "--rounds", "1"];
    let report = written("stream", &[&stream[..], &time].concat());
    assert_eq!(breaches("bench-throughput", &report), [""; 0]);
    needs_root!();
    let loss = ["--workload", "loss", "--rtt", "2ms", "--rounds", "2"];
    let report = written("loss", &[&loss[..], &time].concat());
    assert_eq!(breaches("bench-throughput", &report), [""; 0]);
    assert_eq!(report["path"], serde_json::json!({ "loss_percent": 1.0, "rtt_ms": 2.0 }));
}
