//! The seccomp filter: the calls of which the supervisor is notified.
//!
//! Kernel source: `Documentation/userspace-api/seccomp_filter.rst`, `kernel/seccomp.c`.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
};

/// `AUDIT_ARCH_…` of the system call numbers used here.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Offsets in `struct seccomp_data`; for an argument, of its lower half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// The size of `sockaddr_un`: by it connections to local services are recognised.
const UNIX_ADDRESS: u32 = size_of::<libc::sockaddr_un>() as u32;

fn load(at: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at }
}

fn and(mask: u32) -> sock_filter {
    sock_filter { code: (BPF_ALU | BPF_AND | BPF_K) as u16, jt: 0, jf: 0, k: mask }
}

/// Skips `yes` instructions if equal, `no` if not.
fn equal(k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: yes, jf: no, k }
}

fn answer(k: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k }
}

fn program() -> Vec<sock_filter> {
    let number = |n: libc::c_long| n as u32;
    let mut notify_always = vec![number(libc::SYS_epoll_create1), number(libc::SYS_listen)];
    #[cfg(target_arch = "x86_64")]
    notify_always.push(number(libc::SYS_epoll_create));

    let mut program = vec![load(ARCHITECTURE), equal(ARCH, 1, 0), answer(ALLOW), load(NUMBER)];
    for call in notify_always {
        program.extend([equal(call, 0, 1), answer(NOTIFY)]);
    }
    // Calls with addresses, except those of local services.
    for call in [number(libc::SYS_bind), number(libc::SYS_connect)] {
        program.extend([
            equal(call, 0, 4),
            load(argument(2)),
            equal(UNIX_ADDRESS, 0, 1),
            answer(ALLOW),
            answer(NOTIFY),
        ]);
    }
    // The program sets the polling of a socket itself.
    program.extend([
        equal(number(libc::SYS_setsockopt), 0, 6),
        load(argument(1)),
        equal(libc::SOL_SOCKET as u32, 0, 3),
        load(argument(2)),
        equal(libc::SO_BUSY_POLL as u32, 0, 1),
        answer(NOTIFY),
        answer(ALLOW),
    ]);
    // Datagram sockets, which may never get an address.
    program.extend([
        equal(number(libc::SYS_socket), 0, 7),
        load(argument(0)),
        equal(libc::AF_INET as u32, 1, 0),
        equal(libc::AF_INET6 as u32, 0, 4),
        load(argument(1)),
        and(0xf),
        equal(libc::SOCK_DGRAM as u32, 0, 1),
        answer(NOTIFY),
        answer(ALLOW),
    ]);
    program
}

/// Puts the calling thread under the filter, for good. Returns the notification descriptor, and whether no_new_privs
/// was set, which the kernel requires without `CAP_SYS_ADMIN`.
pub(super) fn install() -> io::Result<(OwnedFd, bool)> {
    let mut program = program();
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let apply_with = |flags: libc::c_ulong| {
        // SAFETY: the filter outlives the call, which reads it.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const filter,
            )
        }
    };
    let failed_by = |fd, error| fd < 0 && io::Error::last_os_error().raw_os_error() == Some(error);
    // No signal handler may run while the supervisor works on a call: the call would end with EINTR, which it never
    // does without us. Kernels before Linux 5.19 do not have the flag.
    let apply = || {
        let fd = apply_with(listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
        if failed_by(fd, libc::EINVAL) { apply_with(listen) } else { fd }
    };
    let mut fd = apply();
    let no_new_privs = failed_by(fd, libc::EACCES);
    if no_new_privs {
        // SAFETY: sets a flag of this thread.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        fd = apply();
    }
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, close-on-exec, that nothing else uses.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, no_new_privs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's result for a call, by interpreting it.
    fn result_of(arch: u32, number: libc::c_long, arguments: [u32; 3]) -> u32 {
        let mut data = [0_u32; 16];
        data[0] = number as u32;
        data[1] = arch;
        for (index, value) in arguments.into_iter().enumerate() {
            data[4 + 2 * index] = value;
        }
        let program = program();
        let (mut at, mut a) = (0, 0);
        loop {
            let i = program[at];
            at += 1;
            match u32::from(i.code) {
                c if c == BPF_LD | BPF_W | BPF_ABS => a = data[i.k as usize / 4],
                c if c == BPF_ALU | BPF_AND | BPF_K => a &= i.k,
                c if c == BPF_JMP | BPF_JEQ | BPF_K => {
                    at += usize::from(if a == i.k { i.jt } else { i.jf });
                }
                c if c == BPF_RET | BPF_K => return i.k,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn the_supervisor_is_notified_of_few_calls() {
        let socket = |family: i32, kind: i32| {
            result_of(ARCH, libc::SYS_socket, [family as u32, kind as u32, 0])
        };
        let dgram = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        assert_eq!(socket(libc::AF_INET, dgram), NOTIFY);
        assert_eq!(socket(libc::AF_INET6, libc::SOCK_DGRAM), NOTIFY);
        assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM), ALLOW);
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_DGRAM), ALLOW);
        assert_eq!(result_of(ARCH, libc::SYS_epoll_create1, [0; 3]), NOTIFY);
        assert_eq!(result_of(ARCH, libc::SYS_listen, [3, 8, 0]), NOTIFY);
        for call in [libc::SYS_bind, libc::SYS_connect] {
            assert_eq!(result_of(ARCH, call, [3, 0, 16]), NOTIFY);
            assert_eq!(result_of(ARCH, call, [3, 0, 28]), NOTIFY);
            assert_eq!(result_of(ARCH, call, [3, 0, 110]), ALLOW);
        }
        let option = |level: i32, name: i32| {
            result_of(ARCH, libc::SYS_setsockopt, [3, level as u32, name as u32])
        };
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_BUSY_POLL), NOTIFY);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), ALLOW);
        assert_eq!(option(libc::IPPROTO_IP, libc::SO_BUSY_POLL), ALLOW);
        for call in [libc::SYS_read, libc::SYS_recvfrom, libc::SYS_epoll_pwait, libc::SYS_close] {
            assert_eq!(result_of(ARCH, call, [3, 0, 16]), ALLOW);
        }
        assert_eq!(
            result_of(0x4000_0003, libc::SYS_listen, [0; 3]),
            ALLOW,
            "of another architecture"
        );
    }
}
