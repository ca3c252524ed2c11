//! The two ends of a soak: an echo server, and clients that compare what comes back with what they have sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use busypoll_lab::Side;
use busypoll_policy::say;

use super::{Random, SoakArgs};

const PORT: u16 = 7400;
/// Far longer than any fault lasts, with the retransmissions that it causes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Echoes bytes and datagrams until it is killed.
pub(super) fn serve() -> Result<()> {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let (listener, socket) = (TcpListener::bind(everywhere)?, UdpSocket::bind(everywhere)?);
    thread::spawn(move || {
        let mut datagram = [0; 2048];
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut datagram) {
                // There may be no route to the client at the moment.
                let _ = socket.send_to(&datagram[..len], from);
            }
        }
    });
    loop {
        // A connection may have been reset before it is accepted.
        if let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || match echo(stream) {
                // Clients reset connections on purpose.
                Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                    say(format_args!("the server: {error}"));
                }
                _ => {}
            });
        }
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = [0; 16 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}

/// Counters of the clients.
#[derive(Default)]
struct Totals {
    connections: u64,
    reset: u64,
    bytes: u64,
    datagrams: u64,
    answered: u64,
}

/// Ends this process when the soak ends, which holds the other end of its standard input.
pub(super) fn exit_with_the_soak() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(1);
    });
}

/// Runs the clients until the time is over; each makes one connection after the other.
pub(super) fn run_clients(args: &SoakArgs, out: &mut impl Write) -> Result<()> {
    // A server may take long to start on a busy machine; the time begins when it listens.
    drop(connect()?);
    let end = Instant::now() + args.duration;
    let threads: Vec<_> = (0..args.clients)
        .map(|n| {
            let mut random = Random::new(args.seed, n);
            thread::spawn(move || {
                let mut totals = Totals::default();
                while Instant::now() < end {
                    match random.below(8) {
                        0 => datagrams(&mut random, &mut totals).context("UDP")?,
                        _ => connection(&mut random, &mut totals).context("TCP")?,
                    }
                }
                anyhow::Ok(totals)
            })
        })
        .collect();
    let mut all = Totals::default();
    for thread in threads {
        let totals = thread.join().map_err(|_| anyhow!("a client has panicked"))??;
        all.connections += totals.connections;
        all.reset += totals.reset;
        all.bytes += totals.bytes;
        all.datagrams += totals.datagrams;
        all.answered += totals.answered;
    }
    writeln!(
        out,
        "{} connections, {} of them ended by a reset; {} bytes echoed; {} of {} datagrams echoed",
        all.connections, all.reset, all.bytes, all.answered, all.datagrams
    )?;
    ensure!(all.bytes > 0 && all.answered > 0, "nothing was echoed");
    Ok(())
}

fn server() -> SocketAddr {
    (Side::Server.ipv4(), PORT).into()
}

fn connect() -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect_timeout(&server(), TIMEOUT) {
            // The server does not listen yet, or this end's link is down.
            Err(_) if begun.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(20)),
            done => break done.context("connect"),
        }
    }
}

fn connection(random: &mut Random, totals: &mut Totals) -> Result<()> {
    let mut stream = connect()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(random.below(2) == 0)?;
    totals.connections += 1;
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..random.below(20) {
        fill(&mut sent, 1 << random.below(16), random);
        stream.write_all(&sent).context("send")?;
        received.resize(sent.len(), 0);
        stream.read_exact(&mut received).context("receive")?;
        ensure!(sent == received, "the bytes that came back differ");
        totals.bytes += sent.len() as u64;
    }
    match random.below(4) {
        0 => {
            // Closing with unread data sends a reset.
            fill(&mut sent, 100, random);
            stream.write_all(&sent).context("send")?;
            retry_on_eintr(|| stream.peek(&mut [0])).context("receive")?;
            totals.reset += 1;
        }
        1 => {
            stream.shutdown(Shutdown::Write)?;
            let more = retry_on_eintr(|| stream.read(&mut [0])).context("the end")?;
            ensure!(more == 0, "more bytes came back than were sent");
        }
        _ => {}
    }
    Ok(())
}

/// Sends datagrams, and checks those that come back. They may be lost, and may come late.
fn datagrams(random: &mut Random, totals: &mut Totals) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    if socket.connect(server()).is_err() {
        // This end's link is down: there is no route.
        thread::sleep(Duration::from_millis(20));
        return Ok(());
    }
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut sent = Vec::new();
    // Answers to an earlier socket of this port may still arrive.
    let tag = random.below(u64::MAX).to_ne_bytes();
    for _ in 0..1 + random.below(50) {
        let mut bytes = Vec::new();
        fill(&mut bytes, tag.len() + random.below(1400) as usize, random);
        bytes[..tag.len()].copy_from_slice(&tag);
        // It may fail with the error of an earlier datagram: no route at the moment, or the server not yet bound.
        if socket.send(&bytes).is_ok() {
            sent.push(bytes);
            totals.datagrams += 1;
        }
    }
    let mut received = [0; 2048];
    while !sent.is_empty() {
        let Ok(len) = socket.recv(&mut received) else { break };
        if !received[..len].starts_with(&tag) {
            continue;
        }
        let at = sent.iter().position(|bytes| **bytes == received[..len]);
        sent.remove(at.context("a datagram came that was not sent, or came twice")?);
        totals.answered += 1;
    }
    Ok(())
}

/// Repeats a receive that ends with EINTR: with a timeout it does when its process is stopped and continued
/// (signal(7)).
fn retry_on_eintr<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn fill(bytes: &mut Vec<u8>, len: usize, random: &mut Random) {
    bytes.clear();
    bytes.extend((0..len).map(|_| random.below(256) as u8));
}
