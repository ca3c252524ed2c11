//! What a runtime costs beside blocking calls: round trips of a byte, both ends in one process, the arms in turns.
//!
//! `cargo test --release -p busypoll --test tokio_cost -- --ignored --nocapture`

use busypoll::{
    stack::{
        self, Events, Host, ReadyFd,
        nic::{cable, xdp::Xdp},
    },
    tokio::{PollerTask, TcpListener, TcpStream, UdpSocket},
};
use busypoll_lab::{Lab, LabHost};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, unix::AsyncFd};

const PORT: u16 = 7;
const BUSY_POLL: Duration = Duration::from_micros(1000);
const ROUNDS: usize = 6;

/// How an end waits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arm {
    /// A blocking call that busy polls: the baseline.
    Blocking,
    /// Tasks, and a poller task.
    Poller,
    /// The same, and each call makes a pass of its own first (`SO_BUSY_POLL`).
    PollerAndCalls,
    /// A blocking call that sleeps.
    Asleep,
    /// Tasks, woken by the interrupt.
    Interrupt,
    /// Tasks that wait for a descriptor in tokio's reactor.
    Descriptor,
}

const ARMS: [Arm; 6] =
    [Arm::Blocking, Arm::Poller, Arm::PollerAndCalls, Arm::Asleep, Arm::Interrupt, Arm::Descriptor];

impl Arm {
    fn busy_read(self) -> u32 {
        match self {
            Arm::Blocking | Arm::PollerAndCalls => BUSY_POLL.as_micros() as u32,
            _ => 0,
        }
    }

    fn blocks(self) -> bool {
        matches!(self, Arm::Blocking | Arm::Asleep)
    }
}

fn pin(cpu: usize) {
    // SAFETY: an empty set, one CPU added, for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Runs `end` on a runtime as `arm` says, in a task of its own: tokio wakes the future of `block_on` by a system call.
fn on_runtime<T: Send + 'static>(
    arm: Arm,
    host: &Host,
    end: impl Future<Output = io::Result<T>> + Send + 'static,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if matches!(arm, Arm::Poller | Arm::PollerAndCalls) {
            tokio::spawn(PollerTask::new(host, BUSY_POLL).unwrap());
        }
        tokio::spawn(end).await.unwrap().unwrap()
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The server's end of `count` round trips. It sends to `ready` once it is bound.
fn serve(arm: Arm, tcp: bool, host: &Host, at: SocketAddr, count: usize, ready: mpsc::Sender<()>) {
    if arm.blocks() && !tcp {
        let socket = stack::UdpSocket::bind(host, at).unwrap();
        ready.send(()).unwrap();
        for _ in 0..count {
            let (len, from) = socket.recv_from(&mut [0; 8]).unwrap();
            socket.send_to(&[7; 8][..len], from).unwrap();
        }
    } else if arm.blocks() {
        let listener = stack::TcpListener::bind(host, at).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        for _ in 0..count {
            stream.read_exact(&mut [0; 1]).unwrap();
            stream.write_all(b"y").unwrap();
        }
    } else {
        let own = host.clone();
        on_runtime(arm, host, async move {
            let host = &own;
            if arm == Arm::Descriptor {
                let socket = stack::UdpSocket::bind(host, at)?;
                ready.send(()).unwrap();
                let socket = watched(socket)?;
                for _ in 0..count {
                    let (len, from) = receive(&socket).await?;
                    socket.0.send_to(&[7; 8][..len], from)?;
                }
            } else if tcp {
                let listener = TcpListener::bind(host, at).await?;
                ready.send(()).unwrap();
                let (mut stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                for _ in 0..count {
                    stream.read_exact(&mut [0; 1]).await?;
                    stream.write_all(b"y").await?;
                }
            } else {
                let socket = UdpSocket::bind(host, at).await?;
                ready.send(()).unwrap();
                for _ in 0..count {
                    let (len, from) = socket.recv_from(&mut [0; 8]).await?;
                    socket.send_to(&[7; 8][..len], from).await?;
                }
            }
            Ok(())
        });
    }
}

/// The client's end: the median time of a round trip.
fn ask(arm: Arm, tcp: bool, host: &Host, at: SocketAddr, count: usize) -> Duration {
    let mut times = Vec::with_capacity(count);
    let any = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
    if arm.blocks() && !tcp {
        let socket = stack::UdpSocket::bind(host, any).unwrap();
        socket.connect(at).unwrap();
        for _ in 0..count {
            let begun = Instant::now();
            socket.send(b"x").unwrap();
            socket.recv(&mut [0; 8]).unwrap();
            times.push(begun.elapsed());
        }
    } else if arm.blocks() {
        let mut stream = stack::TcpStream::connect(host, at).unwrap();
        stream.set_nodelay(true).unwrap();
        for _ in 0..count {
            let begun = Instant::now();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
            times.push(begun.elapsed());
        }
    } else {
        let own = host.clone();
        times = on_runtime(arm, host, async move {
            let host = &own;
            if arm == Arm::Descriptor {
                let socket = watched(stack::UdpSocket::bind(host, any)?)?;
                socket.0.connect(at)?;
                for _ in 0..count {
                    let begun = Instant::now();
                    socket.0.send(b"x")?;
                    receive(&socket).await?;
                    times.push(begun.elapsed());
                }
            } else if tcp {
                let mut stream = TcpStream::connect(host, at).await?;
                stream.set_nodelay(true)?;
                for _ in 0..count {
                    let begun = Instant::now();
                    stream.write_all(b"x").await?;
                    stream.read_exact(&mut [0; 1]).await?;
                    times.push(begun.elapsed());
                }
            } else {
                let socket = UdpSocket::bind(host, any).await?;
                socket.connect(at).await?;
                for _ in 0..count {
                    let begun = Instant::now();
                    socket.send(b"x").await?;
                    socket.recv(&mut [0; 8]).await?;
                    times.push(begun.elapsed());
                }
            }
            Ok(times)
        });
    }
    median(times)
}

type Watched = (stack::UdpSocket, AsyncFd<ReadyFd>);

fn watched(socket: stack::UdpSocket) -> io::Result<Watched> {
    socket.set_nonblocking(true)?;
    let ready = ReadyFd::new(&socket, Events::READABLE)?;
    // SAFETY: the descriptor is `ready`'s own, until it is dropped.
    let ready = unsafe { AsyncFd::register(ready) }?;
    Ok((socket, ready))
}

async fn receive((socket, ready): &Watched) -> io::Result<(usize, SocketAddr)> {
    let interest = tokio::io::Interest::READABLE;
    ready.async_io(interest, |ready| ready.try_io(|| socket.recv_from(&mut [0; 8]))).await
}

/// Prints the medians of each arm over the rounds, and their ratio to the first arm's, round by round.
fn compare(what: &str, tcp: bool, count: usize, mut round: impl FnMut(Arm) -> Duration) {
    let arms: Vec<Arm> = ARMS.into_iter().filter(|arm| !tcp || *arm != Arm::Descriptor).collect();
    let mut times = vec![Vec::new(); arms.len()];
    for turn in 0..ROUNDS {
        for step in 0..arms.len() {
            let at = (turn + step) % arms.len();
            times[at].push(round(arms[at]));
        }
    }
    println!("{what}, {count} round trips x {ROUNDS} rounds:");
    for (arm, times_of) in arms.iter().zip(&times) {
        let ratios = times_of.iter().zip(&times[0]).map(|(own, base)| own.div_duration_f64(*base));
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let p50 = median(times_of.clone());
        println!(
            "  {:15} p50 {p50:>10.2?}  {:.2} x blocking",
            format!("{arm:?}"),
            ratios[ROUNDS / 2]
        );
    }
}

/// An end of the exchange: its host, and the network namespace that its threads are to be in.
struct End<'a> {
    host: Host,
    lab: Option<&'a LabHost>,
}

impl End<'_> {
    fn run<T: Send>(&self, cpu: usize, run: impl FnOnce(&Host) -> T + Send) -> T {
        pin(cpu);
        match self.lab {
            Some(lab) => lab.enter(|| run(&self.host)).unwrap(),
            None => run(&self.host),
        }
    }
}

fn exchange(
    arm: Arm,
    tcp: bool,
    count: usize,
    [left, right]: [End<'_>; 2],
    at: IpAddr,
) -> Duration {
    let at = SocketAddr::new(at, PORT);
    let (ready, wait) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| right.run(1, |host| serve(arm, tcp, host, at, count, ready)));
        wait.recv().unwrap();
        let client = scope.spawn(|| left.run(0, |host| ask(arm, tcp, host, at, count)));
        client.join().unwrap()
    })
}

#[test]
#[ignore = "a measurement; to be run in release"]
fn round_trips_over_the_cable() {
    const COUNT: usize = 5_000;
    for (what, tcp) in [("UDP over the cable", false), ("TCP over the cable", true)] {
        compare(what, tcp, COUNT, |arm| {
            let (a, b) = cable::pair(cable::Config::default()).unwrap();
            let host = |nic, address: &str| {
                let host = Host::builder().interface(nic, address).busy_read(arm.busy_read());
                End { host: host.build().unwrap(), lab: None }
            };
            let hosts = [host(a, "10.0.0.1/24"), host(b, "10.0.0.2/24")];
            exchange(arm, tcp, COUNT, hosts, "10.0.0.2".parse().unwrap())
        });
    }
}

#[test]
#[ignore = "a measurement; to be run in release"]
fn round_trips_over_xdp() {
    busypoll_lab::needs_root!();
    const COUNT: usize = 3_000;
    let lab = Lab::builder().build().unwrap();
    for (what, tcp) in [("UDP over AF_XDP on veth", false), ("TCP over AF_XDP on veth", true)] {
        compare(what, tcp, COUNT, |arm| {
            let hosts = [&lab.client, &lab.server].map(|end| {
                let build = || {
                    let nic = Xdp::open(end.interface())?;
                    Host::builder().shared_interface(nic).busy_read(arm.busy_read()).build()
                };
                End { host: end.enter(build).unwrap().unwrap(), lab: Some(end) }
            });
            exchange(arm, tcp, COUNT, hosts, lab.server.ipv4().into())
        });
    }
}
