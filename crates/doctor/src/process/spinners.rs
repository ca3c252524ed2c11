//! The check for more spinners than CPUs. Reads `/proc/PID/task/TID/status`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::RawFd;

use busypoll_linux::bpf::files::{Kind, Socket};
use busypoll_linux::process::Wait;
use busypoll_linux::topology::CpuList;

use super::descriptors::{Class, class};
use super::judge::Judge;
use super::{Census, NapiState, Process};
use crate::Subject;
use crate::rules::{SPINNERS_ONE_CPU, SPINNERS_TOO_MANY};

/// A thread that busy polls when it waits.
struct Spinner<'a> {
    process: &'a Process,
    tid: u32,
    allowed: CpuList,
}

pub(super) fn judge(judge: &mut Judge<'_>, census: &Census) {
    let mut spinners = Vec::new();
    for process in census.processes.values() {
        for (tid, thread) in &process.threads {
            if thread.waits.iter().any(|wait| spins(judge, process, wait))
                && let Some(allowed) = allowed_cpus(process.pid, *tid)
            {
                spinners.push(Spinner { process, tid: *tid, allowed });
            }
        }
    }
    let mut by_cpu: BTreeMap<u32, Vec<&Spinner<'_>>> = BTreeMap::new();
    for spinner in spinners.iter().filter(|s| s.allowed.len() == 1) {
        by_cpu.entry(spinner.allowed.iter().next().unwrap_or(0)).or_default().push(spinner);
    }
    let taken: BTreeSet<u32> = by_cpu.keys().copied().collect();
    let free = busypoll_linux::topology::online()
        .ok()
        .and_then(|online| online.iter().find(|cpu| !taken.contains(cpu)));
    for (cpu, together) in by_cpu.iter().filter(|(_, spinners)| spinners.len() > 1) {
        let Some(last) = together.last() else { continue };
        let what = format!("{} are bound to CPU {cpu} and busy poll", list(together));
        let mut finding = SPINNERS_ONE_CPU.finding(last.process.subject(), what).evidence(
            format!("/proc/{}/task/{}/status", last.process.pid, last.tid),
            format!("Cpus_allowed_list {cpu}, {}", involuntary(last)),
        );
        if let Some(free) = free {
            finding = finding.remedy(format!("taskset -pc {free} {}", last.tid));
        }
        judge.add(last.process.pid, finding);
    }
    let cpus: BTreeSet<u32> = spinners.iter().flat_map(|s| s.allowed.iter()).collect();
    if spinners.len() > cpus.len() && by_cpu.values().all(|together| together.len() < 2) {
        let all: Vec<&Spinner<'_>> = spinners.iter().collect();
        let what = format!("{} busy poll on {} CPUs", list(&all), cpus.len());
        let finding = SPINNERS_TOO_MANY
            .finding(Subject::Machine, what)
            .evidence("threads that wait where busy polling is on", spinners.len())
            .evidence("CPUs that they may run on", cpus.len());
        judge.add(0, finding);
    }
}

/// The threads of a process whose waits busy poll.
pub(super) fn of_process(judge: &Judge<'_>, process: &Process) -> Vec<u32> {
    let polls = |wait: &Wait| spins(judge, process, wait);
    process.threads_that(polls).into_iter().collect()
}

/// Whether a wait busy polls.
fn spins(judge: &Judge<'_>, process: &Process, wait: &Wait) -> bool {
    let on = |fd: RawFd| {
        process.sockets().any(|(number, socket)| {
            let receives = class(socket).learns() && class(socket) != Class::Ktls;
            number == fd && receives && socket.busy_poll_usecs > 0 && has_queue(judge, socket)
        })
    };
    match wait {
        Wait::Receive { fd, .. } => on(*fd),
        Wait::Poll { fds } => {
            judge.host_busy_poll.is_some_and(|us| us > 0) && fds.iter().any(|fd| on(*fd))
        }
        Wait::Epoll { fd, nonblock: false } => {
            process.epoll_params(*fd).is_some_and(|params| judge.epoll_is_on(params))
                && process.members(*fd).iter().any(|socket| has_queue(judge, socket))
        }
        Wait::Uring { fd } => process.files.iter().any(|file| {
            file.fd == *fd && matches!(file.kind, Kind::Uring(ring) if ring.busy_poll_ns > 0)
        }),
        _ => false,
    }
}

/// Whether a socket has a queue to poll. Before Linux 6.8, and in containers, it is not known whether an id is alive.
fn has_queue(judge: &Judge<'_>, socket: &Socket) -> bool {
    socket.napi.is_some_and(|id| !matches!(judge.napis.state(id), NapiState::Dead))
}

fn list(spinners: &[&Spinner<'_>]) -> String {
    let names: Vec<String> = spinners
        .iter()
        .take(4)
        .map(|s| format!("thread {} of {}", s.tid, s.process.subject()))
        .collect();
    match spinners.len().checked_sub(4) {
        Some(more) if more > 0 => format!("{} and {more} more threads", names.join(", ")),
        _ => names.join(", "),
    }
}

fn involuntary(spinner: &Spinner<'_>) -> String {
    let switches = spinner.process.threads.get(&spinner.tid).map(|t| t.switches);
    format!("{} involuntary context switches", switches.unwrap_or_default().involuntary)
}

fn allowed_cpus(pid: u32, tid: u32) -> Option<CpuList> {
    let status = fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}
