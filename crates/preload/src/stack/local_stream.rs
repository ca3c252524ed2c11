//! AF_UNIX streams between programs under busypoll. The kernel connects them: so names, permissions, credentials and
//! errors are its own. One that lasts moves to a link, when both processes agree
//! ([`busypoll_stack::Host::move_stream`]), and is the kernel's again, with all data, when something is asked of it
//! that only the kernel has.

use super::{
    common::{checked, error},
    companion_options,
    file::{FILES, File, Live, Ref, enter, fd_of_set},
    handover_parent, host, local_stream_end,
    local_stream_state::LocalStream,
    local_udp::KERNELS,
    rings, wait,
};
use crate::{
    config, errno,
    inside::{ERESTARTSYS, Inside, Restart},
    memory, real, seccomp,
};
use busypoll_policy::Protocol;
use busypoll_stack::{
    Host, Link, TcpStream, is_stream_offered, offers, peer_inode, serve_local_streams,
};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::{
    fs, io, mem,
    net::{Shutdown, SocketAddr},
    os::fd::AsRawFd,
    sync::{MutexGuard, TryLockError},
};

/// After so many calls an accepted stream is offered. To move, and to end over memory, costs as much as some hundred
/// calls.
const OFFERED: u32 = 1024;

/// After so many it is the kernel's for good, if the other process has not asked for it.
const GIVEN_UP: u32 = 32768;

/// Each time after so many calls a stream that has connected is looked for, up to the last.
const LOOKED_FOR: u32 = 1280;
const LAST_LOOK: u32 = 20480;

/// The most streams that are offered at a time: each offer takes a descriptor.
const MOST_OFFERS: usize = 256;

/// Unread data of the kernel's that moves with a stream.
const MOST_UNREAD: usize = 32 * 1024;

/// include/uapi/asm-generic/socket.h.
const SO_PASSPIDFD: c_int = 76;

/// Whether streams may move at all.
pub fn is_on() -> bool {
    config::get().is_some_and(|config| config.launch.same_host && config.launch.unix_streams)
}

/// Called once, when the library is loaded.
pub fn prepare() {
    serve_local_streams(moves, local_stream_end::leaves);
}

/// The kernel has connected `file`, at `fd`.
pub fn connected(file: &Ref, fd: c_int) {
    if may_move(file, fd) {
        begin(file, LocalStream::new(false, LOOKED_FOR));
    }
}

/// The kernel has accepted a connection at `fd`.
pub fn accepted(fd: c_int, flags: c_int) {
    let Some(_inside) = Inside::enter().filter(|_| is_on()) else { return };
    let file = File::new(Protocol::Tcp, libc::AF_UNIX);
    file.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
    let file = FILES.hold(file);
    if may_move(&file, fd) && FILES.set(fd, file.clone()) {
        begin(&file, LocalStream::new(true, OFFERED));
    }
}

fn may_move(file: &File, fd: c_int) -> bool {
    is_on() && file.unsupported().is_none() && !(0..=2).contains(&fd)
}

fn begin(file: &Ref, stream: LocalStream) {
    if file.local_stream.set(Box::new(stream)).is_ok() {
        file.local_udp.set(KERNELS);
    }
}

fn inode_of(fd: c_int) -> Option<u32> {
    // SAFETY: all zeroes are valid; room for the answer.
    let status = unsafe {
        let mut status: libc::stat = mem::zeroed();
        checked(libc::fstat(fd, &raw mut status)).ok()?;
        status
    };
    u32::try_from(status.st_ino).ok()
}

/// A call is about to send or receive on `file`, at `fd`: it may move before.
#[inline]
pub fn before_call(file: &Ref, fd: c_int) {
    if let Some(stream) = file.kernel_stream()
        && stream.is_due()
    {
        look(file, fd, stream);
    }
}

#[cold]
fn look(file: &Ref, fd: c_int, stream: &LocalStream) {
    let _errno = errno::Saved::new();
    let due = stream.due();
    let twice = due.saturating_mul(2);
    let next = due.saturating_add(LOOKED_FOR);
    // Another thread may do the same.
    if !stream.set_due(due, if stream.is_accepted { GIVEN_UP } else { next }) {
        return;
    }
    let may_move_later = match stream.is_accepted {
        _ if seccomp::is_confined() => false,
        true if stream.is_offered() => false,
        // Those that are offered may move soon.
        true if offers() >= MOST_OFFERS => stream.set_due(GIVEN_UP, twice) && twice <= GIVEN_UP,
        true => offer(fd, stream).is_some(),
        // It would not be offered.
        false if other_process(fd).is_none_or(share_one_cpu) => false,
        false => {
            inode_of(fd).into_iter().for_each(|inode| stream.set_inode(inode));
            let is_worth_it = host::existing().is_some() || is_stream_offered(stream.inode());
            if is_worth_it && move_now(file, fd, stream) {
                return;
            }
            if is_worth_it {
                stream.set_moves_soon();
            }
            next <= LAST_LOOK
        }
    };
    if !may_move_later {
        leave_kernels(file);
        FILES.clear_if(fd, file);
    }
}

/// Makes the accepted stream known to its other process.
fn offer(fd: c_int, stream: &LocalStream) -> Option<()> {
    let pid = other_process(fd).filter(|pid| !share_one_cpu(*pid))?;
    // A host takes one of the places on the interface: not for a plain program.
    let host = host::existing().or_else(|| is_under(pid).then(host::for_links).flatten())?;
    let inode = peer_inode(inode_of(fd)?).ok()?;
    stream.set_offer(inode, host.offer_stream(inode)?);
    Some(())
}

/// The process that has connected, or that listens.
fn other_process(fd: c_int) -> Option<c_int> {
    // SAFETY: a `ucred` is three numbers.
    let peer =
        unsafe { companion_options::query::<[c_int; 3]>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED) };
    peer.map(|[pid, ..]| pid).filter(|pid| *pid > 0)
}

/// Whether the calling thread and that process may use one CPU only, and the same. There the kernel's sockets, which
/// take a system call less for each wake-up, are faster.
fn share_one_cpu(pid: c_int) -> bool {
    let only_cpu = |pid: c_int| {
        // SAFETY: all zeroes are a valid set; room for the answer.
        let set = unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            (libc::sched_getaffinity(pid, size_of_val(&set), &raw mut set) == 0).then_some(set)
        }?;
        // SAFETY: numbers within the set.
        let mut cpus =
            (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
        cpus.next().filter(|_| cpus.next().is_none())
    };
    only_cpu(0).is_some_and(|own| only_cpu(pid) == Some(own))
}

/// Whether that process runs under busypoll: all such have a mapping of this name.
fn is_under(pid: c_int) -> bool {
    const MAPPING: &[u8] = b"/memfd:busypoll/guard/";
    let maps = fs::read(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| maps.windows(MAPPING.len()).any(|name| name == MAPPING))
}

/// `file`, which has not moved, is the kernel's for good.
pub fn leave_kernels(file: &Ref) {
    let Some(stream) = file.kernel_stream() else { return };
    let moving = super::common::lock(&file.activation);
    if file.live().is_none() {
        file.set_kernel_owned();
    }
    drop(moving);
    stream.end_offer();
}

/// `file`, at `fd`, is the kernel's from now on, whether it has moved or not. Called outside or inside.
pub fn leave(file: &Ref, fd: c_int) {
    if file.domain != libc::AF_UNIX || file.is_kernel_owned() {
        return;
    }
    let _errno = errno::Saved::new();
    let Some(_inside) = Inside::enter() else { return };
    leave_inside(file, fd);
}

/// The same, inside. False: it has moved and is not the kernel's yet, as its other process has ended or is stopped.
pub fn leave_inside(file: &Ref, fd: c_int) -> bool {
    if file.local_stream.get().is_none() && file.live().is_none() {
        // It is not connected yet.
        file.set_kernel_owned();
        return true;
    }
    leave_kernels(file);
    match file.live() {
        Some(_) if !file.is_kernel_owned() => local_stream_end::leave(file, fd, None),
        _ => true,
    }
}

/// Before a fork, and before a program is started: other processes may have these sockets.
pub fn share(is_shared: impl Fn(c_int) -> bool) {
    if !is_on() {
        return;
    }
    for (fd, file) in FILES.all() {
        if let Some(file) = file.filter(|file| file.kernel_stream().is_some())
            && is_shared(fd)
        {
            leave_kernels(&file);
        }
    }
}

/// Waits until the kernel's socket at `fd` has data, or `file` has moved. A stream that does not move soon needs no
/// wait before the kernel's own.
///
/// # Errors
/// EAGAIN after `SO_RCVTIMEO`; EINTR.
pub fn wait_to_receive(inside: &Inside, file: &Ref, fd: c_int) -> io::Result<()> {
    let Some(stream) = file.kernel_stream().filter(|stream| stream.moves_soon()) else {
        return Ok(());
    };
    let limit = match file.has_complex_options() {
        true => companion_options::timeout(fd, libc::SO_RCVTIMEO),
        false => None,
    };
    let restart = if limit.is_some() { Restart::Never } else { Restart::BySignal };
    let source = stream.wake_source();
    match wait::wait_with_source(inside, fd, libc::POLLIN, limit, restart, source)? {
        true => Ok(()),
        false => Err(error(libc::EAGAIN)),
    }
}

/// A receive that waits for all (`MSG_WAITALL`) had `len` bytes when the stream at `fd` became the kernel's: receives
/// the rest. Whatever ends the wait, the data received so far is returned.
#[cold]
pub fn receive_rest(
    inside: &Inside,
    fd: c_int,
    buffers: &mut [io::IoSliceMut<'_>],
    len: usize,
) -> usize {
    let limit = companion_options::timeout(fd, libc::SO_RCVTIMEO);
    let (mut skipped, mut more) = (len, 0);
    for buffer in buffers {
        let first = skipped.min(buffer.len());
        skipped -= first;
        let mut room = buffer.get_mut(first..).unwrap_or_default();
        while !room.is_empty() {
            let is_there = wait::wait_inside(inside, fd, libc::POLLIN, limit, Restart::Never);
            if !is_there.is_ok_and(|events| events != 0) {
                return more;
            }
            // SAFETY: writable bytes.
            match unsafe {
                real::recv(fd, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
            } {
                got @ 1.. => {
                    more += got as usize;
                    room = room.get_mut(got as usize..).unwrap_or_default();
                }
                _ => return more,
            }
        }
    }
    more
}

/// Whether nothing is against it on this side.
fn is_ready_to_move(file: &File, fd: c_int) -> bool {
    let id = file.memberships.id();
    let is_off = |name| !companion_options::is_on(fd, libc::SOL_SOCKET, name);
    // SAFETY: a plain system call.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    file.kernel_stream().is_some()
        && file.unsupported().is_none()
        && !rings::keep_sockets()
        && !memory::is_short()
        && file.memberships.sets().iter().all(|set| set.has_alone(id))
        && [libc::SO_PASSCRED, libc::SO_PASSSEC, SO_PASSPIDFD].into_iter().all(is_off)
        && flags & libc::O_ASYNC == 0
}

/// Moves the stream of `file`, which has connected, at the call of one of its threads. Returns whether it has moved.
fn move_now(file: &Ref, fd: c_int, stream: &LocalStream) -> bool {
    let Some(host) = host::existing().or_else(host::for_links) else { return false };
    let Some(moving) = Moving::begin(file, fd) else { return false };
    let mut made = None;
    let moved = host.move_stream(stream.inode(), &mut |ends, link| {
        made = moving.make(&host, ends, link);
        made.is_some()
    });
    moving.end(made, moved)
}

/// The other process asks: moves the stream with these ends.
fn moves(
    host: &Host,
    ends: (SocketAddr, SocketAddr),
    link: Link,
    go: &mut dyn FnMut() -> bool,
) -> bool {
    let Some((file, copy)) = handover_parent::find(|file| {
        file.kernel_stream().and_then(LocalStream::ends) == Some(ends)
    }) else {
        return false;
    };
    let Some(moving) = Moving::begin(&file, copy.as_raw_fd()) else { return false };
    let made = moving.make(host, ends, link);
    let moved = made.is_some() && go();
    moving.end(made, moved)
}

/// A stream that moves: no thread of this process uses the kernel's socket meanwhile.
struct Moving<'a> {
    file: &'a Ref,
    fd: c_int,
    _activation: MutexGuard<'a, ()>,
}

impl<'a> Moving<'a> {
    fn begin(file: &'a Ref, fd: c_int) -> Option<Moving<'a>> {
        let activation = match file.activation.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let is_ready = is_ready_to_move(file, fd) && file.local_udp.begin_activation();
        is_ready.then_some(Moving { file, fd, _activation: activation })
    }

    /// The stream on our stack, with what the kernel's socket has received: the other process sends nothing more there.
    fn make(
        &self,
        host: &Host,
        ends: (SocketAddr, SocketAddr),
        link: Link,
    ) -> Option<(TcpStream, usize)> {
        let received = unread(self.fd)?;
        let stream = TcpStream::local_stream(host, ends, link, &received).ok()?;
        Some((stream, received.len()))
    }

    fn end(self, made: Option<(TcpStream, usize)>, moved: bool) -> bool {
        let file = self.file;
        let Some((stream, unread)) = made.filter(|(stream, _)| {
            if !moved {
                stream.forget_local_stream(ERESTARTSYS);
            }
            moved
        }) else {
            file.local_udp.end_activation();
            return false;
        };
        take(self.fd, unread);
        let live = Live::Stream(stream);
        live.set_nonblocking(file.is_nonblocking());
        file.apply_settings(&live, (None, None));
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            companion_options::set_timeout(&live, name, companion_options::timeout(self.fd, name));
        }
        let live = file.live.get_or_init(|| live);
        file.local_udp.clear(KERNELS);
        file.memberships.activated(&live.socket().events(), fd_of_set);
        if let Some(stream) = file.local_stream.get() {
            stream.end_offer();
            stream.wake();
        }
        true
    }
}

/// What the kernel's socket has received. `None`: there is too much of it, or something else than bytes, or its end.
fn unread(fd: c_int) -> Option<Vec<u8>> {
    let mut there: c_int = 0;
    // SAFETY: a valid place for the answer.
    checked(unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut there).addr()) }).ok()?;
    let there = usize::try_from(there).ok().filter(|there| *there <= MOST_UNREAD)?;
    let mut entry = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry.
    checked(unsafe { real::poll(&raw mut entry, 1, 0) }).ok()?;
    if entry.revents != 0 {
        return None;
    }
    let mut data = vec![0; there + 1];
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeroes are valid; then room for the data, and none for ancillary data.
    let (got, flags) = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let got = real::recvmsg(fd, &raw mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        (got, message.msg_flags)
    };
    let got = match checked(got) {
        Ok(got) => got as usize,
        Err(none) if none.raw_os_error() == Some(libc::EAGAIN) => 0,
        Err(_) => return None,
    };
    data.truncate(got);
    (got == there && flags & (libc::MSG_CTRUNC | libc::MSG_OOB) == 0).then_some(data)
}

/// Takes `len` bytes, which are there, off the kernel's socket.
fn take(fd: c_int, mut len: usize) {
    let mut nowhere = [0u8; 4096];
    while len > 0 {
        let part = nowhere.len().min(len);
        // SAFETY: writable bytes.
        match unsafe { real::recv(fd, nowhere.as_mut_ptr().cast(), part, libc::MSG_DONTWAIT) } {
            got @ 1.. => len -= got as usize,
            _ => return,
        }
    }
}

/// setsockopt(2).
///
/// # Safety
/// That of setsockopt(2).
pub unsafe fn setsockopt(
    file: Ref,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // Data that comes from then on has it.
    if level == libc::SOL_SOCKET
        && matches!(name, libc::SO_PASSCRED | libc::SO_PASSSEC | SO_PASSPIDFD | libc::SO_PEEK_OFF)
    {
        leave(&file, fd);
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result != 0 || level != libc::SOL_SOCKET {
        return result;
    }
    let Some((_inside, file)) = enter(file) else { return result };
    match name {
        libc::SO_RCVTIMEO | libc::SO_SNDTIMEO => {
            file.set_has_complex_options();
            let limit = companion_options::timeout(fd, name);
            file.live()
                .into_iter()
                .for_each(|live| companion_options::set_timeout(live, name, limit));
        }
        libc::SO_RCVLOWAT => {
            // SAFETY: a number.
            let number = unsafe { companion_options::query::<c_int>(fd, level, name) };
            if let Some(number) = number {
                file.store_option(level, name, number);
                if let Some(live) = file.live() {
                    let _ = companion_options::set_number(live, level, name, number);
                }
            }
        }
        _ => {}
    }
    result
}

/// shutdown(2): the kernel's, as its end is then not that of both directions.
pub fn shutdown(file: &Ref, fd: c_int, how: c_int) -> c_int {
    let direction = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if let Some(direction) = direction
        && !file.is_kernel_owned()
        && let Some(_inside) = Inside::enter()
    {
        leave_kernels(file);
        if let (Some(Live::Stream(stream)), false) = (file.live(), file.is_kernel_owned())
            && !local_stream_end::leave(file, fd, Some(direction))
        {
            if local_stream_end::is_pending(file) && !file.is_kernel_owned() {
                return 0;
            }
            if !file.is_kernel_owned() {
                // The peer has closed it already.
                let _ = stream.shutdown(direction);
            }
        }
    }
    // SAFETY: a plain system call.
    unsafe { real::shutdown(fd, how) }
}

/// The name of the sender of what was received, as the kernel gives it: that of its socket, if it has one.
///
/// # Safety
/// `to` points to `len` writable bytes, or either is null.
pub unsafe fn write_sender(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        if real::getpeername(fd, to, len) != 0 || *len as usize <= size_of::<libc::sa_family_t>() {
            *len = 0;
        }
    }
}

/// Whether a call, which sends more than bytes or has these flags, is for the kernel; the stream is its own from then
/// on. Not one that has ended; nor one whose other process is stopped, which is full until that process runs.
pub fn is_for_kernel(file: &Ref, fd: c_int, flags: c_int, has_more_than_bytes: bool) -> bool {
    (has_more_than_bytes || flags & libc::MSG_OOB != 0) && leave_inside(file, fd)
}
