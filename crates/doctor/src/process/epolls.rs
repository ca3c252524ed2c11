//! Faults that keep an epoll instance or an io_uring from busy polling.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use busypoll_linux::EpollParams;
use busypoll_linux::bpf::files::{Socket, Uring};
use busypoll_linux::process::Wait;

use super::descriptors::class;
use super::judge::Judge;
use super::napis::NapiLocation;
use super::sockets::{defer, defers, not_deferred};
use super::{NapiState, Process};
use crate::rules::{
    EPOLL_NESTED, EPOLL_NESTED_OFF, EPOLL_NO_NAPI, EPOLL_OFF, EPOLL_READY, EPOLL_SEVERAL,
    EPOLL_SPIN, PREFER_NO_DEFER, URING_OFF,
};
use crate::{Finding, Rule, count};

impl Judge<'_> {
    pub(super) fn epoll(&mut self, process: &Process, fd: RawFd, params: EpollParams) {
        let members = process.members(fd);
        if members.is_empty() {
            return;
        }
        let sockets = count(members.len(), "socket");
        let say = |rule: &'static Rule, what: String| -> Finding {
            let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = params;
            let settings = format!(
                "usecs {busy_poll_usecs}, budget {busy_poll_budget}, prefer {}",
                u8::from(prefer_busy_poll)
            );
            rule.finding(process.descriptor(fd, "epoll"), what)
                .evidence("EPIOCGPARAMS", settings)
                .evidence(format!("/proc/{}/fdinfo/{fd}", process.pid), &sockets)
        };
        // Parameters have no effect here, on either instance: the one that threads wait in has no queue, and the one
        // with the queue has no waiter.
        if let Some(outer) = process.waited_through(fd) {
            let outer_params = process.epoll_params(outer).unwrap_or_default();
            let on = |params: EpollParams| params.busy_poll_usecs > 0 || params.prefer_busy_poll;
            let where_set = match (on(params), on(outer_params)) {
                (true, true) => "both have parameters",
                (true, false) => "the parameters are at the inner one",
                (false, true) => "the parameters are at the outer one",
                (false, false) => "neither has parameters",
            };
            let set =
                on(params) || on(outer_params) || members.iter().any(|s| s.busy_poll_usecs > 0);
            if set || self.asked {
                let what = format!(
                    "epoll fd {outer} is waited in, and watches epoll fd {fd}, which holds {sockets}; {where_set}"
                );
                let rule = if set { &EPOLL_NESTED } else { &EPOLL_NESTED_OFF };
                self.add(process.pid, say(rule, what));
            }
            return;
        }
        if self.epoll_is_on(params) && process.spins_on_epoll(fd) {
            let what = format!("it is checked with a timeout of 0, for {sockets}");
            return self.add(process.pid, say(&EPOLL_SPIN, what));
        }
        if self.epoll_polls(params).is_none() {
            // Reported once for all instances.
            return;
        }
        if !self.epoll_is_on(params) {
            // A member with SO_BUSY_POLL gets its own finding; if all members are local, there is no remedy.
            let local = members.iter().all(|s| self.napis.is_local(s));
            let none = members.iter().all(|s| s.busy_poll_usecs == 0);
            if self.asked && !local && none && !process.under_run {
                let what = format!("waits for {sockets} and sleeps at once");
                let found =
                    say(&EPOLL_OFF, what).evidence("net.core.busy_poll", self.host_evidence());
                self.add(process.pid, found.remedy(format!("busypoll attach {}", process.pid)));
            }
            return;
        }
        let mut alive: BTreeMap<u32, &NapiLocation> = BTreeMap::new();
        let mut unknown = false;
        for socket in &members {
            match socket.napi.map(|id| (id, self.napis.state(id))) {
                Some((id, NapiState::Alive(location))) => drop(alive.insert(id.get(), location)),
                Some((_, NapiState::Unknown)) => unknown = true,
                _ => {}
            }
        }
        let locations: Vec<&NapiLocation> = alive.values().copied().collect();
        let finding = match locations[..] {
            _ if unknown => return,
            [] => {
                let here = members.iter().all(|s| self.napis.is_local(s));
                let why = if here { ": their packets do not leave this host" } else { "" };
                say(&EPOLL_NO_NAPI, format!("none of {sockets} has one{why}"))
            }
            [location] if params.prefer_busy_poll && !defers(location) => {
                let what = format!("prefer_busy_poll, but {}", not_deferred(location));
                say(&PREFER_NO_DEFER, what).remedy(defer(process, location))
            }
            [location] => say(&EPOLL_READY, format!("{sockets} of {location}")),
            [first, ..] => {
                let list: Vec<String> = alive.iter().map(|(id, p)| format!("{id} ({p})")).collect();
                let shown = list.get(..6).map_or_else(|| list.join(", "), |l| l.join(", ") + ", …");
                let what = format!("{sockets} on {} NAPI instances: {shown}", list.len());
                let finding = say(&EPOLL_SEVERAL, what);
                match one_queue(&locations, process, first) {
                    Some(command) => finding.remedy(command),
                    None => finding,
                }
            }
        };
        self.add(process.pid, finding);
    }

    pub(super) fn uring(&mut self, process: &Process, fd: RawFd, uring: Uring) {
        let waits = process.threads.values().any(|t| t.waits.contains(&Wait::Uring { fd }));
        if self.asked && waits && uring.busy_poll_ns == 0 && process.sockets().next().is_some() {
            let finding = URING_OFF
                .finding(process.descriptor(fd, "io_uring"), "its waits sleep at once")
                .evidence("napi_busy_poll_dt of the ring", "0");
            self.add(process.pid, finding);
        }
    }
}

/// The command that leaves the device one queue; only if all members are on one device.
fn one_queue(
    locations: &[&NapiLocation],
    process: &Process,
    first: &NapiLocation,
) -> Option<String> {
    let same = locations.iter().all(|p| (p.netns, &p.device) == (first.netns, &first.device));
    let channels = first.one_channel?;
    same.then(|| {
        process.in_its_namespace(first, format!("ethtool -L {} {channels} 1", first.device))
    })
}

impl Process {
    /// The sockets that an epoll instance watches and whose packets carry NAPI ids.
    pub(super) fn members(&self, epoll: RawFd) -> Vec<&Socket> {
        let watched = self.watches.get(&epoll).map_or(&[][..], Vec::as_slice);
        let learns = |s: &&Socket| class(s).learns();
        let by_inode: BTreeMap<u64, &Socket> = self.sockets().map(|(_, s)| (s.inode, s)).collect();
        let found = watched.iter().filter_map(|w| by_inode.get(&w.inode).copied());
        found.filter(learns).collect()
    }
}
