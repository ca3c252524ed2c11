//! Watches a program for some seconds: its waits, and what else used the CPUs.

use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::bpf::files::{Files, Kind};
use busypoll_linux::bpf::waits::{OneWait, Waits, Watched};
use busypoll_linux::cgroup;
use busypoll_linux::process::{self, Process};
use busypoll_linux::stat::CpuTimes;
use busypoll_linux::topology::{self, CpuList};

use crate::Error;
use crate::recording::Recording;

/// The most waits kept; a program with more is watched for less time.
const WAITS: usize = 1_000_000;

/// How often the ring is emptied.
const EVERY: Duration = Duration::from_millis(5);

/// A program and its surroundings, as seen.
pub(crate) struct Seen {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) recording: Recording,
    /// Most of its sockets are UDP's.
    pub(crate) udp: bool,
    pub(crate) cpus: Cpus,
    /// The CPUs it is bound to, if these are not all.
    pub(crate) pinned: Option<CpuList>,
    /// It ended before the time was over.
    pub(crate) ended: bool,
}

/// The CPUs it could use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpus {
    /// The CPUs it may run on, by affinity and cpuset.
    pub(crate) allowed: usize,
    /// Its control group's quota, in CPUs.
    pub(crate) quota: Option<f64>,
    pub(crate) online: usize,
    /// Used by other programs, in CPUs.
    pub(crate) others: f64,
    /// Used by the program itself, in CPUs.
    pub(crate) own: f64,
}

/// A process and those it has started.
fn family(process: &Process) -> Vec<u32> {
    let mut pids = vec![process.pid()];
    let mut at = 0;
    while let Some(pid) = pids.get(at).copied() {
        at += 1;
        let Ok(parent) = Process::open(pid) else { continue };
        pids.extend(
            parent.children().into_iter().filter(|pid| !pids.contains(pid)).collect::<Vec<_>>(),
        );
    }
    pids
}

/// Watches the process, and those that it has started or starts, for this time.
pub(crate) fn watch(pid: u32, time: Duration) -> Result<Seen, Error> {
    let process = Process::open(pid)?;
    let program = process.program_name();
    let family = family(&process);
    let mut waits = Waits::start(&family, Watched { children: true, each: true })?;
    let used = || family.iter().filter_map(|pid| process::cpu_ns(*pid)).sum::<u64>();
    let (cpus_before, used_before, begun) = (CpuTimes::now()?, used(), Instant::now());
    let mut all: Vec<OneWait> = Vec::new();
    let mut used_last = used_before;
    while begun.elapsed() < time && all.len() < WAITS && process.is_alive() {
        thread::sleep(EVERY.min(time));
        while let Some(wait) = waits.next_wait() {
            all.push(wait);
        }
        // An ended process has no times any more.
        used_last = used_last.max(used());
    }
    let elapsed = begun.elapsed();
    let spent = CpuTimes::now()?.since(&cpus_before);
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let own = used_last.saturating_sub(used_before) as f64 / 1e9 / seconds;
    let busy = spent.total().busy_ns() as f64 / 1e9 / seconds;
    let online = topology::online()?.len();
    let allowed = process.allowed_cpus().filter(|cpus| cpus.len() < online);
    let quota = cgroup::quotas_of(pid).iter().map(|quota| quota.cpus).min_by(f64::total_cmp);
    let udp = is_udp(&family).unwrap_or(false);
    let lost = waits.lost()?;
    Ok(Seen {
        pid,
        program,
        recording: Recording::of(&all, elapsed.as_nanos() as u64, lost),
        udp,
        cpus: Cpus {
            allowed: allowed.as_ref().map_or(online, CpuList::len),
            quota,
            online,
            others: (busy - own).max(0.0),
            own,
        },
        pinned: allowed,
        ended: !process.is_alive(),
    })
}

fn is_udp(family: &[u32]) -> Result<bool, Error> {
    let (mut udp, mut tcp) = (0, 0);
    for file in Files::load()?.of(None)? {
        if let (true, Kind::Socket(socket)) = (family.contains(&file.pid), file.kind) {
            match i32::try_from(socket.protocol) {
                Ok(libc::IPPROTO_UDP) => udp += 1,
                Ok(libc::IPPROTO_TCP) => tcp += 1,
                _ => {}
            }
        }
    }
    Ok(udp > tcp)
}
