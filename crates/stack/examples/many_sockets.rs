//! What a UDP packet costs with many sockets open: `many_sockets [SOCKETS [PACKETS]]`.
//!
//! One thread sends a byte over the cable and busy polls for it at the last socket opened; the others stay
//! idle. Everything a packet costs is on that thread, so that its instructions can be counted exactly:
//!
//! ```text
//! cargo build --release -p busypoll-stack --example many_sockets
//! for sockets in 1 10000; do
//!     valgrind --tool=callgrind --separate-threads=yes --toggle-collect='many_sockets::exchange*' \
//!         --callgrind-out-file=/tmp/many.out target/release/examples/many_sockets $sockets 20000
//!     callgrind_annotate /tmp/many.out-01 | grep -m1 TOTALS
//! done
//! ```
//!
//! The toggle leaves the set-up out; `-01` is the thread that does the work; 20,000 packets share the total.

use busypoll_stack::{Host, UdpSocket, nic::cable, time};
use std::{error::Error, io, process::ExitCode, time::Duration};

/// The first socket's port.
const FIRST_PORT: u16 = 1024;
const MAX_OPEN: usize = (u16::MAX - FIRST_PORT) as usize;

mod many;

fn main() -> ExitCode {
    many::run("many_sockets [SOCKETS [PACKETS]]", MAX_OPEN, measure)
}

/// The measured part: a separate function for callgrind's toggle.
#[inline(never)]
fn exchange(client: &UdpSocket, server: &UdpSocket, packets: usize) -> io::Result<()> {
    for _ in 0..packets {
        client.send(b"x")?;
        server.recv(&mut [0])?;
    }
    Ok(())
}

fn measure(count: usize, packets: usize) -> Result<(), Box<dyn Error>> {
    let (a, b) = cable::pair(cable::Config::default())?;
    // A long period, so that the watchdog's thread does not run between packets.
    let host = || Host::builder().busy_read(1_000_000).watchdog(Duration::from_secs(3600));
    let one = host().interface(a, "10.0.0.1/24").build()?;
    let two = host().interface(b, "10.0.0.2/24").build()?;
    let client = UdpSocket::bind(&one, "10.0.0.1:0")?;
    let start = time::now();
    let sockets = (FIRST_PORT..)
        .take(count)
        .map(|port| UdpSocket::bind(&two, ("10.0.0.2", port)))
        .collect::<Result<Vec<_>, _>>()?;
    let binding = time::now() - start;
    let last = sockets.last().ok_or("no socket")?;
    client.connect(last.local_addr()?)?;

    // The first packet resolves the neighbour and gives the socket its napi id; after a few more the queue
    // is polled, not interrupt-driven.
    for _ in 0..100 {
        client.send(b"x")?;
        last.recv(&mut [0])?;
    }
    let before = last.stats().own_polls;
    let start = time::now();
    exchange(&client, last, packets)?;
    let took = time::now() - start;
    println!(
        "{count} sockets: {:.1} ns per packet, {:.2} % found by the receiver's own poll; {:.2} us to bind one",
        took.as_nanos() as f64 / packets as f64,
        (last.stats().own_polls - before) as f64 * 100.0 / packets as f64,
        binding.as_secs_f64() * 1e6 / count as f64,
    );
    Ok(())
}
