//! `syscall(2)`: system calls by number go to the hook of the same name.
//!
//! Where the raw call and the C function differ (`ppoll`, `pselect6`, signal masks with a size), the
//! kernel answers: who writes these by hand has no socket of ours in them, or is told the limits.

use libc::{c_int, c_long};

use crate::table::exported as hook;
use crate::{real, stack};

/// # Safety
/// That of the system call.
pub unsafe fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // What a caller left out holds anything; each call reads only what it has.
    let [a32, b32, c32, d32] = [a, b, c, d].map(|x| x as c_int);
    // SAFETY: the arguments are those of the system call, which are those of the C function.
    unsafe {
        match number {
            libc::SYS_socket => hook::socket(a32, b32, c32).into(),
            libc::SYS_accept => hook::accept(a32, b as _, c as _).into(),
            libc::SYS_accept4 => hook::accept4(a32, b as _, c as _, d32).into(),
            libc::SYS_bind => hook::bind(a32, b as _, c as _).into(),
            libc::SYS_listen => hook::listen(a32, b32).into(),
            libc::SYS_connect => hook::connect(a32, b as _, c as _).into(),
            libc::SYS_shutdown => hook::shutdown(a32, b32).into(),
            libc::SYS_getsockname => hook::getsockname(a32, b as _, c as _).into(),
            libc::SYS_getpeername => hook::getpeername(a32, b as _, c as _).into(),
            libc::SYS_getsockopt => hook::getsockopt(a32, b32, c32, d as _, e as _).into(),
            libc::SYS_setsockopt => hook::setsockopt(a32, b32, c32, d as _, e as _).into(),
            libc::SYS_read => hook::read(a32, b as _, c) as c_long,
            libc::SYS_readv => hook::readv(a32, b as _, c32) as c_long,
            libc::SYS_recvfrom => hook::recvfrom(a32, b as _, c, d32, e as _, f as _) as c_long,
            libc::SYS_recvmsg => hook::recvmsg(a32, b as _, c32) as c_long,
            libc::SYS_recvmmsg => hook::recvmmsg(a32, b as _, c as _, d32, e as _).into(),
            libc::SYS_write => hook::write(a32, b as _, c) as c_long,
            libc::SYS_writev => hook::writev(a32, b as _, c32) as c_long,
            libc::SYS_sendto => hook::sendto(a32, b as _, c, d32, e as _, f as _) as c_long,
            libc::SYS_sendmsg => hook::sendmsg(a32, b as _, c32) as c_long,
            libc::SYS_sendmmsg => hook::sendmmsg(a32, b as _, c as _, d32).into(),
            libc::SYS_sendfile => hook::sendfile(a32, b32, c as _, d) as c_long,
            libc::SYS_splice => hook::splice(a32, b as _, c32, d as _, e, f as _) as c_long,
            libc::SYS_epoll_create1 => hook::epoll_create1(a32).into(),
            libc::SYS_epoll_ctl => hook::epoll_ctl(a32, b32, c32, d as _).into(),
            libc::SYS_close => hook::close(a32).into(),
            libc::SYS_close_range => hook::close_range(a as _, b as _, c32).into(),
            libc::SYS_dup => hook::dup(a32).into(),
            libc::SYS_dup3 => hook::dup3(a32, b32, c32).into(),
            libc::SYS_fcntl => hook::fcntl(a32, b32, c).into(),
            libc::SYS_ioctl => hook::ioctl(a32, b as _, c).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => hook::poll(a as _, b as _, c32).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => hook::epoll_create(a32).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => hook::epoll_wait(a32, b as _, c32, d32).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => hook::dup2(a32, b32).into(),
            _ => stack::syscall_made(number, a, real::syscall(number, a, b, c, d, e, f)),
        }
    }
}
