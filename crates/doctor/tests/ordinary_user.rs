//! The doctor without privileges: it sees the user's own processes, and reports what it cannot see in one line.

mod programs;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use busypoll_doctor::{Finding, Report, Scope, Verdict, diagnose};
use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::stat;
use programs::Program;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

const NOBODY: u32 = 65534;

/// Runs `work` in the host as an ordinary user, on a thread of its own.
fn as_nobody<R: Send>(host: &LabHost, work: impl FnOnce() -> R + Send) -> R {
    host.enter(|| {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        // Unlike libc's calls of these names they change only the calling thread.
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    })
    .unwrap()
}

/// Runs `work` in the host as root without BPF, as in many containers.
fn without_bpf<R: Send>(host: &LabHost, work: impl FnOnce() -> R + Send) -> R {
    let bpf = CapabilitySet::BPF | CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON;
    let work = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= bpf;
        set_capabilities(None, sets).unwrap();
        work()
    };
    host.enter(work).unwrap()
}

/// A program of that user in the host. Uses the system's Python: others may be in directories that only root can read.
fn program(host: &LabHost, script: &str) -> Program {
    let mut python = host.command("setpriv");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"];
    python.args(user).current_dir("/");
    Program::start(python, script)
}

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "/usr/bin/python3", program "setpriv");
    };
}

fn finding<'a>(report: &'a Report, code: &str) -> Option<&'a Finding> {
    report.findings().into_iter().find(|f| f.rule.code == code)
}

/// Sends a packet from the client.
fn packet(lab: &Lab) {
    lab.client
        .enter(|| {
            let socket = UdpSocket::bind((lab.client.ipv4(), 0)).unwrap();
            socket.send_to(b"x", (lab.server.ipv4(), 7000)).unwrap();
        })
        .unwrap();
}

#[test]
fn the_users_own_processes_are_seen() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    let mut own = program(
        &lab.server,
        "s = udp(7000, 50); e = epoll([s]); say(s.fileno()); s.recv(9); e.poll(60)",
    );
    let fd = own.read_line();
    packet(&lab);
    let scope = Scope { pids: vec![own.pid()], ..Scope::default() };
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let report = as_nobody(&lab.server, || diagnose(&scope)).unwrap();
        // In another network namespace net.core.busy_poll is not visible, which does not mean that it is 0.
        assert!(finding(&report, "BP-SOCK-IN-EPOLL").is_none(), "{:#?}", report.findings());
        let unseen = |f: &&Finding| f.subject.to_string().contains(&format!("fd {fd} udp"));
        let Some(found) = report.findings().into_iter().find(unseen) else {
            assert!(Instant::now() < deadline, "{:#?}", report.findings());
            continue;
        };
        if !found.what.contains("net.core.busy_poll") {
            assert!(Instant::now() < deadline, "{found:#?}");
            continue;
        }
        assert_eq!(found.verdict(), Verdict::NotSeen);
        let napi = found.evidence.iter().find(|e| e.read == "SO_INCOMING_NAPI_ID");
        assert!(napi.is_some(), "{found:#?}");
        break;
    }
}

#[test]
fn other_users_processes_are_counted_in_one_line_and_asking_for_one_is_an_error() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    let mut roots = Program::start(lab.server.command("/usr/bin/python3"), "say(); heard()");
    roots.read_line();
    let report = as_nobody(&lab.server, || diagnose(&Scope::default())).unwrap();
    let unseen: Vec<_> = report
        .findings()
        .into_iter()
        .filter(|f| f.what.contains("processes of other users"))
        .collect();
    let [one] = unseen[..] else { panic!("{unseen:#?}") };
    assert_eq!(one.verdict(), Verdict::NotSeen);
    assert!(one.evidence[0].said.contains("CAP_BPF"), "{one:#?}");
    let scope = Scope { pids: vec![roots.pid()], ..Scope::default() };
    let error = as_nobody(&lab.server, || diagnose(&scope)).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", roots.pid())), "{error}");
    assert!(error.contains("CAP_SYS_PTRACE"), "{error}");
}

#[test]
fn a_pid_without_a_process_is_an_error() {
    let error = diagnose(&Scope { pids: vec![u32::MAX / 2], ..Scope::default() }).unwrap_err();
    assert_eq!(error.to_string(), "process 2147483647: no such process; ps lists the processes");
}

#[test]
fn without_bpf_the_kernels_own_counters_prove_busy_polling() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    let mut server = program(
        &lab.server,
        "s = udp(7000, 5000); say()\nwhile True:\n    d, a = s.recvfrom(9); s.sendto(d, a)",
    );
    server.read_line();
    let mut client = Program::start(
        lab.client.command("/usr/bin/python3"),
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, BUSY_POLL, 5000)\n\
         s.connect(('10.77.0.2', 7000)); say()\nwhile True: s.send(b'x'); s.recv(9)",
    );
    client.read_line();
    let scope = Scope {
        devices: vec![lab.server.interface().into()],
        prove: Some(Duration::from_millis(500)),
        ..Scope::default()
    };
    let report = as_nobody(&lab.server, || diagnose(&scope)).unwrap();
    let proof = finding(&report, "BP-PROVE-WORKING");
    assert!(proof.is_some(), "{:#?}", report.findings());
    let unseen =
        report.findings().into_iter().find(|f| f.what.contains("which threads polled")).cloned();
    assert!(unseen.unwrap().evidence[0].said.contains("CAP_BPF"));
}

/// The counters are those of a namespace, not of a process: they may contradict a verdict, and prove none.
#[test]
fn without_bpf_there_is_no_verdict_on_a_process() {
    needs_all!();
    for usecs in [0, 5000] {
        let lab = Lab::builder().build().unwrap();
        let script = format!(
            "s = udp(7000, {usecs}); say()\nwhile True:\n    d, a = s.recvfrom(9); s.sendto(d, a)"
        );
        let mut server = Program::start(lab.server.command("/usr/bin/python3"), &script);
        server.read_line();
        let mut client = Program::start(
            lab.client.command("/usr/bin/python3"),
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.77.0.2', 7000)); say()\n\
             while True: s.send(b'x'); s.recv(9)",
        );
        client.read_line();
        let scope = Scope {
            pids: vec![server.pid()],
            prove: Some(Duration::from_millis(500)),
            ..Scope::default()
        };
        let look = || {
            let before = stat::busy_poll_rx_packets().unwrap();
            let report = diagnose(&scope).unwrap();
            (report, stat::busy_poll_rx_packets().unwrap() - before)
        };
        let (report, polled) = without_bpf(&lab.server, look);
        let findings = report.findings();
        assert!(!findings.iter().any(|f| f.rule.code.starts_with("BP-PROVE")), "{findings:#?}");
        let unseen = findings.iter().find(|f| f.what.starts_with("how the packets of its sockets"));
        assert!(unseen.unwrap().evidence[0].said.contains("CAP_BPF"), "{unseen:#?}");
        if report.faults() == 0 {
            let summary = report.summary();
            assert!(summary.starts_with("Whether busy polling works was not seen"), "{summary}");
            assert_eq!(report.exit_code(), std::process::ExitCode::from(2));
        }
        match usecs {
            // A fault of settings may be told, which the counter must not contradict.
            0 => assert_eq!(polled, 0, "{findings:#?}"),
            _ => assert!(polled > 0 && report.faults() == 0, "{polled} {findings:#?}"),
        }
    }
}
