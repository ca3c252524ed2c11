//! A program for every mismatch of settings and waits, made on purpose.

mod programs;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use busypoll_doctor::{Finding, Report, Scope, Style, Subject, Verdict, diagnose};
use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::ethtool::{Ethtool, GRO};
use busypoll_linux::netdev::{NapiChange, Netdev};
use programs::{Program, cure};

fn lab() -> Lab {
    Lab::builder().build().unwrap()
}

/// A packet from the client to a port of the server.
fn packet(lab: &Lab, to: u16) {
    packet_from(lab, to, 0);
}

fn packet_from(lab: &Lab, to: u16, from: u16) {
    lab.client
        .enter(|| {
            let socket = UdpSocket::bind((lab.client.ipv4(), from)).unwrap();
            socket.send_to(b"x", (lab.server.ipv4(), to)).unwrap();
        })
        .unwrap();
}

fn python(host: &LabHost, script: &str) -> Program {
    Program::start(host.command("python3"), script)
}

/// The report on these processes.
fn report(pids: &[u32]) -> Report {
    diagnose(&Scope { pids: pids.to_vec(), ..Scope::default() }).unwrap()
}

/// The finding of that code about these processes; retried, as a program may not wait yet.
fn found(pids: &[u32], code: &str) -> Finding {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let report = report(pids);
        if let Some(found) = of(&report, pids).into_iter().find(|f| f.rule.code == code) {
            return found.clone();
        }
        assert!(Instant::now() < deadline, "no {code} in {:#?}", report.findings());
    }
}

/// Retries until there is no fault with these processes.
fn no_fault(pids: &[u32]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let report = report(pids);
        let faults: Vec<_> =
            of(&report, pids).into_iter().filter(|f| f.verdict() < Verdict::NotSeen).collect();
        if faults.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{faults:#?}");
    }
}

/// The findings about these processes.
fn of<'a>(report: &'a Report, pids: &[u32]) -> Vec<&'a Finding> {
    let about = |f: &&Finding| match &f.subject {
        Subject::Process { pid, .. } | Subject::Descriptor { pid, .. } => pids.contains(pid),
        _ => false,
    };
    report.findings().into_iter().filter(about).collect()
}

/// The descriptor a finding is about.
fn descriptor(finding: &Finding) -> u32 {
    match finding.subject {
        Subject::Descriptor { fd, .. } => fd,
        ref other => panic!("about {other}"),
    }
}

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3");
    };
}

#[test]
fn receive_calls_are_off_without_the_option_and_ready_with_it() {
    needs_all!();
    let lab = lab();
    let mut program = python(
        &lab.server,
        "s = udp(700); say(s.fileno())\nheard()\ns.recv(9); s.recv(9)\n\
         s.setsockopt(1, BUSY_POLL, 50); s.recv(9)",
    );
    let fd: u32 = program.read_line().parse().unwrap();
    program.write_line("go");
    let off = found(&[program.pid()], "BP-SOCK-OFF");
    assert_eq!((descriptor(&off), off.verdict()), (fd, Verdict::Off));
    assert_eq!(off.remedy, Some(format!("busypoll attach {}", program.pid())));
    packet(&lab, 700);
    packet(&lab, 700);
    let ready = found(&[program.pid()], "BP-SOCK-READY");
    assert_eq!((descriptor(&ready), ready.verdict()), (fd, Verdict::Fine));
    assert!(ready.what.contains(&format!("({}", lab.server.interface())), "{}", ready.what);
    assert!(ready.subject.to_string().ends_with("udp 10.77.0.2:700"), "{}", ready.subject);
}

/// Non-blocking by the socket's flag or by each call's.
#[test]
fn nonblocking_receive_calls_are_a_spin_and_not_a_sleep() {
    needs_all!();
    let lab = lab();
    for (port, make, flags) in
        [(700, "s.setblocking(False)", "0"), (701, "pass", "socket.MSG_DONTWAIT")]
    {
        let script = format!(
            "s = udp({port}); {make}; say(s.fileno())\n\
             while True:\n\
             \x20   try: s.recv(9, {flags})\n\
             \x20   except BlockingIOError: pass"
        );
        let mut program = python(&lab.server, &script);
        let fd: u32 = program.read_line().parse().unwrap();
        let off = found(&[program.pid()], "BP-SOCK-SPIN");
        assert_eq!((descriptor(&off), off.verdict()), (fd, Verdict::Off));
        assert_eq!(off.remedy, Some(format!("busypoll attach {}", program.pid())));
        let report = report(&[program.pid()]);
        let said = of(&report, &[program.pid()]);
        assert!(said.iter().all(|f| f.rule.code != "BP-SOCK-OFF"), "{said:#?}");
    }
}

/// A port for each, and the wait in Python for a socket `s`.
const IN_POLL_AND_SELECT: [(u16, &str); 2] =
    [(700, "p = select.poll(); p.register(s, 1); p.poll()"), (701, "select.select([s], [], [])")];

#[test]
fn poll_and_select_without_the_option_are_off() {
    needs_all!();
    let lab = lab();
    for (port, wait) in IN_POLL_AND_SELECT {
        let mut program = python(&lab.server, &format!("s = udp({port}); say(s.fileno()); {wait}"));
        let fd: u32 = program.read_line().parse().unwrap();
        let off = found(&[program.pid()], "BP-SOCK-POLL-OFF");
        assert_eq!((descriptor(&off), off.verdict()), (fd, Verdict::Off));
        assert_eq!(off.remedy.as_deref(), Some("busypoll run -- PROGRAM"));
    }
}

/// Loopback has no queue to poll: busy polling is not off, and there is no remedy. Beside another socket it is not worth
/// a word.
#[test]
fn loopback_alone_is_impossible_in_any_kind_of_wait() {
    needs_all!();
    let lab = lab();
    let bound = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))";
    let own = "s = udp(700); s.connect(('10.77.0.2', 701))";
    for make in [bound, own] {
        for (wait, words) in [
            ("s.recv(9)", "receive call"),
            ("select.select([s], [], [])", "poll or select"),
            ("e = epoll([s]); e.poll(60)", "a thread waits"),
        ] {
            let mut program = python(&lab.server, &format!("{make}\nsay(); {wait}"));
            program.read_line();
            let deadline = Instant::now() + Duration::from_secs(10);
            let report = loop {
                let report = report(&[program.pid()]);
                if report.to_json()["facts"]["processes"].to_string().contains(words) {
                    break report;
                }
                assert!(Instant::now() < deadline, "it does not wait: {wait}");
            };
            let found = of(&report, &[program.pid()]);
            let [only] = &found[..] else { panic!("{make}, {wait}: {found:#?}") };
            assert_eq!(only.rule.code, "BP-SOCK-LOOPBACK", "{make}, {wait}");
            assert_eq!((only.verdict(), &only.remedy), (Verdict::Impossible, &None));
        }
    }
    let both = format!("t = udp(702)\n{bound}\nsay(); s.recv(9)");
    let mut program = python(&lab.server, &both);
    program.read_line();
    let report = report(&[program.pid()]);
    assert!(of(&report, &[program.pid()]).iter().all(|it| it.rule.code != "BP-SOCK-LOOPBACK"));
}

#[test]
fn the_option_without_a_napi_id_has_no_effect() {
    needs_all!();
    let lab = lab();
    let mut program = python(&lab.server, "s = udp(700, 50); say(); s.recv(9)");
    program.read_line();
    assert_eq!(found(&[program.pid()], "BP-SOCK-NO-NAPI").remedy, None);
    let mut program =
        python(&lab.server, "s = udp(701, 50); s.connect(('10.77.0.2', 702)); say(); s.recv(9)");
    program.read_line();
    let found = found(&[program.pid()], "BP-SOCK-LOOPBACK");
    assert_eq!((found.verdict(), found.remedy), (Verdict::Impossible, None));
}

#[test]
fn the_option_on_a_member_of_an_epoll_has_no_effect() {
    needs_all!();
    let lab = lab();
    let mut program = python(
        &lab.server,
        "s = udp(700, 50); e = epoll([s]); say(s.fileno(), e.fileno()); heard()\n\
         s.recv(9); e.poll(60)",
    );
    let said = program.read_line();
    let (socket, epoll) = said.split_once(' ').unwrap();
    packet(&lab, 700);
    program.write_line("go");
    let finding = found(&[program.pid()], "BP-SOCK-IN-EPOLL");
    assert_eq!(descriptor(&finding).to_string(), socket);
    assert!(finding.what.contains(&format!("epoll fd {epoll}")), "{}", finding.what);
}

#[test]
fn an_epoll_is_off_without_parameters_and_ready_with_them_once_it_has_a_napi_id() {
    needs_all!();
    let lab = lab();
    let mut program = python(&lab.server, "s = udp(700); e = epoll([s]); say(); e.poll(60)");
    program.read_line();
    assert_eq!(found(&[program.pid()], "BP-EPOLL-OFF").verdict(), Verdict::Off);
    let mut program =
        python(&lab.server, "s = udp(701); e = epoll([s], 50); say(); s.recv(9); e.poll(60)");
    program.read_line();
    assert_eq!(found(&[program.pid()], "BP-EPOLL-NO-NAPI").verdict(), Verdict::NoEffect);
    packet(&lab, 701);
    found(&[program.pid()], "BP-EPOLL-READY");
    no_fault(&[program.pid()]);
}

#[test]
fn an_epolls_facts_count_what_it_watches_and_name_its_sockets_queue() {
    needs_all!();
    let lab = lab();
    for (watched, words) in [
        ("[s]", "epoll, watches one thing; "),
        ("[s, l]", "epoll, watches 2 things, 1 of them can poll; "),
    ] {
        let mut program = python(
            &lab.server,
            &format!(
                "s = udp(700); l = socket.create_server(('', 701)); e = epoll({watched})\n\
                 say(); s.recv(9); say(); heard()"
            ),
        );
        program.read_line();
        packet(&lab, 700);
        program.read_line();
        let report = report(&[program.pid()]);
        let mut text = Vec::new();
        report.write_text(&mut text, Style { colour: false }).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line =
            text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(lab.server.interface()) && !line.contains("no napi"), "{line}");
    }
}

#[test]
fn the_option_in_poll_or_select_has_no_effect_without_the_sysctl() {
    needs_all!();
    let lab = lab();
    for (port, wait) in IN_POLL_AND_SELECT {
        let script = format!("s = udp({port}, 50); say(s.fileno()); s.recv(9); {wait}");
        let mut program = python(&lab.server, &script);
        let fd: u32 = program.read_line().parse().unwrap();
        packet(&lab, port);
        let finding = found(&[program.pid()], "BP-SOCK-IN-POLL");
        assert_eq!(descriptor(&finding), fd);
        assert_eq!(finding.remedy.as_deref(), Some("busypoll run -- PROGRAM"));
        assert!(finding.rule.why.contains("sysctl -w net.core.busy_poll=50"), "{finding:?}");
    }
}

/// GRO off and on again: the device gets new NAPI instances.
fn reset(host: &LabHost) {
    host.enter(|| {
        let device = Ethtool::open(host.interface()).unwrap();
        device.set_features(GRO, false).unwrap();
        device.set_features(GRO, true).unwrap();
    })
    .unwrap();
}

#[test]
fn a_dead_napi_id_stays_only_on_an_unconnected_socket() {
    needs_all!();
    let lab = lab();
    let mut free = python(&lab.server, "s = udp(700, 50); say()\nwhile True: s.recv(9)");
    let mut bound = python(
        &lab.server,
        "s = udp(701, 50); s.connect(('10.77.0.1', 701)); say()\nwhile True: s.recv(9)",
    );
    free.read_line();
    bound.read_line();
    packet(&lab, 700);
    packet_from(&lab, 701, 701);
    found(&[free.pid()], "BP-SOCK-READY");
    found(&[bound.pid()], "BP-SOCK-READY");
    reset(&lab.server);
    found(&[free.pid()], "BP-SOCK-STALE-NAPI-UDP");
    found(&[bound.pid()], "BP-SOCK-STALE-NAPI");
    // Another packet gives only the connected socket a new id.
    packet(&lab, 700);
    packet_from(&lab, 701, 701);
    found(&[bound.pid()], "BP-SOCK-READY");
    no_fault(&[bound.pid()]);
    let still = found(&[free.pid()], "BP-SOCK-STALE-NAPI-UDP");
    assert_eq!((still.verdict(), still.remedy), (Verdict::NoEffect, None));
}

#[test]
fn one_epoll_over_several_queues_has_no_effect() {
    needs_all!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let mut program = python(
        &lab.server,
        "import selectors\nss = [udp(700 + i) for i in range(16)]\ne = epoll(ss, 50)\nsay()\nheard()\n\
         for s in ss: s.recv(9)\n\
         while True: e.poll(60)",
    );
    program.read_line();
    for port in 700..716 {
        packet(&lab, port);
    }
    program.write_line("go");
    let finding = found(&[program.pid()], "BP-EPOLL-SEVERAL-NAPI");
    assert!(finding.what.starts_with("16 sockets on 2 NAPI instances"), "{}", finding.what);
    needs!(program "ethtool");
    cure(&finding);
    // The sockets are unconnected: those that had learnt the removed queue keep its dead id.
    let left = lab.server.enter(|| Netdev::open().unwrap().napis(lab.server.ifindex()).unwrap());
    assert_eq!(left.unwrap().len(), 1);
}

#[test]
fn sockets_that_never_busy_poll_are_reported() {
    needs_all!();
    let lab = lab();
    let cases = [
        ("BP-SOCK-MPTCP", "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)"),
        ("BP-SOCK-RAW", "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
        ("BP-SOCK-RAW", "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))"),
        ("BP-XDP-SOCK-NO-NAPI", "s = socket.socket(44, socket.SOCK_RAW, 0)"),
    ];
    for (code, make) in cases {
        let script = format!("{make}\ns.setsockopt(1, BUSY_POLL, 50)\nsay(s.fileno()); heard()");
        let mut program = python(&lab.server, &script);
        let fd: u32 = program.read_line().parse().unwrap();
        let finding = found(&[program.pid()], code);
        assert_eq!(descriptor(&finding), fd);
        assert_eq!(finding.remedy, None);
    }
}

#[test]
fn preferring_busy_polling_without_deferral_has_no_effect() {
    needs_all!();
    let lab = lab();
    let mut socket = python(
        &lab.server,
        "s = udp(700, 50); s.setsockopt(1, PREFER, 1); say()\nwhile True: s.recv(9)",
    );
    let mut epoll =
        python(&lab.server, "s = udp(701); e = epoll([s], 50, 8, 1); say(); s.recv(9); e.poll(60)");
    socket.read_line();
    epoll.read_line();
    packet(&lab, 700);
    packet(&lab, 701);
    for program in [&socket, &epoll] {
        let finding = found(&[program.pid()], "BP-PREFER-NO-DEFER");
        let device = lab.server.interface();
        let pid = program.pid();
        let command = format!(
            "nsenter --net=/proc/{pid}/ns/net busypoll tune apply prefer-busy-poll --dev {device} --poller {pid}"
        );
        assert_eq!(finding.remedy, Some(command));
    }
    lab.server
        .enter(|| {
            let mut netdev = Netdev::open().unwrap();
            for napi in netdev.napis(lab.server.ifindex()).unwrap() {
                let change = NapiChange {
                    defer_hard_irqs: Some(2),
                    gro_flush_timeout_ns: Some(200_000),
                    ..NapiChange::default()
                };
                netdev.set_napi(lab.server.ifindex(), napi.id, change).unwrap();
            }
        })
        .unwrap();
    no_fault(&[socket.pid()]);
    no_fault(&[epoll.pid()]);
}

#[test]
fn waits_in_io_uring_without_registered_napi_are_off() {
    needs_all!();
    let lab = lab();
    let mut program = python(
        &lab.server,
        "s = udp(700, 50)\nlibc = ctypes.CDLL(None)\np = ctypes.create_string_buffer(120)\n\
         ring = libc.syscall(425, 4, p)\nsay(ring, s.fileno()); s.recv(9)\n\
         libc.syscall(426, ring, 0, 1, 1, None, 0)",
    );
    let said = program.read_line();
    let (ring, socket) = said.split_once(' ').unwrap();
    packet(&lab, 700);
    let finding = found(&[program.pid()], "BP-URING-OFF");
    assert_eq!(descriptor(&finding).to_string(), ring);
    let finding = found(&[program.pid()], "BP-SOCK-IN-URING");
    assert_eq!(descriptor(&finding).to_string(), socket);
}

#[test]
fn two_spinners_on_one_cpu_are_harmful() {
    needs_all!();
    needs!(program "taskset");
    let lab = lab();
    if lab.server.cpu() == lab.client.cpu() {
        busypoll_lab::needs::skipped(module_path!(), "two CPUs");
        return;
    }
    let script = |port| format!("s = udp({port}, 50); say()\nwhile True: s.recv(9)");
    let (mut one, mut other) =
        (python(&lab.server, &script(700)), python(&lab.server, &script(701)));
    one.read_line();
    other.read_line();
    packet(&lab, 700);
    packet(&lab, 701);
    let pids = [one.pid(), other.pid()];
    let finding = found(&pids, "BP-SPINNERS-ONE-CPU");
    assert_eq!(finding.verdict(), Verdict::Harmful);
    assert!(finding.what.contains(&format!("CPU {}", lab.server.cpu())), "{}", finding.what);
    cure(&finding);
    no_fault(&pids);
}

/// One process whose threads are not bound to CPUs.
#[test]
fn more_spinners_than_cpus_are_harmful() {
    needs_all!();
    let lab = lab();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut program = python(
        &lab.server,
        &format!(
            "os.sched_setaffinity(0, range({cpus}))\nss = [udp(700 + i, 50) for i in range({cpus} + 1)]\n\
             say()\n\
             def wait(s):\n\
             \x20   while True: s.recv(9)\n\
             for s in ss[1:]: threading.Thread(target=wait, args=[s], daemon=True).start()\n\
             heard(); wait(ss[0])"
        ),
    );
    program.read_line();
    for port in (700..).take(cpus + 1) {
        packet(&lab, port);
    }
    let (pid, code) = (program.pid(), "BP-SPINNERS-TOO-MANY");
    let seen = |ready: usize| {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let report = report(&[pid]);
            let facts = report.to_json()["facts"]["processes"].to_string();
            let found = report.findings().into_iter().find(|f| f.rule.code == code).cloned();
            // Every thread that should wait does, each on a known queue.
            if facts.matches("receive call").count() == ready
                && facts.matches("alive").count() > cpus
            {
                break found;
            }
            assert!(Instant::now() < deadline, "{facts}");
        }
    };
    // As many spinners as CPUs are fine.
    assert!(seen(cpus).is_none());
    program.write_line("go");
    let found = seen(cpus + 1).unwrap();
    assert_eq!((found.verdict(), found.remedy), (Verdict::Harmful, None));
    assert!(found.what.ends_with(&format!("busy poll on {cpus} CPUs")), "{}", found.what);
}

/// Read calls of this thread (proc(5), `/proc/PID/io`): as the time, they grow with the work, but not with the load.
fn reads_of(work: impl FnOnce()) -> u64 {
    let reads = || {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let count = io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
        count.parse::<u64>().unwrap()
    };
    let before = reads();
    work();
    reads() - before
}

#[test]
#[ignore = "long: ten seconds"]
fn ten_thousand_sockets_in_one_epoll_take_few_reads() {
    needs_all!();
    let lab = lab();
    let mut program = python(
        &lab.server,
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))\n\
         ss = [udp(2000 + i, 50) for i in range(10000)]\ne = epoll(ss)\nsay(); e.poll(60)",
    );
    program.read_line();
    let finding = found(&[program.pid()], "BP-SOCK-IN-EPOLL");
    assert!(finding.what.starts_with("10000 descriptors"), "{}", finding.what);
    let reads = reads_of(|| drop(report(&[program.pid()])));
    assert!(reads < 20_000, "{reads}");
}

#[test]
#[ignore = "long: makes 2,000 processes"]
fn two_thousand_processes_take_few_reads_each() {
    needs_all!();
    let lab = lab();
    // The children end with their parent.
    let mut parent = python(
        &lab.server,
        "s = udp(700, 50)\nfor i in range(2000):\n\
         \x20   if os.fork() == 0: ctypes.CDLL(None).prctl(1, 9); s.recv(9); os._exit(0)\n\
         say(); heard()",
    );
    parent.read_line();
    for (pids, most) in [(&[][..], 200_000), (&[parent.pid()], 20_000)] {
        let reads = reads_of(|| drop(report(pids)));
        assert!(reads < most, "{pids:?}: {reads}");
    }
}
