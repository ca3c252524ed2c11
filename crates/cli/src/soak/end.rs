//! The two ends of a soak: a server that echoes, and clients that say what they want to hear.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use busypoll_lab::Side;
use busypoll_policy::say;

use super::{Chance, SoakArgs};

const PORT: u16 = 7400;
/// No fault lasts nearly as long, the retransmissions it takes included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Echoes bytes and datagrams until it is killed.
pub(super) fn serve() -> Result<()> {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let (listener, socket) = (TcpListener::bind(everywhere)?, UdpSocket::bind(everywhere)?);
    thread::spawn(move || {
        let mut datagram = [0; 2048];
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut datagram) {
                // There may be no way to them at the moment.
                let _ = socket.send_to(&datagram[..len], from);
            }
        }
    });
    loop {
        // A connection may have been reset before it is accepted.
        if let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || match echo(stream) {
                // Clients do that.
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

/// What clients have done.
#[derive(Default)]
struct Sum {
    connections: u64,
    reset: u64,
    bytes: u64,
    datagrams: u64,
    answered: u64,
}

/// This process ends when the soak does, which holds the other end of its standard input.
pub(super) fn with_the_soak() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(1);
    });
}

/// Clients, each with a connection of its own after the other, until the time is over.
pub(super) fn exercise(args: &SoakArgs, out: &mut impl Write) -> Result<()> {
    let end = Instant::now() + args.duration;
    let threads: Vec<_> = (0..args.clients)
        .map(|n| {
            let mut chance = Chance::of(args.seed, n);
            thread::spawn(move || {
                let mut sum = Sum::default();
                while Instant::now() < end {
                    match chance.below(8) {
                        0 => datagrams(&mut chance, &mut sum).context("UDP")?,
                        _ => connection(&mut chance, &mut sum).context("TCP")?,
                    }
                }
                anyhow::Ok(sum)
            })
        })
        .collect();
    let mut all = Sum::default();
    for thread in threads {
        let sum = thread.join().map_err(|_| anyhow!("a client has panicked"))??;
        all.connections += sum.connections;
        all.reset += sum.reset;
        all.bytes += sum.bytes;
        all.datagrams += sum.datagrams;
        all.answered += sum.answered;
    }
    writeln!(
        out,
        "{} connections, {} of them ended by a reset; {} bytes to and fro; {} of {} datagrams came back",
        all.connections, all.reset, all.bytes, all.answered, all.datagrams
    )?;
    ensure!(all.bytes > 0 && all.answered > 0, "nothing came back at all");
    Ok(())
}

fn server() -> SocketAddr {
    (Side::Server.ipv4(), PORT).into()
}

fn connection(chance: &mut Chance, sum: &mut Sum) -> Result<()> {
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect_timeout(&server(), PATIENCE) {
            // It does not serve yet, or the link is down at this end.
            Err(_) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            done => break done.context("connect")?,
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(chance.below(2) == 0)?;
    sum.connections += 1;
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    for _ in 0..chance.below(20) {
        fill(&mut sent, 1 << chance.below(16), chance);
        stream.write_all(&sent).context("send")?;
        came.resize(sent.len(), 0);
        stream.read_exact(&mut came).context("receive")?;
        ensure!(sent == came, "bytes came back wrong");
        sum.bytes += sent.len() as u64;
    }
    match chance.below(4) {
        0 => {
            // Closed with data that nobody has read: a reset.
            fill(&mut sent, 100, chance);
            stream.write_all(&sent).context("send")?;
            undisturbed(|| stream.peek(&mut [0])).context("receive")?;
            sum.reset += 1;
        }
        1 => {
            stream.shutdown(Shutdown::Write)?;
            let more = undisturbed(|| stream.read(&mut [0])).context("the end")?;
            ensure!(more == 0, "more came than was sent");
        }
        _ => {}
    }
    Ok(())
}

/// Datagrams may be lost, and come back later; what comes is right.
fn datagrams(chance: &mut Chance, sum: &mut Sum) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    if socket.connect(server()).is_err() {
        // The link is down at this end: there is no way.
        thread::sleep(Duration::from_millis(20));
        return Ok(());
    }
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut sent = Vec::new();
    // What answers an earlier socket of this port may come yet.
    let tag = chance.below(u64::MAX).to_ne_bytes();
    for _ in 0..1 + chance.below(50) {
        let mut bytes = Vec::new();
        fill(&mut bytes, tag.len() + chance.below(1400) as usize, chance);
        bytes[..tag.len()].copy_from_slice(&tag);
        // There may be no way there at the moment, or nobody yet: an error of an earlier one.
        if socket.send(&bytes).is_ok() {
            sent.push(bytes);
            sum.datagrams += 1;
        }
    }
    let mut came = [0; 2048];
    while !sent.is_empty() {
        let Ok(len) = socket.recv(&mut came) else { break };
        if !came[..len].starts_with(&tag) {
            continue;
        }
        let at = sent.iter().position(|bytes| **bytes == came[..len]);
        sent.remove(at.context("a datagram came that was not sent, or came twice")?);
        sum.answered += 1;
    }
    Ok(())
}

/// A receive with a time limit ends with EINTR when its process was stopped and goes on (signal(7)).
fn undisturbed<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn fill(bytes: &mut Vec<u8>, len: usize, chance: &mut Chance) {
    bytes.clear();
    bytes.extend((0..len).map(|_| chance.below(256) as u8));
}
