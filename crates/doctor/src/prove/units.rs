//! The packets counted for each socket and epoll instance of a process, by the queue they came from and by
//! how they were found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::RawFd;

use busypoll_linux::NapiId;
use busypoll_linux::bpf::deliveries::{Deliveries, Found};
use busypoll_linux::bpf::files::Kind;
use busypoll_linux::process::Wait;
use serde::Serialize;

use crate::Subject;
use crate::process::{Class, Process, class, describe};

/// Packets by how they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    /// By busy polls of the threads that wait for them.
    pub(super) own: u64,
    /// By busy polls of other threads, in this or another process.
    pub(super) others: u64,
    /// By softirqs on each CPU.
    pub(super) softirq: BTreeMap<u32, u64>,
    /// By NAPI threads.
    pub(super) napi_threads: u64,
    /// Packets that passed no queue.
    pub(super) direct: u64,
}

impl Sum {
    pub(super) fn polled(&self) -> u64 {
        self.own + self.others
    }

    pub(super) fn by_softirq(&self) -> u64 {
        self.softirq.values().sum()
    }

    pub(super) fn all(&self) -> u64 {
        self.polled() + self.by_softirq() + self.napi_threads + self.direct
    }

    pub(super) fn add(&mut self, other: &Sum) {
        self.own += other.own;
        self.others += other.others;
        self.napi_threads += other.napi_threads;
        self.direct += other.direct;
        for (cpu, packets) in &other.softirq {
            *self.softirq.entry(*cpu).or_default() += packets;
        }
    }
}

/// A socket or an epoll instance, or the rest of a process together.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) subject: Subject,
    /// The number of sockets.
    pub(super) sockets: usize,
    /// Whether busy polling is switched on for it.
    pub(super) on: bool,
    /// Whether a thread was seen to wait for it.
    pub(super) waited: bool,
    /// Set if no wait sleeps: epoll_wait with a timeout of 0, or non-blocking receive calls.
    pub(super) spins: Option<Spins>,
    /// Whether it is an epoll instance that is waited for through another.
    pub(super) nested: bool,
    /// The queues that its sockets have learnt.
    pub(super) learnt: BTreeSet<NapiId>,
    /// How long a wait polls, in microseconds.
    pub(super) usecs: u32,
    /// By the queue whose id the packets carry.
    pub(super) queues: BTreeMap<Option<NapiId>, Sum>,
}

/// How a program waits without sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spins {
    Receive,
    Epoll,
}

impl Unit {
    fn new(subject: Subject) -> Self {
        Unit {
            subject,
            sockets: 0,
            on: false,
            waited: false,
            spins: None,
            nested: false,
            learnt: BTreeSet::new(),
            usecs: 0,
            queues: BTreeMap::new(),
        }
    }

    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        self.queues.values().for_each(|queue| sum.add(queue));
        sum
    }

    pub(super) fn packets(&self) -> u64 {
        self.sum().all()
    }

    fn add(&mut self, other: &Unit) {
        self.sockets += other.sockets;
        self.on |= other.on;
        self.waited |= other.waited;
        self.spins = self.spins.or(other.spins);
        self.usecs = self.usecs.max(other.usecs);
        self.learnt.extend(&other.learnt);
        for (queue, sum) in &other.queues {
            self.queues.entry(*queue).or_default().add(sum);
        }
    }
}

/// Through which descriptor a packet is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Epoll(RawFd),
    Socket(RawFd),
    /// Connections that have ended since, recognised by their listener's port.
    Ended,
}

/// The sockets and epoll instances of a process that may receive packets, with their counts.
pub(super) fn of(process: &Process, host_polls: bool, counted: &Deliveries) -> Vec<Unit> {
    let mut units: BTreeMap<Key, (Unit, BTreeSet<u32>)> = BTreeMap::new();
    let mut by_cookie = HashMap::new();
    let mut listeners = BTreeSet::new();
    for (fd, socket) in process.sockets() {
        match class(socket) {
            Class::Listener => {
                let port = socket.local.map_or(0, |local| local.port());
                listeners.insert((socket.netns, port));
                continue;
            }
            Class::Xdp | Class::Other => continue,
            _ => {}
        }
        let waiting = process.waiting(fd, socket);
        let key = match process.epoll_of(&waiting.epolls) {
            Some(epoll) if !waiting.receive => Key::Epoll(epoll),
            _ => Key::Socket(fd),
        };
        by_cookie.insert(socket.cookie, key);
        let (unit, _) = units.entry(key).or_insert_with(|| match key {
            Key::Epoll(epoll) => epoll_unit(process, epoll, host_polls),
            _ => {
                let mut unit = Unit::new(process.descriptor(fd, describe(socket)));
                unit.waited = waiting.receives() || waiting.poll || waiting.uring;
                unit.spins = waiting.spin.then_some(Spins::Receive);
                unit.usecs = socket.busy_poll_usecs;
                // A thread may be in a receive call just now, and wait in epoll most of the time.
                unit.on = waiting.epolls.iter().any(|epoll| is_on(process, *epoll))
                    || waiting.uring && process.rings().any(|ring| ring.busy_poll_ns > 0);
                let waits = |wait: &Wait| match wait {
                    Wait::Receive { fd: on, .. } => *on == fd,
                    Wait::Poll { fds } => fds.contains(&fd),
                    Wait::Uring { .. } => true,
                    _ => false,
                };
                (unit, process.threads_that(waits))
            }
        });
        unit.sockets += 1;
        unit.on |= socket.busy_poll_usecs > 0 || socket.prefer_busy_poll;
        unit.learnt.extend(socket.napi);
    }
    for row in &counted.rows {
        let key = match by_cookie.get(&row.cookie) {
            Some(key) => *key,
            None if listeners.contains(&(row.netns, row.local_port)) => Key::Ended,
            None => continue,
        };
        let (unit, waiters) = units.entry(key).or_insert_with(|| {
            let mut unit = Unit::new(process.subject());
            unit.on = process.has_switched_on();
            (unit, BTreeSet::new())
        });
        let sum = unit.queues.entry(row.napi).or_default();
        let own = |pid: u32, tid: u32| match waiters.is_empty() {
            true => pid == process.pid,
            false => waiters.contains(&tid),
        };
        match row.found {
            Found::BusyPoll { pid, tid } if own(pid, tid) => sum.own += row.packets,
            Found::BusyPoll { .. } => sum.others += row.packets,
            Found::Softirq => *sum.softirq.entry(row.cpu).or_default() += row.packets,
            Found::NapiThread => sum.napi_threads += row.packets,
            Found::Direct => sum.direct += row.packets,
        }
    }
    units.into_values().map(|(unit, _)| unit).collect()
}

/// Whether an epoll instance, or the one through which it is waited for, has busy-poll parameters.
fn is_on(process: &Process, epoll: RawFd) -> bool {
    [Some(epoll), process.waited_through(epoll)].into_iter().flatten().any(|epoll| {
        let params = process.epoll_params(epoll).unwrap_or_default();
        params.busy_poll_usecs > 0 || params.prefer_busy_poll
    })
}

fn epoll_unit(process: &Process, epoll: RawFd, host_polls: bool) -> (Unit, BTreeSet<u32>) {
    let mut unit = Unit::new(process.descriptor(epoll, "epoll"));
    unit.on = host_polls || is_on(process, epoll);
    unit.nested = process.waited_through(epoll).is_some();
    unit.usecs = process.epoll_params(epoll).unwrap_or_default().busy_poll_usecs;
    unit.waited = process.threads.values().any(|thread| thread.waits_in_epoll(epoll));
    unit.spins = process.spins_on_epoll(epoll).then_some(Spins::Epoll);
    let waiters =
        process.threads_that(|wait| matches!(wait, Wait::Epoll { fd, .. } if *fd == epoll));
    (unit, waiters)
}

/// Whether a process has any open socket that receives packets.
pub(super) fn has_sockets(process: &Process) -> bool {
    process.files.iter().any(|file| matches!(file.kind, Kind::Socket(_)))
}

/// The units with enough packets for a verdict of their own, and all others together.
pub(super) fn judged(units: Vec<Unit>, process: Subject, enough: u64) -> Vec<Unit> {
    let total: u64 = units.iter().map(Unit::packets).sum();
    let counts = |unit: &Unit| unit.packets() >= enough && unit.packets() * 10 >= total;
    let (mut judged, others): (Vec<Unit>, Vec<Unit>) = units.into_iter().partition(counts);
    let mut rest = Unit::new(process);
    others.iter().filter(|unit| unit.packets() > 0).for_each(|unit| rest.add(unit));
    if counts(&rest) {
        judged.push(rest);
    }
    judged
}
