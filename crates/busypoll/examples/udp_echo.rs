//! A UDP echo on the stack plane.
//!
//! `udp_echo` joins two hosts in memory and measures round trips between them: no privileges, no device.
//! `udp_echo INTERFACE ADDRESS:PORT` echoes over AF_XDP on an interface, which the kernel goes on using.

use busypoll::stack::{
    Host, UdpSocket,
    nic::{cable, xdp::Xdp},
};
use std::{
    env, io, thread,
    time::{Duration, Instant},
};

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &words[..] {
        [] => println!("{:?} a round trip", in_memory(10_000)?),
        [interface, address] => {
            // Each receive busy polls for up to 50 us, then sleeps.
            let host = Host::builder().shared_interface(Xdp::open(interface)?).busy_read(50);
            let socket = UdpSocket::bind(&host.build()?, address)?;
            println!("echoes at {}", socket.local_addr()?);
            echo(&socket, usize::MAX)?;
        }
        _ => eprintln!("usage: udp_echo [INTERFACE ADDRESS:PORT]"),
    }
    Ok(())
}

/// Sends `count` datagrams back to where they came from.
pub fn echo(socket: &UdpSocket, count: usize) -> io::Result<()> {
    let mut buffer = [0; 2048];
    for _ in 0..count {
        let (len, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..len], from)?;
    }
    Ok(())
}

/// Two hosts in this process, joined by a cable: the mean time of `count` round trips.
pub fn in_memory(count: u32) -> io::Result<Duration> {
    let (a, b) = cable::pair(cable::Config::default())?;
    let left = Host::builder().interface(a, "10.0.0.1/24").busy_read(50).build()?;
    let right = Host::builder().interface(b, "10.0.0.2/24").busy_read(50).build()?;
    let server = UdpSocket::bind(&right, "10.0.0.2:7")?;
    let client = UdpSocket::bind(&left, "10.0.0.1:0")?;
    client.connect("10.0.0.2:7")?;

    thread::spawn(move || echo(&server, count as usize));
    let begun = Instant::now();
    for _ in 0..count {
        client.send(b"ping")?;
        let mut answer = [0; 4];
        client.recv(&mut answer)?;
        assert_eq!(&answer, b"ping");
    }
    Ok(begun.elapsed() / count)
}
