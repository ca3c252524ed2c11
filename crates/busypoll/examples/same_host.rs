//! Round trips of one byte between two processes of this machine: TCP over a cable, TCP over the kernel's loopback, and
//! an AF_UNIX socket, in turn, so that whatever else runs here meets all of them alike. Beside them, TCP over a cable
//! between two threads of one process.
//!
//! `same_host [ROUNDS]` starts a second process of itself, first on another CPU and then on the same one.

use busypoll::stack::{Host, TcpListener, TcpStream, nic::cable};
use std::{
    env,
    io::{self, Read, Write},
    net,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process::{self, Child, Command},
    thread,
    time::{Duration, Instant},
};

/// Round trips of one arm in one round.
const TRIPS: usize = 2_000;

/// How long a receive over the cable polls before it sleeps.
const POLL: u32 = 50;

const ARMS: [&str; 5] =
    ["cable, busy poll", "cable, blocking", "loopback TCP", "AF_UNIX stream", "cable in a process"];

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &words[..] {
        [serve, name, cpu] if serve == "serve" => serve_all(name, cpu.parse().unwrap_or(0)),
        [] => measure_all(20),
        [rounds] => measure_all(rounds.parse().map_err(io::Error::other)?),
        _ => Err(io::Error::other("usage: same_host [ROUNDS]")),
    }
}

/// Makes the calling thread, and those it starts, run on one CPU.
fn pin(cpu: usize) {
    // SAFETY: an empty set with one CPU added.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// The CPUs that this process may use.
fn cpus() -> Vec<usize> {
    // SAFETY: an empty set, which the call fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// The other process: answers each byte of each connection.
pub fn serve_all(name: &str, cpu: usize) -> io::Result<()> {
    pin(cpu);
    let cable = cable::connect(name)?;
    let host = Host::builder().interface(cable, "10.0.0.2/24").busy_read(POLL).build()?;
    let over_cable = TcpListener::bind(&host, "10.0.0.2:7")?;
    let over_loopback = net::TcpListener::bind("127.0.0.1:0")?;
    let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{name}-unix"))?)?;
    let (unix, _) = unix.accept()?;
    (&unix).write_all(&over_loopback.local_addr()?.port().to_ne_bytes())?;
    for _ in 0..2 {
        let (stream, _) = over_cable.accept()?;
        stream.set_nodelay(true)?;
        // The first byte says how to wait.
        let mut poll = [0];
        (&stream).read_exact(&mut poll)?;
        stream.set_busy_poll(poll[0].into())?;
        thread::spawn(move || echo(&stream, &stream));
    }
    let (tcp, _) = over_loopback.accept()?;
    tcp.set_nodelay(true)?;
    thread::spawn(move || echo(&tcp, &tcp));
    echo(&unix, &unix);
    Ok(())
}

fn echo(mut from: impl Read, mut to: impl Write) {
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
}

/// A second process, ended with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure_all(rounds: usize) -> io::Result<()> {
    let cpus = cpus();
    let (ours, other) = (cpus[0], cpus[cpus.len() - 1]);
    pin(ours);
    for (what, cpu) in [("a CPU each", other), ("both on one CPU", ours)] {
        let name = format!("same-host-{}-{cpu}", process::id());
        let rendezvous = cable::listen(&name)?;
        let mut command = Command::new(env::current_exe()?);
        let _server = Server(command.args(["serve", &name, &cpu.to_string()]).spawn()?);
        let medians = measure(&rendezvous, &name, cpu, rounds)?;
        println!("{what}: p50 of a round trip, median of {rounds} rounds; ratios paired by round");
        print(&medians);
    }
    Ok(())
}

/// The median round trips of each arm, by round. The other process is about to connect to `rendezvous`.
pub fn measure(
    rendezvous: &cable::Rendezvous,
    name: &str,
    cpu: usize,
    rounds: usize,
) -> io::Result<[Vec<f64>; ARMS.len()]> {
    let cable = rendezvous.accept(cable::Config::default())?;
    let host = Host::builder().interface(cable, "10.0.0.1/24").busy_read(POLL).build()?;
    let unix = connect_when_there(&SocketAddr::from_abstract_name(format!("{name}-unix"))?)?;
    let mut port = [0; 2];
    (&unix).read_exact(&mut port)?;
    let connect = |poll: u8| -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&host, "10.0.0.2:7")?;
        stream.set_nodelay(true)?;
        stream.set_busy_poll(poll.into())?;
        (&stream).write_all(&[poll])?;
        Ok(stream)
    };
    let (polling, blocking) = (connect(POLL as u8)?, connect(0)?);
    let loopback = net::TcpStream::connect(("127.0.0.1", u16::from_ne_bytes(port)))?;
    loopback.set_nodelay(true)?;
    let inside = within_process(cpu)?;

    let mut medians = [(); ARMS.len()].map(|()| Vec::new());
    for round in 0..rounds {
        for at in 0..ARMS.len() {
            // Every second round backwards.
            let arm = if round % 2 == 0 { at } else { ARMS.len() - 1 - at };
            medians[arm].push(match arm {
                0 => median(&polling, &polling)?,
                1 => median(&blocking, &blocking)?,
                2 => median(&loopback, &loopback)?,
                3 => median(&unix, &unix)?,
                _ => median(&inside, &inside)?,
            });
        }
    }
    Ok(medians)
}

fn print(medians: &[Vec<f64>; ARMS.len()]) {
    for (arm, name) in ARMS.iter().enumerate() {
        let ratio = |to: usize| {
            let pairs = medians[arm].iter().zip(&medians[to]);
            middle(pairs.map(|(ours, theirs)| ours / theirs).collect())
        };
        let p50 = middle(medians[arm].clone());
        println!(
            "  {name:18} {p50:7.2} us   {:5.3} x loopback TCP   {:5.3} x AF_UNIX",
            ratio(2),
            ratio(3)
        );
    }
}

/// The other process listens soon.
fn connect_when_there(address: &SocketAddr) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect_addr(address) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// A connection over a cable to a thread of this process.
fn within_process(cpu: usize) -> io::Result<TcpStream> {
    let (a, b) = cable::pair(cable::Config::default())?;
    let left = Host::builder().interface(a, "10.1.0.1/24").busy_read(POLL).build()?;
    let right = Host::builder().interface(b, "10.1.0.2/24").busy_read(POLL).build()?;
    let listener = TcpListener::bind(&right, "10.1.0.2:7")?;
    thread::spawn(move || {
        pin(cpu);
        if let Ok((stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            echo(&stream, &stream);
        }
    });
    let stream = TcpStream::connect(&left, "10.1.0.2:7")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The median round trip, in microseconds.
fn median(mut from: impl Read, mut to: impl Write) -> io::Result<f64> {
    let mut byte = [0];
    // So that the other process, which has slept since its last turn, is awake.
    let until = Instant::now() + Duration::from_millis(1);
    while Instant::now() < until {
        to.write_all(&byte)?;
        from.read_exact(&mut byte)?;
    }
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let start = Instant::now();
        to.write_all(&byte)?;
        from.read_exact(&mut byte)?;
        times.push(start.elapsed().as_nanos() as f64 / 1_000.0);
    }
    Ok(middle(times))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
