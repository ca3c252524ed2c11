//! Faults whose verdict must agree with the packets: each is made in a lab, judged by process, and compared with
//! other counters of the kernel.

mod programs;
mod traffic;

use busypoll_doctor::{Scope, diagnose};
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::sysfs::Sysfs;
use programs::{Program, cure};
use traffic::{
    ECHO, MS, Stream, codes, find, get, in_sysfs, one_at_a_time, own_packets, prove, run,
};

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3", program "ethtool", program "ip", program "nsenter");
    };
}

#[test]
#[ignore = "long: half a minute in all"]
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
#[ignore = "long: half a minute in all"]
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
#[ignore = "long: half a minute in all"]
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
#[ignore = "long: half a minute in all"]
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
#[ignore = "long: half a minute in all"]
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
#[ignore = "long: half a minute in all"]
fn rps_is_reported_for_the_process_where_it_moves_packets() {
    needs_all!();
    let _guard = one_at_a_time();
    for above in ["", "bridge", "macvlan"] {
        let lab = Lab::builder().build().unwrap();
        if lab.server.cpu() == lab.client.cpu() {
            busypoll_lab::needs::skipped(module_path!(), "two CPUs");
            return;
        }
        let device = lab.server.interface();
        let mut steered = device.to_owned();
        if !above.is_empty() {
            steered = "up0".into();
            let link = match above {
                "bridge" => format!(
                    "ip link add up0 type bridge && ip link set {device} master up0 && \
                     ip link set up0 address $(ip -br link show {device} | tr -s ' ' | cut -d' ' -f3)"
                ),
                _ => format!("ip link add up0 link {device} type macvlan mode passthru"),
            };
            let address = format!(
                "ip addr flush dev {device} && ip link set up0 up && ip addr add 10.77.0.2/24 dev up0"
            );
            run(&lab.server, &format!("{link} && {address}"));
        }
        let python = || lab.server.command("python3");
        // Without busy polling packets reach a socket on the CPU of their sender, unless RPS moves them.
        // Only a connected socket notes the CPU.
        let script = "s = udp(701)\ndef receive():\n\
                      \x20   s.connect(s.recvfrom(9)[1])\n\
                      \x20   while True: s.recv(9)\n\
                      threading.Thread(target=receive, daemon=True).start(); say()\n\
                      while heard(): say(s.getsockopt(1, 49))";
        let mut sleeper = Program::start(python(), script);
        sleeper.read_line();
        let stream = Stream::start(&lab, "10.77.0.2:701", MS);
        let name = steered.clone();
        let mask = format!("{:x}", 1_u64 << lab.server.cpu());
        let set = move || {
            Sysfs::open().unwrap().set_attribute(&name, "queues/rx-0/rps_cpus", &mask).unwrap()
        };
        lab.server.enter(set).unwrap();
        std::thread::sleep(100 * MS);
        sleeper.write_line("where");
        let moved = sleeper.read_line() == lab.server.cpu().to_string();
        assert_eq!(moved, above != "macvlan", "{above}");
        drop((sleeper, stream));

        let mut echo = Program::start(python(), &format!("s = udp(700, 2000); say()\n{ECHO}"));
        echo.read_line();
        let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
        std::thread::sleep(100 * MS);
        let (report, _) = prove(&lab, echo.pid());
        if !moved {
            assert!(find(&report, "BP-RPS").is_none(), "{:#?}", report.findings());
            continue;
        }
        let told = get(&report, "BP-RPS");
        assert_eq!(told.subject.to_string(), steered);
        assert!(find(&report, "BP-PROVE-WORKING").is_none(), "{:#?}", report.findings());
        // The remedy works from the namespace where the doctor ran.
        run(&lab.server, told.remedy.as_deref().unwrap());
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
    let own = own_packets(proof);
    assert!(own <= polled + 20, "{own} told, {polled} by all busy polls: {proof:#?}");
    assert!(proof.what.contains("packets"), "{proof:#?}");
    if proof.rule.code == "BP-PROVE-WORKING" {
        assert_eq!(report.faults(), 0, "{:#?}", report.findings());
    }
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
fn an_io_uring_is_judged_by_its_packets() {
    needs_all!();
    let _guard = one_at_a_time();
    for usecs in [0, 20_000] {
        let lab = Lab::builder().build().unwrap();
        // It connects, as a receive in a ring does not tell the sender's address.
        let script = format!(
            "s = udp(700); r = Ring({usecs}); say(); d, a = s.recvfrom(99); s.connect(a)\n\
             while True: s.send(r.recv(s))"
        );
        let mut echo = Program::start(lab.server.command("python3"), &script);
        echo.read_line();
        let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
        std::thread::sleep(100 * MS);
        let (report, polled) = prove(&lab, echo.pid());
        let proof =
            report.findings().into_iter().find(|f| f.rule.code.starts_with("BP-PROVE")).unwrap();
        if usecs == 0 {
            assert_eq!(polled, 0);
            assert_eq!(proof.rule.code, "BP-PROVE-OFF", "{proof:#?}");
            get(&report, "BP-URING-OFF");
            continue;
        }
        let own = own_packets(proof);
        assert!(
            own > 0 && own <= polled + 20,
            "{own} told, {polled} by all busy polls: {proof:#?}"
        );
        assert!(find(&report, "BP-URING-OFF").is_none(), "{:#?}", report.findings());
        if proof.rule.code == "BP-PROVE-WORKING" {
            assert_eq!(report.faults(), 0, "{:#?}", report.findings());
        }
    }
}

/// With `threaded` a NAPI thread does a softirq's work: as many packets are found by busy polling as without.
#[test]
#[ignore = "long: half a minute in all"]
fn napi_threads_are_not_blamed_for_what_short_polls_miss() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let script = format!("s = udp(700, 10); say()\n{ECHO}");
    let mut echo = Program::start(lab.server.command("python3"), &script);
    echo.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", 3 * MS);
    std::thread::sleep(100 * MS);
    for threaded in ["1", "0"] {
        in_sysfs(&lab, "threaded", threaded);
        let (report, polled) = prove(&lab, echo.pid());
        assert!(polled < 20, "{polled} by polls of 10 us every 3 ms");
        let told = get(&report, "BP-PROVE-NO-EFFECT");
        assert!(told.what.contains("had ended"), "{}", told.what);
        assert_eq!(told.remedy, None, "{told:#?}");
        let by_threads = told.evidence.iter().find(|e| e.said.ends_with(" 0 by NAPI threads"));
        assert_eq!(by_threads.is_none(), threaded == "1", "{told:#?}");
    }
}

/// The machine's table of flows, which only the initial network namespace shows, set until dropped.
struct Flows(String);

impl Flows {
    const FILE: &str = "/proc/sys/net/core/rps_sock_flow_entries";

    fn set(flows: &str) -> Option<Self> {
        let before = std::fs::read_to_string(Self::FILE).ok()?;
        std::fs::write(Self::FILE, flows).ok()?;
        Some(Flows(before))
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, &self.0);
    }
}

#[test]
#[ignore = "long: half a minute in all"]
fn rfs_on_the_queue_is_reported_for_the_process() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (polling, reading) = (lab.server.cpu(), lab.client.cpu());
    if polling == reading {
        busypoll_lab::needs::skipped(module_path!(), "two CPUs");
        return;
    }
    // RFS moves a packet to the CPU on which its flow was last read; only a connected socket notes its flow.
    let script = format!(
        "s = udp(700); e = epoll([s], 2000); say()\n\
         d, a = s.recvfrom(99); s.connect(a)\n\
         while True:\n\
         \x20   os.sched_setaffinity(0, [{polling}]); e.poll(); os.sched_setaffinity(0, [{reading}]); s.send(s.recv(99))"
    );
    let mut echo = Program::start(lab.server.command("python3"), &script);
    echo.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
    std::thread::sleep(100 * MS);
    in_sysfs(&lab, "queues/rx-0/rps_flow_cnt", "32");
    // Without the machine's table RFS does nothing.
    let (report, _) = prove(&lab, echo.pid());
    assert!(find(&report, "BP-RFS").is_none(), "{:#?}", report.findings());
    let Some(_flows) = Flows::set("32") else {
        busypoll_lab::needs::skipped(module_path!(), "net.core.rps_sock_flow_entries to set");
        return;
    };
    std::thread::sleep(50 * MS);
    let (report, _) = prove(&lab, echo.pid());
    let told = get(&report, "BP-RFS");
    assert!(find(&report, "BP-PROVE-WORKING").is_none(), "{:#?}", report.findings());
    run(&lab.server, told.remedy.as_deref().unwrap());
    let (report, _) = prove(&lab, echo.pid());
    assert!(find(&report, "BP-RFS").is_none(), "{:#?}", report.findings());
}
