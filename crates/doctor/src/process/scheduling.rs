//! The scheduling state of a process: stopped, ended, limited by a quota, real-time priority above the softirqs.

use std::fs;

use busypoll_linux::{cgroup, process};

use super::judge::Judge;
use super::{Process, spinners};
use crate::Error;
use crate::rules::{CPU_QUOTA, FIFO_POLLER, NO_SOCKETS, STOPPED};

/// Refuses a zombie: it has no sockets to look at.
pub(super) fn refuse_zombie(pid: u32) -> Result<(), Error> {
    match process::sched_state(pid) {
        Some(sched) if sched.state == 'Z' || sched.state == 'X' => {
            let why = "it has ended, and its parent has not collected its exit code yet: a zombie has no sockets";
            Err(Error::Process { pid, why: why.into() })
        }
        _ => Ok(()),
    }
}

/// Findings about a process that was asked for, independent of its sockets.
pub(super) fn judge(judge: &mut Judge<'_>, process: &Process) {
    let pid = process.pid;
    if let Some(sched) = process::sched_state(pid)
        && matches!(sched.state, 'T' | 't')
    {
        let by = match sched.state {
            't' => "by a debugger",
            _ => "by a signal",
        };
        let mut found = STOPPED
            .finding(process.subject(), format!("it is stopped {by}: it neither waits nor polls"))
            .evidence(format!("/proc/{pid}/stat"), format!("state {}", sched.state));
        if sched.state == 'T' {
            found = found.remedy(format!("kill -CONT {pid}"));
        }
        judge.add(pid, found);
    }
    if !process.on_stack_plane && process.files.is_empty() {
        let what = "it has no socket that packets of a network reach: there is nothing to poll";
        let found = NO_SOCKETS.finding(process.subject(), what);
        judge.add(pid, found.evidence(format!("/proc/{pid}/fd"), unix_sockets(pid)));
    }
    let pollers = spinners::of_process(judge, process);
    for tid in &pollers {
        let Some(priority) = process::sched_state(*tid).map(|s| s.real_time).filter(|p| *p > 0)
        else {
            continue;
        };
        let what = format!("thread {tid} busy polls with real-time priority {priority}");
        let found = FIFO_POLLER.finding(process.subject(), what);
        let found = found
            .evidence(format!("/proc/{pid}/task/{tid}/stat"), format!("rt_priority {priority}"));
        judge.add(pid, found.remedy(format!("chrt -o -p 0 {tid}")));
    }
    let tightest = cgroup::quotas_of(pid).into_iter().min_by(|a, b| a.cpus.total_cmp(&b.cpus));
    if let Some(quota) = tightest
        && !pollers.is_empty()
        && quota.cpus < pollers.len() as f64
    {
        let what = format!(
            "{} busy poll, and its control group may use {:.2} CPUs",
            crate::count(pollers.len(), "thread"),
            quota.cpus
        );
        let read = format!("cpu.stat of control group {}", quota.group);
        let said = format!("stopped in {} of {} periods so far", quota.throttled, quota.periods);
        let found = CPU_QUOTA.finding(process.subject(), what).evidence(read, said);
        judge.add(pid, found.remedy(quota.remedy));
    }
}

fn unix_sockets(pid: u32) -> String {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:")).count();
    match sockets {
        0 => "no sockets".into(),
        n => format!("{}, of no family that has queues", crate::count(n, "socket")),
    }
}
