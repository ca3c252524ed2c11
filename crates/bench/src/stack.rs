//! The stack plane's endpoint: a UDP socket in user space, asleep or busy polling, over the cable or
//! over AF_XDP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use busypoll_lab::LabHost;
use busypoll_linux::link::Links;
use busypoll_stack::nic::{Nic, cable, xdp::Xdp};
use busypoll_stack::{Builder, Host, UdpSocket};

use crate::arm::{self, Arm, Mode};
use crate::clock::Clock;
use crate::slot::{self, Load, Plan, Slot};
use crate::stages::{End, Recorder, Stamped};
use crate::workload::{Endpoint, PATIENCE, Polling};

const PORT: u16 = 7000;
/// IPv4 and UDP headers.
const HEADERS: usize = 28;

/// Runs a stack arm once.
///
/// # Errors
/// One line.
pub fn run(arm: &Arm, plan: &Plan<'_>) -> Result<Slot, String> {
    if let Some(remote) = plan.remote {
        let host = plan.host.ok_or(NO_DEVICE)?;
        let wait = Wait::client(arm, plan);
        return slot::run_remote(plan, arm, remote, |to| Stack::client(host, to, wait, plan.clock));
    }
    match arm.nic {
        arm::Nic::Cable => over_cable(arm, plan, None),
        _ => over_xdp(arm, plan, None),
    }
}

/// Runs a stack arm once and records the stages of the client's receives.
///
/// # Errors
/// One line.
pub fn run_recorded(arm: &Arm, plan: &Plan<'_>, recorder: &Recorder) -> Result<Slot, String> {
    match arm.nic {
        arm::Nic::Cable => over_cable(arm, plan, Some(recorder)),
        _ => over_xdp(arm, plan, Some(recorder)),
    }
}

fn over_cable(arm: &Arm, plan: &Plan<'_>, recorder: Option<&Recorder>) -> Result<Slot, String> {
    // A cable is as wide as what is sent over it: nothing here fragments.
    let mtu = (plan.size.request.max(plan.size.response) + HEADERS).max(1500);
    let config = cable::Config { mtu, coalesce: plan.coalesce, ..cable::Config::default() };
    let (ours, theirs) = cable::pair(config).map_err(one_line)?;
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    slot::run(
        plan,
        |announce| {
            let host = host_at(End::Sender, theirs, Some(address(2)), plan, recorder)?;
            let at = SocketAddr::from((address(2), PORT));
            let socket = Stack::server(&host, at, Wait::of(arm.mode, plan.busy_poll), plan.clock)?;
            announce.ready(at);
            Ok(socket)
        },
        |to| {
            let host = host_at(End::Receiver, ours, Some(address(1)), plan, recorder)?;
            let client = Stack::client(&host, to, Wait::client(arm, plan), plan.clock)?;
            Ok(client.recorded(recorder))
        },
    )
}

fn over_xdp(arm: &Arm, plan: &Plan<'_>, recorder: Option<&Recorder>) -> Result<Slot, String> {
    let lab = plan.lab.ok_or("needs the lab")?;
    let open = |at: &LabHost| Xdp::open(at.interface()).map_err(|e| e.to_string());
    slot::run(
        plan,
        |announce| {
            let host = host_at(End::Sender, open(&lab.server)?, None, plan, recorder)?;
            let at = SocketAddr::from((lab.server.ipv4(), PORT));
            let socket = Stack::server(&host, at, Wait::of(arm.mode, plan.busy_poll), plan.clock)?;
            announce.ready(at);
            Ok(socket)
        },
        |to| {
            let host = host_at(End::Receiver, open(&lab.client)?, None, plan, recorder)?;
            let client = Stack::client(&host, to, Wait::client(arm, plan), plan.clock)?;
            Ok(client.recorded(recorder))
        },
    )
}

/// The server's host sends what the client's receives; only that way is looked at.
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

/// A host on one NIC, its interrupt on the CPU of the thread that waits. With an address of its own, or
/// the kernel's.
///
/// # Errors
/// One line.
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

fn one_line(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Why a stack arm cannot run between two machines.
pub const NO_DEVICE: &str =
    "needs an interface on both machines: `busypoll serve --dev IF` there, --dev IF here";

/// Whether there is an interface of this name, before anybody else is troubled.
///
/// # Errors
/// One line.
pub fn check_device(name: &str) -> Result<(), String> {
    let found = Links::open().and_then(|mut links| links.get(name));
    found.map(drop).map_err(|e| format!("--dev: {e}"))
}

/// A host on a Linux interface, by AF_XDP, for a whole session: attaching to a real NIC may reset its link.
///
/// # Errors
/// One line.
pub fn on_device(name: &str, cpu: u32) -> Result<Host, String> {
    host(Xdp::open(name).map_err(|e| format!("--dev: {e}"))?, None, cpu)
}

/// How a stack socket waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until the interrupt.
    Sleep,
    /// With `SO_BUSY_POLL`, in microseconds.
    BusyPoll(u32),
    /// One pass over the queue at a time: the open loop's client.
    Pass,
}

impl Wait {
    /// The mode's way of waiting.
    pub fn of(mode: Mode, busy_poll: Duration) -> Self {
        match mode {
            Mode::BusyPoll => Self::BusyPoll(busy_poll.as_micros().try_into().unwrap_or(u32::MAX)),
            Mode::Blocking | Mode::Interrupt | Mode::Spin => Self::Sleep,
        }
    }

    fn client(arm: &Arm, plan: &Plan<'_>) -> Self {
        match plan.load {
            Load::Closed { .. } => Self::of(arm.mode, plan.busy_poll),
            Load::Open { .. } => Self::Pass,
        }
    }
}

/// A UDP socket of the stack.
pub struct Stack<'a> {
    socket: UdpSocket,
    host: Host,
    wait: Wait,
    clock: &'a Clock,
    connected: bool,
    only_from: Option<IpAddr>,
    recorder: Option<Recorder>,
}

impl<'a> Stack<'a> {
    /// Connects to the server.
    ///
    /// # Errors
    /// One line.
    pub fn client(
        host: &Host,
        server: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        let mut end = Self::server(host, (Ipv4Addr::UNSPECIFIED, 0).into(), wait, clock)?;
        end.socket.connect(server).map_err(one_line)?;
        end.connected = true;
        Ok(end)
    }

    /// Serves on an address; connects to the first that speaks.
    ///
    /// # Errors
    /// One line.
    pub fn server(
        host: &Host,
        at: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        let socket = UdpSocket::bind(host, at).map_err(|e| format!("bind {at}: {e}"))?;
        let options = || {
            socket.set_busy_poll(match wait {
                Wait::Sleep => 0,
                Wait::BusyPoll(micros) => micros,
                Wait::Pass => 1,
            })?;
            socket.set_nonblocking(wait == Wait::Pass)?;
            socket.set_read_timeout(Some(PATIENCE))
        };
        options().map_err(one_line)?;
        Ok(Self {
            socket,
            host: host.clone(),
            wait,
            clock,
            connected: false,
            only_from: None,
            recorder: None,
        })
    }

    /// Listens to nobody but `peer`.
    pub fn only_from(self, peer: IpAddr) -> Self {
        Self { only_from: Some(peer), ..self }
    }

    fn recorded(self, recorder: Option<&Recorder>) -> Self {
        Self { recorder: recorder.cloned(), ..self }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let received = match self.connected {
            true => self.socket.recv(buffer).map(Some),
            false => self.first(buffer),
        };
        if let Some(recorder) = &self.recorder
            && received.is_ok()
        {
            recorder.returned(self.clock);
        }
        match received {
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            other => other,
        }
    }

    #[cold]
    fn first(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let (n, peer) = self.socket.recv_from(buffer)?;
        if self.only_from.is_some_and(|only| only != peer.ip()) {
            return Ok(None);
        }
        self.socket.connect(peer)?;
        self.connected = true;
        Ok(Some(n))
    }
}

impl Endpoint for Stack<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.send(message).map(drop)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.wait != Wait::Pass {
            return self.receive(buffer);
        }
        let give_up = self.clock.now() + self.clock.ticks(PATIENCE);
        loop {
            if let Some(n) = self.receive(buffer)? {
                return Ok(Some(n));
            }
            if self.clock.now() > give_up {
                return Ok(None);
            }
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(buffer)
    }

    fn polling(&self) -> Polling {
        let socket = self.socket.stats();
        let mut polling = Polling {
            napi_id: self.socket.incoming_napi_id().map_or(0, |id| id.get()),
            hits: socket.own_polls,
            ..Polling::default()
        };
        for context in self.host.contexts() {
            let stats = context.stats();
            polling.misses += stats.bp_misses;
            polling.yields += stats.bp_yields + stats.napi_yields;
            polling.interrupts += stats.interrupts;
        }
        polling
    }
}
