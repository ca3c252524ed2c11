//! A million requests and responses over a thousand concurrent connections on a link that loses one packet in twenty,
//! every other one over IPv6. Every byte is checked.

use busypoll_stack::{
    Epoll, EpollEvent, Events, Host, TcpListener, TcpStream,
    nic::{
        cable,
        fault::{Config, Fault, Faults},
    },
};
use std::{
    io::{ErrorKind, Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const CONNECTIONS: usize = 1_000;
const REQUEST: usize = 16;

/// Request `n` of connection `of`.
fn request(of: usize, n: usize) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..8].copy_from_slice(&(of as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&(n as u64).to_le_bytes());
    bytes
}

/// The response: every byte inverted.
fn response(request: &[u8]) -> Vec<u8> {
    request.iter().map(|byte| !byte).collect()
}

fn hosts() -> (Host, Host) {
    let (ours, theirs) = cable::pair(cable::Config::default()).unwrap();
    let lossy = Faults { loss: 0.05, ..Faults::default() };
    let config = Config { seed: 5, receive: lossy, transmit: lossy, ..Config::default() };
    let bad = Fault::new(Box::new(theirs), config).unwrap();
    let server = Host::builder().interface(bad, "10.0.0.2/24, fd00::2/64").build().unwrap();
    (Host::builder().interface(ours, "10.0.0.1/24, fd00::1/64").build().unwrap(), server)
}

/// Accepts connections and answers complete requests until `stop`.
fn serve(host: &Host, listener: &TcpListener, stop: &AtomicBool) {
    let epoll = Epoll::new(host);
    let mut peers: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    listener.set_nonblocking(true).unwrap();
    let listening = u64::MAX;
    epoll.add(listener, Events::READABLE, listening).unwrap();
    let mut events: Vec<EpollEvent> = Vec::new();
    let mut chunk = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        let patience = Some(std::time::Duration::from_millis(100));
        epoll.wait(&mut events, 256, patience).unwrap();
        for event in &events {
            if event.data == listening {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    epoll.add(&stream, Events::READABLE, peers.len() as u64).unwrap();
                    peers.push((stream, Vec::new()));
                }
                continue;
            }
            let (stream, pending) = &mut peers[event.data as usize];
            let mut stream = &*stream;
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                pending.extend_from_slice(&chunk[..n]);
            }
            let whole = pending.len() - pending.len() % REQUEST;
            let answers = response(&pending[..whole]);
            pending.drain(..whole);
            // The buffer has room for at least one answer per connection.
            stream.write_all(&answers).unwrap();
        }
    }
}

/// Ends `serve`, also where an assertion fails: the scope waits for its threads.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection over each family, which resolves the neighbour: one lookup in a thousand loses all its three requests or
/// replies, and then every connection that waits for it fails with EHOSTUNREACH.
fn resolve_neighbours(client: &Host) -> [TcpStream; 2] {
    ["10.0.0.2:7", "[fd00::2]:7"].map(|to| {
        loop {
            match TcpStream::connect(client, to) {
                Ok(stream) => return stream,
                Err(error) => assert_eq!(error.kind(), ErrorKind::HostUnreachable),
            }
        }
    })
}

#[test]
#[ignore = "long: half a minute"]
fn a_thousand_connections_on_a_bad_link_and_not_one_byte_wrong() {
    let each = 1_000_000 / CONNECTIONS;
    let (client, server) = hosts();
    let listener = TcpListener::bind(&server, "[::]:7").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve(&server, &listener, &stop));
        let _stop = StopOnDrop(&stop);
        let _resolved = resolve_neighbours(&client);
        let epoll = Epoll::new(&client);
        let mut streams = Vec::new();
        for of in 0..CONNECTIONS {
            // All at once: one SYN in ten is lost, and is sent again after a second.
            let stream = TcpStream::new(&client);
            stream.set_nonblocking(true).unwrap();
            let to = ["10.0.0.2:7", "[fd00::2]:7"][of % 2];
            let begun = stream.connect_to(to.parse().unwrap());
            assert_eq!(begun.unwrap_err().raw_os_error(), Some(libc::EINPROGRESS));
            epoll.add(&stream, Events::WRITABLE, of as u64).unwrap();
            streams.push((stream, 0, Vec::new()));
        }
        let mut events: Vec<EpollEvent> = Vec::new();
        let mut finished = 0;
        while finished < CONNECTIONS {
            epoll.wait(&mut events, 256, None).unwrap();
            for event in &events {
                let of = event.data as usize;
                let (socket, done, got) = &mut streams[of];
                let mut stream = &*socket;
                if event.events.has(Events::WRITABLE) {
                    stream.write_all(&request(of, 0)).unwrap();
                    epoll.modify(socket, Events::READABLE).unwrap();
                    continue;
                }
                let mut chunk = [0; 64];
                match stream.read(&mut chunk) {
                    Ok(n) => got.extend_from_slice(&chunk[..n]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                if got.len() < REQUEST {
                    continue;
                }
                assert_eq!(*got, response(&request(of, *done)), "connection {of}, answer {done}");
                got.clear();
                *done += 1;
                if *done < each {
                    stream.write_all(&request(of, *done)).unwrap();
                } else {
                    finished += 1;
                }
            }
        }
    });
}
