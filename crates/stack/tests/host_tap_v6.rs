//! IPv6 over a TAP, against the kernel at the other end.

use busypoll_lab::{Lab, Namespace, needs, needs_root};
use busypoll_stack::{
    Host, TcpListener, TcpStream, UdpSocket,
    nic::{Nic, tap::Tap},
    wire::MacAddr,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{
        Ipv6Addr, TcpListener as KernelListener, TcpStream as KernelStream,
        UdpSocket as KernelSocket,
    },
    thread,
    time::{Duration, Instant},
};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

struct Ends {
    kernel: Namespace,
    host: Host,
    mac: MacAddr,
}

/// A namespace whose kernel is fd00::1 and `more`, and our host, fd00::2.
fn tap(more: &str) -> Ends {
    let kernel = Lab::single().unwrap();
    let nic = kernel.enter(|| Tap::builder("tap0").kernel_address("10.0.0.1/24").open());
    let nic = nic.unwrap().unwrap();
    for address in ["fd00::1/64", more].iter().filter(|address| !address.is_empty()) {
        let arguments = ["-6", "addr", "add", address, "dev", "tap0", "nodad"];
        let output = kernel.command("ip").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mac = nic.info().mac;
    let build = || Host::builder().interface(nic, "10.0.0.2/24, fd00::2/64").build();
    let host = kernel.enter(build).unwrap().unwrap();
    Ends { kernel, host, mac }
}

fn count(host: &Host, name: &str) -> u64 {
    let counters = host.counters();
    counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "waited for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn ping(kernel: &Namespace, arguments: &[&str]) {
    let output = kernel.command("ping").arg("-6").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// RFC 2464 section 4.
fn link_local(MacAddr([a, b, c, d, e, f]): MacAddr) -> Ipv6Addr {
    let tail = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&tail);
    octets.into()
}

#[test]
fn the_kernel_pings_us_in_every_size() {
    needs_root!();
    needs!(program "ping");
    needs!(program "ip");
    let Ends { kernel, host, mac } = tap("");
    for size in ["0", "56", "1452", "1453", "20000"] {
        ping(&kernel, &["-c2", "-i0.2", "-W5", "-s", size, "fd00::2"]);
    }
    assert_eq!(count(&host, "Ip6ReasmOKs"), 4);
    ping(&kernel, &["-c1", "-W5", &format!("{}%tap0", link_local(mac))]);
    // A ping to a group is answered, too; the kernel's own answer is not counted here.
    ping(&kernel, &["-c1", "-W5", "-I", "tap0", "ff02::1"]);
    wait_for("an answer to the group", || count(&host, "Icmp6OutEchoReplies") == 12);
    assert_eq!(count(&host, "Icmp6InErrors"), 0);
}

#[test]
fn datagrams_of_every_size_pass_in_both_directions() {
    needs_root!();
    needs!(program "ip");
    let Ends { kernel, host, .. } = tap("");
    let ours = UdpSocket::bind(&host, "[fd00::2]:7").unwrap();
    ours.set_read_timeout(TIMEOUT).unwrap();
    let theirs = kernel.enter(|| KernelSocket::bind("[fd00::1]:0")).unwrap().unwrap();
    theirs.set_read_timeout(TIMEOUT).unwrap();
    let mut buffer = vec![0; 65_536];
    for busy_poll in [0, 1_000] {
        ours.set_busy_poll(busy_poll).unwrap();
        for size in [0, 1, 1452, 1453, 9_000, 65_507] {
            let payload: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            theirs.send_to(&payload, "[fd00::2]:7").unwrap();
            let (len, from) = ours.recv_from(&mut buffer).unwrap();
            assert!(buffer[..len] == payload[..], "{size} in");
            assert_eq!(from, theirs.local_addr().unwrap());
            ours.send_to(&buffer[..len], from).unwrap();
            let len = theirs.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == payload[..], "{size} out");
        }
    }
}

#[test]
fn one_socket_serves_both_families() {
    needs_root!();
    needs!(program "ip");
    let Ends { kernel, host, .. } = tap("");
    let ours = UdpSocket::bind(&host, "[::]:7").unwrap();
    ours.set_read_timeout(TIMEOUT).unwrap();
    let mut buffer = [0; 16];
    for (theirs, to, shown) in [
        ("10.0.0.1:4000", "10.0.0.2:7", "[::ffff:10.0.0.1]:4000"),
        ("[fd00::1]:4000", "[fd00::2]:7", "[fd00::1]:4000"),
    ] {
        let theirs = kernel.enter(|| KernelSocket::bind(theirs)).unwrap().unwrap();
        theirs.set_read_timeout(TIMEOUT).unwrap();
        theirs.send_to(b"hello", to).unwrap();
        let (len, from) = ours.recv_from(&mut buffer).unwrap();
        assert_eq!((len, from), (5, shown.parse().unwrap()));
        ours.send_to(b"answer", from).unwrap();
        let (len, from) = theirs.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"answer"[..], to.parse().unwrap()));
    }
}

#[test]
fn port_unreachable_is_reported_in_both_directions() {
    needs_root!();
    needs!(program "ip");
    let Ends { kernel, host, .. } = tap("");
    let ours = UdpSocket::bind(&host, "[fd00::2]:0").unwrap();
    ours.set_read_timeout(TIMEOUT).unwrap();
    ours.connect("[fd00::1]:9").unwrap();
    ours.send(b"anyone?").unwrap();
    assert_eq!(ours.recv(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let theirs = kernel.enter(|| KernelSocket::bind("[fd00::1]:0")).unwrap().unwrap();
    theirs.set_read_timeout(TIMEOUT).unwrap();
    theirs.connect("[fd00::2]:9").unwrap();
    theirs.send(b"anyone?").unwrap();
    assert_eq!(theirs.recv(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// Data from one end is echoed by the other, in both roles.
#[test]
fn connections_work_in_both_roles() {
    needs_root!();
    needs!(program "ip");
    let Ends { kernel, host, .. } = tap("");
    let message: Vec<u8> = (0..300_000u32).map(|i| (i % 253) as u8).collect();
    let echo = |stream: &mut dyn Read, back: &mut dyn Write| {
        let mut got = vec![0; message.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == message);
        back.write_all(&got[..1000]).unwrap();
    };
    let listener = TcpListener::bind(&host, "[::]:80").unwrap();
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let connect = || KernelStream::connect("[fd00::2]:80");
            let mut stream = kernel.enter(connect).unwrap().unwrap();
            stream.write_all(&message).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
        });
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), "fd00::1".parse::<Ipv6Addr>().unwrap());
        echo(&mut &stream, &mut &stream);
        theirs.join().unwrap();
    });
    let listener = kernel.enter(|| KernelListener::bind("[fd00::1]:80")).unwrap().unwrap();
    thread::scope(|scope| {
        let ours = scope.spawn(|| {
            let stream = TcpStream::connect(&host, "[fd00::1]:80").unwrap();
            (&stream).write_all(&message).unwrap();
            (&stream).read_exact(&mut [0; 1000]).unwrap();
        });
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), "fd00::2".parse::<Ipv6Addr>().unwrap());
        echo(&mut &stream, &mut &stream);
        ours.join().unwrap();
    });
}

#[test]
fn an_address_that_the_kernel_has_fails_duplicate_detection() {
    needs_root!();
    needs!(program "ip");
    let Ends { host, .. } = tap("fd00::2/64");
    wait_for("the kernel's answer", || count(&host, "Ip6AddrDuplicates") == 1);
}
