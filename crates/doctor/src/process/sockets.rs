//! What keeps a socket from busy polling.

use busypoll_linux::bpf::files::Socket;
use std::os::fd::RawFd;

use super::descriptors::{Class, class, words};
use super::judge::{Judge, Waiting};
use super::napis::Place;
use super::{Life, Process};
use crate::rules::{
    PREFER_NO_DEFER, SOCK_IN_EPOLL, SOCK_IN_POLL, SOCK_IN_URING, SOCK_KTLS, SOCK_LOOPBACK,
    SOCK_MPTCP, SOCK_NO_NAPI, SOCK_OFF, SOCK_POLL_OFF, SOCK_RAW, SOCK_READY, SOCK_SPIN, SOCK_STALE,
    SOCK_STALE_FOREVER, XDP_NO_NAPI,
};
use crate::{Finding, Rule};

/// For who waits in poll or select. It waits in an epoll instance in their place, which polls by itself since Linux 6.9.
const FOR_POLL: &str = "busypoll run -- PROGRAM";
/// The same for the whole machine: the only one before that.
const FOR_ALL_POLLS: &str = "sysctl -w net.core.busy_poll=50";

impl Judge<'_> {
    pub(super) fn socket(&mut self, process: &Process, fd: RawFd, socket: &Socket) {
        let waiting = process.waiting(fd, socket);
        let by_option = socket.busy_poll_usecs > 0 || socket.prefer_busy_poll;
        let polling_epoll = waiting
            .epolls
            .iter()
            .any(|e| process.epoll_params(*e).is_some_and(|p| self.epoll_is_on(p)));
        let class = class(socket);
        let say = |rule: &'static Rule, what: String| -> Finding {
            rule.finding(process.descriptor(fd, words(socket)), what)
                .evidence("SO_BUSY_POLL", format!("{} us", socket.busy_poll_usecs))
                .evidence("waits", waiting.words())
        };
        if class == Class::Listener {
            return;
        }
        if !by_option && !polling_epoll {
            let learns = matches!(class, Class::Tcp | Class::Connected | Class::Unconnected);
            // What comes over loopback comes from no queue, and nothing would change that.
            if !self.asked || !learns || self.napis.is_local(socket) {
                return;
            }
            let attach = format!("busypoll attach {}", process.pid);
            if waiting.receive {
                let what = "its receive calls sleep at once".into();
                self.add(process.pid, say(&SOCK_OFF, what).remedy(attach));
            } else if waiting.spin {
                let what = "its receive calls do not sleep, and look at the socket alone".into();
                self.add(process.pid, say(&SOCK_SPIN, what).remedy(attach));
            } else if waiting.poll {
                let what = "its poll or select sleeps at once".into();
                // Where the whole machine's poll does, the socket's option is all that is missing.
                let remedy = match self.host_busy_poll {
                    Some(1..) => attach,
                    _ if self.epoll_has_params => FOR_POLL.into(),
                    _ => format!("{FOR_ALL_POLLS} && {attach}"),
                };
                let found = say(&SOCK_POLL_OFF, what);
                let found = found.evidence("net.core.busy_poll", self.host_evidence());
                self.add(process.pid, found.remedy(remedy));
            }
            return;
        }
        let set = format!("SO_BUSY_POLL {} us", socket.busy_poll_usecs);
        match class {
            Class::Mptcp if by_option => {
                return self.add(process.pid, say(&SOCK_MPTCP, format!("{set} on MPTCP")));
            }
            Class::Raw if by_option => {
                let what = format!("{set} on a {} socket", socket.protocol_name);
                return self.add(process.pid, say(&SOCK_RAW, what));
            }
            Class::Xdp if socket.napi.is_none() => {
                return self.add(process.pid, say(&XDP_NO_NAPI, "it has no NAPI id".into()));
            }
            Class::Mptcp | Class::Raw | Class::Other => return,
            _ => {}
        }
        if let Some(id) = socket.napi
            && matches!(self.napis.life(id), Life::Unknown)
        {
            self.unknown.insert(id);
        }
        let mut faults = self.way_of_waiting(process, fd, socket, &waiting, by_option, class);
        faults.extend(self.napi(process, socket, by_option, class));
        let good = faults.is_empty() && by_option && waiting.receives() && self.is_alive(socket);
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
            let what = format!("{set}, receive calls, {}", self.napi_words(socket));
            self.add(process.pid, say(&SOCK_READY, what));
        }
    }

    /// Faults in how it is waited for.
    fn way_of_waiting(
        &self,
        process: &Process,
        fd: RawFd,
        socket: &Socket,
        waiting: &Waiting,
        by_option: bool,
        class: Class,
    ) -> Vec<(&'static Rule, String, Option<String>)> {
        let mut faults = Vec::new();
        if !by_option {
            return faults;
        }
        let set = format!("SO_BUSY_POLL {} us", socket.busy_poll_usecs);
        let attach = || Some(format!("busypoll attach {}", process.pid));
        let host_off = self.host_busy_poll == Some(0);
        if waiting.receives() {
            if class == Class::Ktls && process.decrypts(fd) {
                let what = format!("{set}, and receive calls through kTLS");
                faults.push((&SOCK_KTLS, what, None));
            }
            return faults;
        }
        let silent = |e: &&RawFd| process.epoll_params(**e).is_some_and(|p| !self.epoll_is_on(p));
        if let Some(epoll) = waiting.epolls.iter().find(silent) {
            let what = format!(
                "{set}, but it waits in epoll fd {epoll}, which has no busy-poll parameters"
            );
            faults.push((&SOCK_IN_EPOLL, what, attach()));
        } else if waiting.poll && host_off {
            let what =
                format!("{set}, but it waits in poll or select, and net.core.busy_poll is 0");
            let remedy = if self.epoll_has_params { FOR_POLL } else { FOR_ALL_POLLS };
            faults.push((&SOCK_IN_POLL, what, Some(remedy.into())));
        } else if waiting.uring && process.rings().all(|ring| ring.busy_poll_ns == 0) {
            let what = format!("{set}, but the program waits in io_uring");
            faults.push((&SOCK_IN_URING, what, None));
        }
        faults
    }

    /// Faults in what it would poll.
    fn napi(
        &self,
        process: &Process,
        socket: &Socket,
        by_option: bool,
        class: Class,
    ) -> Option<(&'static Rule, String, Option<String>)> {
        let Some(id) = socket.napi else {
            // Of the members of an epoll instance, one with an id is enough.
            if !by_option {
                return None;
            }
            if self.napis.is_local(socket) {
                return Some((&SOCK_LOOPBACK, "its packets do not leave this host".into(), None));
            }
            let what = match class {
                Class::Unconnected => "it has received no packet with a NAPI id",
                _ => "no packet of its peer brought a NAPI id",
            };
            return Some((&SOCK_NO_NAPI, what.into(), None));
        };
        match self.napis.life(id) {
            Life::Dead if class == Class::Unconnected => {
                let what = format!("NAPI id {id} is dead, and stays: the socket is not connected");
                Some((&SOCK_STALE_FOREVER, what, None))
            }
            Life::Dead => {
                Some((&SOCK_STALE, format!("NAPI id {id} is dead until the next packet"), None))
            }
            Life::Alive(place) if socket.prefer_busy_poll && !defers(place) => {
                let what = format!("SO_PREFER_BUSY_POLL, but {}", not_deferred(place));
                Some((&PREFER_NO_DEFER, what, Some(defer(process, place))))
            }
            Life::Alive(_) | Life::Unknown => None,
        }
    }

    /// `napi 291 (eth0 queue 0)`, `no NAPI id`.
    pub(super) fn napi_words(&self, socket: &Socket) -> String {
        let Some(id) = socket.napi else { return "no NAPI id".into() };
        match self.napis.life(id) {
            Life::Alive(place) => format!("napi {id} ({place})"),
            Life::Dead => format!("napi {id} (dead)"),
            Life::Unknown => format!("napi {id} (of a device that cannot be seen)"),
        }
    }
}

/// Whether an instance's interrupts can be deferred; a kernel that does not tell per instance is believed.
pub(super) fn defers(place: &Place) -> bool {
    place.napi.defer_hard_irqs.unwrap_or(1) > 0 && place.napi.gro_flush_timeout_ns.unwrap_or(1) > 0
}

pub(super) fn not_deferred(place: &Place) -> String {
    format!(
        "{} has defer-hard-irqs {} and gro-flush-timeout {} ns",
        place.device,
        place.napi.defer_hard_irqs.unwrap_or(0),
        place.napi.gro_flush_timeout_ns.unwrap_or(0),
    )
}

/// The command that makes an instance's device defer interrupts, wherever the device is.
pub(super) fn defer(process: &Process, place: &Place) -> String {
    let (device, pid) = (&place.device, process.pid);
    let tune = format!("busypoll tune apply prefer-busy-poll --dev {device} --poller {pid}");
    process.in_its_namespace(place, tune)
}
