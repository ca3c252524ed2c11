//! The kernel's hold on a TCP port of ours, on an interface shared with it: a kernel socket that is bound to the
//! port and does nothing else, so that nobody else gets it, and the steering that brings the port's packets to our
//! queues. A listener has one, shared with all its connections, TIME_WAIT included; a connection made from here
//! has one of its own. Where the kernel's socket is another's, it may be closed before connections are over, and the
//! kernel give the port to somebody else: then only those connections are steered, and no more the port.
//!
//! The socket does not listen: who connects to a port of ours over loopback, or over an interface that is not
//! shared, is refused by the kernel.

use super::{
    companion::{State, Steered},
    sockets::set_option,
};
use crate::{sync::lock, sys};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{SocketAddr, TcpStream as KernelSocket},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

pub(super) const TCP: u8 = 6;

/// A port of a connection that is over rests while this many others do, so that it is not used again at once
/// while the peer remembers it; then it serves the next connection, with no system call. Up to twice as many
/// rest, so that the coming and going of several at once takes none either. Each keeps a descriptor: fewer where the
/// process may have few.
const IDLE_PORTS: usize = 128;

/// The share of the process's descriptors that [`IDLE_PORTS`] ports may have: one in so many.
const IDLE_SHARE: usize = 16;

/// What bind(2) is to be told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldOptions {
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    pub(crate) only_v6: bool,
}

/// A port held. Dropping it lets go of it.
pub(crate) struct Hold {
    port: Option<Port>,
    /// The port does not rest: its connection is the kernel's.
    handed_over: AtomicBool,
    state: Arc<State>,
    /// That of the socket which this is a connection of.
    _of: Option<Arc<Hold>>,
}

/// The parts of a hold.
#[derive(Debug)]
struct Port {
    /// None: the kernel's socket is held by others.
    _socket: Option<OwnedFd>,
    local: SocketAddr,
    /// It was chosen by the kernel for whatever address: the next connection may have it.
    ephemeral: bool,
    only_v6: bool,
    /// The number of its entry among those steered; `None`: each of its connections has its own.
    steered: Option<u64>,
}

/// The ports a host holds.
#[derive(Debug)]
pub(super) struct ReservedPorts {
    /// Those asked for by name, or chosen for a socket that is not connected: who asks again for one that is held
    /// shares it, and inet says who may have it. So a server may start again while connections of its former
    /// life are in TIME_WAIT.
    named: Mutex<HashMap<SocketAddr, Weak<Hold>>>,
    /// Those that rest, by family.
    idle: [Mutex<VecDeque<Port>>; 2],
    /// How many do before they serve again.
    min_idle: usize,
}

impl Default for ReservedPorts {
    fn default() -> ReservedPorts {
        let min_idle = IDLE_PORTS.min(sys::descriptor_limit() / IDLE_SHARE);
        ReservedPorts { named: Mutex::default(), idle: Default::default(), min_idle }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.port)
    }
}

impl ReservedPorts {
    /// Lets go of the ports that rest; false: there are none.
    pub(super) fn release_idle(&self, state: &State) -> bool {
        let rested: Vec<Port> =
            self.idle.iter().flat_map(|idle| std::mem::take(&mut *lock(idle))).collect();
        let some = !rested.is_empty();
        // Steered first, as long as nobody else can have the port.
        rested.iter().filter_map(|port| port.steered).for_each(|steered| state.remove(steered));
        some
    }

    fn idle(&self, local: SocketAddr) -> &Mutex<VecDeque<Port>> {
        let [v4, v6] = &self.idle;
        if local.is_ipv4() { v4 } else { v6 }
    }
}

impl Hold {
    /// Holds `local`, port 0 for any; `None` if it is no address of the kernel's.
    ///
    /// # Errors
    /// As bind(2); a full steering map.
    pub(super) fn named(
        state: &Arc<State>,
        local: SocketAddr,
        options: HoldOptions,
    ) -> io::Result<Option<Arc<Hold>>> {
        if !state.is_kernels(local) {
            return Ok(None);
        }
        loop {
            let mut named = lock(&state.reserved.named);
            match named.get(&local).map(Weak::upgrade) {
                Some(Some(hold)) => return Ok(Some(hold)),
                // Somebody is about to let go of it.
                Some(None) => {
                    drop(named);
                    thread::yield_now();
                }
                None => {
                    let hold = Arc::new(Hold::new(state, local, options, false)?);
                    named.extend(hold.local().map(|local| (local, Arc::downgrade(&hold))));
                    return Ok(Some(hold));
                }
            }
        }
    }

    fn new(
        state: &Arc<State>,
        local: SocketAddr,
        options: HoldOptions,
        ephemeral: bool,
    ) -> io::Result<Hold> {
        let (socket, local) = bind(local, options)?;
        let steered = Some(state.add(Steered::new(TCP, local, options.only_v6))?);
        let port =
            Port { _socket: Some(socket), local, ephemeral, only_v6: options.only_v6, steered };
        Ok(Hold::of(port, state))
    }

    fn of(port: Port, state: &Arc<State>) -> Hold {
        Hold {
            port: Some(port),
            handed_over: AtomicBool::new(false),
            state: state.clone(),
            _of: None,
        }
    }

    /// Steers the port of a kernel socket that others have bound; `None` if it is no address of the kernel's. Unless
    /// it is `fresh`, connections that the kernel has there are left to it.
    ///
    /// # Errors
    /// A full steering map.
    pub(super) fn adopt(
        state: &Arc<State>,
        local: SocketAddr,
        only_v6: bool,
        fresh: bool,
    ) -> io::Result<Option<Hold>> {
        if !state.is_kernels(local) {
            return Ok(None);
        }
        if !fresh {
            state.exclude_existing(local.port());
        }
        let steered = Some(state.add(Steered::new(TCP, local, only_v6))?);
        if !fresh {
            // And those that have come between the two.
            state.exclude_existing(local.port());
        }
        let port = Port { _socket: None, local, ephemeral: false, only_v6, steered };
        Ok(Some(Hold::of(port, state)))
    }

    /// Of a kernel socket that others have bound, to connect from there; `None` if it is no address of the kernel's.
    pub(super) fn for_connect(
        state: &Arc<State>,
        local: SocketAddr,
        only_v6: bool,
        socket: OwnedFd,
    ) -> Option<Hold> {
        let port = Port { _socket: Some(socket), local, ephemeral: false, only_v6, steered: None };
        state.is_kernels(local).then(|| Hold::of(port, state))
    }

    /// What a connection to `remote` is to hold: the same, where all of the port is steered.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if the kernel has that connection; a full steering map.
    pub(crate) fn connected(self: &Arc<Hold>, remote: SocketAddr) -> io::Result<Arc<Hold>> {
        let Some(Port { local, only_v6, steered: None, .. }) = self.port else {
            return Ok(self.clone());
        };
        if self.state.has_connection(local, remote) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let steered = Some(self.state.add(Steered::from(local, only_v6, vec![remote]))?);
        let port = Port { _socket: None, local, ephemeral: false, only_v6, steered };
        let (state, _of) = (self.state.clone(), Some(self.clone()));
        Ok(Arc::new(Hold { port: Some(port), handed_over: AtomicBool::new(false), state, _of }))
    }

    /// Nobody listens here any more, and there are connections to `remotes` yet: only they are steered, if the kernel's
    /// socket is not ours to keep.
    pub(crate) fn narrow(&self, remotes: Vec<SocketAddr>) {
        if let Some(Port { _socket: None, steered: Some(steered), .. }) = self.port {
            // If the map is full, the port stays ours as long as they do.
            let _ = self.state.narrow(steered, remotes);
        }
    }

    /// Holds any port of the wildcard address of the family of `like`, for a connection.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if there is none left; no descriptor left; a full steering map.
    pub(super) fn ephemeral(state: &Arc<State>, like: SocketAddr) -> io::Result<Hold> {
        let idle = state.reserved.idle(like);
        let take_idle = |least| {
            let mut idle = lock(idle);
            if idle.len() > least { idle.pop_front() } else { None }
        };
        let again = |port| Hold::of(port, state);
        if let Some(port) = take_idle(state.reserved.min_idle) {
            return Ok(again(port));
        }
        let options = HoldOptions { only_v6: true, ..HoldOptions::default() };
        match Hold::new(state, like, options, true) {
            Ok(hold) => Ok(hold),
            // Rather one that has not rested for long.
            Err(error) => take_idle(0).map(again).ok_or_else(|| match error.raw_os_error() {
                Some(libc::EADDRINUSE) => io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
                _ => error,
            }),
        }
    }

    /// The connection that it was for is the kernel's from now on, and so is the port.
    pub(crate) fn leave_to_kernel(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// What is held.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.port.as_ref().map(|port| port.local)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(port) = self.port.take() else { return };
        if port.ephemeral && !*self.handed_over.get_mut() {
            let mut idle = lock(self.state.reserved.idle(port.local));
            if idle.len() < 2 * self.state.reserved.min_idle {
                return idle.push_back(port);
            }
        }
        // Under the lock, so that who asks for it again finds it held or free.
        let mut named = lock(&self.state.reserved.named);
        // One that was adopted is not among them, though another of its name may be.
        if !port.ephemeral && named.get(&port.local).is_some_and(|hold| hold.strong_count() == 0) {
            named.remove(&port.local);
        }
        port.steered.into_iter().for_each(|steered| self.state.remove(steered));
        drop(port);
    }
}

/// A kernel socket bound to `local`, and what it is bound to.
fn bind(local: SocketAddr, options: HoldOptions) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(family, kind, 0) })?;
    if options.reuse_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if local.is_ipv6() {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, i32::from(options.only_v6))?;
    }
    let bound = sys::bind(socket.as_raw_fd(), local);
    match bound {
        // What the kernel's own connections left in TIME_WAIT stands in the way only without it. It is not set
        // from the start, as others who set it could then listen beside a socket that does not.
        Err(error) if options.reuse_address && error.raw_os_error() == Some(libc::EADDRINUSE) => {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            sys::bind(socket.as_raw_fd(), local)?;
            set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0)?;
        }
        other => other?,
    }
    if local.port() != 0 {
        return Ok((socket, local));
    }
    let socket = KernelSocket::from(socket);
    let local = socket.local_addr()?;
    Ok((socket.into(), local))
}
