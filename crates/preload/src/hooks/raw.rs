//! `syscall(2)`: system calls by number go to the hook of the same name.
//!
//! The kernel's signal masks are shorter than the C library's, and come with their size ([`Mask`]). `ppoll` and
//! `pselect6` by number do not report the remaining time.
//!
//! `fork` by number, and `clone` and `clone3` that do the same, are handled as fork(2). `vfork`, other clones and
//! `rt_sigaction` go to the kernel.

use libc::{c_int, c_long, sigset_t};
use std::{mem, ptr};

use super as hook;
use crate::{inside::is_inside, kernel, real, stack};

/// A signal mask as the kernel takes it, laid out as the C library does.
struct Mask(Option<sigset_t>);

impl Mask {
    /// The size of the kernel's masks.
    const SIZE: usize = 8;

    /// `None` for one of another size, which the kernel refuses.
    ///
    /// # Safety
    /// `at` is null or points to `size` readable bytes.
    unsafe fn read(at: usize, size: usize) -> Option<Mask> {
        if at == 0 {
            return Some(Mask(None));
        }
        // SAFETY: a set is plain data, longer than the kernel's; its beginning is read as the caller says.
        (size == Mask::SIZE).then(|| unsafe {
            let mut set: sigset_t = mem::zeroed();
            let from = ptr::with_exposed_provenance::<u8>(at);
            ptr::copy_nonoverlapping(from, (&raw mut set).cast(), Mask::SIZE);
            Mask(Some(set))
        })
    }

    fn pointer(&self) -> *const sigset_t {
        self.0.as_ref().map_or(ptr::null(), ptr::from_ref)
    }
}

/// The mask in the last argument of `pselect6`: a pointer and a size.
///
/// # Safety
/// `at` is null or points to these two.
unsafe fn mask_of_pselect(at: usize) -> Option<Mask> {
    // SAFETY: the caller's contract.
    let pair = unsafe { ptr::with_exposed_provenance::<[usize; 2]>(at).as_ref() };
    let [at, size] = pair.copied().unwrap_or_default();
    // SAFETY: the caller's contract.
    unsafe { Mask::read(at, size) }
}

/// Whether clone(2) with these flags and this stack is a fork: the child has memory and descriptors of its own.
fn is_fork(flags: u64, stack: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_FILES) as u64 == 0 && stack == 0
}

/// As [`is_fork`], for clone3(2) with `size` bytes of arguments.
///
/// # Safety
/// `args` is null or points to `size` readable bytes.
unsafe fn is_fork3(args: usize, size: usize) -> bool {
    // The fields of struct clone_args (linux/sched.h) as far as the stack, which is the sixth.
    if args == 0 || size < size_of::<[u64; 6]>() {
        return false;
    }
    // SAFETY: the caller's contract; plain numbers.
    let [flags, .., stack] =
        unsafe { ptr::with_exposed_provenance::<[u64; 6]>(args).read_unaligned() };
    is_fork(flags, stack)
}

/// Whether this system call goes past the hooks: C++ programs call futex(2) several times per request, and the library
/// makes its own calls by this function.
#[inline]
pub fn bypasses_hooks(number: c_long) -> bool {
    number == libc::SYS_futex || number != libc::SYS_bpf && is_inside()
}

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
    // Registers of arguments that the caller left out hold anything; each call reads only the ones it has.
    let [a32, b32, c32, d32] = [a, b, c, d].map(|x| x as c_int);
    // SAFETY: the caller's contract.
    let by_kernel =
        || stack::syscall_made(number, a, unsafe { real::syscall(number, a, b, c, d, e, f) });
    if is_inside() {
        return by_kernel();
    }
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
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => hook::select(a32, b as _, c as _, d as _, e as _).into(),
            libc::SYS_preadv2 => hook::preadv2(a32, b as _, c32, d as _, f as _) as c_long,
            libc::SYS_pwritev2 => hook::pwritev2(a32, b as _, c32, d as _, f as _) as c_long,
            libc::SYS_ppoll => match Mask::read(d, e) {
                Some(mask) => hook::ppoll(a as _, b as _, c as _, mask.pointer()).into(),
                None => by_kernel(),
            },
            libc::SYS_pselect6 => match mask_of_pselect(f) {
                Some(mask) => {
                    hook::pselect(a32, b as _, c as _, d as _, e as _, mask.pointer()).into()
                }
                None => by_kernel(),
            },
            libc::SYS_epoll_pwait => match Mask::read(e, f) {
                Some(mask) => hook::epoll_pwait(a32, b as _, c32, d32, mask.pointer()).into(),
                None => by_kernel(),
            },
            libc::SYS_epoll_pwait2 => match Mask::read(e, f) {
                Some(mask) => hook::epoll_pwait2(a32, b as _, c32, d as _, mask.pointer()).into(),
                None => by_kernel(),
            },
            libc::SYS_io_submit => {
                stack::before_io_submit(b as _, c as _);
                by_kernel()
            }
            libc::SYS_io_uring_setup => stack::rings::setup().unwrap_or_else(by_kernel),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => stack::forked_by(by_kernel),
            libc::SYS_clone if is_fork(a as u64, b as u64) => stack::forked_by(by_kernel),
            libc::SYS_clone3 if is_fork3(a, b) => stack::forked_by(by_kernel),
            libc::SYS_prctl => hook::prctl(a32, b, c, d, e).into(),
            libc::SYS_seccomp if a32 <= libc::SECCOMP_SET_MODE_FILTER as c_int => {
                kernel::confined(by_kernel)
            }
            libc::SYS_unshare => hook::unshare(a32).into(),
            libc::SYS_setns => hook::setns(a32, b as _).into(),
            libc::SYS_exit_group => hook::_exit(a32).into(),
            libc::SYS_execve => hook::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => hook::execveat(a32, b as _, c as _, d as _, e as _).into(),
            _ => by_kernel(),
        }
    }
}
