//! Two hosts on a cable.

use busypoll_stack::{Host, UdpSocket, nic::cable};

/// Hosts 10.0.0.1 and 10.0.0.2.
pub fn hosts() -> (Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).expect("cable");
    let one = Host::builder().interface(a, "10.0.0.1/24").build().expect("host");
    let two = Host::builder().interface(b, "10.0.0.2/24").build().expect("host");
    (one, two)
}

/// Connected sockets, one on each host, whose hosts have found each other: as with any kernel, of a burst
/// to an unknown neighbour only the first datagrams wait for it.
pub fn sockets(one: &Host, two: &Host) -> (UdpSocket, UdpSocket) {
    let left = UdpSocket::bind(one, "10.0.0.1:0").expect("bind");
    let right = UdpSocket::bind(two, "10.0.0.2:0").expect("bind");
    left.connect(right.local_addr().expect("bound")).expect("connect");
    right.connect(left.local_addr().expect("bound")).expect("connect");
    left.send(b"who are you").expect("send");
    right.recv(&mut [0; 16]).expect("receive");
    (left, right)
}
