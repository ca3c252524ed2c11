//! Whether a device's queues are polled: by sockets, epoll instances and io_urings of all processes.

use busypoll_linux::bpf::files::Kind;
use busypoll_linux::{EpollParams, NapiId, bpf, deferral, stat};

use super::facts::Device;
use crate::process::{Census, Process};
use crate::{Report, Scope};

/// The pollers of a device, as far as they can be seen.
pub(super) struct Pollers {
    /// Whether there is a poller.
    pub(super) any: bool,
    /// How long they poll, and whether any of them prefers busy polling.
    pub(super) how: deferral::Pollers,
    /// What was read, and its value.
    pub(super) evidence: [String; 2],
}

impl Pollers {
    pub(super) fn of(device: &Device) -> Self {
        if bpf::available().is_ok()
            && let Ok(census) = Census::take(&Scope::default(), &mut Report::default())
        {
            return Self::in_census(device, &census);
        }
        // Without the right to see other users' sockets: the busy-poll counter of this namespace.
        let packets = stat::busy_poll_rx_packets().unwrap_or(0);
        let read = "nstat -az TcpExtBusyPollRxPackets".into();
        let how = deferral::Pollers { longest_usecs: None, prefer: packets > 0 };
        Pollers { any: packets > 0, how, evidence: [read, packets.to_string()] }
    }

    fn in_census(device: &Device, census: &Census) -> Self {
        // Before Linux 6.8 the kernel does not report the device of an id.
        let of_device =
            |id: NapiId| !device.napis_listed || device.napis.iter().any(|n| n.id == id.get());
        let polls = |process: &Process, kind: &Kind| match kind {
            Kind::Socket(s) => {
                (s.busy_poll_usecs > 0 || s.prefer_busy_poll) && s.napi.is_some_and(of_device)
            }
            // An epoll instance drops its NAPI id after a poll in vain, and an io_uring does not show its ids.
            Kind::Epoll { params, napi } => {
                is_on(params) && napi.map_or_else(|| receives(process, of_device), of_device)
            }
            Kind::Uring(ring) => ring.busy_poll_ns > 0 && receives(process, of_device),
        };
        let mut how = deferral::Pollers::default();
        let files =
            census.processes.values().flat_map(|p| p.files.iter().map(move |f| (p, &f.kind)));
        for (_, kind) in files.filter(|(process, kind)| polls(process, kind)) {
            let (usecs, prefer) = match kind {
                Kind::Socket(s) => (s.busy_poll_usecs, s.prefer_busy_poll),
                Kind::Epoll { params, .. } => (params.busy_poll_usecs, params.prefer_busy_poll),
                Kind::Uring(ring) => ((ring.busy_poll_ns / 1000) as u32, ring.prefer_busy_poll),
            };
            how.longest_usecs = how.longest_usecs.max(Some(usecs));
            how.prefer |= prefer;
        }
        let named: Vec<String> = census
            .processes
            .values()
            .filter(|p| p.files.iter().any(|file| polls(p, &file.kind)))
            .map(|p| format!("{}[{}]", p.name, p.pid))
            .collect();
        let said = if named.is_empty() { "nothing polls it".into() } else { named.join(", ") };
        let read = "sockets and epoll instances of all processes".into();
        Pollers { any: !named.is_empty(), how, evidence: [read, said] }
    }
}

/// Whether a socket of the process takes packets from the device.
fn receives(process: &Process, of_device: impl Fn(NapiId) -> bool) -> bool {
    process.sockets().any(|(_, socket)| socket.napi.is_some_and(&of_device))
}

fn is_on(params: &EpollParams) -> bool {
    params.busy_poll_usecs > 0 || params.prefer_busy_poll
}
