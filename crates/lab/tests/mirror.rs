//! The mirror: a host that sends to it talks to itself, over the link.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, Mirror, needs_root};
use busypoll_linux::stat;

fn addresses(lab: &Lab, mirror: &Mirror) -> Vec<(IpAddr, IpAddr)> {
    let v4 = (lab.client.ipv4().into(), mirror.ipv4().into());
    let v6 = lab.client.ipv6().zip(mirror.ipv6()).map(|(own, there)| (own.into(), there.into()));
    [Some(v4), v6].into_iter().flatten().collect()
}

fn came(host: &LabHost) -> u64 {
    host.enter(|| stat::received_packets().unwrap()[host.interface()]).unwrap()
}

#[test]
fn tcp_between_two_sockets_of_a_host_crosses_the_link() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let mirror = lab.mirror().unwrap();
    for (own, there) in addresses(&lab, &mirror) {
        let before = (came(&lab.client), came(&lab.server));
        let exchange = || {
            let listener = TcpListener::bind((own, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let limit = Duration::from_secs(10);
            let mut client = TcpStream::connect_timeout(&(there, port).into(), limit).unwrap();
            let (mut server, from) = listener.accept().unwrap();
            server.set_read_timeout(Some(limit)).unwrap();
            let sending = thread::spawn(move || {
                client.write_all(&vec![7; 1 << 20]).unwrap();
                client
            });
            assert_eq!(from.ip(), there);
            let mut read = vec![0; 1 << 20];
            server.read_exact(&mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 7));
            let client = sending.join().unwrap();
            assert_eq!(client.local_addr().unwrap(), (own, from.port()).into());
        };
        lab.client.enter(exchange).unwrap();
        let after = (came(&lab.client), came(&lab.server));
        assert!(after.0 - before.0 > 700 && after.1 - before.1 > 700, "{before:?} {after:?}");
    }
}

#[test]
fn a_port_without_a_socket_is_refused() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let mirror = lab.mirror().unwrap();
    for (own, there) in addresses(&lab, &mirror) {
        let refused = || {
            let port = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap().port();
            let tcp = TcpStream::connect((there, port)).unwrap_err().kind();
            let socket = UdpSocket::bind((own, 0)).unwrap();
            socket.connect((there, port)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.send(b"hello").unwrap();
            (tcp, socket.recv(&mut [0; 9]).unwrap_err().kind())
        };
        let refused = lab.client.enter(refused).unwrap();
        assert_eq!(refused, (ErrorKind::ConnectionRefused, ErrorKind::ConnectionRefused));
    }
}

#[test]
fn the_server_still_answers_on_its_own_address() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let _mirror = lab.mirror().unwrap();
    let address = (lab.server.ipv4(), 0);
    let server = lab.server.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let client = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0))).unwrap().unwrap();
    client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
    assert_eq!(server.recv_from(&mut [0; 9]).unwrap(), (5, client.local_addr().unwrap()));
}
