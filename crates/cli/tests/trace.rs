//! `busypoll trace`: a delay that is planted in one stage is seen in that stage and in no other; how packets are found;
//! the report in all its forms; what it refuses.

mod support;
#[path = "support/traced.rs"]
mod traced;

use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root, needs_vm};
use serde_json::Value;
use support::faults::TestMachine;
use support::json_schema::is_as_documented;
use support::vm_machine::{Vm, builder};
use support::*;
use traced::*;

waiter_test!();

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3", program "ethtool");
    };
}

#[test]
fn a_reader_that_sleeps_leaves_packets_in_the_queue() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let reader = "ready()\nwhile True:\n  time.sleep(0.04)\n  s.setblocking(0)\n  try:\n    while True: s.recv(99)\n  except BlockingIOError: pass";
    let reader = Program::start(&lab.server, reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(longest(&report, "receives"), "queue", "{report:#}");
    let story = slowest(&report, "queue");
    assert!(story.contains("python3 was in clock_nanosleep"), "{story}");
}

#[test]
fn a_thread_that_waits_for_its_cpu_is_scheduled_late() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    // Anything may run before a thread of SCHED_IDLE, here one that always does.
    let hog = "ready()\nwhile True: pass";
    let hog = hog.replace("ready", "s.close(); ready");
    let _hog = Program::start(&lab.server, &hog);
    let reader = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nready()\nwhile True: s.recv(99)";
    let reader = Program::start(&lab.server, reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(longest(&report, "receives"), "scheduled", "{report:#}");
    let story = slowest(&report, "scheduled");
    assert!(story.contains("until its thread got CPU"), "{story}");
}

/// As in a server with a thread for each connection.
#[test]
fn a_thread_that_receives_a_single_packet_is_seen() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let reader = "import threading\nready()\nwhile True:\n  one = threading.Thread(target=s.recv, args=(99,))\n  one.start()\n  one.join()";
    let reader = Program::start(&lab.server, reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let report = trace(&lab, &[&reader.pid()]);
    assert!(report["receives"][0]["packets"].as_u64() >= Some(20), "{report:#}");
    assert!(mean(&report, "receives", "scheduled") > 0.0, "{report:#}");
}

#[test]
fn an_interrupt_that_is_deferred_leaves_packets_in_the_ring() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let echo = Program::start(&lab.server, ECHO);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let before = trace(&lab, &[&echo.pid()]);
    defer(&lab.server);
    let after = trace(&lab, &[&echo.pid()]);
    assert_eq!(longest(&after, "receives"), "ring", "{after:#}");
    let ring = |report| mean(report, "receives", "ring");
    assert!(ring(&after) > 3.0 * ring(&before), "{} {}", ring(&before), ring(&after));
    assert!(slowest(&after, "ring").contains("in the ring before a softirq"), "{after:#}");
}

#[test]
fn a_shaped_device_holds_what_is_sent_in_its_qdisc() {
    needs_all!();
    needs!(program "tc");
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let echo = Program::start(&lab.server, ECHO);
    let _stream = Stream::start(&lab, 4 * MS, 1400);
    let before = trace(&lab, &[&echo.pid()]);
    let tbf = "root tbf rate 1mbit burst 3kb latency 400ms";
    sh(&lab.server, &format!("tc qdisc add dev {} {tbf}", lab.server.interface()));
    let after = trace(&lab, &[&echo.pid()]);
    assert_eq!(longest(&after, "sends"), "qdisc", "{after:#}");
    assert!(after["answer"].as_str().unwrap().contains("'qdisc'"), "{after:#}");
    let qdisc = |report| mean(report, "sends", "qdisc");
    assert!(qdisc(&after) > 10.0 * qdisc(&before), "{} {}", qdisc(&before), qdisc(&after));
}

#[test]
fn packets_are_found_by_softirqs_or_by_the_busy_polls_of_their_thread() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let found = |options: &str, target: &[&str]| {
        let echo = Program::start(&lab.server, &format!("{options}\n{ECHO}"));
        let _stream = Stream::start(&lab, MS, 9);
        let pid = echo.pid();
        let target = if target.is_empty() { vec![pid.as_str()] } else { target.to_vec() };
        trace(&lab, &target)["receives"][0]["found"].clone()
    };
    let plain = found("", &[]);
    assert!(plain["softirq"].as_u64() > Some(0) && plain["own_polls"] == 0, "{plain}");
    let polled = found("s.setsockopt(socket.SOL_SOCKET, 46, 20000)", &[]);
    // On a busy machine softirqs often come before the thread that polls.
    assert!(polled["own_polls"].as_u64() > Some(0), "{polled}");
    let device = found("", &["--dev", lab.server.interface()]);
    assert!(device["softirq"].as_u64() > Some(0), "{device}");
}

#[test]
fn a_program_is_traced_to_its_end_and_the_page_shows_it() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _stream = Stream::start(&lab, MS, 9);
    let folder = std::env::temp_dir().join(format!("busypoll-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name).display().to_string();
    // A child of the program receives.
    let script = format!(
        "{PRELUDE}\nif os.fork(): os.wait()\nelse:\n  for _ in range(200): d, a = s.recvfrom(99); s.sendto(d, a)"
    );
    let (json, svg, html) = (file("t.json"), file("t.svg"), file("t.html"));
    let output = run_on_host(
        &lab.server,
        &["trace", "--json", &json, "--svg", &svg, "--", "python3", "-c", &script],
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for wanted in [
        "udp 10.77.0.2:700",
        "python3 (",
        "packets received",
        "packets sent",
        "found by softirq",
        "scheduled",
        "The slowest:",
        "Tracing took",
        "chart: ",
    ] {
        assert!(text.contains(wanted), "no {wanted}: {text}");
    }
    let tables = text.lines().filter(|line| line.starts_with(char::is_alphabetic));
    assert!(
        tables.filter(|line| line.chars().count() > 80 && line.contains("  ")).count() == 0,
        "{text}"
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("wake-up"));
    let page = run_on_host(&lab.server, &["report", &json, "--html", &html]);
    assert!(page.status.success(), "{page:?}");
    let page = std::fs::read_to_string(&html).unwrap();
    for wanted in
        ["<svg", "Received packets", "Sent packets", "The slowest", "qdisc", "tracepoints"]
    {
        assert!(page.contains(wanted), "no {wanted}");
    }
    let again = run_on_host(&lab.server, &["report", &json]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("packets received"), "{again:?}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn tcp_segments_are_followed_and_a_coarser_sample_says_so() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = "l = socket.create_server(('10.77.0.2', 701)); ready()\nc, _ = l.accept()\nwhile True:\n  d = c.recv(999)\n  c.sendall(d)";
    let server = Program::start(&lab.server, server);
    let requests = Requests::start(&lab, 701);
    let report = trace(&lab, &[&server.pid(), "--sample", "2"]);
    drop(requests);
    let flow = &report["receives"][0];
    assert_eq!((&flow["protocol"], &flow["local"]), (&"tcp".into(), &"10.77.0.2:701".into()));
    assert!(flow["peer"].as_str().unwrap().starts_with("10.77.0.1:"), "{flow}");
    // An answer in one segment for each request.
    let (received, sent) = (flow["packets"].as_u64(), report["sends"][0]["packets"].as_u64());
    let (received, sent) = (received.unwrap(), sent.unwrap());
    assert!(received * 2 > sent && sent * 2 > received, "{received} {sent}");
    assert!(mean(&report, "sends", "call") > 0.0);
    let notes = report["notes"].to_string();
    assert!(notes.contains("one in 2 packets"), "{notes}");
}

#[test]
fn nothing_to_trace_is_one_line() {
    for (arguments, wanted) in [
        (&["trace"][..], &["PID"][..]),
        (&["trace", "0"], &["'0'"]),
        (&["trace", "1", "--dev", "lo"], &["--dev"]),
        (&["trace", "1", "--for", "1ms"], &["too short", "100ms"]),
        (&["trace", "1", "--sample", "0"], &["--sample"]),
        (&["trace", "1", "--json", "/nowhere/t.json"], &["/nowhere/t.json"]),
        (&["trace", "1", "--svg", "/nowhere/t.svg"], &["/nowhere/t.svg"]),
    ] {
        fails_with(&run_locally(arguments), wanted);
    }
    needs_root!();
    fails_with(&run_locally(&["trace", "4194304"]), &["process 4194304"]);
    fails_with(&run_locally(&["trace", "--dev", "nowhere0"]), &["nowhere0"]);
    fails_with(
        &run_locally(&["trace", "--", "/nowhere/program"]),
        &["cannot start /nowhere/program"],
    );
    needs!(program "setpriv");
    let mut poor = Command::new("setpriv");
    poor.args(["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]);
    let output = poor.args([BUSYPOLL, "trace", "--dev", "lo"]).output().unwrap();
    fails_with(&output, &["CAP_BPF"]);
}

#[test]
fn without_packets_the_exit_code_is_1() {
    needs_root!();
    let _alone = one_at_a_time();
    let output = run_locally(&["trace", "--", "true"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("no packet was taken or sent"),
        "{output:?}"
    );
}

/// Linux 6.1 has no tracepoint at a receive, and an Intel NIC has an interrupt.
#[test]
#[ignore = "a minute of emulation: cargo test -p busypoll-cli --test trace -- --ignored"]
fn an_older_kernel_says_what_it_lacks_and_an_interrupt_announces_packets() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    // With several CPUs QEMU's emulation may run the breakpoint for ever that the kernel sets while it patches
    // sched_switch's call: one hang in four runs.
    let vm = Vm::of(builder().command_line("maxcpus=1"));
    let pid = vm.start("recv");
    let tracer = vm.output_of(&format!(
        "busypoll trace {pid} --for 10s --json /tmp/t.json >/tmp/t.out 2>&1 </dev/null & echo $!"
    ));
    // It loads its programs first, which takes a while here.
    while vm.sh(&format!("test -d /proc/{}", tracer.trim())).status == 0 {
        vm.exchange_with_waiter();
    }
    let text = vm.output_of("cat /tmp/t.json || cat /tmp/t.out");
    let report: Value = serde_json::from_str(&text).unwrap();
    is_as_documented("trace", &report);
    let flow = &report["receives"][0];
    assert!(flow["packets"].as_u64() > Some(5), "{report:#}");
    assert!(flow["found"]["softirq"].as_u64() > Some(0), "{flow:#}");
    assert_eq!(mean(&report, "receives", "return"), 0.0);
    assert!(mean(&report, "receives", "ring") > 0.0 && mean(&report, "receives", "queue") > 0.0);
    assert!(report["sends"][0]["packets"].as_u64() > Some(5), "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("no tracepoint sock_recv_length (Linux 6.3)"), "{notes}");
}
