//! Without epoll_pwait2, before Linux 5.11 or behind a seccomp filter that does not know it, an idle thread of the
//! stack sleeps all the same.

use busypoll_stack::{Host, UdpSocket, nic::cable};
use std::{fs, io, thread, time::Duration};

/// Makes the kernel refuse epoll_pwait2 to the calling thread and all threads that it starts.
fn refuse() -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD, 0, 0, 0), // the system call number
        step(IF_EQUAL, 0, 1, libc::SYS_epoll_pwait2 as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter that is valid for the call, for this thread only.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if refused { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether every thread of the stack sleeps now.
fn all_sleep() -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let of =
        |task: &fs::DirEntry, what| fs::read_to_string(task.path().join(what)).unwrap_or_default();
    let ours = tasks.filter(|task| of(task, "comm").starts_with("napi/"));
    let states: Vec<_> = ours.map(|task| of(&task, "stat")).collect();
    // Two queues and a watchdog: a thread sets its name when it first runs.
    states.len() >= 3
        && states
            .iter()
            .all(|stat| stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('S'))
}

#[test]
fn threads_with_nothing_to_do_sleep() {
    if let Err(error) = refuse() {
        return println!("skipped: no seccomp filter: {error}");
    }
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let one = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    let left = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    let right = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    left.connect(right.local_addr().unwrap()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                let (len, from) = right.recv_from(&mut [0; 8]).unwrap();
                right.send_to(&[1; 8][..len], from).unwrap();
            }
        });
        for _ in 0..100 {
            left.send(b"x").unwrap();
            left.recv(&mut [0; 8]).unwrap();
        }
    });
    // A thread that never sleeps is never seen asleep, however busy the machine is.
    let mut in_a_row = 0;
    for _ in 0..10_000 {
        in_a_row = if all_sleep() { in_a_row + 1 } else { 0 };
        if in_a_row == 20 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("an idle thread does not sleep");
}
