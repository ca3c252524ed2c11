//! What sleeping and polling cost on this machine: round trips over a lab with a server that waits as the program does,
//! asleep, polling, and on the stack plane, in turns.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::bpf::waits::{OneWait, WaitCall, Waits, Watched};
use busypoll_linux::topology::CpuList;

use crate::Error;
use crate::answering::{MESSAGE, Shape};
use crate::model::Costs;
use crate::recording::{Recording, Round, quantile};
use crate::turns::{self, Count, Turn, Turns};

/// How many undisturbed turns of each server suffice, and the longest time to wait for them.
const ENOUGH: usize = 20;
const LONGEST: Duration = Duration::from_secs(8);

/// The watched server is measured in blocks of so many turns: to begin watching takes longer than a turn.
const BLOCK: usize = 4;

/// First exchanges with a server, before its first turn: routes and neighbours are found.
const WARM_UP: usize = 50;

/// The longest pause between turns. A longer one changes nothing: every CPU is in its deepest sleep by then.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// The shortest pause. A shorter wait is the peer's own computing time.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long the measured servers poll: longer than any pause.
const POLL: &str = "20ms";

/// What the program does, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Like {
    pub(crate) udp: bool,
    pub(crate) call: WaitCall,
    /// The work of a round, and how soon a packet comes, in nanoseconds.
    pub(crate) work: u64,
    pub(crate) arrival: u64,
    /// The CPUs it may run on, if these are not all.
    pub(crate) cpus: Option<CpuList>,
}

/// The costs, and why the stack plane has none.
pub(crate) struct Measured {
    pub(crate) costs: Costs,
    pub(crate) no_stack: Option<String>,
    /// Turns of the server of which the fewest were undisturbed.
    pub(crate) turns: Count,
}

/// Measures. Takes some four seconds, and up to ten where other programs hold the CPUs.
pub(crate) fn measure(like: &Like) -> Result<Measured, Error> {
    let kernel_lab = Lab::builder().build()?;
    let stack_lab = Lab::builder().build()?;
    let shape = |port| Shape { udp: like.udp, call: like.call, port };
    let start = |lab: &Lab, port, options: &[&str]| {
        Server::start(lab, shape(port), options, like.cpus.as_ref())
    };
    let mut asleep = start(&kernel_lab, 7351, &[])?;
    let mut polling = start(&kernel_lab, 7352, &["--busy-poll", POLL])?;
    let device = stack_lab.server.interface();
    let options = ["--plane", "stack", "--dev", device, "--strict", "--busy-poll", POLL];
    let (mut stack, no_stack) = match start(&stack_lab, 7353, &options) {
        Ok(server) => (Some(server), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let pause = Duration::from_nanos(like.arrival).min(LONGEST_PAUSE);
    let pause = if pause < SHORTEST_PAUSE { Duration::ZERO } else { pause };
    // The calls of a round take a part of its work.
    let mut bare = Turns::new();
    asleep.watched(0, pause, &mut bare)?;
    let compute = like.work.saturating_sub(half_of(&bare, |round| round.work));
    let (mut off, mut kernel, mut own) = (Turns::new(), Turns::new(), Turns::new());
    let (mut off_watched, mut polled) = (Turns::new(), Turns::new());
    let begun = Instant::now();
    for nth in 0usize.. {
        off.push(asleep.turn(compute, pause)?);
        kernel.push(polling.turn(compute, pause)?);
        if let Some(server) = &mut stack {
            own.push(server.turn(compute, pause)?);
        }
        // In turns with the rest: the difference to unwatched round trips is small.
        if nth.is_multiple_of(BLOCK) {
            asleep.watched(compute, pause, &mut off_watched)?;
        }
        let all = [off.count(), kernel.count(), own.count(), off_watched.count()];
        let enough = |count: &Count| count.all == 0 || count.undisturbed >= ENOUGH;
        if all.iter().all(enough) || begun.elapsed() > LONGEST {
            break;
        }
    }
    polling.watched(compute, pause, &mut polled)?;
    let half = |mut times: Vec<u64>| quantile(&mut times, 0.5) as f64;
    let costs = Costs {
        asleep_ns: half(off.times()),
        asleep_watched_ns: half(off_watched.times()),
        kernel_ns: half(kernel.times()),
        stack_ns: stack.is_some().then(|| half(own.times())),
        wake_up_ns: half_of(&off_watched, |round| round.delay) as f64,
        found_ns: half_of(&polled, |round| round.delay) as f64,
    };
    let counts = [off.count(), kernel.count(), own.count(), off_watched.count()];
    let counts = counts.into_iter().filter(|count| count.all > 0);
    let turns = counts.min_by_key(|count| count.undisturbed).unwrap_or_default();
    Ok(Measured { costs, no_stack, turns })
}

/// The median of something of the rounds of these turns.
fn half_of(turns: &Turns<Recording>, of: impl Fn(&Round) -> u64) -> u64 {
    quantile(&mut turns.seen().flat_map(|seen| seen.rounds().map(&of)).collect::<Vec<_>>(), 0.5)
}

/// A server of a lab; killed at the end.
struct Server {
    child: Child,
    /// The client's end; `None` until the server answers.
    peer: Option<Peer>,
}

impl Server {
    /// Under `busypoll run` with these options; without any, as it is.
    fn start(
        lab: &Lab,
        shape: Shape,
        options: &[&str],
        cpus: Option<&CpuList>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::Io("starting the server to measure", error);
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = match cpus {
            Some(cpus) => lab.server.command_on(&own, cpus.iter()),
            // The host's own command would be pinned to the host's CPU.
            None => Namespace::command(&lab.server, &own),
        };
        if !options.is_empty() {
            command.arg("run").args(options).arg("--").arg(&own);
        }
        command.args(["advise", "--answer", &shape.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut said).map_err(failed)?;
        }
        if said.trim_end() == "ready" {
            let mut server = Server { child, peer: None };
            server.peer = Some(lab.client.enter(move || Peer::connect(shape))??);
            for _ in 0..WARM_UP {
                server.exchange(0)?;
            }
            return Ok(server);
        }
        let mut why = String::new();
        if let Some(mut err) = child.stderr.take() {
            let _ = err.read_to_string(&mut why);
        }
        let _ = child.kill();
        let _ = child.wait();
        let why = why.lines().next_back().unwrap_or("it ended").to_owned();
        Err(failed(io::Error::other(why)))
    }

    /// A request for which the server computes so long, and its answer.
    fn exchange(&mut self, compute: u64) -> Result<(), Error> {
        let peer = self.peer.as_mut().ok_or_else(|| failed(io::ErrorKind::NotConnected.into()))?;
        peer.exchange(compute.to_ne_bytes()).map_err(failed)
    }

    fn turn(&mut self, compute: u64, pause: Duration) -> Result<Turn<()>, Error> {
        turns::turn(self.child.id(), pause, || self.exchange(compute))
    }

    /// A block of turns, with the server's waits in each.
    fn watched(
        &mut self,
        compute: u64,
        pause: Duration,
        turns: &mut Turns<Recording>,
    ) -> Result<(), Error> {
        let watched = Watched { children: false, each: true };
        let mut waits = Waits::start(&[self.child.id()], watched)?;
        for _ in 0..BLOCK {
            let begun = Instant::now();
            let turn = self.turn(compute, pause)?;
            let all: Vec<OneWait> = std::iter::from_fn(|| waits.next_wait()).collect();
            let time = begun.elapsed().as_nanos() as u64;
            let seen = Recording::of(&all, time, waits.lost()?);
            turns.push(Turn { times: turn.times, undisturbed: turn.undisturbed, seen });
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long an answer may take. A busy machine keeps a thread from its CPU for seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The measuring end of a server's connection.
enum Peer {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Peer {
    /// To be called in the network namespace of the lab's client.
    fn connect(shape: Shape) -> Result<Self, Error> {
        let address = (Ipv4Addr::new(10, 77, 0, 2), shape.port);
        let limit = Some(PATIENCE);
        let made = || -> io::Result<Self> {
            if shape.udp {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(address)?;
                socket.set_read_timeout(limit)?;
                return Ok(Peer::Udp(socket));
            }
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(limit)?;
            Ok(Peer::Tcp(stream))
        };
        made().map_err(failed)
    }

    /// A request and its answer.
    fn exchange(&mut self, request: [u8; MESSAGE]) -> io::Result<()> {
        let mut answer = [0; MESSAGE];
        match self {
            Peer::Udp(socket) => {
                socket.send(&request)?;
                socket.recv(&mut answer).map(drop)
            }
            Peer::Tcp(stream) => {
                stream.write_all(&request)?;
                stream.read_exact(&mut answer)
            }
        }
    }
}

fn failed(error: io::Error) -> Error {
    let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let error = if late {
        let why =
            format!("no answer in {} s; try again on a less busy machine", PATIENCE.as_secs());
        io::Error::new(io::ErrorKind::TimedOut, why)
    } else {
        error
    };
    Error::Io("measuring a round trip", error)
}
