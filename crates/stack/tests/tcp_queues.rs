//! Listeners that share a port, one per queue of the cable.

use busypoll_stack::{
    Host, TcpListener, TcpStream,
    nic::{Info, Nic, Queue, cable},
};
use std::{
    io::{self, ErrorKind},
    time::Duration,
};

/// A cable of two queues; if `turned`, they are joined crosswise. A client sends its SYN on its first queue.
struct Turned {
    cable: cable::Cable,
    turned: bool,
}

impl Nic for Turned {
    fn info(&self) -> &Info {
        self.cable.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        self.cable.open(index ^ u32::from(self.turned))
    }
}

fn listen(host: &Host) -> TcpListener {
    let socket = TcpStream::new(host);
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_port_by_queue(true).unwrap();
    socket.bind_to("10.0.0.2:80".parse().unwrap()).unwrap();
    socket.listen(16).unwrap()
}

#[test]
fn each_listener_accepts_the_connections_of_its_queue() {
    for turned in [false, true] {
        let config = cable::Config { queues: 2, ..cable::Config::default() };
        let (cable, b) = cable::pair(config).unwrap();
        let one = Host::builder().interface(Turned { cable, turned }, "10.0.0.1/24").build();
        let one = one.unwrap();
        let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
        let listeners = [listen(&two), listen(&two)];
        let (ours, other) = match turned {
            false => (&listeners[0], &listeners[1]),
            true => (&listeners[1], &listeners[0]),
        };
        ours.set_accept_timeout(Some(Duration::from_secs(20))).unwrap();
        other.set_nonblocking(true).unwrap();
        // With a hash, all would go to one listener once in 2^15 runs.
        for _ in 0..16 {
            let _client = TcpStream::connect(&one, "10.0.0.2:80").unwrap();
            ours.accept().unwrap();
            assert_eq!(other.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
}
