//! The lab on real kernel objects: what it creates, what it does not touch, and that nothing remains.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, Namespace, Side, needs, needs_root};
use busypoll_linux::link::Links;
use busypoll_linux::netdev::Netdev;
use busypoll_linux::sockopt;

/// The interfaces of the calling thread's network namespace.
fn links() -> HashSet<String> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// The identity of a network namespace: its inode.
fn identity(path: &str) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// Whether any process on the machine is still in the network namespace, or holds it.
fn is_held(namespace: u64) -> bool {
    let link = format!("net:[{namespace}]");
    let points_there = |path: std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str() == link.as_str())
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut processes =
        processes.filter(|p| p.file_name().to_string_lossy().parse::<u32>().is_ok());
    processes.any(|process| {
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        points_there(process.path().join("ns/net"))
            || descriptors.into_iter().any(|fd| points_there(fd.path()))
    })
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "still waiting: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_hosts_ping_each_other_and_the_machine_sees_no_interface() {
    needs_root!();
    needs!(program "ping");
    let before = links();
    let lab = Lab::builder().build().unwrap();
    let during = links();
    for side in Side::BOTH {
        let host = lab.host(side);
        assert_eq!(
            host.enter(links).unwrap(),
            HashSet::from(["lo".into(), host.interface().into()])
        );
        let peer = lab.host(side.peer());
        for address in
            [Some(IpAddr::V4(peer.ipv4())), peer.ipv6().map(IpAddr::V6)].into_iter().flatten()
        {
            let ping =
                host.command("ping").args(["-c1", "-W5", &address.to_string()]).output().unwrap();
            assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
        }
    }
    drop(lab);
    assert_eq!(before, during);
    assert_eq!(before, links());
}

#[test]
fn packets_pass_a_napi_context_only_with_gro_on_and_tso_off() {
    needs_root!();
    for (gro, tso, expected) in [(true, false, true), (false, false, false), (true, true, false)] {
        let lab = Lab::builder().gro(gro).tso(tso).build().unwrap();
        let server = lab.server.enter(|| UdpSocket::bind((lab.server.ipv4(), 7)).unwrap()).unwrap();
        let client = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0)).unwrap()).unwrap();
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        server.recv(&mut [0; 8]).unwrap();
        let napi_id = sockopt::incoming_napi_id(&server).unwrap();
        let host = &lab.server;
        let napis = host.enter(|| Netdev::open().unwrap().napis(host.ifindex()).unwrap()).unwrap();
        assert_eq!(napi_id.is_some(), expected, "GRO {gro}, TSO {tso}");
        assert_eq!(napis.len(), usize::from(gro), "GRO {gro}, TSO {tso}");
        assert!(napi_id.is_none_or(|id| napis[0].id == id), "{napi_id:?}, {napis:?}");
    }
}

#[test]
fn queues_mtu_index_and_mac_are_as_requested_and_reported() {
    needs_root!();
    let lab = Lab::builder().queues(3).mtu(9000).build().unwrap();
    for side in Side::BOTH {
        let host = lab.host(side);
        let link = host.enter(|| Links::open().unwrap().get(host.interface()).unwrap()).unwrap();
        let napis = host.enter(|| Netdev::open().unwrap().napis(host.ifindex()).unwrap()).unwrap();
        assert_eq!((link.ifindex, link.mac), (host.ifindex(), Some(host.mac())));
        assert_eq!((link.mtu, link.rx_queues, napis.len()), (9000, 3, 3));
        assert!(link.up && link.running);
    }
}

#[test]
fn code_runs_in_a_host_on_its_own_thread_and_cpu() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let here = identity("/proc/thread-self/ns/net");
    let listener = lab.server.enter(|| TcpListener::bind((lab.server.ipv4(), 7)).unwrap()).unwrap();
    let cpu = lab.server.cpu();
    let server = lab.server.spawn_thread(cpu, move || {
        let mut asked = [0; 4];
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut asked).unwrap();
        stream.write_all(&asked).unwrap();
        (
            identity("/proc/thread-self/ns/net"),
            fs::read_to_string("/proc/thread-self/status").unwrap(),
        )
    });
    let mut answer = [0; 4];
    let address = (lab.server.ipv4(), 7);
    let mut stream = lab.client.enter(|| TcpStream::connect(address).unwrap()).unwrap();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
    let (there, status) = server.unwrap().join().unwrap();
    assert_ne!(there, here);
    assert_eq!(here, identity("/proc/thread-self/ns/net"), "the caller has been moved");
    assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
}

#[test]
fn settings_out_of_range_are_refused_with_a_remedy() {
    for (builder, named) in [
        (Lab::builder().queues(0), "queues 0"),
        (Lab::builder().mtu(1279), "MTU 1279"),
        (Lab::builder().mtu(65536), "MTU 65536"),
        (Lab::builder().cpus(0, 8191), "CPU 8191"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(named) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_lab_is_ready_within_a_second() {
    needs_root!();
    let made = (0..5).map(|_| {
        let start = Instant::now();
        drop(Lab::builder().build().unwrap());
        start.elapsed()
    });
    let best = made.min().unwrap();
    assert!(best < Duration::from_secs(1), "{best:?}");
}

#[test]
fn the_first_packet_is_not_lost() {
    needs_root!();
    // If it is lost, another comes a second later, when ARP or ND tries again. A third were lost before the
    // lab waited for its interfaces; on a machine that stalls one or two may be late.
    let is_late = |address_of: fn(Side) -> IpAddr, from: Side| {
        let lab = Lab::builder().build().unwrap();
        let bind = |side, port| UdpSocket::bind((address_of(side), port)).unwrap();
        let receiver = lab.host(from.peer()).enter(|| bind(from.peer(), 7)).unwrap();
        let sender = lab.host(from).enter(|| bind(from, 0)).unwrap();
        let start = Instant::now();
        sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        receiver.recv(&mut [0; 8]).unwrap();
        start.elapsed() > Duration::from_millis(800)
    };
    for address_of in [|side: Side| IpAddr::V4(side.ipv4()), |side: Side| IpAddr::V6(side.ipv6())] {
        let late = (0..10).flat_map(|_| Side::BOTH).filter(|from| is_late(address_of, *from));
        assert!(late.count() < 3);
    }
}

#[test]
fn a_panic_inside_is_passed_on() {
    needs_root!();
    let namespace = Lab::single().unwrap();
    let caught = std::panic::catch_unwind(|| namespace.enter(|| panic!("from inside")));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "from inside");
}

/// Not a test: the process that the next test kills.
#[test]
fn holder() {
    if std::env::var_os("BUSYPOLL_LAB_TEST_HOLDER").is_none() {
        return;
    }
    let lab = Lab::builder().build().unwrap();
    let identity = |host: &Namespace| host.enter(|| identity("/proc/thread-self/ns/net")).unwrap();
    println!("\nholding {} {}", identity(&lab.client), identity(&lab.server));
    loop {
        thread::park();
    }
}

#[test]
fn after_kill_9_nothing_remains() {
    needs_root!();
    let names = || fs::read_dir("/run/netns").into_iter().flatten().count();
    let (before, named_before) = (links(), names());
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--nocapture"])
        .env("BUSYPOLL_LAB_TEST_HOLDER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.starts_with("holding ")).unwrap();
    let held: Vec<u64> = line.split(' ').skip(1).map(|id| id.parse().unwrap()).collect();
    assert!(held.len() == 2 && held.iter().all(|id| is_held(*id)), "{line}");
    assert_eq!(before, links());
    holder.kill().unwrap();
    assert_eq!(holder.wait().unwrap().signal(), Some(libc::SIGKILL));
    wait_until("a process still holds the namespaces", || !held.iter().any(|id| is_held(*id)));
    assert_eq!((before, named_before), (links(), names()));
}
