//! A whole host over a TAP, against the kernel at the other end.

use busypoll_lab::{Lab, Namespace, needs, needs_root};
use busypoll_stack::{
    Host, UdpSocket,
    nic::tap::Tap,
    options::{SO_RCVBUF, SOL_SOCKET},
};
use std::{
    net::UdpSocket as KernelSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A namespace whose kernel is 10.0.0.1, and our host, 10.0.0.2.
fn tap() -> (Namespace, Host) {
    let namespace = Lab::single().unwrap();
    let host = namespace
        .enter(|| {
            let tap = Tap::builder("tap0").kernel_address("10.0.0.1/24").open()?;
            Host::builder().interface(tap, "10.0.0.2/24").build()
        })
        .unwrap()
        .unwrap();
    (namespace, host)
}

fn ping(namespace: &Namespace, arguments: &[&str]) {
    let output = namespace.command("ping").args(arguments).arg("10.0.0.2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_kernel_pings_us_in_every_size() {
    needs_root!();
    needs!(program "ping");
    let (namespace, host) = tap();
    for size in ["0", "56", "1472", "1473", "20000"] {
        ping(&namespace, &["-c2", "-i0.2", "-W5", "-s", size]);
    }
    let counters = host.counters();
    let of =
        |name: &str| counters.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
    assert_eq!(of("IpReasmOKs"), Some(4), "{counters:?}");
}

#[test]
fn datagrams_of_every_size_pass_in_both_directions() {
    needs_root!();
    let (namespace, host) = tap();
    let ours = UdpSocket::bind(&host, "10.0.0.2:7").unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let kernel = namespace.enter(|| KernelSocket::bind("10.0.0.1:0")).unwrap().unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = vec![0; 65_536];
    for busy_poll in [0, 1_000] {
        ours.set_busy_poll(busy_poll).unwrap();
        for size in [0, 1, 1472, 1473, 9_000, 65_507] {
            let payload: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            kernel.send_to(&payload, "10.0.0.2:7").unwrap();
            let (len, from) = ours.recv_from(&mut buffer).unwrap();
            assert!(buffer[..len] == payload[..], "{size} in");
            ours.send_to(&buffer[..len], from).unwrap();
            let len = kernel.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == payload[..], "{size} out");
        }
    }
}

/// A sleeper that waits for the queue's interrupt itself takes all packets, more than one pass, before it sleeps again.
#[test]
fn a_sleeper_drains_a_burst_for_another_socket() {
    needs_root!();
    let (namespace, host) = tap();
    let sleeper = UdpSocket::bind(&host, "10.0.0.2:7").unwrap();
    let other = UdpSocket::bind(&host, "10.0.0.2:8").unwrap();
    other.setsockopt(SOL_SOCKET, SO_RCVBUF, 4 << 20).unwrap();
    let kernel = namespace.enter(|| KernelSocket::bind("10.0.0.1:0")).unwrap().unwrap();
    kernel.send_to(b"first", "10.0.0.2:7").unwrap();
    sleeper.recv(&mut [0; 8]).unwrap();
    sleeper.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    thread::scope(|scope| {
        let asleep = scope.spawn(|| sleeper.recv(&mut [0; 8]));
        thread::sleep(Duration::from_millis(20));
        for burst in 1..=20 {
            for _ in 0..300 {
                kernel.send_to(b"burst", "10.0.0.2:8").unwrap();
            }
            let deadline = Instant::now() + Duration::from_secs(10);
            while other.waiting().0 < burst * 300 {
                assert!(Instant::now() < deadline, "{:?} of burst {burst}", other.waiting());
                thread::sleep(Duration::from_millis(1));
            }
        }
        kernel.send_to(b"wake up", "10.0.0.2:7").unwrap();
        assert_eq!(asleep.join().unwrap().unwrap(), 7);
    });
}

/// Five seconds without a socket call: the host still answers ARP and ping, and keeps every datagram that fits its
/// buffer.
#[test]
fn a_host_answers_while_its_application_computes_for_five_seconds() {
    needs_root!();
    needs!(program "ping");
    needs!(program "ip");
    let (namespace, host) = tap();
    let ours = UdpSocket::bind(&host, "10.0.0.2:7").unwrap();
    // Room for all datagrams of that time.
    ours.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 30).unwrap();
    ours.set_busy_poll(50).unwrap();
    let kernel = namespace.enter(|| KernelSocket::bind("10.0.0.1:0")).unwrap().unwrap();
    kernel.send_to(b"first", "10.0.0.2:7").unwrap();
    ours.recv(&mut [0; 8]).unwrap();

    let computing = AtomicBool::new(true);
    let sent = thread::scope(|scope| {
        scope.spawn(|| {
            while computing.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let end = Instant::now() + Duration::from_secs(5);
        let mut sent = 0u32;
        while Instant::now() < end {
            for _ in 0..100 {
                kernel.send_to(&sent.to_be_bytes(), "10.0.0.2:7").unwrap();
                sent += 1;
            }
            let flush = namespace.command("ip").args(["neigh", "flush", "all"]).status().unwrap();
            assert!(flush.success());
            ping(&namespace, &["-c1", "-q", "-W5"]);
        }
        computing.store(false, Ordering::Relaxed);
        sent
    });
    ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = [0; 8];
    for expected in 0..sent {
        ours.recv(&mut buffer).expect("a datagram that fits the buffer");
        assert_eq!(buffer[..4], expected.to_be_bytes());
    }
    assert_eq!(ours.stats().drops, 0);
}
