//! What a TCP request and its response cost with many connections open: `many_connections [CONNECTIONS [ROUNDS]]`.
//!
//! One thread is both ends: it sends a byte over the cable, busy polls for it at the other end of the last
//! connection opened, and sends one back; the other connections stay idle. Everything a round trip costs is on
//! that thread, so that its instructions can be counted exactly:
//!
//! ```text
//! cargo build --release -p busypoll-stack --example many_connections
//! for connections in 1 10000; do
//!     valgrind --tool=callgrind --separate-threads=yes --toggle-collect='many_connections::measured*' \
//!         --callgrind-out-file=/tmp/many.out target/release/examples/many_connections $connections 10000
//!     callgrind_annotate /tmp/many.out-01 | grep -m1 TOTALS
//! done
//! ```
//!
//! The toggle leaves the set-up out; `-01` is the thread that does the work; 10,000 round trips share the total.

use busypoll_stack::{Host, TcpListener, TcpStream, nic::cable, time};
use std::{
    error::Error,
    io::{self, Read, Write},
    process::ExitCode,
    time::Duration,
};

const MAX_OPEN: usize = 60_000;

mod many;

fn main() -> ExitCode {
    many::run("many_connections [CONNECTIONS [ROUNDS]]", MAX_OPEN, measure)
}

/// The measured part: a separate function for callgrind's toggle.
#[inline(never)]
fn measured(client: &TcpStream, server: &TcpStream, rounds: usize) -> io::Result<()> {
    exchange(client, server, rounds)
}

#[inline(always)]
fn exchange(mut client: &TcpStream, mut server: &TcpStream, rounds: usize) -> io::Result<()> {
    for _ in 0..rounds {
        client.write_all(b"?")?;
        server.read_exact(&mut [0])?;
        server.write_all(b"!")?;
        client.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Each call that would wait makes one pass over its own queue, so one thread can run both ends.
fn connect(one: &Host, listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let client = TcpStream::new(one);
    client.set_nonblocking(true)?;
    let mut pending = client.connect_to(listener.local_addr()?).err();
    loop {
        match listener.accept() {
            Ok((server, _)) => {
                client.set_nonblocking(false)?;
                return Ok((client, server));
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if pending.is_some() => {
                pending = client.connect_to(listener.local_addr()?).err()
            }
            Err(_) => drop((&client).read(&mut [])),
        }
    }
}

fn measure(count: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
    let (a, b) = cable::pair(cable::Config::default())?;
    // A long period, so that the watchdog's thread does not run between round trips.
    let host = || Host::builder().busy_read(1_000_000).watchdog(Duration::from_secs(300));
    let one = host().interface(a, "10.0.0.1/24").build()?;
    let two = host().interface(b, "10.0.0.2/24").build()?;
    let listener = TcpListener::bind(&two, "10.0.0.2:80")?;
    listener.set_nonblocking(true)?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let pair = connect(&one, &listener)?;
        exchange(&pair.0, &pair.1, 1)?;
        pairs.push(pair);
    }
    let (client, server) = pairs.last().ok_or("no connection")?;
    // After these, quick acknowledgments at the start are over, and the queue is polled, not interrupt-driven.
    exchange(client, server, 100)?;
    let own_polls = || client.stats().own_polls + server.stats().own_polls;
    let (before, start) = (own_polls(), time::now());
    measured(client, server, rounds)?;
    let took = time::now() - start;
    println!(
        "{count} connections: {:.1} ns per round trip, {:.2} % found by the receiver's own poll",
        took.as_nanos() as f64 / rounds as f64,
        (own_polls() - before) as f64 * 50.0 / rounds as f64,
    );
    Ok(())
}
