//! Links between processes of one machine: connections between its own addresses, over whichever link they name.

use busypoll_stack::{Events, Host, Link, TcpListener, TcpStream, nic::cable};
use std::{
    env,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    process::{self, Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

const NAME: &str = "BUSYPOLL_TEST_LINK_NAME";

/// The addresses at which the other process listens.
const SERVED: [&str; 4] = ["127.0.0.1:7", "[::1]:7", "0.0.0.0:8", "[::]:9"];

fn name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("test-link-{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

/// Another process, which is killed in the end.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the other process does; nothing, if this is not that process.
#[test]
fn peer() {
    let Ok(name) = env::var(NAME) else { return };
    let host = Host::builder().build().unwrap();
    let serve = |address: &str| {
        let listener = TcpListener::bind(&host, address).unwrap();
        thread::spawn(move || {
            loop {
                let (stream, _) = listener.accept().unwrap();
                thread::spawn(move || echo(&stream));
            }
        })
    };
    let serving: Vec<_> = SERVED.into_iter().map(serve).collect();
    host.add_link(cable::connect(&name).unwrap()).unwrap();
    serving.into_iter().for_each(|thread| thread.join().unwrap());
}

fn echo(mut stream: &TcpStream) {
    let mut buffer = [0; 5000];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

/// A link to a new process.
fn join(host: &Host) -> (Link, Peer) {
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "peer", "--nocapture"]).env(NAME, &name);
    let peer = Peer(command.stdout(process::Stdio::null()).spawn().unwrap());
    (host.add_link(rendezvous.accept(cable::Config::default()).unwrap()).unwrap(), peer)
}

fn connect(host: &Host, link: Link, to: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::new(host);
    stream.set_link(link);
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.connect_to(to.parse().unwrap())?;
    Ok(stream)
}

fn is_echoed(stream: &TcpStream, len: usize) {
    let sent: Vec<u8> = (0..len).map(|at| ((at * 7) >> 3) as u8).collect();
    let mut came = vec![0; len];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(&sent)
        });
        let mut stream = stream;
        stream.read_exact(&mut came).unwrap();
    });
    assert!(sent == came);
}

#[test]
fn connections_between_the_machine_s_own_addresses_take_the_link() {
    let host = Host::builder().build().unwrap();
    let (link, _peer) = join(&host);
    let own: SocketAddr = "192.0.2.1:8".parse().unwrap();
    for (to, from) in [
        ("127.0.0.1:7", "127.0.0.1"),
        ("127.0.0.1:8", "127.0.0.1"),
        ("127.0.0.1:9", "127.0.0.1"),
        ("[::1]:7", "::1"),
        ("[::1]:9", "::1"),
        ("192.0.2.1:8", "192.0.2.1"),
        ("[2001:db8::1]:9", "2001:db8::1"),
    ] {
        let stream = connect(&host, link, to).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), from.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(stream.peer_addr().unwrap(), to.parse().unwrap());
        is_echoed(&stream, 300_000);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
    }
    // Without the link there is no way.
    assert!(TcpStream::connect(&host, own).is_err());
    let refused = connect(&host, link, "127.0.0.1:10").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Options that make the path anew leave the link.
#[test]
fn a_connection_stays_on_its_link() {
    let host = Host::builder().build().unwrap();
    let (link, _peer) = join(&host);
    let stream = connect(&host, link, "127.0.0.1:7").unwrap();
    stream.setsockopt(libc::IPPROTO_IP, libc::IP_TOS, 16).unwrap();
    is_echoed(&stream, 10_000);
    let (other, _other_peer) = join(&host);
    is_echoed(&stream, 10_000);
    // The same ends but for our port.
    let second = connect(&host, other, "127.0.0.1:7").unwrap();
    is_echoed(&second, 10_000);
    is_echoed(&stream, 10_000);
}

#[test]
fn the_end_of_a_process_ends_its_link_alone() {
    let host = Host::builder().build().unwrap();
    let (link, mut peer) = join(&host);
    let (other, _other_peer) = join(&host);
    let (stream, kept) = (connect(&host, link, "[::1]:7"), connect(&host, other, "[::1]:7"));
    let (stream, kept) = (stream.unwrap(), kept.unwrap());
    is_echoed(&stream, 10);
    peer.0.kill().unwrap();
    let reset = (&stream).read(&mut [0]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    is_echoed(&kept, 10_000);
    let gone = connect(&host, link, "127.0.0.1:7").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NetworkUnreachable);
}

/// As in Linux after a reset: the end has come before it, so it is no error before something is sent.
#[test]
fn a_connection_that_the_process_has_closed_before_its_end_has_no_error() {
    let host = Host::builder().build().unwrap();
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    let other = thread::spawn(move || {
        let host = Host::builder().build().unwrap();
        let listener = TcpListener::bind(&host, "127.0.0.1:7").unwrap();
        host.add_link(cable::connect(&name).unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // Until that is acknowledged.
        while stream.unacknowledged() > 0 {
            thread::yield_now();
        }
    });
    let link = host.add_link(rendezvous.accept(cable::Config::default()).unwrap()).unwrap();
    let mut stream = connect(&host, link, "127.0.0.1:7").unwrap();
    other.join().unwrap();
    while connect(&host, link, "127.0.0.1:7").unwrap_err().kind() != ErrorKind::NetworkUnreachable {
        thread::yield_now();
    }
    let ready = stream.readiness();
    assert!(ready.has(Events::READABLE) && !ready.has(Events::ERROR), "{ready:?}");
    let mut came = String::new();
    stream.read_to_string(&mut came).unwrap();
    assert_eq!(came, "bye");
    assert!(!stream.readiness().has(Events::ERROR));
    stream.write_all(b"x").unwrap();
    assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

/// A link that has ended leaves nothing behind: neither a NAPI context nor a descriptor.
#[test]
fn links_come_and_go() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let host = Host::builder().build().unwrap();
    let round = || {
        let name = name();
        let rendezvous = cable::listen(&name).unwrap();
        let other = thread::spawn(move || {
            let host = Host::builder().build().unwrap();
            let listener = TcpListener::bind(&host, "127.0.0.1:7").unwrap();
            host.add_link(cable::connect(&name).unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            echo(&stream);
        });
        let link = host.add_link(rendezvous.accept(cable::Config::default()).unwrap()).unwrap();
        let stream = connect(&host, link, "127.0.0.1:7").unwrap();
        is_echoed(&stream, 1000);
        drop(stream);
        other.join().unwrap();
    };
    round();
    let (before, until) = (descriptors(), Instant::now() + Duration::from_secs(60));
    (0..50).for_each(|_| round());
    while descriptors() > before + 10 && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(descriptors() <= before + 10, "{before} {}", descriptors());
}
