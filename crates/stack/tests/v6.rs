//! IPv6 sockets and dual-stack sockets over the cable.

use busypoll_stack::{Host, TcpListener, TcpStream, UdpSocket, nic::cable, options::*};
use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

/// Hosts fd00::1 and fd00::2, with IPv4 addresses as well.
fn hosts() -> (Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let one = Host::builder().interface(a, "10.0.0.1/24, fd00::1/64").build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24, fd00::2/64").build().unwrap();
    (one, two)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = [0; 64];
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    (String::from_utf8_lossy(&buffer[..len]).into_owned(), from)
}

fn exchange(client: &TcpStream, server: &TcpStream) {
    let (mut client, mut server) = (client, server);
    for len in [1, 1428, 100_000] {
        client.write_all(&vec![len as u8; len]).unwrap();
        let mut got = vec![0; len];
        server.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == len as u8));
        server.write_all(b"answer").unwrap();
        client.read_exact(&mut [0; 6]).unwrap();
    }
}

#[test]
fn datagrams_and_answers_pass() {
    let (one, two) = hosts();
    let server = UdpSocket::bind(&two, "[fd00::2]:7").unwrap();
    let client = UdpSocket::new(&one);
    client.send_to(b"question", "[fd00::2]:7").unwrap();
    assert_eq!(client.getsockopt(SOL_SOCKET, SO_DOMAIN).unwrap(), libc::AF_INET6);
    let (text, from) = receive(&server);
    assert_eq!((&text[..], from.ip()), ("question", address("[fd00::1]:0").ip()));
    server.send_to(b"answer", from).unwrap();
    assert_eq!(receive(&client), ("answer".into(), address("[fd00::2]:7")));
    client.connect("[fd00::2]:9").unwrap();
    client.send(b"closed").unwrap();
    assert_eq!(client.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_dual_stack_socket_receives_both_families() {
    let (one, two) = hosts();
    let both = UdpSocket::bind(&two, "[::]:7").unwrap();
    let (old, new) = (UdpSocket::new(&one), UdpSocket::new(&one));
    old.send_to(b"from 4", "10.0.0.2:7").unwrap();
    let (text, from) = receive(&both);
    assert_eq!(text, "from 4");
    assert_eq!(from, address(&format!("[::ffff:10.0.0.1]:{}", old.local_addr().unwrap().port())));
    both.send_to(b"to 4", from).unwrap();
    assert_eq!(receive(&old), ("to 4".into(), address("10.0.0.2:7")));
    new.send_to(b"from 6", "[fd00::2]:7").unwrap();
    assert_eq!(receive(&both).0, "from 6");
    assert!(UdpSocket::bind(&two, "0.0.0.0:7").is_err(), "it has the IPv4 port, too");
    let one_family = UdpSocket::new(&two);
    one_family.set_only_v6(true).unwrap();
    one_family.bind_to(address("[::]:8")).unwrap();
    UdpSocket::bind(&two, "0.0.0.0:8").unwrap();
}

#[test]
fn connections_work_in_both_families() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "[::]:7").unwrap();
    for (to, seen) in [("[fd00::2]:7", "[fd00::1]:0"), ("10.0.0.2:7", "10.0.0.1:0")] {
        let client = TcpStream::connect(&one, to).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(from.port(), client.local_addr().unwrap().port());
        assert_eq!(from.ip().to_canonical(), address(seen).ip());
        assert_eq!(server.local_addr().unwrap().port(), 7);
        exchange(&client, &server);
    }
    let six = TcpStream::connect(&one, "[fd00::2]:7").unwrap();
    assert_eq!(six.getsockopt(SOL_SOCKET, SO_DOMAIN).unwrap(), libc::AF_INET6);
    assert_eq!(six.max_segment().unwrap(), 1428, "1500 less 40, 20 and 12 of timestamps");
    let refused = TcpStream::connect(&one, "[fd00::2]:9").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_ipv6_only_listener_leaves_ipv4_to_others() {
    let (one, two) = hosts();
    let socket = TcpStream::new(&two);
    socket.set_only_v6(true).unwrap();
    socket.bind_to(address("[::]:7")).unwrap();
    let _six = socket.listen(4).unwrap();
    let refused = TcpStream::connect(&one, "10.0.0.2:7").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let four = TcpListener::bind(&two, "0.0.0.0:7").unwrap();
    let _client = TcpStream::connect(&one, "10.0.0.2:7").unwrap();
    four.accept().unwrap();
    assert!(TcpListener::bind(&two, "[::]:7").is_err());
}

/// Two neighbours on two links with the same link-local address.
#[test]
fn a_link_local_peer_is_found_by_its_scope() {
    let (a, left) = cable::pair(cable::Config::default()).unwrap();
    let (b, right) = cable::pair(cable::Config::default()).unwrap();
    let host = Host::builder().interface(a, "fe80::a/64").interface(b, "fe80::b/64");
    let host = host.build().unwrap();
    let [left, right] =
        [left, right].map(|link| Host::builder().interface(link, "fe80::1/64").build().unwrap());
    for (scope, neighbour, own) in [(2, &right, "fe80::b"), (1, &left, "fe80::a")] {
        let listener = TcpListener::bind(neighbour, "[fe80::1]:7").unwrap();
        let to = address(&format!("[fe80::1%{scope}]:7"));
        let client = TcpStream::connect(&host, to).unwrap();
        assert_eq!(client.peer_addr().unwrap(), to);
        let local = client.local_addr().unwrap();
        assert_eq!(local, address(&format!("[{own}%{scope}]:{}", local.port())));
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer, address(&format!("[{own}%1]:{}", local.port())), "its only link");
        exchange(&client, &server);
        // Binding to the address of a link selects the link as well.
        let bound = TcpStream::new(&host);
        bound.bind_to(address(&format!("[{own}]:0"))).unwrap();
        bound.connect_to(address("[fe80::1]:7")).unwrap();
        exchange(&bound, &listener.accept().unwrap().0);
    }
    let nowhere = TcpStream::connect(&host, address("[fe80::1%9]:7")).unwrap_err();
    assert_eq!(nowhere.raw_os_error(), Some(libc::ENETUNREACH));
}
