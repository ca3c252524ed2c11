//! Sockets and their addresses: socket, bind, connect, listen, shutdown, getsockname, getpeername.

use super::{
    activation::{deactivate, is_short, leave_fd_to_kernel, leave_sets},
    address,
    common::{answer, code, error, local, lock},
    companion_address, companion_options,
    file::{FILES, File, Live, Ref, enter, local_of},
    host, internal_fds, links, local_stream, local_udp, namespace, not_accelerated, rings, route,
    udp_links, unsupported_options,
};
use crate::{
    config, errno,
    inside::{ERESTARTSYS, Inside, Restart, is_inside},
    is_too_early, kernel, real,
    report::Once,
};
use busypoll_policy::Protocol;
use busypoll_stack::{TcpStream, inet::tcp::ListenOptions};
use libc::{c_int, sockaddr, socklen_t};
use std::{
    io,
    net::{self, IpAddr, Shutdown, SocketAddr},
    time::{Duration, Instant},
};

static NO_ROOM: Once = Once::new();

/// The flags that socket(2) takes with a type, and accept4(2) takes.
pub const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// The protocol of a socket that could be ours.
fn protocol_of(domain: c_int, kind: c_int, protocol: c_int) -> Option<Protocol> {
    match (domain, kind & !FLAGS, protocol) {
        (
            libc::AF_INET | libc::AF_INET6,
            libc::SOCK_STREAM,
            0 | libc::IPPROTO_TCP | libc::IPPROTO_MPTCP,
        ) => Some(Protocol::Tcp),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            Some(Protocol::Udp)
        }
        (libc::AF_UNIX, libc::SOCK_STREAM, 0) if local_stream::is_on() => Some(Protocol::Tcp),
        _ => None,
    }
}

/// Whether this run uses our stack at all.
fn is_in_use() -> bool {
    config::get().is_some_and(|config| config.launch.dev.is_some())
}

/// # Safety
/// That of socket(2).
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if is_too_early() {
        // SAFETY: the caller's contract.
        return unsafe { real::socket(domain, kind, protocol) };
    }
    if is_inside() {
        // SAFETY: the caller's contract.
        return internal_fds::make_internal(unsafe { real::socket(domain, kind, protocol) });
    }
    let ours = protocol_of(domain, kind, protocol).filter(|_| is_in_use());
    // AF_UNIX sockets belong to no namespace, but the ways over memory do.
    let is_reported = domain != libc::AF_UNIX;
    let is_ours =
        |ours: &Protocol| could_be_ours(*ours, domain) && namespace::is_first(is_reported);
    let Some(protocol_is) = ours.filter(is_ours) else {
        // SAFETY: the caller's contract.
        return unsafe { kernel::socket(domain, kind, protocol) };
    };
    let moment = companion_address::moment();
    // SAFETY: the caller's contract.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0
        && let Some(_inside) = Inside::enter()
        && !is_short()
    {
        let file = File::new(protocol_is, domain);
        file.set_options_known();
        match protocol_is {
            Protocol::Tcp if domain == libc::AF_UNIX => {}
            Protocol::Tcp => file.address.note(moment, address::any(domain)),
            Protocol::Udp => file.local_udp.set(local_udp::OWN),
        }
        file.set_nonblocking(kind & libc::SOCK_NONBLOCK != 0);
        if protocol == libc::IPPROTO_MPTCP {
            file.require(unsupported_options::MPTCP);
        }
        FILES.set(fd, FILES.hold(file));
    }
    fd
}

/// Whether some rule of the policy may put a new socket on the stack plane.
fn could_be_ours(protocol: Protocol, domain: c_int) -> bool {
    let Some(config) = config::get() else { return false };
    let policy = &config.launch.policy;
    policy.rules.iter().any(|rule| rule.change.plane == Some(busypoll_policy::Plane::Stack))
        || File::new(protocol, domain).is_for_stack(None, None)
}

/// Whether it is a connection of ours, or is connecting: its companion does not know.
fn is_stream(file: &File) -> bool {
    matches!(file.live(), Some(Live::Stream(_))) && !file.has_failed()
}

/// # Safety
/// That of bind(2).
pub unsafe fn bind(file: Ref, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if file.domain == libc::AF_UNIX {
        // SAFETY: the caller's contract.
        return unsafe { real::bind(fd, addr, len) };
    }
    if is_stream(&file) {
        let Some(_inside) = Inside::enter() else { return answer(Err(error(libc::EINVAL))) };
        // SAFETY: the caller's contract.
        let local = unsafe { address::read(addr, len) };
        let least = if file.domain == libc::AF_INET6 { 24 } else { size_of::<libc::sockaddr_in>() };
        // The kernel checks the length and the family first.
        let refused = match local {
            _ if (len as usize) < least => libc::EINVAL,
            Ok(local) => not_bound_again(file.domain, local),
            // SAFETY: the caller's contract.
            Err(_) if unsafe { address::names_family(addr, len) } => libc::EAFNOSUPPORT,
            Err(_) => libc::EINVAL,
        };
        return answer(Err(error(refused)));
    }
    let file = match file.has_failed().then(Inside::enter).flatten() {
        Some(_inside) => {
            release_port(fd);
            unconnected(file)
        }
        None => file,
    };
    // SAFETY: the caller's contract.
    if let Ok(local) = unsafe { address::read(addr, len) }
        && let Some(_inside) = Inside::enter()
        && is_taken(&file, fd, local)
    {
        return answer(Err(error(libc::EADDRINUSE)));
    }
    forget_address(&file);
    let moment = companion_address::moment();
    // SAFETY: the caller's contract.
    let (mut bound, mut exclusive) = unsafe { bind_exclusively(&file, fd, addr, len) };
    // An idle port reservation of ours may hold the port.
    if bound != 0 && errno::get() == libc::EADDRINUSE && release_idle_ports(&file) {
        // SAFETY: the caller's contract.
        (bound, exclusive) = unsafe { bind_exclusively(&file, fd, addr, len) };
    }
    if bound == 0
        && let Some((_inside, file)) = enter(file)
        && let Ok(local) = local(fd)
    {
        if file.protocol == Protocol::Tcp {
            file.address.note(moment, local);
        }
        match file.is_for_stack(Some(local), None) {
            false => leave_fd_to_kernel(fd, &file),
            // It has not joined its group yet.
            true if local.ip().to_canonical().is_multicast() => {}
            true => {
                file.local_udp.set(local_udp::BOUND);
                *lock(&file.bound_alone) = exclusive.then(Instant::now);
                prepare(local);
                activate_if_used(&file, fd, local);
            }
        }
    }
    bound
}

/// The address of the companion is about to change.
fn forget_address(file: &File) {
    // No handler may run while the lock is held.
    let _inside = Inside::enter();
    file.address.forget();
}

/// Releases the ports that are reserved for connections to come. False: there were none.
fn release_idle_ports(file: &File) -> bool {
    let _errno = errno::Saved::new();
    let is_tcp = file.protocol == Protocol::Tcp && !file.is_kernel_owned();
    let Some(_inside) = is_tcp.then(Inside::enter).flatten() else { return false };
    host::existing().is_some_and(|host| host.release_idle_ports())
}

/// Binds the companion. Also returns whether no other socket has the port; with `SO_REUSEADDR` that is found out by
/// binding without it first.
///
/// # Safety
/// That of bind(2).
unsafe fn bind_exclusively(
    file: &File,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> (c_int, bool) {
    // SAFETY: the caller's contract.
    let bind = || unsafe { real::bind(fd, addr, len) };
    // Otherwise the answer is not used.
    if file.protocol != Protocol::Tcp || file.is_kernel_owned() || host::existing().is_none() {
        return (bind(), false);
    }
    let Some(_inside) = Inside::enter() else { return (bind(), false) };
    let is_on = |name| file.is_on(fd, libc::SOL_SOCKET, name);
    match (is_on(libc::SO_REUSEADDR), is_on(libc::SO_REUSEPORT)) {
        (_, true) => (bind(), false),
        (false, false) => {
            let bound = bind();
            (bound, bound == 0)
        }
        (true, false) => {
            companion_options::set_on(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, false);
            let bound = bind();
            let failed = errno::get();
            companion_options::set_on(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, true);
            if bound != 0 && failed == libc::EADDRINUSE {
                return (bind(), false);
            }
            errno::set(failed);
            (bound, bound == 0)
        }
    }
}

/// The file to use for bind or connect: after a failed connect, one that was never connected. Dropping the old one
/// releases its port.
fn unconnected(file: Ref) -> Ref {
    if file.has_failed() { deactivate(&file) } else { file }
}

/// Releases a port that the program has not chosen when connecting fails. The kernel does so for its own sockets
/// (`tcp_disconnect`), and for a companion, which has not connected, when it stops listening.
fn release_port(fd: c_int) {
    let nothing = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
    if local(fd).is_ok_and(|bound| bound.port() != 0) {
        // SAFETY: plain system calls, and an address of that length.
        unsafe {
            if real::listen(fd, 0) == 0 {
                real::connect(fd, &raw const nothing, size_of_val(&nothing) as socklen_t);
            }
        }
    }
}

/// Whether connections of ours, which companions do not know, conflict with a port.
fn is_taken(file: &File, fd: c_int, local: SocketAddr) -> bool {
    let is_in_question =
        file.protocol == Protocol::Tcp && !file.is_kernel_owned() && local.port() != 0;
    let Some(host) = is_in_question.then(host::existing).flatten() else { return false };
    if local_of(file, fd).is_ok_and(|bound| bound.port() != 0)
        || !file.is_for_stack(Some(local), None)
    {
        return false;
    }
    let is_on = |name| file.is_on(fd, libc::SOL_SOCKET, name);
    let sharing = ListenOptions {
        reuse_address: is_on(libc::SO_REUSEADDR),
        reuse_port: is_on(libc::SO_REUSEPORT),
        only_v6: file.is_only_v6(fd),
        ..ListenOptions::default()
    };
    host.is_tcp_port_taken(local, &sharing)
}

/// The error of binding a connection to `local`: for IPv4 the kernel checks the address first (`__inet_bind`).
fn not_bound_again(domain: c_int, local: SocketAddr) -> c_int {
    let is_elsewhere = |ip| match net::UdpSocket::bind((ip, 0)) {
        Err(wrong) => wrong.raw_os_error() == Some(libc::EADDRNOTAVAIL),
        Ok(_) => false,
    };
    match local.ip() {
        IpAddr::V4(ip) if domain == libc::AF_INET && is_elsewhere(ip) => libc::EADDRNOTAVAIL,
        ip if ip.is_ipv4() != (domain == libc::AF_INET) => libc::EAFNOSUPPORT,
        _ => libc::EINVAL,
    }
}

/// # Safety
/// That of listen(2).
pub unsafe fn listen(file: Ref, fd: c_int, backlog: c_int) -> c_int {
    if file.domain == libc::AF_UNIX {
        // SAFETY: the caller's contract.
        return unsafe { real::listen(fd, backlog) };
    }
    if is_stream(&file) {
        return answer(Err(error(libc::EINVAL)));
    }
    // A port is chosen for an unbound socket.
    forget_address(&file);
    // SAFETY: the caller's contract.
    let listens = unsafe { real::listen(fd, backlog) };
    if listens == 0
        && let Some((_inside, file)) = enter(file)
    {
        let file = unconnected(file);
        // The kernel takes it as unsigned (`__inet_listen_sk`).
        let backlog = if backlog < 0 { c_int::MAX } else { backlog };
        file.set_backlog(backlog);
        if let Some(Live::Listener(listener)) = file.live() {
            listener.set_backlog(backlog.cast_unsigned());
        }
        let Ok(local) = local(fd) else { return listens };
        if file.is_for_stack(Some(local), None) {
            // An io_uring may be all that waits for it.
            if rings::keep_sockets() {
                file.set_kernel_owned();
                return listens;
            }
            prepare(local);
        }
        activate_if_used(&file, fd, local);
    }
    listens
}

/// A socket that is bound to `local` may need the interface.
fn prepare(local: SocketAddr) {
    if route::receives_from_interface(local.ip()) {
        host::prepare();
    }
}

/// Activates it now if this process has the queues already, or if a thread waits for it in an epoll instance.
fn activate_if_used(file: &File, fd: c_int, local: SocketAddr) {
    // Whether it waits or sends first says what it is.
    let is_later = file.protocol == Protocol::Udp && udp_links::is_on();
    if is_later && !file.memberships.is_waited_for() {
        return;
    }
    let host = match local.ip().to_canonical().is_loopback() {
        true => host::existing(),
        false => host::with_interface(),
    };
    if host.is_some() {
        file.activate_early(fd);
    } else if file.memberships.is_waited_for() {
        file.activate(fd);
    }
}

/// # Safety
/// That of connect(2).
pub unsafe fn connect(file: Ref, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::connect(fd, addr, len) };
    if file.domain == libc::AF_UNIX {
        let result = by_kernel();
        if result == 0
            && let Some((_inside, file)) = enter(file)
        {
            local_stream::connected(&file, fd);
        }
        return result;
    }
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    if file.follows() {
        // It is an error, or disconnects it.
        file.set_kernel_owned();
        drop((file, inside));
        return by_kernel();
    }
    // SAFETY: the caller's contract.
    let remote = match unsafe { address::read(addr, len) } {
        Ok(remote) if len as usize <= address::LONGEST => remote,
        // A connected socket does not check the address (`__inet_stream_connect`).
        // SAFETY: the caller's contract.
        Err(_) if is_stream(&file) && unsafe { address::names_family(addr, len) } => {
            address::any(file.domain)
        }
        _ => {
            // A disconnect or an invalid address: the kernel decides.
            file.address.forget();
            let result = by_kernel();
            if result == 0 {
                disconnect(&file, fd);
            }
            return result;
        }
    };
    match file.protocol {
        Protocol::Udp => connect_udp(&file, fd, remote, by_kernel),
        Protocol::Tcp => match connect_tcp(&inside, file, fd, remote) {
            Some(result) => answer(result.map(|()| 0)),
            None => {
                // The kernel's connect may block.
                drop(inside);
                by_kernel()
            }
        },
    }
}

/// The companion has no peer and does not listen any more (`tcp_disconnect`, `__udp_disconnect`): our socket follows.
fn disconnect(file: &Ref, fd: c_int) {
    match file.live() {
        // The kernel chose its port, and has released it.
        Some(Live::Udp(_)) if local(fd).is_ok_and(|local| local.port() == 0) => {
            deactivate(file);
        }
        Some(Live::Udp(udp)) => udp.disconnect(),
        Some(Live::Stream(stream)) => {
            // The peer gets a reset. It cannot fail.
            let _ = stream.set_linger(Some(Duration::ZERO));
            deactivate(file);
        }
        Some(Live::Listener(listener)) => {
            listener.stop();
            deactivate(file);
        }
        None if file.backlog() >= 0 => file.set_backlog(-1),
        None => file.local_udp.set_ends(None),
    }
}

fn connect_udp(file: &Ref, fd: c_int, remote: SocketAddr, by_kernel: impl Fn() -> c_int) -> c_int {
    if let Some(live @ Live::Udp(udp)) = file.live() {
        let connected = udp.connect(remote);
        if connected.is_ok() {
            file.apply_settings(live, (local(fd).ok(), Some(remote)));
            udp.set_looks(true);
        }
        return answer(connected.map(|()| 0));
    }
    let bound = local(fd).unwrap_or(address::any(file.domain));
    let result = by_kernel();
    // The kernel does not name a peer with port 0 (`inet_getname`), which no datagram comes from.
    let ours = || {
        remote.port() != 0
            && file.is_for_stack(None, Some(remote))
            && route::leads_to(remote, bound.ip())
    };
    let is_kernels = || {
        !udp_links::connected(file, fd, remote)
            && (file.local_udp.is(local_udp::KERNELS) || !ours())
    };
    if result == 0 && is_kernels() {
        leave_fd_to_kernel(fd, file);
    }
    result
}

/// `None`: the kernel connects.
fn connect_tcp(
    inside: &Inside,
    file: Ref,
    fd: c_int,
    remote: SocketAddr,
) -> Option<io::Result<()>> {
    let mut file = unconnected(file);
    if file.backlog() >= 0 {
        return None;
    }
    let is_new = !matches!(file.live(), Some(Live::Stream(_)));
    if is_new && (file.domain == libc::AF_INET6) == remote.is_ipv6() {
        match links::connect(inside, file, fd, remote) {
            Ok(result) => return Some(result),
            Err(same) => file = same,
        }
    }
    let mut alone_since = None;
    let stream: &TcpStream = match file.live() {
        Some(Live::Stream(live)) => {
            // Another process may have got it between the two calls.
            file.clear_private();
            live
        }
        _ => {
            let (since, is_known) = (companion_address::moment(), file.address.get().is_some());
            let bound = local_of(&file, fd).unwrap_or(address::any(file.domain));
            // The kernel knows the right error.
            if (file.domain == libc::AF_INET6) != remote.is_ipv6() {
                return None;
            }
            let local = (bound.port() != 0).then_some(bound);
            let ours =
                file.is_for_stack(local, Some(remote)) && route::leads_to(remote, bound.ip());
            match ours.then(|| file.stream(fd, local, (remote, false))).flatten() {
                Some(stream) => {
                    alone_since = is_known.then_some(since);
                    stream
                }
                None => {
                    leave_fd_to_kernel(fd, &file);
                    return None;
                }
            }
        }
    };
    let restart = match stream.write_timeout() {
        Ok(Some(_)) => Restart::Never,
        _ => Restart::BySignal,
    };
    let result = inside.wait(restart, || stream.connect_to(remote));
    // Its address is known for as long as no other process can have got the socket. A process that is forked from now
    // on shares the connection.
    let begun = result.as_ref().map_or_else(|failed| code(failed) == libc::EINPROGRESS, |()| true);
    if begun && alone_since == Some(companion_address::moment()) {
        file.set_private();
    }
    if let Err(failed) = &result {
        match code(failed) {
            libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR | ERESTARTSYS => {}
            // Connections of ours need more than the kernel's: a descriptor, and room in the ports map.
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                let device = not_accelerated::device();
                let why = format_args!("{device}: a tcp connection: {failed}");
                not_accelerated::report(&NO_ROOM, why, "it stays with the kernel");
                leave_fd_to_kernel(fd, &file);
                return None;
            }
            // The route leads over another interface after all.
            libc::EOPNOTSUPP => {
                leave_fd_to_kernel(fd, &file);
                return None;
            }
            _ => file.set_failed(),
        }
    }
    Some(result)
}

/// A call on a socket with a timeout is not restarted after a signal (signal(7)).
pub fn restart_unless_timeout(fd: c_int, which: c_int) -> Restart {
    match companion_options::timeout(fd, which) {
        Some(_) => Restart::Never,
        None => Restart::BySignal,
    }
}

/// # Safety
/// That of shutdown(2).
pub unsafe fn shutdown(file: Ref, fd: c_int, how: c_int) -> c_int {
    if file.domain == libc::AF_UNIX {
        return local_stream::shutdown(&file, fd, how);
    }
    // SAFETY: a plain system call.
    let by_kernel = || unsafe { real::shutdown(fd, how) };
    let Some((_inside, file)) = enter(file) else { return by_kernel() };
    if file.follows() {
        // Its end has begun.
        file.set_kernel_owned();
        return by_kernel();
    }
    let direction = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return by_kernel(),
    };
    let live = match file.protocol {
        // Shutdown also changes what a later wait finds, so it must be active.
        Protocol::Udp => file.activate(fd),
        Protocol::Tcp => file.live(),
    };
    match live {
        Some(Live::Stream(stream)) => {
            let shut = stream.shutdown(direction);
            if shut.is_ok() && stream.is_unconnected() {
                file.set_failed();
            }
            answer(shut.map(|()| 0))
        }
        Some(Live::Udp(udp)) => answer(udp.shutdown(direction).map(|()| 0)),
        live => {
            let successor = match live {
                Some(Live::Listener(listener)) if how != libc::SHUT_WR => {
                    // In epoll sets the companion takes its place, and reports the hang-up.
                    let successor = leave_sets(&file);
                    // Before the companion's hang-up, which would be taken for a connection.
                    listener.stop();
                    Some(successor)
                }
                _ => None,
            };
            let result = by_kernel();
            // `inet_shutdown`: it stops listening.
            if let Some(successor) = successor {
                FILES.replace(&file, &successor);
            } else if result == 0 && file.backlog() >= 0 && how != libc::SHUT_WR {
                disconnect(&file, fd);
            }
            result
        }
    }
}

/// # Safety
/// That of getsockname(2).
pub unsafe fn getsockname(file: Ref, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::getsockname(fd, addr, len) };
    if file.domain == libc::AF_UNIX {
        return by_kernel();
    }
    let Some((_inside, file)) = enter(file) else { return by_kernel() };
    match file.live() {
        Some(Live::Stream(stream)) => match stream.local_addr() {
            // SAFETY: the caller's contract.
            Ok(local) if local.port() != 0 => {
                // SAFETY: the caller's contract.
                answer(unsafe { address::write(Some(local), file.domain, addr, len).map(|()| 0) })
            }
            _ => by_kernel(),
        },
        _ => by_kernel(),
    }
}

/// # Safety
/// That of getpeername(2).
pub unsafe fn getpeername(file: Ref, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::getpeername(fd, addr, len) };
    if file.domain == libc::AF_UNIX {
        return by_kernel();
    }
    let Some((_inside, file)) = enter(file) else { return by_kernel() };
    match file.live() {
        Some(Live::Stream(stream)) => answer(stream.peer_addr().and_then(|peer| {
            // SAFETY: the caller's contract.
            unsafe { address::write(Some(peer), file.domain, addr, len) }.map(|()| 0)
        })),
        _ => by_kernel(),
    }
}
