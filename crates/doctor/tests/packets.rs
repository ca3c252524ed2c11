//! Faults whose verdict must agree with the packets: each is made in a lab, judged by process, and compared with
//! other counters of the kernel.

mod programs;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use busypoll_doctor::{Finding, Report, Scope, diagnose};
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::{process, stat};
use programs::{Program, cure};

/// One test at a time: the machine may have only two CPUs.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3", program "ethtool", program "ip", program "nsenter");
    };
}

/// Sends datagrams to a port of the server until dropped, answered or not.
struct Stream {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    fn start(lab: &Lab, to: &'static str, gap: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            while !stopped.load(Relaxed) {
                // While the test reconfigures the device there may be no route.
                let _ = socket.send_to(b"x", to);
                let _ = socket.recv(&mut [0; 9]);
                std::thread::sleep(gap);
            }
        };
        let thread = lab.client.spawn_thread(lab.client.cpu(), send).unwrap();
        Stream { stop, thread: Some(thread) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

const MS: Duration = Duration::from_millis(1);
const ECHO: &str = "while True: d, a = s.recvfrom(99); s.sendto(d, a)";

/// The report on a process, and the packets that busy polls found in the server's namespace meanwhile.
fn prove(lab: &Lab, pid: u32) -> (Report, u64) {
    let scope =
        Scope { pids: vec![pid], prove: Some(Duration::from_millis(400)), ..Scope::default() };
    let polled = || stat::busy_poll_rx_packets().unwrap();
    let look = || {
        let before = polled();
        let report = diagnose(&scope).unwrap();
        (report, polled() - before)
    };
    lab.server.enter(look).unwrap()
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings().iter().map(|f| f.rule.code).collect()
}

fn find(report: &Report, code: &str) -> Option<Finding> {
    report.findings().into_iter().find(|f| f.rule.code == code).cloned()
}

fn get(report: &Report, code: &str) -> Finding {
    find(report, code).unwrap_or_else(|| panic!("no {code}: {:#?}", report.findings()))
}

/// Runs a command in the network namespace of one side.
fn run(host: &busypoll_lab::LabHost, command: &str) {
    let done = host.command("sh").args(["-c", command]).status().unwrap();
    assert!(done.success(), "{command}");
}

fn in_sysfs(lab: &Lab, name: &str, value: &str) {
    let set = || Sysfs::open().unwrap().set_attribute(lab.server.interface(), name, value).unwrap();
    lab.server.enter(set).unwrap();
}

#[test]
fn tso_switched_on_at_the_peer_after_the_id_was_learnt_is_found() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut echo = Program::start(
        lab.server.command("python3"),
        &format!("s = udp(700, 2000); say()\n{ECHO}"),
    );
    echo.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(100 * MS);
    run(&lab.client, &format!("ethtool -K {} tso on", lab.client.interface()));
    std::thread::sleep(50 * MS);
    let (report, polled) = prove(&lab, echo.pid());
    assert_eq!(polled, 0, "{:#?}", report.findings());
    let told = get(&report, "BP-PROVE-NO-EFFECT");
    assert!(told.what.contains("no NAPI id") && told.what.contains("TSO is on"), "{}", told.what);
    cure(&get(&report, "BP-VETH-TSO-ON"));
    let (report, _) = prove(&lab, echo.pid());
    assert!(find(&report, "BP-VETH-TSO-ON").is_none(), "{:#?}", report.findings());
    let after = report.findings().iter().map(|f| f.what.clone()).collect::<String>();
    assert!(!after.contains("no NAPI id"), "{after}");
}

#[test]
fn an_epoll_checked_only_with_timeout_0_is_a_spin_without_effect() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let script = "s = udp(700); s.setblocking(0); e = epoll([s], 2000); say()\n\
                  while True:\n\
                  \x20   if e.poll(0): d, a = s.recvfrom(99); s.sendto(d, a)";
    let mut spin = Program::start(lab.server.command("python3"), script);
    spin.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(100 * MS);
    // A thread that never sleeps is not in the call at every sample.
    let mut told = None;
    for _ in 0..20 {
        let (report, polled) = prove(&lab, spin.pid());
        assert_eq!(polled, 0);
        assert!(find(&report, "BP-PROVE-WORKING").is_none(), "{:#?}", report.findings());
        told = find(&report, "BP-EPOLL-SPIN").zip(find(&report, "BP-PROVE-NO-EFFECT"));
        if told.is_some() {
            assert!(find(&report, "BP-EPOLL-READY").is_none(), "{:#?}", report.findings());
            break;
        }
    }
    let (_, proof) = told.expect("BP-EPOLL-SPIN");
    assert!(proof.what.contains("timeout of 0") || proof.what.contains("0%"), "{}", proof.what);
}

#[test]
fn nested_epolls_are_distinguished_by_where_the_parameters_are() {
    needs_all!();
    let _guard = one_at_a_time();
    for (inner, outer, words) in [
        (2000, 0, "the parameters are at the inner one"),
        (0, 2000, "the parameters are at the outer one"),
        (2000, 2000, "both have parameters"),
    ] {
        let lab = Lab::builder().build().unwrap();
        let script = format!(
            "s = udp(700); i = epoll([s], {inner}); o = epoll([i], {outer}); say(i.fileno(), o.fileno())\n\
             while True:\n\
             \x20   if o.poll(9) and i.poll(0): d, a = s.recvfrom(99); s.sendto(d, a)"
        );
        let mut nested = Program::start(lab.server.command("python3"), &script);
        let said = nested.read_line();
        let (i, o) = said.split_once(' ').unwrap();
        let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
        std::thread::sleep(100 * MS);
        let (report, polled) = prove(&lab, nested.pid());
        assert_eq!(polled, 0);
        let told = get(&report, "BP-EPOLL-NESTED");
        let wanted = format!("epoll fd {o} is waited in, and watches epoll fd {i}");
        assert!(told.what.contains(&wanted) && told.what.contains(words), "{}", told.what);
        assert_eq!(told.remedy, None);
        get(&report, "BP-PROVE-NO-EFFECT");
    }
}

#[test]
fn deferral_longer_than_any_poll_is_a_loss() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut echo =
        Program::start(lab.server.command("python3"), &format!("s = udp(700, 10); say()\n{ECHO}"));
    echo.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", 2 * MS);
    std::thread::sleep(100 * MS);
    in_sysfs(&lab, "gro_flush_timeout", "500000");
    in_sysfs(&lab, "napi_defer_hard_irqs", "100");
    let (report, _) = prove(&lab, echo.pid());
    let told = get(&report, "BP-GRO-FLUSH-LOSS");
    assert!(told.what.contains("500us") && told.what.contains("10us"), "{}", told.what);
    let proof: String = report.findings().iter().map(|f| f.what.clone()).collect();
    assert!(proof.contains("waited up to 500 us"), "{proof}");
    run(&lab.server, told.remedy.as_deref().unwrap());
    let (report, _) = prove(&lab, echo.pid());
    assert!(!codes(&report).iter().any(|code| code.contains("FLUSH")), "{:#?}", report.findings());
}

#[test]
fn packets_from_another_device_than_the_learnt_one_are_reported() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut echo = Program::start(
        lab.server.command("python3"),
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, BUSY_POLL, 2000)\n\
         s.bind(('', 700)); say()\nwhile True: d, a = s.recvfrom(99); s.sendto(d, a)",
    );
    echo.read_line();
    let first = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(100 * MS);
    drop(first);
    let client = lab.client.path();
    run(&lab.server, &format!("ip link add wb type veth peer name wa netns {client}"));
    for (host, device, address) in
        [(&lab.server, "wb", "10.78.0.2"), (&lab.client, "wa", "10.78.0.1")]
    {
        run(
            host,
            &format!(
                "ethtool -K {device} tso off gro on >/dev/null && ip addr add {address}/24 dev {device} && ip link set {device} up"
            ),
        );
    }
    let _second = Stream::start(&lab, "10.78.0.2:700", MS);
    std::thread::sleep(200 * MS);
    let (report, _) = prove(&lab, echo.pid());
    let told = get(&report, "BP-PROVE-NO-EFFECT");
    assert!(told.what.contains("(wb)") && told.what.contains("learnt first"), "{}", told.what);
}

#[test]
fn rps_on_the_queue_or_on_a_bridge_above_it_is_reported_for_the_process() {
    needs_all!();
    let _guard = one_at_a_time();
    for bridge in [false, true] {
        let lab = Lab::builder().build().unwrap();
        let device = lab.server.interface();
        let mut steered = device.to_owned();
        if bridge {
            steered = "br0".into();
            run(
                &lab.server,
                &format!(
                    "ip link add br0 type bridge && ip link set {device} master br0 && ip addr flush dev {device} && \
                 ip link set br0 address $(ip -br link show {device} | tr -s ' ' | cut -d' ' -f3) up && \
                 ip addr add 10.77.0.2/24 dev br0"
                ),
            );
        }
        let mut echo = Program::start(
            lab.server.command("python3"),
            &format!("s = udp(700, 2000); say()\n{ECHO}"),
        );
        echo.read_line();
        let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
        std::thread::sleep(100 * MS);
        let name = steered.clone();
        let set = move || {
            Sysfs::open().unwrap().set_attribute(&name, "queues/rx-0/rps_cpus", "3").unwrap()
        };
        lab.server.enter(set).unwrap();
        let (report, _) = prove(&lab, echo.pid());
        let told = get(&report, "BP-RPS");
        assert_eq!(told.subject.to_string(), steered);
        assert!(find(&report, "BP-PROVE-WORKING").is_none(), "{:#?}", report.findings());
        // The remedy works from the namespace where the doctor ran.
        let cured = lab.server.command("sh").args(["-c", told.remedy.as_deref().unwrap()]).status();
        assert!(cured.unwrap().success());
        let (report, _) = prove(&lab, echo.pid());
        assert!(find(&report, "BP-RPS").is_none(), "{:#?}", report.findings());
    }
}

#[test]
fn a_process_without_network_sockets_has_no_fault() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    for script in
        ["say()\nwhile True: time.sleep(.001)", "a, b = socket.socketpair(); say(); a.recv(9)"]
    {
        let mut program = Program::start(lab.server.command("python3"), script);
        program.read_line();
        let (report, _) = prove(&lab, program.pid());
        get(&report, "BP-NO-SOCKETS");
        assert_eq!(report.faults(), 0, "{:#?}", report.findings());
        assert_eq!(report.exit_code(), std::process::ExitCode::SUCCESS);
        assert!(!codes(&report).iter().any(|code| code.starts_with("BP-PROVE")), "{report:#?}");
    }
}

#[test]
fn idle_sockets_and_sleeping_threads_are_not_judged() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let script = format!(
        "idle = [udp(800 + i, 50) for i in range(50)]; s = udp(700, 20000)\n\
         def nap():\n\
         \x20   while True: time.sleep(.001)\n\
         threading.Thread(target=nap, daemon=True).start(); say()\n{ECHO}"
    );
    let mut echo = Program::start(lab.server.command("python3"), &script);
    echo.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(100 * MS);
    let (report, polled) = prove(&lab, echo.pid());
    assert!(get(&report, "BP-SOCK-IDLE").what.contains("no thread waits"));
    assert!(find(&report, "BP-SOCK-NO-NAPI").is_none());
    // How much is found depends on the machine: the verdict must follow the packets.
    let proof =
        report.findings().into_iter().find(|f| f.rule.code.starts_with("BP-PROVE")).unwrap();
    let packets = proof.evidence.iter().find(|e| e.read.starts_with("packets handed")).unwrap();
    let own: u64 = packets.said.split(' ').next().unwrap().parse().unwrap();
    assert!(own <= polled + 20, "{own} told, {polled} by all busy polls: {proof:#?}");
    assert!(proof.what.contains("packets"), "{proof:#?}");
    if proof.rule.code == "BP-PROVE-WORKING" {
        assert_eq!(report.faults(), 0, "{:#?}", report.findings());
    }
}

#[test]
fn a_stopped_process_and_a_zombie_are_reported_as_such() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    let mut program =
        Program::start(lab.server.command("python3"), "s = udp(700, 50); say(); s.recv(9)");
    program.read_line();
    let pid = program.pid();
    let state = |wanted: char| {
        for _ in 0..2000 {
            if process::sched_state(pid).is_some_and(|s| s.state == wanted) {
                return;
            }
            std::thread::sleep(5 * MS);
        }
        panic!("{:?}", process::sched_state(pid));
    };
    assert!(
        Command::new("sh").args(["-c", &format!("kill -STOP {pid}")]).status().unwrap().success()
    );
    state('T');
    let (report, _) = prove(&lab, pid);
    let told = get(&report, "BP-STOPPED");
    assert!(told.verdict().is_fault());
    cure(&told);
    state('S');
    let (report, _) = prove(&lab, pid);
    assert!(find(&report, "BP-STOPPED").is_none());

    let mut parent = Program::start(
        lab.server.command("python3"),
        "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT); say(pid); heard()",
    );
    let zombie: u32 = parent.read_line().parse().unwrap();
    let refused = diagnose(&Scope { pids: vec![zombie], ..Scope::default() }).unwrap_err();
    assert!(refused.to_string().contains("zombie"), "{refused}");
}

#[test]
fn loopback_that_is_down_is_reported() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    run(&lab.server, "ip link set lo down");
    let look = || diagnose(&Scope { devices: vec!["lo".into()], ..Scope::default() }).unwrap();
    let report = lab.server.enter(look).unwrap();
    let told = get(&report, "BP-DEVICE-DOWN");
    run(&lab.server, told.remedy.as_deref().unwrap());
    assert!(find(&lab.server.enter(look).unwrap(), "BP-DEVICE-DOWN").is_none());
}

#[test]
fn a_cpu_quota_is_reported_and_removed_by_the_remedy() {
    needs_all!();
    let _guard = one_at_a_time();
    // Version 1, where a new group needs no changes to the others.
    let root = "/sys/fs/cgroup/cpu";
    let group = format!("{root}/busypoll-doctor-{}", std::process::id());
    if std::fs::create_dir(&group).is_err()
        || std::fs::write(format!("{group}/cpu.cfs_quota_us"), "20000").is_err()
    {
        let _ = std::fs::remove_dir(&group);
        busypoll_lab::needs::skipped(module_path!(), "control groups of version 1 to make one");
        return;
    }
    let lab = Lab::builder().build().unwrap();
    let mut echo = Program::start(
        lab.server.command("python3"),
        &format!("s = udp(700, 50000); say()\n{ECHO}"),
    );
    echo.read_line();
    std::fs::write(format!("{group}/cgroup.procs"), echo.pid().to_string()).unwrap();
    let stream = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(200 * MS);
    let scope = |pid| Scope { pids: vec![pid], ..Scope::default() };
    let mut told = None;
    for _ in 0..20 {
        let report = lab.server.enter(|| diagnose(&scope(echo.pid())).unwrap()).unwrap();
        told = find(&report, "BP-CPU-QUOTA");
        if told.is_some() {
            break;
        }
    }
    if let Some(told) = &told {
        cure(told);
    }
    let after = lab.server.enter(|| diagnose(&scope(echo.pid())).unwrap()).unwrap();
    drop(stream);
    drop(echo);
    while std::fs::remove_dir(&group).is_err() {
        std::thread::sleep(10 * MS);
    }
    assert!(told.expect("the quota").what.contains("0.20 CPUs"));
    assert!(find(&after, "BP-CPU-QUOTA").is_none());
}

#[test]
fn a_poller_with_real_time_priority_is_reported() {
    needs_all!();
    needs!(program "chrt");
    let lab = Lab::builder().build().unwrap();
    // Each wait is so short that the poller does not monopolise the CPU.
    let script = "s = udp(700, 1); say(); s.recvfrom(9); say()\nwhile True: s.recv(9)";
    let mut poller = Program::start(lab.server.command("python3"), script);
    poller.read_line();
    let stream = Stream::start(&lab, "10.77.0.2:700", 20 * MS);
    poller.read_line();
    drop(stream);
    let set = format!("chrt -f -p 1 {}", poller.pid());
    if !Command::new("sh").args(["-c", &set]).status().unwrap().success() {
        busypoll_lab::needs::skipped(module_path!(), "real-time priorities");
        return;
    }
    let look = || diagnose(&Scope { pids: vec![poller.pid()], ..Scope::default() }).unwrap();
    let told = get(&lab.server.enter(look).unwrap(), "BP-FIFO-POLLER");
    cure(&told);
    assert!(find(&lab.server.enter(look).unwrap(), "BP-FIFO-POLLER").is_none());
}
