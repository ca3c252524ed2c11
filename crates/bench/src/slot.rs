//! One run of one arm: server and client threads on their CPUs and in their hosts, warm-up, measurement,
//! evidence, and a reliable end. Everything an arm needs is created here and gone when it returns.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::topology;
use busypoll_stack::Host;
use busypoll_stack::nic::Coalesce;

use crate::arm::Arm;
use crate::clock::Clock;
use crate::data::Weight;
use crate::evidence::{Watch, Window};
use crate::local::process::{OtherEnd, Process};
use crate::remote::Remote;
use crate::stats::{self, Rtts};
use crate::units::Size;
use crate::workload::{self, Client, Endpoint, Load, Polling, Stage, Tally};

/// An arm's environment and duration.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The run's clock.
    pub clock: &'a Clock,
    /// The two hosts; none for arms inside the process.
    pub lab: Option<&'a Lab>,
    /// The server's machine, if it is another one.
    pub remote: Option<&'a Remote>,
    /// What makes this program the other end of an arm between processes; none if it cannot be.
    pub other_end: Option<OtherEnd>,
    /// The stack's host on this machine's interface, for arms between two machines.
    pub host: Option<&'a Host>,
    /// The client's CPU.
    pub client_cpu: u32,
    /// The server's CPU; the same for same-cpu arms.
    pub server_cpu: u32,
    /// Message sizes.
    pub size: Size,
    /// Pacing.
    pub load: Load,
    /// Whether requests are orders of a FIX session.
    pub fix: bool,
    /// At most this many requests, however long they take; none: as many as the time allows.
    pub messages: Option<u64>,
    /// The number of open connections, or UDP sockets of the server, including the measured one; none: only that one.
    pub open: Option<usize>,
    /// `SO_BUSY_POLL` of busy-poll arms.
    pub busy_poll: Duration,
    /// Interrupt moderation of cable arms.
    pub coalesce: Coalesce,
    /// The largest packet, in bytes.
    pub mtu: usize,
    /// Before the measurement.
    pub warm_up: Duration,
    /// The measurement.
    pub measure: Duration,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Slot {
    /// Round-trip times in nanoseconds.
    pub rtts: Rtts,
    /// Transactions and losses.
    pub tally: Tally,
    /// The machine's counters over the measurement.
    pub window: Window,
    /// The counts of both endpoints, with the client's napi id.
    pub polling: Polling,
    /// How long requests were on their way, in nanoseconds, if the server tells.
    pub one_way: Option<Rtts>,
    /// The memory per idle object, if there are any.
    pub weight: Option<Weight>,
}

/// Longer than any number of messages takes that a run should send.
const FOR_MESSAGES: Duration = Duration::from_secs(24 * 3600);

/// Passes the server's address to the client.
pub struct Announce(Box<dyn Fn(SocketAddr) + Send>);

impl Announce {
    pub(crate) fn new(sender: SyncSender<SocketAddr>) -> Self {
        // The client is gone only if it failed; its result has the reason.
        Self::by(move |address| _ = sender.send(address))
    }

    /// Calls `pass` with the address.
    pub(crate) fn by(pass: impl Fn(SocketAddr) + Send + 'static) -> Self {
        Self(Box::new(pass))
    }

    /// Must be called once the address takes messages.
    pub fn ready(&self, address: SocketAddr) {
        (self.0)(address);
    }
}

/// Runs one arm once. `serve` makes the server's endpoint and announces it, `connect` makes the client's;
/// both are called on the right thread, CPU and host.
///
/// # Errors
/// A message of one line: the first error of either side.
pub fn run<S: Endpoint, C: Endpoint>(
    plan: &Plan<'_>,
    serve: impl FnOnce(&Announce) -> Result<S, String> + Send,
    connect: impl FnOnce(SocketAddr) -> Result<C, String> + Send,
) -> Result<Slot, String> {
    let stage = Stage::default();
    let server_thread = AtomicU32::new(0);
    let (sender, address) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let (stage, server_thread) = (&stage, &server_thread);
        let server = scope.spawn(move || {
            let host = plan.lab.map(|lab| &*lab.server);
            inside(host, plan.server_cpu, || {
                server_thread.store(thread_id(), Ordering::Release);
                let mut endpoint = serve(&Announce::new(sender))?;
                workload::serve(&mut endpoint, plan.size, stage)
                    .map_err(|e| format!("the server stopped: {e}"))
            })
        });
        let client = scope.spawn(move || {
            let host = plan.lab.map(|lab| &*lab.client);
            inside(host, plan.client_cpu, move || {
                // A closed channel means that the server failed; its result has the reason.
                let address = address.recv().map_err(|_| String::new())?;
                let endpoint = connect(address)?;
                let server_thread = server_thread.load(Ordering::Acquire);
                let watch = Watch {
                    lab: plan.lab,
                    cpus: [plan.client_cpu, plan.server_cpu],
                    threads: &[thread_id(), server_thread],
                };
                let mut client = Client::new(endpoint, plan.clock, plan.size);
                let result = measure(plan, &mut client, &watch, ServerLocation::Thread(stage));
                stage.stop();
                // Wakes a waiting server; if it is gone, this does not matter.
                let _ = client.endpoint().send(&vec![0; plan.size.request]);
                result
            })
        });
        let client = client.join().unwrap_or_else(|_| Err("the client panicked".to_owned()));
        stage.stop();
        let server = server.join().unwrap_or_else(|_| Err("the server panicked".to_owned()));
        match (client, server) {
            (Ok(mut slot), Ok(server)) => {
                join(plan.load, &mut slot.polling, server);
                Ok(slot)
            }
            // The server's error usually caused the client's.
            (_, Err(why)) => Err(why),
            (Err(why), Ok(_)) => Err(why),
        }
    })
}

/// Runs one arm once against a server on another machine.
///
/// # Errors
/// A message of one line.
pub fn run_remote<C: Endpoint>(
    plan: &Plan<'_>,
    arm: &Arm,
    remote: &Remote,
    connect: impl FnOnce(SocketAddr) -> Result<C, String>,
) -> Result<Slot, String> {
    let address = remote.start(arm, plan.size, plan.busy_poll)?;
    let _pinned = topology::pin(plan.client_cpu).map_err(|e| e.to_string())?;
    let client = connect(address).and_then(|endpoint| {
        let mut client = Client::new(endpoint, plan.clock, plan.size);
        let cpus = [plan.client_cpu, plan.client_cpu];
        let watch = Watch { lab: None, cpus, threads: &[thread_id()] };
        measure(plan, &mut client, &watch, ServerLocation::Machine(remote))
    });
    // Also after a failure, or the server would continue to spin.
    let server = remote.stop();
    let mut slot = client?;
    join(plan.load, &mut slot.polling, server?);
    Ok(slot)
}

/// Runs one arm once against another process of this machine, which already serves.
///
/// # Errors
/// A message of one line.
pub(crate) fn run_local<C: Endpoint>(
    plan: &Plan<'_>,
    other: &Process,
    connect: impl FnOnce() -> Result<C, String>,
) -> Result<Slot, String> {
    let endpoint = connect()?;
    let mut client = Client::new(endpoint, plan.clock, plan.size);
    let watch = Watch {
        lab: None,
        cpus: [plan.client_cpu, plan.server_cpu],
        threads: &[thread_id(), other.thread()?],
    };
    let mut slot = measure(plan, &mut client, &watch, ServerLocation::Process(other))?;
    other.stop()?;
    // Wakes a waiting server; if it is gone, this does not matter.
    let _ = client.endpoint().send(&vec![0; plan.size.request]);
    join(plan.load, &mut slot.polling, other.stopped()?);
    Ok(slot)
}

/// Both ends' counts in the closed loop; in the open loop only the server waits in the arm's mode.
fn join(load: Load, client: &mut Polling, server: Polling) {
    match load {
        Load::Closed { .. } => client.add(&server),
        Load::Open { .. } => *client = server,
    }
}

/// The server, as seen by the client's thread.
#[derive(Clone, Copy)]
enum ServerLocation<'a> {
    Thread(&'a Stage),
    Machine(&'a Remote),
    Process(&'a Process),
}

/// Warms up, then measures between two readings of the counters.
fn measure<E: Endpoint>(
    plan: &Plan<'_>,
    client: &mut Client<'_, E>,
    watch: &Watch<'_>,
    server: ServerLocation<'_>,
) -> Result<Slot, String> {
    let io = |e: std::io::Error| match server {
        ServerLocation::Process(other) => other.why(&e),
        _ => e.to_string(),
    };
    client.greet().map_err(|e| match server {
        ServerLocation::Machine(remote) => format!("{e}; is a firewall before {}?", remote.name),
        _ => io(e),
    })?;
    let mut rtts = stats::histogram();
    drive(plan.load, client, (plan.warm_up, u64::MAX), &mut rtts, || ()).map_err(io)?;
    rtts.reset();
    client.endpoint().one_way().into_iter().for_each(Rtts::reset);
    match server {
        ServerLocation::Thread(stage) => stage.measure(),
        ServerLocation::Machine(remote) => remote.begin()?,
        ServerLocation::Process(other) => other.measure()?,
    }
    let before = watch.before()?;
    let earlier = client.endpoint().polling();
    let mut window = Err(String::new());
    let settled = || {
        window = watch.after().and_then(|after| {
            let mut window = after.since(&before, plan.server_cpu);
            if let ServerLocation::Machine(remote) = server {
                window.add_remote(&remote.end()?);
            }
            Ok(window)
        });
    };
    let until = match plan.messages {
        Some(most) => (FOR_MESSAGES, most),
        None => (plan.measure, u64::MAX),
    };
    let tally = drive(plan.load, client, until, &mut rtts, settled).map_err(io)?;
    let polling = client.endpoint().polling().since(&earlier);
    let one_way = client.endpoint().one_way().cloned();
    Ok(Slot { rtts, tally, window: window?, polling, one_way, weight: None })
}

fn drive<E: Endpoint>(
    load: Load,
    client: &mut Client<'_, E>,
    (time, most): (Duration, u64),
    rtts: &mut Rtts,
    settled: impl FnOnce(),
) -> std::io::Result<Tally> {
    match load {
        Load::Closed { gap } => client.closed_loop(time, gap, most, rtts).inspect(|_| settled()),
        Load::Open { rate } => client.open_loop(time, rate, rtts, settled),
    }
}

/// Runs `work` on one CPU, inside `host` if there is one.
pub(crate) fn inside<R: Send>(
    host: Option<&Namespace>,
    cpu: u32,
    work: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    let pinned = || {
        let _pinned = topology::pin(cpu).map_err(|e| e.to_string())?;
        work()
    };
    match host {
        Some(host) => host.enter(pinned).map_err(|e| e.to_string())?,
        None => pinned(),
    }
}

/// The id of the calling thread, as in /proc.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
