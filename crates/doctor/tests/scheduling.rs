//! Pollers that do not get the CPU, or keep it from others: stopped, ended, held back by a quota, with real-time
//! priority. What the doctor says is compared with what the kernel counts of the process or the control group.

mod programs;
mod traffic;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use busypoll_doctor::{Report, Scope, diagnose};
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::process;
use programs::{Program, cure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use traffic::{ECHO, MS, Stream, find, get, one_at_a_time, prove};

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3");
    };
}

#[test]
fn a_stopped_process_and_a_zombie_are_reported_as_such() {
    needs_all!();
    let lab = Lab::builder().build().unwrap();
    let mut program =
        Program::start(lab.server.command("python3"), "s = udp(700, 50); say(); s.recv(9)");
    program.read_line();
    let pid = program.pid();
    let state = |wanted: char| {
        for _ in 0..2000 {
            if process::sched_state(pid).is_some_and(|s| s.state == wanted) {
                return;
            }
            std::thread::sleep(5 * MS);
        }
        panic!("{:?}", process::sched_state(pid));
    };
    assert!(
        Command::new("sh").args(["-c", &format!("kill -STOP {pid}")]).status().unwrap().success()
    );
    state('T');
    let (report, _) = prove(&lab, pid);
    let told = get(&report, "BP-STOPPED");
    assert!(told.verdict().is_fault());
    cure(&told);
    state('S');
    let report = diagnose(&Scope { pids: vec![pid], ..Scope::default() }).unwrap();
    assert!(find(&report, "BP-STOPPED").is_none());

    let mut parent = Program::start(
        lab.server.command("python3"),
        "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT); say(pid); heard()",
    );
    let zombie: u32 = parent.read_line().parse().unwrap();
    let refused = diagnose(&Scope { pids: vec![zombie], ..Scope::default() }).unwrap_err();
    assert!(refused.to_string().contains("zombie"), "{refused}");
}

/// A control group that may use 0.2 CPUs, of version 1 or 2. The program is in it, or in a group below.
struct Group {
    limited: PathBuf,
    member: PathBuf,
}

impl Group {
    /// `None` where no such group can be made.
    fn make(below: bool) -> Option<Self> {
        let versions = [
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "20000"),
            ("/sys/fs/cgroup", "cpu.max", "20000 100000"),
        ];
        versions.into_iter().find_map(|(root, file, quota)| {
            let limited = PathBuf::from(format!("{root}/busypoll-doctor-{}", std::process::id()));
            std::fs::create_dir(&limited).ok()?;
            let member = if below { limited.join("below") } else { limited.clone() };
            let group = Group { limited, member };
            std::fs::write(group.limited.join(file), quota).ok()?;
            if below {
                std::fs::create_dir(&group.member).unwrap();
            }
            Some(group)
        })
    }

    fn add(&self, pid: u32) {
        std::fs::write(self.member.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// The periods so far in which its processes were stopped.
    fn throttled(&self) -> u64 {
        let stat = std::fs::read_to_string(self.limited.join("cpu.stat")).unwrap();
        let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
        line.parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed leaves its group a little later.
        for group in [&self.member, &self.limited] {
            for _ in 0..500 {
                if !group.exists() || std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(10 * MS);
            }
        }
    }
}

/// Hides the mounted control groups from the calling thread, as `ip netns exec` does.
fn hide_cgroups() {
    // SAFETY: unsharing the mount namespace makes no descriptor or memory of another thread invalid.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("none", "/sys", "sysfs", MountFlags::empty(), None).unwrap();
}

#[test]
#[ignore = "long: ten seconds"]
fn a_cpu_quota_of_its_own_or_a_parent_group_is_reported_and_removed_by_the_remedy() {
    needs_all!();
    let _guard = one_at_a_time();
    for (below, hidden) in [(false, false), (true, false), (true, true)] {
        let Some(group) = Group::make(below) else {
            busypoll_lab::needs::skipped(module_path!(), "control groups that may limit CPU time");
            return;
        };
        let lab = Lab::builder().build().unwrap();
        let script = format!("s = udp(700, 50000); say()\n{ECHO}");
        let mut echo = Program::start(lab.server.command("python3"), &script);
        echo.read_line();
        group.add(echo.pid());
        let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
        std::thread::sleep(200 * MS);
        let look = |prove: Option<Duration>| -> Report {
            let scope = Scope { pids: vec![echo.pid()], prove, ..Scope::default() };
            let inside = || {
                if hidden {
                    hide_cgroups();
                }
                diagnose(&scope).unwrap()
            };
            lab.server.enter(inside).unwrap()
        };
        let before = group.throttled();
        // A stopped thread is not in its receive call at every sample.
        let told = (0..20).find_map(|_| find(&look(None), "BP-CPU-QUOTA")).expect("the quota");
        assert!(told.what.contains("0.20 CPUs"), "{}", told.what);
        let report = look(Some(500 * MS));
        let told = get(&report, "BP-CPU-QUOTA");
        assert!(told.what.contains("was stopped in"), "{}", told.what);
        assert!(group.throttled() > before, "{}", told.what);
        let remedy = told.remedy.clone().unwrap();
        assert_eq!(hidden, remedy.starts_with("unshare -m"), "{remedy}");
        cure(&told);
        let before = group.throttled();
        assert!(find(&look(Some(300 * MS)), "BP-CPU-QUOTA").is_none());
        assert!(find(&look(None), "BP-CPU-QUOTA").is_none());
        // The period that began before the remedy may still end with a stop.
        assert!(group.throttled() <= before + 1);
        drop(echo);
    }
}

/// The time that a thread has run, in nanoseconds.
fn ran(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// How long an ordinary thread of a CPU runs in a second, as ksoftirqd and NAPI threads would.
fn runs_in_a_second(pid: u32) -> Duration {
    let before = ran(pid);
    std::thread::sleep(1000 * MS);
    Duration::from_nanos(ran(pid) - before)
}

#[test]
#[ignore = "long: ten seconds"]
fn a_poller_with_real_time_priority_that_starves_its_cpu_is_reported() {
    needs_all!();
    needs!(program "chrt");
    let _guard = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let script = format!("s = udp(700, 20000); say()\n{ECHO}");
    let mut poller = Program::start(lab.server.command("python3"), &script);
    poller.read_line();
    let mut ordinary = Program::start(lab.server.command("python3"), "say()\nwhile True: pass");
    ordinary.read_line();
    let _stream = Stream::start(&lab, "10.77.0.2:700", MS);
    let set = format!("chrt -f -p 1 {}", poller.pid());
    if !Command::new("sh").args(["-c", &set]).status().unwrap().success() {
        busypoll_lab::needs::skipped(module_path!(), "real-time priorities");
        return;
    }
    let starved = runs_in_a_second(ordinary.pid());
    let scope = Scope { pids: vec![poller.pid()], ..Scope::default() };
    let look = || diagnose(&scope).unwrap();
    get(&lab.server.enter(look).unwrap(), "BP-FIFO-POLLER");
    // That its packets are found does not make it harmless.
    let (report, _) = prove(&lab, poller.pid());
    cure(&get(&report, "BP-FIFO-POLLER"));
    let (report, _) = prove(&lab, poller.pid());
    assert!(find(&report, "BP-FIFO-POLLER").is_none());
    let cured = runs_in_a_second(ordinary.pid());
    assert!(cured > 2 * starved, "{starved:?} starved, {cured:?} cured");
}
