//! The stack plane's ends: hosts in user space over the cable or over AF_XDP, and the waits of their sockets.

mod tcp;
mod udp;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use busypoll_lab::LabHost;
use busypoll_linux::link::Links;
use busypoll_stack::nic::{Nic, cable, xdp::Xdp};
use busypoll_stack::{Builder, Host};

use crate::arm::{self, Arm, Mode, Protocol};
use crate::fix::{Acceptor, Initiator};
use crate::open;
use crate::slot::{self, Plan, Slot};
use crate::stamps::{End, Recorder, Stamped};
use crate::units::Size;
use crate::workload::{Load, Polling};

pub use tcp::Tcp;
pub use udp::Udp;

const PORT: u16 = 7000;
/// IPv4 and UDP headers.
const HEADERS: usize = 28;

/// The MTU of a cable: large enough that no message is fragmented.
pub(crate) fn cable_mtu(size: Size, mtu: usize) -> usize {
    (size.request.max(size.response) + HEADERS).clamp(mtu, 65_535)
}

/// Runs a stack arm once.
///
/// # Errors
/// A message of one line.
pub fn run(arm: &Arm, plan: &Plan<'_>) -> Result<Slot, String> {
    if let Some(count) = plan.open {
        return among(arm, plan, count);
    }
    let Some(remote) = plan.remote else { return between(arm, plan, None) };
    let host = plan.host.ok_or(NO_DEVICE)?;
    let wait = Wait::client(arm, plan);
    match arm.protocol {
        Protocol::Udp => {
            slot::run_remote(plan, arm, remote, |to| Udp::client(host, to, wait, plan.clock))
        }
        Protocol::Tcp => {
            slot::run_remote(plan, arm, remote, |to| Tcp::client(host, to, wait, plan.clock))
        }
    }
}

/// Runs a stack arm once and records the stages of the client's receives.
///
/// # Errors
/// A message of one line.
pub fn run_recorded(arm: &Arm, plan: &Plan<'_>, recorder: &Recorder) -> Result<Slot, String> {
    between(arm, plan, Some(recorder))
}

fn between(arm: &Arm, plan: &Plan<'_>, recorder: Option<&Recorder>) -> Result<Slot, String> {
    let Ends { at, server, client } = ends(arm, plan, recorder)?;
    let (wait, client_wait) = (Wait::of(arm.mode, plan.busy_poll), Wait::client(arm, plan));
    let clock = plan.clock;
    match arm.protocol {
        Protocol::Udp => slot::run(
            plan,
            |announce| {
                let socket = Udp::server(&server()?, at, wait, clock)?;
                announce.ready(at);
                Ok(socket)
            },
            |to| Ok(Udp::client(&client()?, to, client_wait, clock)?.recorded(recorder)),
        ),
        Protocol::Tcp if plan.fix => slot::run(
            plan,
            |announce| {
                let end = Tcp::server(&server()?, at, wait, clock, announce, None)?;
                Ok(Acceptor::new(end, clock))
            },
            |to| {
                let end = Tcp::client(&client()?, to, client_wait, clock)?;
                Initiator::logon(end, clock).map_err(|e| format!("FIX logon: {e}"))
            },
        ),
        Protocol::Tcp => slot::run(
            plan,
            |announce| Tcp::server(&server()?, at, wait, clock, announce, None),
            |to| Tcp::client(&client()?, to, client_wait, clock),
        ),
    }
}

/// Runs a stack arm once on the last of `count` connections or sockets.
fn among(arm: &Arm, plan: &Plan<'_>, count: usize) -> Result<Slot, String> {
    let Ends { at, server, client } = ends(arm, plan, None)?;
    let (wait, clock) = (Wait::of(arm.mode, plan.busy_poll), plan.clock);
    match arm.protocol {
        Protocol::Udp => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            open::run(
                plan,
                [count, 1],
                |announce, party| {
                    let host = server()?;
                    announce.ready(at);
                    party.open(|last| Udp::server(&host, if last { at } else { any }, wait, clock))
                },
                |to, party| {
                    let host = client()?;
                    party.open(|_| Udp::client(&host, to, wait, clock))
                },
            )
        }
        Protocol::Tcp => open::run(
            plan,
            [count; 2],
            |announce, party| {
                let host = server()?;
                let listener = Tcp::listen(&host, at, announce)?;
                party.open(|_| {
                    let mut end = Tcp::accept(&listener, &host, wait, clock, None)?;
                    open::answer(&mut end).map(|()| end)
                })
            },
            |to, party| {
                let host = client()?;
                party.open(|_| {
                    let mut end = Tcp::client(&host, to, wait, clock)?;
                    open::ask(&mut end).map(|()| end)
                })
            },
        ),
    }
}

/// Makes a host; called on its thread, CPU and kernel host.
type Make<'a> = Box<dyn FnOnce() -> Result<Host, String> + Send + 'a>;

/// The two hosts of an arm.
struct Ends<'a> {
    /// The server's address.
    at: SocketAddr,
    server: Make<'a>,
    client: Make<'a>,
}

fn ends<'a>(
    arm: &Arm,
    plan: &'a Plan<'a>,
    recorder: Option<&'a Recorder>,
) -> Result<Ends<'a>, String> {
    if arm.nic == arm::Nic::Cable {
        let mtu = cable_mtu(plan.size, plan.mtu);
        let config = cable::Config { mtu, coalesce: plan.coalesce, ..cable::Config::default() };
        let (ours, theirs) = cable::pair(config).map_err(one_line)?;
        let [one, two] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        return Ok(Ends {
            at: (two, PORT).into(),
            server: Box::new(move || host_at(End::Sender, theirs, Some(two), plan, recorder)),
            client: Box::new(move || host_at(End::Receiver, ours, Some(one), plan, recorder)),
        });
    }
    let lab = plan.lab.ok_or("needs the lab")?;
    let open = |at: &LabHost| Xdp::open(at.interface()).map_err(|e| e.to_string());
    Ok(Ends {
        at: (lab.server.ipv4(), PORT).into(),
        server: Box::new(move || host_at(End::Sender, open(&lab.server)?, None, plan, recorder)),
        client: Box::new(move || host_at(End::Receiver, open(&lab.client)?, None, plan, recorder)),
    })
}

/// The server's host is the sender and the client's the receiver; only that direction is stamped.
fn host_at(
    end: End,
    nic: impl Nic + 'static,
    address: Option<Ipv4Addr>,
    plan: &Plan<'_>,
    recorder: Option<&Recorder>,
) -> Result<Host, String> {
    let cpu = match end {
        End::Sender => plan.server_cpu,
        End::Receiver => plan.client_cpu,
    };
    match recorder {
        None => host(nic, address, cpu),
        Some(r) => {
            let stamped = Stamped::new(nic, plan.clock, &r.stamps, end);
            let builder = match end {
                End::Sender => Host::builder(),
                End::Receiver => Host::builder().on_delivery(r.at_the_socket(plan.clock)),
            };
            build(builder, stamped, address, cpu)
        }
    }
}

/// A host on one NIC, with its interrupt thread on the CPU of the waiting thread. With an address of its own, or
/// the kernel's.
///
/// # Errors
/// A message of one line.
pub fn host(nic: impl Nic + 'static, address: Option<Ipv4Addr>, cpu: u32) -> Result<Host, String> {
    build(Host::builder(), nic, address, cpu)
}

fn build(
    builder: Builder,
    nic: impl Nic + 'static,
    address: Option<Ipv4Addr>,
    cpu: u32,
) -> Result<Host, String> {
    let builder = builder.interrupt_cpus(&[cpu as usize]);
    let builder = match address {
        Some(address) => builder.interface(nic, format!("{address}/24")),
        None => builder.shared_interface(nic),
    };
    builder.build().map_err(one_line)
}

pub(crate) fn one_line(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Why a stack arm cannot run between two machines.
pub const NO_DEVICE: &str =
    "needs an interface on both machines: `busypoll serve --dev IF` there, --dev IF here";

/// Whether there is an interface of this name, checked before the other machine is contacted.
///
/// # Errors
/// A message of one line.
pub fn check_device(name: &str) -> Result<(), String> {
    let found = Links::open().and_then(|mut links| links.get(name));
    found.map(drop).map_err(|e| format!("--dev: {e}"))
}

/// A host on a Linux interface, over AF_XDP, for a whole session, as attaching to a real NIC may reset its link.
///
/// # Errors
/// A message of one line.
pub fn on_device(name: &str, cpu: u32) -> Result<Host, String> {
    host(Xdp::open(name).map_err(|e| format!("--dev: {e}"))?, None, cpu)
}

/// How a thread waits on a stack socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Sleeps until the interrupt.
    Sleep,
    /// With `SO_BUSY_POLL`, in microseconds.
    BusyPoll(u32),
    /// Makes one pass over the queue at a time: for the open loop's client.
    Pass,
}

impl Wait {
    /// Its `SO_BUSY_POLL`, in microseconds.
    fn busy_poll(self) -> u32 {
        match self {
            Self::Sleep => 0,
            Self::BusyPoll(micros) => micros,
            Self::Pass => 1,
        }
    }

    /// The wait of a mode.
    pub fn of(mode: Mode, busy_poll: Duration) -> Self {
        match mode {
            Mode::BusyPoll => Self::BusyPoll(busy_poll.as_micros().try_into().unwrap_or(u32::MAX)),
            Mode::Blocking | Mode::Interrupt | Mode::Spin => Self::Sleep,
        }
    }

    pub(crate) fn client(arm: &Arm, plan: &Plan<'_>) -> Self {
        match plan.load {
            Load::Closed { .. } => Self::of(arm.mode, plan.busy_poll),
            Load::Open { .. } => Self::Pass,
        }
    }
}

/// The counts of a socket and of its host's contexts.
fn polling(host: &Host, napi_id: u32, hits: u64) -> Polling {
    let mut polling = Polling { napi_id, hits, ..Polling::default() };
    for context in host.contexts() {
        let stats = context.stats();
        polling.misses += stats.bp_misses;
        polling.yields += stats.bp_yields + stats.napi_yields;
        polling.interrupts += stats.interrupts;
    }
    polling
}
