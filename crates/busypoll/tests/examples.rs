//! Every example compiles and does what it says.

#![allow(dead_code, reason = "their main functions read the command line")]

#[path = "../examples/mio_server.rs"]
mod mio_server;
#[path = "../examples/multicast_receiver.rs"]
mod multicast_receiver;
#[path = "../examples/same_host.rs"]
mod same_host;
#[path = "../examples/tcp_client.rs"]
mod tcp_client;
#[path = "../examples/tokio_server.rs"]
mod tokio_server;
#[path = "../examples/udp_echo.rs"]
mod udp_echo;

use busypoll_lab::Lab;
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    thread,
};

#[test]
fn every_example_is_run_here_and_is_in_the_documentation() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &str| fs::read_to_string(package.join(path)).unwrap();
    let (this, book, rustdoc) =
        (text("tests/examples.rs"), text("../../docs/rust.md"), text("src/lib.rs"));
    let mut count = 0;
    for example in fs::read_dir(package.join("examples")).unwrap() {
        let path = example.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(this.contains(&format!("{name}::")), "{name} is not run");
        assert!(book.contains(name), "{name} is not in docs/rust.md");
        assert!(rustdoc.contains(name), "{name} is not in the crate's documentation");
        count += 1;
    }
    assert!(count >= 5, "{count} examples");
}

#[test]
fn udp_echo() {
    assert!(!udp_echo::in_memory(200).unwrap().is_zero());
}

#[test]
fn tcp_client() {
    assert_eq!(tcp_client::in_memory().unwrap(), "HELLO\n");
}

#[test]
fn tokio_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(tokio_server::in_memory()).unwrap(), "hello");
}

#[test]
fn same_host() {
    let name = format!("example-{}", std::process::id());
    let rendezvous = busypoll::stack::nic::cable::listen(&name).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| same_host::serve_all(&name, 0));
        let medians = same_host::measure(&rendezvous, &name, 0, 1).unwrap();
        assert!(medians.iter().all(|medians| medians.len() == 1));
        other.join().unwrap().unwrap();
    });
}

#[test]
fn mio_server() {
    let listener = mio::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || mio_server::serve(listener, 2));
    let mut streams = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    for (stream, word) in streams.iter_mut().zip(["one", "two"]) {
        stream.write_all(word.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, word);
    }
    server.join().unwrap().unwrap();
}

#[test]
fn multicast_receiver() {
    busypoll_lab::needs_root!();
    const GROUP: &str = "239.1.2.3:4567";
    let lab = Lab::builder().build().unwrap();
    let group: SocketAddr = GROUP.parse().unwrap();
    let socket = lab.server.enter(|| multicast_receiver::join(lab.server.interface(), group));
    let socket = socket.unwrap().unwrap();
    let sender = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0))).unwrap().unwrap();
    socket2::SockRef::from(&sender).set_multicast_if_v4(&lab.client.ipv4()).unwrap();
    let mut received = Vec::new();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            multicast_receiver::receive(&socket, |datagram, from| {
                received.push((datagram.to_vec(), from));
                received.len() < 3
            })
        });
        for count in 0..3u8 {
            sender.send_to(&[count; 100], group).unwrap();
        }
        receiver.join().unwrap().unwrap();
    });
    let from = sender.local_addr().unwrap();
    assert_eq!(received, [0, 1, 2].map(|count| (vec![count; 100], from)));
}
