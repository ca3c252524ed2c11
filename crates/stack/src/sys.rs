//! The few plain system calls that several floors need. Calls made while locks are held go by number: the C library's
//! wrappers for them are cancellation points (pthread_cancel(3)).

use crate::time;
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

/// The result of a call that returns a new descriptor: the descriptor, or the error.
pub(crate) fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller passes a fresh descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The size of a file.
pub(crate) fn size_of_file(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } {
        0 => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unpredictable bytes from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "up to 256 bytes getrandom(2) returns all or none") };
    let mut bytes = [0; N];
    // SAFETY: room for `N` bytes.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        got if got == N as isize => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many descriptors the process may have (`RLIMIT_NOFILE`).
pub(crate) fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Whether there is no process of this number that is visible from here.
pub(crate) fn has_ended(pid: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let looked = unsafe { libc::kill(pid.cast_signed(), 0) };
    looked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Sleeps while `word` is `value`, until [`futex_wake`] or for no reason. By number: the C library has no wrapper.
#[cold]
pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
    let forever = std::ptr::null::<libc::timespec>();
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call; the call writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, forever) };
}

/// Wakes one thread that sleeps on `word`.
#[cold]
pub(crate) fn futex_wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the call uses the word's address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, 1) };
}

/// bind(2).
pub(crate) fn bind(socket: RawFd, local: SocketAddr) -> io::Result<()> {
    // SAFETY: a valid address of the length beside it.
    let bound = with_address(local, |address, len| unsafe {
        libc::syscall(libc::SYS_bind, socket, address, len)
    });
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// connect(2).
pub(crate) fn connect(socket: RawFd, remote: SocketAddr) -> io::Result<()> {
    // SAFETY: a valid address of the length beside it.
    let connected = with_address(remote, |address, len| unsafe {
        libc::syscall(libc::SYS_connect, socket, address, len)
    });
    if connected < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// setsockopt(2) of an option that is more than a number.
pub(crate) fn set_bytes(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let (fd, at, len) = (socket.as_raw_fd(), value.as_ptr(), value.len());
    // SAFETY: readable bytes of the length beside them.
    let set = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, at, len) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// sendto(2), without waiting.
pub(crate) fn send_to(socket: RawFd, payload: &[u8], to: SocketAddr) -> io::Result<()> {
    let (data, len) = (payload.as_ptr(), payload.len());
    // SAFETY: readable bytes, and a valid address, of the lengths beside them.
    let sent = with_address(to, |address, size| unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::syscall(libc::SYS_sendto, socket, data, len, flags, address, size)
    });
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Calls `call` with an address in the kernel's layout.
fn with_address<T>(
    address: SocketAddr,
    call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> T,
) -> T {
    match address {
        SocketAddr::V4(local) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: local.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(local.ip().octets()) },
                sin_zero: [0; 8],
            };
            call((&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        }
        SocketAddr::V6(local) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: local.port().to_be(),
                sin6_flowinfo: local.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: local.ip().octets() },
                sin6_scope_id: local.scope_id(),
            };
            call((&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        }
    }
}

/// Whether `fd` is non-blocking.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: a plain system call.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// A new non-blocking eventfd.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an eventfd readable.
pub(crate) fn signal(event: RawFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes. It can only fail by being readable already.
    unsafe { libc::syscall(libc::SYS_write, event, &raw const one, 8usize) };
}

/// Makes an eventfd (or timerfd) not readable.
pub(crate) fn drain(event: RawFd) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes. It can only fail by not being readable.
    unsafe { libc::syscall(libc::SYS_read, event, &raw mut count, 8usize) };
}

/// Sends one byte on a connected socket, without waiting: if there is no room, the peer has bytes to read anyway.
pub(crate) fn send_byte(socket: RawFd) {
    let (byte, flags) = (1u8, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let nowhere = std::ptr::null::<libc::sockaddr>();
    // SAFETY: one readable byte, and no address.
    unsafe { libc::syscall(libc::SYS_sendto, socket, &raw const byte, 1usize, flags, nowhere, 0) };
}

/// Discards bytes that a connected socket has received, without waiting: all, unless the peer sends without reason.
pub(crate) fn discard(socket: RawFd) {
    let mut bytes = [0u8; 256];
    let (to, len) = (bytes.as_mut_ptr(), bytes.len());
    let nowhere = std::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: writable bytes of the length beside them, and no address.
    unsafe {
        libc::syscall(libc::SYS_recvfrom, socket, to, len, libc::MSG_DONTWAIT, nowhere, nowhere)
    };
}

/// The descriptor `to` refers to the file of `from` from now on.
pub(crate) fn replace(from: RawFd, to: RawFd) {
    // SAFETY: a plain system call on descriptors of the caller.
    unsafe { libc::dup3(from, to, libc::O_CLOEXEC) };
}

/// A time span as the kernel takes it.
pub(crate) fn timespec(span: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}

/// Waits until `fd` is readable: 1, 0 when `timeout` (`None`: never) is over, -1 after a signal.
pub(crate) fn poll(fd: RawFd, timeout: Option<Duration>) -> libc::c_int {
    poll_all(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], timeout)
}

/// Waits until `fd` is writable, or has an error, for so long.
pub(crate) fn wait_writable(fd: RawFd, timeout: Duration) {
    poll_all(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], Some(timeout));
}

/// Whether the other end of a connection has closed it.
pub(crate) fn has_hung_up(fd: RawFd) -> bool {
    let events = libc::POLLRDHUP;
    poll_all(&mut [libc::pollfd { fd, events, revents: 0 }], Some(Duration::ZERO)) > 0
}

/// poll(2): how many of `fds` are ready, 0 when `timeout` (`None`: never) is over, -1 after a signal.
pub(crate) fn poll_all(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> libc::c_int {
    let mut limit = timeout.map(timespec);
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: as many entries as are counted; `limit`, which is written, is null or outlives the call; no mask.
    let ready =
        unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, mask, 0usize) };
    ready as libc::c_int
}

/// A new epoll instance.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Adds `fd` to an epoll instance, or changes what it is watched for (`op`).
pub(crate) fn epoll_control(
    epoll: RawFd,
    op: libc::c_int,
    fd: RawFd,
    events: u32,
    data: u64,
) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is valid for the call.
    match unsafe { libc::epoll_ctl(epoll, op, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for events, to the nanosecond: how many there are, 0 when `timeout` (`None`: never) is over, -1
/// after a signal.
pub(crate) fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> libc::c_int {
    if !HAS_PWAIT2.load(Ordering::Relaxed) {
        return epoll_wait_by_poll(epoll, events, timeout);
    }
    let limit = timeout.map(timespec);
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| limit as *const libc::timespec);
    // SAFETY: room for as many events as are counted; `limit` is null or outlives the call; no signal mask.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll,
            events.as_mut_ptr(),
            events.len(),
            limit,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    if ready < 0 && matches!(errno(), libc::ENOSYS | libc::EPERM) {
        HAS_PWAIT2.store(false, Ordering::Relaxed);
        return epoll_wait_by_poll(epoll, events, timeout);
    }
    ready as libc::c_int
}

/// False once epoll_pwait2 has turned out to be missing: before Linux 5.11, under valgrind, behind a filter. A caller
/// that took the error for a signal would call again without a pause.
static HAS_PWAIT2: AtomicBool = AtomicBool::new(true);

/// The same in two calls: an epoll instance is readable when it has events.
#[cold]
fn epoll_wait_by_poll(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> libc::c_int {
    let deadline = timeout.map(|timeout| time::now() + timeout);
    loop {
        match poll(epoll, deadline.map(|deadline| deadline - time::now())) {
            1.. => {}
            none => return none,
        }
        let (room, mask) = (events.len(), std::ptr::null::<libc::sigset_t>());
        // SAFETY: as above; it does not wait.
        let ready = unsafe {
            libc::syscall(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), room, 0, mask, 0usize)
        };
        // None: another thread has read the descriptor since, which does not end the wait.
        if ready != 0 {
            return ready as libc::c_int;
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A one-shot timer that makes its descriptor readable when it expires.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a plain system call.
        owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }).map(Alarm)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Restarts the timer, whether it runs or has expired. A span of zero stops it.
    pub(crate) fn set(&self, span: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value: timespec(span) };
        // SAFETY: `spec` is valid for the call; a valid time on our own timerfd cannot fail.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }
}

/// The CPU this thread runs on now.
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: a plain call.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Binds a thread that is not joined yet to one CPU.
pub(crate) fn pin(thread: libc::pthread_t, cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET ignores CPUs beyond it; the thread's id is valid.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::pthread_setaffinity_np(thread, size_of_val(&set), &raw const set)
    };
    match result {
        0 => Ok(()),
        code => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "this process may not run on CPU {cpu}: {}",
                io::Error::from_raw_os_error(code)
            ),
        )),
    }
}

/// Lets the calling thread run on every CPU that the process's first thread may use. Changes nothing if that thread's
/// CPUs cannot be read.
pub(crate) fn unpin_this_thread() {
    // SAFETY: an all-zero cpu_set_t is the empty set, written and read within its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&set);
        if libc::sched_getaffinity(libc::getpid(), size, &raw mut set) == 0 {
            libc::sched_setaffinity(0, size, &raw const set);
        }
    }
}

/// Reads an option of a kernel socket that is one number.
pub(crate) fn get_option(socket: &impl AsRawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` and `len` are valid for the call.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option into `value`; returns its length.
pub(crate) fn get_bytes(
    socket: &impl AsRawFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    let to = value.as_mut_ptr().cast();
    // SAFETY: at most `len` bytes are written to `value`.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len) } {
        0 => Ok(len as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: i32,
    name: i32,
    value: T,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is valid for the call.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first two numbers of the kernel's release; zeros if it names none.
pub(crate) fn kernel_release() -> (u32, u32) {
    // SAFETY: all zeros is a valid utsname.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    unsafe { libc::uname(&raw mut names) };
    let release: Vec<u8> = names.release.iter().map(|byte| *byte as u8).collect();
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map_while(|digits| {
        let digits = str::from_utf8(digits).ok()?;
        digits.parse::<u32>().ok()
    });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        thread,
    };

    use super::*;

    fn event() -> File {
        // SAFETY: a plain system call.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).unwrap().into()
    }

    fn signal(mut event: &File) {
        event.write_all(&1u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn a_wait_by_poll_does_not_end_by_an_event_that_another_thread_takes() {
        let (epoll, taken, over) = (epoll().unwrap(), event(), event());
        for (fd, data) in [(&taken, 1), (&over, 2)] {
            let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
            epoll_control(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), events, data)
                .unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    signal(&taken);
                    let _ = (&taken).read(&mut [0; 8]);
                }
                signal(&over);
            });
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
            loop {
                let found = epoll_wait_by_poll(epoll.as_raw_fd(), &mut events, None);
                assert!(found > 0, "no limit, and nothing found");
                if events[..found as usize].iter().any(|event| event.u64 == 2) {
                    break;
                }
            }
        });
    }

    #[test]
    fn a_wait_by_poll_ends_when_its_time_is_over() {
        let epoll = epoll().unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let limit = Some(Duration::from_millis(2));
        assert_eq!(epoll_wait_by_poll(epoll.as_raw_fd(), &mut events, limit), 0);
    }
}
