//! The stack under valgrind's memcheck: it reads no uninitialized byte and touches no freed or foreign memory.

use busypoll_lab::needs;
use busypoll_stack::{
    Epoll, Events, Host, PollFd, TcpListener, TcpStream, UdpSocket, nic::cable, poll,
};
use std::{
    env,
    io::{Read, Write},
    process::Command,
    thread,
    time::Duration,
};

const ROUNDS: usize = 50;

#[test]
fn memcheck_finds_nothing() {
    needs!(program "valgrind");
    let output = Command::new("valgrind")
        // Valgrind runs one thread at a time; without turns in order a thread that spins can keep the others from theirs.
        .args([
            "--tool=memcheck",
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=no",
            "--fair-sched=try",
        ])
        .arg(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "the_traffic_that_memcheck_checks", "--test-threads=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
}

fn hosts() -> (Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let build = |nic, address| Host::builder().interface(nic, address).build().unwrap();
    (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"))
}

fn talk(mut stream: TcpStream, first: bool) {
    let data: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
    let mut got = vec![0; data.len()];
    for _ in 0..ROUNDS {
        if first {
            stream.write_all(&data).unwrap();
        }
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, data);
        if !first {
            stream.write_all(&data).unwrap();
        }
    }
}

#[test]
#[ignore = "is run by memcheck_finds_nothing"]
fn the_traffic_that_memcheck_checks() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    // Connections come and go, asleep and busy polled, in threads that end.
    for busy_poll in [0, 50] {
        thread::scope(|scope| {
            for _ in 0..4 {
                let client = TcpStream::connect(&one, listener.local_addr().unwrap()).unwrap();
                let served = listener.accept().unwrap().0;
                client.set_busy_poll(busy_poll).unwrap();
                scope.spawn(move || talk(client, true));
                scope.spawn(move || talk(served, false));
            }
        });
    }
    // More sockets than a table's first size, which are closed again.
    let many: Vec<_> = (0..100).map(|_| UdpSocket::bind(&two, "10.0.0.2:0").unwrap()).collect();
    let asks = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    for socket in &many {
        asks.send_to(b"hello", socket.local_addr().unwrap()).unwrap();
        assert_eq!(socket.recv_from(&mut [0; 16]).unwrap().0, 5);
    }
    let epoll = Epoll::new(&two);
    epoll.add(&many[0], Events::READABLE, 7).unwrap();
    asks.send_to(b"again", many[0].local_addr().unwrap()).unwrap();
    let mut events = Vec::new();
    assert_eq!(epoll.wait(&mut events, 4, None).unwrap(), 1);
    many[0].recv_from(&mut [0; 16]).unwrap();
    let mut fds =
        [PollFd { socket: &many[1], events: Events::READABLE, revents: Events::default() }];
    assert_eq!(poll(&mut fds, Some(Duration::from_millis(1))).unwrap(), 0);
}
