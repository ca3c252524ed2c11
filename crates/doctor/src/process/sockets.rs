//! Faults that keep a socket from busy polling.

use busypoll_linux::bpf::files::Socket;
use std::os::fd::RawFd;

use busypoll_linux::polls::{self, Facts, Obstacle, Queue, WaitMethod};

use super::descriptors::{Class, class, describe};
use super::judge::{Judge, Waiting};
use super::napis::NapiLocation;
use super::{NapiState, Process};
use crate::rules::{
    NOT_SEEN, PREFER_NO_DEFER, SOCK_IDLE, SOCK_IN_EPOLL, SOCK_IN_POLL, SOCK_IN_URING, SOCK_KTLS,
    SOCK_LOOPBACK, SOCK_MPTCP, SOCK_NO_NAPI, SOCK_OFF, SOCK_POLL_OFF, SOCK_RAW, SOCK_READY,
    SOCK_SPIN, SOCK_STALE, SOCK_STALE_FOREVER, XDP_NO_NAPI,
};
use crate::{Finding, Rule};

/// For programs that wait in poll or select: `run` makes them wait in an epoll instance, which polls by itself since
/// Linux 6.9.
const FOR_POLL: &str = "busypoll run -- PROGRAM";
/// The same for the whole machine: the only remedy before Linux 6.9.
const FOR_ALL_POLLS: &str = "sysctl -w net.core.busy_poll=50";

/// The rule, the case at hand, and the command that fixes it.
type Fault = (&'static Rule, String, Option<String>);

impl Judge<'_> {
    pub(super) fn socket(&mut self, process: &Process, fd: RawFd, socket: &Socket) {
        let class = class(socket);
        if matches!(class, Class::Listener | Class::NoPackets | Class::Other) {
            return;
        }
        let waiting = process.waiting(fd, socket);
        let facts = self.facts(process, socket, &waiting, class);
        let say = |rule: &'static Rule, what: String| -> Finding {
            rule.finding(process.descriptor(fd, describe(socket)), what)
                .evidence("SO_BUSY_POLL", format!("{} us", socket.busy_poll_usecs))
                .evidence("waits", waiting.describe())
        };
        let polling_epoll =
            matches!(facts.wait_method, WaitMethod::Epoll { polls: Some(true), .. });
        if !facts.option && !polling_epoll {
            if self.asked && class.learns() && !facts.is_loopback && !process.under_run {
                self.merely_off(process, facts.wait_method, &waiting, say);
            }
            return;
        }
        let set = format!("SO_BUSY_POLL {} us", socket.busy_poll_usecs);
        if facts.option && matches!(class, Class::Mptcp | Class::Raw) {
            let (rule, what) = match class {
                Class::Mptcp => (&SOCK_MPTCP, format!("{set} on MPTCP")),
                _ => (&SOCK_RAW, format!("{set} on a {} socket", socket.protocol_name)),
            };
            return self.add(process.pid, say(rule, what));
        }
        if class == Class::Xdp {
            if socket.napi.is_none() {
                self.add(process.pid, say(&XDP_NO_NAPI, "it has no NAPI id".into()));
            }
            return;
        }
        if !class.learns() {
            return;
        }
        if facts.wait_method == WaitMethod::NotWaiting {
            let what = format!("{set}, and no thread waits for it; {}", self.describe_napi(socket));
            return self.add(process.pid, say(&SOCK_IDLE, what));
        }
        if let Some(id) = socket.napi
            && matches!(self.napis.state(id), NapiState::Unknown)
        {
            self.unknown.insert(id);
        }
        let mut faults = Vec::new();
        if facts.option {
            faults.extend(self.way_of_waiting(process, fd, &facts, &set));
        }
        faults.extend(self.queue(process, socket, &facts));
        let by_option = facts.option && facts.wait_method == WaitMethod::Receive;
        let good = faults.is_empty() && by_option && self.is_alive(socket);
        for (rule, what, remedy) in faults {
            let mut finding = say(rule, what);
            if let Some(id) = socket.napi {
                finding = finding.evidence("SO_INCOMING_NAPI_ID", id);
            }
            if [SOCK_IN_EPOLL.code, SOCK_IN_POLL.code].contains(&rule.code) {
                finding = finding.evidence("net.core.busy_poll", self.host_evidence());
            }
            finding.remedy = remedy;
            self.add(process.pid, finding);
        }
        if good {
            let what = format!("{set}, receive calls, {}", self.describe_napi(socket));
            self.add(process.pid, say(&SOCK_READY, what));
        }
    }

    /// A process whose sockets all talk within this host gains nothing, switched on or not.
    pub(super) fn only_within_this_host(&mut self, process: &Process) {
        let is_reported = self.found.contains_key(&(process.pid, SOCK_LOOPBACK.code));
        let mut first = None;
        for (fd, socket) in process.sockets().filter(|(_, socket)| class(socket).learns()) {
            if is_reported || !self.napis.is_local(socket) {
                return;
            }
            first = first.or(Some((fd, socket)));
        }
        if let Some((fd, socket)) = first {
            let subject = process.descriptor(fd, describe(socket));
            let what =
                "its packets do not leave this host, nor do those of the process's other sockets";
            self.add(process.pid, SOCK_LOOPBACK.finding(subject, what));
        }
    }

    /// The facts the verdict is based on.
    fn facts(&self, process: &Process, socket: &Socket, waiting: &Waiting, class: Class) -> Facts {
        let queue = match socket.napi.map(|id| self.napis.state(id)) {
            None => Queue::None,
            Some(NapiState::Alive(_)) => Queue::Alive,
            Some(NapiState::Dead) => Queue::Dead,
            Some(NapiState::Unknown) => Queue::Unknown,
        };
        let wait_method = if waiting.receives() {
            WaitMethod::Receive
        } else if let Some(epoll) = process.epoll_of(&waiting.epolls) {
            let polls = process.epoll_params(epoll).and_then(|params| self.epoll_polls(params));
            let through = process.waited_through(epoll);
            WaitMethod::Epoll { fd: epoll, polls, through, spins: process.spins_on_epoll(epoll) }
        } else if waiting.poll {
            WaitMethod::Poll
        } else if waiting.uring {
            WaitMethod::Uring { polls: process.rings().any(|ring| ring.busy_poll_ns > 0) }
        } else {
            WaitMethod::NotWaiting
        };
        Facts {
            class,
            option: socket.busy_poll_usecs > 0 || socket.prefer_busy_poll,
            is_loopback: self.napis.is_local(socket),
            queue,
            wait_method,
            host_busy_poll: self.host_busy_poll,
        }
    }

    /// Busy polling is not switched on: reported for a process that was asked for.
    fn merely_off(
        &mut self,
        process: &Process,
        wait_method: WaitMethod,
        waiting: &Waiting,
        say: impl Fn(&'static Rule, String) -> Finding,
    ) {
        let attach = format!("busypoll attach {}", process.pid);
        match wait_method {
            WaitMethod::Receive if waiting.receive => {
                let what = "its receive calls sleep at once".into();
                self.add(process.pid, say(&SOCK_OFF, what).remedy(attach));
            }
            WaitMethod::Receive => {
                let what = "its receive calls do not sleep, and read only what has arrived".into();
                self.add(process.pid, say(&SOCK_SPIN, what).remedy(attach));
            }
            WaitMethod::Poll => {
                let what = "its poll or select sleeps at once".into();
                // If net.core.busy_poll is on, only the socket's option is missing.
                let remedy = match self.host_busy_poll {
                    Some(1..) => attach,
                    _ if self.epoll_has_params => FOR_POLL.into(),
                    _ => format!("{FOR_ALL_POLLS} && {attach}"),
                };
                let found = say(&SOCK_POLL_OFF, what);
                let found = found.evidence("net.core.busy_poll", self.host_evidence());
                self.add(process.pid, found.remedy(remedy));
            }
            _ => {}
        }
    }

    /// The fault in how threads wait for it.
    fn way_of_waiting(
        &self,
        process: &Process,
        fd: RawFd,
        facts: &Facts,
        set: &str,
    ) -> Option<Fault> {
        match polls::of_waiting(facts)? {
            Obstacle::Ktls if process.decrypts(fd) => {
                Some((&SOCK_KTLS, format!("{set}, and receive calls through kTLS"), None))
            }
            Obstacle::EpollSilent(_) | Obstacle::PollSilent if process.under_run => None,
            Obstacle::EpollSilent(epoll) => {
                let what = format!(
                    "{set}, but it waits in epoll fd {epoll}, which has no busy-poll parameters"
                );
                Some((&SOCK_IN_EPOLL, what, Some(format!("busypoll attach {}", process.pid))))
            }
            Obstacle::PollSilent => {
                let what =
                    format!("{set}, but it waits in poll or select, and net.core.busy_poll is 0");
                let remedy = if self.epoll_has_params { FOR_POLL } else { FOR_ALL_POLLS };
                Some((&SOCK_IN_POLL, what, Some(remedy.into())))
            }
            Obstacle::UringSilent => {
                Some((&SOCK_IN_URING, format!("{set}, but the program waits in io_uring"), None))
            }
            Obstacle::HostUnseen => {
                let what = format!(
                    "{set}; whether its waits poll depends on net.core.busy_poll, which cannot be seen from here"
                );
                Some((&NOT_SEEN, what, None))
            }
            // Faults of the epoll instance, which reports them once for all members.
            _ => None,
        }
    }

    /// The fault in the queue it would poll.
    fn queue(&self, process: &Process, socket: &Socket, facts: &Facts) -> Option<Fault> {
        let id = socket.napi.map_or_else(String::new, |id| id.to_string());
        match polls::of_queue(facts.class, facts.queue) {
            // One member with an id is enough for an epoll instance.
            Some(Obstacle::NoId) if !facts.option => None,
            Some(Obstacle::NoId) if facts.is_loopback => {
                Some((&SOCK_LOOPBACK, "its packets do not leave this host".into(), None))
            }
            Some(Obstacle::NoId) => {
                let what = match facts.class {
                    Class::Unconnected => "it has received no packet with a NAPI id",
                    _ => "no packet of its peer brought a NAPI id",
                };
                Some((&SOCK_NO_NAPI, what.into(), None))
            }
            Some(Obstacle::DeadForever) => {
                let what =
                    format!("NAPI id {id} is dead and will stay: the socket is not connected");
                Some((&SOCK_STALE_FOREVER, what, None))
            }
            Some(_) => {
                Some((&SOCK_STALE, format!("NAPI id {id} is dead until the next packet"), None))
            }
            None => match socket.napi.map(|id| self.napis.state(id)) {
                Some(NapiState::Alive(location))
                    if socket.prefer_busy_poll && !defers(location) =>
                {
                    let what = format!("SO_PREFER_BUSY_POLL, but {}", not_deferred(location));
                    Some((&PREFER_NO_DEFER, what, Some(defer(process, location))))
                }
                _ => None,
            },
        }
    }

    /// `napi 291 (eth0 queue 0)`, `no NAPI id`.
    pub(super) fn describe_napi(&self, socket: &Socket) -> String {
        let Some(id) = socket.napi else { return "no NAPI id".into() };
        match self.napis.state(id) {
            NapiState::Alive(location) => format!("napi {id} ({location})"),
            NapiState::Dead => format!("napi {id} (dead)"),
            NapiState::Unknown => format!("napi {id} (of a device that cannot be seen)"),
        }
    }
}

/// Whether an instance's interrupts are deferred; assumed on a kernel without per-instance settings.
pub(super) fn defers(location: &NapiLocation) -> bool {
    location.napi.defer_hard_irqs.unwrap_or(1) > 0
        && location.napi.gro_flush_timeout_ns.unwrap_or(1) > 0
}

pub(super) fn not_deferred(location: &NapiLocation) -> String {
    format!(
        "{} has defer-hard-irqs {} and gro-flush-timeout {} ns",
        location.device,
        location.napi.defer_hard_irqs.unwrap_or(0),
        location.napi.gro_flush_timeout_ns.unwrap_or(0),
    )
}

/// The command that makes an instance's device defer interrupts, run in the device's namespace.
pub(super) fn defer(process: &Process, location: &NapiLocation) -> String {
    let (device, pid) = (&location.device, process.pid);
    let tune = format!("busypoll tune apply prefer-busy-poll --dev {device} --poller {pid}");
    process.in_its_namespace(location, tune)
}
