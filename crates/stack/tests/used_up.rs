//! Running out of ports or memory. The errnos are the kernel's: `conformance` of the command makes the same calls on
//! both, on a host with few ports.

mod common;

use busypoll_stack::{Host, TcpListener, TcpStream, UdpSocket, inet::tcp::Config, nic::cable};
use common::hosts;
use std::{
    fmt::Debug,
    io::{self, ErrorKind, Read, Write},
    net::Ipv4Addr,
    ops::RangeInclusive,
};

/// `ip_local_port_range`.
const PORTS: RangeInclusive<u16> = 32_768..=60_999;

fn errno<T: Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
#[ignore = "long: ten seconds in all"]
fn tcp_runs_out_of_ports_with_linuxs_errno() {
    let (one, two) = hosts();
    let there = TcpListener::bind(&two, "10.0.0.2:7").unwrap().local_addr().unwrap();
    let bound = |port| {
        let socket = TcpStream::new(&one);
        socket.bind_to(([10, 0, 0, 1], port).into()).map(|()| socket)
    };
    let mut taken: Vec<TcpStream> = PORTS.map(|port| bound(port).unwrap()).collect();
    assert_eq!(errno(bound(0)), libc::EADDRINUSE);
    assert_eq!(errno(TcpStream::new(&one).listen(1)), libc::EADDRINUSE);
    assert_eq!(errno(TcpStream::connect(&one, there)), libc::EADDRNOTAVAIL);
    let last = taken.pop().unwrap().local_addr().unwrap();
    assert_eq!(bound(0).unwrap().local_addr().unwrap(), last);
}

#[test]
#[ignore = "long: ten seconds in all"]
fn udp_runs_out_of_ports_with_linuxs_errno() {
    let (one, two) = hosts();
    let there = UdpSocket::bind(&two, "10.0.0.2:7").unwrap().local_addr().unwrap();
    let bound = |port: u16| UdpSocket::bind(&one, (Ipv4Addr::new(10, 0, 0, 1), port));
    let mut taken: Vec<UdpSocket> = PORTS.map(|port| bound(port).unwrap()).collect();
    assert_eq!(errno(bound(0)), libc::EADDRINUSE);
    assert_eq!(errno(UdpSocket::new(&one).connect(there)), libc::EAGAIN);
    assert_eq!(errno(UdpSocket::new(&one).send_to(b"x", there)), libc::EAGAIN);
    let last = taken.pop().unwrap().local_addr().unwrap();
    let next = UdpSocket::new(&one);
    next.send_to(b"x", there).unwrap();
    assert_eq!(next.local_addr().unwrap().port(), last.port());
}

/// The byte at each position of each stream.
fn byte(stream: usize, at: usize) -> u8 {
    ((stream * 31 + at) % 251) as u8
}

/// Connections share a memory limit that two of them would reach: a sender without room gets EAGAIN, and no connection
/// and no byte is lost.
#[test]
fn tcp_at_its_memory_limit_loses_no_connection_and_no_byte() {
    const STREAMS: usize = 16;
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let scarce = Config { tcp_mem: 512 << 10, ..Config::default() };
    let host = |nic, address: &str| {
        Host::builder().interface(nic, address).tcp(scarce.clone()).build().unwrap()
    };
    let (one, two) = (host(a, "10.0.0.1/24"), host(b, "10.0.0.2/24"));
    let listener = TcpListener::bind(&two, "10.0.0.2:7").unwrap();
    let pair = || {
        let client = TcpStream::connect(&one, "10.0.0.2:7").unwrap();
        client.set_nonblocking(true).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let pairs: Vec<_> = (0..STREAMS).map(|_| pair()).collect();
    let mut sent = [0; STREAMS];
    // Until no sender finds room any more, even after data in flight has arrived.
    let mut quiet = 0;
    while quiet < 20 {
        quiet += 1;
        for (n, (client, _)) in pairs.iter().enumerate() {
            let piece: Vec<u8> = (sent[n]..sent[n] + 100_000).map(|at| byte(n, at)).collect();
            match (&mut &*client).write(&piece) {
                Ok(len) => (sent[n], quiet) = (sent[n] + len, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // Both hosts' buffers, and the minimum that each connection is always granted.
    let all: usize = sent.iter().sum();
    assert!(all < 4 << 20, "{all} bytes despite the limit");
    assert!(sent.iter().all(|sent| *sent > 0), "{sent:?}");
    // A new connection is served.
    let (mut late, mut served) = pair();
    late.set_nonblocking(false).unwrap();
    late.write_all(b"late").unwrap();
    let mut buffer = [0; 4];
    served.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"late");
    // At the same time, as each waits for retransmissions.
    std::thread::scope(|scope| {
        for (n, (client, server)) in pairs.into_iter().enumerate() {
            drop(client);
            let sent = sent[n];
            scope.spawn(move || {
                let mut got = Vec::new();
                (&mut &server).read_to_end(&mut got).unwrap();
                assert_eq!(got.len(), sent, "stream {n}");
                assert!(got.iter().enumerate().all(|(at, got)| *got == byte(n, at)), "stream {n}");
            });
        }
    });
}
