//! The same scripts on the kernel's TCP sockets over loopback and on ours over the cable: every result, every errno and
//! every event of poll(2) must be the same. Linux is the oracle; no expected values stand here.

mod common;
mod like_linux;

use busypoll_stack::options::*;
use like_linux::{Log, Tcp, World, script};
use std::{net::Shutdown, time::Duration};

/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// A listener on host 1.
fn listener<W: World>(world: &W) -> W::Socket {
    let listener = world.socket(1);
    listener.bind(world.at(1, 0)).unwrap();
    listener.listen(16).unwrap();
    listener
}

/// Both ends of a connection.
fn pair<W: World>(world: &W) -> (W::Socket, W::Socket) {
    let listener = listener(world);
    let client = world.socket(0);
    client.connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap())
}

/// An address of host 1 without a listener.
fn closed_port<W: World>(world: &W) -> std::net::SocketAddr {
    listener(world).local_addr().unwrap()
}

script!(an_unconnected_socket_matches_linux, idle);
fn idle<W: World>(world: &W, log: &mut Log) {
    let socket = world.socket(0);
    log.events("poll", &socket, 0);
    log.recv("recv", &socket);
    log.note("send", socket.send(b"x"));
    log.note("peer", socket.peer_addr());
    log.note("local", socket.local_addr());
    log.note("shutdown", socket.shutdown(Shutdown::Both));
    log.note("error", socket.take_error());
    log.note("bind", socket.bind(world.at(0, 0)));
    log.note("bind again", socket.bind(world.at(0, 0)));
    log.note("port", socket.local_addr().map(|address| address.port() != 0));
    log.events("poll", &socket, 0);
    log.note("foreign", world.socket(0).bind("192.0.2.1:0".parse().unwrap()));
}

script!(blocking_connect_matches_linux, blocking);
fn blocking<W: World>(world: &W, log: &mut Log) {
    let closed_port = closed_port(world);
    let refused = world.socket(0);
    log.note("no listener", refused.connect(closed_port));
    log.note("returned once", refused.take_error());
    log.events("poll", &refused, 0);
    log.note("peer", refused.peer_addr());
    log.recv("recv", &refused);
    log.note("send", refused.send(b"x"));
    let (client, server) = pair(world);
    log.note("again", client.connect(closed_port));
    log.note("accepted", server.connect(closed_port));
    log.note("peer", client.peer_addr().map(|peer| peer == server.local_addr().unwrap()));
    log.note("local", client.local_addr().map(|local| local == server.peer_addr().unwrap()));
    log.events("client", &client, POLLOUT);
    log.events("server", &server, POLLOUT);
    log.note("broadcast", world.socket(0).connect("255.255.255.255:9".parse().unwrap()));
    log.note("multicast", world.socket(0).connect("224.0.0.1:9".parse().unwrap()));
    log.note("port 0", world.socket(0).connect(world.at(1, 0)));
}

script!(nonblocking_connect_matches_linux, nonblocking);
fn nonblocking<W: World>(world: &W, log: &mut Log) {
    let listener = listener(world);
    let to = listener.local_addr().unwrap();
    let client = world.socket(0);
    client.set_nonblocking(true).unwrap();
    log.note("connect", client.connect(to));
    log.events("made", &client, POLLOUT);
    log.note("error", client.take_error());
    log.note("first call", client.connect(to));
    log.note("second call", client.connect(to));
    let refused = world.socket(0);
    refused.set_nonblocking(true).unwrap();
    log.note("no listener", refused.connect(closed_port(world)));
    log.events("refused", &refused, POLLERR);
    log.note("error", refused.take_error());
    log.events("after the error", &refused, POLLHUP);
    log.note("error", refused.take_error());
    log.recv("recv", &refused);
    log.note("send", refused.send(b"x"));
    let refused = world.socket(0);
    refused.set_nonblocking(true).unwrap();
    log.note("no listener", refused.connect(closed_port(world)));
    log.events("refused", &refused, POLLERR);
    log.recv("a receive returns the error", &refused);
    log.recv("once", &refused);
    let refused = world.socket(0);
    refused.set_nonblocking(true).unwrap();
    log.note("no listener", refused.connect(closed_port(world)));
    log.events("refused", &refused, POLLERR);
    log.note("a send returns the error", refused.send(b"x"));
    log.note("once", refused.send(b"x"));
}

/// A socket of host 0 that is bound to a fixed port.
fn named<W: World>(world: &W) -> (W::Socket, std::net::SocketAddr) {
    let free = world.socket(0);
    free.bind(world.at(0, 0)).unwrap();
    let local = free.local_addr().unwrap();
    drop(free);
    let socket = world.socket(0);
    socket.bind(local).unwrap();
    (socket, local)
}

script!(connect_after_a_failure_matches_linux, again);
fn again<W: World>(world: &W, log: &mut Log) {
    let there = listener(world);
    let to = there.local_addr().unwrap();
    let socket = world.socket(0);
    for _ in 0..3 {
        log.note("no listener", socket.connect(closed_port(world)));
        log.events("refused", &socket, POLLHUP);
    }
    log.note("to a listener", socket.connect(to));
    log.note("peer", socket.peer_addr().map(|peer| peer == to));
    log.events("made", &socket, POLLOUT);
    log.note("send", socket.send(b"at last"));
    let accepted = there.accept().unwrap();
    log.recv("at last", &accepted);
    log.note("answer", accepted.send(b"hello"));
    log.recv("answer", &socket);
    log.note("once more", socket.connect(to));

    let socket = world.socket(0);
    socket.set_nonblocking(true).unwrap();
    for _ in 0..2 {
        log.note("no listener", socket.connect(closed_port(world)));
        log.events("refused", &socket, POLLERR);
        log.note("after the error", socket.connect(to));
        log.events("after the error", &socket, POLLHUP);
    }
    log.note("no listener", socket.connect(closed_port(world)));
    log.events("refused", &socket, POLLERR);
    log.note("error", socket.take_error());
    log.note("after the error was returned", socket.connect(to));
    log.note("to a listener", socket.connect(to));
    log.events("made", &socket, POLLOUT);
    log.note("first call", socket.connect(to));
    log.note("second call", socket.connect(to));

    let (socket, local) = named(world);
    log.note("no listener", socket.connect(closed_port(world)));
    log.note("keeps its port", socket.local_addr().map(|now| now == local));
    log.note("which is taken", world.socket(0).bind(local));
    log.note("bound again", socket.bind(local));
    log.note("to a listener", socket.connect(to));
    log.note("from its port", socket.local_addr().map(|now| now == local));

    let (socket, local) = named(world);
    log.note("no listener", socket.connect(closed_port(world)));
    log.note("listens", socket.listen(1));
    log.note("to it", world.socket(1).connect(local));
}

script!(data_transfer_matches_linux, data);
fn data<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    log.note("send", client.send(b"hello"));
    log.events("there", &server, POLLIN);
    let mut few = [0; 2];
    log.note("peek", server.peek(&mut few));
    log.note("no room", server.recv(&mut []));
    log.note("few", server.recv(&mut few));
    log.events("left over", &server, POLLIN);
    log.recv("rest", &server);
    log.events("nothing", &server, POLLOUT);
    server.set_nonblocking(true).unwrap();
    log.recv("non-blocking", &server);
    log.note("peek", server.peek(&mut few));
    server.set_nonblocking(false).unwrap();
    server.set_read_timeout(SHORT).unwrap();
    log.recv("timeout", &server);
    log.note("nothing", client.send(b""));
    log.recv("is nothing", &server);
    log.note("no time", server.set_read_timeout(Some(Duration::ZERO)));
}

script!(half_close_matches_linux, half_close);
fn half_close<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    log.note("send", client.send(b"last words"));
    log.note("shutdown", client.shutdown(Shutdown::Write));
    log.note("send", client.send(b"x"));
    log.events("client", &client, POLLOUT);
    log.events("server", &server, POLLRDHUP);
    log.recv("last words", &server);
    log.recv("the end", &server);
    log.recv("for good", &server);
    log.events("server", &server, POLLRDHUP);
    log.note("answer", server.send(b"answer"));
    log.recv("answer", &client);
    log.note("shutdown", server.shutdown(Shutdown::Write));
    log.recv("the end", &client);
    log.events("client", &client, POLLHUP);
    log.events("server", &server, POLLHUP);
    log.note("send", server.send(b"x"));
    while server.peer_addr().is_ok() {
        std::thread::yield_now(); // its FIN is on the way
    }
    log.note("shutdown again", server.shutdown(Shutdown::Both));
    log.note("peer", server.peer_addr().map(drop));
    log.recv("the end", &server);
}

script!(shutdown_for_reading_matches_linux, shut_for_reading);
fn shut_for_reading<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    log.note("shutdown", server.shutdown(Shutdown::Read));
    log.events("server", &server, POLLRDHUP);
    log.recv("the end", &server);
    log.note("send", server.send(b"still sends"));
    log.recv("still sends", &client);
    log.note("shutdown", client.shutdown(Shutdown::Both));
    log.events("client", &client, POLLHUP);
    log.recv("the end", &client);
    log.events("server", &server, POLLRDHUP);
}

script!(a_reset_matches_linux, reset);
fn reset<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    log.note("left behind", client.send(b"left behind"));
    log.events("there", &server, POLLIN);
    client.set_linger(Some(0)).unwrap();
    drop(client);
    log.events("reset", &server, POLLERR);
    log.recv("what came before", &server);
    log.recv("reset", &server);
    log.recv("once", &server);
    log.note("send", server.send(b"x"));
    log.events("over", &server, POLLHUP);
    log.note("peer", server.peer_addr().map(drop));
    log.note("shutdown", server.shutdown(Shutdown::Write));
    let (client, server) = pair(world);
    client.set_linger(Some(0)).unwrap();
    drop(client);
    log.events("reset", &server, POLLERR);
    log.note("a send returns the error", server.send(b"x"));
    log.note("once", server.send(b"x"));
    log.recv("recv", &server);
    let (client, server) = pair(world);
    client.set_linger(Some(0)).unwrap();
    drop(client);
    log.events("reset", &server, POLLERR);
    log.note("asked", server.take_error());
    log.note("once", server.take_error());
    log.recv("recv", &server);
}

script!(close_by_the_peer_matches_linux, close);
fn close<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    log.note("send", client.send(b"bye"));
    drop(client);
    log.events("server", &server, POLLRDHUP);
    log.recv("bye", &server);
    log.recv("the end", &server);
    log.note("to a closed peer", server.send(b"x"));
    log.events("reset", &server, POLLHUP);
    log.note("broken pipe", server.send(b"x"));
    log.recv("recv", &server);
    // Closing with unread data sends a reset (RFC 2525 section 2.17).
    let (client, server) = pair(world);
    log.note("send", server.send(b"never read"));
    log.events("there", &client, POLLIN);
    drop(client);
    log.events("reset", &server, POLLERR);
    log.recv("reset", &server);
}

script!(listen_and_accept_match_linux, listen);
fn listen<W: World>(world: &W, log: &mut Log) {
    let socket = listener(world);
    let to = socket.local_addr().unwrap();
    log.events("listener", &socket, 0);
    socket.set_nonblocking(true).unwrap();
    log.note("accept", socket.accept().map(drop));
    log.note("peer", socket.peer_addr());
    log.note("accepting", socket.getsockopt(SOL_SOCKET, SO_ACCEPTCONN));
    let (first, second) = (world.socket(0), world.socket(0));
    first.connect(to).unwrap();
    second.connect(to).unwrap();
    log.events("two", &socket, POLLIN);
    log.note(
        "first",
        socket.accept().map(|one| one.peer_addr().unwrap() == first.local_addr().unwrap()),
    );
    log.events("one", &socket, POLLIN);
    log.note(
        "second",
        socket.accept().map(|one| one.peer_addr().unwrap() == second.local_addr().unwrap()),
    );
    log.note("none", socket.accept().map(drop));
    log.events("none", &socket, 0);
    let hasty = world.socket(0);
    hasty.connect(to).unwrap();
    log.note("send", hasty.send(b"in advance"));
    log.events("there", &socket, POLLIN);
    log.recv("in advance", &socket.accept().unwrap());
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(SHORT).unwrap();
    log.note("timeout", socket.accept().map(drop));
    let waiting = world.socket(0);
    waiting.connect(to).unwrap();
    log.events("there", &socket, POLLIN);
    drop(socket);
    log.events("reset", &waiting, POLLERR);
    log.recv("reset", &waiting);
    let late = world.socket(0);
    log.note("no listener", late.connect(to));
}

script!(port_conflicts_match_linux, ports);
fn ports<W: World>(world: &W, log: &mut Log) {
    for (first, second) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let one = world.socket(1);
        one.setsockopt(SOL_SOCKET, SO_REUSEADDR, first).unwrap();
        one.bind(world.at(1, 0)).unwrap();
        let taken = one.local_addr().unwrap();
        let any = world.any(1, taken.port());
        let other = |local| {
            let socket = world.socket(1);
            socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, second).unwrap();
            socket.bind(local).map(|()| socket)
        };
        log.note("bound", other(taken).map(drop));
        log.note("bound, any", other(any).map(drop));
        let before = other(taken);
        log.note("listens", one.listen(1));
        log.note("listens", before.and_then(|socket| socket.listen(1)));
        log.note("after", other(taken).map(drop));
        log.note("after, any", other(any).map(drop));
    }
    // Connections in TIME_WAIT do not keep a server from restarting.
    let first = listener(world);
    let to = first.local_addr().unwrap();
    let client = world.socket(0);
    client.connect(to).unwrap();
    let server = first.accept().unwrap();
    drop(first);
    drop(server);
    log.events("over", &client, POLLRDHUP);
    drop(client);
    for reuse in [0, 1] {
        let again = world.socket(1);
        again.setsockopt(SOL_SOCKET, SO_REUSEADDR, reuse).unwrap();
        log.note("again", again.bind(to));
    }
}

/// Sends until there is no room.
fn fill(socket: &impl Tcp, block: &[u8], sent: &mut usize) -> std::io::Error {
    loop {
        match socket.send(block) {
            Ok(len) => *sent += len,
            Err(error) => break error,
        }
    }
}

/// How much a socket takes until it stays full: on a busy machine data in flight moves on late.
fn filled(socket: &impl Tcp, block: &[u8]) -> usize {
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 20 {
        let before = sent;
        fill(socket, block, &mut sent);
        quiet = if sent == before { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(10));
    }
    sent
}

/// Reads at least `sent` bytes.
fn emptied(socket: &impl Tcp, sent: usize) -> usize {
    let (mut got, mut room) = (0, vec![0; 1 << 20]);
    while got < sent {
        got += socket.recv(&mut room).unwrap();
    }
    got
}

script!(a_full_send_buffer_matches_linux, full);
fn full<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    client.set_nonblocking(true).unwrap();
    let block = [7; 1 << 16];
    let mut sent = filled(&client, &block);
    let fill = |sent: &mut usize| fill(&client, &block, sent);
    log.note("would block", Err::<(), _>(fill(&mut sent)));
    log.events("full", &client, 0);
    client.set_nonblocking(false).unwrap();
    client.set_write_timeout(SHORT).unwrap();
    // A little room may have become free.
    log.note("timeout", Err::<(), _>(fill(&mut sent)));
    client.set_write_timeout(None).unwrap();
    let got = emptied(&server, sent);
    log.events("room", &client, POLLOUT);
    log.note("whole", Ok::<_, std::io::Error>(got == sent));
}

script!(tcp_notsent_lowat_matches_linux, low_water);
fn low_water<W: World>(world: &W, log: &mut Log) {
    let listener = world.socket(1);
    listener.setsockopt(SOL_SOCKET, SO_RCVBUF, 8_192).unwrap();
    listener.bind(world.at(1, 0)).unwrap();
    listener.listen(1).unwrap();
    for (mark, len) in [(0, 1_000), (1, 1_000), (1, 1 << 20), (70_000, 1 << 20)] {
        let client = world.socket(0);
        client.setsockopt(SOL_SOCKET, SO_SNDBUF, 400_000).unwrap();
        client.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, mark).unwrap();
        client.connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        let block = vec![7; len];
        let mut sent = filled(&client, &block);
        log.note("much", Ok::<_, std::io::Error>(sent > 200_000));
        log.note("above the mark", Ok::<_, std::io::Error>(sent > 70_000 || mark < 70_000));
        // A little room may have become free.
        log.note("would block", Err::<(), _>(fill(&client, &block, &mut sent)));
        log.events("full", &client, 0);
        let got = emptied(&server, sent);
        log.events("room", &client, POLLOUT);
        log.note("whole", Ok::<_, std::io::Error>(got == sent));
    }
}

script!(so_rcvlowat_matches_linux, receive_low_water);
fn receive_low_water<W: World>(world: &W, log: &mut Log) {
    let (client, server) = pair(world);
    server.setsockopt(SOL_SOCKET, SO_RCVLOWAT, 6).unwrap();
    let come = |data: &[u8]| {
        server.set_nonblocking(true).unwrap();
        let had = server.peek(&mut [0; 16]).unwrap_or(0);
        client.send(data).unwrap();
        while server.peek(&mut [0; 16]).unwrap_or(0) < had + data.len() {
            std::thread::yield_now();
        }
        server.set_nonblocking(false).unwrap();
    };
    come(b"abc");
    log.events("little", &server, POLLOUT);
    let mut few = [0; 2];
    log.note("peek at less than there is", server.peek(&mut few));
    log.note("ask for less than there is", server.recv(&mut few));
    server.set_nonblocking(true).unwrap();
    log.note("peek", server.peek(&mut [0; 16]));
    log.recv("non-blocking", &server);
    log.recv("nothing", &server);
    server.set_nonblocking(false).unwrap();
    come(b"abc");
    server.set_read_timeout(SHORT).unwrap();
    log.note("timeout", server.peek(&mut [0; 16]));
    log.recv("timeout", &server);
    log.recv("nothing", &server);
    server.set_read_timeout(None).unwrap();
    come(b"abcde");
    client.send(b"f").unwrap();
    log.recv("enough", &server);
    come(b"abc");
    client.send(b"defgh").unwrap();
    log.recv("more than enough", &server);
    come(b"abc");
    client.shutdown(Shutdown::Write).unwrap();
    log.recv("the last", &server);
    log.recv("the end", &server);
}

script!(option_values_match_linux, options);
fn options<W: World>(world: &W, log: &mut Log) {
    let socket = world.socket(0);
    let names = [
        ("SO_TYPE", SOL_SOCKET, SO_TYPE),
        ("SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL),
        ("SO_DOMAIN", SOL_SOCKET, SO_DOMAIN),
        ("SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN),
        ("SO_ERROR", SOL_SOCKET, SO_ERROR),
        ("SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR),
        ("SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT),
        ("SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE),
        ("SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT),
        ("TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY),
        ("TCP_CORK", IPPROTO_TCP, TCP_CORK),
        ("TCP_MAXSEG", IPPROTO_TCP, TCP_MAXSEG),
        ("TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE),
        ("TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL),
        ("TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT),
        ("TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT),
        ("TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2),
        ("TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT),
        ("TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT),
        ("TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK),
        ("IP_TTL", IPPROTO_IP, IP_TTL),
        ("IP_TOS", IPPROTO_IP, IP_TOS),
        ("unknown", SOL_SOCKET, 9999),
        ("unknown", IPPROTO_TCP, 9999),
    ];
    let read_only = ["SO_TYPE", "SO_PROTOCOL", "SO_DOMAIN", "SO_ACCEPTCONN", "SO_ERROR"];
    for (name, level, number) in names {
        log.note(name, socket.getsockopt(level, number));
        for value in [-1, 0, 1, 2, 60, 88, 127, 128, 255, 256, 32_767, 32_768] {
            if (name, value) == ("SO_RCVLOWAT", -1) {
                continue; // half of tcp_rmem, which the administrator sets
            }
            log.note(&format!("{name} = {value}"), socket.setsockopt(level, number, value));
            if !read_only.contains(&name) {
                log.note(name, socket.getsockopt(level, number));
            }
        }
    }
}

script!(tcp_quickack_matches_linux, quick_acks);
fn quick_acks<W: World>(world: &W, log: &mut Log) {
    let (client, _server) = pair(world);
    for value in [0, 1] {
        log.note("set", client.setsockopt(IPPROTO_TCP, TCP_QUICKACK, value));
        log.note("get", client.getsockopt(IPPROTO_TCP, TCP_QUICKACK));
    }
}

const POLLIN: u32 = libc::POLLIN as u32;
const POLLOUT: u32 = libc::POLLOUT as u32;
const POLLERR: u32 = libc::POLLERR as u32;
const POLLHUP: u32 = libc::POLLHUP as u32;
const POLLRDHUP: u32 = libc::POLLRDHUP as u32;
