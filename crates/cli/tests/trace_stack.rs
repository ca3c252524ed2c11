//! `busypoll trace` of programs on the stack plane: how their packets are found, and a delay that is planted in one stage is
//! seen in that stage and in no other.

mod support;
#[path = "support/traced.rs"]
mod traced;

use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::link::Links;
use support::*;
use traced::*;

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3");
    };
}

/// How a program is started whose calls poll for this long.
fn polling(time: &str) -> [&str; 8] {
    [BUSYPOLL, "run", "--plane", "stack", "--busy-poll", time, "--", "python3"]
}

/// A program of real-time priority that has the server's CPU for 20 ms of 25.
fn hog(lab: &Lab) -> Program {
    let hog = "import os, time\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\nprint('ready', flush=True)\nwhile True:\n  end = time.monotonic() + 0.02\n  while time.monotonic() < end: pass\n  time.sleep(0.005)";
    Program::bare(&lab.server, &["python3"], hog)
}

/// Waits until the program has the queues of the server's interface: what comes before goes by the kernel.
fn wait_for_stack(lab: &Lab) {
    let link = || Links::open().unwrap().get(lab.server.interface()).unwrap();
    wait_until("the queues are taken", || lab.server.enter(link).unwrap().xdp.is_some());
}

/// Lets the interrupt threads of a program run on this CPU only.
fn pin_interrupt_threads(program: &Program, cpu: u32) {
    wait_until("interrupt threads", || {
        let mut pinned = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap() {
            let thread = thread.unwrap();
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap();
            if name.starts_with("napi/") && !name.contains("watchdog") {
                let mut taskset = Command::new("taskset");
                let set = taskset.args(["-pc", &cpu.to_string()]).arg(thread.file_name()).output();
                assert!(set.unwrap().status.success(), "{name}");
                pinned += 1;
            }
        }
        pinned > 0
    });
}

#[test]
fn packets_of_the_stack_plane_are_followed_by_socket() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let echo = Program::under(&lab.server, &polling("20ms"), ECHO);
    let _stream = Stream::start(&lab, MS, 9);
    let mut report = serde_json::Value::Null;
    // On a busy machine the thread may be made to sleep between its polls.
    wait_until("packets that the thread's own polls find", || {
        report = trace(&lab, &[&echo.pid()]);
        report["receives"][0]["found"]["own_polls"].as_u64() > Some(0)
    });
    let flow = &report["receives"][0];
    assert_eq!((&flow["plane"], &flow["protocol"]), (&"stack".into(), &"udp".into()), "{report:#}");
    assert_eq!((&flow["local"], &flow["program"]), (&"10.77.0.2:700".into(), &"python3".into()));
    assert!(mean(&report, "receives", "protocol") > 0.0, "{flow:#}");
    let sent = &report["sends"][0];
    assert_eq!((&sent["plane"], &sent["local"]), (&"stack".into(), &"10.77.0.2:700".into()));
    assert!(mean(&report, "sends", "call") > 0.0);
    // An answer for each.
    let count = |flow: &serde_json::Value| flow["packets"].as_u64().unwrap();
    assert!(count(sent) * 2 > count(flow) && count(flow) * 2 > count(sent), "{report:#}");
}

#[test]
#[ignore = "long: a trace of seconds"]
fn a_program_that_is_started_is_followed_on_the_stack_plane_and_a_sample_is_a_part_of_the_time() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let stream = Stream::start(&lab, MS, 9);
    let script = format!(
        "{PRELUDE}\nend = time.time() + 3\nwhile time.time() < end: d, a = s.recvfrom(99); s.sendto(d, a)"
    );
    let run = polling("50us");
    let mut all = vec!["trace", "--sample", "4", "--json", "-", "--"];
    all.extend(run);
    all.extend(["-c", &script]);
    let output = run_on_host(&lab.server, &all);
    drop(stream);
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let flow = &report["receives"][0];
    assert_eq!(flow["plane"], "stack", "{report:#}");
    assert!(report["notes"].to_string().contains("one in 4 packets"), "{report:#}");
}

#[test]
fn a_connection_on_the_stack_plane_is_followed_segment_by_segment() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = "l = socket.create_server(('10.77.0.2', 701)); ready()\nwhile True:\n  c, _ = l.accept(); d = 1\n  while d:\n    try: d = c.recv(999); c.sendall(d)\n    except OSError: d = 0";
    let server = Program::under(&lab.server, &polling("50us"), server);
    wait_for_stack(&lab);
    let mut report = serde_json::Value::Null;
    // The first connections may still come by the kernel.
    wait_until("a connection on the stack plane", || {
        let _requests = Requests::start(&lab, 701);
        report = trace(&lab, &[&server.pid()]);
        report["receives"][0]["plane"] == "stack"
    });
    let flow = &report["receives"][0];
    assert_eq!(
        (&flow["plane"], &flow["protocol"], &flow["local"]),
        (&"stack".into(), &"tcp".into(), &"10.77.0.2:701".into()),
        "{report:#}"
    );
    assert!(flow["peer"].as_str().unwrap().starts_with("10.77.0.1:"), "{flow}");
    let count = |direction: &str| report[direction][0]["packets"].as_u64().unwrap();
    let (received, sent) = (count("receives"), count("sends"));
    assert!(received * 2 > sent && sent * 2 > received, "{received} {sent}");
}

#[test]
fn a_reader_that_sleeps_leaves_packets_in_the_queue_of_the_stack_plane() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let reader = "ready()\nwhile True:\n  time.sleep(0.04)\n  s.setblocking(0)\n  try:\n    while True: s.recv(99)\n  except BlockingIOError: pass";
    let reader = Program::under(&lab.server, &polling("50us"), reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(report["receives"][0]["plane"], "stack", "{report:#}");
    assert_eq!(longest(&report, "receives"), "queue", "{report:#}");
    assert!(
        story(&report, "queue")
            .is_none_or(|story| story.contains("python3 was in clock_nanosleep")),
        "{report:#}"
    );
}

#[test]
fn a_thread_on_the_stack_plane_that_waits_for_its_cpu_is_scheduled_late() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let reader = "ready()\nwhile True: s.recv(99)";
    let reader = Program::under(&lab.server, &polling("0us"), reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    wait_for_stack(&lab);
    let _hog = hog(&lab);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(report["receives"][0]["plane"], "stack", "{report:#}");
    assert_eq!(longest(&report, "receives"), "scheduled", "{report:#}");
    assert!(
        story(&report, "scheduled").is_none_or(|story| story.contains("until its thread got CPU")),
        "{report:#}"
    );
}

#[test]
#[ignore = "long: a trace of seconds"]
fn an_interrupt_thread_that_waits_for_its_cpu_leaves_packets_in_the_ring() {
    needs_all!();
    needs!(program "taskset");
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    // Nothing but the interrupt thread takes packets while the reader sleeps.
    let reader = "ready()\ns.setblocking(0)\nwhile True:\n  time.sleep(0.001)\n  try:\n    while True: s.recv(99)\n  except BlockingIOError: pass";
    let reader = Program::under(&lab.server, &polling("0us"), reader);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    wait_for_stack(&lab);
    pin_interrupt_threads(&reader, lab.server.cpu());
    let _hog = hog(&lab);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(report["receives"][0]["plane"], "stack", "{report:#}");
    assert_eq!(longest(&report, "receives"), "ring", "{report:#}");
    assert!(report["receives"][0]["found"]["napi_threads"].as_u64() > Some(0), "{report:#}");
    assert!(
        story(&report, "ring").is_none_or(|story| story.contains("in the ring before napi/")),
        "{report:#}"
    );
}
