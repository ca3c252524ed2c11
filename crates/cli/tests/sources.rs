//! docs/sources.md and docs/scale.md: what they print is what the commands print, what they call measured is what
//! docs/measurements.md has, each recommendation has its rule or key; and other tools agree with the benchmark.

mod support;

#[path = "support/echo.rs"]
mod echo;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use busypoll_bench::clock::Clock;
use busypoll_bench::demand::{self, Usage};
use busypoll_bench::fix::Initiator;
use busypoll_bench::foreign;
use busypoll_bench::kernel::{Tcp, Wait};
use busypoll_bench::model::{latency, scale};
use busypoll_bench::workload::Endpoint;
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::stat::CpuTimes;
use echo::{Running, build, source, temp_dir};
use support::shown::project;
use support::*;

fn document(name: &str) -> String {
    fs::read_to_string(project().join("docs").join(name)).unwrap()
}

fn trimmed(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The models depend on nothing but their inputs.
#[test]
fn what_the_documents_show_of_the_models_is_what_they_print() {
    for (file, model, most) in [("sources.md", "latency", 1), ("scale.md", "scale", 4)] {
        let output = run_locally(&["model", model]);
        assert!(output.status.success(), "{output:?}");
        let printed = trimmed(&String::from_utf8(output.stdout).unwrap());
        let text = document(file);
        let blocks = text.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
        let blocks: Vec<String> = blocks.map(trimmed).collect();
        assert!(blocks.len() >= most, "{file}: {blocks:?}");
        for block in blocks {
            assert!(
                printed.contains(&block),
                "{file} shows\n{block}\n`busypoll model {model}` prints\n{printed}"
            );
        }
    }
}

/// p50, p99 and CPU us of each arm in docs/measurements.md.
fn measured() -> Vec<(String, [f64; 3])> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let figure = |nth: usize| words.get(nth)?.parse::<f64>().ok();
        let name = words.first().filter(|name| name.matches('-').count() > 1)?;
        Some(((*name).to_owned(), [figure(1)?, figure(2)?, figure(6)?]))
    };
    let all: Vec<_> = document("measurements.md").lines().filter_map(row).collect();
    assert!(all.len() > 15, "{all:?}");
    all
}

#[test]
fn what_the_models_call_measured_is_in_the_measurements() {
    let measured = measured();
    let of = |name: &str| {
        measured.iter().find(|(arm, _)| arm == name).unwrap_or_else(|| panic!("{name}")).1
    };
    let inputs = latency::Inputs::parse(latency::INPUTS).unwrap();
    let mut checked = 0;
    let udp = of("kernel-udp-busy-poll")[0];
    for constant in inputs.constants.iter().filter(|it| it.kind == latency::Kind::Measured) {
        let [p50, ..] = of(constant.arm.as_deref().unwrap());
        let expected = if constant.name == "wake-up" { (p50 - udp) / 2.0 } else { p50 };
        assert!((constant.value.unwrap() - expected).abs() < 0.006, "{constant:?}, not {expected}");
        checked += 1;
    }
    for arm in scale::Inputs::parse(scale::INPUTS).unwrap().arms {
        assert_eq!([arm.p50, arm.p99, arm.cpu.unwrap()], of(&arm.name), "{}", arm.name);
        checked += 1;
    }
    assert_eq!(checked, 3 + 9);
}

/// Rows `recommendation | rules | keys` of the white paper's table. A key is written as a profile would have it.
#[test]
fn each_recommendation_of_the_white_paper_has_its_rule_or_key() {
    let text = document("sources.md");
    let table = text.split("| recommendation |").nth(1).unwrap().split("\n\n").next().unwrap();
    let list = String::from_utf8(run_locally(&["doctor", "--list"]).stdout).unwrap();
    let rules: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|it| it.starts_with("BP-"))
        .collect();
    let folder = temp_dir("sources-profile");
    let (mut named, mut rows) = (0, 0);
    for row in table.lines().skip(2) {
        // The recommendation itself may name a sysctl.
        let (_, named_here) = row.trim_start_matches('|').split_once('|').unwrap();
        let codes: Vec<&str> = named_here.split('`').skip(1).step_by(2).collect();
        assert!(!codes.is_empty(), "{row}");
        rows += 1;
        for code in codes {
            if code.starts_with("BP-") {
                assert!(rules.contains(&code), "the doctor has no {code}: {row}");
            } else {
                let (key, value) =
                    code.split_once(" = ").unwrap_or_else(|| panic!("{code} in {row}"));
                let (section, name) =
                    key.split_once('.').unwrap_or_else(|| panic!("{code} in {row}"));
                let file = folder.join("profile.toml");
                fs::write(
                    &file,
                    format!("summary = \"of a row\"\n\n[{section}]\n{name} = {value}\n"),
                )
                .unwrap();
                let output = run_locally(&["tune", "plan", file.to_str().unwrap()]);
                // Without a device there is nothing to plan, but an unknown key is refused first.
                let said = String::from_utf8_lossy(&output.stderr);
                let is_known = output.status.success() || said.contains("sets only devices");
                assert!(is_known, "tune has no {code}: {output:?}");
            }
            named += 1;
        }
    }
    assert!(rows >= 10 && named >= 20, "{rows} {named}: {table}");
}

#[test]
fn the_example_for_quickfix_has_a_rule_for_each_session() {
    let folder = project().join("packaging/quickfix");
    let policy = folder.join("policy.toml");
    let output = run_locally(&["policy", "check", policy.to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let rules: toml::Table = fs::read_to_string(&policy).unwrap().parse().unwrap();
    let of_rules: Vec<i64> = rules["rule"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["remote_port"].as_integer().unwrap())
        .collect();
    let sessions = fs::read_to_string(folder.join("session.cfg")).unwrap();
    let port = |line: &str| line.strip_prefix("SocketConnectPort=")?.parse().ok();
    assert_eq!(sessions.lines().filter_map(port).collect::<Vec<i64>>(), of_rules);
}

#[test]
fn the_environment_names_a_policy_where_no_option_does() {
    let run = |file: &str, options: &[&str]| {
        let mut command = Command::new(BUSYPOLL);
        command.arg("run").args(options).args(["--", "true"]).env("BUSYPOLL_POLICY", file);
        command.stdin(Stdio::null()).output().unwrap()
    };
    fails_with(&run("/nowhere.toml", &[]), &["/nowhere.toml"]);
    let folder = temp_dir("sources-policy");
    let file = folder.join("policy.toml");
    fs::write(&file, "busy_poll = \"20us\"\n").unwrap();
    let file = file.to_str().unwrap();
    for output in [run("", &[]), run(file, &[]), run("/nowhere.toml", &["--policy", file])] {
        assert!(output.status.success(), "{output:?}");
    }
}

/// A run of bench, and what other tools have printed.
fn samples() -> (String, Vec<String>) {
    let bench = project().join("crates/bench");
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let names = ["netperf-udp.txt", "netperf-omni.csv", "netperf-omni-k.txt", "sockperf-pp.txt"];
    let foreign = names.map(|name| text(bench.join("src/foreign/samples").join(name)));
    (text(bench.join("tests/data/size.json")), foreign.to_vec())
}

#[test]
fn other_tools_runs_stand_beside_ours() {
    let (ours, foreign) = samples();
    let all: Vec<&str> = [&ours].into_iter().chain(&foreign).map(String::as_str).collect();
    let printed = run_locally(&[&["report"][..], &all].concat());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let table = printed.split("== Beside other tools' runs").nth(1).unwrap();
    for wanted in [
        "UDP, 64 B each way",
        "netperf UDP_RR",
        "kernel-udp-busy-poll",
        "120 + 120",
        "twice that is shown",
    ] {
        assert!(table.contains(wanted), "{wanted}: {table}");
    }
    let folder = temp_dir("sources-report");
    let (html, svg) = (folder.join("both.html"), folder.join("both.svg"));
    let written = |option: &str, file: &PathBuf| {
        let output = run_locally(&[&["report", option, file.to_str().unwrap()][..], &all].concat());
        assert!(output.status.success(), "{output:?}");
        fs::read_to_string(file).unwrap()
    };
    let (page, chart) = (written("--html", &html), written("--svg", &svg));
    for text in [&page, &chart] {
        assert!(text.contains("netperf UDP_RR") && text.contains("UDP, 64 B each way"), "{text}");
    }
    assert!(page.contains("Beside other tools") && !page.contains("<script"));
    // Alone, too: the white paper's figure, polling off and on.
    let output = run_locally(&["report", &foreign[0], &foreign[1], "--svg", svg.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let broken = folder.join("stream.txt");
    fs::copy(project().join("crates/bench/src/foreign/samples/netperf-stream.txt"), &broken)
        .unwrap();
    fails_with(
        &run_locally(&["report", broken.to_str().unwrap()]),
        &["stream.txt", "no round trips"],
    );
}

/// Both count the whole machine over the same two seconds; netperf takes no idle use off.
#[test]
fn netperfs_service_demand_is_ours() {
    needs_root!();
    let Some(folder) = needs::unpacked("netperf") else {
        return needs::skipped(module_path!(), "netperf: run .ci/netperf");
    };
    let program = |name: &str| folder.join("usr/bin").join(name);
    let lab = Lab::builder().build().unwrap();
    let mut server = lab.server.command(program("netserver"));
    let mut server =
        server.args(["-D", "-4"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let address = lab.server.ipv4().to_string();
    wait_until("netserver listens", || {
        lab.client
            .enter(|| std::net::TcpStream::connect((address.as_str(), 12865)))
            .unwrap()
            .is_ok()
    });
    let run = || {
        let before = CpuTimes::now().unwrap();
        let start = Instant::now();
        let mut client = lab.client.command(program("netperf"));
        client.args(["-H", &address, "-4", "-t", "UDP_RR", "-l", "2", "-c", "-C"]);
        let output = client.args(["--", "-r", "1,1"]).stdin(Stdio::null()).output().unwrap();
        let elapsed = start.elapsed();
        let times = CpuTimes::now().unwrap().since(&before);
        let text = String::from_utf8(output.stdout).unwrap();
        let tests = foreign::parse(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
        let test = &tests[0];
        // Its own two seconds are a little shorter than its life.
        let transactions = test.per_second.unwrap() * elapsed.as_secs_f64();
        let ours = |used| {
            let used = Usage { used, capacity: elapsed * times.cpus.len() as u32 };
            demand::service_demand_us(used, Usage::default(), transactions as u64).unwrap()
        };
        let theirs = test.demand_us.map(|demand| demand.unwrap_or_else(|| panic!("{text}")));
        let all = times.total();
        let ran = all.user_ns + all.system_ns + all.irq_ns + all.softirq_ns;
        (ours(Duration::from_nanos(ran)), theirs, ours(times.used(elapsed)))
    };
    // Ours counts the time that a hypervisor stole, and what no tick of the kernel accounts for; netperf does not.
    let near = |(least, theirs, most): &(f64, [f64; 2], f64)| {
        theirs.iter().all(|theirs| (least * 0.9..=most * 1.1).contains(theirs))
    };
    // What another program uses beside netperf's two seconds and within its life is in ours alone. A wrong unit or a
    // wrong number of CPUs is in every run.
    let mut runs = Vec::new();
    while runs.len() < 5 && !runs.last().is_some_and(near) {
        runs.push(run());
    }
    let _ = server.kill();
    let _ = server.wait();
    assert!(runs.last().is_some_and(near), "bench, netperf's two ends, bench with steal: {runs:?}");
}

/// QuickFIX accepts our session, checks each message, and answers each order.
#[test]
#[ignore = "long: compiles a program over QuickFIX"]
fn a_real_fix_engine_trades_with_the_benchmarks_session() {
    needs!(program "g++");
    if !PathBuf::from("/usr/include/quickfix/Application.h").exists() {
        return needs::skipped(module_path!(), "the package libquickfix-dev");
    }
    let program = temp_dir("sources-fix").join("fix");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++14", "-O0", "-w", "-o"]).arg(&program).arg(source("fix.cpp"));
    build(compiler.args(["-lquickfix", "-pthread"]));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _acceptor = Running::start(Command::new(&program).args(["acceptor", &port.to_string()]));
    let clock = Clock::default();
    let tcp = Tcp::client(([127, 0, 0, 1], port).into(), Wait::Sleep, &clock).unwrap();
    let mut session = Initiator::logon(tcp, &clock).unwrap();
    for n in 0..20u8 {
        session.send(&[n, 255 - n]).unwrap();
        let (mut answer, until) = ([0; 2], Instant::now() + Duration::from_secs(10));
        while session.recv(&mut answer).unwrap().is_none() {
            assert!(Instant::now() < until, "no report");
        }
        assert_eq!(answer, [n, 255 - n]);
    }
    session.logout().unwrap();
}
