//! The names of the system calls in which a program's threads mostly are.

/// `clock_nanosleep`, or `system call 999`.
pub fn name(number: u32) -> String {
    let known = CALLS.iter().find(|(call, _)| *call == i64::from(number));
    known.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned())
}

const CALLS: &[(i64, &str)] = &[
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "epoll_wait"),
];

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn calls_have_names_and_unknown_ones_numbers() {
        assert_eq!(name(libc::SYS_clock_nanosleep as u32), "clock_nanosleep");
        assert_eq!(name(9999), "system call 9999");
    }
}
