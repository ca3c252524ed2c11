//! Two hosts on a cable, and the CPUs of the test.
#![allow(dead_code)] // each test file uses its own part

use busypoll_stack::{Host, TcpListener, TcpStream, UdpSocket, nic::cable};

pub mod filter;
pub mod race;

/// Hosts 10.0.0.1 and 10.0.0.2.
pub fn hosts() -> (Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).expect("cable");
    let one = Host::builder().interface(a, "10.0.0.1/24").build().expect("host");
    let two = Host::builder().interface(b, "10.0.0.2/24").build().expect("host");
    (one, two)
}

/// Connected sockets, one on each host, after neighbour resolution: as in any kernel, only the first datagrams of a
/// burst to an unknown neighbour wait for it.
pub fn sockets(one: &Host, two: &Host) -> (UdpSocket, UdpSocket) {
    let left = UdpSocket::bind(one, "10.0.0.1:0").expect("bind");
    let right = UdpSocket::bind(two, "10.0.0.2:0").expect("bind");
    left.connect(right.local_addr().expect("bound")).expect("connect");
    right.connect(left.local_addr().expect("bound")).expect("connect");
    left.send(b"who are you").expect("send");
    right.recv(&mut [0; 16]).expect("receive");
    (left, right)
}

/// Both ends of a TCP connection, without Nagle's algorithm.
pub fn streams(one: &Host, two: &Host) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(two, "10.0.0.2:0").expect("bind");
    let left = TcpStream::connect(one, listener.local_addr().expect("bound")).expect("connect");
    let right = listener.accept().expect("accept").0;
    left.set_nodelay(true).expect("nodelay");
    right.set_nodelay(true).expect("nodelay");
    (left, right)
}

/// The CPUs this process may use.
pub fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is the empty set; the call fills it for the process's first thread, which no
    // test pins.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let result =
            libc::sched_getaffinity(std::process::id() as i32, size_of_val(&set), &raw mut set);
        assert_eq!(result, 0, "sched_getaffinity");
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Pins the calling thread, and those it starts, to one CPU.
pub fn pin(cpu: usize) {
    // SAFETY: an empty set with one CPU added, for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0, "CPU {cpu}");
    }
}
